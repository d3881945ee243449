"""The tutorial: its files are those in examples/, and its commands work."""

from __future__ import annotations

import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from spa.cli import main
from spa.envs import make_env, registry
from spa.envs.check import check_world

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "your-own-world.md").read_text(encoding="utf-8")
EXAMPLES = ROOT / "examples"

# What makes a run a matter of seconds.
SMALL = [
    *("model.threads=1", "sampling.processes=1", "env.max_turns=3"),
    *("selfplay.groups=4", "selfplay.group_size=2"),
    *("sft.epochs=1", "sft.batch_size=8", "sft.eval_worlds=2"),
    *("ppo.steps=1", "ppo.groups=2", "ppo.group_size=2", "ppo.val_every=1", "ppo.val_worlds=2", "ppo.warmup_steps=0"),
    *("eval.worlds=2", "eval.samples=2", "eval.ks=[1,2]", "eval.bootstrap=20", "eval.world_model_worlds=2"),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    for path in EXAMPLES.glob("vault*"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\n2\nquit\n"))
    yield tmp_path
    sys.modules.pop("vault", None)


def test_the_page_shows_the_files() -> None:
    assert blocks("python") == [(EXAMPLES / "vault.py").read_text(encoding="utf-8")]
    assert blocks("yaml") == [(EXAMPLES / "vault.yaml").read_text(encoding="utf-8")]
    assert len((EXAMPLES / "vault.py").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_page_names_commands() -> None:
    assert {tuple(command.split()[1:3]) for command in commands()} >= {
        ("env", "check"),
        ("env", "play"),
        ("run", "vault.yaml"),
        ("report", "runs/vault"),
    }
    assert all(command.startswith("spa ") for command in commands())


@pytest.mark.slow
@pytest.mark.parametrize("command", [one for one in commands() if one.startswith("spa env") or "--dry-run" in one])
def test_commands_that_only_look(command: str, folder: Path, capsys) -> None:
    for library in ("reasoning_gym", "textarena", "gem"):
        if f" {library}:" in command and importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    assert main(shlex.split(command)[1:]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.slow
def test_commands_that_run(folder: Path, capsys) -> None:
    """In the order of the page: the run of the vault, its report, and the evaluation of an adapted world."""
    todo = [one for one in commands() if not one.startswith("spa env") and "--dry-run" not in one]
    for command in todo:
        words = shlex.split(command)[1:]
        assert main([*words, *(SMALL if words[0] != "report" else [])]) == 0, command
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line.startswith(("base ", "vanilla ", "spa "))]
    assert "Worlds that two splits have in common: 0" in printed
    assert (folder / "runs" / "vault" / "report.html").is_file()
    data = (folder / "runs" / "vault" / "selfplay").rglob("*.parquet")
    assert any(data)
    assert (folder / "runs" / "taxi" / "variants" / "base" / "eval" / "result.json").is_file()


@pytest.mark.parametrize("command", ["run vault_plan.yaml", "reproduce --scale vault_scale.yaml"])
def test_the_vault_with_plans_can_be_run(command: str, folder: Path, capsys) -> None:
    assert main([*command.split(), "--dry-run"]) == 0
    assert "practice plan: 2 rounds of plans from 300 starts" in capsys.readouterr().out


def test_the_data_of_stage_1_holds_the_worlds_own_states(folder: Path) -> None:
    assert main(["generate", "vault.yaml", "--out", "g", "--quiet", *SMALL]) == 0
    from spa.data.layouts import read_rows

    rows, *_ = read_rows(folder / "g" / "selfplay" / "train.parquet")
    assert rows
    env = make_env("vault:Vault")
    for row in rows:
        observed, after, answer = (
            re.search(rf"<{tag}>(.*?)</{tag}>", row.response, re.DOTALL)[1].strip()
            for tag in ("observation", "prediction", "answer")
        )
        env.reset(seed=0)
        env.wheels = [int(digit) for digit in re.findall(r"\d", observed)]
        env.hand = next(at for at, wheel in enumerate(observed.split()) if "(" in wheel)
        assert env.render() == observed
        for action in answer.split("||")[:3]:
            if env.left:
                env.step(action.strip().title())
        assert env.render() == after


def test_another_adapted_world_evaluates_with_the_random_engine(folder: Path, capsys) -> None:
    assert (
        main(
            [
                "generate",
                "sokoban",
                "env.id=gym:CliffWalking",
                "env.settings={random_start: true}",
                "env.tag=Cliff",
                "selfplay.policy=random",
                "--out",
                "c",
                "--quiet",
                *SMALL,
            ]
        )
        == 0
    )
    from spa.data.layouts import read_rows

    rows, *_ = read_rows(folder / "c" / "selfplay" / "train.parquet")
    assert rows and all("CCCCCCCCCC" in row.response and "goal (G) is at (3,11)" in row.response for row in rows)


@pytest.mark.parametrize(
    "settings", [{}, {"wheels": 2, "digits": 3, "moves": 2}, {"wheels": 9, "digits": 10, "moves": 9}]
)
def test_the_vault_keeps_the_contract(folder: Path, settings) -> None:
    found = check_world(lambda: make_env("vault:Vault", **settings), episodes=40, seeds=3)
    assert [one.line() for one in found if not one.ok] == []


def test_every_vault_opens_within_its_moves(folder: Path) -> None:
    """An independent search: breadth first from the open vaults, with the gears written out."""
    gears = ((1, -1, 0), (-1, 1, -1), (0, -1, 1))
    depth = {((0, 0, 0), hand): 0 for hand in range(3)}
    queue = list(depth)
    for wheels, hand in queue:
        turned = [tuple((w + by * gear) % 5 for w, gear in zip(wheels, gears[hand], strict=True)) for by in (1, -1)]
        for following in [
            *((one, hand) for one in turned),
            *((wheels, at) for at in (hand - 1, hand + 1) if 0 <= at < 3),
        ]:
            if following not in depth:
                depth[following] = depth[wheels, hand] + 1
                queue.append(following)
    env = make_env("vault:Vault", wheels=3, moves=4, max_steps=200)
    seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        assert 1 <= depth[tuple(env.wheels), env.hand] <= 4
        seen.add(depth[tuple(env.wheels), env.hand])
        for action in ("Up", "Right", "Down", "Left", "Left"):  # and the moves are those of the search
            before = tuple(env.wheels), env.hand
            if not env.left:
                break
            env.step(action)
            assert abs(depth[before] - depth[tuple(env.wheels), env.hand]) <= 1
    assert seen == {1, 2, 3, 4}


def test_sharing_by_entry_point(folder: Path, monkeypatch, capsys) -> None:
    points = tomllib.loads(blocks("toml")[0])["project"]["entry-points"]["spa.envs"]
    made = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points.items()]
    monkeypatch.setattr(registry, "_plugins", lambda: {point.name: point for point in made})
    assert make_env("vault", wheels=2).reset(seed=0)[0]
    assert main(["env", "list"]) == 0
    assert "vault" in capsys.readouterr().out


def test_the_program_finds_worlds_in_the_working_directory(folder: Path) -> None:
    import spa

    code = f"import sys; sys.path.insert(0, {str(Path(spa.__file__).parents[1])!r}); from spa.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "env", "play", "vault:Vault"]  # -P: no working directory in the path
    done = subprocess.run(command, input="quit\n", capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "The vault opens" in done.stdout
