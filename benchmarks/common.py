"""What the benchmarks share: a process for each measurement, the machine, medians."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(python: str, script: str, arguments: list[object], threads: int, ranks: int = 1) -> dict[str, float]:
    """The JSON object that a contestant prints last, from a process of its own, or the main one of several ``ranks``."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [python, *launcher, str(HERE / "contestants" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def make_venv(folder: Path, *installs: Sequence[object]) -> str:
    """A virtual environment's Python; where there is none it is made, with what each ``pip install`` is given."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"Making {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        try:
            for arguments in installs:
                subprocess.run([str(python), "-m", "pip", "install", "--quiet", *map(str, arguments)], check=True)
        except BaseException:
            shutil.rmtree(folder)  # half an environment would be taken for a whole one
            raise
    return str(python)


def take_turns(
    label: str, peers: Sequence[str], repeats: int, measure: Callable[..., dict[str, float]], *given: object
) -> dict[str, list[dict[str, float]]]:
    """What ``measure(peer, *given)`` gives, the peers one after the other in every repeat: a busy moment hits all of them."""
    runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
    for repeat in range(repeats):
        for peer in peers:
            runs[peer].append(measure(peer, *given))
            print(f"{label} {repeat + 1}/{repeats} {peer}: {runs[peer][-1]}", file=sys.stderr)
    return runs


def finish(results: object, threads: int, path: Path | None) -> None:
    """Prints the machine; writes it with the results to ``path`` if there is one."""
    print(json.dumps(machine(threads)))
    if path:
        path.write_text(json.dumps({"machine": machine(threads), "results": results}, indent=1) + "\n")


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Medians of what was measured, and the range of the speeds."""
    speeds = [run["per_second"] for run in runs]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**medians, "lowest": min(speeds), "highest": max(speeds)}


def lines(peers: dict[str, dict[str, float]]) -> list[str]:
    """A table: speed, spread, how many times faster ``spa`` is (without it, the first of the peers), memory."""
    first = "spa" if "spa" in peers else next(iter(peers))
    out = [
        f"{'':18}{'tokens/s':>10}{'spread':>18}{first.partition('-')[0] + ' is':>10}{'peak MiB':>10}{'training MiB':>14}"
    ]
    for peer, values in peers.items():
        ratio = peers[first]["per_second"] / values["per_second"]
        spread = f"{values['lowest']:.0f} - {values['highest']:.0f}"
        out.append(
            f"{peer:18}{values['per_second']:>10.0f}{spread:>18}{ratio:>9.2f}x{values['peak_mib']:>10.0f}"
            f"{values['peak_mib'] - values['before_mib']:>14.0f}"
        )
    return out


def machine(threads: int) -> dict[str, object]:
    return {"processor": processor(), "threads": threads, "python": platform.python_version()}


def processor() -> str:
    try:
        names = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in names if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
