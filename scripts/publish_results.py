"""Joins new numbers into docs/results and writes again what is made from them: tables, verdicts, overviews and figures.

    python scripts/publish_results.py main RUNS/numbers.json                           # further seeds or variants
    python scripts/publish_results.py main RUNS/numbers.json --replace plan,spa_plan   # variants that were measured again

A planner's numbers (VARIANT+PLANNER) are replaced with those of its variant. The sentences around the tables are written by hand:
read them again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from spa.common.files import atomic_write
from spa.common.names import choose
from spa.common.progress import set_quiet
from spa.evaluate.roles import PLANNED
from spa.reproduce.numbers_file import from_json, join, read_numbers, to_json
from spa.reproduce.page import figure_files
from spa.reproduce.results import Numbers, VariantNumbers, compute, evaluated
from spa.reproduce.scale import Scale, load_scale
from spa.reproduce.table import markdown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OVERVIEWS = (DOCS / "results.md", ROOT / "README.md")
TABLES = tuple(sorted((DOCS / "results").glob("*.md")))
# docs/results/FILE.json -> the scale whose `spa reproduce --scale SCALE --numbers FILE` prints its table
SCALES = {
    "frozen_lake": "hours",
    "main": "main",
    "longer_practice": str(DOCS / "scales" / "longer-practice.yaml"),
    "planning_worlds": str(DOCS / "scales" / "planning-worlds.yaml"),
    "vault": str(ROOT / "examples" / "vault_scale.yaml"),
}
ROWS = {  # of the overviews -> file and world
    "FrozenLake 4x4": ("main", "frozen_lake"),
    "Sokoban, eight moves": ("main", "sokoban"),
    "Sudoku 4x4": ("main", "sudoku"),
    "FrozenLake 4x4, five actions a turn": ("planning_worlds", "frozen_lake_five_actions"),
    "FrozenLake 5x5": ("longer_practice", "frozen_lake_5x5"),
    "FrozenLake 6x6": ("planning_worlds", "frozen_lake_6x6"),
    "FrozenLake 4x4, slippery": ("planning_worlds", "frozen_lake_slippery"),
    "Sokoban, two boxes": ("planning_worlds", "sokoban_2_boxes"),
    "Vault, eight moves": ("vault", "vault"),
}
FIGURES = {  # of docs/images -> file and variants
    f"{world}-{axis}.svg": (file, variants)
    for file, world, variants in (
        ("main", "frozen_lake", ["vanilla_longer", "se", "spa_plan"]),
        ("main", "sokoban", ["vanilla_longer", "spa_plan"]),
        ("longer_practice", "frozen_lake_5x5", ["vanilla_longer", "spa_plan"]),
    )
    for axis in ("cpu_time", "actions")
}


def stored(file: str, variants: Sequence[str] = ()) -> tuple[Scale, Numbers]:
    """The numbers of a file, of all or some variants of its scale."""
    path = DOCS / "results" / f"{file}.json"
    return _read(path, path.stat().st_mtime_ns, SCALES[file], tuple(variants))


@cache
def _read(path: Path, changed: int, scale_name: str, variants: tuple[str, ...]) -> tuple[Scale, Numbers]:
    """``stored``, once for each state of the file (``changed``: its time of modification)."""
    scale = load_scale(scale_name)
    if variants:
        scale.override("variants", [*variants])
    return scale, read_numbers([path], scale)


def blocks(file: str) -> dict[str, str]:
    """What a page shows of each world of a file: verdicts and tables."""
    text = markdown(*stored(file)).rsplit("\n\n", 1)[0]
    return {title: block.strip() for title, block in (part.split("\n", 1) for part in text.split("\n## ")[1:])}


def figure(name: str) -> str:
    return figure_files(stored(*FIGURES[name])[1])[name]


def overview(page: str) -> str:
    """The page with the means of the stored numbers in its overview, whose columns are named after variants.

    A mean of fewer seeds than the row's has their number in brackets.
    """
    lines = page.splitlines(keepends=True)
    files = {file: stored(file)[1] for file in {file for file, _ in ROWS.values()}}
    columns: list[str] = []
    for number, line in enumerate(lines):
        title, *cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if title == "world":
            columns = [cell.strip("`") for cell in cells[1:]]
        if not line.startswith("|") or title not in ROWS:
            continue
        file, world = ROWS[title]
        numbers = files[file][world]
        known = evaluated(numbers)
        seeds = max(len(entry.seeds) for entry in numbers.values())
        means = [_mean(known[name], seeds) if name in known else "-" for name in columns]
        lines[number] = f"| {' | '.join([title, str(seeds), *means])} |\n"
    return "".join(lines)


def _mean(entry: VariantNumbers, seeds: int) -> str:
    fewer = f" ({len(entry.seeds)})" if len(entry.seeds) < seeds else ""
    return f"{100 * entry.passes[1].mean:.1f}{fewer}"


def joined_numbers(file: str, paths: Sequence[Path], replaced: Sequence[str]) -> Numbers:
    """The stored numbers of a file and new ones, without the old numbers of the replaced variants in the worlds that have new ones.

    Raises:
        ValueError: files that cannot be joined, a replaced variant without new numbers, or a world or variant that the file's scale
            does not have (its numbers would be written to no table).
    """
    scale = load_scale(SCALES[file])
    old, new = from_json((DOCS / "results" / f"{file}.json").read_text(encoding="utf-8")), Numbers()
    for path in paths:
        new = join(new, from_json(path.read_text(encoding="utf-8")))
    measured = dict.fromkeys(_variant(name) for variants in new.values() for name in variants)
    for name in replaced:
        choose("variant of the new numbers", name, measured)
    for world, variants in new.items():
        kept, again = old.setdefault(world, {}), {_variant(name) for name in variants} & {*replaced}
        for name in [name for name in kept if _variant(name) in again]:
            entry = variants.get(name)
            if lost := [str(seed) for seed in kept[name].seeds if entry is None or seed not in entry.seeds]:
                print(f"{world}, {name}: dropped without new numbers: seeds {', '.join(lost)}")
            if entry is None:
                del kept[name]
            else:
                kept[name] = entry  # in its place, which is that of its row
    joined = join(old, new)
    for world, variants in joined.items():
        choose(f"world of scale {scale.name}", world, scale.worlds)
        names = ["base", *(Path(name).stem for name in scale.variants_of(world))]
        for name in variants:
            choose(f"variant of {world} in scale {scale.name}", _variant(name), names)
    return joined


def _variant(name: str) -> str:
    """Without the planner."""
    return name.partition(PLANNED)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", choices=SCALES)
    parser.add_argument("numbers", nargs="+", type=Path, help="numbers.json of spa reproduce")
    parser.add_argument("--replace", help="variants whose old numbers are dropped, with commas")
    args = parser.parse_args()

    set_quiet(True)
    path = DOCS / "results" / f"{args.file}.json"
    try:
        joined = joined_numbers(args.file, args.numbers, args.replace.split(",") if args.replace else [])
        compute(joined, load_scale(SCALES[args.file]).compared)
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}")
    before = blocks(args.file)
    atomic_write(path, to_json(joined) + "\n")

    for world, block in blocks(args.file).items():
        found = [page for page in TABLES if world in before and before[world] in page.read_text(encoding="utf-8")]
        if not found:
            print(f"No page has the old table of {world}: put in the new one by hand\n\n{block}\n")
        for page in found:
            page.write_text(page.read_text(encoding="utf-8").replace(before[world], block), encoding="utf-8")
    for page in OVERVIEWS:
        page.write_text(overview(page.read_text(encoding="utf-8")), encoding="utf-8")
    for name in FIGURES:
        (DOCS / "images" / name).write_text(figure(name), encoding="utf-8")


if __name__ == "__main__":
    main()
