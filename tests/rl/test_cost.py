"""The estimate of time: rounded honestly, and left out where it would not be sound."""

from __future__ import annotations

import pytest

from spa.config.load import load_config, load_variant
from spa.rl.cost import about, time_estimates


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1, "1 min"),
        (200, "3 min"),
        (7600, "2 h"),
        (40 * 3600, "40 h"),
        (5 * 86400, "5 days"),
        (123456789, "1400 days"),
    ],
)
def test_one_or_two_digits(seconds: float, text: str) -> None:
    assert about(seconds) == text


@pytest.mark.parametrize("settings", [[], ["model=org/not-downloaded-1b"]])
def test_no_time_for_tiny_and_unknown_models(settings: list[str]) -> None:
    assert time_estimates(load_config("sokoban", settings), {"generate", "ppo"}, [load_variant("spa")]) == []
