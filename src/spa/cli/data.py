"""``spa data``: looking at, filtering and converting self-play data. Imports no torch at import time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spa.cli.arguments import Words, check_new_folder, config_of

if TYPE_CHECKING:
    from spa.agent.chat import Chat
    from spa.data.ground_truth import Row

data_app = typer.Typer(help="Look at, filter and convert self-play data.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A .parquet or .jsonl file, or a folder of stage 1.")]
Out = Annotated[Path, typer.Option("--out", help="The file to write: .parquet or .jsonl.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite --out.")]
Model = Annotated[str, typer.Option("--model", help="Whose tokenizer counts: a model folder or hub name.")]
Loss = Annotated[str, typer.Option("--loss", help="think_answer, state or masked.")]
MaxLength = Annotated[int, typer.Option("--max-length", min=1, help="The limit that long rows are counted against.")]


@data_app.command()
def inspect(
    file: File,
    row: Annotated[int, typer.Option("--row", min=0, help="The first row to show, from 0.")] = 0,
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many rows.")] = 1,
    model: Model = "builtin:tiny",
    loss: Loss = "think_answer",
) -> None:
    """Show rows and which of their tokens are trained."""
    from spa.common.names import choose
    from spa.common.text import clean
    from spa.config.overrides import choices
    from spa.config.schema import Config
    from spa.data.maskview import MEANINGS, pieces, plain, rich_text

    choose("sft.loss", loss, choices(Config, "sft.loss"))
    all_rows, path, _ = _read(file)
    chosen = all_rows[row : row + rows]
    if not chosen:
        raise ValueError(f"{path} has {len(all_rows)} rows; there is no row {row}")
    chat = _chat(model, all_rows)
    shown = []
    for number, one in enumerate(chosen, row):
        try:
            shown.append((_title(number, one), pieces(one, chat, loss=loss)))
        except ValueError as error:
            raise ValueError(f"row {number} of {path}: {error}") from error
    for title, tokens in shown:
        counts = Counter(token.kind for token in tokens)
        print(clean(title))
        print(", ".join(f"{counts[kind]} {meaning}" for kind, meaning in MEANINGS.items()))
        if sys.stdout.isatty():
            from rich.console import Console

            Console(highlight=False).print(rich_text(tokens), soft_wrap=True)
        else:
            print(plain(tokens))
        print()


@data_app.command()
def stats(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    model: Model = "builtin:tiny",
    loss: Loss = "think_answer",
    max_length: MaxLength = 2048,
) -> None:
    """Count rows, episodes, worlds, tokens, actions, formats and repeats."""
    from spa.common.names import choose
    from spa.config.overrides import choices
    from spa.config.schema import Config
    from spa.data.describe import describe, render_stats

    choose("sft.loss", loss, choices(Config, "sft.loss"))
    rows, _, _ = _read(file)
    result = describe(rows, _chat(model, rows), loss=loss, max_length=max_length)
    print(json.dumps(result, indent=1, ensure_ascii=False) if as_json else render_stats(result))


@data_app.command("filter")
def filter_rows(
    file: File,
    out: Out,
    tags: Annotated[bool, typer.Option("--tags/--no-tags", help="Drop rows by the structure of their tags.")] = True,
    success_only: Annotated[bool, typer.Option("--success-only", help="Keep rows of won episodes only.")] = False,
    deduplicate: Annotated[bool, typer.Option("--deduplicate", help="Drop repeats of prompt and response.")] = False,
    balance: Annotated[str, typer.Option("--balance", help="none, actions, turn or success.")] = "none",
    min_tokens: Annotated[int, typer.Option("--min-tokens", min=0, help="Drop shorter rows.")] = 0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=0, help="Drop longer rows; 0 = keep.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the balancing.")] = 0,
    model: Model = "builtin:tiny",
    force: Force = False,
) -> None:
    """Write the rows that pass, and count why others did not."""
    from spa.config.overrides import from_mapping
    from spa.config.schema import Config
    from spa.data.layouts import write_rows
    from spa.data.select import select_rows

    chosen = {"filter": tags, "success_only": success_only, "deduplicate": deduplicate, "balance": balance}
    play = from_mapping(Config, {"selfplay": chosen}).selfplay
    _check_out(out, force)
    rows, path, layout = _read(file)
    # By length only then: whether a row answers the plain prompt shows in the rows beside it.
    passed, reasons = select_rows(rows, replace(play, balance="none"), seed)
    if min_tokens or max_tokens:
        passed, by_length = _by_length(passed, _chat(model, rows), min_tokens, max_tokens)
        reasons += by_length
    passed, uneven = select_rows(passed, replace(play, filter=False), seed)
    for reason, count in (reasons + uneven).most_common():
        print(f"{count:>8}  dropped: {reason}")
    if not passed:
        raise ValueError(f"no row of {path} passes; nothing was written")
    write_rows(out, passed, layout, split=_split(path))
    print(f"{len(passed):>8}  of {len(rows)} rows written to {out}")


@data_app.command()
def convert(
    file: File,
    to: Annotated[str, typer.Option("--to", help="spa, spa-json, messages, prompt-completion or verl.")],
    out: Out,
    force: Force = False,
) -> None:
    """Write a data set in another layout or file format."""
    from spa.common.names import choose
    from spa.data.layouts import LAYOUTS, write_rows

    choose("layout", to, LAYOUTS)
    _check_out(out, force)
    rows, path, layout = _read(file)
    write_rows(out, rows, to, split=_split(path))
    print(f"{len(rows)} rows from {path} ({layout}) to {out} ({to})")


@data_app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(metavar="EPISODES", help="A file of episodes, or the folder of a stage: .../variants/spa/eval."),
    ],
    form: Annotated[str, typer.Option("--format", help="inspect (its viewer opens it) or verifiers (JSON lines).")],
    out: Annotated[Path, typer.Option("--out", help="The file to write: .json for inspect, .jsonl for verifiers.")],
    model: Annotated[
        str | None, typer.Option("--model", help="Whose answers they are. Default: as recorded.", show_default=False)
    ] = None,
    force: Force = False,
) -> None:
    """Write played episodes in the format of another tool."""
    from datetime import UTC, datetime

    from spa.common.names import choose
    from spa.data.eval_log import FORMATS, write_episode_log
    from spa.evaluate.samples import read_any
    from spa.runs.record import read_done

    choose("format", form, FORMATS)
    suffix = {"inspect": ".json", "verifiers": ".jsonl"}[form]
    if out.suffix != suffix:
        raise ValueError(f"{out} must end in {suffix}")
    if out.is_dir() or (out.exists() and not force):
        raise ValueError(f"{out} exists; add --force to overwrite it")
    episodes, path = read_any(source)
    done = read_done(path.parent) or {}
    named = model or Path(str(done.get("model", "model"))).name
    created = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    write_episode_log(out, episodes, form, model=f"spa/{named}", created=created)
    print(f"{len(episodes)} episodes from {path} to {out} ({form})")


@data_app.command("export-verl")
def export_verl(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    words: Words = None,
    variant: Annotated[str | None, typer.Option("--variant", help="With the settings of this variant.")] = None,
    train: Annotated[int, typer.Option("--train", min=1, help="Training worlds.")] = 4096,
    val: Annotated[int, typer.Option("--val", min=1, help="Validation worlds.")] = 128,
) -> None:
    """Write worlds as a data set for verl, with the config of an agent loop that plays them."""
    from spa.config.load import load_variant
    from spa.config.variants import played_config
    from spa.data.verl_tasks import export_tasks

    cfg = config_of(words, "spa data export-verl sokoban agent.window=0 --out data/verl")
    if variant:
        cfg = played_config(cfg, load_variant(variant))
    check_new_folder(out)
    rows = export_tasks(cfg, out, train, val)
    print(f"{rows['train']} training and {rows['val']} validation worlds, task.yaml and agent_loop.yaml in {out}")


def _read(file: Path) -> tuple[list[Row], Path, str]:
    """The rows of a file, or of a stage's training file, its path and layout; says what was skipped."""
    from spa.common.progress import note
    from spa.data.layouts import data_files, read_rows

    path = data_files(file)[0] if file.is_dir() else file
    rows, skipped, layout = read_rows(path)
    for reason, count in skipped.items():
        note(f"{count} rows of {path.name} skipped: {reason}")
    if not rows:
        raise ValueError(f"{path} has no row that can be used: {dict(skipped) or 'it is empty'}")
    return rows, path, layout


def _chat(model: str, rows: list[Row]) -> Chat:
    """The chat of a model; responses begin with ``<answer>`` if those of the rows do (``agent.think=false``)."""
    from spa.agent.chat import Chat
    from spa.agent.response import forced_tag
    from spa.models.load import load_tokenizer

    brief = all(row.response.startswith(forced_tag(False)) for row in rows)
    return Chat(load_tokenizer(model), forced=forced_tag(not brief))


def _by_length(rows: list[Row], chat: Chat, low: int, high: int) -> tuple[list[Row], Counter[str]]:
    """Rows of ``low`` to ``high`` tokens (0: no limit), and the others counted."""
    from spa.data.encode import encode_row

    passed: list[Row] = []
    reasons: Counter[str] = Counter()
    for row in rows:
        try:
            length = len(encode_row(row, chat).ids)
        except ValueError as error:
            reasons[str(error)] += 1
            continue
        if length < low:
            reasons[f"shorter than {low} tokens"] += 1
        elif high and length > high:
            reasons[f"longer than {high} tokens"] += 1
        else:
            passed.append(row)
    return passed, reasons


def _check_out(out: Path, force: bool) -> None:
    from spa.data.layouts import check_suffix

    check_suffix(out)
    if out.is_dir():
        raise ValueError(f"{out} is a folder; name a file")
    if out.exists() and not force:
        raise ValueError(f"{out} exists; add --force to overwrite it")


def _split(path: Path) -> str:
    """What verl's ``split`` says of a file's rows, by its name as stage 1 or the original gives it."""
    return "val" if path.stem.startswith(("val", "wm_val")) else "train"


def _title(number: int, row: Row) -> str:
    extra: dict[str, Any] = row.extra
    known = [f"{name} {extra[name]}" for name in ("seed", "member", "turn") if extra.get(name) is not None]
    return ", ".join([f"row {number}", *([row.task] if row.task else []), *known])
