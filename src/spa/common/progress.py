"""Progress on stderr: rich's bars on a terminal, otherwise a plain line at least every ten seconds. Imports no torch.

::

    for batch in progress(batches, "SFT"):
        ...

    with progress(100, "PPO") as bar:
        for step in range(100):
            ...
            bar.advance(reward=1.2)

A plain line is that of the outermost bar, then what the bars inside it are at. A thread prints it, since one forward pass may
take longer than ten seconds; rich keeps counts and times in both cases.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any, TextIO

from spa.common.secrets import redact
from spa.common.text import clean

INTERVAL = 10.0  # seconds between plain lines
_quiet = False
_hushed = 0  # calls of ``quieted`` under way
_open: list[progress] = []  # the bars in use, outermost first
_display: Any = None  # their shared rich display: a terminal can have only one
_last_line = 0.0  # time of the last plain line
_ended = threading.Event()  # tells the thread that prints for this display to end
_lock = threading.RLock()  # of the bars, against the thread that prints
_tokens = 0  # sampled by this process
Outlook = Callable[[str, tuple[float, float] | None], str]
_outlook: Outlook | None = None


def is_quiet() -> bool:
    """Whether notes and bars are off."""
    return _quiet or _hushed > 0


def set_quiet(quiet: bool = True) -> None:
    """Turns progress and notes off (or on again) for this process."""
    global _quiet
    _quiet = quiet


@contextmanager
def quieted(quiet: bool) -> Iterator[None]:
    """Turns progress and notes off for a while if ``quiet``; several threads may, and are then quiet together."""
    global _hushed
    with _lock:
        _hushed += quiet
    try:
        yield
    finally:
        with _lock:
            _hushed -= quiet


def set_outlook(outlook: Outlook | None) -> None:
    """Sets what says how long the whole run will take, beside the outermost bar: a function of its description and, if known, the
    seconds that it has left and the share of its steps that this is."""
    global _outlook
    _outlook = outlook


def note(text: str, file: TextIO | None = None) -> None:
    """Prints a status line ("self-play: already done, skipped") on stderr; nothing when quiet."""
    if not is_quiet():
        print(clean(redact(text)), file=file or sys.stderr, flush=True)


def on_terminal() -> bool:
    """Whether bars are being drawn on a terminal."""
    return _display is not None and not _display.disable


def count_tokens(number: int) -> None:
    """Adds to the sampled tokens of this process and of the innermost bar, which shows their rate."""
    global _tokens
    _tokens += number
    if _open:
        _open[-1].tokens += number


def show(**values: Any) -> None:
    """Shows numbers next to the innermost bar, if there is one."""
    with _lock:
        if _open:
            _open[-1].post(**values)


def leave_to_parent() -> None:
    """Called in a fork: prints nothing, and does not touch the parent's bars, whose locks may be held there."""
    global _lock
    set_quiet()
    _open.clear()
    _lock = threading.RLock()


def sampled_tokens() -> int:
    """Tokens that this process (without its forks) has sampled so far."""
    return _tokens


class progress:
    """Progress of work: iterate over it, or use it as a context manager and call ``advance``.

    Args:
        work: the items to iterate over, or the number of steps.
        description: one or two words.
        file: where to write; stderr by default.
        clock: returns seconds; for tests.

    Attributes:
        total: number of steps; None if unknown. ``done``: finished steps.
        values: numbers shown next to the bar, by name; tokens sampled since it began are shown as a rate.
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
        self.done = self.tokens = 0
        self.values: dict[str, Any] = {}
        self._file = file or sys.stderr
        self._clock = clock

    def __enter__(self) -> progress:
        global _display, _last_line, _ended
        with _lock:
            if not _open:
                _display, _last_line = _start_display(self._file, self._clock), self._clock()
                _ended = threading.Event()
                threading.Thread(target=_print_lines, args=(_ended,), daemon=True).start()
            _open.append(self)
            number = _display.add_task(self.description, total=self.total, values="")
            self._task = next(task for task in _display.tasks if task.id == number)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        global _display
        with _lock:
            _open.remove(self)
            _display.stop_task(self._task.id)
            if _open:
                _display.remove_task(self._task.id)
                return
            _ended.set()
            if kind is None and not on_terminal():
                note(self._line(), self._file)
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
        with _lock:
            self.values |= values
            _display.update(self._task.id, completed=self.done, values=self._values())
            print_due()

    def _values(self) -> str:
        values = dict(self.values)
        if self.tokens and self._task.elapsed:
            values["tokens/s"] = round(self.tokens / self._task.elapsed)
        if _outlook is not None and _open[:1] == [self]:
            left = self._task.time_remaining if self.total and self.done < self.total else None
            if text := _outlook(self.description, left and (left, 1 - self.done / (self.total or 1))):
                values["run"] = text
        shown = {name: f"{round(v, 12):.4g}" if isinstance(v, float) else v for name, v in values.items()}  # no 1.7e-18
        return ", ".join(f"{name} {value}" for name, value in shown.items())

    def _line(self) -> str:
        """``PPO: 3/100 (3%), 40 s, 21 min 33 s left, success 0.2``."""
        count, times = str(self.done), duration(self._task.elapsed or 0.0)
        if self.total is not None:
            count += f"/{self.total}"
            if 0 < self.done < self.total:
                count += f" ({self._task.percentage:.0f}%)"
                times += f", {duration(left)} left" if (left := self._task.time_remaining) else ""
        return f"{self.description}: {', '.join(filter(None, [count, times, self._values()]))}"

    def _inner(self) -> str:
        """``playing 64/256, tokens/s 1300``; without a count before the first is done."""
        count = f" {self.done}" + (f"/{self.total}" if self.total is not None else "") if self.done else ""
        return ", ".join(filter(None, [self.description + count, self._values()]))


def _print_lines(ended: threading.Event) -> None:
    while not ended.wait(1.0):
        print_due()


def print_due() -> None:
    """Prints a line if there was none for ten seconds; on a terminal, brings the bars' rates up to date."""
    global _last_line
    with _lock:
        if not _open or (now := _open[0]._clock()) - _last_line < INTERVAL or _open[0].done == _open[0].total:
            return
        _last_line = now
        if on_terminal():
            for bar in _open:
                _display.update(bar._task.id, values=bar._values())
        else:
            outer, *inner = _open
            note("; ".join([outer._line(), *(bar._inner() for bar in inner)]), outer._file)


def duration(seconds: float) -> str:
    """``"12 s"``, ``"3 min 05 s"`` or ``"2 h 10 min"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _start_display(file: TextIO, clock: Callable[[], float]) -> Any:
    import rich.progress as bars
    from rich.console import Console
    from rich.table import Column

    console = Console(file=file)
    shown = not is_quiet() and file.isatty() and console.is_terminal and not console.is_dumb_terminal
    display = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=8, table_column=Column(width=8)),
        bars.MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=5)),
        bars.TimeElapsedColumn(table_column=Column(width=7)),
        bars.TimeRemainingColumn(table_column=Column(width=7)),
        # Of what a narrow terminal has no room for, the values are cut first.
        bars.TextColumn(
            "{task.fields[values]}", style="dim", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
        console=console,
        expand=True,
        redirect_stdout=sys.stdout.isatty(),  # redirected stdout must not end up on stderr
        refresh_per_second=4,
        speed_estimate_period=3600.0,
        get_time=clock,
        disable=not shown,
    )
    display.start()
    return display
