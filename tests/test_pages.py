"""What README and the pages show is there: commands, settings, Python, links, error messages.

Python blocks run. Of shell blocks every ``spa`` command is parsed and its config loaded: most of them train for minutes to
days, and other tests run every command. Other programs' commands, outputs and sketches are not run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from spa.cli.app import app
from spa.cli.arguments import split_words
from spa.config.load import load_config, names_of

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
LINKED = [*PAGES, *sorted((ROOT / "dev").glob("*.md"))]
CONFIGURED = ("run", "generate", "sft", "practice", "ppo", "eval", "diagnose", "perplexity", "config", "play")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def fenced(page: Path, *languages: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [body for _, language, body in _FENCE.findall(text) if language in languages]


def shell_only(text: str) -> str:
    """A page without the fenced blocks of other languages."""
    return _FENCE.sub(lambda match: match[0] if match[2] in ("", "sh", "bash") else "", text)


def commands(page: Path) -> Iterator[list[str]]:
    """Arguments of the ``spa`` commands in a page's blocks; those with a placeholder (``NAME``, ``[KEY=VALUE...]``) left out."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    variables = dict(re.findall(r"^ *([A-Z])=\(([^)]*)\)", text, re.MULTILINE))
    prose = shell_only(text)
    for line in re.findall(r"^(?: {4,}|\$ |)(spa [a-z].*)$", prose, re.MULTILINE):
        command = re.sub(r'"\$\{([A-Z])\[@\]\}"', lambda match: variables.get(match[1], match[0]), line)
        for part in re.split(r" && | \| ", re.sub(r"\s+#.*", "", command).rstrip(" ;")):
            if part.startswith("spa ") and not re.search(r"\b(NAME|FILE|DIR|PATH|KEY=)|\.\.\.|<", part):
                yield shlex.split(part)[1:]


def parsed(arguments: list[str]) -> tuple[str, dict[str, object]]:
    """The command's name and its parameters; nothing is run. Raises a usage error for what the command does not know."""
    command, words, path = typer.main.get_command(app), arguments, []
    while True:
        context = command.make_context(" ".join(["spa", *path]), list(words), resilient_parsing=False)
        if not hasattr(command, "resolve_command"):
            return " ".join(path), context.params
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        path.append(command.name)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_can_be_pasted_into_zsh(page: Path) -> None:
    """It takes unquoted brackets for patterns of file names, and splits no variable at spaces."""
    blocks = shell_only(page.read_text(encoding="utf-8"))
    for line in re.findall(r"^(?: {4,}|\$ |)((?:spa|pip|hf|vllm|python) [a-z-].*(?:\\\n.*)*)", blocks, re.MULTILINE):
        bare = re.sub(r"""'[^']*'|"[^"]*"|\s#.*""", "", line)
        assert not re.search(r"=\[|\$[A-Z]|\.\[", bare), f"quote it: {line}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_settings_are_known(page: Path) -> None:
    for arguments in commands(page):
        command, params = parsed(arguments)
        config, settings = split_words(params.get("words") if isinstance(params.get("words"), list) else None)
        if command not in CONFIGURED or not (config or settings):
            continue
        if config and (
            "," in config or "/" in config or config.endswith(".yaml")
        ):  # several, or a file of the reader's own
            config = "frozen_lake"
        own = ("env.id=", "model=/", "model=cache:", "model=smollm2", "model=models/")  # what is not on this machine
        load_config(config or "frozen_lake", [word for word in settings if not word.startswith(own)])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_compiles(page: Path) -> None:
    for code in fenced(page, "python"):
        compile(code, name(page), "exec")


@pytest.mark.slow
def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of README and of the page on Python, where ``spa.run`` is a run of a few steps."""
    import spa
    from tests.test_pipeline import SMALL

    monkeypatch.chdir(tmp_path)
    run = spa.run("frozen_lake", *SMALL, out="runs/first", quiet=True)
    shutil.copytree("runs/first", "runs/second")
    spa.run("frozen_lake", *SMALL, "variants=[search]", out="runs/planned", quiet=True)
    monkeypatch.setattr(spa, "run", lambda *args, **settings: run, raising=False)
    for page in (ROOT / "README.md", ROOT / "docs" / "python.md"):
        blocks = fenced(page, "python")
        assert blocks
        for code in blocks:
            exec(compile(code, name(page), "exec"), {})


def slugs(text: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target, anchor in re.findall(r"\]\(([^()\s#]*)(#[^()\s]*)?\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), target
        if anchor and file.suffix == ".md":
            assert anchor[1:] in slugs(file.read_text(encoding="utf-8")), target + anchor


def test_the_messages_of_the_errors_page_are_the_programs() -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    messages = re.findall(r"^`([^`]+)`\n:   ", page, re.MULTILINE)
    assert len(messages) > 10
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "spa").rglob("*.py"))
    joined = re.sub(r'"\s*\n\s*f?"', "", sources)  # a message over several lines of source
    assert [message for message in messages if message.removeprefix(": ") not in joined] == []


def test_every_page_is_in_the_sites_navigation() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shown = set(re.findall(r"[\w/-]+\.md", str(site["nav"])))
    assert {str(page.relative_to(ROOT / "docs")) for page in DOCS} - shown == set(), "add these to nav in mkdocs.yml"
    assert all((ROOT / page).is_file() or (ROOT / "docs" / page).is_file() for page in shown)


@pytest.mark.parametrize("group", ["env", "model", "engine", "algorithm"])
def test_every_name_is_in_the_table_of_names(group: str) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if f"`{group}=NAME`)" in line.partition(" | ")[0])
    assert set(names_of(group)) - set(re.findall(r"`([\w.-]+)`", row)) == set(), "add these to 'Names'"


@pytest.mark.slow
@pytest.mark.integration
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(
            r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link rel="(?!canonical)[^>]+href="https?://', text
        )
