"""Selecting rows, the layouts they are written in, their statistics, and the picture of their masks."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spa.agent.chat import Chat
from spa.common.text import clean
from spa.config.schema import SelfPlayConfig
from spa.data.describe import describe, render_stats
from spa.data.encode import encode_row, loss_spans, mask_states, prompt_ids
from spa.data.ground_truth import Row, rejection
from spa.data.layouts import LAYOUTS, SCHEMAS, data_files, read_rows, write_rows
from spa.data.maskview import CONTEXT, FORCED, TRAINED, UNTRAINED, pieces, plain, rich_text
from spa.data.select import select_rows
from spa.models.load import load_tokenizer
from tests.agent.test_segments import zephyr

CHAT = Chat(load_tokenizer("builtin:tiny"))
GOOD = "<think><observation>P_</observation>Right<prediction>_P</prediction></think><answer>Right</answer>"
ODD = st.text(alphabet='aP_√#1\\<>&"\n\t|é{}$', min_size=1, max_size=30).filter(lambda text: text.strip() != "")


def row(response: str = GOOD, *, seed: int = 0, turn: int = 0, executed=("Right",), success=True, user="P_") -> Row:
    extra = {
        "seed": seed,
        "group": seed,
        "member": 0,
        "turn": turn,
        "content": f"world {seed}",
        "original_response": response,
        "executed": list(executed),
        "outcome": "1 end",
        "format_ok": True,
        "success": success,
    }
    return Row("Lake", [{"role": "user", "content": user}], response, extra)


# Which rows


@pytest.mark.parametrize(
    "think",
    [
        "<observation>a<prediction>b</observation>c</prediction>",
        "<observation>a<observation>b</observation>c<prediction>d</prediction>",
        "<observation>a</observation><prediction>b<prediction>c</prediction>",
        "<observation>a</observation><prediction>b</prediction><prediction>",
        "<observation>a</observation></observation><prediction>b</prediction>",
        "<observation>a</observation><answer>Up</answer><prediction>b</prediction>",
        "<OBSERVATION>a<prediction>b</OBSERVATION>c</prediction>",
    ],
)
def test_crossing_tags_are_a_reason_of_their_own(think: str) -> None:
    assert rejection(f"<think>{think}</think><answer>Up</answer>") == "crossing tags"


def test_several_pairs_one_after_another_are_fine() -> None:
    body = (
        "<observation>a</observation>x<prediction>b</prediction>y<observation>c</observation><prediction>d</prediction>"
    )
    assert rejection(f"<think>{body}</think><answer>Up</answer>") is None


def test_rows_are_judged_by_what_the_model_wrote() -> None:
    crossed = row()
    crossed.extra["original_response"] = GOOD.replace("P_<", "<prediction><")
    rows = [row(), crossed]
    assert select_rows(rows, SelfPlayConfig(filter=True), 0) == (rows[:1], {"crossing tags": 1})
    assert describe(rows)["rejections"] == {"crossing tags": 1}


def test_every_drop_is_counted_in_order() -> None:
    rows = [row(), row("nothing"), row(seed=1, success=False), row(), row(seed=2, turn=1)]
    play = SelfPlayConfig(filter=True, success_only=True, deduplicate=True)
    kept, reasons = select_rows(rows, play, 0)
    assert [one.extra["seed"] for one in kept] == [0]
    assert reasons == {"no think block": 1, "not won": 1, "duplicate": 2}
    assert select_rows(rows, SelfPlayConfig(filter=False), 0) == (rows, Counter())


def test_a_move_is_kept_once_and_not_for_the_episode_that_lost() -> None:
    moves = [row(seed=number, success=number > 0) for number in range(3)]
    for number, move in enumerate(moves):
        move.prompt = [{"role": "user", "content": f"{number} actions left"}]
    play = SelfPlayConfig(filter=False, deduplicate=True, success_only=True)
    assert select_rows(moves, play, 0) == ([moves[1]], {"not won": 1, "duplicate": 1})


@settings(max_examples=40)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 5))
def test_balancing_cuts_to_the_median_class_and_keeps_order(sizes: list[int], seed: int) -> None:
    rows = [row(seed=i, executed=["Up"] * size) for i, size in enumerate(sizes)]
    kept, reasons = select_rows(rows, SelfPlayConfig(filter=False, balance="actions"), seed)
    before, after = Counter(sizes), Counter(len(one.extra["executed"]) for one in kept)
    most = math.ceil(median(before.values()))
    assert after == {size: min(count, most) for size, count in before.items()}
    assert sum(reasons.values()) == len(rows) - len(kept)
    order = [one.extra["seed"] for one in kept]
    assert order == sorted(order)
    assert select_rows(rows, SelfPlayConfig(filter=False, balance="actions"), seed)[0] == kept


@pytest.mark.parametrize(
    "balance, expected", [("turn", {0: 2, 1: 2}), ("success", {True: 3, False: 3}), ("none", {0: 4, 1: 2})]
)
def test_balances(balance: str, expected: dict) -> None:
    rows = [row(seed=i, turn=int(i > 3), success=i < 3) for i in range(6)]
    if balance == "turn":
        rows.append(row(seed=9, turn=2))
        expected = {0: 2, 1: 2, 2: 1}
    kept, _ = select_rows(rows, SelfPlayConfig(balance=balance), 0)
    name = "turn" if balance == "none" else balance
    assert Counter(one.extra[name] for one in kept) == expected


def test_the_larger_of_two_classes_is_cut() -> None:
    rows = [row(seed=i, success=i < 3) for i in range(10)]
    kept, reasons = select_rows(rows, SelfPlayConfig(balance="success"), 0)
    assert Counter(one.extra["success"] for one in kept) == {True: 3, False: 5}
    assert reasons == {"balanced by success": 2}


def test_a_setting_that_needs_a_missing_column_says_so() -> None:
    bare = [Row("Lake", [{"role": "user", "content": "a"}], GOOD, {"seed": 1})]
    assert select_rows(bare, SelfPlayConfig(), 0)[0] == bare
    for settings_, column in ((SelfPlayConfig(success_only=True), "success"), (SelfPlayConfig(balance="turn"), "turn")):
        with pytest.raises(ValueError, match=rf"needs '{column}' in a row's extra_info, which has seed"):
            select_rows(bare, settings_, 0)


# Layouts


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=3))
def test_what_is_written_is_read(tmp_path, layout: str, suffix: str, texts) -> None:
    rows = []
    for number, (system, user, response) in enumerate(texts):
        one = row(response, seed=number)
        one.prompt = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        rows.append(one)
    path = tmp_path / f"data{suffix}"
    write_rows(path, rows, layout)
    read, skipped, found = read_rows(path)
    assert [(one.prompt, one.response) for one in read] == [(one.prompt, one.response) for one in rows]
    assert not skipped
    assert found == layout
    if layout in ("spa", "spa-json", "verl"):
        split = {"split": "train"} if layout == "verl" else {}
        assert [(one.task, one.extra) for one in read] == [(one.task, one.extra | split) for one in rows]


def test_columns_are_what_other_programs_expect(tmp_path) -> None:
    for layout in LAYOUTS:
        write_rows(tmp_path / f"{layout}.parquet", [row()], layout, split="val")
    first = {layout: pq.read_table(tmp_path / f"{layout}.parquet").to_pylist()[0] for layout in LAYOUTS}
    published = ["data_source", "prompt", "response", "ability", "reward_model", "extra_info"]
    assert list(first["spa-json"]) == published
    assert list(first["spa"]) == [*published, "messages"]
    assert json.loads(first["spa-json"]["prompt"]) == first["spa"]["prompt"] == row().prompt
    assert list(first["messages"]) == ["messages"]
    assert first["messages"]["messages"][-1] == {"role": "assistant", "content": GOOD}
    assert first["prompt-completion"]["completion"] == [{"role": "assistant", "content": GOOD}]
    verl = first["verl"]
    assert {"data_source", "prompt", "ability", "reward_model", "extra_info", "messages"} == set(verl)
    assert (verl["extra_info"]["index"], verl["extra_info"]["split"]) == (0, "val")
    assert verl["reward_model"] == {"style": "rule", "ground_truth": ""}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_datasets_reads_what_we_write(tmp_path, monkeypatch, layout: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    rows = [row(), row(seed=1)]
    for suffix, builder in ((".parquet", "parquet"), (".jsonl", "json")):
        path = tmp_path / f"data{suffix}"
        write_rows(path, rows, layout)
        loaded = datasets.load_dataset(builder, data_files=str(path), cache_dir=str(tmp_path / "cache"), split="train")
        assert loaded.column_names == SCHEMAS[layout].names
        assert len(loaded) == 2
        value = loaded[0]["prompt" if layout != "messages" else "messages"]
        assert (json.loads(value) if layout == "spa-json" else value)[0] == {"role": "user", "content": "P_"}


def test_published_and_foreign_rows(tmp_path) -> None:
    path = tmp_path / "trl.jsonl"
    records = [
        {"prompt": [{"role": "user", "content": "a"}], "completion": "plain text"},
        {
            "prompt": json.dumps([{"role": "user", "content": "a"}]),
            "completion": [{"role": "assistant", "content": "b"}],
        },
        {"prompt": "no list", "completion": "x"},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "user", "content": "b"}]},
        {"prompt": [{"role": "user"}], "completion": "x"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    rows, skipped, _ = read_rows(path)
    assert [one.response for one in rows] == ["plain text", "b"]
    assert skipped == {"prompt is not a list of messages": 2, "no response": 1}
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}) + "\n")
    assert read_rows(path)[1] == {"no response": 1}


@pytest.mark.parametrize("prompt", [[{"role": "user", "content": "a"}], json.dumps([{"role": "user", "content": "a"}])])
def test_published_prompts_keep_their_form(tmp_path, prompt) -> None:
    record = {
        "data_source": "sokoban",
        "prompt": prompt,
        "response": GOOD,
        "ability": "bfs",
        "reward_model": "{'style': 'rule'}",
        "extra_info": "{'index': 100016, 'split': 'train'}",
    }
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "wm_train.parquet")
    rows, skipped, layout = read_rows(tmp_path / "wm_train.parquet")
    assert layout == ("spa-json" if isinstance(prompt, str) else "spa")
    assert rows == [Row("sokoban", [{"role": "user", "content": "a"}], GOOD, {})]
    assert not skipped
    write_rows(tmp_path / "again.parquet", rows, layout)
    assert pq.read_table(tmp_path / "again.parquet").to_pylist()[0]["prompt"] == prompt


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_without_rows_is_read(tmp_path, layout: str) -> None:
    write_rows(tmp_path / "val.parquet", [], layout)
    assert read_rows(tmp_path / "val.parquet") == ([], Counter(), layout)


@pytest.mark.parametrize(
    "extra, known",
    [
        ({"executed": "Right", "seed": "abc", "turn": 1.5, "content": {"a": 1}, "success": "yes", "level": 7}, {}),
        ({"executed": 3, "seed": True, "turn": [1], "group": 2**70}, {}),
        (
            {"success": 1.0, "format_ok": 0, "seed": 3.0, "turn": None},
            {"success": True, "format_ok": False, "seed": 3, "turn": None},
        ),
        ("{'index': 1}", {}),
    ],
)
def test_extra_info_of_others(tmp_path, extra, known: dict) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"prompt": row().prompt, "response": GOOD, "extra_info": extra}) + "\n")
    rows, *_ = read_rows(path)
    assert [one.extra for one in rows] == [known]
    write_rows(tmp_path / "x.parquet", rows)
    assert describe(rows, CHAT)["actions"] == {"Right": 1}


@pytest.mark.parametrize("place", ["response", "prompt", "data_source", "extra_info"])
def test_halves_of_characters_are_skipped(tmp_path, place: str) -> None:
    record = {"data_source": "Lake", "prompt": row().prompt, "response": GOOD}
    bad = {
        "response": GOOD + "\ud800",
        "prompt": [{"role": "user", "content": "\ud800"}],
        "data_source": "\ud800",
        "extra_info": {"executed": ["\ud800"]},
    }
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (record, record | {place: bad[place]})))
    rows, skipped, _ = read_rows(path)
    assert len(rows) == 1
    assert skipped == {"text that is not valid Unicode": 1}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("x.parquet", b"PAR1 no", "cannot be read as Parquet"),
        ("x.csv", b"a,b", r"must end in \.parquet, \.jsonl"),
        ("x.jsonl", b"", "is empty"),
        ("x.jsonl", b'{"prompt": 1}\n{bad\n', "line 2 cannot be read as JSON"),
        ("x.jsonl", b"[1]\n", "row 1: a row must be a JSON object, not int"),
        ("x.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("x.jsonl", b'{"text": "a"}\n', r"no column prompt; it has text\. It needs prompt and response"),
        ("x.jsonl", b"[" * 100_000 + b"\n", "line 1 cannot be read as JSON"),
    ],
)
def test_wrong_files_are_explained(tmp_path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_rows(path)
    assert str(path) in str(error.value)


def test_parquet_that_another_program_wrote(tmp_path) -> None:
    texts = {"prompt": pa.array(["a"]), "response": pa.array(["b"])}
    odd = tmp_path / "odd.parquet"
    pq.write_table(pa.table(texts | {"when": pa.array([2**31 - 1], pa.date32())}), odd)
    rows, skipped, _ = read_rows(odd)
    assert len(rows) + skipped.total() == 1, "a column that is not ours is not read"
    damaged = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    pq.write_table(pa.table(texts | {"response": damaged}), odd)
    with pytest.raises(ValueError, match=r"odd\.parquet cannot be read as Parquet"):
        read_rows(odd)


def test_another_schema_in_parquet_and_a_missing_file(tmp_path) -> None:
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no column prompt; it has text"):
        read_rows(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="no data file"):
        read_rows(tmp_path / "nowhere.parquet")
    with pytest.raises(ValueError, match="Did you mean 'messages'"):
        write_rows(tmp_path / "t.parquet", [row()], "message")


def test_data_files(tmp_path) -> None:
    with pytest.raises(ValueError, match="spa generate"):
        data_files(tmp_path)
    (tmp_path / "train.parquet").touch()
    assert data_files(tmp_path) == (tmp_path / "train.parquet", None)
    assert data_files(tmp_path / "train.parquet") == (tmp_path / "train.parquet", None)
    (tmp_path / "val.parquet").touch()
    assert data_files(tmp_path) == (tmp_path / "train.parquet", tmp_path / "val.parquet")
    published = tmp_path / "published"
    published.mkdir()
    for name in ("wm_train.parquet", "wm_val.parquet"):
        (published / name).touch()
    assert data_files(published) == (published / "wm_train.parquet", published / "wm_val.parquet")
    run = tmp_path / "run"
    write_rows(run / "selfplay-plan" / "train.parquet", [row()])
    assert data_files(run) == (run / "selfplay-plan" / "train.parquet", None), "the only stage 1 of a run"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    write_rows(path, [row()], "messages")
    old = path.read_bytes()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_rows(path, [row(), row(seed=1)], "messages")
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


# Statistics


def test_statistics_of_a_small_set() -> None:
    rows = [
        row(seed=0, turn=0, executed=["Right"]),
        row(seed=0, turn=1, executed=["Right", "Down"], user="x"),
        row(GOOD.replace("_P", "P_"), seed=1, executed=[], success=False),
        row("nothing at all", seed=1, turn=1, executed=[], success=False),
        row(seed=0, turn=0, executed=["Right"]),
    ]
    stats = describe(rows, CHAT, max_length=30)
    assert (stats["rows"], stats["episodes"], stats["worlds"], stats["duplicates"]) == (5, 2, 2, 1)
    assert stats["tasks"] == {"Lake": 5}
    assert stats["turns_per_episode"] == {"min": 2, "median": 2.5, "max": 3}
    assert stats["success"] == 0.5
    assert stats["format_rate"] == 0.8
    assert stats["rejections"] == {"no think block": 1}
    assert stats["actions"] == {"Right": 3, "Down": 1}
    assert stats["actions_per_turn"] == {"0": 2, "1": 2, "2": 1}
    assert stats["changed"] == 0.75
    lengths = [len(encode_row(one, CHAT).ids) for one in rows]
    assert stats["tokens"]["row"]["total"] == sum(lengths)
    assert stats["tokens"]["prompt"]["total"] + stats["tokens"]["response"]["total"] == sum(lengths)
    assert stats["over_max_length"] == sum(length > 30 for length in lengths)
    trained = sum(len(encode_row(one, CHAT).positions) for one in rows)
    assert stats["trained"] == pytest.approx(trained / sum(lengths))
    assert json.loads(json.dumps(stats)) == stats
    text = render_stats(stats)
    assert "Right 3, Down 1" in text
    assert "80.0% keep to it; others: no think block 1" in text


@pytest.mark.parametrize("loss", ["think_answer", "state", "masked"])
def test_lengths_are_those_of_what_is_trained(loss: str) -> None:
    one = row(GOOD.replace("P_", "P_" * 30))
    tokens = describe([one], CHAT, loss=loss)["tokens"]
    assert tokens["row"]["total"] == len(encode_row(one, CHAT, loss=loss).ids)
    assert tokens["prompt"]["total"] == len(prompt_ids(one.prompt, CHAT))
    assert tokens["prompt"]["total"] + tokens["response"]["total"] == tokens["row"]["total"]


def test_several_tasks_have_a_line_each() -> None:
    rows = [row(seed=0), row("nothing", seed=1, success=False), row(GOOD.replace("_P", "P_"), seed=2)]
    rows[2].task = "Warehouse"
    stats = describe(rows)
    assert stats["by_task"] == {
        "Lake": {"rows": 2, "episodes": 2, "worlds": 2, "format_rate": 0.5, "success": 0.5, "changed": 1.0},
        "Warehouse": {"rows": 1, "episodes": 1, "worlds": 1, "format_rate": 1.0, "success": 1.0, "changed": 0.0},
    }
    lines = [line.split() for line in render_stats(stats).splitlines()]
    assert ["rows", "episodes", "worlds", "format_rate", "success", "changed"] in lines
    assert ["Lake", "2", "2", "2", "50.0%", "50.0%", "100.0%"] in lines
    assert "by_task" not in describe(rows[:2])


def test_names_cannot_steer_the_terminal_or_fake_a_line() -> None:
    one = row(executed=["\x1b[2J\u202eevil\nrows 99", "x" * 500])
    one.task = "\x1b]0;title\x07"
    text = render_stats(describe([one, row()]))
    assert not set("\x1b\x07\u202e") & set(text)
    assert not [line for line in text.splitlines() if line.startswith("rows 99")]
    assert "x" * 41 not in text


def test_statistics_of_rows_without_anything_else() -> None:
    bare = [Row("", [{"role": "user", "content": "a"}], GOOD), Row("", [{"role": "assistant", "content": "a"}], GOOD)]
    stats = describe(bare, CHAT)
    assert not {"episodes", "worlds", "success"} & set(stats)
    assert stats["actions"] == {"Right": 2}
    assert stats["not_encodable"] == {"roles do not alternate": 1}
    assert "cannot be encoded" in render_stats(stats)
    assert describe([], CHAT)["rows"] == 0
    assert render_stats(describe([], CHAT))


# The picture


@pytest.mark.parametrize("loss", ["think_answer", "state", "masked"])
@settings(max_examples=20)
@given(thought=st.text(alphabet="aU√ #1\n<é☾😀", max_size=12))
def test_the_picture_shows_the_mask_and_all_of_the_text(loss: str, thought: str) -> None:
    one = row(f"<think><observation>P√</observation>{thought}<prediction>_P</prediction></think> <answer>Up</answer>")
    shown = pieces(one, CHAT, loss=loss)
    example = encode_row(one, CHAT, loss=loss)
    assert [piece.id for piece in shown] == example.ids
    assert [piece.index for piece in shown if piece.kind == TRAINED] == example.positions
    assert "".join(piece.text for piece in shown) == CHAT.tokenizer.decode(example.ids)
    assert {piece.kind for piece in shown} <= {TRAINED, UNTRAINED, FORCED, CONTEXT}
    assert "".join(piece.text for piece in shown if piece.kind == FORCED) == "<think>"


def test_plain_text_marks_trained_tokens() -> None:
    text = plain(pieces(row("<think>Up</think> <answer>Up</answer>"), CHAT))
    assert text.endswith("assistant\n{<think>}[Up</think>] [<answer>Up</answer><|im_end|>]")


def test_nothing_written_reaches_a_terminal_as_code() -> None:
    evil = "<think><script>alert(1)</script>\x1b[2J[red]x[/red]\u202e</think><answer>Up</answer>"
    shown = pieces(row(evil, user="<img src=x onerror=alert(2)>{{ 7*7 }}"), CHAT)
    for text in (plain(shown), str(rich_text(shown))):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "[red]" in str(rich_text(shown))
    assert clean("a\tb\nc\rd\x07") == "a\tb\nc\ufffdd\ufffd"
    assert set(clean("\u2028\u061c\xad\u2060\ud800\U000e0041")) == {"\ufffd"}
    assert clean("√ é 漢 🙂") == "√ é 漢 🙂"


def test_a_states_own_white_space_is_part_of_it() -> None:
    states = "<think><observation>P   </observation>go<prediction>\n P  \n</prediction></think><answer>Right</answer>"
    assert mask_states(states) == states.replace("P   ", "[MASKED]").replace(" P  ", "[MASKED]")
    assert [states[a:b] for a, b in loss_spans(states, "state")] == ["P   ", " P  "]
    still = states.replace("\n P  \n", "P   ")
    assert [describe([row(text)], CHAT)["changed"] for text in (states, still)] == [1.0, 0.0]
    # The format itself has a space on both sides of the observation, and on one of the prediction.
    laid_out = "<think><observation> #P# </observation>x<prediction>{}</prediction></think><answer>Up</answer>"
    texts = [laid_out.format(then) for then in (" #P#", "\n#P#\n", " #_#")]
    assert [describe([row(text)])["changed"] for text in texts] == [0.0, 0.0, 1.0]


def test_the_picture_keeps_spaces_that_a_token_alone_would_lose() -> None:
    chat = Chat(zephyr())
    text = "<think> the hall\na b</think><answer>turn left</answer>"
    one = Row("Hall", [{"role": "user", "content": "go to the hall"}], text, {})
    shown = "".join(piece.text for piece in pieces(one, chat))
    assert "go to the hall" in shown and text in shown


def test_content_in_parts_and_columns_of_several_sets(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "go "}, {"type": "text", "text": "on"}]
    told = [{"role": "user", "content": parts}, {"role": "assistant", "content": [{"type": "text", "text": GOOD}]}]
    records = [{"messages": told}, {"messages": [{**told[0], "content": [*parts, {"type": "image_url"}]}, told[1]]}]
    path = tmp_path / "parts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    rows, skipped, _ = read_rows(path)
    assert [(one.prompt, one.response) for one in rows] == [([{"role": "user", "content": "go on"}], GOOD)]
    assert skipped == {"messages is not a list of messages": 1}
    mixed = [{"prompt": "[]", "response": GOOD}, {"prompt": None, "response": None, "messages": told}]
    path.write_text("".join(json.dumps(record) + "\n" for record in mixed))
    assert [one.response for one in read_rows(path)[0]] == [GOOD]
