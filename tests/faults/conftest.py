"""A line of figures for each test of ``make faults``, and the run folders that the stages start from."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spa.cli import main
from tests.faults.commands import RUN, SMALL, STAGES, out


@pytest.fixture
def figure() -> Callable[[str], None]:
    """Prints a line of figures (with ``-s``)."""
    return lambda line: print(f"\n{line}", flush=True)


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run folder as each stage finds it; stage 1 finds none."""
    scratch = tmp_path_factory.mktemp("stages")
    found = {}
    for name, command in STAGES.items():
        if (scratch / RUN).is_dir():
            found[name] = scratch / name
            shutil.copytree(scratch / RUN, found[name])
        with contextlib.chdir(scratch):  # in this process, whose forks then start with what it has loaded
            assert main(out(*command, *SMALL)) == 0
    return found
