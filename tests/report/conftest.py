"""The browser of the tests that open pages in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright
    from tests.report.screenshots import launch

    with sync_playwright() as playwright:
        running = launch(playwright)
        yield running
        running.close()
