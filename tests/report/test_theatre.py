"""The theatre without a browser: boards, which episodes are embedded, and data that cannot leave their element."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest
from tests.report.pages import HOSTILE, made_up

from spa.agent.episode import Turn
from spa.report.boards import Alphabet, alphabet, board
from spa.report.data import ReportData
from spa.report.html import render_report
from spa.report.predictions import expected
from spa.report.theatre import BUDGET, choose_scenes, imagined

LAKE = alphabet("frozen_lake", {})


def embedded(page: str) -> dict[str, Any]:
    text = page.split('id="theatre-data">')[1].split("</script>")[0]
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(made_up())


def test_a_board_is_drawn_by_the_worlds_own_alphabet() -> None:
    drawn = board("P_\n_O\nPlayer (P) is at (0,0)", LAKE)
    assert drawn is not None
    assert re.findall(r'href="#([\w-]+)" x="(\d+)" y="(\d+)"', drawn) == [
        ("tile-player", "0", "0"),
        ("tile-hole", "10", "10"),
    ]
    assert 'aria-label="P_ / _O"' in drawn and 'class="wrong"' not in drawn
    other = alphabet("frozen_lake", {"grid_vocab": "@.*$!+"})
    assert "#tile-player" in str(board("@.\n.*", other)) and "#tile-hole" in str(board("@.\n.*", other))
    assert alphabet("sokoban", {}).tiles["√"] == "tile-box-on-target"


def test_every_tile_is_in_the_page(page: str) -> None:
    tiles = {tile for world in ("frozen_lake", "sokoban") for tile in alphabet(world, {}).tiles.values() if tile}
    assert tiles <= set(re.findall(r'<g id="(tile-[\w-]+)"', page))


def test_wrong_cells_are_marked_and_counted() -> None:
    drawn = board("_P\n_O", LAKE, "P_\n_O")
    assert drawn is not None and drawn.count('class="wrong"') == 2
    assert "2 wrong cells" in drawn


def test_a_sudoku_is_drawn_with_its_digits() -> None:
    drawn = board("| 1 2 3 4 | 3 4 . 2 | . 1 4 3 | 4 3 2 1 ", alphabet("sudoku", {}))
    assert drawn is not None
    assert drawn.count("<text") == 14 and "url(#grid-2)" in drawn


@pytest.mark.parametrize("state", ["", "P_", "P_\n_", "Buy now\nor never", "hello\nworld", "ab\ncd"])
def test_other_text_is_not_drawn(state: str) -> None:
    assert board(state, LAKE) is None
    assert board("P_\n_O", LAKE, state) is None
    assert board("P_\n_O", Alphabet()) is None


def test_a_cell_that_a_model_made_up_is_escaped() -> None:
    drawn = str(board('P<\n_"', LAKE, "P_\n__"))
    assert ">&lt;</text>" in drawn and 'aria-label="P&lt; / _&#34;; 2 wrong cells"' in drawn


def test_the_data_are_whole_and_cannot_leave_their_element() -> None:
    page = render_report(made_up(text=HOSTILE))
    data = embedded(page)
    assert data["episodes"][0]["turns"][0]["response"].endswith(HOSTILE)
    block = page.split('id="theatre-data">')[1].split("</script>")[0]
    assert not set("<>&") & set(block)
    assert page.count("<script") == 2 and "<img" not in page


def test_all_variants_show_the_same_worlds_with_their_own_ids(page: str) -> None:
    episodes = embedded(page)["episodes"]
    assert len({episode["id"] for episode in episodes}) == len(episodes)
    seeds = {}
    for episode in episodes:
        if episode["split"] == "test, with predictions":
            seeds.setdefault(episode["variant"], set()).add(episode["seed"])
    assert list(seeds) == ["spa", "base", "vanilla"]
    assert len(set(map(frozenset, seeds.values()))) == 1
    played = {name: {e["seed"] for e in episodes if e["variant"] == name and e["split"] == "test"} for name in seeds}
    played["planned"] = {e["seed"] for e in episodes if e["variant"] == "spa+lookahead"}
    assert len(set(map(frozenset, played.values()))) == 1
    for episode in episodes:  # the permalink works without the script too
        assert f'<details class="episode" id="{episode["id"]}">' in page


def test_a_variant_that_predicts_for_its_score_too_is_compared_with_the_others() -> None:
    variants = made_up().variants
    for episode in variants["spa"].episodes:
        episode.prompt = "world_model"
    scenes = choose_scenes(variants, 6)
    assert len({scene.id for scene in scenes}) == len(scenes)
    seeds = {name: {s.episode.seed for s in scenes if s.variant == name and s.split == "test"} for name in variants}
    assert seeds["base"] == seeds["vanilla"] == seeds["spa"] and len(seeds["spa"]) == 3


def test_as_many_episodes_as_asked_for_are_chosen() -> None:
    variants = made_up().variants
    variants["spa"].episodes = variants["spa"].episodes[:3]  # whose worlds come first
    for limit in (0, 3, 5, 1000):
        chosen = [scene.variant for scene in choose_scenes(variants, limit) if scene.split != "training"]
        assert {name: chosen.count(name) for name in variants} == {
            name: min(limit, len(report.episodes)) for name, report in variants.items()
        }


def test_a_prediction_is_right_where_the_metrics_say_so() -> None:
    data = made_up()
    for episode in data.variants["spa"].episodes:
        for turn in episode.turns:
            turn.state = turn.next_state = "  P.\n...."
            if turn.prediction is not None:
                turn.prediction = "\n  P.\n....\n" if turn.index % 2 else "P.\n...."
    turns = [turn for e in embedded(render_report(data))["episodes"] if e["variant"] == "spa" for turn in e["turns"]]
    told = [(turn["prediction"], turn.get("right", False)) for turn in turns if "prediction" in turn]
    assert set(told) == {("  P.\n....", True), ("P.\n....", False)}


def test_training_episodes_have_their_step_and_planned_turns_what_was_imagined(page: str) -> None:
    episodes = embedded(page)["episodes"]
    assert {e["step"] for e in episodes if e["split"] == "training"} == {1, 10, 20}
    planned = [e for e in episodes if e["variant"] == "spa+lookahead"]
    assert all(turn["imagined"]["plan"] for e in planned for turn in e["turns"])


def step(action: str, state: str, **more: object) -> dict[str, object]:
    return {"action": action, "state": state, "reward": 0.0, "ended": False, "probability": 0.9, **more}


def test_what_a_planner_remembered_is_no_prediction() -> None:
    turn = Turn(0, "P_", "", "", "_P", executed=["Right"])
    turn.imagined = {"path": [step("Right", "_P")]}
    assert expected(turn) == "_P"
    turn.imagined = {"path": [step("Right", "_P", remembered=True)]}
    assert expected(turn) is None


def test_a_plan_is_judged_by_the_state_after_the_last_action_played() -> None:
    turn = Turn(0, "P__", "", "", "__P", executed=["Right", "Right"])
    turn.imagined = {"path": [step("Right", "_P_"), step("Right", "__P"), step("Right", "__P")]}
    shown = imagined(turn)
    assert (shown["state"], shown["right"], len(shown["plan"])) == ("__P", True, 3)


def test_tokens_have_their_text_and_a_log_prob_where_they_were_sampled(page: str) -> None:
    data = embedded(page)
    turn = data["episodes"][0]["turns"][0]
    assert [data["tokens"][token] for token in turn["tokens"][:3]] == ["<think>", "<observation>", "seen"]
    assert turn["logprobs"][:3] == [None, 0.0, -0.3]


def test_training_tokens_have_the_advantages_and_values_of_the_update(page: str) -> None:
    episodes = embedded(page)["episodes"]
    trained = next(episode for episode in episodes if episode["split"] == "training")["turns"][0]
    assert trained["advantages"] == [None, -1.2, -0.8, -0.4, 0.0, 0.4, 0.8, 1.2]
    assert trained["values"][:3] == [None, 0.5, 0.5]
    assert not any("advantages" in turn for e in episodes if e["split"] != "training" for turn in e["turns"])


def test_what_does_not_fit_is_counted_and_the_command_named() -> None:
    data = made_up(text="x" * 3000)
    page = render_report(data)
    shown = len([e for e in embedded(page)["episodes"] if e["split"] != "training"])
    total = sum(len(report.episodes) for report in data.variants.values())
    steps = sorted({e["step"] for e in embedded(page)["episodes"] if e["split"] == "training"})
    assert f"training episodes, of steps {', '.join(map(str, steps))}." in page
    assert shown < total and f"{shown} of {total} test episodes; spa report RUN_DIR --episodes 24 shows all" in page
    assert len(page.split('id="theatre-data">')[1].split("</script>")[0]) < 1.1 * BUDGET
    data.all_episodes, data.episodes_per_variant = True, 24
    assert len([e for e in embedded(render_report(data))["episodes"] if e["split"] != "training"]) == total


def test_long_texts_are_cut() -> None:
    page = render_report(made_up(text="x" * 100_000, worlds=2))
    episodes = page.split('<section id="episodes">')[1].split("<section")[0]
    assert "characters more)" in episodes
    assert "x" * 7000 not in episodes


def test_none_are_embedded_if_none_are_wanted() -> None:
    data = made_up()
    data.episodes_per_variant = 0
    assert choose_scenes(data.variants, 0) == []
    assert 'id="theatre"' not in render_report(data)


def test_sections_come_in_order(page: str) -> None:
    wanted = ["comparison", "stage-1", "world-model", "learning", "episodes", "overlap", "run"]
    assert re.findall(r'<section id="([\w-]+)">', page) == wanted
    for text in ("git.commit", "0" * 40, "spa run frozen_lake", "Settings that differ", "as the model wrote it"):
        assert text in page


@pytest.mark.parametrize("name", ["theatre.js", "save.js", "curves.js"])
def test_the_scripts_are_small_and_set_text_only(name: str) -> None:
    script = resources.files("spa.report").joinpath("templates", name).read_text(encoding="utf-8")
    assert len(script.splitlines()) < 300
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "http:/"):
        assert forbidden not in script.replace("http://www.w3.org/2000/svg", "")


def test_a_run_without_anything_has_no_theatre() -> None:
    assert "theatre-data" not in render_report(ReportData("empty")).replace('getElementById("theatre-data")', "")
