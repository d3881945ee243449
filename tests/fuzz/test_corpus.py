"""What ``make fuzz`` keeps, and small changes of it: nothing raises."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import CORPUS, TARGETS

EXAMPLES = int(os.environ.get("SPA_FUZZ", "15"))
KEPT = [(name, path.name) for name in TARGETS for path in sorted((CORPUS / name).iterdir())]


@pytest.mark.parametrize(("target", "name"), KEPT)
def test_what_is_kept(target: str, name: str) -> None:
    TARGETS[target]((CORPUS / target / name).read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=EXAMPLES)
@given(random=st.data())
def test_changes_of_it(target: str, random: st.DataObject) -> None:
    data = (
        CORPUS / target / random.draw(st.sampled_from([name for kind, name in KEPT if kind == target]))
    ).read_bytes()
    start = random.draw(st.integers(0, len(data)))
    end = random.draw(st.integers(start, min(len(data), start + 8)))
    new = random.draw(st.binary(max_size=8) | st.sampled_from([b"null", b"{}", b"[", b"<think>", b"1e999", b"\\ud800"]))
    TARGETS[target](data[:start] + new + data[end:])
