"""A Gymnasium space of texts with arbitrary characters."""

from __future__ import annotations

import string
from typing import Any

from gymnasium.spaces import Text


class AnyText(Text):
    """Text in any script, up to a length. Samples are of printable ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and self.min_length <= len(x) <= self.max_length
