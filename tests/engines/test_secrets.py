"""A canary in every place that a key or a password can come from: it must be in no file of a run and in no output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import spa
from spa.agent.episode import Episode, read_episodes
from spa.cli import main
from spa.common import secrets
from spa.common.progress import note
from spa.config.load import load_config, to_yaml
from spa.config.schema import EngineConfig
from spa.data.eval_log import write_episode_log
from spa.engines.openai import OpenAIEngine
from spa.report.collect import collect
from spa.runs.folder import RunFolder
from spa.runs.stage import Stage
from spa.runs.trackers import Trackers
from tests.engines.conftest import Server
from tests.engines.test_openai import ask

pytest.importorskip("openai")

KEY = "sk-canary-0123456789abcdef"
PASSWORD = "pw-canary-0123456789abcdef"
REPLY = '{"choices": [{"message": {"content": "<think>You sent AUTH</think><answer>Up</answer>"}, "finish_reason": "stop"}]}'


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run folder to be; the canary is the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("SPA_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def clean(capsys: pytest.CaptureFixture[str], *folders: Path) -> str:
    """What was printed, after it and all files of the folders were searched for the canaries."""
    captured = capsys.readouterr()
    texts = {"stdout": captured.out.encode(), "stderr": captured.err.encode()}
    texts |= {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    for name, text in texts.items():
        for canary in (KEY, PASSWORD):
            assert canary[:8].encode() not in text, name
            assert canary.encode() not in name.encode()
    return captured.out + captured.err


def generate(url: str, out: Path, *settings: str) -> list[str]:
    fixed = ["engine=openai", f"engine.base_url={url}", "engine.model=m", "engine.concurrency=1", "engine.retries=0"]
    sizes = [
        "selfplay.groups=3",
        "selfplay.group_size=1",
        "env.max_turns=1",
        "model.path=/nowhere/at/all",
        "selfplay.tries=1",
    ]
    return ["generate", "frozen_lake", "--out", str(out), *fixed, *sizes, *settings]


# What a server says


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ('echo:401:{"error": {"message": "Bad header: AUTH"}}', 2, "HTTP 401: Bad header: Bearer [redacted]"),
        ('echo:403:{"error": {"headers": {"Authorization": "AUTH"}}}', 2, "HTTP 403: {'headers': {'Authorization': "),
        (f"echo:422:{'x' * 288} TOKEN", 0, ""),  # where the message is cut
        ('echo:500:{"detail": "AUTH"}', 0, ""),
        ("echo:429:AUTH", 0, ""),
        ("echo:200:" + REPLY, 0, ""),
        ("echo:200:" + REPLY.replace("AUTH", "AUTH AUTH"), 0, ""),
        ("echo:200:not JSON AUTH", 0, ""),
        (f"echo:200:{'x' * 48} TOKEN", 0, ""),
        ('echo:200:{"choices": [{"message": {"content": 3}, "finish_reason": "AUTH"}]}', 0, ""),
    ],
)
def test_a_server_that_echoes_the_key(
    server: Server, out: Path, capsys: pytest.CaptureFixture[str], answer: str, code: int, said: str
) -> None:
    server.control(script=[answer, "answer", "answer", answer])  # of the first episode, which fails and is tried again
    assert main(generate(server.url, out)) == code
    assert server.log[0]["authorization"] == f"Bearer {KEY}"
    assert said in clean(capsys, out)
    if code == 0:
        episodes = (out / "selfplay" / "episodes.jsonl").read_text()
        assert "[redacted]" in episodes or f"{'x' * 48} " in episodes
        assert main(["report", str(out)]) == 0
        clean(capsys, out)


@pytest.mark.parametrize("answer", ["echo:401:AUTH", "echo:500:AUTH", "echo:200:AUTH"])
def test_tracebacks_do_not_show_it(
    server: Server, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setenv("SPA_DEBUG", "1")
    server.control(then=answer)
    assert main(generate(server.url, out, "selfplay.groups=20")) == 2
    said = clean(capsys, out)
    assert "Traceback" in said
    assert "[redacted]" in said


def test_a_defects_traceback_does_not_show_it(out: Path) -> None:
    code = f"import spa.pipeline\nfrom spa.cli import main\ndef report(*_): raise TypeError({KEY!r})\n"
    code += "spa.pipeline.report = report\nimport sys; sys.argv = ['spa', 'report', '.']\nsys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(Path(spa.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert done.stderr.endswith("TypeError: [redacted]\n")


def test_the_key_is_followed_nowhere(
    server: Server, out: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    elsewhere = server.root.replace("127.0.0.1", "localhost")
    server.control(then=f"redirect:{elsewhere}/v1/chat/completions?was={KEY}")
    assert main(generate(server.url, out)) == 2
    assert f"redirects to {elsewhere}/v1/chat/completions?was=[redacted]: set engine.base_url" in clean(capsys, out)
    assert len(server.log) == 1


@pytest.mark.parametrize("key", ["sk-canary-0123456789abcdef\nsecond line", "sk-canary-0123456789abcdef…"])
def test_a_key_that_is_none(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert main(generate("http://127.0.0.1:9/v1", out)) == 2
    assert "the environment variable OPENAI_API_KEY holds no valid key" in clean(capsys, out)


def test_a_line_end_is_no_part_of_the_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    config = EngineConfig(kind="openai", base_url=server.url, model="m")
    ask(OpenAIEngine(config))
    assert server.log[0]["authorization"] == f"Bearer {KEY}"


# What a config says


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{PASSWORD}@127.0.0.1:9/v1",
        f"http://{PASSWORD}@127.0.0.1:9/v1",
        f"http://user:a/{PASSWORD}@127.0.0.1:9/v1",
        f"user:{PASSWORD}@127.0.0.1:9/v1",
        f"http://127.0.0.1:9/v1?key={PASSWORD}",
    ],
)
@pytest.mark.parametrize("options", [["--out", "run"], ["--dry-run"]])
def test_an_address_with_a_password_is_refused(
    out: Path, capsys: pytest.CaptureFixture[str], url: str, options: list[str]
) -> None:
    settings = ["engine=openai", "engine.model=m", f"engine.base_url={url}"]
    for argv in (["generate", "frozen_lake", *settings, *options], ["config", "frozen_lake", *settings]):
        assert main(argv) == 2
        said = clean(capsys)
        assert said.startswith("Error: engine.base_url must be an address alone")
        assert "engine.api_key_env" in said
    assert not out.exists()


def test_an_engine_takes_no_password_either() -> None:
    with pytest.raises(ValueError, match="address alone") as caught:
        OpenAIEngine(EngineConfig(kind="openai", base_url=f"http://user:{PASSWORD}@h/v1", model="m"))
    assert PASSWORD not in str(caught.value)


def test_a_key_in_place_of_its_variables_name(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sokoban", f"engine.api_key_env={KEY}"]) == 2
    assert "must be the name of an environment variable" in clean(capsys)


@pytest.mark.parametrize("word", [f"http://user:{PASSWORD}@host/config.yaml", f"http://user:a/{PASSWORD}@host/x"])
def test_a_mistake_is_not_repeated_with_its_password(out: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert main(["config", word]) == 2
    assert "[redacted]@host" in clean(capsys)
    assert main(["config", "sokoban", f"ppo.steps={word}"]) == 2
    assert "[redacted]@host" in clean(capsys)


PLAIN = (
    "engine: {model: '${oc.env:CANARY}'}\nenv: {id: frozen_lake, settings: {size: 4}, instruction: 'pay ${price}'}\n"
)
ARM = """
sft: true
settings:
  engine: {kind: openai, base_url: 'http://h/v1', model: '${oc.env:CANARY}'}
  sampling: {stop: []}
"""
COMPOSED = """
defaults: [base, override env: frozen_lake, _self_]
engine: {model: '${oc.env:CANARY}', api_key_env: "${oc.env:UNSET,MY_KEY}"}
selfplay: {model: '${engine.model}'}
"""


@pytest.mark.parametrize("way", ["plain", "composed", "setting", "variant"])
def test_what_a_config_reads_from_the_environment(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("CANARY", PASSWORD)
    Path("plain.yaml").write_text(PLAIN)
    Path("composed.yaml").write_text(COMPOSED)
    Path("variant.yaml").write_text(ARM)
    name, settings = {
        "plain": ("plain.yaml", []),
        "composed": ("composed.yaml", []),
        "setting": ("frozen_lake", ["engine.model=${oc.env:CANARY}", "env.settings.size=4"]),
        "variant": ("frozen_lake", ["variants=[./variant.yaml]"]),
    }[way]
    if way != "variant":
        assert load_config(name, settings).engine.model == PASSWORD
    # Random play asks nobody, and so no model of this name is missed.
    settings = [
        *settings,
        "selfplay.policy=random",
        "selfplay.groups=2",
        "selfplay.group_size=1",
        "model.path=builtin:tiny",
    ]
    assert main(["config", name, *settings]) == 0
    printed = clean(capsys)
    if way != "variant":
        assert yaml.safe_load(printed)["engine"]["model"] == "${oc.env:CANARY}"
    if way != "composed":  # there the model of stage 1 would have to be
        assert main(["run", name, *settings, "--dry-run"]) == 0
        clean(capsys)
        assert main(["generate", name, *settings, "--out", str(out)]) == 0
        clean(capsys, out)
        assert load_config(out / "config.yaml") == load_config(name, settings)
        assert main(["generate", "--out", str(out), "--resume"]) == 0
        assert main(["report", str(out)]) == 0
        assert "done before" in clean(capsys, out)
        monkeypatch.delenv("CANARY")
        secrets.forget()
        assert main(["report", str(out)]) == 0  # elsewhere, say
        assert way == "variant" or main(["generate", "--out", str(out), "--resume"]) == 2
        clean(capsys, out)


def test_a_key_written_into_a_config(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(f"name: {KEY}\nenv: {{id: frozen_lake, settings: {{size: 4}}}}\n")
    cfg = load_config("mine.yaml")
    RunFolder(out).open(cfg, "generate", resume=False)
    assert main(["config", "mine.yaml"]) == 0
    assert "name: ${oc.env:OPENAI_API_KEY}" in clean(capsys, out)
    assert load_config(out / "config.yaml") == cfg
    assert json.loads((out / "run.json").read_text())["name"] == "[redacted]"
    assert collect(out).name == "[redacted]"
    assert KEY not in str(collect(out).config)


def test_trackers_get_none(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("spa.runs.stage.make_trackers", lambda *args, **rest: given.append(args) or Trackers())
    cfg = load_config("frozen_lake", [f"engine.model={KEY}", f"name={KEY}"])
    with Stage(out, "SFT", resume=False).metrics(cfg):
        pass
    assert given[0][3]["engine"]["model"] == "${oc.env:OPENAI_API_KEY}"
    assert KEY not in str(given)


# The parts


def test_errors_of_episodes_and_notes(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = Episode("T", 1, 0, status="error", error=f"OSError: http://user:{PASSWORD}@h refused {KEY}")
    assert Episode.from_json(episode.to_json()).error == "OSError: http://[redacted]@h refused [redacted]"
    note(episode.error)
    clean(capsys)


def test_errors_of_commands(out: Path) -> None:
    folder = RunFolder(out).open(load_config("sokoban"), "run", resume=False)
    folder.close(ValueError(f"the server refused {KEY}"))
    assert KEY not in folder.info_path.read_text()
    assert (
        json.loads(folder.info_path.read_text())["commands"][-1]["error"] == "ValueError: the server refused [redacted]"
    )


def test_the_models_name_is_no_place_for_a_key(out: Path, tmp_path: Path) -> None:
    write_episode_log(tmp_path / "log.json", [Episode("T", 1, 0)], "inspect", model=f"spa/{KEY}")
    assert KEY not in (tmp_path / "log.json").read_text()


def test_local_episodes_are_written_as_they_are(out: Path, tmp_path: Path) -> None:
    from spa.agent.episode import Turn, write_episodes

    said = f"Bearer {KEY} http://user:{PASSWORD}@h"
    episode = Episode("T", 1, 0, turns=[Turn(0, said, said, said)])
    write_episodes(tmp_path / "e.jsonl", [episode])
    assert list(read_episodes(tmp_path / "e.jsonl")) == [episode]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://localhost:8000/v1 and a@b.c", None),
        ("at http://localhost:8000/a@b", None),
        ("a bearer of bad news, the Bearer is here", None),
        ("ssh://git@host/x", "ssh://[redacted]@host/x"),
        ("http://u:p@ss@host/x", "http://[redacted]@host/x"),
        ("http://u:12@host:80/x", "http://[redacted]@host:80/x"),
        ('{"Authorization": "Bearer abcd"}', '{"Authorization": "Bearer [redacted]"}'),
        ("b'Bearer tok-1'", "b'Bearer [redacted]'"),
        ("ollama and EMPTY", None),
        (f"({KEY})", "([redacted])"),
        ("a%2Fb%2Bc%3D%3D12 a/b+c==12", "[redacted] [redacted]"),
    ],
)
def test_redact(out: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str | None) -> None:
    monkeypatch.setenv("HF_TOKEN", "ollama")  # too short to be a secret
    monkeypatch.setenv("WANDB_API_KEY", "a/b+c==12")
    assert secrets.redact(text) == (text if expected is None else expected)


def test_paths_stay_legible(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    config = load_config("sokoban", ["model.path=${oc.env:SCRATCH}/model"])
    assert config.model.path == f"{tmp_path}/model"
    assert "path: ${oc.env:SCRATCH}/model\n" in to_yaml(config), "files stay as they were written"
    assert secrets.redact(config.model.path) == config.model.path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${oc.env:SPA_UNSET}", "the environment variable SPA_UNSET is not set; the config reads it"),
        ("${oc.env:${name}}", r"is read as \$\{oc.env:NAME\}"),
        ("${oc.env:", r"cannot read|is read as \$\{oc.env:NAME\}"),
    ],
)
def test_references_that_cannot_be_read(out: Path, text: str, message: str) -> None:
    Path("mine.yaml").write_text(f"engine: {{model: '{text}'}}\n")
    for name, settings in (("mine.yaml", []), ("sokoban", [f"engine.model={text}"])):
        with pytest.raises(ValueError, match=message) as caught:
            load_config(name, settings)
        assert "\n" not in str(caught.value)


def test_defaults_of_references(out: Path) -> None:
    Path("mine.yaml").write_text(
        "engine: {model: \"${oc.env:SPA_UNSET,'m 1'}\", base_url: 'http://${oc.env:SPA_UNSET, h}/v1'}\n"
    )
    engine = load_config("mine.yaml").engine
    assert (engine.model, engine.base_url) == ("m 1", "http://h/v1")


@pytest.mark.parametrize(
    "unit", ["a", "http://", "x:///", "http://a:b", "x://a", "bearer ", "Bearer\t", "authorization: ", "://", "@", " "]
)
def test_redacting_takes_time_in_proportion_to_length(unit: str) -> None:
    """A server chooses its replies: the parts that are looked for once a place must not be looked for once a pair of places."""

    def seconds(length: int) -> float:
        text = (unit * length)[:length] + "@"
        times = []
        for _ in range(5):
            started = time.process_time()
            secrets.redact(text)
            times.append(time.process_time() - started)
        return min(times)

    assert seconds(80_000) < max(4 * seconds(20_000) * 2, 0.1)


@pytest.mark.parametrize("text", ["${oc.env:WHERE}", "${oc.env:UNSET,cpu}"])
def test_references_are_saved_as_they_were_written(out: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Also those to what is no secret: a file says where a value comes from, not what it was here."""
    monkeypatch.setenv("WHERE", "cpu")
    Path("plain.yaml").write_text(f"model: {{device: '{text}'}}\n")
    Path("composed.yaml").write_text(f"defaults: [base, _self_]\nmodel: {{device: '{text}'}}\n")
    for name, settings in (("plain.yaml", []), ("composed.yaml", []), ("sokoban", [f"model.device={text}"])):
        config = load_config(name, settings)
        assert config.model.device == "cpu"
        assert f"device: {text}\n" in to_yaml(config).replace("'", "")
        RunFolder(out / Path(name).stem).open(config, "generate", resume=False)
        assert load_config(out / Path(name).stem / "config.yaml") == config
        secrets.forget()
        assert "device: cpu\n" in to_yaml(config), "a setting of the same value is another's"
