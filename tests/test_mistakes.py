"""Mistakes at the command line that were once accepted, found late, or answered by a traceback or a dead end."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from spa.agent.policy import make_task
from spa.cli import main
from spa.cli.arguments import check_output
from spa.config.load import load_config
from spa.data.layouts import messages_of
from spa.envs import FrozenLake
from spa.runs.folder import default_folder
from tests.test_examples import SMALL

RUN = ["run", "frozen_lake", *SMALL, "variants=[spa]"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes") / "run"
    assert main([*RUN, "--out", str(folder), "--quiet"]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main([*words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    return line


def test_a_page_replaces_no_other_file(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    compare = ["compare", str(run), str(other), "--html"]
    for file in (run / "config.yaml", run / "report.html", run):
        before = file.read_bytes() if file.is_file() else b""
        assert "give --html" in refused(capsys, *compare, str(file))
        assert not before or file.read_bytes() == before
    page = tmp_path / "page.html"
    assert main([*compare, str(page)]) == main([*compare, str(page)]) == 0, "its own page may be written again"
    assert "<html" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["run.json", "report.html"])
def test_a_runs_own_files_are_not_written_over(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    kind = name.partition(".")[2]
    check_output(tmp_path / name, kind)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ValueError, match="is not a run's"):
        check_output(tmp_path / name, kind)


def test_a_comparison_says_what_is_damaged(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    file = other / "variants" / "spa" / "eval" / "result.json"
    file.write_text(file.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert main(["compare", str(run), str(other)]) == 0
    assert str(file) in capsys.readouterr().err
    (file.parent / "done.json").write_bytes(b"")
    assert "done.json is damaged" in refused(capsys, "compare", str(run), str(other))


@pytest.mark.parametrize("damage", ["missing", "no YAML"])
def test_a_run_goes_on_without_its_config_when_the_last_command_is_given_again(
    run: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run / "config.yaml"
    before = config.read_bytes()
    config.unlink()
    if damage == "no YAML":
        config.write_text("a:\n\tb: [", encoding="utf-8")
    again = [*RUN, "--out", str(run), "--resume", "--quiet"]
    assert "the NAME and the settings of" in refused(capsys, *again, "sft.epochs=7")
    assert main(again) == 0
    assert config.read_bytes() == before


def test_a_stage_of_a_run_is_no_folder_for_another(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "frozen_lake", *SMALL, "--out", str(run / "selfplay")]
    assert "is a stage of a run" in refused(capsys, *words)
    assert not (run / "selfplay" / "config.yaml").exists()


def test_export_takes_no_stage_2_for_a_variant_without_one(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exported"
    error = refused(capsys, "export", str(run), "--to", str(out), "--sft", "--variant", "base")
    assert "variant base of" in error and "has no stage 2" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.base_url=http://[::1", "must be an address such as http://localhost:8000/v1"),
        ("engine.base_url=http://localhost:99999/v1", "must be an address such as"),
        ("engine.base_url=http://", "must be an address such as"),
        ("model.threads=20000", "model.threads"),
        ("env.step_timeout=1e300", "env.step_timeout"),
        ("sampling.temperature=1e-300", "must be 0 (greedy) or at least 0.001"),
    ],
)
def test_values_that_no_machine_can_take_are_refused_at_once(setting: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        load_config("frozen_lake", [setting])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_files_that_name_each_other_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [base, mine, _self_]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="its defaults lists name each other"):
        load_config(file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "frozen_lake", "model.path=~nobody-here/m"], "model: no model folder ~nobody-here/m"),
        (["sft", "frozen_lake", "sft.data=~nobody-here/m"], "no training data: ~nobody-here/m"),
        (["data", "stats", "damaged.jsonl"], "damaged.jsonl cannot be read: Error -3 while decompressing"),
        (["generate", "frozen_lake", "--out", "bad\udcff"], "'bad\\udcff' is not UTF-8 text; give another --out"),
        (["model", "get", "foo", "--from", "strange.whl"], "strange.whl cannot be unpacked: "),
    ],
)
def test_paths_that_lead_nowhere_and_archives_that_nothing_can_read(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = gzip.compress(b'{"a": 1}\n' * 1000)
    Path("damaged.jsonl").write_bytes(data[:12] + bytes(30) + data[42:])
    with zipfile.ZipFile("strange.whl", "w") as wheel:
        wheel.writestr("a/model.gguf", "x")
    packed = bytearray(Path("strange.whl").read_bytes())
    for begin, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        packed[packed.index(begin) + method] = 99
    Path("strange.whl").write_bytes(packed)
    assert message in refused(capsys, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.jsonl", "strange.whl"]


def test_a_server_is_named_before_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A config from a stranger chooses it, and the variable that it is sent."""
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")
    config = tmp_path / "theirs.yaml"
    engine = "engine: {kind: openai, base_url: 'http://127.0.0.1:9/v1', model: m, api_key_env: MY_TOKEN}"
    config.write_text(f"{engine}\nsampling: {{stop: []}}\nenv: {{id: frozen_lake}}\n")
    assert main(["eval", str(config), "--variant", "base", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "# asks: m at http://127.0.0.1:9/v1 with the key of $MY_TOKEN\n" in printed.out
    assert main(["eval", str(config), "--variant", "base", "engine.retries=0", "--out", str(tmp_path / "run")]) != 0
    printed = capsys.readouterr()
    assert "model m at http://127.0.0.1:9/v1 with the key of $MY_TOKEN" in printed.err
    assert "very-secret-value" not in printed.err + printed.out


def test_a_long_variant_name_is_refused_before_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(f"name: {'a' * 300}\n", encoding="utf-8")
    words = ["run", "frozen_lake", *SMALL, f"variants=[{file}]", "--out", str(tmp_path / "run"), "--dry-run"]
    assert "at most 100 characters" in refused(capsys, *words)


@pytest.mark.parametrize("name", ["../esc", "/tmp/abs", "a\nb", "x" * 300, "..", "Ünïcode"])
def test_the_name_of_a_config_leads_nowhere(name: str) -> None:
    cfg = load_config("frozen_lake")
    cfg.name = name
    folder = default_folder(cfg)
    assert folder.parent == Path("runs") and len(folder.name) < 150 and folder.name.isprintable()
    assert not folder.name.startswith(".")


def test_closed_outputs_are_no_defect() -> None:
    code = "import sys; sys.stdout = sys.stderr = None; from spa.cli import main; sys.exit(main(['config', 'frozen_lake']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_schedulers_rank_silences_no_single_process(monkeypatch, capsys) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["sft", "frozen_lake", "--out", "nowhere"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("spa ") and "Error: " in error


def test_a_prompt_of_thousands_of_digits_is_no_list_of_messages() -> None:
    assert messages_of("9" * 5000) is messages_of(json.dumps({"role": "user"})) is None


class PassesOn(FrozenLake):
    """Takes any setting and passes it on."""

    def __init__(self, extra: float = 0.0, **given: Any) -> None:
        if "state_format" in given:
            raise TypeError("TextEnv.__init__() got an unexpected keyword argument 'state_format'")
        super().__init__(**given)


def test_a_constructor_that_passes_settings_on_has_one_state_format() -> None:
    cfg = load_config("frozen_lake", [f"env.id={__name__}:PassesOn"])
    env = make_task(cfg, state_format="coordinates").make_env()
    assert env.state_format == "grid" and env.reset(seed=0)


def test_a_packaged_world_without_its_config_tells_of_mirror_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text("env: {id: frozen_lake, tag: Lake, settings: {size: 5}}\n", encoding="utf-8")
    words = ["run", str(file), *SMALL, "--out", str(tmp_path / "run"), "--dry-run"]
    assert main(words) == 0
    assert "env.disjoint=symmetry keeps these apart" in capsys.readouterr().err
    for other in ([*words, "env.disjoint=symmetry"], ["run", "frozen_lake", *words[2:]]):
        assert main(other) == 0
        assert "mirror images" not in capsys.readouterr().err
