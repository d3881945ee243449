"""``spa reproduce``: every world, variant and seed, and the table of them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spa.cli import main
from spa.config.variants import variants_of
from spa.evaluate.summary import EvalResult, WorldResult
from spa.reproduce.bases import write_variants
from spa.reproduce.jobs import at_once, run_cells
from spa.reproduce.numbers_file import from_json, join, read_numbers, to_json
from spa.reproduce.page import charts, write_reproduction
from spa.reproduce.paper import paper_numbers
from spa.reproduce.results import Numbers, VariantNumbers, collect_cells, compute
from spa.reproduce.scale import Cell, cells, load_scale
from spa.reproduce.table import markdown
from spa.runs.folder import RunFolder
from tests.test_pipeline import SMALL

WORLDS = 48  # of which one in twelve is never won


def scale_file(tmp_path: Path, **changes: object) -> str:
    data = {
        "about": "small",
        "worlds": {"lake": {"config": "frozen_lake"}, "room": {"config": "sokoban", "settings": ["ppo.steps=1"]}},
        "variants": ["vanilla", "spa"],
        "seeds": [0, 1],
        "settings": [*SMALL, "selfplay.groups=4"],
        **changes,
    }
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    return str(path)


# How many at once


@pytest.mark.parametrize(
    "runs, cores, expected",
    [(1, 1, 1), (3, 1, 1), (1, 2, 2), (2, 2, 2), (3, 2, 3), (4, 2, 2), (5, 2, 2), (9, 8, 9), (3, 16, 16)],
)
def test_runs_at_once(runs: int, cores: int, expected: int) -> None:
    assert at_once(runs, cores) == expected


# From folders to numbers


def result(folder: Path, variant: str, successes: list[int]) -> None:
    worlds = [WorldResult(i, i, str(i), s, 8) for i, s in enumerate(successes)]
    metrics = {"num_turns": 4.0, "num_actions": 6.0, "cut_off": 0.5, "reward": 0.25}
    found = EvalResult(variant, "Lake", worlds, metrics, {"world_model/prediction_em": 0.25}, [1, 8], [], 100, 0)
    path = folder / "variants" / variant / "eval"
    path.mkdir(parents=True)
    found.write(path / "result.json")
    stage = folder / "variants" / variant / "ppo"
    stage.mkdir()
    if variant != "base":
        (stage / "done.json").write_text('{"seconds": 60.0, "cpu_seconds": 50.0, "actions": 100}')
        higher = 0.05 * int(folder.name.removeprefix("seed-"))
        lines = [json.dumps({"step": s, "val/pass@1": 0.1 * s + higher * (s == 2), "time": 0.0}) for s in (0, 1, 2)]
        (stage / "metrics.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def finished(tmp_path: Path) -> list[Cell]:
    runs = []
    for seed in (0, 1):
        folder = tmp_path / "lake" / f"seed-{seed}"
        for variant, wins in (("base", 1), ("vanilla", 2 + seed), ("spa", 4 + seed)):
            result(folder, variant, [wins] * (WORLDS - WORLDS // 12) + [0] * (WORLDS // 12))
        (folder / "config.yaml").write_text("variants: [vanilla, spa]\n")
        for stage, seconds in (("selfplay", 10), ("sft", 20)):
            (folder / stage).mkdir()
            record = {"seconds": seconds, "cpu_seconds": seconds / 2} | ({"actions": 7} if stage == "selfplay" else {})
            (folder / stage / "done.json").write_text(json.dumps(record))
        runs.append(Cell("lake", seed, "frozen_lake", (), folder, ("vanilla", "spa", "se")))
    return runs


def test_means_differences_times_and_curves(finished: list[Cell]) -> None:
    variants = collect_cells(finished)["lake"]
    assert list(variants) == ["base", "vanilla", "spa"], "se is not finished"
    spa = variants["spa"]
    assert spa.seeds == [0, 1]
    assert spa.passes[1].mean == pytest.approx((4 + 5) / 16 * 11 / 12)
    assert spa.passes[8].mean == pytest.approx(11 / 12)
    assert spa.differences["vanilla"][1].mean == pytest.approx(2 / 8 * 11 / 12)
    assert spa.differences["vanilla"][1].low > 0
    assert variants["vanilla"].differences == {}
    assert spa.successes == {0: [4] * 44 + [0] * 4, 1: [5] * 44 + [0] * 4}
    assert variants["base"].differences["vanilla"][1].mean == pytest.approx((1 - 2.5) / 8 * 11 / 12)
    assert spa.seconds == {"self-play": 10, "SFT": 20, "PPO": 60}
    assert variants["vanilla"].seconds == {"PPO": 60}
    assert spa.cpu_seconds == {"self-play": 5, "SFT": 10, "PPO": 50}
    assert spa.actions == {"self-play": 7, "PPO": 100} and variants["base"].actions == {}
    assert spa.curves["val/pass@1"] == [(0, 0.0), (1, 0.1), (2, pytest.approx(0.225))]
    assert [curve[-1][1] for curve in spa.curves_by_seed["val/pass@1"]] == [0.2, 0.25]
    assert spa.world_model == {"world_model/prediction_em": 0.25}
    assert spa.actions_by_seed == {0: 1.5, 1: 1.5}
    assert spa.cut_off_by_seed == {0: 0.5, 1: 0.5} and spa.reward_by_seed == {0: 0.25, 1: 0.25}
    assert json.loads(to_json({"lake": variants}))["lake"]["spa"]["by_seed"]["1"] == pytest.approx(5 / 8 * 11 / 12)


def test_the_judged_variant_is_compared_with_every_control() -> None:
    """The verdict asks for them, whatever else a scale compares."""
    wins = {"base": 0, "vanilla": 1, "spa": 3, "shuffled": 2, "self_belief": 1}
    entries = {name: VariantNumbers("same", 4, {0: [won] * 6, 1: [won] * 6}) for name, won in wins.items()}
    compute({"lake": entries}, ["vanilla"])
    assert set(entries["spa"].differences) == {"base", "vanilla", "shuffled", "self_belief"}
    assert set(entries["shuffled"].differences) == {"vanilla"}


def test_numbers_in_a_file_give_the_same_table_again(finished: list[Cell], tmp_path: Path, capsys) -> None:
    numbers = {"lake": collect_cells(finished, versus=["vanilla", "base"])["lake"]}
    path, scale = tmp_path / "numbers.json", scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}})
    path.write_text(to_json(numbers))
    again = from_json(path.read_text())
    assert again["lake"]["spa"].passes == {}, "what follows from the successes is worked out anew"
    compute(again, ["vanilla", "base"])
    assert again == numbers
    assert main(["reproduce", "--scale", scale, "--numbers", str(path)]) == 0
    assert capsys.readouterr().out.rstrip("\n") == markdown(load_scale(scale), numbers).rstrip("\n")
    for unused in (["--seeds", "0"], ["--dry-run"], ["--table"], ["--parallel", "1"], ["ppo.steps=2"]):
        assert main(["reproduce", "--scale", scale, "--numbers", str(path), *unused]) == 2
        assert f"leave out {'settings' if '=' in unused[0] else unused[0]}\n" in capsys.readouterr().err
    assert main(["reproduce", "--scale", scale, "--numbers", str(path), "--variants", "spa"]) == 0
    assert "left out, since they are not among the variants" in capsys.readouterr().err
    assert main(["reproduce", "--scale", scale, "--numbers", str(path), "--variants", "spaa"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.splitlines()[-1] == (
        "Error: unknown variant of the numbers 'spaa'; choose one of base, vanilla, spa. Did you mean 'spa'?"
    )
    whole = path.read_text()
    damaged = json.loads(whole)
    damaged["lake"]["spa"]["successes"] = dict.fromkeys(damaged["lake"]["spa"]["successes"], "3")
    path.write_text(json.dumps(damaged))
    assert main(["reproduce", "--scale", scale, "--numbers", str(path)]) == 2
    assert "have different numbers of worlds" in capsys.readouterr().err
    damaged = json.loads(whole)
    damaged["lake"]["spa"]["seconds"] = {"PPO": None}
    words = json.loads(whole)
    words["lake"]["spa"]["tokens_by_seed"] = {"0": "x"}
    listed = json.loads(whole)
    listed["lake"]["spa"] |= {"worlds": {}, "settings": [1]}
    endless = json.loads(whole)
    endless["lake"]["spa"]["cpu_seconds"] = {"PPO": float("nan")}
    path.write_text(whole)
    for text in (
        "[]",
        "{",
        '{"lake": {"spa": {}}}',
        whole.replace('"samples": 8', '"samples": 0'),
        json.dumps(damaged),
        whole.replace('"samples": 8', '"samples": Infinity'),
        whole.replace('"samples": 8', '"samples": 1'),
        json.dumps(words),
        json.dumps(listed),
        json.dumps(endless),
    ):
        path.write_text(text)
        assert main(["reproduce", "--scale", scale, "--numbers", str(path)]) == 2
        assert f"{path}: not the numbers of a reproduction" in capsys.readouterr().err
    path.write_text("{}")
    with pytest.raises(ValueError, match="has no world of scale small"):
        read_numbers([path], load_scale(scale))


def test_variants_of_other_worlds_are_not_compared(finished: list[Cell]) -> None:
    path = finished[1].folder / "variants" / "spa" / "eval" / "result.json"
    other = EvalResult.read(path)
    other.worlds = [WorldResult(w.group, w.seed, "another", w.successes, w.samples) for w in other.worlds]
    other.write(path)
    with pytest.raises(ValueError, match=r"seed-1/variants/spa.*is of other worlds"):
        collect_cells(finished)


def test_a_seed_more_in_one_variant_is_left_out_of_the_difference(finished: list[Cell]) -> None:
    (finished[1].folder / "variants" / "vanilla" / "eval" / "result.json").unlink()
    variants = collect_cells(finished)["lake"]
    assert variants["spa"].seeds == [0, 1]
    assert variants["spa"].differences["vanilla"][1].mean == pytest.approx(2 / 8 * 11 / 12)


def test_a_damaged_result_costs_its_own_seed_alone(finished: list[Cell], capsys: pytest.CaptureFixture[str]) -> None:
    (finished[1].folder / "variants/spa/eval/result.json").write_text("{")
    variants = collect_cells(finished)["lake"]
    assert (variants["spa"].seeds, variants["vanilla"].seeds) == ([0], [0, 1])
    assert "variant spa, seed 1 left out:" in (said := " ".join("".join(capsys.readouterr()).split()))
    assert "seed-1/variants/spa/eval/result.json is not an evaluation result" in said
    (finished[0].folder / "variants/spa/eval/result.json").write_text("")
    assert list(collect_cells(finished)["lake"]) == ["base", "vanilla"]


def test_seeds_run_apart_join_to_the_numbers_of_all(finished: list[Cell], tmp_path: Path, capsys) -> None:
    scale = scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}})
    apart = [tmp_path / f"numbers-{cell.seed}.json" for cell in finished]
    for cell, path in zip(finished, apart, strict=True):
        path.write_text(to_json(collect_cells([cell])))
    whole = collect_cells(finished, versus=load_scale(scale).compared)
    for order in (apart, apart[::-1]):
        assert rounded(read_numbers(order, load_scale(scale))) == rounded(whole)
    options = [word for path in apart for word in ("--numbers", str(path))]
    assert main(["reproduce", "--scale", scale, *options, "--out", str(tmp_path / "both")]) == 0
    assert markdown(load_scale(scale), whole) in capsys.readouterr().out
    again = read_numbers([tmp_path / "both" / "numbers.json"], load_scale(scale))["lake"]
    assert again["spa"].seeds == [0, 1] and (tmp_path / "both" / "report.html").is_file()


def test_variants_that_were_run_later_are_joined(finished: list[Cell]) -> None:
    """Both files hold the base, for all or for some of the seeds."""
    numbers = collect_cells(finished)
    later = collect_cells(finished[:1])
    later["lake"] = {"base": later["lake"]["base"], "se": later["lake"]["spa"]}
    for joined in (join(numbers, later), join(later, numbers)):
        assert joined["lake"]["base"].seeds == [0, 1]
        assert joined["lake"]["spa"] == numbers["lake"]["spa"] and joined["lake"]["se"] == later["lake"]["se"]


def rounded(numbers: Numbers) -> object:
    return json.loads(to_json(numbers), parse_float=lambda text: round(float(text), 9))


def test_what_cannot_be_joined(finished: list[Cell], tmp_path: Path) -> None:
    numbers = collect_cells(finished)
    other = collect_cells(finished[:1])
    other["lake"]["spa"].successes[0][0] += 1
    with pytest.raises(ValueError, match="lake, variant spa: seed 0 is in both files, with other results"):
        join(numbers, other)
    for entry in other["lake"].values():
        entry.successes = {7: entry.successes[0]}
        entry.worlds = "others"
    with pytest.raises(ValueError, match="different worlds"):
        join(numbers, other)
    mean = from_json(to_json(numbers))
    mean["lake"]["spa"].curves_by_seed = {}  # files of earlier versions hold the mean alone
    for entry in other["lake"].values():
        entry.worlds = numbers["lake"]["spa"].worlds
    (step, value), *_ = join(mean, other)["lake"]["spa"].curves["val/pass@1"][::-1]
    assert (step, value) == (2, pytest.approx((0.2 + 0.25 + 0.2) / 3))
    assert join(mean, other)["lake"]["spa"].curves_by_seed == {}


def configure(cell: Cell, *lines: str) -> None:
    (cell.folder / "config.yaml").write_text("\n".join(["variants: [vanilla, spa]", *lines, ""]))


def test_the_settings_of_a_variant_are_those_that_may_change_its_result(finished: list[Cell]) -> None:
    for cell in finished:
        configure(
            cell,
            f"seeds: {{run: {cell.seed}}}",
            "model: {path: /home/someone/models/small, threads: 4}",
            "sft: {epochs: 9}",
        )
    variants = collect_cells(finished)["lake"]
    assert variants["spa"].settings["sft.epochs"] == "9" and variants["spa"].settings["model.path"] == "small"
    configure(finished[0], "model: {path: org/small}")
    assert collect_cells(finished[:1])["lake"]["spa"].settings["model.path"] == "org/small", "a hub name is no path"
    assert (variants["spa"].settings["rl"], variants["base"].settings["rl"]) == ("True", "False")
    assert not {"seeds.run", "model.threads", "variants", "ppo.steps"} & variants["spa"].settings.keys()


def test_secrets_reach_no_numbers(finished: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "sk-canary-1234")
    own = tmp_path / "vanilla.yaml"
    own.write_text("name: vanilla\nsource: {selfplay.model: 'x/${oc.env:MY_TOKEN}'}\n")
    for cell in finished:
        configure(cell, "engine: {model: 'm/${oc.env:MY_TOKEN}'}", f"seeds: {{run: {cell.seed}}}")
    numbers = collect_cells([replace(cell, variants=(str(own), "spa")) for cell in finished])
    settings = numbers["lake"]["vanilla"].settings
    assert settings["engine.model"] == "m/${oc.env:MY_TOKEN}"
    assert settings["source.selfplay.model"] == "x/${oc.env:MY_TOKEN}"
    assert "sk-canary-1234" not in to_json(numbers)


def test_a_table_of_an_edited_scale_is_of_what_was_run(tmp_path: Path) -> None:
    def scale(steps: int) -> str:
        own = {"own": {"settings": {"ppo.steps": steps}}}
        worlds = {"lake": {"config": "frozen_lake"}}
        return scale_file(tmp_path, worlds=worlds, own_variants=own, variants=["vanilla", "own"], seeds=[0])

    out = tmp_path / "out"
    write_variants(load_scale(scale(3)), out)
    (cell,) = cells(load_scale(scale(3)), out)
    RunFolder(cell.folder).open(cell.load(), "run", resume=False, variants=variants_of(cell.load()))
    for name in ("base", "vanilla", "own"):
        result(cell.folder, name, [1] * WORLDS)
    file = out / "variants" / "lake" / "own.yaml"
    before = file.read_text()
    assert main(["reproduce", "--scale", scale(5), "--out", str(out), "--table"]) == 0
    assert file.read_text() == before
    file.write_text(before.replace("3", "5"))
    assert main(["reproduce", "--scale", scale(5), "--out", str(out), "--table"]) == 0
    assert json.loads((out / "numbers.json").read_text())["lake"]["own"]["settings"]["ppo.steps"] == "3"


def test_seeds_of_other_settings_are_refused(finished: list[Cell]) -> None:
    configure(finished[0], "sft: {epochs: 9}", "model: {threads: 1}")
    configure(finished[1], "model: {threads: 2}")
    with pytest.raises(
        ValueError, match=r"seed-1 was run with other settings than .*seed-0 .*: sft.epochs \(9, default\)"
    ):
        collect_cells(finished)
    first, second = (collect_cells([cell]) for cell in finished)
    with pytest.raises(
        ValueError, match=r"variant base: the files are of runs with other settings: sft.epochs \(9, default\)"
    ):
        join(first, second)
    unknown = collect_cells(finished[1:])["lake"]
    for entry in unknown.values():
        entry.settings = {}  # as in files of earlier versions
    for joined in (join(first, {"lake": unknown}), join({"lake": unknown}, first)):
        assert joined["lake"]["spa"].seeds == [0, 1] and joined["lake"]["spa"].settings == {}
    configure(finished[1], "sft: {epochs: 9}")
    second = collect_cells(finished[1:])
    assert join(first, second)["lake"]["spa"].settings == first["lake"]["spa"].settings != {}


def test_variants_of_runs_with_other_settings_are_not_compared(finished: list[Cell], tmp_path: Path, capsys) -> None:
    """The base, which nothing trains, has the same results in all runs; its settings are the runs'."""
    files = [tmp_path / f"{name}.json" for name in ("vanilla", "spa", "spa-of-others")]
    for file, line in zip(files, ("", "", "ppo: {steps: 2, actor_lr: 1.0e-2}"), strict=True):
        for cell in finished:
            configure(cell, line)
        numbers = collect_cells(finished)["lake"]
        file.write_text(to_json({"lake": {name: numbers[name] for name in ("base", file.stem.partition("-")[0])}}))
    scale = scale_file(tmp_path, worlds={"lake": {"config": "frozen_lake"}})

    def joined(*paths: Path) -> int:
        return main(["reproduce", "--scale", scale, *(word for path in paths for word in ("--numbers", str(path)))])

    assert joined(files[0], files[1]) == 0, "what two variants are made of differs"
    assert "spa 51.6 is above vanilla 28.6" in capsys.readouterr().out
    for order in (1, -1):
        assert joined(*[files[0], files[2]][::order]) == 2
        said = capsys.readouterr()
        assert "lake, variant base: the files are of runs with other settings: ppo.steps (" in said.err
        assert "is above" not in said.out


def rows_of(text: str) -> list[tuple[str, list[str]]]:
    """First cell and other cells of each row of the Markdown tables."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [(first, cells) for first, *cells in rows]


def test_table_and_page(finished: list[Cell], tmp_path: Path) -> None:
    scale = load_scale("minutes")
    scale.worlds = {"frozen_lake <b>": {"config": "frozen_lake", "paper": ["frozen_lake", "Qwen2.5-1.5B-Instruct"]}}
    numbers = {"frozen_lake <b>": collect_cells(finished)["lake"]}
    text = markdown(scale, numbers)
    rows = [cells for title, cells in rows_of(text) if title == "spa"]
    scores, difference, _, costs = rows
    assert scores[0].startswith("51.6 [") and scores[-3:] == ["45.8, 57.3", "1.5", "70.9 / 75.0"]
    numbers["frozen_lake <b>"]["spa"].actions_by_seed[1] = 0.0
    assert "1.5, 0.0" in markdown(scale, numbers)
    assert difference[0].startswith("+22.9 [")
    assert costs[1:] == ["1 min 30 s", "1 min 05 s"]
    assert "spa 51.6 is above vanilla 28.6: +22.9 [" in text and "50% of the test turns of spa were cut off" in text
    (drawn,) = charts(numbers).values()
    titles = [
        "validation Pass@1 along PPO",
        "validation Pass@1 by wall time, all stages",
        "validation Pass@1 by processor time, all stages",
        "validation Pass@1 by actions that the world played",
        "Pass@k on the test worlds",
    ]
    assert [chart.title for chart in drawn.values()] == titles
    evenly = "Thin lines: single seeds. PPO's cost is spread evenly over its steps."
    assert [(chart.note, chart.svg.count('class="seed"')) for chart in drawn.values()] == [
        ("Thin lines: single seeds.", 4),
        *[(evenly, 4)] * 3,
        ("", 0),
    ]
    along = {"wall_time": ["30", "60", "90"], "cpu_time": ["15", "40", "65"], "actions": ["7", "57", "107"]}
    for name, expected in along.items():
        assert re.findall(r"spa, \w+ (\d+):", drawn[name].svg) == expected
    page = write_reproduction(scale, numbers, tmp_path / "page.html").read_text()
    assert "frozen_lake &lt;b&gt;" in page
    assert "frozen_lake <b>" not in page
    shown = re.sub(r"<[^>]*>", " ", page)
    assert "−" in shown
    for cell in ["spa", *chain(*rows)]:
        assert cell in shown.replace("−", "-").replace("–", "-")
    assert page.count("<figure") == len(drawn)
    figure = ElementTree.parse(tmp_path / "figures" / "frozen_lake <b>-cpu_time.svg").getroot()
    texts = [node.text for node in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert {"frozen_lake <b>: validation Pass@1 by processor time, all stages", "vanilla", "spa"} <= set(texts)
    assert "spa 51.6 is above vanilla 28.6" in shown


def test_the_papers_numbers() -> None:
    model = "Qwen2.5-1.5B-Instruct"
    assert paper_numbers("sokoban", "spa", model) == (59.8, 69.5)
    assert paper_numbers("frozen_lake", "vanilla", model) == (22.1, 30.7)
    assert paper_numbers("sudoku", "spa", "Qwen2.5-0.5B-Instruct") == (18.2, 43.8)
    assert paper_numbers("sokoban", "self_belief", model) == (39.2, 44.2)
    assert paper_numbers("frozen_lake", "self_belief", model) is None
    assert paper_numbers("sokoban", "self_belief", "Qwen2.5-3B") is None


def test_differences_to_further_variants(finished: list[Cell], tmp_path: Path) -> None:
    variants = collect_cells(finished, versus=["spa", "nobody"])["lake"]
    assert set(variants["vanilla"].differences) == {"spa"}
    assert variants["vanilla"].differences["spa"][1].mean == pytest.approx(-2 / 8 * 11 / 12)
    assert set(variants["spa"].differences) == {"base", "vanilla"}, "those that the verdict names"
    scale = load_scale(scale_file(tmp_path, versus=["spa", "nobody"]))
    text = markdown(scale, {"lake": variants})
    assert "nobody" not in text
    lines = rows_of(text)
    start = next(number for number, (title, _) in enumerate(lines) if title == "Pass@1 minus that of")
    column = lines[start][1].index("spa")
    assert {title: cells[column].split(" [")[0] for title, cells in lines[start + 2 : start + 5]} == {
        "base": "-40.1",
        "vanilla": "-22.9",
        "spa": "-",
    }


def test_a_terminated_reproduction_leaves_no_run_behind(tmp_path: Path, monkeypatch) -> None:
    pid_file, program = tmp_path / "pid", tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho $$ > {pid_file}.half && mv {pid_file}.half {pid_file}\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    before = signal.getsignal(signal.SIGTERM)

    def terminate() -> None:
        while not pid_file.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run_cells([Cell("lake", 0, "frozen_lake", ("model.threads=1",), tmp_path / "lake")], 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("stop", "code", "word"), [("TERM", 143, "Terminated"), ("INT", 130, "Interrupted")])
def test_a_stopped_reproduction_says_how_to_go_on(
    tmp_path: Path, monkeypatch, capsys, stop: str, code: int, word: str
) -> None:
    def stopped(*_: object) -> list[str]:
        os.kill(os.getpid(), getattr(signal, f"SIG{stop}"))
        time.sleep(5)
        return []

    monkeypatch.setattr("spa.reproduce.jobs.run_cells", stopped)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    try:
        assert main(["reproduce", "--scale", scale_file(tmp_path), "--out", str(tmp_path / "out")]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.strip() == f"{word}. Run the same command again to go on."


@pytest.mark.slow
def test_all_of_it_goes_on_where_it_stopped_and_reports_what_failed(tmp_path: Path, capsys) -> None:
    out, path = tmp_path / "out", scale_file(tmp_path)
    only = ["reproduce", "--scale", path, "--out", str(out), "--seeds", "0", "--parallel", "2"]
    (out / "room").mkdir(parents=True)
    (out / "room" / "seed-0").write_text("in the way")
    assert main(only) == 1
    printed = capsys.readouterr().out
    assert "failed: room, seed 0" in printed
    assert "## lake" in printed
    before = (out / "lake" / "seed-0" / "variants" / "spa" / "eval" / "result.json").stat().st_mtime_ns
    (out / "room" / "seed-0").unlink()
    assert main(only) == 0
    assert "failed" not in capsys.readouterr().out
    assert (out / "lake" / "seed-0" / "variants" / "spa" / "eval" / "result.json").stat().st_mtime_ns == before
    assert (out / "table.md").is_file() and (out / "report.html").is_file()
    numbers = json.loads((out / "numbers.json").read_text())
    assert set(numbers) == {"lake", "room"}
    assert set(numbers["room"]) == {"base", "vanilla", "spa"}
