"""The report in a real browser: the theatre plays by keys, filters filter, links open, and hostile text stays text.

``make test-browser`` runs them; they need the extra ``browser`` and Debian's chromium.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="needs the extra 'browser'")

from playwright.sync_api import Browser, Page, expect
from tests.agent.test_hostile_replies import page as replies_page
from tests.agent.test_hostile_replies import played  # noqa: F401 (a fixture)
from tests.report.conftest import serious
from tests.report.pages import HOSTILE, made_up
from tests.report.test_compare import make_run

from spa.agent.episode import Episode
from spa.report.compare import compare_runs
from spa.report.html import render_report, write_page
from spa.reproduce.numbers_file import read_numbers
from spa.reproduce.page import write_reproduction
from spa.reproduce.scale import load_scale
from spa.runs.metrics import MetricsLog

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {world: made_up(world) for world in ("frozen_lake", "sokoban", "sudoku", "countdown")}
    pages["hostile"] = made_up(text=HOSTILE)
    pages["long"] = made_up("countdown", text="x" * 100_000, worlds=2)
    written = {name: write_page(render_report(data), folder / f"{name}.html") for name, data in pages.items()}
    return written | tables(folder)


def tables(folder: Path) -> dict[str, Path]:
    """The page of a comparison, two recipes with two seeds each, and that of a published reproduction."""
    runs = []
    for number in range(4):
        settings = ["ppo.actor_lr=0.001"] if number > 1 else []
        runs.append(make_run(folder / f"run{number}", {"spa": [1, 2]}, *settings, seed=number % 2))
        with MetricsLog(runs[-1] / "variants" / "spa" / "ppo" / "metrics.jsonl") as log:
            for step in range(9):
                log.log(step, {"val/pass@1": 0.1 * ((step * (number + 2)) % 7)})
    scale = load_scale("main")
    numbers = read_numbers([ROOT / "docs" / "results" / "main.json"], scale)
    return {
        "comparison": write_page(compare_runs(runs).html(), folder / "comparison.html"),
        "reproduction": write_reproduction(scale, numbers, folder / "reproduction.html"),
    }


@pytest.fixture
def trouble() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, files: dict[str, Path], trouble: list[str]) -> Iterator[Page]:
    """A page that notes in ``trouble`` what is printed on the console, thrown or asked of the network."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    opened.on("console", lambda message: trouble.append(message.text))
    opened.on("pageerror", lambda error: trouble.append(str(error)))
    opened.on("dialog", lambda dialog: trouble.append(dialog.message))
    opened.on(
        "request",
        lambda request: trouble.append(request.url) if not request.url.startswith(("file:", "blob:")) else None,
    )
    opened.goto(files["frozen_lake"].as_uri())
    yield opened
    opened.close()


def turn(page: Page) -> str:
    return page.inner_text("[data-turn]")


def choices(page: Page, name: str) -> list[str]:
    texts: list[str] = page.locator(f"select[name={name}] option").all_text_contents()
    return texts


@pytest.mark.parametrize("name", ["frozen_lake", "sokoban", "sudoku", "countdown", "hostile", "long"])
def test_a_page_opens_without_errors_and_requests(
    page: Page, files: dict[str, Path], trouble: list[str], name: str
) -> None:
    page.goto(files[name].as_uri())
    assert page.locator(".pane").count() == (1 if name == "long" else 2)  # few episodes of that size fit
    assert (page.locator(".stage .board").count() > 0) == (name not in ("countdown", "long"))
    if trained := "training" in choices(page, "split"):
        page.select_option("select[name=split]", "training")
    for colour in ("mask", "logprob", *["advantage"] * trained):
        page.select_option("select[name=colour]", colour)
        assert page.locator(".stage .t-off").count() > 0
    assert trouble == []


def test_it_plays_by_keys(page: Page) -> None:
    page.focus("[data-stage]")
    last = int(turn(page).split()[-1])
    assert turn(page) == f"turn 1 of {last}"
    page.keyboard.press("ArrowRight")
    assert turn(page) == f"turn 2 of {last}" and "turn 2" in page.inner_text(".pane >> nth=1")
    page.keyboard.press("End")
    assert turn(page) == f"turn {last} of {last}"
    page.keyboard.press("ArrowRight")
    assert turn(page) == f"turn {last} of {last}"
    page.keyboard.press("ArrowLeft")
    assert turn(page) == f"turn {last - 1} of {last}"
    page.keyboard.press("Space")
    assert page.get_attribute("[data-go=play]", "aria-label") == "Pause"
    page.keyboard.press("Space")
    assert page.get_attribute("[data-go=play]", "aria-label") == "Play"
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(page.locator("[data-turn]")).to_have_text(f"turn {last} of {last}", timeout=20_000)
    assert page.get_attribute("[data-go=play]", "aria-label") == "Play"


def test_buttons_and_the_slider_step_too(page: Page) -> None:
    page.click("[data-go=on]")
    assert turn(page).startswith("turn 2")
    page.click("[data-go=first]")
    page.focus("[data-scrub]")
    page.keyboard.press("ArrowRight")
    assert turn(page).startswith("turn 2")


def test_filters_choose_episodes(page: Page) -> None:
    every = choices(page, "left")
    page.select_option("select[name=variant]", "vanilla")
    page.select_option("select[name=split]", "training")
    assert choices(page, "left") == [text for text in every if text.startswith("vanilla · training")]
    page.select_option("select[name=step]", "10")
    assert choices(page, "left") and all("step 10" in text for text in choices(page, "left"))
    assert f"{len(choices(page, 'left'))} of {len(every)}" in page.inner_text("[data-count]")
    page.select_option("select[name=split]", "test")
    assert choices(page, "left") == [] and "No episode matches" in page.inner_text("[data-stage]")
    page.select_option("select[name=step]", "")
    page.select_option("select[name=variant]", "")
    page.select_option("select[name=outcome]", "success")
    assert choices(page, "left") and all("success" in text for text in choices(page, "left"))


def test_trained_tokens_are_coloured_by_advantage(page: Page) -> None:
    page.select_option("select[name=colour]", "advantage")
    assert "not trained on" in page.inner_text(".pane >> nth=0")
    page.select_option("select[name=split]", "training")
    colours = page.locator(".pane >> nth=0 >> .response span")
    kinds = colours.evaluate_all("spans => spans.map(span => span.className)")
    assert kinds == ["t-off", "t-n0", "t-n0", "t-n1", "t-a2", "t-a1", "t-a0", "t-a0"]
    assert colours.nth(1).get_attribute("title") == "log-prob 0, advantage -1.2, value 0.5"
    assert "≥ 0.60" in page.inner_text(".pane >> nth=0 >> .key")


def test_two_variants_stand_side_by_side_in_the_same_world(page: Page) -> None:
    assert len(set(page.locator(".pane .variant").all_inner_texts())) == 2
    assert page.locator(".pane header").all_inner_texts()[0].split()[0] == "spa"
    page.select_option("select[name=left]", index=3)
    seed = choices(page, "left")[3].split("seed ")[1].split()[0]
    others = choices(page, "right")[1:]
    assert others and all(f"seed {seed} " in text for text in others)
    drawn = page.locator(".pane .shot:first-child .board")
    assert drawn.nth(0).get_attribute("aria-label") == drawn.nth(1).get_attribute("aria-label")


def test_a_permalink_opens_its_episode(page: Page, files: dict[str, Path]) -> None:
    page.select_option("select[name=variant]", "vanilla")
    page.select_option("select[name=left]", index=2)
    wanted = page.locator("select[name=left] option:checked").text_content()
    link = page.get_attribute("[data-permalink]", "href")
    page.goto("about:blank")
    page.goto(f"{files['frozen_lake'].as_uri()}{link}")
    expect(page.locator("[data-stage]")).to_be_focused()
    assert page.locator("select[name=left] option:checked").text_content() == wanted


def test_wrong_cells_of_a_prediction_are_outlined(page: Page) -> None:
    page.select_option("select[name=variant]", "base")
    page.select_option("select[name=split]", "test, with predictions")
    for _ in range(6):
        if page.locator(".pane >> nth=0 >> .wrong").count():
            break
        page.click("[data-go=on]")
    assert page.locator(".pane >> nth=0").locator(".wrong").count() > 0
    assert page.locator(".pane >> nth=0").locator(".tag.bad", has_text="differs").count() == 1


def saved(page: Page, kind: str) -> bytes:
    with page.expect_download() as download:
        page.click(f"[data-save={kind}]")
    assert download.value.suggested_filename.endswith(f".{kind}")
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("name", ["frozen_lake", "countdown", "hostile"])
def test_what_is_shown_can_be_saved(page: Page, files: dict[str, Path], name: str) -> None:
    page.goto(files[name].as_uri())
    lines: list[dict[str, Any]] = [json.loads(line) for line in saved(page, "jsonl").splitlines()]
    assert [line["variant"] for line in lines] == page.locator(".pane .variant").all_inner_texts()
    drawing = ElementTree.fromstring(saved(page, "svg"))
    tags = {element.tag.partition("}")[2] for element in drawing.iter()}
    assert "text" in tags and not tags & {"script", "img", "foreignObject"}
    assert any(element.get("class") == "board" for element in drawing) == (name != "countdown")
    pixels = saved(page, "png")
    width, height = (int.from_bytes(pixels[at : at + 4]) for at in (16, 20))  # of the header, after the signature
    assert pixels.startswith(b"\x89PNG")
    assert (width, height) == pytest.approx([2 * float(drawing.attrib[side]) for side in ("width", "height")], abs=2)


def test_hostile_text_stays_text(page: Page, files: dict[str, Path], trouble: list[str]) -> None:
    page.goto(files["hostile"].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert page.title().startswith("frozen_lake, made up</script><script>document.title='owned'</script><img")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert "<script>document.title='owned'</script>" in page.inner_text(".pane >> nth=0")
    assert trouble == []


def test_500_hostile_replies_run_no_script(
    page: Page,
    tmp_path: Path,
    trouble: list[str],
    played: list[Episode],  # noqa: F811 (the fixture)
) -> None:
    staged = 0
    for first in range(0, 500, 10):  # of more, most would not fit into the theatre
        page.goto(write_page(replies_page(played[first : first + 10]), tmp_path / f"{first}.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
        episodes = page.locator("select[name=left] option").count()
        staged += episodes
        for index in range(episodes):
            page.select_option("select[name=left]", index=index)
            page.select_option("select[name=colour]", index=index % 3)
        assert page.title() == "run – SPA report" and page.locator("img, iframe, object").count() == 0
    assert staged > 400 and trouble == []


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize(
    "name", ["frozen_lake", "sudoku", "countdown", "hostile", "long", "comparison", "reproduction"]
)
def test_nothing_is_clipped(page: Page, files: dict[str, Path], name: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(files[name].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_curves_can_be_smoothed(page: Page) -> None:
    line = page.locator("#learning polyline").first
    measured = line.get_attribute("points")
    page.focus("[data-smoothing]")
    page.keyboard.press("End")
    assert line.get_attribute("points") != measured
    assert page.locator("#learning .raw").first.get_attribute("points") == measured
    page.keyboard.press("Home")
    assert page.locator("#learning .raw").count() == 0


def test_so_can_those_of_a_comparison_and_its_seeds_stay_thin(
    page: Page, files: dict[str, Path], trouble: list[str]
) -> None:
    page.goto(files["comparison"].as_uri())
    seeds = page.locator(".seed").count()
    page.focus("[data-smoothing] >> nth=0")
    page.keyboard.press("End")
    assert (
        seeds == 4 and page.locator(".raw").count() == page.locator(".charts polyline:not(.seed):not(.raw)").count() > 0
    )
    assert trouble == []


def test_without_javascript_everything_is_there(browser: Browser, files: dict[str, Path]) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(files["frozen_lake"].as_uri())
    assert not page.locator("#theatre").is_visible() and not page.locator("[data-smoothing]").is_visible()
    page.click("#texts > summary")
    page.click(".episode >> nth=0 >> summary")
    assert page.locator(".episode .turn").first.is_visible()
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["frozen_lake", "countdown", "comparison", "reproduction"])
def test_axe_finds_nothing_serious(page: Page, files: dict[str, Path], name: str, theme: Any) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(files[name].as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    if page.locator("#theatre").count():
        page.select_option("select[name=split]", "training")
        page.select_option("select[name=colour]", "advantage")
    assert serious(page) == {}
