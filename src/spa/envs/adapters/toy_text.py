"""Gymnasium's toy-text worlds: its rules, moves and rewards, with the state drawn from its data.

Actions are Gymnasium's, by name and in any case; all are valid. Cells: player ``P`` (taxi ``T``), ground or ice ``_``. A taxi
covers what is below it; between two cells ``:`` lets it pass and ``|`` is a wall::

    |R:_|_:_:G|        ____________        P_O     You: 1, 6 (17). Dealer: 10, ?
    |_:_|_:_:_|        ____________        O_G
    |_:T:_:_:_|        ____________
    |_|_:_|_:_|        PCCCCCCCCCCG
    |Y|_:_|B:_|
    Passenger: Y. Destination: G.

After its end Blackjack shows all of the dealer's cards; what is drawn, and where one slips, depends on ``noise_seed``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from spa.envs.adapters.guard import build, check_settings, find_name
from spa.envs.seeded import WORLD_STREAM, Outcome, SeededEnv, generator, one_of, pick


def _taxi(inner: Any, over: bool) -> tuple[str, str]:
    row, column, passenger, destination = inner.decode(inner.s)
    lines = [b"".join(line).decode().replace(" ", "_") for line in inner.desc[1:-1]]
    lines[row] = lines[row][: 2 * column + 1] + "T" + lines[row][2 * column + 2 :]
    places = [*"RGYB", "in the taxi"]
    grid = "\n".join([*lines, f"Passenger: {places[passenger]}. Destination: {places[destination]}."])
    spots = [*(f"at ({r},{c})" for r, c in inner.locs), "in the taxi"]
    return (
        grid,
        f"Taxi (T) is at ({row},{column}); passenger is {spots[passenger]}; destination is {spots[destination]}.",
    )


def _cliff(inner: Any, over: bool) -> tuple[str, str]:
    cells = np.where(inner._cliff, "C", "_")
    cells.flat[inner.start_state_index], cells[-1, -1] = "S", "G"
    return _with_player(cells, inner.s)


def _lake(inner: Any, over: bool) -> tuple[str, str]:
    symbols = {"S": "_", "F": "_", "H": "O", "G": "G"}
    return _with_player(np.array([[symbols[tile.decode()] for tile in row] for row in inner.desc]), inner.s, holes=True)


def _with_player(cells: Any, s: int, holes: bool = False) -> tuple[str, str]:
    def where(symbol: str) -> str:
        return ", ".join(f"({row},{column})" for row, column in np.argwhere(cells == symbol))

    row, column = divmod(s, cells.shape[1])
    pits = f" holes (O) are at {where('O')};" if holes else ""
    sentence = f"Player (P) is at ({row},{column});{pits} goal (G) is at {where('G')}."
    cells.flat[s] = {"O": "X", "G": "√"}.get(str(cells.flat[s]), "P")
    return "\n".join("".join(row) for row in cells), sentence


def _cards(inner: Any, over: bool) -> tuple[str, str]:
    def hand(cards: list[int]) -> str:
        total = sum(cards) + (10 if 1 in cards and sum(cards) <= 11 else 0)
        return f"{', '.join(map(str, cards))} ({total})"

    return f"You: {hand(inner.player)}. Dealer: {hand(inner.dealer) if over else f'{inner.dealer[0]}, ?'}", ""


def _was_paid(inner: Any, reward: float) -> bool:
    return reward > 0


def _stayed_on_the_cliff(inner: Any, reward: float) -> bool:
    return reward > -100


def _stands_on_the_goal(inner: Any, reward: float) -> bool:
    return bool(inner.desc.flat[inner.s] == b"G")  # ``reward_schedule`` may pay for a hole


class _World(NamedTuple):
    """What Gymnasium does not say of a world in words."""

    # (Gymnasium's world, whether the episode is over) -> grid, coordinate sentence
    text: Callable[[Any, bool], tuple[str, str]]
    actions: tuple[str, ...]
    symbols: dict[str, str]
    rules: str
    won: Callable[[Any, float], bool] = _was_paid  # by a last move with this reward


# By the name of Gymnasium's class.
_WORLDS = {
    "TaxiEnv": _World(
        _taxi,
        ("Down", "Up", "Right", "Left", "Pickup", "Dropoff"),
        {
            "T": "taxi",
            "_": "road",
            ":": "way through",
            "|": "wall",
            "R": "red stand",
            "G": "green stand",
            "Y": "yellow stand",
            "B": "blue stand",
        },
        "Drive the taxi to the passenger, pick the passenger up, drive to the destination and drop the passenger off there. "
        "Stands are marked by their letters; a wall (|) between two cells cannot be crossed.",
    ),
    "CliffWalkingEnv": _World(
        _cliff,
        ("Up", "Right", "Down", "Left"),
        {"P": "player", "_": "ground", "S": "start", "C": "cliff", "G": "goal", "√": "player on goal"},
        "Walk to the goal. Who steps off the cliff is put back to the start.",
        won=_stayed_on_the_cliff,
    ),
    "FrozenLakeEnv": _World(
        _lake,
        ("Left", "Down", "Right", "Up"),
        {"P": "player", "_": "ice", "O": "hole", "G": "goal", "X": "player in hole", "√": "player on goal"},
        "Cross the lake to the goal without falling into a hole.",
        won=_stands_on_the_goal,
    ),
    "BlackjackEnv": _World(
        _cards,
        ("Stick", "Hit"),
        {},
        "Take cards until you stick. Win by a sum closer to 21 than the dealer's; over 21 you lose. An ace is 1 and counts as 11 "
        "where that does not go over 21. The dealer takes cards until the sum is 17 or more.",
    ),
}


class ToyText(SeededEnv):
    """A toy-text world of Gymnasium, whose randomness is drawn from ours.

    Args:
        game: its Gymnasium id (``"Taxi-v4"``), or that without the version for the newest there is.
        settings: ``max_steps`` (default: the registration's time limit), the keyword arguments of Gymnasium's world and, except
            for Blackjack, ``random_start`` (start in any state that is not final) and ``state_format`` (``"grid"`` or
            ``"coordinates"``, which adds zero-indexed positions).

    Raises:
        ValueError: there is no such world or setting, or a bad value.
    """

    def __init__(self, game: str, /, **settings: Any) -> None:
        world, newest = f"gym:{game}", _newest()
        gym_id = newest.get(game, game)
        find_name(world, gym_id, [known for known in gym.registry if known.rpartition("-v")[0] in newest])
        spec = gym.spec(gym_id)
        kind = str(spec.entry_point).rpartition(":")[2]
        make: Any = gym.envs.registration.load_env_creator(str(spec.entry_point))
        ours = ("max_steps",) if kind == "BlackjackEnv" else ("max_steps", "random_start", "state_format")
        check_settings(world, settings, make, (*ours, "render_mode"))
        options = {"max_steps": spec.max_episode_steps, **settings}
        theirs = spec.kwargs | {name: value for name, value in settings.items() if name not in (*ours, "render_mode")}
        if kind == "FrozenLakeEnv" and theirs.get("map_name") is None and theirs.get("desc") is None:
            raise ValueError(f"{world} needs map_name or desc; the world frozen_lake has a new map for every seed")
        self.name, self._world = game.partition("-v")[0], _WORLDS[kind]
        state_format = one_of(
            "state_format", options.get("state_format", "grid"), ("grid", "coordinates"), of=self.name
        )
        super().__init__(state_format=state_format, max_steps=options["max_steps"], render_mode="ansi")
        self.inner = build(world, make, theirs)  # Gymnasium checks few of the values
        self.rules, self.actions, self.symbols = self._world.rules, self._world.actions, self._world.symbols
        self._starts = _starts(self.inner, bool(options.get("random_start")))
        self._over = self._won = False

    def render(self) -> str:
        """The true state as text; Blackjack's hides the dealer's second card until the end."""
        grid, sentence = self._world.text(self.inner, self._over)
        return grid if self.state_format == "grid" else f"{grid}\n{sentence}"

    def _make(self, world_seed: int) -> None:
        self._over = self._won = False
        self.inner.reset(seed=world_seed % 2**31)
        if self._starts:
            self.inner.s = self._starts[pick(generator(world_seed, WORLD_STREAM).random(), len(self._starts))]

    def _play(self, action: str) -> Outcome | None:
        index = self.action_index(action)
        if index is None:
            return None
        before, self.inner.np_random = self.render(), self.noise
        _, reward, self._over, _, _ = self.inner.step(index)
        self._won = self._over and self._world.won(self.inner, float(reward))
        return Outcome(float(reward), self.render() != before, bool(self._over))

    def _success(self) -> bool:
        return self._won

    def _problem(self) -> str:
        return (
            f"\n{self._world.text(self.inner, False)[0]}"
            if self._starts
            else f"{self.inner.player} {self.inner.dealer}"
        )


@cache
def _newest() -> dict[str, str]:
    """The worlds that can be played: name without version -> newest Gymnasium id."""
    versions: dict[str, int] = {}
    for spec in gym.registry.values():
        module, _, kind = str(spec.entry_point).rpartition(":")
        if module.startswith("gymnasium.envs.toy_text.") and kind in _WORLDS and spec.version is not None:
            versions[spec.name] = max(spec.version, versions.get(spec.name, 0))
    return {name: f"{name}-v{version}" for name, version in versions.items()}


def _starts(inner: Any, anywhere: bool) -> list[int]:
    """Gymnasium's starting states, or all that can be reached from them and are not final; none for a world without states."""
    if not hasattr(inner, "P"):
        return []
    starts = [int(s) for s in np.flatnonzero(inner.initial_state_distrib)]
    if not anywhere:
        return starts
    reached, final, queue = set(starts), set(), list(starts)
    while queue:
        for outcomes in inner.P[queue.pop()].values():
            for probability, s, _, terminated in outcomes:
                if probability > 0 and terminated:
                    final.add(int(s))
                elif probability > 0 and int(s) not in reached:
                    reached.add(int(s))
                    queue.append(int(s))
    return sorted(reached - final)
