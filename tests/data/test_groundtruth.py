"""Ground truth by span, the filter, the split, the files."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spa.agent.episode import Episode, Turn
from spa.data.ground_truth import (
    Row,
    body_spans,
    deduplicate,
    ground_truth,
    rejection,
    row_rejection,
    rows_of,
    shuffle_states,
)
from spa.data.layouts import read_rows, write_rows
from spa.data.select import split_rows
from spa.envs.states import exact
from spa.rl.auxiliary import true_response


def turn(response: str, state: str = "S0", after: str = "S1", index: int = 0) -> Turn:
    return Turn(index, state, f"user {index}", response, after)


def episode(*turns: Turn, content: str = "c", group: int = 0) -> Episode:
    return Episode("Tag", 1, group, content=content, turns=list(turns))


FULL = "<think><observation>wrong</observation>plan<prediction>worse</prediction></think><answer>Up</answer>"


def test_both_states_are_replaced_by_the_truth() -> None:
    assert ground_truth(turn(FULL)) == (
        "<think><observation>S0</observation>plan<prediction>S1</prediction></think><answer>Up</answer>"
    )


@pytest.mark.parametrize("state", ["1 2 | 3", "\\1\\g<0>", "a\\nb", "0\\", "| 1 . | \\d ", "$&", "</think>"])
def test_states_with_digits_and_backslashes_survive_byte_for_byte(state: str) -> None:
    text = ground_truth(turn(FULL, state, state + "9"))
    assert f"<observation>{state}</observation>" in text
    assert f"<prediction>{state}9</prediction>" in text


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_state_is_inserted_literally(before: str, after: str) -> None:
    text = ground_truth(turn(FULL, before, after))
    assert (
        text
        == f"<think><observation>{before}</observation>plan<prediction>{after}</prediction></think><answer>Up</answer>"
    )


def test_all_pairs_are_replaced_and_white_space_around_them_stays() -> None:
    text = "<think> <observation> a\n</observation> x <observation>b</observation><prediction>c </prediction></think>"
    assert ground_truth(turn(text)) == (
        "<think> <observation> S0\n</observation> x <observation>S0</observation><prediction>S1 </prediction></think>"
    )


def test_an_empty_body_is_filled() -> None:
    assert ground_truth(turn("<observation></observation>")) == "<observation>S0</observation>"


@pytest.mark.parametrize("text", ["", "no tags", "<observation>open", "<think></think><answer>Up</answer>"])
def test_a_response_without_pairs_is_unchanged(text: str) -> None:
    assert ground_truth(turn(text)) == text


def test_nested_tags_do_not_crash() -> None:
    text = "<observation>a<prediction>b</observation>c</prediction>"
    assert ground_truth(turn(text)).startswith("<observation>S0</observation>")


def test_later_prompts_hold_the_corrected_history_and_the_originals_are_kept() -> None:
    rows = rows_of(episode(turn(FULL), turn(FULL, "S1", "S2", 1)), system=None, window=0)
    assert [m["role"] for m in rows[1].prompt] == ["user", "assistant", "user"]
    assert "<observation>S0</observation>" in rows[1].prompt[1]["content"]
    assert rows[1].extra["original_response"] == FULL
    assert "<prediction>S2</prediction>" in rows[1].response


def test_window_one_shows_only_the_turn_itself_and_the_tasks_system_message() -> None:
    """Not that of the player's template, which the trained model's may not have."""
    played = episode(turn(FULL), turn(FULL, "S1", "S2", 1))
    played.system = "I am another model"
    user = {"role": "user", "content": "user 1"}
    assert rows_of(played, system="sys", window=1)[1].prompt == [{"role": "system", "content": "sys"}, user]
    assert rows_of(played, system=None, window=1)[1].prompt == [user]


def test_where_blanks_tell_a_position_they_are_replaced_too() -> None:
    """A map drawn with blanks, in one of whose states none is at the edge."""
    wrong = FULL.replace("wrong", "   P").replace("worse", "    P")
    (made,) = rows_of(episode(turn(wrong, "P", " P")), system=None, window=1)
    assert made.response == FULL.replace("wrong", "P").replace("worse", " P")
    (made,) = rows_of(episode(turn(wrong, " P", "P")), system=None, window=1)
    assert made.response == FULL.replace("wrong", " P").replace("worse", "P")


@pytest.mark.parametrize("states", ["truth", "belief"])
def test_a_response_ends_with_its_answer(states: str) -> None:
    """The end of the turn is not learnt where a text after it was cut off; also in what later turns are shown."""
    played = [replace(turn(FULL + " and then we wi", index=index), finish_reason="length") for index in range(2)]
    rows = rows_of(episode(*played), system=None, window=0, states=states)
    assert [row.response[-len("Up</answer>") :] for row in rows] == ["Up</answer>"] * 2
    assert rows[1].prompt[1]["content"] == rows[0].response
    assert rows[0].extra["original_response"] == FULL + " and then we wi"


def test_belief_keeps_what_the_model_wrote() -> None:
    assert rows_of(episode(turn(FULL)), system=None, window=1, states="belief")[0].response == FULL


def test_shuffled_states_are_those_of_other_turns_and_all_else_stays() -> None:
    played = [episode(*(turn(FULL, f"S{i}{j}", f"N{i}{j}", j) for j in range(3)), group=i) for i in range(8)]
    mixed = shuffle_states(played, seed=1)
    turns, others = ([t for e in episodes for t in e.turns] for episodes in (played, mixed))
    assert sorted(t.state for t in others) == sorted(t.state for t in turns)
    assert sorted(t.next_state for t in others) == sorted(t.next_state for t in turns)
    assert sum(a.state == b.state for a, b in zip(turns, others, strict=True)) < 8
    assert sum(o.state[1:] == o.next_state[1:] for o in others) < 8, "the two are drawn apart"
    assert [(t.user, t.response, t.index) for t in others] == [(t.user, t.response, t.index) for t in turns]
    assert [e.group for e in mixed] == list(range(8))
    assert played[0].turns[0].state == "S00", "the episodes themselves are not changed"
    assert shuffle_states(played, seed=1) == mixed != shuffle_states(played, seed=2)
    for row, other in zip(
        [r for e in mixed for r in rows_of(e, system=None, window=1, states="shuffled")], others, strict=True
    ):
        assert f"<observation>{other.state}<" in row.response.replace(" ", "")


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"agent.window=0 or 1"):
        rows_of(episode(turn(FULL)), system=None, window=2)


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (FULL, None),
        (FULL.upper(), "wrong format"),
        (FULL.replace("</think>", "</think> so"), "wrong format"),
        (FULL.replace("</think>", "</think>\n"), None),
        ("<answer>Up</answer>", "no think block"),
        ("<think><observation>a</observation><prediction>b</prediction></think>", "no answer"),
        ("<answer>a</answer>" + FULL, "answer before think"),
        ("<think><prediction>b</prediction></think><answer>Up</answer>", "no observation"),
        ("<think><observation>b</observation></think><answer>Up</answer>", "no prediction"),
        (
            "<think><prediction>b</prediction><observation>a</observation></think><answer>Up</answer>",
            "prediction before observation",
        ),
    ],
)
def test_filter_reasons(response: str, reason: str | None) -> None:
    assert rejection(response) == reason


CROSSED = "<observation><prediction>o</observation>t<prediction>p</prediction>"
CROSSING = [
    f"<think>{CROSSED}</think><answer>Up</answer>",
    FULL.replace("plan", CROSSED),
    FULL + CROSSED,
    FULL.replace("Up", CROSSED),
    FULL.replace("Up", "Up<prediction></prediction>"),
    FULL.replace("Up", "Up<PREDICTION></PREDICTION>"),
    CROSSED + FULL,
    "<observation>" + FULL,
    FULL + CROSSED.upper().replace("P<", "p<"),
    FULL + CROSSED.replace("observation", "observat\u0130on"),
]


@pytest.mark.parametrize("response", CROSSING)
@pytest.mark.parametrize("states", ["truth", "shuffled", "belief"])
def test_tags_that_the_correction_would_erase_are_a_reason(response: str, states: str) -> None:
    (made,) = rows_of(episode(turn(response)), system=None, window=1, states=states)
    assert row_rejection(made) == "crossing tags"


def test_a_true_state_that_breaks_the_tags_is_a_reason() -> None:
    (made,) = rows_of(episode(turn(FULL, "</think>")), system=None, window=1)
    assert row_rejection(made) == "no observation: the world's states contain tags of the format"
    assert rejection(FULL) is None


@pytest.mark.parametrize("extra", [{}, {"original_response": None}])
def test_rows_of_others_are_judged_as_they_are(extra: dict[str, str | None]) -> None:
    assert row_rejection(Row("Tag", [], FULL, dict(extra))) is None
    assert row_rejection(Row("Tag", [], CROSSING[0], dict(extra))) == "crossing tags"


_STATES = "<observation>a</observation>b<prediction>c</prediction>"
_PIECES = [f"<{slash}{name}>" for name in ("observation", "prediction") for slash in ("", "/")] * 4
_PIECES += [tag.upper() for tag in _PIECES[:4]] + ["<observat\u0131on>", "</predict\u0130on>", "<think>", "</think>"]
_PIECES += ["<answer>Up</answer>", "</think><answer>Up</answer>", _STATES, f"<think>{_STATES}", " ", "d", "e", "e"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(_PIECES), max_size=6), st.lists(st.sampled_from(_PIECES), max_size=6))
@example([CROSSED], [])
@example([_STATES], [CROSSED])
def test_no_state_of_the_models_own_is_trained_as_the_truth(inside: list[str], after: list[str]) -> None:
    played = turn(f"<think>{''.join(inside)}</think><answer>Up{''.join(after)}</answer>", "S0", "S1")
    (made,) = rows_of(episode(played), system=None, window=1)
    kept = [made.response] if row_rejection(made) is None else []
    for text in filter(None, [*kept, true_response(played)]):
        assert {text[a:b] for a, b in body_spans(text, "observation")} == {"S0"}
        assert {text[a:b] for a, b in body_spans(text, "prediction")} == {"S1"}


def row(content: str, response: str = FULL, user: str = "u") -> Row:
    return Row("Tag", [{"role": "user", "content": user}], response, {"content": content, "turn": 0})


def test_no_world_is_on_both_sides_of_the_split() -> None:
    rows = [row(f"world {i % 10}", user=str(i)) for i in range(60)]
    train, val = split_rows(rows, 0.2, seed=3)
    assert {r.extra["content"] for r in train}.isdisjoint({r.extra["content"] for r in val})
    assert len({r.extra["content"] for r in val}) == 2
    assert len(train) + len(val) == 60
    assert split_rows(rows, 0.2, seed=3) == (train, val)


def test_split_edges() -> None:
    assert split_rows([row("only")], 0.5, 0)[1] == []
    assert split_rows([row("a"), row("b")], 0.0, 0)[1] == []


def test_deduplication_works_on_message_lists() -> None:
    assert deduplicate([row("a"), row("a"), row("a", user="other")]) == [row("a"), row("a", user="other")]


def test_the_same_turn_after_another_history_is_no_duplicate() -> None:
    def later(first: str) -> Row:
        said = [("user", first), ("assistant", "a"), ("user", "u")]
        return Row("Tag", [{"role": role, "content": text} for role, text in said], "r")

    assert deduplicate([later("one"), later("other"), later("one")]) == [later("one"), later("other")]


def test_parquet_round_trip_and_columns(tmp_path) -> None:
    rows = rows_of(episode(turn(FULL)), system=None, window=0)
    write_rows(tmp_path / "x.parquet", rows)
    back, skipped, _ = read_rows(tmp_path / "x.parquet")
    assert (back[0].prompt, back[0].response, back[0].task) == (rows[0].prompt, rows[0].response, "Tag")
    assert back[0].extra["original_response"] == FULL
    assert not skipped
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == [
        "data_source",
        "prompt",
        "response",
        "ability",
        "reward_model",
        "extra_info",
        "messages",
    ]
    assert table.to_pylist()[0]["messages"][-1] == {"role": "assistant", "content": rows[0].response}
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_published_layout_with_json_prompts_loads_and_bad_rows_are_counted(tmp_path) -> None:
    prompt = [{"role": "user", "content": "hi"}]
    good = json.dumps(prompt)
    table = pa.table({"prompt": [good, "not json", good, "[]"], "response": ["a", "b", None, "c"]})
    pq.write_table(table, tmp_path / "x.parquet")
    rows, skipped, _ = read_rows(tmp_path / "x.parquet")
    assert [r.prompt for r in rows] == [prompt]
    assert skipped == {"prompt is not a list of messages": 2, "no response": 1}


def test_wrong_files_are_explained(tmp_path) -> None:
    pq.write_table(pa.table({"prompt": ["x"], "text": ["y"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"no column response; it has prompt, text"):
        read_rows(tmp_path / "x.parquet")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_rows(tmp_path / "torn.parquet")
    with pytest.raises(ValueError, match="no data file"):
        read_rows(tmp_path / "none.parquet")


SPACED = "   #\n# 0#\n   "  # a map drawn with blanks


@pytest.mark.parametrize("state", [SPACED, "  P", "P  ", "\n x", "P"])
@pytest.mark.parametrize("gap", ["", "\n"])
def test_white_space_of_a_state_is_its_own(state: str, gap: str) -> None:
    """Training on what was copied perfectly changes nothing; what was copied badly is the truth after one correction."""
    text = "<think><observation>{0}{1}{0}</observation>go<prediction>{0}{1}{0}</prediction></think><answer>Up</answer>"
    copied = text.format(gap, state)
    assert ground_truth(turn(copied, state, state)) == copied
    once = ground_truth(turn(text.format(gap, state.strip()), state, state))
    assert ground_truth(turn(once, state, state)) == once
    assert body_spans(once, "prediction", state) == [(start := once.rindex(state), start + len(state))]


def test_where_white_space_tells_states_apart_it_counts() -> None:
    assert exact("P", "P") and exact("\nP\n", "P") and exact("\n  P\n", "  P") and exact(SPACED, SPACED)
    assert not exact("P  ", "  P") and not exact("  P", "P  ") and not exact("P", "  P")
