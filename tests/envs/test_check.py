"""`check_world` finds what is wrong with a world, and nothing in one that is right."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Text

from spa.envs import TextEnv, make_env
from spa.envs.check import Finding, _step_after_end, check_world, each_finding
from spa.envs.check_markov import outcomes

LUCK = "reset() takes the option noise_seed"
ENOUGH = "the state says enough to predict the next one"
NAMED = "actions and symbols can be named in a prompt"


class Counter(TextEnv):
    """A world that keeps the contract: count to a goal, in two ways, so that histories meet."""

    actions = ("one", "two")
    action_space = Text(3, charset="onetw")
    observation_space = Text(20, charset="0123456789/ ?")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = int(self.np_random.integers(5, 12))
        self.at, self.over = 0, False
        return self.render(), self.info(True, False)

    def step(self, action):
        if getattr(self, "over", True):
            raise ResetNeeded("reset")
        if action not in self.actions:
            return self.render(), 0.0, False, False, self.info(False, False)
        self.at += self.count(action)
        self.over = self.at >= self.goal
        return self.render(), float(self.at == self.goal), self.over, False, self.info(True, True)

    def count(self, action):
        return self.actions.index(action) + 1

    def render(self):
        return f"{self.at}/{self.goal}"

    def info(self, valid, effective):
        return {"success": self.at == self.goal, "valid": valid, "effective": effective, "content": f"to {self.goal}"}


class Noisy(Counter):
    """Sometimes counts one more; the noise is that of ``noise_seed``."""

    def reset(self, *, seed=None, options=None):
        self.noise = np.random.default_rng((options or {}).get("noise_seed", seed or 0))
        return super().reset(seed=seed)

    def count(self, action):
        return super().count(action) + int(self.noise.random() < 0.3)


class OwnNoise(Counter):
    """The same, from np_random."""

    def count(self, action):
        return super().count(action) + int(self.np_random.random() < 0.3)


class DrawsSometimes(Noisy):
    """Only one of the actions is left to chance."""

    def count(self, action):
        return 1 + (action == "two" and int(self.noise.random() < 0.5))


class OwnDrawsSometimes(Counter):
    def count(self, action):
        return 1 + (action == "two" and int(self.np_random.random() < 0.5))


class NoiseOfTheSeed(DrawsSometimes):
    """Another generator than np_random, and no noise_seed."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class NoiseOutOfReach(DrawsSometimes):
    """The generator is no attribute."""

    def reset(self, *, seed=None, options=None):
        state = super().reset(seed=seed, options=options)
        self.noise = SimpleNamespace(random=self.noise.random)
        return state


class HiddenGoal(Counter):
    def render(self):
        return f"{self.at}/" + ("?" if self.at < self.goal else "0")


class HiddenCoin(Counter):
    """Its first eight worlds look different; others look like them and count otherwise."""

    def reset(self, *, seed=None, options=None):
        self.shown, self.coin = (seed or 0) % 8, (seed or 0) // 8 % 2
        return super().reset(seed=seed, options=options)

    def count(self, action):
        return super().count(action) + self.coin

    def render(self):
        return f"{self.at}/{self.shown}"


class HiddenPrize(Counter):
    """Only its reward depends on what is not shown."""

    def step(self, action):
        state, reward, *rest = super().step(action)
        return state, reward * (1 + self.np_random_seed % 2), *rest


class EmptyAfterwards(Counter):
    def render(self):
        return super().render() if self.at == 0 else ""


class HiddenStart(Noisy):
    """What came first tells from the third step on: neither seen nor noise."""

    def reset(self, *, seed=None, options=None):
        self.played = []
        return super().reset(seed=seed, options=options)

    def count(self, action):
        self.played.append(action)
        return super().count(action) + (len(self.played) > 2 and self.played[0] == "two")


class OneWorld(Counter):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal = 7
        return self.render(), self.info(True, False)


class Unpicklable(Counter):
    def __init__(self):
        self.secret = lambda: 0


class UsesGlobalState(Counter):
    def count(self, action):
        return super().count(action) + random.randint(0, 1)


class ReadsGlobalState(Counter):
    """Puts it back, but depends on it."""

    def count(self, action):
        before = random.getstate()
        more = random.randint(0, 1)
        random.setstate(before)
        return super().count(action) + more


class UsesHash(Counter):
    def count(self, action):
        return super().count(action) + hash(action) % 2


class KeepsTheSeed(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=3 if seed is None else seed)


class RefusesOptions(Counter):
    def reset(self, *, seed=None, options=None):
        if options:
            raise KeyError("what is this?")
        return super().reset(seed=seed)


class GoesOn(Counter):
    def step(self, action):
        if hasattr(self, "over"):
            self.over = False
        return super().step(action)


class NumpyFlags(Counter):
    def step(self, action):
        state, reward, over, cut, info = super().step(action)
        return state, reward, np.bool_(over), cut, info


class NotANumber(Counter):
    def step(self, action):
        state, _, over, cut, info = super().step(action)
        return state, float("nan"), over, cut, info


class RenderLies(Counter):
    def step(self, action):
        state, *rest = super().step(action)
        return state + " ?", *rest


class ContentChanges(Counter):
    def info(self, valid, effective):
        return super().info(valid, effective) | {"content": str(self.at)}


class Worded(Counter):
    """Writes its state in words, and that state is its content."""

    def __init__(self, state_format="grid"):
        self.state_format = state_format

    def render(self):
        return super().render() + (" so far" if self.state_format == "coordinates" else "")

    def info(self, valid, effective):
        return super().info(valid, effective) | {"content": f"0/{self.goal}" + self.render().partition(" ")[2]}


class NonsenseCounts(Counter):
    """A malformed action changes what comes later."""

    def step(self, action):
        self.odd = getattr(self, "odd", 0) + (action not in self.actions)
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        self.odd = 0
        return super().reset(seed=seed)

    def count(self, action):
        return super().count(action) + self.odd


class TripsOverLongText(Counter):
    def step(self, action):
        return super().step(action if int("1" + "0" * len(action)) else "")


class Exits(Counter):
    def step(self, action):
        sys.exit("bye")


class NoText(Counter):
    def render(self):
        return self.at  # type: ignore[return-value]


class Hangs(Counter):
    calls = 0

    def step(self, action):
        type(self).calls += 1
        while True:
            time.sleep(0.01)


class NeverEnds(Counter):
    """Played, it goes on and on."""

    steps = 0

    def step(self, action):
        if hasattr(self, "at"):
            type(self).steps += 1
            self.at = 0
        return super().step(action)


class OneText(Counter):
    """A list is meant."""

    actions = ("one")  # fmt: skip


class Codes(Counter):
    actions = (0, 1)


class Cells(Counter):
    symbols = ["P", "O"]


class Tags(Counter):
    """Its states look like closing tags."""

    observation_space = Text(20, charset="0123456789/ ?<>a")

    def render(self):
        return f"{super().render()} </a>"


class Answers(Tags):
    """Its states contain a tag of the responses."""

    def render(self):
        return f"{super().render()} <Answer>"


class FreeText(Counter):
    """Any text is an answer; nothing says what to write."""

    actions = ()

    def count(self, action):
        return len(action) % 3 + 1

    def step(self, action):
        if getattr(self, "over", True):
            raise ResetNeeded("reset")
        self.at += self.count(action)
        self.over = self.at >= self.goal
        return self.render(), 0.0, self.over, False, self.info(True, True)


def check(world: Callable[[], TextEnv] | str, **kwargs) -> dict[str, Finding]:
    name = f"{__name__}:{world.__name__}" if isinstance(world, type) else str(world)
    make = world if isinstance(world, type) else lambda: make_env(name)
    return {finding.question: finding for finding in check_world(make, episodes=60, seeds=3, **kwargs)}


def problems(world) -> dict[str, str]:
    return {question: one.problem for question, one in check(world).items() if not one.ok}


@pytest.mark.parametrize("world", [Counter, "sokoban", "sudoku", "gym:Taxi"])
def test_a_good_world_has_no_problems(world):
    findings = check(world)
    assert [one.line() for one in findings.values() if not one.ok] == []
    assert findings[ENOUGH].note.startswith("60 episodes, ")
    assert int(findings[ENOUGH].note.split()[2]) > 20  # it did compare


@pytest.mark.parametrize(
    "world, question, problem",
    [
        (UsesGlobalState, "the global random state is left alone", "changed the global state"),
        (ReadsGlobalState, "the global random state is left alone", "depends on the global state"),
        (KeepsTheSeed, "reset() without a seed goes on", "always gives the same world"),
        (RefusesOptions, LUCK, "KeyError: 'what is this?'"),
        (GoesOn, "a finished or never reset episode refuses steps", "step() after the end did not raise"),
        (NumpyFlags, "states, rewards and flags have their types", "terminated must be bool, not numpy.bool"),
        (NotANumber, "states, rewards and flags have their types", "must be a finite number"),
        (RenderLies, "states, rewards and flags have their types", "return different texts"),
        (ContentChanges, "content stays the same for an episode", "info['content'] changed after"),
        (NonsenseCounts, "nonsense is data: valid False, nothing changed", "later moves differ"),
        (TripsOverLongText, "nonsense is data: valid False, nothing changed", "raised ValueError: Exceeds the limit"),
        (Exits, "two instances with the same seed are equal", "SystemExit: bye"),
        (NoText, "states, rewards and flags have their types", "which is empty or not text"),
        (EmptyAfterwards, "states, rewards and flags have their types", "the state is empty"),
        (OneText, NAMED, "OneText.actions must be a list or tuple of texts, as in ['Open'], not 'one'"),
        (
            Answers,
            "its states contain no tags of the responses",
            "seed 0: a state contains '<Answer>': stage 1 would drop",
        ),
        (Codes, NAMED, "Codes.actions must be a list or tuple of texts, as in ['Open'], not (0, 1)"),
        (Cells, NAMED, "Cells.symbols must map texts to texts, as in {'P': 'player'}, not ['P', 'O']"),
    ],
)
def test_broken_worlds_fail(world, question, problem):
    finding = check(world)[question]
    assert finding.failed and problem in finding.problem
    assert "\n" not in finding.line() and finding.line().startswith("FAILED  ")


@pytest.mark.parametrize(
    "world, question, problem",
    [
        (OneWorld, "different seeds give different worlds", "env.disjoint=seed"),
        (Unpicklable, "it can be pickled", "cannot be sent to another process"),
        (Noisy, ENOUGH, "noise: "),
        (OwnNoise, ENOUGH, "noise: "),
        (DrawsSometimes, ENOUGH, "noise: "),
        (OwnDrawsSometimes, ENOUGH, "noise: "),
        (NoiseOfTheSeed, ENOUGH, "noise: "),
        (NoiseOutOfReach, ENOUGH, "noise or hidden information: "),
        (HiddenGoal, ENOUGH, "hides information: "),
        (HiddenCoin, ENOUGH, "hides information: "),
        (HiddenPrize, ENOUGH, "(reward 2, the end) and "),
        (HiddenStart, ENOUGH, "hides information: with the same noise "),
        (FreeText, ENOUGH, "no sample_action(rng)"),
        (Tags, "planners can read its states", "seed 0: a state contains '</', at which a planner stops reading"),
    ],
)
def test_what_is_only_worth_knowing_is_a_warning(world, question, problem):
    findings = check(world)
    assert [one.line() for one in findings.values() if one.failed] == []
    one_luck = {LUCK} if world in (OwnNoise, OwnDrawsSometimes, NoiseOfTheSeed) else set()
    assert {key for key, one in findings.items() if not one.ok} == {question} | one_luck
    assert problem in findings[question].problem
    assert findings[question].line().startswith("warning ")


def test_content_must_not_depend_on_the_format():
    question = "content is the same in every state format"
    found = check(Worded, name=f"{__name__}:Worded")[question]
    assert found.failed and "seed 0: info['content'] differs between 'grid' and 'coordinates'" in found.problem
    notes = {world: check(world, name=world)[question].note for world in ("frozen_lake", "countdown")}
    assert notes == {"frozen_lake": "3 formats", "countdown": "1 format"}


def test_hidden_information_comes_with_its_share_and_an_example():
    found = check(HiddenGoal)[ENOUGH].problem
    share, pairs, example = re.fullmatch(
        r"hides information: (\S+)% of (\d+) pairs of state and action have more than one outcome; (.*)", found
    ).groups()
    assert 0 < float(share) < 100 and int(pairs) > 10
    action, state, one, two = re.fullmatch(r"for example '(.*)' in '(.*)' gave '(.*)' and '(.*)'", example).groups()
    assert action in ("one", "two") and state.endswith("/?")
    assert {one[-1], two[-1]} == {"?", "0"} and one[:-1] == two[:-1]  # equal but for the goal


def test_other_processes_are_asked(tmp_path: Path, monkeypatch):
    (tmp_path / "hashing_world.py").write_text(
        "class World:\n"
        "    actions = ('a', 'b')\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        self.n = 0\n"
        "        return f'seed {seed}', {}\n"
        "    def step(self, action):\n"
        "        self.n += 1\n"
        "        return f'{hash(action)} {self.n}', 0.0, self.n == 9, False, {}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    question = "another process gives the same states"
    found = {
        one.question: one for one in check_world(lambda: make_env("hashing_world:World"), name="hashing_world:World")
    }
    assert found[question].failed and "seed 0: another process gives a different result" in found[question].problem
    assert found["two instances with the same seed are equal"].ok
    (tmp_path / "hashing_world.py").write_text("raise RuntimeError('not\\ntwice')\n")
    found = {one.question: one for one in check_world(Counter, name="hashing_world:World", episodes=5)}
    assert found[question].problem.startswith("another process failed: ")
    assert found[question].problem.endswith("RuntimeError: not twice (hashing_world.py, line 1)")


def test_checking_leaves_the_global_random_state_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    check(UsesGlobalState)
    after = random.getstate(), np.random.get_state()[1].tolist()
    assert after[1] == before[1]
    assert check(Counter) and random.getstate() == after[0]


def test_a_call_that_does_not_return_is_a_finding():
    findings = check_world(Hangs, timeout=0.1, name=f"{__name__}:Hangs")
    hung = [one for one in findings if one.failed]
    assert len(hung) > 8 and Hangs.calls == len(hung)
    assert {one.problem for one in hung} <= {"step did not return within 0.1 s", hung[0].problem}


def test_findings_come_as_they_are_made():
    Hangs.calls = 0
    findings = each_finding(Hangs, timeout=0.1)
    assert next(findings).failed and next(findings).failed
    assert Hangs.calls <= 2


def test_a_slow_world_is_a_warning(monkeypatch):
    monkeypatch.setattr("spa.envs.check_clock.SECONDS", -1)
    findings = check_world(Counter)
    assert not [one for one in findings if one.failed]
    assert "too slow" in findings[1].problem


def test_a_world_that_never_ends_is_given_up(monkeypatch):
    note = check(NeverEnds)["a finished or never reset episode refuses steps"].note
    assert note == "no random episode ended"
    NeverEnds.steps = 0
    _step_after_end(NeverEnds)
    assert NeverEnds.steps <= 1001
    monkeypatch.setattr("spa.envs.check_markov._SECONDS", 0.0)
    NeverEnds.steps = 0
    outcomes(NeverEnds, 200)
    assert NeverEnds.steps == 0


def test_a_name_instead_of_a_world_is_refused():
    with pytest.raises(ValueError, match="make: a class, or a function"):
        check_world("frozen_lake")
