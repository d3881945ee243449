"""Who may write into a run folder, and what it says about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.config.schema import Config, VariantConfig
from spa.config.variants import variants_of
from spa.evaluate.verdict import main_variant
from spa.runs.folder import RunFolder, variant_names
from spa.runs.stage import Stage


@pytest.fixture(scope="module")
def cfg() -> Config:
    return load_config("sokoban")


def test_open_writes_config_and_provenance(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path / "deep" / "run").open(cfg, "generate", resume=False)
    assert folder.config() == cfg
    info = json.loads(folder.info_path.read_text())
    entry = info["commands"][0]
    assert info["name"] == "sokoban"
    assert entry["command"] == "generate"
    assert entry["seed"] == cfg.seeds.run
    assert {"spa", "python", "torch", "transformers", "platform", "cpu", "started"} <= set(entry)
    assert sorted(path.name for path in folder.path.iterdir()) == ["config.yaml", "run.json"]


def test_nothing_is_written_before_open(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert (folder.commands(), folder.holds_run, folder.path.exists()) == ([], False, False)
    with pytest.raises(ValueError, match="holds no run"):
        folder.config()


def test_the_same_command_again_needs_resume(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path).open(cfg, "ppo spa", resume=False)
    before = folder.info_path.read_text()
    with pytest.raises(ValueError, match=r"already holds a run of `spa ppo spa`; add --resume .* another --out"):
        folder.open(cfg, "ppo spa", resume=False)
    assert folder.info_path.read_text() == before
    folder.open(cfg, "ppo spa", resume=True)
    assert [entry["resume"] for entry in folder.info()["commands"]] == [False, True]


def test_stages_share_a_folder(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path)
    for command in ("generate", "sft", "ppo vanilla", "ppo spa", "eval spa"):
        folder.open(cfg, command, resume=False)
    assert folder.commands() == ["generate", "sft", "ppo vanilla", "ppo spa", "eval spa"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("run", "sft"), ("ppo spa", "run"), ("run", "run"), ("run", "eval spa"), ("eval spa", "run")],
)
def test_run_and_its_stages_exclude_each_other(tmp_path: Path, cfg: Config, first: str, second: str) -> None:
    folder = RunFolder(tmp_path).open(cfg, first, resume=False)
    with pytest.raises(ValueError, match="--resume"):
        folder.open(cfg, second, resume=False)


def test_variants_given_as_files_keep_the_configs_order(tmp_path: Path) -> None:
    cfg = load_config("sokoban", [f"variants=[vanilla,{tmp_path}/z.yaml,a.yaml]"])
    for name in ("a", "another", "base", "vanilla", "z"):
        (tmp_path / "variants" / name).mkdir(parents=True)
    names = variant_names(tmp_path, cfg)
    assert names == ["base", "vanilla", "z", "a", "another"]
    assert main_variant(names[:-1]) == "a", "the last trained one"


@pytest.mark.parametrize(
    ("commands", "trained"),
    [
        ([], True),
        (["eval base"], False),
        (["eval base", "eval spa"], False),
        (["eval base", "sft"], True),
        (["run"], True),
    ],
)
def test_evaluations_alone_are_no_trained_run(tmp_path: Path, cfg: Config, commands: list[str], trained: bool) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.more_than_evaluated
    for command in commands:
        folder.open(cfg, command, resume=False)
    if not commands:
        folder.config_path.touch()
    assert folder.more_than_evaluated == trained


@pytest.mark.parametrize("resume", [True, False])
def test_a_changed_config_is_refused_by_key(tmp_path: Path, cfg: Config, resume: bool) -> None:
    folder = RunFolder(tmp_path).open(cfg, "generate", resume=False)
    other = load_config("sokoban", ["seeds.run=7", "env.settings.num_boxes=2"])
    before = folder.config_path.read_text()
    with pytest.raises(
        ValueError, match=r"differ: env.settings \(.* there, .*2.* here\), seeds.run \(\d+ there, 7 here\)"
    ):
        folder.open(other, "generate" if resume else "sft", resume=resume)
    assert folder.config_path.read_text() == before


def test_a_runs_name_may_change(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    folder.open(replace(cfg, name="renamed"), "run", resume=True)


def test_a_changed_variant_is_refused_by_key(tmp_path: Path, cfg: Config) -> None:
    """Of a variant the config holds the name alone."""
    mine = VariantConfig(name="mine", settings={"sampling.temperature": 1.0, "model.threads": 1})
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False, variants=[mine])
    folder.open(cfg, "run", resume=True, variants=[replace(mine, settings={**mine.settings, "model.threads": 2})])
    other = replace(mine, state_format="coordinates", settings={"sampling.temperature": 0.0, "ppo.steps": 7})
    with pytest.raises(
        ValueError, match=r"state_format, settings\.sampling\.temperature, settings\.ppo\.steps changed"
    ):
        folder.open(cfg, "run", resume=True, variants=[other])
    folder.open(cfg, "run", resume=True, variants=[replace(other, name="another")])
    with pytest.raises(ValueError, match="variant mine was another when"):
        folder.check(cfg, "eval mine", True, [other])


def test_a_reproduction_with_bases_may_be_moved(tmp_path: Path, cfg: Config) -> None:
    def longer(out: Path, name: str = "longer") -> VariantConfig:
        return VariantConfig(name="longer", settings={"ppo.start": str(out / "bases" / name)})

    before, after = tmp_path / "a" / "reproduce", tmp_path / "b" / "runs" / "reproduce"
    (before / "bases" / "longer").mkdir(parents=True)
    RunFolder(before / "lake" / "seed-0").open(cfg, "run", resume=False, variants=[longer(before)])
    after.parent.mkdir(parents=True)
    before.rename(after)
    moved = RunFolder(after / "lake" / "seed-0")
    moved.check(cfg, "run", True, [longer(after)])
    (after / "bases" / "other").mkdir()
    (before / "bases" / "longer").mkdir(parents=True)  # it is there: not the same model
    for another in (longer(after, "other"), longer(after)):
        with pytest.raises(ValueError, match=r"settings\.ppo\.start changed"):
            moved.check(cfg, "run", True, [another])


def test_what_changes_no_result_may_change(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    other = load_config("sokoban", ["model.threads=1", "report.episodes=2", "variants=[vanilla,se]"])
    assert folder.open(other, "run", resume=True).config().model.threads == 1


@pytest.mark.parametrize(
    ("setting", "made"),
    [
        ("sft.eval_worlds", "sft-plan/metrics.jsonl"),
        ("sft.batch_size", "sft/metrics.jsonl"),
        ("sft.window", "selfplay/episodes.jsonl"),
        ("sft.window", "sft/metrics.jsonl"),
        ("ppo.steps", "variants/spa/ppo/metrics.jsonl"),
        ("ppo.val_worlds", "variants/spa/ppo/metrics.jsonl"),
        ("practice.worlds", "practice-plan/round_1/plans/done.json"),
        ("practice.epochs", "practice-plan/done.json"),
        ("curriculum.imagined_worlds", "imagined-plan/done.json"),
        ("eval.worlds", "variants/base/eval/episodes-0.partial.jsonl"),
    ],
)
def test_settings_may_change_until_they_are_used(tmp_path: Path, cfg: Config, setting: str, made: str) -> None:
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    fewer = load_config("sokoban", [f"{setting}=9"])
    (tmp_path / made).parent.mkdir(parents=True)
    with pytest.raises(ValueError, match="add --resume"):
        folder.check(fewer, "run", False)
    assert folder.open(fewer, "run", resume=True).config() == fewer
    (tmp_path / made).write_text("{}")
    folder.check(fewer, "run", True)
    with pytest.raises(ValueError, match=rf"these settings differ: {setting} \(9 there, "):
        folder.open(cfg, "run", resume=True)


@pytest.mark.parametrize("made", ["sft-own", "practice-plan", "imagined-spa_dream", "variants/spa"])
def test_rows_are_not_selected_anew_under_what_was_trained_on_them(tmp_path: Path, cfg: Config, made: str) -> None:
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    other = load_config("sokoban", ["selfplay.success_only=true"])
    folder.check(other, "run", True)
    (tmp_path / made).mkdir(parents=True)
    (tmp_path / made / "seconds.json").write_text("{}")
    with pytest.raises(ValueError, match=f"selfplay.success_only select the rows of stage 1, on which {made} in"):
        folder.check(other, "run", True)


def test_what_decides_on_sampling_again_stays_until_stage_1_is_finished(tmp_path: Path, cfg: Config) -> None:
    cfg = load_config("sokoban", ["selfplay.policy=model", "selfplay.tries=4"])
    folder = RunFolder(tmp_path).open(cfg, "generate", resume=False)
    other = load_config("sokoban", ["selfplay.policy=model", "selfplay.tries=4", "selfplay.filter=false"])
    folder.check(other, "generate", True)
    (tmp_path / "selfplay").mkdir()
    with pytest.raises(
        ValueError, match=r"selfplay.filter decides which responses are sampled again, and .* is not finished"
    ):
        folder.check(other, "generate", True)
    (tmp_path / "selfplay" / "done.json").write_text("{}")
    folder.check(other, "generate", True)


def test_resume_of_nothing_starts(tmp_path: Path, cfg: Config) -> None:
    assert RunFolder(tmp_path / "new").open(cfg, "run", resume=True).holds_run


def test_a_file_is_no_folder(tmp_path: Path, cfg: Config) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        RunFolder(tmp_path / "file").open(cfg, "run", resume=False)


def test_damaged_run_json_does_not_hide_a_run(tmp_path: Path, cfg: Config) -> None:
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False)
    folder.info_path.unlink()
    with pytest.raises(ValueError, match="already holds a run; add --resume"):
        folder.open(cfg, "run", resume=False)
    folder.info_path.write_text("{torn")
    with pytest.raises(ValueError, match="add --resume"):
        folder.open(cfg, "run", resume=False)
    assert folder.open(cfg, "run", resume=True).commands() == ["run"]


@pytest.mark.parametrize("name", ["sft", "selfplay", "practice-plan", "variants/spa/ppo"])
def test_folders_of_other_things_are_not_replaced(tmp_path: Path, cfg: Config, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    folder = RunFolder(tmp_path)
    folder.check(cfg, "run", resume=False)  # empty
    (tmp_path / name / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"{tmp_path} is no run, and its {Path(name).name} would be replaced"):
        folder.check(cfg, "run", resume=False)
    (tmp_path / name / "seconds.json").write_text("{}")  # a stage's, whose run.json is lost
    folder.check(cfg, "run", resume=False)
    with pytest.raises(ValueError, match=r"thesis\.txt is a file; give another --out"):
        RunFolder(tmp_path / name / "thesis.txt" / "run").check(cfg, "run", resume=False)


@pytest.mark.parametrize(
    ("shared", "changed"),
    [({"shares": "mine"}, "sft.epochs"), ({"selfplay": "mine"}, "selfplay.policy")],
)
def test_variants_share_a_stage_with_those_that_were_run_before(
    tmp_path: Path, cfg: Config, shared: dict[str, str], changed: str
) -> None:
    before = {"sft.epochs": 2, "selfplay.policy": "random"}
    first = VariantConfig("first", sft=True, settings=before, **shared)  # type: ignore[arg-type]
    folder = RunFolder(tmp_path).open(cfg, "run", resume=False, variants=[first])
    other = {"sft.epochs": 3} if changed == "sft.epochs" else {"selfplay.policy": "explore"}
    second = replace(first, name="second", settings={**before, **other})
    with pytest.raises(ValueError, match=f"variants first and second share .*{changed}"):
        folder.check(cfg, "run", True, [second])
    folder.check(cfg, "run", True, [replace(first, name="second")])
    folder.check(cfg, "run", True, [replace(second, shares="", selfplay="other")])


def test_a_variant_is_called_as_its_file_says(tmp_path: Path) -> None:
    file = tmp_path / "vanilla.yaml"
    file.write_text("{name: fast, rl: true}")
    cfg = load_config("sokoban", [f"variants=[vanilla,{file}]"])
    folder = RunFolder(tmp_path / "run").open(cfg, "run", resume=False, variants=variants_of(cfg))
    assert [variant.name for variant in folder.variants()] == ["base", "vanilla", "fast"]


def test_the_files_of_a_mixture_may_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two variants of a run would be trained in different worlds."""
    monkeypatch.chdir(tmp_path)
    Path("hard.yaml").write_text("env: {id: frozen_lake, settings: {size: 5}}")
    cfg = load_config("frozen_lake", ["curriculum.mixture={frozen_lake: 1, hard.yaml: 1}"])
    folder = RunFolder(tmp_path / "run").open(cfg, "ppo vanilla", resume=False)
    Path("hard.yaml").write_text("env: {id: frozen_lake, settings: {size: 5}, step_timeout: 9}")
    folder.check(cfg, "ppo se", resume=False)
    Path("hard.yaml").write_text("env: {id: frozen_lake, settings: {size: 6}}")
    with pytest.raises(ValueError, match=r"curriculum\.mixture: hard\.yaml was another world when .*run was run"):
        folder.check(cfg, "ppo se", resume=False)
    mixed = VariantConfig(name="v", settings={"curriculum.mixture": {"hard.yaml": 1}})
    with pytest.raises(ValueError, match=r"hard\.yaml was another world"):
        folder.check(load_config("frozen_lake"), "ppo v", resume=False, variants=[mixed])


def test_nothing_is_left_of_an_attempt_without_a_checkpoint(tmp_path: Path) -> None:
    for keep in (True, False):
        (tmp_path / "sft").mkdir(exist_ok=True)
        (tmp_path / "sft" / "metrics.jsonl").write_text('{"step": 10, "time": 0.0}\n')
        Stage(tmp_path / "sft", "SFT", resume=True, keep=keep)
        assert (tmp_path / "sft" / "metrics.jsonl").exists() == keep
