"""Pass@k, intervals, world-model accuracy, summaries."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, TokenSequence, Turn
from spa.agent.play import Play
from spa.agent.policy import make_task
from spa.agent.worlds import World, content_of
from spa.config.load import load_config
from spa.envs.states import cell_accuracy, grid_part
from spa.evaluate.bootstrap import bootstrap_mean
from spa.evaluate.passk import pass_at_k
from spa.evaluate.replay import replay
from spa.evaluate.summary import (
    EvalResult,
    comparison_table,
    group_worlds,
    paired_difference,
    play_metrics,
    render_text,
    summarize,
)
from spa.evaluate.world_model import world_model_metrics
from spa.rl.rewards import state_match


@settings(max_examples=60)
@given(st.integers(1, 8), st.data())
def test_pass_at_k_equals_the_average_over_all_subsets(n: int, data) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [1] * c + [0] * (n - c)
    subsets = list(combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(np.array([c]), np.array([n]), k)[0] == pytest.approx(expected)


def test_pass_at_k_is_stable_for_many_samples() -> None:
    assert pass_at_k(np.array([1]), np.array([10_000]), 5_000)[0] == pytest.approx(0.5)


@pytest.mark.parametrize("k", [0, 5])
def test_impossible_k_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=r"Pass@|k must"):
        pass_at_k(np.array([1]), np.array([4]), k)


def test_intervals() -> None:
    values = np.array([0.0, 1.0] * 200)
    first = bootstrap_mean(values, 10_000, 3)
    assert first == bootstrap_mean(values, 10_000, 3)
    assert first.mean == 0.5
    assert (first.low, first.high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.004)
    same = bootstrap_mean(np.full(7, 0.25), 100, 0)
    assert (same.low, same.mean, same.high) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [[1.0], [2.0]]])
def test_what_has_no_interval_is_named(values: list[object]) -> None:
    with pytest.raises(ValueError, match="finite values"):
        bootstrap_mean(np.array(values), 100, 0)
    with pytest.raises(ValueError, match="num_resamples=0"):
        bootstrap_mean(np.ones(2), 0, 0)


def test_a_paired_difference_is_narrower_than_two_intervals() -> None:
    wins = [group % 4 for group in range(100)]
    better = [won + group // 50 for group, won in enumerate(wins)]
    base, other = (EvalResult.from_episodes("a", grouped(each), [1], 500) for each in (wins, better))
    paired = paired_difference(other, base, 1)
    assert paired is not None
    assert paired.mean == pytest.approx(0.125)
    assert 0.08 < paired.low < 0.11 < 0.14 < paired.high < 0.17  # 0.125 +- 1.96 * 0.0125; each alone has +- 0.055


def turn(observation=None, prediction=None, state="#P\n_#", after="#_\nP#", executed=("Down",), **kwargs) -> Turn:
    return Turn(
        0,
        state,
        "u",
        "r",
        after,
        True,
        observation,
        prediction,
        list(executed),
        list(executed),
        info={"valid": True},
        **kwargs,
    )


def episode(*turns: Turn, group=0, success=False, status="completed", seed=None, member=0) -> Episode:
    seed = group if seed is None else seed
    return Episode("T", seed, group, member, content=f"c{group}", turns=list(turns), success=success, status=status)


@pytest.mark.parametrize("moves", ["9,9,9 || 8,8,8 || 1,3,1", "1,3,1 || 8,8,8 || 9,9,9"])
def test_each_action_that_the_world_calls_invalid_counts(moves: str) -> None:
    task = make_task(load_config("sudoku", ["env.max_turns=1"]))
    play = Play.start(task, World(1, content_of(*task.make_env().reset(seed=1))), 0, 0)
    play.open_turn(0, "")
    play.answer(f"<think></think><answer>{moves}</answer>", "stop")
    (one,) = play.episode.turns
    assert len(one.executed) == 3
    assert summarize([play.episode])["valid_actions"] == pytest.approx(1 / 3)
    assert replay(task, play.episode) == ""
    one.invalid = 0
    assert "invalid: 2 in the world, 0 recorded" in replay(task, play.episode)


def test_a_success_that_the_world_did_not_see_is_found() -> None:
    task = make_task(load_config("sudoku", ["env.max_turns=1"]))
    play = Play.start(task, World(1, content_of(*task.make_env().reset(seed=1))), 0, 0)
    play.open_turn(0, "")
    play.answer("<think></think><answer>9,9,9</answer>", "stop")
    assert replay(task, play.episode) == ""
    play.episode.success = True
    assert replay(task, play.episode) == "success: False in the world, True recorded"


def test_world_model_metrics_by_hand() -> None:
    found = world_model_metrics(
        [episode(turn(" #P\n_# ", "#_\nP#"), turn("#P\n__", "#P\n_#"), turn()), episode(turn("x", "x"), status="error")]
    )
    assert found["world_model/observation_em"] == 0.5
    assert found["world_model/prediction_em"] == 0.5
    assert found["world_model/observation_cell_acc"] == pytest.approx((1 + 0.75) / 2)
    assert found["world_model/prediction_cell_acc"] == pytest.approx((1 + 0.5) / 2)
    assert found["world_model/coverage"] == pytest.approx(2 / 3)
    assert found["world_model/changed"] == 1.0
    assert found["world_model/prediction_em_changed"] == 0.5


@pytest.mark.parametrize(("now", "then"), [("P", " P"), (" P", "P")])
def test_copying_scores_0_where_blanks_tell_a_position(now: str, then: str) -> None:
    moved = Turn(0, now, "", "", then, observation=now, prediction=now)
    found = world_model_metrics([episode(moved)])
    assert found["world_model/observation_em"] == found["world_model/changed"] == 1.0
    assert found["world_model/prediction_em_changed"] == 0.0
    assert state_match(now, then, now, "exact") == 0.0


def test_no_written_states_no_accuracy() -> None:
    found = world_model_metrics([episode(turn())])
    assert "world_model/prediction_em" not in found
    assert found["world_model/coverage"] == 0
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("state", "grid"),
    [
        ("#P\n_#\nPlayer (P) is at (0,1); box (X) is at (1,0).", "#P\n_#"),
        ("| 1 . | 2 3 \nEmpty positions to be filled are at (1,2).", "| 1 . | 2 3 "),
        ("| 1 4 | 2 3 \nNo empty positions found (board might be complete).", "| 1 4 | 2 3 "),
        ("#P\n_#", "#P\n_#"),
    ],
)
def test_the_grid_part(state: str, grid: str) -> None:
    assert grid_part(state).strip() == grid.strip()


def test_wrong_shapes_count_missing_cells_as_wrong() -> None:
    assert cell_accuracy("#P", "#P\n_#") == 0.5
    assert cell_accuracy("", "#P\n_#") == 0
    assert cell_accuracy("#P\n_#", "#P\n_#") == 1


def test_of_the_cells_that_changed_a_copy_has_none_right() -> None:
    before, after = "#P\n__", "#_\nP_"
    assert cell_accuracy(before, after, before) == 0.0
    assert cell_accuracy("#_\n__", after, before) == 0.5
    assert cell_accuracy(after, after, before) == 1.0
    assert cell_accuracy(after, before, before) is None, "nothing changed"


def grouped(wins: list[int], samples: int = 4, name: str = "a") -> list[Episode]:
    return [episode(turn(), group=g, success=i < n, member=i) for g, n in enumerate(wins) for i in range(samples)]


def test_summary_by_hand() -> None:
    found = summarize(grouped([4, 1, 0]), [1, 2, 4, 8], 200)
    assert found["pass@1"] == found["success"] == pytest.approx(5 / 12)
    assert found["pass@2"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert found["pass@4"] == pytest.approx(2 / 3)
    assert "pass@8" not in found
    assert found["pass@1_low"] <= found["pass@1"] <= found["pass@1_high"]
    assert found["format_rate"] == 1


def test_how_episodes_were_played_by_hand() -> None:
    """Two episodes without an error, three turns, five sampled tokens."""
    one = episode(turn(executed=("Up", "Up"), reward=1.0), turn(executed=("Up",), penalty=-0.5))
    one.sequences = [TokenSequence([1] * 6, [0, 1, 1, 1, 1, 1], [0.0] * 6, [-1, 0, 0, 0, 1, 1])]
    found = play_metrics([one, episode(turn(executed=("Up",), reward=2.0)), episode(turn(), status="error")])
    shown = [found[name] for name in ("num_turns", "num_actions", "reward", "penalty", "response_tokens")]
    assert shown == pytest.approx([3 / 2, 4 / 2, 3 / 2, -0.5 / 2, 5 / 3])


def test_failed_episodes_are_failures_and_are_counted() -> None:
    episodes = [episode(turn(), success=True), episode(turn(), success=True, status="error", member=1)]
    found = summarize(episodes, [1, 2], 50)
    assert (found["pass@1"], found["errors"]) == (0.5, 1)


def test_a_group_of_several_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="several seeds"):
        group_worlds([episode(seed=1), episode(seed=2)])


def test_results_survive_their_file_and_garbage_does_not(tmp_path) -> None:
    result = EvalResult.from_episodes("a", grouped([4, 1]), [1, 4, 8], 50)
    result.write(tmp_path / "r.json")
    assert EvalResult.read(tmp_path / "r.json") == result
    assert result.skipped_ks == [8]
    for garbage in ["", "{", "[]", '{"name": 3}', '{"name": "a", "task": "t", "worlds": [{"x": 1}]}']:
        (tmp_path / "bad.json").write_text(garbage)
        with pytest.raises(ValueError, match=r"bad\.json"):
            EvalResult.read(tmp_path / "bad.json")


def test_the_table() -> None:
    results = {
        name: EvalResult.from_episodes(name, grouped(wins), [1, 4], 200)
        for name, wins in {"vanilla": [1] * 32, "spa": [3] * 32}.items()
    }
    difference = paired_difference(results["spa"], results["vanilla"], 1)
    assert difference is not None
    assert (difference.low, difference.mean, difference.high) == pytest.approx((0.337, 0.5, 0.554), abs=1e-3)
    text = render_text(comparison_table(results))
    table = text.splitlines()[text.splitlines().index("") + 1 :]
    vanilla, spa = table[2:4]
    assert text.startswith("spa 75.0 was not compared with its base and is above plain RL 25.0; one seed: no claim.")
    assert vanilla.split()[:4] == ["vanilla", "25.0", "[22.3,", "33.2]"]
    assert re.search(r" \+50\.0 \[\+33\.7, \+55\.4\] +\+0\.0 \[", spa), "of Pass@1 and of Pass@4"
    assert render_text([]) == "nothing was evaluated"
    results["base"] = EvalResult.from_episodes("base", grouped([4] * 32), [1, 4], 200)
    text = render_text(comparison_table(results))
    assert "spa 75.0 is below base 100.0: -25.0 [-33.2, -11.4]." in text
    assert "Pass@1 - base" in text
    assert "tokens" not in text, "unknown in all rows"
    results["vanilla"].metrics |= {"response_tokens": 5.5, "num_turns": 4}
    results["spa+lookahead"] = EvalResult.from_episodes("spa+lookahead", grouped([4] * 32), [1, 4], 200)
    results["spa+lookahead"].metrics["planner/tokens_written"] = 1234.4
    text = render_text(comparison_table(results))
    cells = {
        line.split()[0]: line.split()[-3]
        for line in text.splitlines()
        if line.split() and line.split()[-1] in ("32", "128")
    }
    assert cells == {"vanilla": "22", "spa": "-", "base": "-", "spa+lookahead": "1,234"}


def test_worlds_are_paired_by_their_seeds_in_whatever_order() -> None:
    a, b = (EvalResult.from_episodes(name, grouped([group % 4 for group in range(20)]), [1], 50) for name in "ab")
    b.worlds.reverse()
    difference = paired_difference(a, b, 1)
    assert difference == paired_difference(a, a, 1) and difference is not None and difference.mean == 0


def test_other_worlds_give_no_paired_difference() -> None:
    a = EvalResult.from_episodes("a", grouped([1, 2]), [1], 50)
    b = EvalResult.from_episodes("b", grouped([1, 2, 3]), [1], 50)
    assert paired_difference(a, b, 1) is None


def test_worlds_of_the_same_seeds_with_another_content_give_no_paired_difference() -> None:
    a, b = (EvalResult.from_episodes(name, grouped([1, 2]), [1], 50) for name in "ab")
    assert paired_difference(a, b, 1) is not None
    b.worlds[1] = replace(b.worlds[1], content="another lake")
    assert paired_difference(a, b, 1) is None
