"""A config names worlds, not programs: what it names is looked at before it is called, and who imports it says so."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tests.envs.test_env_registry import Corridor

from spa.cli import main
from spa.config.load import load_config
from spa.envs import AdaptedEnv, make_env, registry
from spa.evaluate.summary import EvalResult, WorldResult
from spa.runs.folder import RunFolder

called: list[str] = []


class Half:
    """It has no step."""

    def __init__(self, **_: Any) -> None:
        called.append("Half")

    def reset(self) -> None: ...


class Numbers(Half):
    """Its step is no method."""

    step = 3


def make_corridor(length: int = 3) -> Corridor:
    called.append("make_corridor")
    return Corridor(length)


instance = Corridor()
partly = functools.partial(make_corridor, 4)


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    called.clear()


def here(name: str) -> str:
    return f"{__name__}:{name}"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("subprocess:getoutput", {"cmd": "touch marker"}),
        ("os:system", {"command": "touch marker"}),
        ("subprocess:Popen", {"args": ["touch", "marker"]}),
        ("builtins:exec", {}),
        ("pathlib:Path.touch", {"self": "marker"}),
        (here("make_corridor"), {}),
        (here("partly"), {}),
        (here("instance"), {}),
        (here("Half"), {}),
        (here("Numbers"), {}),
        (here("called"), {}),
    ],
)
def test_what_is_no_world_is_not_called(
    name: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"is not a world: give a class with reset\(\) and step\(\), not") as caught:
        make_env(name, **settings)
    assert "\n" not in str(caught.value)
    assert called == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [["--dry-run"], ["--out", "run"]])
def test_a_config_cannot_run_a_program(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.yaml").write_text("env: {id: 'subprocess:getoutput', tag: T, settings: {cmd: touch marker}}\n")
    assert main(["generate", "evil.yaml", *options]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: 'subprocess:getoutput' is not a world: give a class with reset() and step(), not ")
    assert [path.name for path in tmp_path.iterdir()] == ["evil.yaml"]


def test_a_function_may_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("passage", here("make_corridor"), registry.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(registry, "_plugins", lambda: {point.name: point for point in points})
    assert make_env("passage", length=5).reset(seed=0)[0] == "P____"
    if "SpaTestPassage-v0" not in gymnasium.registry:
        gymnasium.register(id="SpaTestPassage-v0", entry_point=make_corridor)
    assert isinstance(make_env("SpaTestPassage-v0"), AdaptedEnv)
    assert called == ["make_corridor"] * 2


MARKED = """
from pathlib import Path
from spa.envs import FrozenLake
Path(__file__).with_name("imported").touch()
class Lake(FrozenLake):
    pass
"""


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file when it is imported; ``lake.yaml`` plays its world, ``run`` and ``again`` are runs of it."""
    (tmp_path / "spa_marked_world.py").write_text(MARKED)
    (tmp_path / "lake.yaml").write_text(
        "env: {id: 'spa_marked_world:Lake', tag: Lake}\nmodel: {path: 'builtin:tiny'}\n"
    )
    for name in ("run", "again"):
        RunFolder(tmp_path / name).open(load_config(tmp_path / "lake.yaml"), "run", resume=False)
        evaluation = tmp_path / name / "variants" / "spa" / "eval"
        evaluation.mkdir(parents=True)
        EvalResult("spa", "Lake", [WorldResult(0, 0, "w", 1, 4)], ks=[1, 4]).write(evaluation / "result.json")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "spa_marked_world", raising=False)
    return tmp_path / "imported"


@pytest.mark.parametrize(
    "command",
    [
        "report run",
        "compare run again --html page.html",
        "config lake.yaml",
        "data stats data.jsonl",
        "data inspect data.jsonl",
        "data convert data.jsonl --to verl --out rows.parquet",
    ],
)
def test_looking_imports_no_world(marked: Path, command: str) -> None:
    row = '{"messages":[{"role":"user","content":"S"},{"role":"assistant","content":"<think></think><answer>Up</answer>"}]}'
    Path("data.jsonl").write_text(row + "\n")
    assert main(command.split()) == 0
    assert not marked.exists()


def test_a_dry_run_says_what_it_imports(marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "lake.yaml", "--dry-run"]) == 0
    assert "# imports: spa_marked_world (env.id)\n# run folder" in capsys.readouterr().out
    assert marked.exists()


def test_it_is_said_before_it_is_done(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spa_failing_world.py").write_text("raise OSError('no such device')")
    (tmp_path / "variant.yaml").write_text("settings: {env: {id: 'spa_failing_world:World'}}\nsft: true\nrl: true\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "frozen_lake", "variants=[./variant.yaml]", "--dry-run"]) == 2
    assert capsys.readouterr().out.endswith("# imports: spa_failing_world (env.id of variant variant)\n")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sokoban", None),
        ("spa/Sokoban-v0", None),
        ("spa.envs:Sokoban", None),
        ("gym:Taxi-v4", None),
        ("CartPole-v1", None),
        ("nonsense", None),
        ("nowhere.at.all:World", "nowhere.at.all"),
        ("nowhere:my/World-v0", "nowhere"),
        ("reasoning_gym:chain_sum", "reasoning_gym"),
        ("spare:World", "spare"),
    ],
)
def test_what_a_world_imports(name: str, module: str | None) -> None:
    assert registry.imported_for(name) == module


def test_what_an_entry_point_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("passage", "nowhere.far:Passage", registry.ENTRY_POINT_GROUP)]
    monkeypatch.setattr(registry, "_plugins", lambda: {point.name: point for point in points})
    assert registry.imported_for("passage") == "nowhere.far"
