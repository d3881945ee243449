"""``spa view`` in a real browser: its pages follow a run that goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra 'browser'")
from playwright.sync_api import Browser, expect
from tests.report.conftest import serious
from tests.report.test_compare import make_run

from spa.runs.metrics import MetricsLog

pytestmark = pytest.mark.browser


@pytest.fixture
def log(tmp_path: Path) -> Iterator[MetricsLog]:
    run = make_run(tmp_path / "runs" / "lake", {"spa": [1, 2]})
    with MetricsLog(run / "variants" / "spa" / "ppo" / "metrics.jsonl") as opened:
        step(opened, 1)
        step(opened, 2)
        yield opened


def step(log: MetricsLog, number: int) -> None:
    log.log(number, {"val/pass@1": 0.1 * number, "train/success": 0.1 * number})


@pytest.fixture
def server(tmp_path: Path, log: MetricsLog) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "spa", "view", str(tmp_path / "runs"), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        yield started
        started.terminate()


@pytest.fixture
def url(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    found = re.search(r"http://\S+", server.stdout.readline())
    assert found is not None
    return found[0]


def test_the_list_follows_a_run_and_says_when_the_server_is_gone(
    browser: Browser, url: str, server: subprocess.Popen[str], log: MetricsLog
) -> None:
    page = browser.new_page()
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(url)
    expect(page.locator("#live")).to_contain_text("step 2")
    step(log, 3)
    expect(page.locator("#live")).to_contain_text("step 3", timeout=20_000)
    assert trouble == []
    expect(page.locator("#lost")).to_be_hidden()
    server.terminate()
    expect(page.locator("#lost")).to_be_visible(timeout=20_000)
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_list_fits_a_telephone_and_axe_finds_nothing_serious(browser: Browser, url: str, theme: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme=theme)
    page.goto(url)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious(page) == {}
    page.close()


def test_a_report_is_reloaded_until_somebody_reads_it(browser: Browser, url: str, log: MetricsLog) -> None:
    page = browser.new_page()
    page.goto(url)
    page.click("#live a >> nth=0")
    plot = page.frame_locator("iframe").locator("#learning polyline").first
    expect(plot).to_be_attached(timeout=20_000)
    points = plot.get_attribute("points") or ""
    step(log, 3)
    expect(plot).not_to_have_attribute("points", points, timeout=20_000)
    page.frame_locator("iframe").locator("h1").click()
    step(log, 4)
    expect(page.locator("#new")).to_be_visible(timeout=20_000)
    page.close()
