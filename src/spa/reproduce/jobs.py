"""Runs the cells of a reproduction in parallel, each as a process of ``spa run --resume``."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from spa.common.progress import duration, note
from spa.common.signals import terminated_as_interrupted
from spa.reproduce.scale import Cell


def at_once(runs: int, cores: int) -> int:
    """How many runs to start at once: one per core, or more where the last round would leave cores idle.

    Three runs on two cores take two rounds two at a time, but one and a half of them all at once.
    """
    return min(range(cores, 2 * cores), key=lambda p: (math.ceil(runs / p) * p, p))


def run_cells(cells: Sequence[Cell], parallel: int) -> list[str]:
    """Runs unfinished cells; returns the failures, one line each.

    Ctrl-C and SIGTERM (which batch systems send) end all runs; running the same command again resumes them.
    """
    failures: list[str] = []
    stop = threading.Event()
    with terminated_as_interrupted(), ThreadPoolExecutor(parallel) as pool:
        waiting: set[Future[str]] = {pool.submit(_run, cell, stop) for cell in cells}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                failures += [problem for problem in (future.result() for future in done) if problem]
        except KeyboardInterrupt:
            stop.set()
            for future in waiting:
                future.cancel()
            raise
    return failures


def _run(cell: Cell, stop: threading.Event) -> str:
    """Runs one cell and returns an error message, or an empty string. Its output goes to ``log.txt`` in its folder."""
    title = f"{cell.world}, seed {cell.seed}"
    if stop.is_set():
        return ""
    try:
        cell.folder.mkdir(parents=True, exist_ok=True)
        log = open(cell.folder / "log.txt", "a", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        return f"{title}: {error}"
    command = [sys.executable, "-m", "spa", "run", cell.config, *cell.settings]
    command += ["--out", str(cell.folder), "--resume"]
    threads = next(s.partition("=")[2] for s in reversed(cell.settings) if s.startswith("model.threads="))
    environment = {**os.environ, "OMP_NUM_THREADS": threads} if threads != "0" else dict(os.environ)
    note(f"{title}: started ({cell.folder})")
    started = time.perf_counter()
    with log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        while True:
            try:
                code = process.wait(timeout=0.5)
                break
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    process.terminate()
    if stop.is_set():
        return ""
    if code:
        lines = (cell.folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        problem = f"{title}: {lines[-1] if lines else f'exit code {code}'} (see {cell.folder / 'log.txt'})"
        note(problem)
        return problem
    note(f"{title}: done in {duration(time.perf_counter() - started)}")
    return ""
