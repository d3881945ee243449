"""Constrained decoding: the tokens that a grammar allows next (``selfplay.constrained``), with the package llguidance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spa.envs.check_texts import TAG


def check_installed() -> None:
    """Raises ValueError if llguidance is missing; the message says what to install."""
    if "llguidance" not in sys.modules and find_spec("llguidance") is None:
        raise ValueError(
            "selfplay.constrained needs another package: pip install 'spa-agent[constrained]', or set it to false"
        )


Encode = Callable[[str], list[int]]


class Constraint:
    """Keeps responses to a grammar.

    An engine samples from the allowed tokens alone. The log-probs that it records stay those of the unconstrained model.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        encode: its ids of a text that follows other text (``Chat.encode``).
        size: V, the width of the model's logits.
        grammar: of a whole response, in llguidance's dialect of Lark.
        forced: ids that every response begins with and that are not sampled.
        stop_ids: tokens that may follow a complete response, and only there.

    Raises:
        ValueError: llguidance is missing, or does not understand the tokenizer or the grammar.
    """

    def __init__(
        self,
        tokenizer: Any,
        encode: Encode,
        size: int,
        grammar: str,
        *,
        forced: Sequence[int],
        stop_ids: Collection[int],
    ) -> None:
        check_installed()
        import llguidance

        vocabulary: Any = _Vocabulary(tokenizer, encode, sorted(stop_ids))
        # A look-up instead of a search for tokens without "<", as in free text, takes half the time.
        known = llguidance.LLTokenizer(vocabulary, n_vocab=size, eos_token=sorted(stop_ids), slices=["[^<]+"])
        self.stop_ids, self.size = frozenset(stop_ids), size
        self._start = llguidance.LLMatcher(known, grammar, log_level=0)
        self._start.consume_tokens(list(forced))
        _check(self._start)
        self._matchers: dict[int, tuple[Any, int]] = {}

    def allowed(self, rows: Iterable[tuple[int, Sequence[int]]]) -> Tensor:
        """Which tokens may come next.

        Args:
            rows: numbers of sessions and the ids sampled in their present turn so far. A session's calls hold the same ids and
                more, or none at the beginning of a turn.

        Returns:
            (rows, V) bool, at least one token of each row allowed.
        """
        masks = []
        for session, ids in rows:
            matcher, seen = self._matchers[session] if ids else (self._start.deep_copy(), 0)
            new = [token for token in ids[seen:] if token not in self.stop_ids]
            matcher.consume_tokens(new)
            masks.append(matcher.compute_bitmask())
            _check(matcher)
            self._matchers[session] = matcher, len(ids)
        bits = np.frombuffer(b"".join(masks), dtype=np.uint8).reshape(len(masks), -1)
        known = np.unpackbits(bits, axis=1, bitorder="little")[:, : self.size].astype(bool)
        # Many embeddings have rows beyond the tokenizer's ids, and the masks none.
        return torch.from_numpy(np.pad(known, ((0, 0), (0, self.size - known.shape[1]))))


class _Vocabulary:
    """A tokenizer as llguidance reads it. Its own reading takes added tokens such as ``<think>`` for control tokens, which no
    text contains."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Any, encode: Encode, stop_ids: Sequence[int]) -> None:
        from llguidance.hf import from_tokenizer

        try:
            native = from_tokenizer(tokenizer, slices=[])
        except (ValueError, AttributeError) as error:
            raise ValueError(f"llguidance cannot read this tokenizer: {error}") from error
        self.eos_token_id = stop_ids[0]
        self.tokens = [native.decode_bytes([index]) for index in range(len(tokenizer))]
        added = tokenizer.added_tokens_decoder.items()
        special = {index for index, token in added if token.special and not TAG.search(token.content)}
        self.special_token_ids = sorted(special.union(stop_ids))
        self._encode = encode

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        return self._encode(text)


def _check(matcher: Any) -> None:
    if matcher.is_error():
        raise ValueError(f"constrained decoding failed: {matcher.get_error().strip().splitlines()[0]}")
