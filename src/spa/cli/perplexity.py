"""``spa perplexity``: how unfamiliar worlds' states are to a model (paper, Table 1). Imports no torch at import time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spa.cli.arguments import check_output, model_setting, split_words

if TYPE_CHECKING:
    from spa.config.schema import Config

DEFAULT = "sokoban,frozen_lake,sudoku"
FORMATS = {"grid": "raw", "coordinates": "with coordinates"}


def perplexity(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMES KEY=VALUE",
            help="Configs, separated by commas (default: sokoban,frozen_lake,sudoku), and settings.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="A checkpoint, a stage's folder or a hub name. Default: the config's.", show_default=False
        ),
    ] = None,
    worlds: Annotated[int, typer.Option(min=1, help="Held-out worlds whose states are scored.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of the random moves that lead to more states.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers to this file.", show_default=False)
    ] = None,
) -> None:
    """Perplexity of worlds' states, raw and with coordinates, beside that of a random guess."""
    names, settings = split_words(words)
    from spa.config.load import load_config

    check_output(output)
    settings += model_setting(model)
    configs = {name: load_config(name, settings) for name in (names or DEFAULT).split(",")}
    results = {name: measure(cfg, worlds, seed) for name, cfg in configs.items()}
    if output is not None:  # first: who reads what is printed may stop reading
        from spa.common.files import atomic_write

        atomic_write(output, json.dumps(results, indent=1) + "\n")
    print(render(results))


def measure(cfg: Config, count: int, seed: int) -> dict[str, Any]:
    """One world's numbers: ``random_guess`` and, by ``{bare,prompt}/{grid,coordinates}``, those of ``StatePerplexity``.

    What a world cannot show is absent.
    """
    from spa.agent.policy import Policy, make_task
    from spa.agent.worlds import WorldSource
    from spa.evaluate.perplexity import CONTEXTS, perplexity_by_format, random_guess

    policy = Policy.load(cfg)
    task = make_task(cfg)
    chosen = WorldSource(task, "val", cfg.seeds.val, unique=True).take(count)
    result: dict[str, Any] = {
        "model": cfg.model.path,
        "random_guess": random_guess(task, len(policy.tokenizer)),
    }
    for context in CONTEXTS:
        scored = perplexity_by_format(cfg, policy, task, chosen, seed=seed, context=context)
        result |= {f"{context}/{state_format}": asdict(score) for state_format, score in scored.items()}
    return result


def render(results: dict[str, dict[str, Any]]) -> str:
    """The table: a row for each way of showing the states, a column for each world."""
    from spa.evaluate.perplexity import CONTEXTS

    width = max(12, *(len(name) for name in results)) + 2
    models = ", ".join(dict.fromkeys(str(result["model"]) for result in results.values()))

    def row(title: str, values: list[float | None], digits: int) -> str:
        cells = ("-" if value is None else f"{value:.{digits}f}" for value in values)
        return f"{title:<36}" + "".join(f"{cell:>{width}}" for cell in cells)

    def block(metric: str, digits: int) -> list[str]:
        rows = []
        for context in CONTEXTS:
            for state_format, title in FORMATS.items():
                where = "alone" if context == "bare" else "in the prompt"
                values = [result.get(f"{context}/{state_format}", {}).get(metric) for result in results.values()]
                rows.append(row(f"  {title}, {where}", values, digits))
        return rows

    head = f"States under {models}"
    return "\n".join(
        [
            head,
            f"{'':<36}" + "".join(f"{name:>{width}}" for name in results),
            "perplexity per token",
            *block("perplexity", 1),
            row("  random guess (of a cell or token)", [result["random_guess"] for result in results.values()], 1),
            "bits per character",
            *block("bits_per_char", 2),
            "scored tokens per state",
            *block("tokens_per_state", 1),
        ]
    )
