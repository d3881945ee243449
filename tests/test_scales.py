"""Scales of ``spa reproduce``: files of worlds, variants, seeds and settings, and what is said of wrong ones."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from spa.cli import main
from spa.config.load import load_variant, names_of
from spa.config.schema import ModelConfig
from spa.models.load import load_model
from spa.reproduce.bases import make_bases, write_variants
from spa.reproduce.scale import cells, load_scale, variant_file
from tests.test_failed_seeds import configured
from tests.test_reproduce import WORLDS, result, scale_file

DOCS = Path(__file__).parents[1] / "docs" / "scales"


@pytest.mark.parametrize("name", [*names_of("scale"), *map(str, sorted(DOCS.glob("*.yaml")))])
def test_packaged_scales_resolve(name: str, tmp_path: Path) -> None:
    least = {"real-small": 64, "diagnose": 128, "planning-worlds": 128}.get(Path(name).stem, 256)
    scale = load_scale(name)
    write_variants(scale, tmp_path)
    scale.bases = {base: [] for base in scale.bases}
    for base in scale.bases:  # as a pretraining would have
        (tmp_path / "bases" / base).mkdir(parents=True)
        (tmp_path / "bases" / base / "config.json").write_text("{}")
    make_bases(scale, tmp_path)
    runs = cells(scale, tmp_path)
    assert len({cell.folder for cell in runs}) == sum(len(scale.seeds_of(world)) for world in scale.worlds)
    for cell in runs[: len(scale.worlds)]:
        cfg = cell.load()
        assert cfg.eval.worlds >= least
        assert cfg.ppo.on_collapse == "continue", "a run that fails must not drop out of the comparison"
        assert cfg.seeds.run == scale.seeds_of(cell.world)[0]


def test_a_world_may_have_seeds_of_its_own(tmp_path: Path, capsys) -> None:
    worlds = {"lake": {"config": "frozen_lake"}, "room": {"config": "sokoban", "seeds": [7, 8, 9]}}
    path = scale_file(tmp_path, worlds=worlds)
    found = [(cell.world, cell.seed) for cell in cells(load_scale(path), tmp_path)]
    assert found == [("lake", 0), ("room", 7), ("lake", 1), ("room", 8), ("room", 9)]
    assert main(["reproduce", "--scale", path, "--dry-run", "--seeds", "4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("2 runs in ")
    assert printed.count("seeds.run=4") == 2
    assert main(["reproduce", "--scale", path, "--dry-run", "--seeds", "4", "--worlds", "lake"]) == 0
    assert capsys.readouterr().out.startswith("1 run in ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": [1, 1]}, "seeds names the same twice"),
        ({"seeds": []}, "seeds must be a list .* that is not empty"),
        (
            {"worlds": {"a": {"config": "sokoban", "seeds": [-1]}}},
            r"worlds\.a\.seeds\[0\] must be a whole number, 0 or more",
        ),
        (
            {"worlds": {"a": {"config": "sokoban", "seeds": []}}},
            r"worlds\.a\.seeds must be a list .* that is not empty",
        ),
        ({"worlds": {"lake": {}}}, r"worlds\.lake\.config is missing"),
        ({"worlds": ["frozen_lake", "sokoban"]}, "scale small: worlds must be a mapping"),
        ({"worlds": "frozen_lake"}, "scale small: worlds must be a mapping"),
        (
            {"worlds": {"v1.5": {"confg": "sokoban"}}},
            r"Did you mean .worlds\.v1\.5\.config",
        ),
        ({"own_variants": {"far": {"sfft": True}}}, r"unknown setting .sfft.\. Did you mean .sft"),
        ({"worlds": {"a/b": {"config": "sokoban"}}}, "used for a folder"),
        ({"threads": 0}, "threads must be a whole number, 1 or more"),
        ({"worlds": {"a": {"config": "sokoban", "paper": ["sokoban"]}}}, r"paper must be a list .* of 2 values"),
        ({"worlds": {"a": {"config": "sokoban", "paper": ["sokobn", "Qwen2.5-3B"]}}}, "Did you mean 'sokoban'"),
        ({"wolds": {}}, "Did you mean .worlds"),
    ],
)
def test_bad_scales_say_what_is_wrong(tmp_path: Path, capsys, changes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_scale(scale_file(tmp_path, **changes))


def test_mistakes_are_one_line(tmp_path: Path, capsys) -> None:
    def fails(*argv: str) -> str:
        assert main(["reproduce", "--out", str(tmp_path / "out"), *argv]) == 2
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    assert "Did you mean 'minutes'?" in fails("--scale", "minuts")
    path = scale_file(tmp_path)
    assert "Did you mean 'lake'?" in fails("--scale", path, "--worlds", "lke")
    assert "Did you mean 'vanilla'?" in fails("--scale", path, "--variants", "vanila")
    for seeds in ("a", "²", "0,0", "0,00", "-1"):
        assert "--seeds must be different whole numbers" in fails("--scale", path, "--seeds", seeds)
    assert "give --variants instead" in fails("--scale", path, "variants=[vanilla]")
    assert "give --seeds instead" in fails("--scale", path, "seeds.run=3")
    assert "ppo.stepps" in fails("--scale", path, "ppo.stepps=3")
    assert "nothing is finished" in fails("--scale", path, "--table")
    path = scale_file(tmp_path, own_variants={"far": {"settings": {"ppo.stps": 3}}}, variants=["vanilla", "far"])
    assert "lake: variant far: unknown setting 'ppo.stps'" in fails("--scale", path)
    path = scale_file(tmp_path, bases={"longer": ["stps=1"]}, variants=["vanilla", "longer"])
    assert "lake: base longer: unknown setting 'stps'" in fails("--scale", path, "--dry-run")
    path = scale_file(tmp_path, bases={"longer": ["steps=1"]}, variants=["vanilla", "longer"])
    assert "nothing is finished" in fails("--scale", path, "--table", "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out" / "bases").exists(), "a table trains nothing"


def test_a_table_of_fewer_says_so_and_leaves_no_figure_of_others(tmp_path: Path, capsys) -> None:
    out, said = tmp_path / "out", "The files replaced were of more"
    for world, seed, variant in product(("lake", "room"), (0, 1), ("base", "vanilla", "spa")):
        result(out / world / f"seed-{seed}", variant, [4] * WORLDS)
    scale = scale_file(tmp_path)
    configured(scale, out)
    command = ["reproduce", "--scale", scale, "--out", str(out), "--table"]
    assert main(command) == 0 and main(command) == 0
    assert said not in capsys.readouterr().out
    assert {path.name.partition("-")[0] for path in (out / "figures").iterdir()} == {"lake", "room"}
    (out / "figures" / "room-mine.svg").touch()
    assert main([*command, "--worlds", "lake", "--seeds", "0", "--variants", "vanilla"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{said}: these are of 1 of 2 worlds, 2 of 3 variants, 1 of 2 seeds (--worlds, --variants, --seeds)."
    rooms = [path.name for path in (out / "figures").iterdir() if not path.name.startswith("lake-")]
    assert rooms == ["room-mine.svg"], "which is not ours"
    assert main(command) == 0
    assert said not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "parallel"), [([], 8), (["model.threads=2"], 4), (["model.threads=20"], 1), (["model.threads=0"], 1)]
)
def test_as_many_runs_at_once_as_have_cores(tmp_path: Path, monkeypatch, settings: list[str], parallel: int) -> None:
    started: list[int] = []
    monkeypatch.setattr("spa.runs.provenance.usable_cores", lambda: 8)
    monkeypatch.setattr("spa.reproduce.jobs.run_cells", lambda cells, at_once: started.append(at_once) or ["failed"])
    path = scale_file(tmp_path, seeds=list(range(8)), worlds={"lake": {"config": "frozen_lake"}})
    assert main(["reproduce", "--scale", path, "--out", str(tmp_path / "out"), *settings]) == 2
    assert started == [parallel]


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys) -> None:
    assert main(["reproduce", "--scale", scale_file(tmp_path), "--dry-run", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "4 runs" in printed
    assert "room: spa run sokoban" in printed
    assert not (tmp_path / "out").exists()


def test_a_base_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    scale = load_scale(scale_file(tmp_path, bases={"base_1.5": []}, variants=["vanilla", "base_1.5"]))
    (tmp_path / "bases" / "base_1.5").mkdir(parents=True)
    (tmp_path / "bases" / "base_1.5" / "config.json").write_text("{}")  # as a pretraining would have
    make_bases(scale, tmp_path)
    assert load_variant(str(variant_file(scale, "lake", "base_1.5", tmp_path))).name == "base_1.5"


@pytest.mark.slow
def test_a_base_trained_longer_is_made_once_and_is_a_variant(tmp_path: Path) -> None:
    settings = ["start=builtin:tiny", "steps=1", "batch_documents=2", "threads=1"]
    scale = load_scale(scale_file(tmp_path, bases={"longer": settings}, variants=["vanilla", "longer"]))
    make_bases(scale, tmp_path)
    path = str(variant_file(scale, "lake", "longer", tmp_path))
    assert path in cells(scale, tmp_path)[0].variants
    weights = tmp_path / "bases" / "longer" / "model.safetensors"
    variant, before = load_variant(path), weights.stat().st_mtime_ns
    assert (variant.name, variant.sft, variant.rl) == ("longer", False, True)
    assert Path(variant.settings["ppo.start"]) == weights.parent.resolve()
    make_bases(scale, tmp_path)
    assert weights.stat().st_mtime_ns == before
    changed = load_model(ModelConfig(path=str(weights.parent), device="cpu")).state_dict()
    for name, tensor in load_model(ModelConfig(device="cpu")).state_dict().items():
        assert changed[name].shape == tensor.shape
        assert (changed[name] - tensor).abs().max() < 0.01, "it goes on from the built-in model"
    scale.bases["longer"] = [*settings, "lr=1e-4"]
    with pytest.raises(ValueError, match="base longer was pretrained with other settings: delete"):
        make_bases(scale, tmp_path)
    scale.bases, scale.variants = {"broken": ["stepps=1"]}, ["broken"]
    with pytest.raises(ValueError, match=r"base broken: .*stepps"):
        make_bases(scale, tmp_path)


def test_variants_of_the_scale_alone(tmp_path: Path, capsys) -> None:
    far = {"continues": "vanilla", "settings": {"ppo.steps": 9}}
    room = {
        "config": "sokoban",
        "variants": ["vanilla", "far"],
        "own_variants": {"far": {**far, "settings": {"ppo.steps": 12}}},
    }
    path = scale_file(tmp_path, own_variants={"far": far}, worlds={"lake": {"config": "frozen_lake"}, "room": room})
    scale = load_scale(path)
    write_variants(scale, tmp_path)
    found = {name: load_variant(str(variant_file(scale, name, "far", tmp_path))) for name in ("lake", "room")}
    assert [(a.name, a.continues, a.settings["ppo.steps"]) for a in found.values()] == [
        ("far", "vanilla", 9),
        ("far", "vanilla", 12),
    ]
    by_world = {cell.world: cell.variants for cell in cells(scale, tmp_path)}
    assert by_world["lake"] == ("vanilla", "spa"), "only where it is among the variants"
    assert by_world["room"] == ("vanilla", str(variant_file(scale, "room", "far", tmp_path)))
    assert main(["reproduce", "--scale", path, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "room, variant far: continues=vanilla" in printed
    assert "lake, variant far" not in printed
    assert main(["reproduce", "--scale", path, "--dry-run", "--variants", "spa"]) == 0
    assert "variant far" not in capsys.readouterr().out
    assert main(["reproduce", "--scale", path, "--variants", "far", "--out", str(tmp_path / "out")]) == 2
    assert "names it before" in capsys.readouterr().err
