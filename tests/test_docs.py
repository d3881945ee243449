"""What pages say of the code is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAY = [
    "engines/transformers.py",
    "agent/rollout.py",
    "agent/episode.py",
    "rl/batch.py",
    "models/score.py",
    "rl/advantages.py",
    "rl/update.py",
    "rl/losses.py",
]


def test_the_way_of_one_token_names_what_is_there() -> None:
    page = (ROOT / "docs" / "one-token.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d \| `([\w/]+\.py)`: ([^|]+) \|", page, re.MULTILINE)
    assert [path for path, _ in rows] == WAY
    for path, names in rows:
        source = (ROOT / "src" / "spa" / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"^ *(?:def|class) {part}\b", source, re.MULTILINE), f"{path} has no {name}"


def test_the_way_of_one_token_is_short() -> None:
    lines = sum(len((ROOT / "src" / "spa" / path).read_text(encoding="utf-8").splitlines()) for path in WAY)
    assert lines <= 1800, f"the life of one token has {lines} lines: move out what does not belong to it"
