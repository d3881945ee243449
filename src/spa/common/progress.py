"""Progress on stderr: bars on a terminal, else now and then a plain line. Imports no torch.

::

    for batch in progress(batches, "SFT"):
        ...

    with progress(100, "PPO") as bar:
        for step in range(100):
            ...
            bar.advance(reward=1.2)
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar, overload

from spa.common.secrets import redact

T = TypeVar("T")

INTERVAL = 10.0  # seconds between two plain lines of one bar
_SHORT = 2.0  # seconds: an inner bar that took no longer says nothing
_quiet = False
_open: list[Progress[Any]] = []  # the bars at work, outermost first
_bars: Any = None  # the one rich display they share


def set_quiet(quiet: bool = True) -> None:
    """Turns progress and notes off (or on again) for this process."""
    global _quiet
    _quiet = quiet


def note(text: str, file: TextIO | None = None) -> None:
    """A line about what is going on ("self-play: already done, skipped"), on stderr; nothing when quiet."""
    if not _quiet:
        print(redact(text), file=file or sys.stderr, flush=True)


@overload
def progress(
    work: Iterable[T], description: str, *, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Progress[T]: ...


@overload
def progress(
    work: int | None, description: str, *, file: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Progress[int]: ...


def progress(
    work: Iterable[Any] | int | None,
    description: str,
    *,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress[Any]:
    """Progress of some work: iterate over it, or use it as a context and call ``advance``.

    Args:
        work: the things to go through, or how many steps there are (None: unknown).
        description: what is being done, in a word or two.
        file: where to write; stderr by default.
        clock: seconds, for tests.
    """
    return Progress(work, description, file, clock)


class Progress(Generic[T]):
    """See ``progress``. ``total`` and ``done`` count steps; ``values`` are the numbers shown beside them."""

    def __init__(
        self, work: Iterable[T] | int | None, description: str, file: TextIO | None, clock: Callable[[], float]
    ) -> None:
        self.work: Iterable[T] | None = None if isinstance(work, int) else work
        self.total = work if isinstance(work, int) else len(work) if isinstance(work, Sized) else None
        self.description = description
        self.done = 0
        self.values: dict[str, Any] = {}
        self._file = file or sys.stderr
        self._clock = clock
        self._inner = False
        self._lines = 0
        self._task: Any = None

    def __enter__(self) -> Progress[T]:
        assert self not in _open, "a progress bar is entered once"
        self._started = self._last_line = self._clock()
        self._inner = bool(_open)
        _open.append(self)
        if not _quiet and _is_terminal(self._file):
            self._task = _display(self._file).add_task(self.description, total=self.total, values="")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _open.remove(self)
        if self._task is not None:
            _bars.stop_task(self._task)
            if self._inner:
                _bars.remove_task(self._task)
            self._task = None
        elif not _quiet and kind is None:
            elapsed = self._clock() - self._started
            if not self._inner or self._lines or elapsed >= _SHORT:
                self._print()
        if not _open:
            _close_display()

    def __iter__(self) -> Iterator[T]:
        assert self.work is not None, "this progress counts steps; use it as a context"
        if self in _open:
            yield from self._steps(self.work)
        else:
            with self:
                yield from self._steps(self.work)

    def _steps(self, work: Iterable[T]) -> Iterator[T]:
        for item in work:
            yield item
            self.advance()

    def advance(self, steps: int = 1, **values: Any) -> None:
        """``steps`` more are done; ``values`` as in ``post``."""
        self.done += steps
        self.post(**values)

    def post(self, **values: Any) -> None:
        """Shows numbers or words beside the bar: ``post(loss=0.12)``."""
        self.values.update(values)
        if _quiet:
            return
        if self._task is not None:
            _bars.update(self._task, completed=self.done, values=self._shown())
        elif self._clock() - self._last_line >= INTERVAL and self.done != self.total:
            self._print()

    def _shown(self) -> str:
        return ", ".join(
            f"{name} {v:.4g}" if isinstance(v, float) else f"{name} {v}" for name, v in self.values.items()
        )

    def _print(self) -> None:
        now = self._clock()
        elapsed = now - self._started
        parts = [f"{self.done}/{self.total}" if self.total is not None else str(self.done)]
        if self.total and 0 < self.done < self.total:
            parts[0] += f" ({math.floor(100 * self.done / self.total)}%)"
            parts.append(f"{duration(elapsed)}, {duration(elapsed / self.done * (self.total - self.done))} left")
        else:
            parts.append(duration(elapsed))
        if self.values:
            parts.append(self._shown())
        print(redact(f"{self.description}: {', '.join(parts)}"), file=self._file, flush=True)
        self._last_line = now
        self._lines += 1


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


def _display(file: TextIO) -> Any:
    """The display that all bars share, since a terminal has room for one; started when first asked for."""
    global _bars
    if _bars is None:
        from rich import progress as rich_progress
        from rich.console import Console

        _bars = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}"),
            rich_progress.BarColumn(bar_width=28),
            rich_progress.MofNCompleteColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
            rich_progress.TextColumn("{task.fields[values]}", style="dim"),
            console=Console(file=file),
            redirect_stdout=sys.stdout.isatty(),  # what goes into a file or a pipe must not end up on stderr
            refresh_per_second=4,
        )
        _bars.start()
    return _bars


def _close_display() -> None:
    global _bars
    if _bars is not None:
        _bars.stop()
        _bars = None
