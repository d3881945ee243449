"""Progress on stderr: rich's bars on a terminal, otherwise periodic plain lines. Imports no torch.

::

    for batch in progress(batches, "SFT"):
        ...

    with progress(100, "PPO") as bar:
        for step in range(100):
            ...
            bar.advance(reward=1.2)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TextIO

from spa.common.secrets import redact

INTERVAL = 10.0  # seconds between plain lines of one bar
_SHORT = 2.0  # seconds: a shorter inner bar prints no line
_quiet = False
_open: list[progress] = []  # the bars in use, outermost first
_display: Any = None  # their shared rich display: a terminal can have only one


def set_quiet(quiet: bool = True) -> None:
    """Turns progress and notes off (or on again) for this process."""
    global _quiet
    _quiet = quiet


def note(text: str, file: TextIO | None = None) -> None:
    """Prints a status line ("self-play: already done, skipped") on stderr; nothing when quiet."""
    if not _quiet:
        print(redact(text), file=file or sys.stderr, flush=True)


class progress:
    """Progress of work: iterate over it, or use it as a context manager and call ``advance``.

    Args:
        work: the items to iterate over, or the number of steps.
        description: one or two words.
        file: where to write; stderr by default.
        clock: returns seconds; for tests.

    Attributes:
        total: number of steps; None if unknown. ``done``: finished steps.
        values: numbers shown next to the bar, by name.
    """

    def __init__(
        self,
        work: Iterable[Any] | int,
        description: str,
        *,
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.work = range(work) if isinstance(work, int) else work
        self.total = len(self.work) if isinstance(self.work, Sized) else None
        self.description = description
        self.done = 0
        self.values: dict[str, Any] = {}
        self._file = file or sys.stderr
        self._clock = clock
        self._task: Any = None
        self._printed = False

    def __enter__(self) -> progress:
        self._started = self._last_line = self._clock()
        _open.append(self)
        if not _quiet and _is_terminal(self._file):
            self._task = _start_display(self._file).add_task(self.description, total=self.total, values="")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _display
        _open.remove(self)
        if self._task is not None:
            _display.stop_task(self._task)
            if _open:
                _display.remove_task(self._task)
        elif kind is None and (not _open or self._printed or self._clock() - self._started >= _SHORT):
            self._print()
        if not _open and _display is not None:
            _display.stop()
            _display = None

    def __iter__(self) -> Iterator[Any]:
        if self not in _open:
            with self:
                yield from self
            return
        for item in self.work:
            yield item
            self.advance()

    def advance(self, steps: int = 1, **values: Any) -> None:
        """Adds ``steps`` to ``done``; ``values`` as in ``post``."""
        self.done += steps
        self.post(**values)

    def post(self, **values: Any) -> None:
        """Shows numbers or words next to the bar: ``post(loss=0.12)``."""
        self.values |= values
        if self._task is not None:
            _display.update(self._task, completed=self.done, values=self._values())
        elif self._clock() - self._last_line >= INTERVAL and self.done != self.total:
            self._print()

    def _values(self) -> str:
        return ", ".join(
            f"{name} {v:.4g}" if isinstance(v, float) else f"{name} {v}" for name, v in self.values.items()
        )

    def _print(self) -> None:
        self._last_line, self._printed = self._clock(), True
        elapsed = self._last_line - self._started
        count, times = str(self.done), duration(elapsed)
        if self.total is not None:
            count += f"/{self.total}"
            if 0 < self.done < self.total:
                count += f" ({100 * self.done // self.total}%)"
                times += f", {duration(elapsed / self.done * (self.total - self.done))} left"
        note(f"{self.description}: {', '.join(filter(None, [count, times, self._values()]))}", self._file)


def duration(seconds: float) -> str:
    """``"12 s"``, ``"3 min 05 s"`` or ``"2 h 10 min"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _is_terminal(file: TextIO) -> bool:
    if not file.isatty():
        return False
    from rich.console import Console

    console = Console(file=file)
    return console.is_terminal and not console.is_dumb_terminal


def _start_display(file: TextIO) -> Any:
    global _display
    if _display is None:
        import rich.progress as bars
        from rich.console import Console

        _display = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=28),
            bars.MofNCompleteColumn(),
            bars.TimeElapsedColumn(),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[values]}", style="dim"),
            console=Console(file=file),
            redirect_stdout=sys.stdout.isatty(),  # redirected stdout must not end up on stderr
            refresh_per_second=4,
        )
        _display.start()
    return _display
