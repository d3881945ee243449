"""What every test starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spa.common.progress import set_quiet
from spa.common.secrets import forget


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
