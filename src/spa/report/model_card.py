"""The files beside an exported model: a card that says how to use it and what it scored, its task as a config, its licence."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import yaml

from spa.agent.chat import Chat
from spa.agent.policy import make_task, sampling_for
from spa.common.cache import CACHED
from spa.common.secrets import shown
from spa.common.tables import markdown_table
from spa.config.load import to_yaml
from spa.config.schema import Config, ModelConfig, VariantConfig
from spa.config.variants import (
    given_data,
    needs_sft,
    played_config,
    practice_folder,
    sft_name,
    source_config,
    variant_config,
)
from spa.evaluate.summary import EvalResult, comparison_cells, comparison_table, scores
from spa.evaluate.verdict import main_variant, verdict
from spa.models.folders import resolve_path
from spa.models.load import load_tokenizer
from spa.runs.folder import TASK, RunFolder, variant_names, variants_folder
from spa.runs.products import is_of_model
from spa.runs.record import read_done, run_around, taught_nothing
from spa.runs.trainings import trainings

_SNIPPET = """\
{imports}from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # where this model is
tokenizer = AutoTokenizer.from_pretrained(folder)
{load}
messages = {messages}
prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
forced = {forced!r}  # every response starts with it
ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
ids = ids.new_tensor([[*ids[0], *{forced_ids}]])  # the ids of forced
output = model.generate(
    ids,
    attention_mask=ids.new_ones(ids.shape),
    max_new_tokens={max_tokens},
    {sampling},{stop}
    eos_token_id={eos},
    pad_token_id=tokenizer.pad_token_id,
)
print(forced + tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True))
"""
_LOAD = "model = AutoModelForCausalLM.from_pretrained(folder)"
ALGORITHMS = {  # by ppo.estimator
    "gae": "PPO",
    "turn_gae": "turn-level PPO",
    "bi_level_gae": "PPO with bi-level GAE",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
    "reinforce_plus_plus": "REINFORCE++",
    "reinforce_plus_plus_baseline": "REINFORCE++ with the group's mean as baseline",
}


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from: its ``run``, its variant (None: stage 2) and the config of its task; and its training.

    ``stage`` trained it, with the settings of ``definition`` (a variant; None: the run's).
    """

    run: Path
    config: Config
    variant: str | None
    stage: str  # "ppo", "policy" (practice) or "sft"
    definition: VariantConfig | None

    @cached_property
    def run_config(self) -> Config:
        return RunFolder(self.run).config()

    @property
    def trained(self) -> Config:
        """The config of its training."""
        cfg, variant = self.run_config, self.definition
        return variant_config(cfg, variant) if variant and self.stage == "ppo" else source_config(cfg, variant)

    def has_stage_2(self) -> bool:
        variant = self.definition
        return self.stage != "ppo" or variant is None or needs_sft(self.run_config, variant)

    def starts_from_base(self) -> bool:
        """Whether the stage that trained it started from ``model.path``."""
        cfg = self.trained
        if self.stage != "ppo":
            return self.stage == "sft"
        return not self.has_stage_2() and cfg.ppo.start in (None, cfg.model.path)

    def _was_taught(self, variant: VariantConfig) -> bool:
        return not taught_nothing(read_done(practice_folder(self.run, variant)) or {})

    def training(self) -> list[str]:
        """What the model was trained by, in order."""
        cfg, variant, rl, steps = self.run_config, self.definition, self.stage == "ppo", []
        if self.has_stage_2():
            played = source_config(cfg, variant).selfplay
            states = played.prompt == "world_model" or played.rows == "transitions"
            steps = [*([] if given_data(cfg, variant) else ["self-play"]), "world-model SFT" if states else "SFT"]
            if self.stage == "policy" or (rl and variant and variant.practice and self._was_taught(variant)):
                steps.append("practice in imagination")
        if rl:
            other = "" if steps or self.starts_from_base() else " from another model"
            steps.append(ALGORITHMS[self.trained.ppo.estimator] + other)
        return steps


def export_files(checkpoint: Path, variant: str | None = None, *, adapter: bool = False) -> dict[str, str]:
    """Name -> text of the files that belong to an exported checkpoint, as ``variant`` of its run plays it.

    Without a variant its folder tells what it was trained for. Outside a run nothing is known of it: a card of its own is kept,
    else a bare one written.

    Raises:
        ValueError: ``adapter``, and these adapters do not belong on the run's base model.
    """
    origin = _origin(checkpoint, variant)
    if origin is None:
        readme = checkpoint / "README.md"
        if readme.is_file():
            return {"README.md": readme.read_text(encoding="utf-8", errors="replace")}
        return {"README.md": _card(checkpoint, None, {}, adapter)}
    base, licence = _base(origin.trained.model.path)
    changed = {}
    if adapter and (settings := checkpoint / "adapter" / "adapter_config.json").is_file():
        _check_adapter(checkpoint, origin)
        model = origin.trained.model
        data = json.loads(settings.read_text(encoding="utf-8"))
        data |= {"base_model_name_or_path": os.path.expanduser(model.path), "revision": model.revision}
        changed = {settings.name: json.dumps(data, indent=2, sort_keys=True) + "\n"}
        if base.get("base_model") != model.path:  # of the base itself
            base.pop("base_model", None)
    chat = Chat(load_tokenizer(str(checkpoint), origin.trained.model), forced=make_task(origin.config).forced)
    files = {
        "README.md": _card(checkpoint, origin, base, adapter, _usage(origin, adapter, chat)),
        TASK: _task_yaml(origin),
    }
    if not adapter:
        files["generation_config.json"] = _generation_config(checkpoint, chat)
    return files | changed | ({"LICENSE": licence} if licence else {})


def _generation_config(checkpoint: Path, chat: Chat) -> str:
    """The checkpoint's, with all tokens at which SPA ended a response: the end of a turn is often not the tokenizer's own."""
    path = checkpoint / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return json.dumps(config | {"eos_token_id": sorted(chat.stop_ids)}, indent=2) + "\n"


def _check_adapter(checkpoint: Path, origin: Origin) -> None:
    """Raises ValueError if the adapters were trained on another model than the base."""
    if origin.starts_from_base():
        return
    cfg, variant = origin.run_config, origin.definition
    also = ""
    if variant and origin.has_stage_2() and source_config(cfg, variant).sft.lora_rank:
        also = f", or stage 2's adapters with `--sft --adapter --variant {variant.name}` of the run"
    raise ValueError(
        f"the adapters of {checkpoint} do not fit {origin.trained.model.path}, since their training started from another model: "
        f"export the merged model, without --adapter{also}"
    )


def _origin(checkpoint: Path, variant_name: str | None) -> Origin | None:
    stage = checkpoint.resolve().parent.parent
    run = run_around(stage)
    # An export that lies in a run is none of its stages.
    if run is None or checkpoint.resolve().parent.name != "checkpoints":
        return None
    folder = RunFolder(run)
    cfg = folder.config()
    kind = stage.name if stage.name in ("ppo", "policy") else "sft"
    definition, practised = _definition(folder, stage)
    if variant_name or kind == "ppo" or (practised and definition):
        variant = folder.variant(variant_name) if variant_name else definition
        assert variant is not None
        return Origin(run, played_config(cfg, variant), variant.name, kind, definition)
    stage_cfg = source_config(cfg, definition)
    stage_cfg.env.state_format, stage_cfg.agent.prompt = stage_cfg.selfplay.state_format, stage_cfg.selfplay.prompt
    return Origin(run, stage_cfg, None, kind, definition)


def _definition(folder: RunFolder, stage: Path) -> tuple[VariantConfig | None, bool]:
    """The variant with whose settings a stage was trained (None: the run's), and whether it is one of practice."""
    if stage.name == "ppo":
        return folder.variant(stage.parent.name), False
    practised = next((parent for parent in stage.parents if parent.name.startswith("practice-")), None)
    if practised is not None:  # the plain policy of those that share it: of one without RL, if there is one
        variants = [folder.variant(name) for name in variant_names(folder.path, folder.config())]
        sharing = [
            each for each in variants if each.practice and practice_folder(folder.path, each).name == practised.name
        ]
        return min(sharing, key=lambda each: each.rl, default=None), True
    name = stage.name.partition("-")[2]
    return _of_stage_2(folder, name) if name else None, False


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
    files = (file for file in sorted(folder.glob("LICEN[SC]E*")) if file.is_file())
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
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
    """The task as a config file: how the model was asked in training and evaluated, without the machine's paths."""
    data = yaml.safe_load(to_yaml(origin.config))
    data["agent"]["planner"] = "none"  # the card describes the plain policy
    task = {key: data[key] for key in ("name", "env", "agent", "sampling", "seeds", "eval")}
    return str(yaml.safe_dump(task, sort_keys=False, allow_unicode=True))


def _card(
    checkpoint: Path, origin: Origin | None, base: dict[str, Any], adapter: bool, usage: Sequence[str] = ()
) -> str:
    """``usage``: the lines of ``_usage``."""
    steps = origin.training() if origin else []
    tags = {"reinforcement-learning": origin and origin.stage == "ppo", "world-model": "world-model SFT" in steps}
    front = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        **base,
        "tags": ["spa", *(tag for tag, true in tags.items() if true)],
    }
    head = ["---", str(yaml.safe_dump(front, sort_keys=False)).rstrip(), "---", ""]
    if origin is None:
        unknown = "Exported with the package `spa-agent`, which has no record of its training."
        return "\n".join([*head, f"# {checkpoint.name}", "", unknown]) + "\n"
    cfg = origin.config
    model = origin.trained.model.path
    named = base.get("base_model", model)
    own = ", ".join(map(str, named)) if isinstance(named, list) else named
    facts = {
        "world": f"{cfg.env.id} {json.dumps(shown(cfg)['env']['settings'])}" if cfg.env.settings else cfg.env.id,
        "base model": (Path(model).name if Path(model).is_absolute() else model)
        + ("" if named == model else f", whose own base is {own}"),
        "license": f"{base['license']}, the base model's" if "license" in base else "that of the base model",
        "step": checkpoint.name.removeprefix("global_step_"),
        "seed": cfg.seeds.run,
    }
    lines = [
        *head,
        f"# {_inline(cfg.name)}, {f'variant {origin.variant}' if origin.variant else 'world-model SFT'}",
        "",
        f"Trained with the package `spa-agent` (arXiv 2510.15047): {', '.join(steps)}.",
        "",
        *(f"- {name}: {_inline(value)}" for name, value in facts.items()),
        "",
        *_results(checkpoint, origin),
        *usage,
    ]
    return "\n".join(lines) + "\n"


def _inline(value: object) -> str:
    """A value of the run's or the base's files, as one line of text without HTML."""
    return escape(" ".join(str(value).split()), quote=False)


def _results(checkpoint: Path, origin: Origin) -> list[str]:
    """The run's comparison, if it evaluated this checkpoint."""
    folder = variants_folder(origin.run)
    done = read_done(folder / str(origin.variant) / "eval") if origin.variant else None
    if done is None or not is_of_model(done, str(checkpoint), origin.run):
        return []
    paths = {name: folder / name / "eval" / "result.json" for name in variant_names(origin.run, origin.config)}
    results = {name: EvalResult.read(path) for name, path in paths.items() if path.is_file()}
    if not results:
        return []
    rows = comparison_table(results, trained=trainings(origin.run))
    header, cells = comparison_cells(rows)
    table = markdown_table(["variant", *header], [[row.variant, *line] for row, line in zip(rows, cells, strict=True)])
    claims = verdict(scores(rows)) if main_variant({row.variant: None for row in rows}) == origin.variant else []
    claims = claims or ["One training run: no claim about the recipe, only about this model."]
    note = "On held-out worlds; percent, with 95% intervals over worlds: other training runs would differ by more."
    return ["## Result", "", *claims, "", *table, "", note, ""]


def _usage(origin: Origin, adapter: bool, chat: Chat) -> list[str]:
    """How the model is asked, and a snippet that asks it."""
    cfg = origin.config
    task = make_task(cfg)
    env = task.make_env()
    state, _ = env.reset(seed=cfg.seeds.test)
    user = task.header(env) + task.turn_text(1, state, cfg.env.max_actions)
    env.close()
    sampling = sampling_for(task, cfg.sampling)
    stop = f"\n    stop_strings={sampling.stop},\n    tokenizer=tokenizer," if sampling.stop else ""
    how = ["do_sample=False"]
    if sampling.temperature:
        how = [
            "do_sample=True",
            f"temperature={sampling.temperature}",
            f"top_p={sampling.top_p}",
            f"top_k={sampling.top_k}",
        ]
    window = cfg.agent.window
    later = (
        f"Its context is the last {window} turn(s): older ones are dropped, and the instruction comes before the oldest one kept."
        if window
        else "A later user message holds the reward of the turn before and the new state; the whole conversation is kept."
    )
    imports, load = _load_adapter(origin.trained.model) if adapter else ("", _LOAD)
    code = _SNIPPET.format(
        imports=imports,
        load=load,
        messages=json.dumps(chat.messages(task.system, user), indent=4, ensure_ascii=False),
        forced=chat.forced,
        forced_ids=chat.forced_ids,
        eos=sorted(chat.stop_ids),
        max_tokens=sampling.max_tokens,
        sampling=",\n    ".join(how),
        stop=stop,
    )
    package = (
        f"`{TASK}` holds the task, as a config of the package `spa-agent`."
        if adapter
        else "With the package `spa-agent`: `spa play FOLDER` watches it play, `spa eval FOLDER` measures it; "
        f"`{TASK}` holds the task."
    )
    others = [name for name in cfg.curriculum.mixture if name != cfg.name]
    alone = f"these prompts and those of other worlds ({', '.join(others)})" if others else "these prompts alone"
    return [
        "## Use",
        "",
        f"The model was trained on {alone}. Every response starts with `{chat.forced}`, which the caller inserts; "
        f"up to {cfg.env.max_actions_per_turn} actions of a response are played. {later}",
        "",
        "```python",
        code.rstrip(),
        "```",
        "",
        package,
    ]


def _load_adapter(model: ModelConfig) -> tuple[str, str]:
    """The snippet's imports and lines that load the base model and the adapters onto it."""
    path, imports = os.path.expanduser(model.path), "from peft import PeftModel\n"
    base = repr(path)
    if path.startswith(("builtin:", CACHED)):  # names that only this package knows
        imports += "from spa.models.folders import resolve_path\n"
        base = f"resolve_path({path!r})"
    revision = f", revision={model.revision!r}" if model.revision else ""
    load = [
        f"base = AutoModelForCausalLM.from_pretrained({base}{revision})",
        "model = PeftModel.from_pretrained(base, folder)",
    ]
    return imports, "\n".join(load)
