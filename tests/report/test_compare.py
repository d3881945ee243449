"""Runs side by side, on made-up evaluations."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

import spa
from spa.cli import main
from spa.config.load import load_config, to_yaml
from spa.evaluate.summary import EvalResult, WorldResult
from spa.report.compare import compare_runs


def make_run(
    folder: Path,
    wins: dict[str, list[int]],
    *settings: str,
    seed: int = 0,
    task: str = "Lake",
    first: int = 0,
    content: str = "w",
    variants: dict[str, dict] | None = None,
) -> Path:
    """A run whose ``variants`` (name -> settings) won ``wins`` of 4 samples in worlds ``first``, ``first + 1``, ..."""
    folder.mkdir(parents=True)
    cfg = load_config("frozen_lake", [f"seeds.run={seed}", "variants=[vanilla,spa]", *settings])
    (folder / "config.yaml").write_text(to_yaml(cfg))
    definitions = {name: {"name": name, "settings": each} for name, each in (variants or {}).items()}
    (folder / "run.json").write_text(json.dumps({"variants": definitions}))
    for name, won in wins.items():
        worlds = [WorldResult(i, first + i, f"{content}{first + i}", n, 4) for i, n in enumerate(won)]
        out = folder / "variants" / name / "eval"
        out.mkdir(parents=True)
        EvalResult(name, task, worlds, ks=[1, 4]).write(out / "result.json")
    return folder


def test_differences_are_paired_on_the_common_worlds(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {"spa": [0, 1, 2, 3, 4, 0]})
    two = make_run(tmp_path / "two", {"spa": [2, 3, 4, 1]}, "ppo.actor_lr=0.001", first=1)
    comparison = compare_runs([one, two])
    (table,) = comparison.tables
    assert (table.worlds, table.played) == (4, {str(one): 6, str(two): 4})
    row = table.groups[1]
    # Worlds 1 to 4: 1, 2, 3, 4 wins against 2, 3, 4, 1.
    assert (row.passes[1].mean, row.differences[1].mean) == (10 / 16, 0.0)
    assert row.differences[1].low < 0 < row.differences[1].high
    assert f"spa: {two} is not clearly different from {one}: +0.0" in str(comparison)
    assert "on 4 common worlds, one training run each: this compares these models" in str(comparison)
    assert comparison.settings["ppo.actor_lr"][1] == "0.001"


def test_runs_of_the_same_recipe_are_its_seeds(tmp_path: Path) -> None:
    slow = [make_run(tmp_path / f"slow{s}", {"spa": [s, 1, 1, 0] * 8}, seed=s) for s in range(3)]
    fast = [
        make_run(tmp_path / f"fast{s}", {"spa": [s + 2, 3, 4, 3] * 8}, "ppo.actor_lr=0.001", seed=s) for s in range(3)
    ]
    for run in slow:
        (run / "variants" / "spa" / "ppo").mkdir()
        rows = [{"step": step, "val/pass@1": 0.1 * step} for step in (0, 10)]
        (run / "variants" / "spa" / "ppo" / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    comparison = compare_runs([*slow, *fast])
    assert comparison.html().count('class="seed"') == 3, "behind the one mean that there is"
    (table,) = comparison.tables
    assert [row.label for row in table.groups] == [f"{slow[0]} (3 seeds)", f"{fast[0]} (3 seeds)"]
    assert table.groups[1].shared_seeds == 3
    assert table.groups[1].differences[1].mean == pytest.approx((2 + 2 + 3 + 3) / 16)
    assert "is above" in table.sentences()[0] and "on 32 common worlds, 3 seeds." in table.sentences()[0]


def test_runs_of_an_edited_variant_are_no_seeds_of_one_recipe(tmp_path: Path) -> None:
    """The config names its file alone."""

    def seeds(name: str, numbers: tuple[int, ...], lam: float) -> list[Path]:
        return [
            make_run(
                tmp_path / f"{name}{seed}",
                {"mine": [seed, 1]},
                seed=seed,
                variants={"mine": {"ppo.lam": lam, "eval.worlds": 8 + seed}, "unevaluated": {"ppo.lam": seed}},
            )
            for seed in numbers
        ]

    runs = [*seeds("high", (0, 1), 0.9), *seeds("low", (2, 3), 0.1)]
    comparison = compare_runs(runs)
    assert [list(group.folders) for group in comparison.groups] == [[0, 1], [2, 3]]
    assert comparison.settings["mine: settings.ppo.lam"] == ["0.9", "0.1"]
    assert not [key for key in comparison.settings if key.startswith("unevaluated")]
    unknown = make_run(tmp_path / "earlier", {"mine": [1, 1]}, seed=4)
    assert [len(group.folders) for group in compare_runs([*runs, unknown]).groups] == [3, 2]


def test_seeds_of_one_recipe_are_compared_with_each_other(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"run{s}", {"spa": [s, 1]}, seed=s) for s in range(2)]
    comparison = compare_runs(runs)
    assert len(comparison.tables[0].groups) == 2
    assert comparison.settings == {"seeds.run": ["0", "1"]}


def test_recipes_without_a_common_seed_are_compared_over_seeds(tmp_path: Path) -> None:
    """Worlds alone would make two or three other seeds look certain."""
    few = [make_run(tmp_path / f"kl+{s}", {"spa": [n] * 32}, seed=s) for s, n in enumerate((0, 3, 1))]
    many = [
        make_run(tmp_path / f"kl-{s}", {"spa": [n] * 32}, "ppo.lam=0.5", seed=s) for s, n in ((5, 1), (6, 4), (7, 2))
    ]
    comparison = compare_runs([*few, *many])
    (table,) = comparison.tables
    apart = table.groups[1].differences[1]
    assert apart.mean == pytest.approx(1 / 4) and apart.low < 0 < apart.high
    first, second = (group.passes[1] for group in table.groups)
    down = math.hypot(second.mean - second.low, first.high - first.mean)
    up = math.hypot(second.high - second.mean, first.mean - first.low)
    assert (apart.mean - apart.low, apart.high - apart.mean) == pytest.approx((down, up)), "MOVER"
    assert "on 32 common worlds, 3 and 3 seeds, none of them shared." in table.sentences()[0]
    plus = make_run(tmp_path / "kl+again", {"spa": [1] * 32}, "ppo.lam=0.5", seed=0)
    html = compare_runs([few[0], plus]).html()
    assert len(set(re.findall(r'class="dot".*?fill="(#\w{6})"', html))) == 2, "a + in a name is no planner"
    one = compare_runs([few[0], *many]).tables[0].groups[1].differences[1]
    assert one.low > 0, "one run against several: for other worlds alone"


def test_a_run_repeated_says_that_nothing_differs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, {"base": [1] * 32, "vanilla": [2] * 32, "spa": [3] * 32}) for name in "ab"]
    text = str(spa.compare(*runs))
    assert f"spa: {runs[1]} wins every world as often as {runs[0]}: +0.0 [-10.9, +10.9] on 32 common worlds" in text
    assert f"Within {runs[0]}: spa 75.0 is above its base 25.0 and is above plain RL 50.0; one seed: no claim." in text


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"task": "Sokoban"}, "different tasks cannot be compared: .*one played Lake, .*two played Sokoban"),
        ({"first": 9}, "spa: .* have no test world in common .compare seeds.test."),
        ({"content": "x"}, "the worlds are not: compare env.settings"),
        ({"wins": {"vanilla": [1]}}, "no variant was evaluated in two of the runs: .*one has spa; .*two has vanilla"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(tmp_path: Path, other: dict, message: str) -> None:
    one = make_run(tmp_path / "one", {"spa": [1, 2]})
    two = make_run(tmp_path / "two", **({"wins": {"spa": [1, 2]}} | other))
    with pytest.raises(ValueError, match=message):
        compare_runs([one, two])


def test_the_command_prints_and_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(make_run(tmp_path / name, {"spa": [1, 2]})) for name in ("a", "<b>")]
    page = tmp_path / "page.html"
    assert main(["compare", *runs, "--html", str(page)]) == 0
    assert "Compared on 2 test worlds" in capsys.readouterr().out
    html = page.read_text()
    assert "default-src 'none'" in html and html.count("<script") == 1
    assert "<b>" not in html.replace("<b>Validation", "")
    assert main(["compare", runs[0]]) == 2 and main(["compare", runs[0], runs[0]]) == 2
    assert "compare at least two different run folders" in capsys.readouterr().err


@pytest.mark.parametrize(("shuffled", "open_still"), [([0] * 8, False), ([4] * 8, True)])
def test_the_recipe_is_compared_with_its_controls(tmp_path: Path, shuffled: list[int], open_still: bool) -> None:
    wins = {"base": [0] * 8, "vanilla": [1] * 8, "shuffled": shuffled, "spa": [4, 3] * 4}
    runs = [make_run(tmp_path / f"{seed}", wins, seed=seed) for seed in (1, 2)]
    other = make_run(tmp_path / "other", wins, "ppo.actor_lr=0.001")
    shown = str(compare_runs([*runs, other]))
    assert "was not compared with" not in shown
    assert ("is above shuffled" in shown) != open_still
    assert ("It is not shown that learning true states is the reason" in shown) == open_still


def test_what_the_other_runs_lack_still_counts(tmp_path: Path) -> None:
    """A control that only one of the groups trained, and a group of the recipe alone."""
    wins = {"base": [0] * 8, "vanilla": [1] * 8, "shuffled": [4] * 8, "spa": [4, 3] * 4}
    whole = [make_run(tmp_path / f"whole{seed}", wins, seed=seed) for seed in (1, 2)]
    without = {name: won for name, won in wins.items() if name != "shuffled"}
    for name, others in (("less", without), ("alone", {"spa": wins["spa"]})):
        runs = [make_run(tmp_path / f"{name}{seed}", others, "ppo.actor_lr=0.001", seed=seed) for seed in (1, 2)]
        first, *rest = [line for line in str(compare_runs([*whole, *runs])).splitlines() if line.startswith("Within")]
        assert "was not compared with" not in first
        assert "It is not shown that learning true states is the reason" in first
        assert len(rest) == (name == "less") and all("No control is compared" in line for line in rest)


def test_a_run_that_is_not_evaluated_yet_stands_beside_others(tmp_path: Path) -> None:
    wins = {"base": [0] * 4, "spa": [1, 2, 3, 4]}
    runs = [make_run(tmp_path / "one", wins), make_run(tmp_path / "two", wins, "ppo.actor_lr=0.001")]
    assert "Within" in str(compare_runs([*runs, make_run(tmp_path / "training", {}, "ppo.steps=7")]))


def test_the_seeds_that_are_left_of_failed_ones_carry_no_claim(tmp_path: Path) -> None:
    wins = {"base": [0] * 8, "vanilla": [1] * 8, "spa": [4, 3] * 4}
    runs = [make_run(tmp_path / f"{seed}", wins, seed=seed) for seed in (1, 2)]
    assert "better than both" in str(compare_runs([*runs, make_run(tmp_path / "other", wins, "ppo.actor_lr=0.001")]))
    lost = make_run(tmp_path / "3", {name: wins[name] for name in ("base", "vanilla")}, seed=3)
    ended = {"command": "run", "error": "ValueError: variant spa was not evaluated: training collapsed at step 5"}
    (lost / "run.json").write_text(json.dumps({"commands": [ended]}))
    shown = str(compare_runs([*runs, lost, tmp_path / "other"]))
    assert "no claim, since seeds of spa failed" in shown and "better than both" not in shown


def test_a_sentence_is_about_one_set_of_worlds(tmp_path: Path) -> None:
    """Base was played in fewer worlds elsewhere, the recipe here alone."""
    one = make_run(tmp_path / "one", {"base": [0, 0, 0, 4, 0, 0]})
    two = make_run(tmp_path / "two", {"base": [0, 0, 0, 4] * 2, "spa": [1] * 6 + [4, 4]}, "ppo.actor_lr=0.001")
    (within,) = (line for line in str(compare_runs([one, two])).splitlines() if line.startswith("Within"))
    assert "spa 25.0 is not clearly above base 16.7: +8.3 [" in within


def test_a_folders_name_is_no_markup_in_a_notebook(tmp_path: Path) -> None:
    comparison = compare_runs([make_run(tmp_path / name, {"spa": [1, 2]}) for name in ("a", "<b>")])
    assert "&lt;b&gt;" in comparison._repr_html_() and "<b>" not in comparison._repr_html_()
