"""The files of training episodes: they are bounded, which are left depends on the step alone, and they keep an update's numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.agent.episode import Episode
from spa.rl.batch import train_sequences
from spa.rl.episode_files import some_of_each, write_step
from spa.rl.estimates import record_estimates
from tests.rl.test_batch import scripted
from tests.scripted import CHAT


def steps(out: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step_")) for path in (out / "episodes").iterdir())


def write(out: Path, first: int, last: int, most: int) -> list[int]:
    for step in range(first, last + 1):
        write_step(out, step, [Episode("T", step, 0)], most)
        assert not most or len(steps(out)) <= max(2, most)
    return steps(out)


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (0, list(range(1, 22))),
        (100, list(range(1, 22))),
        (1, [1, 21]),
        (2, [1, 21]),
        (5, [1, 9, 17, 21]),
        (9, [1, 5, 9, 13, 17, 21]),
    ],
)
def test_files_are_spread_evenly_from_the_first_step_to_the_newest(tmp_path: Path, most: int, left: list[int]) -> None:
    assert write(tmp_path, 1, 21, most) == left


def test_the_first_episodes_of_each_task_are_kept() -> None:
    episodes = [Episode("T", seed, 0) for seed in range(8)]
    assert [e.seed for e in some_of_each(episodes, [0] * 6 + [1] * 2, 4)] == [0, 1, 6, 7]
    assert [e.seed for e in some_of_each(episodes, [0] * 7 + [1], 4)] == [0, 1, 2, 7]
    assert [e.seed for e in some_of_each(episodes, [0] * 8, 3)] == [0, 1, 2]


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_files(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", 1, 60, 7)
    write(tmp_path / "resumed", 1, 38, 7)
    for step in range(31, 61):
        write_step(tmp_path / "resumed", step, [Episode("T", step, 0)], 7)
    assert steps(tmp_path / "resumed") == whole


@pytest.mark.parametrize("one_sequence", [True, False])
def test_advantages_and_values_are_kept_with_the_tokens_of_their_turn(one_sequence: bool) -> None:
    one = scripted("a", "b and more", one_sequence=one_sequence)
    rows = train_sequences([one], CHAT)
    for row in rows[0]:
        row.advantages[:], row.values[:] = row.turns, row.turns + 0.5
    record_estimates([one], rows, values=True)
    lengths = [sum((row.turns == turn).sum() for row in rows[0]) for turn in (0, 1)]
    assert 0 < lengths[0] < lengths[1]
    assert one.estimates == {
        "advantages": [[float(turn)] * lengths[turn] for turn in (0, 1)],
        "values": [[turn + 0.5] * lengths[turn] for turn in (0, 1)],
    }


def test_a_file_of_another_name_is_left_alone(tmp_path: Path) -> None:
    copy = tmp_path / "episodes" / "step_000001 (copy).jsonl"
    copy.parent.mkdir()
    copy.write_text("")
    for step in range(1, 5):
        write_step(tmp_path, step, [Episode("T", step, 0)], 2)
    assert copy.is_file()
