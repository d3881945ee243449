"""Killed at random times and between any two changes of the file system, a run loses nothing and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.commands import SMALL, SPLIT, STAGES
from tests.faults.kills import SEED, Victim

KILLS = {"generate": 14, "generate, 2 processes": 14, "sft": 22, "ppo": 18, "ppo, 2 processes": 8}
KILLS |= {"eval": 14, "eval, 2 processes": 10}

pytestmark = [pytest.mark.faults, pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")]


@pytest.mark.parametrize("what", KILLS)
def test_killed_runs_come_out_the_same(
    before: dict[str, Path], tmp_path: Path, figure: Callable[[str], None], what: str
) -> None:
    stage, _, split = what.partition(",")
    settings = [*STAGES[stage], *SMALL, *(SPLIT if split else [])]
    victim = Victim(settings, before.get(stage), tmp_path)
    tally = victim.kill(KILLS[what], 4, SEED)
    figure(tally.line(what))
    assert tally.wrong() == []
