"""Stop conditions of a response: a stop token, or a stop string in its text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Stops:
    """``stop_ids`` end a response, and so does each of ``strings`` once complete.

    Text is decoded only if the last token could end a string.

    Raises:
        ValueError: strings without a tokenizer.
    """

    def __init__(self, stop_ids: frozenset[int], strings: Sequence[str] = (), tokenizer: Any = None) -> None:
        self.ids = stop_ids
        self.strings = tuple(strings)
        self.tokenizer = tokenizer
        self._ends: frozenset[int] | None = frozenset()
        if not self.strings:
            return
        if tokenizer is None:
            raise ValueError("sampling.stop needs an engine with a tokenizer")
        self._window = max(len(string.encode()) for string in self.strings) + 8  # a token holds a byte or more
        ends = {string[-1] for string in self.strings}
        # Byte-level tokenizers keep ASCII as is; other characters may be split between tokens.
        if all(" " < end < "\x7f" for end in ends):
            vocabulary: dict[str, int] = tokenizer.get_vocab()
            self._ends = frozenset(index for token, index in vocabulary.items() if any(end in token for end in ends))
        else:
            self._ends = None

    def reached(self, ids: Sequence[int]) -> bool:
        """Whether a response ends at the last of ``ids``, given that it did not end earlier."""
        if ids[-1] in self.ids:
            return True
        if not self.strings or (self._ends is not None and ids[-1] not in self._ends):
            return False
        text = self.tokenizer.decode(ids[-self._window :], clean_up_tokenization_spaces=False)
        return any(string in text for string in self.strings)
