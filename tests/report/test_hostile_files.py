"""A run folder whose files say something else than what was written: it is shown, or one line says which file is wrong.

``SPA_FUZZ=500`` tries that many changes instead of a few.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.targets import check_message
from tests.report.test_report import EVIL, Page, episode

from spa.agent.episode import write_episodes
from spa.config.load import load_config
from spa.evaluate.summary import EvalResult
from spa.report.collect import collect
from spa.report.html import render_report
from spa.runs.folder import RunFolder
from spa.runs.metrics import MetricsLog
from spa.view.index import Index

EXAMPLES = int(os.environ.get("SPA_FUZZ", "25"))
RESPONSE = "<think><observation>#P\n_#</observation><prediction>#_\nP#</prediction></think><answer>Down</answer>"


@pytest.fixture(scope="module", autouse=True)
def _config_read_once() -> Iterator[None]:
    """The config is no part of this; composing it takes longer than all the rest."""
    config = load_config("frozen_lake", ["variants=[vanilla,spa]"])
    with pytest.MonkeyPatch.context() as patch:
        for module in ("spa.runs.folder", "spa.runs.trainings", "spa.report.collect"):
            patch.setattr(f"{module}.load_config", lambda *_, **__: config)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with every kind of file that a report reads."""
    out = tmp_path_factory.mktemp("whole") / "run"
    RunFolder(out).open(load_config("frozen_lake", ["variants=[vanilla,spa]"]), "run", resume=False)
    episodes = [episode(RESPONSE, group) for group in range(2)]
    for variant in ("vanilla", "spa"):
        folder = out / "variants" / variant
        write_episodes(folder / "eval" / "episodes.jsonl", episodes)
        EvalResult.from_episodes(variant, episodes, [1], 50, world_model={"observation_em": 0.5}).write(
            folder / "eval" / "result.json"
        )
        write_episodes(folder / "ppo" / "episodes" / "step_000001.jsonl", episodes)
        with MetricsLog(folder / "ppo" / "metrics.jsonl") as log:
            for step in range(3):
                log.log(step, {"val/pass@1": 0.1 * step, "train/success": 0.2, "losses/entropy": 1.0})
    stage = out / "selfplay"
    stage.mkdir()
    stats = {"episodes": 4, "turns": 8, "rows_train": 12, "format_rate": 0.5, "success": 0.25, "dropped": {"long": 1}}
    (stage / "stats.json").write_text(json.dumps(stats))
    record = {"seconds": 3.0, "cpu_seconds": 2.0, "worlds": {"train": {"ab": None}, "test": {"cd": "x"}}}
    for folder in (stage, out / "variants" / "spa" / "eval"):  # without digests, as those of earlier versions
        (folder / "done.json").write_text(json.dumps(record))
    rows = [{"response": RESPONSE, "extra_info": {"seed": 1, "original_response": "other", "executed": ["Up"]}}]
    pq.write_table(pa.Table.from_pylist(rows), stage / "train.parquet")
    render_report(collect(out))
    return out


FILES = [
    "run.json",
    "selfplay/stats.json",
    "selfplay/done.json",
    "selfplay/train.parquet",
    "variants/spa/eval/done.json",
    "variants/spa/eval/result.json",
    "variants/spa/eval/episodes.jsonl",
    "variants/spa/ppo/metrics.jsonl",
    "variants/spa/ppo/episodes/step_000001.jsonl",
]
DEEP = "[" * 900 + "]" * 900
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from([*EVIL, "1e999", "\x00", "9" * 400, 10**400, -1, 0, DEEP]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a JSON value."""
    yield path
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(entry, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with another one at ``path``; ``...`` removes it."""
    if not path:
        return {} if new is ... else new
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def write(file: Path, change: Callable[[Any], Any]) -> None:
    if file.suffix == ".parquet":
        try:
            pq.write_table(pa.Table.from_pylist([change(row) for row in pq.read_table(file).to_pylist()]), file)
        except (pa.ArrowException, OverflowError, TypeError, AttributeError, UnicodeError):
            file.write_bytes(b"PAR1")
        return
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.suffix == ".jsonl" else []
    texts = [json.dumps(change(record)) for record in records or [json.loads(file.read_text())]]
    file.write_text("".join(f"{text}\n" for text in texts).replace(json.dumps(DEEP), DEEP))


def look_at(run: Path) -> None:
    """The report and the index, which must not fail, or say in a line which file is wrong."""
    Index([run]).entries()
    said, page = str(run), ""
    try:
        page = render_report(collect(run))
    except ValueError as error:
        check_message(error)
        said = str(error)
    assert str(run) in said
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in Page(page).tags)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(random=st.data())
def test_any_value_of_a_file_may_be_another(whole: Path, tmp_path_factory: Any, random: st.DataObject) -> None:
    run = tmp_path_factory.mktemp("changed") / "run"
    shutil.copytree(whole, run)
    file = run / random.draw(st.sampled_from(FILES))
    new = random.draw(ANYTHING | st.just(...))

    def change(record: Any) -> Any:
        record.pop("sha256", None) if isinstance(record, dict) else None
        return changed(record, random.draw(st.sampled_from([*places(record)])), new)

    write(file, change)
    try:
        look_at(run)
    finally:
        shutil.rmtree(run.parent)


CONTENTS = (b"", b"\xff\xfe\n", b"null\n", b"[]\n", b"{}\n{}\n", DEEP.encode() + b"\n", b'{"a":' * 5000, b"3")


@pytest.mark.parametrize("place", range(len(FILES)))
def test_a_file_may_hold_anything(whole: Path, tmp_path: Path, place: int) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for content in CONTENTS[place % 2 :: 2]:
        (run / FILES[place]).write_bytes(content)
        look_at(run)
