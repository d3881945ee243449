"""The browser of the tests that open pages in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright
    from tests.report.screenshots import launch

    with sync_playwright() as playwright:
        running = launch(playwright)
        yield running
        running.close()


def serious(page: Page) -> dict[str, list[str]]:
    """What axe calls serious or critical on the page, with the first places."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the extra 'browser'")
    found = axe.Axe().run(page).response["violations"]
    return {v["id"]: [n["html"][:200] for n in v["nodes"][:3]] for v in found if v["impact"] in ("serious", "critical")}
