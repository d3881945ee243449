"""Text of models and worlds on its way to a terminal."""

from __future__ import annotations

import re

# Characters that move the cursor, hide or reorder text, and lone surrogates; not tab and newline.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """``text`` with control characters shown as ``�``, since neither a model nor a world may control a terminal."""
    return _CONTROL.sub("\ufffd", text)
