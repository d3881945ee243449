"""``spa reproduce``: the paper's comparison in our worlds, over seeds. Imports no torch at import time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spa.common.secrets import redact

if TYPE_CHECKING:
    from spa.config.schema import Config
    from spa.reproduce.results import Numbers
    from spa.reproduce.scale import Cell, Scale


def reproduce(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings over the scale's.", show_default=False)
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="minutes, hours, main, gpu, real-small, paper, or a YAML file.")
    ] = "minutes",
    out: Annotated[
        Path | None, typer.Option("--out", help="Default: runs/reproduce-SCALE.", show_default=False)
    ] = None,
    worlds: Annotated[
        str | None, typer.Option("--worlds", help="Some of the scale's worlds, a,b.", show_default=False)
    ] = None,
    variants: Annotated[str | None, typer.Option("--variants", help="Other variants, a,b.", show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Other seeds, 0,1,2.", show_default=False)] = None,
    versus: Annotated[
        str | None,
        typer.Option("--versus", help="Variants, besides vanilla, to give differences to, a,b.", show_default=False),
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=0, help="Runs at once. 0 = as cores allow.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs and their plans; write nothing.")] = False,
    only_table: Annotated[
        bool, typer.Option("--table", help="Write the table of what is finished; run nothing.")
    ] = False,
    numbers_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--numbers",
            help="Run nothing: print the table of a numbers.json. Repeat the option to join files with other seeds.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Worlds x variants x seeds, and the paper's table with ours beside it. Run it again to continue where it stopped."""
    from spa.common.files import atomic_write
    from spa.common.names import choose
    from spa.common.signals import interruptible
    from spa.config.overrides import split_override
    from spa.reproduce.bases import check_own, make_bases, write_variants
    from spa.reproduce.jobs import at_once, run_cells
    from spa.reproduce.numbers_file import fewer, read_numbers, to_json
    from spa.reproduce.page import write_reproduction
    from spa.reproduce.results import collect_cells, is_its_run
    from spa.reproduce.scale import cells, check_versus, load_scale
    from spa.reproduce.table import markdown
    from spa.runs.provenance import usable_cores

    unused = {
        "--seeds": seeds,
        "--parallel": parallel,
        "--dry-run": dry_run,
        "--table": only_table,
        "settings": settings,
    }
    if numbers_files and (names := [name for name, value in unused.items() if value]):
        raise ValueError(f"--numbers prints what its files hold and runs nothing: leave out {', '.join(names)}")
    for setting in settings or ():
        if option := {"variants": "--variants", "seeds.run": "--seeds"}.get(split_override(setting)[0]):
            raise ValueError(f"give {option} instead of the setting {setting!r}")
    chosen = load_scale(scale)
    check_versus(chosen)
    if worlds:
        names = [choose("world of the scale", name, list(chosen.worlds)) for name in worlds.split(",")]
        chosen.worlds = {name: chosen.worlds[name] for name in names}
    if variants:
        chosen.override("variants", variants.split(","))
    if seeds:
        given = seeds.split(",")
        if not all(seed.isdecimal() for seed in given) or len({*map(int, given)}) < len(given):
            raise ValueError(f"--seeds must be different whole numbers with commas, not {seeds!r}")
        chosen.override("seeds", [int(seed) for seed in given])
    if versus:
        chosen.versus = versus.split(",")
        check_versus(chosen)

    def show(numbers: Numbers, folder: Path | None) -> None:
        """Prints the tables; writes them, the numbers and the report to ``folder``, if there is one."""
        text = markdown(chosen, numbers)
        if folder is None:
            print(text)
            return
        lacking = fewer(folder / "numbers.json", numbers)
        # First: who reads what is printed may stop reading.
        atomic_write(folder / "table.md", text)
        atomic_write(folder / "numbers.json", to_json(numbers) + "\n")
        page = write_reproduction(chosen, numbers, folder / "report.html")
        print(f"{text}\nReport: {page}")
        if lacking:
            print(f"The files replaced were of more: these are of {lacking} (--worlds, --variants, --seeds).")

    if numbers_files:
        show(read_numbers(numbers_files, chosen, chosen.variants if variants else ()), out)
        return
    folder = out or Path("runs") / f"reproduce-{chosen.name}"

    def load() -> list[Config]:
        """The config of each world: its seeds differ in nothing that could be wrong."""
        return [cell.load() for cell in runs[: len(chosen.worlds)]]

    # Without variants of its own: files that are there may be another scale's.
    runs = cells(chosen, folder, settings or [], own=lambda file: False)
    configs = load()  # before anything is written
    for cell, cfg in zip(runs, configs, strict=False):
        check_own(chosen, cell.world, cfg)
    if dry_run:
        print(f"{len(runs)} run{'s' * (len(runs) > 1)} in {folder}")
        _print_plans(chosen, runs[: len(configs)], configs)
        return
    if not only_table:
        write_variants(chosen, folder)
    failures: list[str] = []
    with interruptible(lambda: "Run the same command again to go on."):
        if not only_table:
            make_bases(chosen, folder)
        runs = cells(chosen, folder, settings or [], own=Path.is_file if only_table else lambda file: True)
        load()
        if not only_table:
            cores = max(1, usable_cores() // (configs[0].model.threads or usable_cores()))  # 0: each takes all
            failures = run_cells(runs, parallel or at_once(len(runs), cores))
    numbers = collect_cells([cell for cell in runs if is_its_run(cell)], versus=chosen.compared)
    if not any(numbers.values()):
        raise ValueError(f"nothing is finished in {folder}" + (f"; {failures[0]}" if failures else ""))
    show(numbers, folder)
    for failure in failures:
        print(redact(f"failed: {failure}"))
    if failures:
        raise typer.Exit(1)


def _print_plans(scale: Scale, runs: Sequence[Cell], configs: Sequence[Config]) -> None:
    """The scale's own variants, and for each world its command and what that would do."""
    from spa.config.variants import variants_of
    from spa.dry_run import imports, plan

    for name in scale.worlds:
        for variant in scale.variants_of(name):
            if definition := scale.own_variants_of(name).get(variant):
                text = ", ".join(f"{key}={value}" for key, value in definition.items())
                print(f"{name}, variant {variant}: {text}")
            elif variant in scale.bases:
                print(f"{name}, variant {variant}: from the model of spa pretrain {' '.join(scale.bases[variant])}")
    for cell, cfg in zip(runs, configs, strict=True):
        print(redact(f"\n{cell.world}: spa run {cell.config} {' '.join(cell.settings)}"))
        for line in imports(cfg, variants_of(cfg)):
            print(redact(line), flush=True)
        print(redact("\n".join(plan(cfg, "run", variants_of(cfg)))))
