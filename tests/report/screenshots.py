"""``make screenshots``: the report at two widths and in two themes, as PNG files to look at."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright
from tests.report.pages import made_up

from spa.report.collect import collect
from spa.report.html import render_report, write_page

WORLDS = ("frozen_lake", "sokoban", "sudoku", "countdown")


def launch(playwright: Playwright) -> Browser:
    """The chromium of the system, or that of ``SPA_CHROMIUM``; else the one that playwright has installed."""
    chromium = os.environ.get("SPA_CHROMIUM") or shutil.which("chromium")
    return playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


def main(folder: Path, run: str = "") -> None:
    """Draws ``run``, or made-up runs of four worlds, into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"run": collect(Path(run))} if run else {world: made_up(world) for world in WORLDS}
    with sync_playwright() as playwright:
        browser = launch(playwright)
        for name, data in pages.items():
            file = write_page(render_report(data), folder / f"{name}.html").resolve()
            for width in (390, 1400):
                for theme in ("light", "dark"):
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
                    page.goto(file.as_uri())
                    target = folder / f"{name}-{width}-{theme}.png"
                    page.screenshot(path=target, full_page=True)
                    print(target)
                    page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
