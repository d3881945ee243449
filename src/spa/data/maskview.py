"""A picture of which tokens of a row are trained, for the terminal and as an HTML file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spa.agent.chat import Chat
from spa.data.encode import encode_row, mask_states
from spa.data.ground_truth import Row

CONTEXT, FORCED, UNTRAINED, TRAINED = "context", "forced", "untrained", "trained"
MEANINGS = {
    TRAINED: "trained",
    UNTRAINED: "response, not trained",
    FORCED: "forced tag, never trained",
    CONTEXT: "context",
}
# Everything that could move a cursor, hide or reorder text, and halves of characters; tab and newline stay.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


@dataclass(frozen=True)
class Piece:
    """One token: its place, id, text and kind (a key of ``MEANINGS``)."""

    index: int
    id: int
    text: str
    kind: str


def pieces(row: Row, chat: Chat, *, loss: str = "think_answer", train_end: bool = True) -> list[Piece]:
    """The tokens of a row as SFT sees them.

    Raises:
        ValueError: as ``encode_row``.
    """
    example = encode_row(row, chat, loss=loss, train_end=train_end)
    response = mask_states(row.response) if loss == "masked" else row.response
    encoded = chat.encode_response(response)
    start = len(example.ids) - len(encoded.ids) - 1
    trained = set(example.positions)

    def kind(index: int) -> str:
        if index in trained:
            return TRAINED
        if index < start:
            return CONTEXT
        return FORCED if index < start + encoded.num_forced else UNTRAINED

    return [Piece(i, token, _text(chat, example.ids, i), kind(i)) for i, token in enumerate(example.ids)]


def _text(chat: Chat, ids: Sequence[int], index: int) -> str:
    """What a token adds to the text; a character cut between tokens is shown at its last one."""
    decode = chat.tokenizer.decode
    text = str(decode([ids[index]], skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if "\ufffd" not in text:
        return text
    low = max(0, index - 4)
    before = str(decode(list(ids[low:index]), skip_special_tokens=False)).rstrip("\ufffd")
    after = str(decode(list(ids[low : index + 1]), skip_special_tokens=False)).rstrip("\ufffd")
    return after[len(before) :] if after.startswith(before) else ""


def clean(text: str) -> str:
    """``text`` with control characters shown as ``�``: what a model wrote must not steer a terminal or hide in a page."""
    return _CONTROL.sub("\ufffd", text)


def plain(row: list[Piece]) -> str:
    """The row as text: trained tokens between ``[`` and ``]``, the forced tag between ``{`` and ``}``."""
    marks = {TRAINED: ("[", "]"), FORCED: ("{", "}")}
    out, open_kind = [], ""
    for piece in row:
        kind = piece.kind if piece.kind in marks else ""
        if kind != open_kind:
            out.append((marks[open_kind][1] if open_kind else "") + (marks[kind][0] if kind else ""))
            open_kind = kind
        out.append(clean(piece.text))
    return "".join(out) + (marks[open_kind][1] if open_kind else "")


def rich_text(row: list[Piece]) -> Any:
    """The row as ``rich.text.Text``: trained tokens coloured, in two shades so that their borders show."""
    from rich.text import Text

    styles = {CONTEXT: ("dim", "dim"), FORCED: ("yellow", "yellow"), UNTRAINED: ("", "underline")}
    styles[TRAINED] = ("black on green", "black on bright_green")
    text = Text()
    for piece in row:
        text.append(clean(piece.text), style=styles[piece.kind][piece.index % 2])
    return text


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.3rem}h2{font-size:1rem;margin:1.6rem 0 .4rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:1rem;border-radius:6px;line-height:1.7}
span{border-radius:2px}.trained{background:#9be9a8}.trained:nth-child(odd){background:#6fd583}
.forced{background:#ffe08a}.untrained{background:#e3e6ea}.context{color:#57606a}
.legend span{padding:.1rem .5rem;margin-right:.6rem}
@media (prefers-color-scheme:dark){
body{background:#0d1117;color:#e6edf3}pre{background:#161b22}.context{color:#8b949e}
.trained{background:#1a7f37}.trained:nth-child(odd){background:#116329}
.forced{background:#7d5700}.untrained{background:#30363d}}
</style></head><body>
<h1>{{ title }}</h1>
<p class="legend">{% for kind, meaning in meanings.items() %}<span class="{{ kind }}">{{ meaning }}</span>{% endfor %}</p>
{% for name, row in rows %}<h2>{{ name }}</h2>
<pre>{% for piece in row -%}
<span class="{{ piece.kind }}" title="{{ piece.index }}: id {{ piece.id }}">{{ piece.text|clean }}</span>
{%- endfor %}</pre>
{% endfor %}</body></html>
"""


def html_page(title: str, rows: Sequence[tuple[str, list[Piece]]]) -> str:
    """One self-contained page with a picture of each (name, row); all text is escaped."""
    from jinja2 import Environment

    environment = Environment(autoescape=True)
    environment.filters["clean"] = clean
    return environment.from_string(_PAGE).render(title=title, rows=rows, meanings=MEANINGS)
