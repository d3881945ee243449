"""``make bench``: the benchmarks in one run, and one table of ratios (``python benchmarks --help``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from spa.common.files import atomic_write
from spa.common.names import choose

BENCHMARKS = ("rollout", "sft", "ppo", "step", "worlds", "growth", "memory")
HERE = Path(__file__).resolve().parent
_PACKAGES = ("torch", "transformers", "numpy")


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAMES", help=f"Of {', '.join(BENCHMARKS)}. Default: all.", show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each contestant; medians are shown.")] = 5,
    threads: Annotated[int, typer.Option("--threads", min=0, help="0 = all cores.")] = 0,
    vllm: Annotated[bool, typer.Option("--vllm", help="vLLM too; its environment is made once (2.5 GB).")] = False,
    output: Annotated[
        Path | None, typer.Option("--json", help="Also write the numbers to this file.", show_default=False)
    ] = None,
) -> None:
    """Rollouts, SFT, the PPO update, a step and worlds against their peers, side by side on this machine; how cost grows."""
    chosen = [choose("benchmark", name, BENCHMARKS) for name in names or BENCHMARKS]
    cores = threads or os.cpu_count() or 1
    results: dict[str, Any] = {"versions": {name: metadata.version(name) for name in _PACKAGES}}
    for name in dict.fromkeys(chosen):
        more = ["--vllm"] if vllm and name == "rollout" else []
        found = run(HERE / f"{name}.py", ["--repeats", str(repeats), "--threads", str(cores), *more])
        results.setdefault("machine", found["machine"] | {"threads": cores})
        results[name] = found["results"]
    print()
    print(table({name: results[name] for name in chosen if isinstance(results[name], dict)}))
    print(f"Median of {repeats}. {json.dumps(results['machine'])} {json.dumps(results['versions'])}")
    if output is not None:
        atomic_write(output, json.dumps(results, indent=1) + "\n")


def run(script: Path, arguments: list[str]) -> dict[str, Any]:
    """What a benchmark writes with ``--json``; its own output is passed on.

    Raises:
        ValueError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        done = subprocess.run([sys.executable, str(script), *arguments, "--json", str(path)])
        if done.returncode or not path.is_file():
            raise ValueError(f"the benchmark {script.stem} failed (exit code {done.returncode}); see above")
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def table(results: dict[str, dict[str, Any]]) -> str:
    """How many times as fast as each peer we are, by benchmark and data."""
    lines = [f"{'benchmark':10}{'data':22}{'peer':16}{'per second':>11}{'spread':>20}{'spa is':>9}"]
    for name, kinds in results.items():
        for kind, found in kinds.items():
            ours = found["peers"]["spa"]["per_second"]
            for peer, values in found["peers"].items():
                spread = f"{values['lowest']:.0f} - {values['highest']:.0f}"
                rate = values["per_second"]
                lines.append(f"{name:10}{kind:22}{peer:16}{rate:>11.0f}{spread:>20}{ours / rate:>8.2f}x")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        typer.run(bench)
    except ValueError as error:
        sys.exit(f"Error: {error}")
