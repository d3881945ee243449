"""Values of other implementations, recorded: ``make_verl.py`` makes ``verl.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def cases(function: str) -> list[tuple[dict[str, Any], Any]]:
    """(arguments, result) of every recorded call of one of verl's functions."""
    data = json.loads(Path(__file__).with_name("verl.json").read_text(encoding="utf-8"))
    found = [(case["arguments"], case["result"]) for case in data["cases"] if case["function"] == function]
    assert found, function
    return found
