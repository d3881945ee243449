"""``play_world``: a person plays a world, with moves read from lines or from single keys of a terminal."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from spa.envs.checked import CheckedEnv, WorldError

if TYPE_CHECKING:
    from spa.envs import TextEnv

# What worlds call the moves of the arrow keys up, down, left, right.
_ARROWS = ("up", "down", "left", "right")
_NAMES = (
    _ARROWS,
    ("north", "south", "west", "east"),
    ("move up", "move down", "move left", "move right"),
    ("move north", "move south", "move west", "move east"),
    ("u", "d", "l", "r"),
    ("n", "s", "w", "e"),
    ("w", "s", "a", "d"),
)
_LETTERS = {"A": "up", "B": "down", "C": "right", "D": "left"}  # the ends of the keys' escape sequences
_ESCAPE_WAIT = 0.05  # seconds until an Escape is a key of its own


def arrow_actions(actions: Sequence[str]) -> dict[str, str]:
    """Arrow -> action, for worlds in which at least two opposite arrows mean something; else empty."""
    by_name = {name.casefold(): name for name in actions}
    mapping: dict[str, str] = {}
    for names in _NAMES:
        matched = {arrow: by_name[name] for arrow, name in zip(_ARROWS, names, strict=True) if name in by_name}
        if len(matched) > len(mapping) and ({"up", "down"} <= set(matched) or {"left", "right"} <= set(matched)):
            mapping = matched
    return mapping


def play_world(
    env: TextEnv, seed: int, lines: Iterator[str], out: TextIO, arrows: Mapping[str, str] | None = None
) -> bool:
    """Plays with moves from ``lines`` until there are no more or ``quit``; returns whether the last episode was won.

    A line is an action, the number of an action, ``reset`` (the same world from its start) or ``quit``. Where the world lists
    its actions, ``r`` and ``q`` do, too.

    Args:
        arrows: key -> action, where ``lines`` are keys.

    Raises:
        ValueError: the world raised something, or gave what the contract does not allow.
    """
    try:
        return _play(CheckedEnv(lambda: env), seed, lines, out, arrows or {})
    except WorldError as error:
        raise ValueError(f"the world failed: {error}; run spa env check for details") from error


def _play(env: TextEnv, seed: int, lines: Iterator[str], out: TextIO, arrows: Mapping[str, str]) -> bool:
    state, info = env.reset(seed=seed)
    actions = list(env.actions)
    print(_help(env, actions, arrows), file=out)
    total, over, won = 0.0, False, False
    while True:
        print(f"\n{state}\n> ", file=out, end="", flush=True)
        line = next(lines, "quit").strip()
        move = _read(line, actions, arrows)
        if move == "quit":
            print("\nStopped.", file=out)
            return won
        if arrows:
            print(move, file=out)
        if move == "reset":
            state, info = env.reset(seed=seed)
            total, over, won = 0.0, False, False
            continue
        if over:
            print("The episode is over: reset or quit.", file=out)
            continue
        state, reward, terminated, truncated, info = env.step(move)
        total += float(reward)
        if not info.get("valid", True):
            print("Not a valid action. ", file=out, end="")
        print(f"Reward {float(reward):g}, total {total:g}.", file=out)
        if over := bool(terminated or truncated):
            won = bool(info.get("success"))
            print("Solved." if won else "Out of steps." if truncated else "Lost.", file=out)


def _help(env: TextEnv, actions: Sequence[str], arrows: Mapping[str, str]) -> str:
    lines = [env.rules] if env.rules else []
    lines += [f"  {symbol}  {meaning}" for symbol, meaning in env.symbols.items()]
    if actions:
        named = ", ".join(f"{number} {name}" for number, name in enumerate(actions, 1))
        lines.append(f"Actions: {named}, {'r reset, ' if arrows else ''}q quit")
        if arrows:
            lines.append("Keys: " + ", ".join(f"{arrow} arrow = {name}" for arrow, name in arrows.items()))
    else:
        lines.append("Type an action, reset or quit.")
    return "\n".join(lines)


def _read(line: str, actions: Sequence[str], arrows: Mapping[str, str]) -> str:
    """The action or command that a line means; actions may differ in case, as in a model's answer."""
    if line in actions:
        return line
    if line in arrows:
        return arrows[line]
    if actions and line.isascii() and line.isdecimal() and len(line) <= 4 and 1 <= int(line) <= len(actions):
        return actions[int(line) - 1]
    short = {"q": "quit", "r": "reset"} if actions else {}
    command = short.get(line.casefold(), line.casefold())
    if command in ("quit", "reset"):
        return command
    return next((name for name in actions if name.casefold() == line.casefold()), line)


def keys(read: Callable[[], str], pending: Callable[[], bool]) -> Iterator[str]:
    """Names the keys of a terminal: ``up``, ``down``, ``left``, ``right``, or the character.

    Args:
        read: the next character, or ``""`` at the end.
        pending: whether another character is there already; that tells the key Escape from an escape sequence.
    """
    while (key := read()) not in ("", "\x04"):  # Ctrl-D
        if key == "\x1b" and pending():
            key = read()
            if key in ("[", "O"):
                while (key := read()) and not key.isalpha() and key != "~":
                    pass  # modifiers
                if key in _LETTERS:
                    yield _LETTERS[key]
            continue
        if key.isprintable() and not key.isspace():
            yield key


@contextlib.contextmanager
def terminal_keys(stream: TextIO) -> Iterator[Iterator[str]]:
    """The keys of a terminal, unbuffered and without echo; the terminal is always restored.

    Raises:
        ValueError: the system knows no such terminals.
    """
    try:
        import termios
        import tty
    except ImportError:
        raise ValueError("this system cannot read single keys; play with --lines") from None
    fd = stream.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd, termios.TCSADRAIN)  # Ctrl-C still interrupts
        yield keys(lambda: os.read(fd, 1).decode("latin-1"), lambda: bool(select.select([fd], [], [], _ESCAPE_WAIT)[0]))
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
