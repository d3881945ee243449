"""What is wrong is said before anything is written, and by ``--dry-run`` in the same words."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spa.cli import main
from spa.config.schema import ModelConfig
from spa.models.folders import resolve_path
from spa.models.load import check_vocabulary, load_model, load_tokenizer, save_model
from tests.models.networks import random_model, with_images
from tests.test_pipeline import SMALL


def refused(capsys: pytest.CaptureFixture[str], out: Path, *argv: str) -> str:
    """The one line of a command that must fail, with --dry-run and without; nothing is written."""
    lines = []
    argv = (*argv, "--quiet")  # without it, the preset of a model of one's own is said before
    for more in (["--dry-run"], []):
        assert main([*argv, "--out", str(out), *more]) == 2, more
        printed = capsys.readouterr()
        assert printed.err.count("\n") == 1, printed.err
        lines.append(printed.err.strip())
        assert not out.exists()
    assert lines[0] == lines[1]
    return lines[0]


def damaged(folder: Path, **settings: object) -> Path:
    """The tiny model with other settings in its config.json."""
    shutil.copytree(resolve_path("builtin:tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def variant_file(folder: Path, text: str) -> str:
    path = folder / "own.yaml"
    path.write_text(f"name: own\n{text}\n")
    return str(path)


@pytest.mark.parametrize("setting", ["sampling.temperature=0", "sampling.top_p=0.9", "sampling.top_k=5"])
@pytest.mark.parametrize("command", [["run"], ["ppo"], ["ppo", "--variant", "spa"]])
def test_sampling_that_ppo_cannot_learn_from(capsys, tmp_path, command: list[str], setting: str) -> None:
    line = refused(capsys, tmp_path / "r", *command, "frozen_lake", *SMALL, setting)
    name = command[-1] if "--variant" in command else "vanilla"
    assert line.startswith(
        f"Error: variant {name}: PPO needs sampling.top_p=1, sampling.top_k=0 and a temperature above 0"
    )


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["sft"], "run `spa generate` first"),
        (["ppo", "--variant", "spa"], "run `spa sft NAME --out "),
        (["ppo", "--variant", "spa_plan"], "run `spa practice NAME --variant spa_plan --out "),
        (["practice"], "starts from its SFT model: run `spa sft"),
        (["eval", "--variant", "vanilla"], "run `spa ppo NAME --variant vanilla --out "),
        (["eval", "--variant", "spa", "engine=openai"], "variant spa was not trained in"),
    ],
)
def test_what_an_earlier_stage_makes_is_missing(capsys, tmp_path, command: list[str], missing: str) -> None:
    assert missing in refused(capsys, tmp_path / "r", command[0], "frozen_lake", *command[1:], *SMALL)


def test_a_run_with_data_that_cannot_be_trained_on(capsys, tmp_path) -> None:
    given = ["run", "frozen_lake", *SMALL, f"sft.data={tmp_path}/rows.parquet"]
    assert "no training data" in refused(capsys, tmp_path / "r", *given)
    table = pa.table({"prompt": [[{"role": "user", "content": "hi"}]], "response": ["no tags at all"]})
    pq.write_table(table, tmp_path / "rows.parquet")
    assert "no token to train" in refused(capsys, tmp_path / "r", *given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([], "launcher=torchrun needs nproc, the number of processes"),
        (["nproc=3", "scale.shards=2"], "scale.shards=2 does not divide the 3 ranks"),
        (["nproc=2", "agent.planner=lookahead"], "agent.planner needs one process: use launcher=local"),
        (["nproc=2", "variants=[search]"], "agent.planner needs one process: use launcher=local"),
    ],
)
def test_ranks_that_cannot_be_started(capsys, tmp_path, monkeypatch, settings: list[str], message: str) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    words = ["run", "frozen_lake", *SMALL, "launcher=torchrun", *settings]
    assert refused(capsys, tmp_path / "r", *words).startswith(f"Error: {message}")


@pytest.mark.parametrize("rows", ["sft.lr: 0.1", "selfplay.rows: transitions"])
@pytest.mark.parametrize("command", [["run", "variants=[{}]"], ["sft", "--variant", "{}"]])
def test_a_variants_own_data_are_looked_at(capsys, tmp_path, command: list[str], rows: str) -> None:
    own = variant_file(tmp_path, f"sft: true\nrl: false\nsettings: {{sft.data: {tmp_path}/rows, {rows}}}")
    command = [text.format(own) for text in command]
    line = refused(capsys, tmp_path / "r", command[0], "frozen_lake", *SMALL, *command[1:])
    assert f"no training data: {tmp_path}/rows" in line


def test_a_variant_with_a_stage_1_of_its_own_does_not_read_the_runs_data(capsys, tmp_path) -> None:
    given = ["frozen_lake", *SMALL, f"sft.data={tmp_path}/rows.parquet"]
    line = refused(capsys, tmp_path / "r", "sft", *given, "--variant", "plan")
    assert "run `spa generate --variant plan` first, or set sft.data in the variant's own settings" in line
    assert main(["run", *given, "variants=[plan]", "--dry-run"]) == 0
    assert f"sft.data={tmp_path}/rows.parquet has no effect in variant plan" in capsys.readouterr().out


def test_data_of_a_finished_stage_2_may_be_gone(tmp_path) -> None:
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft" / "done.json").write_text("{}")
    given = ["frozen_lake", *SMALL, "sft.data=/nowhere", "--out", str(tmp_path), "--dry-run"]
    assert main(["run", *given]) == 0


@pytest.mark.parametrize("command", [["run"], ["sft"], ["ppo"]])
def test_training_that_cannot_fit(capsys, tmp_path, monkeypatch, command: list[str]) -> None:
    monkeypatch.setattr("spa.models.memory.free_memory", lambda device: 2**20)
    line = refused(capsys, tmp_path / "r", *command, "frozen_lake", *SMALL)
    assert "needs about" in line and "1 MiB are free on cpu" in line and "memory_check=false" in line


def test_a_variant_may_bring_or_mend_such_sampling(capsys, tmp_path) -> None:
    cold = variant_file(tmp_path, "sft: false\nrl: true\nsettings: {sampling.temperature: 0.0}")
    assert "variant own: PPO needs" in refused(
        capsys, tmp_path / "r", "run", "frozen_lake", *SMALL, f"variants=[{cold}]"
    )
    warm = variant_file(tmp_path, "sft: false\nrl: true\nsettings: {sampling.temperature: 1.0}")
    assert main(["run", "frozen_lake", *SMALL, "sampling.temperature=0", f"variants=[{warm}]", "--dry-run"]) == 0
    assert main(["run", "frozen_lake", *SMALL, "sampling.temperature=0", "variants=[sft]", "--dry-run"]) == 0


@pytest.mark.slow
def test_self_play_and_evaluation_may_be_greedy(tmp_path) -> None:
    out = str(tmp_path / "r")
    greedy = ["frozen_lake", *SMALL, "sampling.temperature=0", "--out", out, "--quiet"]
    assert main(["generate", *greedy]) == 0
    assert main(["eval", *greedy, "--variant", "spa", "--model", "builtin:tiny"]) == 0


@pytest.mark.parametrize("tracker", ["wandb", "trackio", "tensorboard"])
@pytest.mark.parametrize("command", ["run", "ppo"])
def test_a_tracker_that_is_not_installed(capsys, tmp_path, monkeypatch, command: str, tracker: str) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    line = refused(capsys, tmp_path / "r", command, "frozen_lake", *SMALL, f"report.trackers=[{tracker}]")
    assert f"{tracker} is not installed; install it with: pip install 'spa-agent[{tracker}]'" in line
    assert main(["generate", "frozen_lake", *SMALL, f"report.trackers=[{tracker}]", "--dry-run"]) == 0


def test_a_folder_is_no_tracker(capsys, tmp_path, monkeypatch) -> None:
    assert main(["ppo", "frozen_lake", *SMALL, "--dry-run"]) == 0  # imports what nothing can be imported for below
    capsys.readouterr()
    (tmp_path / "wandb").mkdir()  # wandb makes one in the working directory
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    line = refused(capsys, tmp_path / "r", "ppo", "frozen_lake", *SMALL, "report.trackers=[wandb]")
    assert "wandb is not installed" in line


@pytest.mark.parametrize(
    ("command", "setting"),
    [("run", "sft.lora_rank"), ("sft", "sft.lora_rank"), ("ppo", "ppo.lora_rank"), ("run", "ppo.critic_lora_rank")],
)
def test_adapters_need_peft(capsys, tmp_path, monkeypatch, command: str, setting: str) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    critic = ["ppo.critic=model"] if "critic" in setting else []
    line = refused(capsys, tmp_path / "r", command, "frozen_lake", *SMALL, f"{setting}=4", *critic)
    assert f"{setting} needs peft: pip install 'spa-agent[lora]'" in line
    assert main(["generate", "frozen_lake", *SMALL, f"{setting}=4", *critic, "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("run", ["sft.lora_rank=4", "sft.lora_targets=[query]"]),
        ("run", ["ppo.lora_rank=4", "ppo.lora_targets=[query]"]),
        ("ppo", ["ppo.critic=model", "ppo.critic_lora_rank=4", "ppo.lora_targets=[query]"]),
    ],
)
def test_adapters_need_layers(capsys, tmp_path, command: str, settings: list[str]) -> None:
    pytest.importorskip("peft")
    line = refused(capsys, tmp_path / "r", command, "frozen_lake", *SMALL, *settings)
    assert line.startswith(f"Error: {settings[-1][:3]}.lora_targets=['query'] names no layer of LlamaForCausalLM")
    assert line.endswith("q_proj, up_proj, v_proj")


def test_adapters_of_a_model_to_start_from(capsys, tmp_path) -> None:
    pytest.importorskip("peft")
    save_model(random_model("gpt_neox", vocab_size=512), load_tokenizer("builtin:tiny"), tmp_path / "neox")
    settings = [f"ppo.start={tmp_path / 'neox'}", "ppo.lora_rank=4", "ppo.lora_targets=[query_key_value]"]
    assert main(["ppo", "frozen_lake", *SMALL, *settings, "--dry-run"]) == 0
    hub = ["model=org/name", "sft.lora_rank=4", "sft.lora_targets=[query]"]
    assert main(["run", "frozen_lake", *SMALL, *hub, "--dry-run"]) == 0, "its layers are not known yet"


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("mps", "unknown model.device 'mps'; use auto, cpu, cuda or cuda:N"),
        ("meta", "unknown model.device 'meta'; use auto, cpu, cuda or cuda:N"),
        ("gpu", "unknown model.device 'gpu'; use auto, cpu, cuda or cuda:N"),
        ("cuda:2", "model.device=cuda:2 but the last of 2 CUDA devices is cuda:1"),
    ],
)
def test_a_device_that_is_not_there(capsys, tmp_path, monkeypatch, device: str, message: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    line = refused(capsys, tmp_path / "r", "run", "frozen_lake", *SMALL, f"model.device={device}")
    assert line == f"Error: {message}"


KL = "ppo.kl_loss_coef=0.1"


@pytest.mark.parametrize(
    ("command", "settings", "named"),
    [
        (["run"], ["model={}"], "model.path: "),
        (["generate"], ["model={}"], "model.path: "),
        (["ppo"], ["model={}"], "model.path: "),
        (["eval", "--variant", "base"], ["model={}"], "model: "),
        (["eval", "--model", "{}"], [], "model: "),
        (["run"], ["selfplay.model={}"], "selfplay.model: "),
        (["generate"], ["selfplay.model={}"], "selfplay.model: "),
        (["run"], ["ppo.start={}"], "ppo.start"),
        (["ppo"], ["ppo.start={}"], "ppo.start"),
        (["run"], ["ppo.reference={}", KL], "ppo.reference: "),
        (["ppo"], ["ppo.reference={}", KL], "ppo.reference: "),
        (["run"], ["planner.model={}", "variants=[search]"], "planner.model"),
        (["eval", "--variant", "base"], ["planner.model={}", "agent.planner=beam", "planner.width=4"], "planner.model"),
        (["generate"], ["planner.model={}", "agent.planner=lookahead", "selfplay.policy=planner"], "planner.model"),
    ],
)
def test_a_folder_without_a_model(capsys, tmp_path, command: list[str], settings: list[str], named: str) -> None:
    (tmp_path / "empty").mkdir()
    given = [text.format(tmp_path / "empty") for text in [*command, "frozen_lake", *SMALL, *settings]]
    line = refused(capsys, tmp_path / "r", *given)
    assert line.startswith(f"Error: {named}")
    assert "holds no model" in line


@pytest.mark.parametrize(
    ("stages", "command"),
    [
        ("rl: true", ["run", "variants=[{}]"]),
        ("rl: false", ["run", "variants=[{}]"]),
        ("rl: true", ["ppo", "--variant", "{}"]),
        ("rl: false", ["eval", "--variant", "{}"]),
    ],
)
def test_a_variants_own_model_that_is_nowhere(capsys, tmp_path, stages: str, command: list[str]) -> None:
    own = variant_file(tmp_path, f"sft: false\n{stages}\nsettings: {{model.path: {tmp_path}/nowhere}}")
    command = [text.format(own) for text in command]
    line = refused(capsys, tmp_path / "r", command[0], "frozen_lake", *SMALL, *command[1:])
    assert line.startswith("Error: model") and f"no model folder {tmp_path}/nowhere" in line


def test_a_variants_own_model_needs_a_template_that_can_be_used(capsys, tmp_path) -> None:
    tokenizer = load_tokenizer("builtin:tiny")
    tokenizer.chat_template = None
    save_model(load_model(ModelConfig(device="cpu")), tokenizer, tmp_path / "m")
    capsys.readouterr()
    own = variant_file(tmp_path, f"sft: false\nsettings: {{model.path: {tmp_path}/m}}")
    line = refused(capsys, tmp_path / "r", "run", "frozen_lake", *SMALL, f"variants=[{own}]")
    assert "chat template" in line


@pytest.mark.parametrize(
    ("stages", "setting"), [("rl: false", "agent.planner: lookahead"), ("rl: true", "curriculum.imagined: 0.5")]
)
def test_what_is_planned_in_is_written_as_stage_2_has_learnt(capsys, tmp_path, stages: str, setting: str) -> None:
    def own(*settings: str, shown: str = "grid") -> list[str]:
        rows = ", ".join(["selfplay.rows: transitions", setting, *settings])
        path = variant_file(tmp_path, f"sft: true\nstate_format: {shown}\n{stages}\nsettings: {{{rows}}}")
        return ["run", "frozen_lake", *SMALL, f"variants=[{path}]"]

    line = refused(capsys, tmp_path / "r", *own())
    assert line.startswith("Error: variant own: stage 2 learns states written as coordinates (selfplay.state_format)")
    assert "stage 2 learns states written as grid" in refused(
        capsys, tmp_path / "r", *own("selfplay.state_format: grid", shown="coordinates")
    )
    assert main([*own("selfplay.state_format: grid"), "--dry-run"]) == 0
    assert main([*own(shown="coordinates"), "--dry-run"]) == 0
    if "planner" in setting:
        assert main([*own("planner.model: simulator"), "--dry-run"]) == 0, "the true world is asked"
    assert main([*own(), "env=bandit", "--dry-run"]) == 0, "it writes states in one way"


@pytest.mark.slow
def test_a_model_without_weights_or_tokenizer_or_with_damaged_weights(capsys, tmp_path) -> None:
    folder = tmp_path / "m"
    save_model(load_model(ModelConfig(device="cpu")), load_tokenizer("builtin:tiny"), folder)
    run = ["run", "frozen_lake", *SMALL, f"model={folder}"]
    assert main([*run, "--dry-run"]) == 0
    capsys.readouterr()
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    assert f"{file} is damaged" in refused(capsys, tmp_path / "r", *run)
    file.unlink()
    assert "has no weights" in refused(capsys, tmp_path / "r", *run)
    file.write_bytes(whole)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "has no tokenizer" in refused(capsys, tmp_path / "r", *run)


def test_a_planners_model_that_is_nowhere(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings = ["frozen_lake", *SMALL, "planner.model=/nope/x"]
    line = refused(capsys, tmp_path / "r", "run", *settings, "variants=[search]")
    assert line.startswith("Error: planner.model: ") and "/nope/x" in line
    assert main(["run", *settings, "variants=[vanilla]", "--dry-run"]) == 0, "nothing plans"
    out = tmp_path / "hub"  # what a hub name stands for is looked up before a real run alone
    assert main(["run", *settings[:-1], "planner.model=nosuch", "variants=[search]", "--out", str(out)]) == 2
    assert "cannot load a tokenizer from 'nosuch'" in capsys.readouterr().err and not out.exists()


def test_a_model_folder_that_is_nowhere_is_no_hub_name(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no model folder ./nosuch" in refused(capsys, tmp_path / "r", "run", "sokoban", *SMALL, "model=./nosuch")


def test_a_reference_that_is_not_used_and_hub_names_are_not_looked_at(tmp_path) -> None:
    assert main(["ppo", "frozen_lake", *SMALL, f"ppo.reference={tmp_path}", "--dry-run"]) == 0
    assert main(["run", "frozen_lake", *SMALL, "model=org/name", "--dry-run"]) == 0


@pytest.mark.parametrize("command", [["run"], ["run", "variants=[spa]"], ["ppo"]])
def test_a_reference_that_reads_other_ids(capsys, tmp_path, command: list[str]) -> None:
    reference = tmp_path / "reference"
    tokenizer = load_tokenizer("builtin:tiny")
    save_model(random_model("llama", vocab_size=300), tokenizer, reference)
    given = [command[0], "frozen_lake", *SMALL, *command[1:], KL, f"ppo.reference={reference}"]
    capsys.readouterr()
    line = refused(capsys, tmp_path / "r", *given)
    assert line.startswith(f"Error: ppo.reference={reference}: the tokenizer has ids up to 511")
    save_model(random_model("llama", vocab_size=512), tokenizer, reference)
    assert main([*given, "--dry-run"]) == 0
    rewritten = json.loads((reference / "tokenizer.json").read_text())
    vocabulary = rewritten["model"]["vocab"]
    vocabulary["P"], vocabulary["G"] = vocabulary["G"], vocabulary["P"]
    (reference / "tokenizer.json").write_text(json.dumps(rewritten))
    capsys.readouterr()
    line = refused(capsys, tmp_path / "r", *given)
    assert line.startswith(f"Error: ppo.reference={reference}: its tokenizer has other ids than that of ")
    assert "builtin/tiny" in line and "choose a model with the same tokenizer" in line
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (reference / name).unlink()
    assert main([*given, "--dry-run"]) == 0, "it needs none"


@pytest.mark.parametrize("setting", ["model", "ppo.reference"])
@pytest.mark.parametrize("method", ["bitsandbytes_4bit", "gptq", "awq"])
def test_quantized_weights_whose_package_is_missing(capsys, tmp_path, method: str, setting: str) -> None:
    if find_spec("gptqmodel") or find_spec("bitsandbytes"):
        pytest.skip("a package that reads them is installed")
    quantized = {"quant_method": method.partition("_")[0], "bits": 4, "load_in_4bit": method == "bitsandbytes_4bit"}
    folder = damaged(tmp_path / "m", quantization_config=quantized)
    for command in ("run", "ppo"):
        line = refused(capsys, tmp_path / "r", command, "frozen_lake", *SMALL, f"{setting}={folder}", KL)
        assert f"{folder}: its weights are quantized: " in line and "`pip install " in line


def test_quantized_weights_that_load_are_not_trained(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("spa.models.load.check_quantization", lambda config: None)
    folder = damaged(tmp_path / "m", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    for lora in ("sft.lora_rank=0", "ppo.lora_rank=8 sft.lora_rank=8"):
        line = refused(capsys, tmp_path / "r", "run", "frozen_lake", *SMALL, f"model={folder}", *lora.split())
        assert f"model.path={folder}: its weights are quantized, which stages 2 and 3 cannot train" in line
    assert main(["eval", "frozen_lake", *SMALL, "--model", str(folder), "--dry-run"]) == 0


@pytest.mark.parametrize(("command", "stage"), [(["sft"], "sft"), (["run", "variants=[vanilla]"], "ppo")])
def test_sliding_windows_are_not_packed(capsys, tmp_path, command: list[str], stage: str) -> None:
    folder = tmp_path / "m"
    save_model(random_model("gemma3_text", vocab_size=512, sliding_window=64), load_tokenizer("builtin:tiny"), folder)
    given = ["run", "frozen_lake", *SMALL, *command[1:], f"model={folder}"]
    line = refused(capsys, tmp_path / "r", *given, f"{stage}.packing=true")
    assert (
        f"model.path={folder}: it has sliding-window attention, which cannot be packed: use {stage}.packing=false"
        in line
    )
    assert main([*given, "--dry-run"]) == 0


def test_quantized_weights_that_vllm_reads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("spa.engines.base.check_engine", lambda *given, **more: None)
    folder = damaged(tmp_path / "m", quantization_config={"quant_method": "gptq", "bits": 4})
    assert main(["eval", "frozen_lake", *SMALL, "engine=vllm", "--model", str(folder), "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["run", "frozen_lake", *SMALL, "model.dtype=bfloat16", "variants=[spa]"],
            ["stage 2: steps are", "variant spa: st"],
        ),
        (
            ["run", "frozen_lake", *SMALL, "variants=[vanilla]", "ppo.critic_warmup=2"],
            ["vanilla: all 2 steps train the"],
        ),
        (["run", "frozen_lake", *SMALL, "variants=[vanilla]", "algorithm=dapo"], ["dynamic_groups=32 is out of reach"]),
        (["run", "bandit", *SMALL, "variants=[vanilla,se]"], ["variant se: this world writes states in one way"]),
        (
            [
                "run",
                "frozen_lake",
                *SMALL,
                "variants=[vanilla,se]",
                "algorithm=grpo",
                "ppo.critic_warmup=2",
                "ppo.gamma=0.5",
            ],
            [f"variant {name}: ppo.gamma without effect, since grpo" for name in ("vanilla", "se")],
        ),
        (
            ["run", "frozen_lake", *SMALL, "variants=[vanilla]", "ppo.gamma=0.5", "ppo.lam=0.5", "ppo.critic_warmup=1"],
            [],
        ),
        (
            ["run", "frozen_lake", *SMALL, "variants=[vanilla]", "ppo.reference=builtin:tiny"],
            ["ppo.reference without effect: set ppo.kl_loss_coef"],
        ),
        (
            ["run", "frozen_lake", *SMALL, "variants=[vanilla,spa,search]", "agent.planner=mcts"],
            [f"variant {name} is not trained to predict single moves" for name in ("base", "vanilla", "spa")],
        ),
        (["run", "frozen_lake", *SMALL, "variants=[simulator,plan,spa_plan]"], []),
        (
            ["run", "frozen_lake", *SMALL, "variants=[vanilla]", "agent.planner=mcts", "ppo.start=builtin:tiny"],
            ["variant base is not trained to predict"],
        ),
    ],
)
def test_settings_in_vain_are_said(capsys, command: list[str], said: list[str]) -> None:
    assert main([*command, "ppo.steps=2", "--dry-run"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == len(said) and all(text in line for text, line in zip(said, notes, strict=True)), notes


def test_a_state_format_among_the_worlds_own_settings(capsys, tmp_path) -> None:
    mine = ["run", "frozen_lake", *SMALL, "variants=[spa]", "env.settings.state_format=coordinates"]
    assert "set env.state_format, selfplay.state_format or" in refused(capsys, tmp_path / "out", *mine)


def test_the_best_step_without_validation_rows(capsys, tmp_path) -> None:
    best = ["run", "frozen_lake", *SMALL, "variants=[spa]", "sft.use=best", "selfplay.val_fraction=0"]
    assert "set selfplay.val_fraction above 0" in refused(capsys, tmp_path / "out", *best)


def test_actions_that_no_answer_can_name(capsys, tmp_path) -> None:
    text = refused(
        capsys, tmp_path / "out", "run", "frozen_lake", *SMALL, "env.settings.action_names=[Up,'go || on',Down,Left]"
    )
    assert "no answer can name the action" in text


@pytest.mark.parametrize("command", [["run"], ["ppo"]])
def test_training_of_a_model_that_caps_its_logits(capsys, tmp_path, command: list[str]) -> None:
    model = random_model("gemma3_text", vocab_size=512, final_logit_softcapping=30.0)
    save_model(model, load_tokenizer("builtin:tiny"), tmp_path / "capped")
    capsys.readouterr()  # the progress of saving
    line = refused(capsys, tmp_path / "r", *command, "frozen_lake", *SMALL, f"model.path={tmp_path / 'capped'}")
    assert line.endswith("its logits are capped (final_logit_softcapping=30), which training cannot reproduce")


@pytest.mark.parametrize("command", [["run"], ["eval", "--variant", "base"]])
def test_a_tokenizer_with_more_ids_than_the_embedding(capsys, tmp_path, command: list[str]) -> None:
    tokenizer = load_tokenizer("builtin:tiny")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<plan>"]})
    model = load_model(ModelConfig(device="cpu"))
    save_model(model, tokenizer, tmp_path / "m")
    line = refused(capsys, tmp_path / "r", *command, "frozen_lake", *SMALL, f"model={tmp_path / 'm'}")
    assert "the tokenizer has ids up to 512 ('<plan>'), and the model's embedding has 512 rows" in line
    assert "model.resize_token_embeddings(len(tokenizer))" in line
    model.resize_token_embeddings(600)
    save_model(model, tokenizer, tmp_path / "m")
    assert main([*command, "frozen_lake", *SMALL, f"model={tmp_path / 'm'}", "--dry-run"]) == 0


def test_ids_of_images_need_no_embedding() -> None:
    """Gemma 3 1B has one of them more than its embedding has rows."""
    tokenizer = load_tokenizer("builtin:tiny")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    config = with_images().config
    config.text_config.vocab_size = 512
    with pytest.raises(ValueError, match="image_soft_token"):
        check_vocabulary(tokenizer, config)
    tokenizer.image_token = "<image_soft_token>"
    check_vocabulary(tokenizer, config)
