"""The command line, with the pipeline replaced by a recorder."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spa import __version__
from spa.cli import main
from spa.common import progress
from spa.common.signals import Terminated
from spa.config.load import load_config, load_variant, to_yaml
from spa.runs.folder import RunFolder

Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Calls]:
    """A pipeline that only records; the working directory is empty."""
    recorded: Calls = []
    pipeline: Any = types.ModuleType("spa.pipeline")

    def recorder(name: str, *positional: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            recorded.append((name, dict(zip(positional, args, strict=True)) | kwargs))

        return call

    for name in ("run", "generate", "sft"):
        setattr(pipeline, name, recorder(name, "cfg", "out"))
    pipeline.ppo = recorder("ppo", "cfg", "variant", "out")
    pipeline.evaluate = recorder("evaluate", "cfg", "variant", "out")
    pipeline.report = lambda out, episodes=None: out / "report.html"
    pipeline.plan = lambda cfg, command, variants, model, out: [
        f"command {command}",
        f"variants {[variant.name for variant in variants]}",
    ]
    monkeypatch.setitem(sys.modules, "spa.pipeline", pipeline)
    monkeypatch.delenv("SPA_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    yield recorded
    progress.set_quiet(False)


def fails(code: int, argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must fail; returns its one line on stderr, below the banner where it began to work."""
    assert main(argv) == code
    captured = capsys.readouterr()
    lines = [line for line in captured.err.strip().splitlines() if not line.startswith(f"spa {__version__} ")]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err + captured.out
    return lines[0]


@pytest.mark.parametrize("command", ["run", "generate", "sft"])
def test_stage_commands_reach_the_pipeline(calls: Calls, command: str) -> None:
    assert main([command, "frozen_lake", "ppo.steps=5", "--out", "here", "--resume"]) == 0
    cfg = load_config("frozen_lake", ["ppo.steps=5"])
    variant = {} if command == "run" else {"variant": None}
    assert calls == [(command, {"cfg": cfg, "out": Path("here"), "resume": True, **variant})]


def test_options_may_stand_anywhere(calls: Calls) -> None:
    assert main(["run", "--out", "here", "sokoban", "--quiet", "ppo.steps=1", "variants=[spa]"]) == 0
    assert calls[0][1]["cfg"] == load_config("sokoban", ["ppo.steps=1", "variants=[spa]"])


def test_ppo_and_eval_take_an_variant(calls: Calls) -> None:
    assert main(["ppo", "sokoban", "--variant", "spa", "--out", "x"]) == 0
    assert main(["ppo", "sokoban", "--out", "x"]) == 0
    RunFolder("y").open(load_config("sokoban", ["variants=[se]"]), "generate", resume=False)
    assert main(["eval", "--model", "org/name", "--out", "y"]) == 0
    assert main(["eval", "sokoban", "env.state_format=coordinates", "--model", "org/name", "--out", "x"]) == 0
    assert [(name, call["variant"].name, call.get("model")) for name, call in calls] == [
        ("ppo", "spa", None),
        ("ppo", "vanilla", None),
        ("evaluate", "se", "org/name"),
        ("evaluate", "base", "org/name"),
    ]
    assert calls[-1][1]["variant"].state_format == "coordinates"


def test_eval_again_evaluates_the_base_of_a_run_as_the_run_did(calls: Calls) -> None:
    settings = ["frozen_lake", "env.state_format=coordinates"]
    cfg, base = load_config(settings[0], settings[1:]), load_variant("base")
    run = RunFolder("x").open(cfg, "run", resume=False, variants=[base])
    assert main(["eval", *settings, "--variant", "base", "--out", "x", "--resume"]) == 0
    assert calls[-1][1]["variant"] == base
    run.check(cfg, "eval base", True, [calls[-1][1]["variant"]])


def test_eval_again_evaluates_the_same_model_as_it_is(calls: Calls) -> None:
    cfg = load_config("frozen_lake", ["model.path=org/name"])
    again = ["eval", "frozen_lake", "--model", "org/name", "--out", "x"]
    assert main(again) == 0
    RunFolder("x").open(cfg, "eval base", resume=False, variants=[calls[0][1]["variant"]])
    assert main(again) == 0
    assert main([*again, "--resume"]) == 0
    assert main(["eval", "--model", "org/name", "--out", "x", "--resume"]) == 0
    assert [call["variant"] for _, call in calls] == [calls[0][1]["variant"]] * 4
    RunFolder("x").open(cfg, "sft", resume=False)
    assert main(again) == 0
    Path("exported").mkdir()
    Path("exported/spa.yaml").write_text(to_yaml(cfg))
    Path("exported/config.json").write_text("{}")
    assert main(["eval", "exported", "--out", "x"]) == 0
    assert [call["variant"].name for _, call in calls[3:]] == ["base", "vanilla", "base"]


@pytest.mark.parametrize("command", ["generate", "ppo", "eval"])
def test_a_file_among_the_variants_goes_by_its_name(calls: Calls, command: str) -> None:
    Path("some.yaml").write_text("name: own\n")
    assert main([command, "sokoban", "variants=[vanilla,some.yaml]", "--variant", "own", "--out", "x"]) == 0
    assert calls[0][1]["variant"].name == "own"


def test_default_folder_is_named_and_printed(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "_10_sudoku"]) == 0
    out = calls[0][1]["out"]
    assert out.parent == Path("runs")
    assert out.name.startswith("sudoku-")
    assert capsys.readouterr().err.count(f"Run folder: {out}") == 1


def test_saved_config_stands_in_for_the_name(calls: Calls) -> None:
    cfg = load_config("frozen_lake", ["ppo.steps=3"])
    RunFolder("saved").open(cfg, "generate", resume=False)
    assert main(["sft", "--out", "saved"]) == 0
    assert main(["run", "--out", "saved", "--resume"]) == 0
    assert main(["sft", "sft.epochs=9", "--out", "saved"]) == 0
    assert [call["cfg"].ppo.steps for _, call in calls] == [3, 3, 3]
    assert calls[2][1]["cfg"].sft.epochs == 9


@pytest.mark.parametrize(
    ("command", "variants"),
    [
        ("run", "['base', 'vanilla', 'spa']"),
        ("generate", "[]"),
        ("ppo", "['vanilla']"),
    ],
)
def test_dry_run_prints_a_config_and_the_plan_and_writes_nothing(
    calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, variants: str
) -> None:
    assert main([command, "sokoban", "ppo.steps=5", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(to_yaml(load_config("sokoban", ["ppo.steps=5"])))
    assert f"# command {command}\n# variants {variants}\n" in printed
    assert calls == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "again.yaml").write_text(printed, encoding="utf-8")
    assert load_config(tmp_path / "again.yaml").ppo.steps == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run"], "Error: no config given; give a NAME: bandit"),
        (["run", "--out", "none"], "Error: none holds no run (no config.yaml); give a NAME"),
        (["run", "sokoban", "--resume"], "Error: --resume needs --out, the run folder to continue"),
        (["run", "sokobn"], "Error: unknown config 'sokobn'"),
        (["run", "sokoban", "extra"], "Error: unexpected argument 'extra'; settings are written key=value"),
        (["run", "sokoban", "ppo.stpes=1"], "Error: unknown setting 'ppo.stpes'. Did you mean 'ppo.steps'?"),
        (["run", "sokoban", "--dry"], "Error: No such option: --dry"),
        (
            ["run", "sokoban", "--steps", "3"],
            "Error: No such option: --steps (Possible options: --help). Settings are written key=value: ppo.steps=...",
        ),
        (
            ["ppo", "sokoban", "--batch-size=3"],
            "Error: No such option: --batch-size. Settings are written key=value: sampling.batch_size=... or sft.batch_size=...",
        ),
        (["ppo", "sokoban", "--variant", "spaa"], "Error: unknown variant 'spaa'"),
        (
            ["ppo", "sokoban", "--variant", "spa", "--variant=se"],
            "Error: --variant is given twice: a command takes one",
        ),
        (["run", "sokoban", "--out", ""], "Error: an argument is empty: a shell variable that is not set?"),
        (["run", "sokoban", "--out="], "Error: an argument is empty"),
        (["frobnicate"], "Error: No such command 'frobnicate'."),
        (["pretrain"], "Error: Missing option '--out'."),
        (["report", "nowhere"], "Error: no run folder nowhere"),
        (["env", "check", "sokobn"], "Error: unknown world 'sokobn'. Did you mean 'sokoban'?"),
        (["env", "check", "sokoban", "dim=3"], "Error: unknown setting 'dim'"),
        (["env", "play", "sokoban", "5"], "Error: unexpected argument '5'"),
        (["config", "nope.yaml"], "Error: no config file nope.yaml"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str], message: str
) -> None:
    assert fails(2, argv, capsys).startswith(message)
    assert calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("two\n  lines"), "Error: two lines"),
        (FileNotFoundError(2, "No such file or directory", "x"), "Error: [Errno 2] No such file or directory: 'x'"),
        (OSError("org/name is not a local folder"), "Error: org/name is not a local folder"),
        (ValueError(), "Error: ValueError"),
    ],
)
def test_errors_of_the_pipeline(
    calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def broken(cfg: Any, out: Path, *, resume: bool) -> None:
        raise error

    monkeypatch.setattr(sys.modules["spa.pipeline"], "run", broken)
    assert fails(2, ["run", "sokoban", "--out", "x"], capsys) == shown
    monkeypatch.setenv("SPA_DEBUG", "1")
    assert main(["run", "sokoban", "--out", "x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_gymnasium_errors_are_the_users(
    calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gymnasium.error import NameNotFound

    def broken(cfg: Any, out: Path, *, resume: bool) -> None:
        raise NameNotFound("Environment `X` doesn't exist.")

    monkeypatch.setattr(sys.modules["spa.pipeline"], "run", broken)
    assert fails(2, ["run", "sokoban", "--out", "x"], capsys) == "Error: Environment `X` doesn't exist."


def test_a_reader_that_went_away_is_no_error(calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """As in ``spa play | head``: typer turns the error into an exit."""

    def gone(cfg: Any, out: Path, *, resume: bool) -> None:
        raise OSError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys.modules["spa.pipeline"], "run", gone)
    monkeypatch.setattr(os, "dup2", lambda *files: None)
    assert main(["run", "sokoban", "--out", "x", "--quiet"]) == 141, "what a shell says of other programs"
    assert capsys.readouterr().err == ""


def test_a_defect_keeps_its_traceback(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cfg: Any, out: Path, *, resume: bool) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(sys.modules["spa.pipeline"], "run", broken)
    with pytest.raises(AssertionError, match="a bug"):
        main(["run", "sokoban", "--out", "x"])


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory has a run folder ``x``."""
    monkeypatch.chdir(tmp_path)
    Path("x").mkdir()
    Path("x/config.yaml").touch()
    Path("x/run.json").write_text('{"commands": [{"command": "generate"}]}')


def opened() -> None:
    """As a stage that has saved its settings in ``x``."""
    Path("x/run.json").write_text('{"commands": [{"command": "generate"}, {"command": "run"}]}')


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["run", "sokoban", "--out", "x"], "Continue with: spa run --out x --resume"),
        (["ppo", "sokoban", "--variant", "spa", "--out", "x"], "Continue with: spa ppo --variant spa --out x --resume"),
    ],
)
def test_ctrl_c_says_how_to_go_on(
    calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], hint: str
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        opened()
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["spa.pipeline"], argv[0], interrupted)
    assert fails(130, argv, capsys) == f"Interrupted. {hint}"


@pytest.mark.usefixtures("begun")
def test_a_command_that_has_not_saved_its_settings_is_not_continued_with_those_of_the_command_before(
    calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["spa.pipeline"], "evaluate", interrupted)
    line = fails(130, ["eval", "sokoban", "eval.worlds=7", "--variant", "spa", "--out", "x"], capsys)
    assert line == "Interrupted. Nothing was written: give the same command again"


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_command_that_reads_its_config_can_be_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: int
) -> None:
    def interrupted(*args: Any) -> None:
        raise error

    monkeypatch.setattr("spa.config.load.load_config", interrupted)
    word = "Interrupted." if code == 130 else "Terminated."
    assert fails(code, ["run", "sokoban", "--out", "x"], capsys) == word


@pytest.mark.parametrize(
    "place", ["spa.cli.app._call", "typer.core.TyperGroup.make_context", "typer.core.TyperGroup.invoke"]
)
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_command_can_be_stopped_while_its_words_are_read(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    code: int,
    place: str,
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(place, interrupted)
    word = "Interrupted." if code == 130 else "Terminated."
    assert fails(code, ["run", "sokoban", "--out", "x"], capsys) == word


@pytest.mark.usefixtures("begun")
def test_sigterm_says_it_too(calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def terminated(_: Any, folder: Path, **kwargs: Any) -> None:
        if folder == Path("x"):
            opened()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(sys.modules["spa.pipeline"], "run", terminated)
    line = fails(143, ["run", "sokoban", "--out", "x"], capsys)
    assert line == "Terminated. Continue with: spa run --out x --resume"
    assert fails(143, ["run", "sokoban", "--out", "y"], capsys) == (
        "Terminated. Nothing was written: give the same command again"
    )
    assert signal.getsignal(signal.SIGTERM) is before


def test_quiet_turns_progress_off(calls: Calls) -> None:
    assert main(["run", "sokoban", "--out", "x", "--quiet"]) == 0
    assert progress._quiet
    assert main(["run", "sokoban", "--out", "x"]) == 0
    assert not progress._quiet


def test_version_help_and_config(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"spa {__version__}\n"
    assert main(["run", "--help"]) == 0
    assert "--dry-run" in capsys.readouterr().out
    assert main([]) == 2
    assert "generate" in capsys.readouterr().err
    assert main(["config", "_2_sokoban", "model=qwen2.5-0.5b"]) == 0
    assert capsys.readouterr().out == to_yaml(load_config("sokoban", ["model=qwen2.5-0.5b"]))


def test_report_prints_its_path(calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'report.html'}\n"


def test_pretrain_settings(calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from spa.pretrain import train as pretrain

    made: list[Any] = []
    monkeypatch.setattr(pretrain, "pretrain", lambda config, out: made.append((config, out)))
    assert main(["pretrain", "--out", "tiny", "steps=5", "worlds={sokoban: 1}"]) == 0
    assert made == [(pretrain.PretrainConfig(steps=5, worlds={"sokoban": 1.0}), Path("tiny"))]
    capsys.readouterr()
    assert "unknown setting 'stpes'. Did you mean 'steps'?" in fails(
        2, ["pretrain", "--out", "tiny", "stpes=5"], capsys
    )
    Path("full").mkdir()
    Path("full/thesis.txt").write_text("")
    assert "exists and is not empty" in fails(2, ["pretrain", "--out", "full"], capsys)
    assert Path("full/thesis.txt").exists()


def test_env_list_and_check(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("sokoban", "frozen_lake_slippery", "_10_sudoku", "tiny", "vanilla"))
    assert main(["env", "check", "frozen_lake", "is_slippery=true", "size=5"]) == 0
    assert "FAILED" not in capsys.readouterr().out


def test_env_check_finds_a_bad_world(
    calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_world.py").write_text(
        "import random\n"
        "class Bad:\n"
        "    actions = ('Go',)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        return str(random.random()), {}\n"
        "    def step(self, action):\n"
        "        return 'there', 1.0, False, False, {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["env", "check", "bad_world:Bad"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED  two instances with the same seed are equal: seed 0" in printed
    assert "FAILED  the global random state is left alone" in printed
    assert "ok      nonsense is data" in printed  # what is not listed is not passed on


def test_env_play_reads_moves(
    calls: Calls, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("1\nUp\nnonsense\n"))
    assert main(["env", "play", "sokoban", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "Actions: 1 Up, 2 Down, 3 Left, 4 Right, q quit" in printed
    assert printed.count("Reward -0.1") == 2
    assert "Not a valid action." in printed
    assert printed.endswith("Stopped.\n")


def test_python_m_spa_runs_as_a_program(tmp_path: Path) -> None:
    result = _python("-m", "spa", "run", "nope", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("Error: unknown config 'nope'")
    assert result.stdout == ""


@pytest.mark.parametrize("module", ["spa", "spa.cli", "spa.config.load", "spa.runs.folder", "spa.runs.metrics"])
def test_imports_are_light(module: str, tmp_path: Path) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gymnasium', 'hydra', 'rich'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    result = _python("-c", code, cwd=tmp_path)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


@pytest.mark.parametrize("argv", [["--help"], ["config", "sokoban"], ["env", "list"], ["run", "sokoban", "--bad"]])
def test_commands_without_a_model_import_no_torch(argv: list[str], tmp_path: Path) -> None:
    code = f"import sys\nfrom spa.cli import main\nmain({argv!r})\nassert 'torch' not in sys.modules"
    result = _python("-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_an_output_that_lacks_a_sign_shows_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sokoban writes a box on its target as a sign that a Windows code page does not have."""
    monkeypatch.setenv("PYTHONIOENCODING", "cp1252")
    result = _python("-m", "spa", "config", "sokoban", "agent.action_sep='√'", cwd=tmp_path)
    assert r"action_sep: \u221a" in result.stdout, result.stderr


def _python(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Another Python with the package that is being tested."""
    import spa

    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, cwd=cwd, env=environment)


def test_a_shell_completes_commands(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SPA_COMPLETE", "complete_bash"), ("COMP_WORDS", "spa gen"), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    assert main([]) == 0
    assert capsys.readouterr() == ("generate\n", "")
