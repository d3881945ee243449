"""Shows which tokens of a row are trained, in a terminal or as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spa.agent.chat import Chat
from spa.common.text import clean
from spa.data.encode import encode_row, mask_states
from spa.data.ground_truth import Row

CONTEXT, FORCED, UNTRAINED, TRAINED = "context", "forced", "untrained", "trained"
MEANINGS = {
    TRAINED: "trained",
    UNTRAINED: "response, not trained",
    FORCED: "forced tag, never trained",
    CONTEXT: "context",
}


@dataclass(frozen=True)
class Piece:
    """One token: its position, id, text and kind (a key of ``MEANINGS``)."""

    index: int
    id: int
    text: str
    kind: str


def pieces(row: Row, chat: Chat, *, loss: str = "think_answer") -> list[Piece]:
    """The tokens of a row as SFT sees them with ``sft.train_end``.

    Raises:
        ValueError: as ``encode_row``.
    """
    example = encode_row(row, chat, loss=loss, train_end=True)
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
    """The text added by a token; a character split between tokens is shown at its last one. Alone, a token may lose its space."""

    def text(start: int, end: int) -> str:
        shown = list(ids[start:end])
        return str(chat.tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)).strip(
            "\ufffd"  # halves of characters, at both ends
        )

    low = max(0, index - 4)
    before, after = text(low, index), text(low, index + 1)
    return after[len(before) :] if after.startswith(before) else ""


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
    """The row as ``rich.text.Text``: trained tokens coloured, in two alternating shades that show token boundaries."""
    from rich.text import Text

    styles = {CONTEXT: ("dim", "dim"), FORCED: ("yellow", "yellow"), UNTRAINED: ("", "underline")}
    styles[TRAINED] = ("black on green", "black on bright_green")
    text = Text()
    for piece in row:
        text.append(clean(piece.text), style=styles[piece.kind][piece.index % 2])
    return text
