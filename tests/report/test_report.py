"""The report: one file, opens offline, shows what was played, and runs nothing that a model wrote."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

import pytest
from tests.report.pages import made_up

from spa.agent.episode import Episode, Turn
from spa.evaluate.summary import EvalResult, comparison_cells, comparison_table
from spa.report.data import ReportData, VariantReport
from spa.report.html import _comparison, render_report, write_page

EVIL = [
    "<script>alert(1)</script>",
    "</pre><b>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(2)</script>",
    "{{ 7*7 }}",
]


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.script = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.script = tag in ("script", "style")

    def handle_endtag(self, tag):
        self.script = False

    def handle_data(self, data):
        if not self.script:
            self.text.append(data)

    @property
    def words(self) -> str:
        return "".join(self.text)


def episode(text: str, group: int = 0) -> Episode:
    turn = Turn(
        0,
        "#P\n_#" + text,
        "u",
        text,
        "#_\nP#",
        True,
        text,
        "#_\n_#",
        ["Down"],
        ["Down"],
        reward=-0.1,
        info={"success": False},
    )
    return Episode("T", group, group, content=str(group), turns=[turn])


def data(text: str = "plain") -> ReportData:
    episodes = [episode(text, g) for g in range(3)]
    metrics = [
        {
            "step": s,
            "val/pass@1": 0.1 * s,
            "train/success": 0.2,
            "losses/entropy": 1.0,
            "world_model/observation_em": 0.5,
        }
        for s in range(4)
    ]
    variants = {
        name: VariantReport(metrics, EvalResult.from_episodes(name, episodes, [1], 50), episodes)
        for name in ("vanilla", f"spa{text if text != 'plain' else ''}")
    }
    return ReportData(
        name=f"run {text}",
        config={"env": {"id": text}},
        versions={"torch": text},
        machine={"CPU": text},
        variants=variants,
        sft=[{"step": 1, "train/loss": 1.0}, {"step": 2, "train/loss": 0.5, "val/loss": 0.7}],
        overlaps={"train&test": 0},
        symmetric_overlaps={"train&test": 17},
        timings={"SFT": 61.0},
    )


@pytest.mark.parametrize("text", EVIL)
def test_nothing_written_by_a_model_becomes_markup(text: str) -> None:
    html = render_report(data(text))
    page, plain = Page(html), Page(render_report(data()))
    assert not any(tag == "img" or "onerror" in attrs for tag, attrs in page.tags)
    assert [tag for tag, _ in page.tags].count("script") == 2  # the theatre's data and the page's script
    assert [tag for tag, _ in page.tags].count("b") == [tag for tag, _ in plain.tags].count("b")
    assert text in page.words


def test_it_opens_offline() -> None:
    page = Page(render_report(data()))
    for tag, attrs in page.tags:
        for name in ("src", "href"):
            if tag in ("script", "link", "img", "iframe"):
                assert not (attrs.get(name) or "").startswith(("http", "//"))


def test_it_is_small_and_allows_its_own_style_sheet_and_script_only() -> None:
    html = render_report(data())
    css, script = html.split("<style>")[1].split("</style>")[0], html.split("<script>")[1].split("</script>")[0]
    style, code = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (css, script))
    assert (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{code}'; img-src blob:; base-uri" in html
    )
    assert "unsafe" not in html
    assert not any("style" in attrs for _, attrs in Page(html).tags)  # the policy would ignore it
    assert len(html) < 100_000


def test_the_world_model_is_shown_after_sft_too() -> None:
    assert "truth likeliest" not in Page(render_report(data())).words
    shown = data()
    measured = {"world_model/prediction_legal": 0.125, "calibration/top1": 0.375, "perplexity/grid": 3.25}
    shown.sft = [*shown.sft, {"step": 3, **measured}]
    words = Page(render_report(shown)).words
    for expected in ("after SFT", "prediction legal %", "12.5", "truth likeliest %", "37.5", "perplexity, raw", "3.25"):
        assert expected in words


def test_table_episodes_and_facts_are_there() -> None:
    words = Page(render_report(data())).words
    for piece in ["vanilla", "spa", "Pass@1", "train", "test", "1 min 01 s", "#P", "Down", "mirror images", "17"]:
        assert piece in words


def test_the_verdict_stands_first() -> None:
    words = Page(render_report(data())).words
    first = words.index("spa 0.0 was not compared with its base and is not above plain RL 0.0; one seed: no claim.")
    assert first < words.index("spa 0.0 is not above vanilla 0.0: +0.0 [−70.8, +70.8].") < words.index("Comparison")
    assert "excludes 0" not in words


def test_differing_cells_are_marked() -> None:
    from spa.report.turns import mark_differences

    assert [text for line in mark_differences("#_\n_#", "#_\nP#") for text, differs in line if differs] == ["_"]
    moved = mark_differences("  @\nexit", "    @\nexit")
    assert any(differs for _, differs in moved[0]), "blanks may be the map"


@pytest.mark.parametrize(
    "part",
    [
        ReportData("empty"),
        ReportData("variant", variants={"vanilla": VariantReport()}),
        ReportData("metrics", variants={"vanilla": VariantReport([{"step": 0}, {"step": 1, "val/pass@1": None}])}),
        ReportData("no turns", variants={"vanilla": VariantReport(episodes=[Episode("T", 0, 0)])}),
    ],
    ids=lambda part: part.name,
)
def test_what_is_missing_is_left_out(part: ReportData) -> None:
    assert part.name in Page(render_report(part)).words


def test_the_file_is_written_whole(tmp_path) -> None:
    path = write_page(render_report(data()), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_half_of_the_shown_episodes_have_predictions_where_there_are_any() -> None:
    from spa.report.turns import choose_episodes

    told = [episode("x", g) for g in range(5)]
    plain = [Episode("T", g, g, turns=[Turn(0, "s", "u", "r")], success=g == 7) for g in range(5, 10)]
    shown = choose_episodes(plain + told, 4)
    assert [bool(e.turns[0].prediction) for e in shown] == [False, False, True, True]
    assert shown[0].success
    assert len(choose_episodes(told, 4)) == 4
    assert len(choose_episodes(plain, 9)) == 5
    assert choose_episodes(plain + told, 0) == []


def test_each_figure_stands_under_its_own_heading() -> None:
    results = {name: report.result for name, report in made_up().variants.items() if report.result is not None}
    rows = comparison_table(results)
    header, cells = comparison_cells(rows)
    table = _comparison(rows)
    assert table is not None and table.header[0] == "Pass@1 - base"
    shown = {variant: dict(zip(table.header, line, strict=True)) for variant, line in table.rows}
    assert shown == {row.variant: dict(zip(header, line, strict=True)) for row, line in zip(rows, cells, strict=True)}


def test_white_space_that_is_the_state_is_not_cut_off() -> None:
    from spa.report.boards import Alphabet
    from spa.report.predictions import _examples
    from spa.report.turns import view

    turn = Turn(0, "  @", "", "", "   @", executed=["Right"], observation="\n  @\n", prediction=" @")
    seen = view(Episode("Lake", 0, 0, turns=[turn]))
    assert [side.exact for side in seen.turns[0].sides] == [True, False]
    assert any(differs for _, differs in seen.turns[0].sides[1].written[0])
    assert len(list(_examples([Episode("Lake", 0, 0, turns=[turn])], Alphabet()))) == 1, "the move changed the map"
