"""What every test starts from."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from spa.common.progress import set_quiet
from spa.common.secrets import forget

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # of models that tests save
# The same examples in each run, and no limit on their time. `pytest --hypothesis-profile default` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _progress_is_on() -> Iterator[None]:
    """``--quiet`` is a switch of the process: a test that used it must not silence the next."""
    yield
    set_quiet(False)


@pytest.fixture(autouse=True)
def _no_secrets() -> Iterator[None]:
    """So are the secrets that a process knows."""
    yield
    forget()
