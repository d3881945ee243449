"""Encodes rows as token ids and loss masks, with the same segments as rollouts and PPO."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from spa.agent.chat import Chat
from spa.agent.response import Span, parse_response, replace_spans
from spa.common.names import choose
from spa.config.overrides import choices
from spa.config.schema import SFTConfig
from spa.data.ground_truth import Row, body_spans, without_overlaps
from spa.engines.base import Message

PLACEHOLDER = "[MASKED]"


@dataclass(frozen=True)
class Example:
    """Token ids and the positions (at least 1) whose tokens are trained; it contains ``rows`` rows of the data set."""

    ids: list[int]
    positions: list[int]
    rows: int = 1


def loss_spans(text: str, loss: str) -> list[Span]:
    """Character ranges of a response that the loss covers.

    ``think_answer``: the think and the answer span, tags included (paper, Eq. 1-2). ``state``: the bodies of
    observation and prediction. ``masked``: as ``think_answer`` without the placeholders.

    Raises:
        ValueError: another ``loss``.
    """
    choose("loss", loss, choices(SFTConfig, "loss"))
    if loss == "state":
        return [*body_spans(text, "observation", None), *body_spans(text, "prediction", None)]
    spans = parse_response(text).spans
    chosen = [spans[name] for name in ("think", "answer") if name in spans]
    if loss == "think_answer":
        return chosen
    return [piece for span in chosen for piece in _without(text, span)]


def _without(text: str, span: Span) -> Iterable[Span]:
    """``span`` without its placeholders."""
    start, end = span
    while (place := text.find(PLACEHOLDER, start, end)) >= 0:
        yield start, place
        start = place + len(PLACEHOLDER)
    yield start, end


def mask_states(text: str) -> str:
    """The paper's ablation (Fig. 4): every state written by the model becomes one placeholder."""
    spans = body_spans(text, "observation", None) + body_spans(text, "prediction", None)
    return replace_spans(text, without_overlaps((span, PLACEHOLDER) for span in spans))


def encode_row(row: Row, chat: Chat, *, loss: str = "think_answer", train_end: bool = True) -> Example:
    """Ids of prompt and response, and the trained positions.

    A token is trained if it overlaps a span of ``loss_spans`` and does not belong to the forced first tag; with
    ``train_end`` the end-of-turn token is trained as well (unless the loss is on states only).

    Raises:
        ValueError: roles that do not alternate (user and assistant after an optional system message).
    """
    prompt, response = row.prompt, row.response
    if loss == "masked":
        prompt = [{**m, "content": mask_states(m["content"])} if m["role"] == "assistant" else m for m in prompt]
        response = mask_states(response)
    ids = prompt_ids(prompt, chat)
    encoded = chat.encode_response(response)
    spans = sorted(loss_spans(response, loss))
    starts = [start for start, _ in spans]
    reach = list(accumulate((end for _, end in spans), max))
    positions = []
    for i, (low, high) in enumerate(encoded.offsets):
        before = bisect_left(starts, high)  # number of spans that begin before the token ends
        if i >= encoded.num_forced and before and low < reach[before - 1]:
            positions.append(len(ids) + i)
    ids = [*ids, *encoded.ids, chat.closing_ids[0]]
    if train_end and loss != "state" and positions:
        positions.append(len(ids) - 1)
    return Example(ids, positions)


def prompt_ids(prompt: Sequence[Message], chat: Chat) -> list[int]:
    """Ids of a prompt that ends with a user message, up to and including the generation prompt."""
    system = prompt[0]["content"] if prompt and prompt[0]["role"] == "system" else None
    turns = prompt[1:] if system is not None else prompt
    wanted = ["user", "assistant"] * (len(turns) // 2) + ["user"]
    if [message["role"] for message in turns] != wanted:
        raise ValueError("roles do not alternate")
    ids = chat.opening(system, turns[0]["content"])
    for answer, user in zip(turns[1::2], turns[2::2], strict=True):
        ids += chat.encode_response(answer["content"]).ids
        ids += chat.closing_ids
        ids += chat.following(user["content"])
    return ids


def encode_rows(
    rows: Sequence[Row],
    chat: Chat,
    config: SFTConfig,
    skipped: Counter[str] | None = None,
    context: int | None = None,
    *,
    required: bool = True,
) -> tuple[list[Example], Counter[str]]:
    """Examples of all trainable rows, merged with ``config.merge_turns``, and counts of skipped rows by reason.

    A row longer than ``config.max_length`` or ``context`` is skipped, not truncated, since truncation would remove trained tokens.

    Args:
        context: tokens that the model can attend to, if known.
        required: False accepts that none is left.

    Raises:
        ValueError: nothing is left to train on (the message has the counts).
    """
    skipped = Counter(skipped or {})
    limit, too_long = config.max_length, f"longer than sft.max_length={config.max_length}"
    if context is not None and context < limit:
        limit, too_long = context, f"longer than the model's context of {context} tokens"
    examples = []
    for row in rows:
        try:
            example = encode_row(row, chat, loss=config.loss, train_end=config.train_end)
        except ValueError as error:
            if "roles" not in str(error):
                raise
            skipped[str(error)] += 1
            continue
        if len(example.ids) > limit:
            skipped[too_long] += 1
        elif not example.positions:
            needed = "state" if config.loss == "state" else "think or answer span"
            skipped[f"no token to train (no {needed})"] += 1
        else:
            examples.append(example)
    if not examples and required:
        reasons = "; ".join(f"{reason}: {count}" for reason, count in skipped.items()) or "the data set is empty"
        raise ValueError(f"no row to train on with sft.loss={config.loss}: {reasons}")
    return merge_turns(examples) if config.merge_turns else examples, skipped


def merge_turns(examples: Sequence[Example]) -> list[Example]:
    """Merges every example whose ids are a prefix of another's into the longer one, with the trained positions of both.

    If prompts contain the full history, the earlier turns of an episode are such prefixes. Each trained token keeps its
    context, so the summed loss is unchanged with about a third of the tokens. This is the paper's trajectory loss
    (Eq. 1-2). Rows that train the same position of the same ids are not merged. Order: that of the longest examples.
    """
    order = sorted(range(len(examples)), key=lambda i: examples[i].ids)
    merged: dict[int, Example] = {}
    current: int | None = None
    # In this order extensions of a prefix directly follow it: going backwards, `current` is the longest of its chain.
    for index in reversed(order):
        example = examples[index]
        longest = merged[current] if current is not None else None
        if (
            longest is not None
            and longest.ids[: len(example.ids)] == example.ids
            and not set(example.positions) & set(longest.positions)
        ):
            assert current is not None
            positions = sorted([*example.positions, *longest.positions])
            merged[current] = Example(longest.ids, positions, longest.rows + example.rows)
        else:
            merged[index] = example
            current = index
    return [merged[index] for index in sorted(merged)]


def check_rows(
    rows: Sequence[Row], chat: Chat, config: SFTConfig, skipped: Counter[str], context: int | None = None
) -> None:
    """Raises as ``encode_rows`` if the data set has no trainable row; stops at the first trainable one."""
    for row in rows:
        try:
            encode_rows([row], chat, config, context=context)
            return
        except ValueError:
            continue
    encode_rows(rows, chat, config, skipped, context)
