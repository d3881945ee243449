"""Bandit: two arms, of which only the names are known."""

from __future__ import annotations

from typing import Any

from spa.envs.seeded import Outcome, SeededEnv, attempts, real_number

Pull = tuple[str, float]
"""An arm and what it paid."""


class Bandit(SeededEnv):
    """A bandit of two arms whose names suggest their payouts, pulled once.

    See ``docs/worlds/bandit.md``. A state is the arms in an order that the seed shuffles and, after the pull, its payout::

        Two arms: Dragon, Phoenix. What an arm pays fits what its name stands for.
        You pulled Dragon. It paid 1.

    The high arm pays ``hi_arm_hiscore`` with probability ``hi_arm_hiscore_prob``, otherwise ``hi_arm_loscore``, drawn from the
    noise. Terminated after one pull; ``success`` is to have pulled the high arm, whatever it paid.

    Args:
        lo_arm_name, hi_arm_name: names of the arms that pay less and more on average.
        lo_arm_score: what the low arm always pays.
        hi_arm_loscore, hi_arm_hiscore, hi_arm_hiscore_prob: payouts of the high arm and the probability of the second.
        render_mode: ``"ansi"`` or None; ``render()`` returns the text either way.

    Raises:
        ValueError: names that are empty or equal, a probability out of range, or a high arm that pays no more than the low one
            on average.

    Source: RAGEN's Bandit, whose settings these are.
    """

    name = "Bandit"
    rules = (
        "You pull one of two arms, once, to win as many points as you can. Each arm pays by a rule of its own, which fits its "
        "name. Think of what the names stand for, and choose the arm that pays more on average."
    )

    def __init__(
        self,
        lo_arm_name: str = "Phoenix",
        hi_arm_name: str = "Dragon",
        lo_arm_score: float = 0.1,
        hi_arm_loscore: float = 0.0,
        hi_arm_hiscore: float = 1.0,
        hi_arm_hiscore_prob: float = 0.25,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(state_format="grid", max_steps=None, render_mode=render_mode)
        self.lo_arm_name, self.hi_arm_name = _name("lo_arm_name", lo_arm_name), _name("hi_arm_name", hi_arm_name)
        if self.lo_arm_name.casefold() == self.hi_arm_name.casefold():
            raise ValueError(f"lo_arm_name and hi_arm_name must differ, got {lo_arm_name!r} and {hi_arm_name!r}")
        self.lo_arm_score = real_number("lo_arm_score", lo_arm_score)
        self.hi_arm_loscore = real_number("hi_arm_loscore", hi_arm_loscore)
        self.hi_arm_hiscore = real_number("hi_arm_hiscore", hi_arm_hiscore)
        self.hi_arm_hiscore_prob = luck = real_number("hi_arm_hiscore_prob", hi_arm_hiscore_prob, 0, 1)
        average = luck * self.hi_arm_hiscore + (1 - luck) * self.hi_arm_loscore
        if average <= self.lo_arm_score:
            raise ValueError(
                f"the high arm must pay more than the low one on average, but pays {average:g} against {self.lo_arm_score:g}: "
                "raise hi_arm_hiscore_prob or hi_arm_hiscore, or swap the names"
            )
        self.actions: tuple[str, ...] = (self.lo_arm_name, self.hi_arm_name)
        self.pulled: Pull | None = None

    def render(self) -> str:
        """The true state."""
        return _text(self.actions, self.pulled)

    def _make(self, world_seed: int) -> None:
        names = (self.lo_arm_name, self.hi_arm_name)
        self.actions = names if next(attempts(world_seed, 1)).random() < 0.5 else names[::-1]
        self.pulled = None

    def _load(self, text: str) -> None:
        names = (self.lo_arm_name, self.hi_arm_name)
        pulls: list[Pull | None] = [None, (self.lo_arm_name, self.lo_arm_score)]
        pulls += [(self.hi_arm_name, score) for score in (self.hi_arm_loscore, self.hi_arm_hiscore)]
        states = {_text(order, pull): (order, pull) for order in (names, names[::-1]) for pull in pulls}
        if text.strip() not in states:
            raise ValueError(f"a state must be written like {_text(names, None)!r}, got {text!r}")
        self.actions, self.pulled = states[text.strip()]

    def _keeps(self, earlier: Any) -> bool:
        return bool(self.actions == earlier.actions and earlier.pulled in (None, self.pulled))

    def _play(self, action: str) -> Outcome | None:
        index = self.action_index(action)
        if index is None:
            return None
        arm = self.actions[index]
        reward = self.lo_arm_score
        if arm == self.hi_arm_name:
            reward = self.hi_arm_hiscore if self.noise.random() < self.hi_arm_hiscore_prob else self.hi_arm_loscore
        self.pulled = (arm, reward)
        return Outcome(reward, True, True)

    def _success(self) -> bool:
        return self.pulled is not None and self.pulled[0] == self.hi_arm_name

    def _finished(self) -> bool:
        return self.pulled is not None

    def _problem(self) -> str:
        return ", ".join(self.actions)


def _text(arms: tuple[str, ...], pulled: Pull | None) -> str:
    text = f"Two arms: {', '.join(arms)}. What an arm pays fits what its name stands for."
    return text + (f"\nYou pulled {pulled[0]}. It paid {pulled[1]:.12g}." if pulled else "")


def _name(setting: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip().isprintable() or not 0 < len(value.strip()) <= 40:
        raise ValueError(f"{setting} must be a name of 1 to 40 characters in one line, got {value!r}")
    return value.strip()
