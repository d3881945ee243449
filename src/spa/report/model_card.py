"""The files beside an exported model: a card that says how to use it and what it scored, its task as a config, its licence."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spa.agent.policy import make_task, sampling_for
from spa.common.tables import markdown_table
from spa.config.load import to_yaml
from spa.config.schema import Config, VariantConfig
from spa.config.variants import played_config, practice_folder, sft_name, source_config
from spa.evaluate.summary import EvalResult, comparison_cells, comparison_table, scores
from spa.evaluate.verdict import verdict
from spa.models.folders import resolve_path
from spa.runs.folder import TASK, RunFolder, variant_names, variants_folder
from spa.runs.products import is_of_model
from spa.runs.record import read_done
from spa.runs.trainings import trainings

_SNIPPET = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this model is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
messages = {messages}
prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
forced = {forced!r}  # every response starts with it
parts = [tokenizer(text, add_special_tokens=False, return_tensors="pt") for text in (prompt, forced)]
ids = parts[0]["input_ids"].new_tensor([[*parts[0]["input_ids"][0], *parts[1]["input_ids"][0]]])
output = model.generate(
    ids,
    attention_mask=ids.new_ones(ids.shape),
    max_new_tokens={max_tokens},
    do_sample=True,
    temperature={temperature},{stop}
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,
)
print(forced + tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
"""


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from: its ``run``, its variant (None: stage 2) and the config of its task."""

    run: Path
    config: Config
    variant: str | None


def export_files(checkpoint: Path, variant: str | None = None, *, adapter: bool = False) -> dict[str, str]:
    """Name -> text of the files that belong to an exported checkpoint, as ``variant`` of its run plays it.

    Without a variant its folder tells what it was trained for. Outside a run nothing is known of it: a card of its own is kept,
    else a bare one written.
    """
    origin = _origin(checkpoint, variant)
    if origin is None:
        readme = checkpoint / "README.md"
        kept = readme.is_file()
        return {"README.md": readme.read_text(encoding="utf-8") if kept else _card(checkpoint, None, {}, adapter)}
    base, licence = _base(origin.config.model.path)
    files = {"README.md": _card(checkpoint, origin, base, adapter), TASK: _task_yaml(origin)}
    return files | ({"LICENSE": licence} if licence else {})


def _origin(checkpoint: Path, variant_name: str | None) -> Origin | None:
    run = next((parent for parent in checkpoint.resolve().parents if (parent / "config.yaml").is_file()), None)
    if run is None:
        return None
    folder = RunFolder(run)
    cfg = folder.config()
    stage = checkpoint.resolve().parent.parent
    if variant_name or stage.name == "ppo":
        variant = folder.variant(variant_name or stage.parent.name)
        return Origin(run, played_config(cfg, variant), variant.name)
    practised = next((parent for parent in stage.parents if parent.name.startswith("practice-")), None)
    if practised is not None:  # the plain policy of those that share it: of one without RL, if there is one
        variants = [folder.variant(name) for name in variant_names(run, cfg)]
        sharing = [each for each in variants if each.practice and practice_folder(run, each).name == practised.name]
        if sharing:
            variant = min(sharing, key=lambda each: each.rl)
            return Origin(run, played_config(cfg, variant), variant.name)
    name = stage.name.partition("-")[2]
    stage_cfg = source_config(cfg, _of_stage_2(folder, name) if name else None)
    stage_cfg.env.state_format, stage_cfg.agent.prompt = stage_cfg.selfplay.state_format, stage_cfg.selfplay.prompt
    return Origin(run, stage_cfg, None)


def _of_stage_2(folder: RunFolder, name: str) -> VariantConfig:
    """The first variant of a run that has, and may share, the stage 2 of this name."""
    recorded = map(folder.variant, folder.definitions())
    return next((each for each in recorded if each.sft and sft_name(each) == name), None) or folder.variant(name)


def _base(path: str) -> tuple[dict[str, Any], str]:
    """What the base model's own card states (``license``, ``base_model``; a hub name is itself), and the text of its licence."""
    try:
        folder = Path(resolve_path(path))
    except ValueError:  # it is gone since
        return {}, ""
    if not folder.is_dir():
        return {"base_model": path}, ""
    card = folder / "README.md"
    facts = _front_matter(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else {}
    texts = [text.read_text(encoding="utf-8") for text in sorted(folder.glob("LICEN[SC]E*"))]
    return {key: facts[key] for key in ("license", "base_model") if key in facts}, "\n".join(texts)


def _front_matter(card: str) -> dict[str, Any]:
    """The mapping between the first two lines of dashes; empty if there is none, or it is no YAML."""
    front = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    try:
        facts = yaml.safe_load(front[1]) if front else None
    except yaml.YAMLError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _task_yaml(origin: Origin) -> str:
    """The task as a config file: what the model must be asked as in training, without the machine's paths."""
    data = yaml.safe_load(to_yaml(origin.config))
    data["agent"]["planner"] = "none"  # the card describes the plain policy
    task = {key: data[key] for key in ("name", "env", "agent", "sampling")}
    return str(yaml.safe_dump(task, sort_keys=False, allow_unicode=True))


def _card(checkpoint: Path, origin: Origin | None, base: dict[str, Any], adapter: bool) -> str:
    front = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        **base,
        "tags": ["spa", "reinforcement-learning", "world-model"],
    }
    head = ["---", str(yaml.safe_dump(front, sort_keys=False)).rstrip(), "---", ""]
    what = "Trained with SPA (self-play, world-model SFT, PPO; arXiv 2510.15047)."
    if origin is None:
        return "\n".join([*head, f"# {checkpoint.name}", "", what]) + "\n"
    cfg = origin.config
    path = base.get("base_model", cfg.model.path)
    facts = {
        "world": f"{cfg.env.id} {json.dumps(cfg.env.settings)}" if cfg.env.settings else cfg.env.id,
        "base model": Path(path).name if Path(path).is_absolute() else path,
        "license": f"{base['license']}, the base model's" if "license" in base else "that of the base model",
        "step": checkpoint.name.removeprefix("global_step_"),
        "seed": cfg.seeds.run,
    }
    lines = [
        *head,
        f"# {cfg.name}, {f'variant {origin.variant}' if origin.variant else 'world-model SFT'}",
        "",
        what,
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "",
        *_results(checkpoint, origin),
        *_usage(origin, adapter),
    ]
    return "\n".join(lines) + "\n"


def _results(checkpoint: Path, origin: Origin) -> list[str]:
    """The run's comparison, if it evaluated this checkpoint."""
    folder = variants_folder(origin.run)
    done = read_done(folder / str(origin.variant) / "eval") if origin.variant else None
    if done is None or not is_of_model(done, str(checkpoint), origin.run):
        return []
    paths = {name: folder / name / "eval" / "result.json" for name in variant_names(origin.run, origin.config)}
    results = {name: EvalResult.read(path) for name, path in paths.items() if path.is_file()}
    rows = comparison_table(results, trained=trainings(origin.run))
    header, cells = comparison_cells(rows)
    table = markdown_table(["variant", *header], [[row.variant, *line] for row, line in zip(rows, cells, strict=True)])
    claims = verdict(scores(rows)) or ["One training run: no claim about the recipe, only about this model."]
    note = "On held-out worlds; percent, with 95% intervals over worlds: other training runs would differ by more."
    return ["## Result", "", *claims, "", *table, "", note, ""]


def _usage(origin: Origin, adapter: bool) -> list[str]:
    """How the model is asked, and a snippet that asks it."""
    cfg = origin.config
    task = make_task(cfg)
    env = task.make_env()
    state, _ = env.reset(seed=cfg.seeds.test)
    user = task.header(env) + task.turn_text(1, state, cfg.env.max_actions)
    env.close()
    system = [{"role": "system", "content": task.system}] if task.system is not None else []
    messages = [*system, {"role": "user", "content": user}]
    sampling = sampling_for(task, cfg.sampling)
    stop = f"\n    stop_strings={sampling.stop},\n    tokenizer=tokenizer," if sampling.stop else ""
    window = cfg.agent.window
    later = (
        f"Its context is the last {window} turn(s): the conversation begins anew with the instruction when there are more."
        if window
        else "A later user message holds the reward of the turn before and the new state; the whole conversation is kept."
    )
    code = _SNIPPET.format(
        messages=json.dumps(messages, indent=4, ensure_ascii=False),
        forced=task.forced,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature or 1.0,
        stop=stop,
    )
    return [
        "## Use",
        "",
        f"The model was trained on these prompts alone. Every response starts with `{task.forced}`, which the caller inserts; "
        f"up to {cfg.env.max_actions_per_turn} actions of a response are played. {later}",
        "",
        *(["(Adapters: load them onto the base model with peft first.)", ""] if adapter else []),
        "```python",
        code.rstrip(),
        "```",
        "",
        f"With the package `spa-agent`: `spa play FOLDER` watches it play, `spa eval FOLDER` measures it; `{TASK}` holds the task.",
    ]
