"""Worlds of reasoning-gym, TextArena and GEM against stubs of their interface.

The stubs were checked against reasoning-gym 0.1.25, TextArena 0.7.4 and GEM 0.1.0; the tests marked ``integration`` use the
libraries themselves where they are installed.
"""

from __future__ import annotations

import pickle
import random
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from spa.envs import TextEnv, make_env
from spa.envs.adapters.guard import untouched
from spa.envs.check import check_world


def module(monkeypatch, name: str, **attributes) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(attributes)
    monkeypatch.setitem(sys.modules, name, made)
    return made


class SumConfig:
    def __init__(self, terms: int = 2, seed: int | None = None, size: int = 500):
        if terms < 1:
            raise AssertionError("terms must be positive")
        self.terms, self.seed, self.size = terms, seed, size


class SumData:
    """reasoning-gym's data sets: an item by number, a scorer; some draw from the global state."""

    def __init__(self, config: SumConfig):
        self.config = config

    def __getitem__(self, index: int) -> dict:
        np.random.seed(self.config.seed + index)  # as pool_matrix does
        numbers = np.random.randint(0, 50, self.config.terms).tolist()
        return {"question": " + ".join(map(str, numbers)) + " = ?", "answer": str(sum(numbers)), "metadata": {}}

    def score_answer(self, answer, entry) -> float:
        random.random()
        return 1.0 if int(answer) == int(entry["answer"]) else 0.01


@pytest.fixture
def sums(monkeypatch) -> None:
    sets = dict.fromkeys(("sums", "countdown", "spiral_matrix"), (SumData, SumConfig))

    def create_dataset(name, **settings):
        return sets[name][0](sets[name][1](**settings))

    module(monkeypatch, "reasoning_gym", create_dataset=create_dataset)
    module(monkeypatch, "reasoning_gym.factory", DATASETS=sets)


def test_a_question_and_its_answer(sums):
    env = make_env("reasoning_gym:sums", terms=3)
    state, info = env.reset(seed=1)
    numbers = list(map(int, re.findall(r"\d+", state)))
    assert len(numbers) == 3 and info["content"].endswith(state)
    assert env.reset(seed=1)[0] == state != env.reset(seed=2)[0]
    env.reset(seed=1)
    for bad in ("", "  ", "twelve", "1" * 3000, "\ud800"):
        assert env.step(bad)[:4] == (state, 0.0, False, False)
    after, reward, terminated, truncated, info = env.step(f" {sum(numbers)} ")
    assert after == f"{state}\nAnswer: {sum(numbers)}"
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    env.reset(seed=1)
    assert env.step("0")[1:3] == (0.01, True)  # a wrong answer ends it, too
    assert int(env.sample_action(np.random.default_rng(0))) >= 0


def test_no_answer_is_ever_evaluated(sums, monkeypatch):
    """The scorers of these data sets evaluate the answer: they see harmless ones only."""
    seen = []
    monkeypatch.setattr(SumData, "score_answer", lambda self, answer, entry: seen.append(answer) or 0.5)
    evil = [
        "__import__('os').system('x')",
        "9**9**9**9",
        "x" * 3000,
        "a.b",
        "[x for x in (1).__class__.__mro__]",
        "(" * 900,
    ]
    for name, good in (
        ("countdown", ["(1 + 2) * 3 / 4", "7-5"]),
        ("spiral_matrix", ["1 2 3", "[1, 2, 3]", "[['a'], ['b']]"]),
    ):
        env = make_env(f"reasoning_gym:{name}")
        for text in [*evil, *good]:
            env.reset(seed=0)
            assert env.step(text)[4]["valid"] is (text in good)
    assert seen == ["(1 + 2) * 3 / 4", "7-5", "1 2 3", "[1, 2, 3]", "[['a'], ['b']]"]


def test_data_sets_whose_scorers_evaluate_are_refused(sums, monkeypatch):
    source = "class New:\n    def score_answer(self, answer, entry):\n        return {}(answer)\n".format("eval")
    made = module(monkeypatch, "reasoning_gym.new", New=type("New", (SumData,), {"__module__": "reasoning_gym.new"}))
    sys.modules["reasoning_gym.factory"].DATASETS["new"] = (made.New, SumConfig)
    monkeypatch.setattr("inspect.getsource", lambda of: source)
    with pytest.raises(ValueError, match="evaluates the answer as Python code"):
        make_env("reasoning_gym:new")


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("sum", {}, "unknown world 'reasoning_gym:sum'. Did you mean 'reasoning_gym:sums'"),
        ("sums", {"term": 3}, "unknown setting 'term' of world 'reasoning_gym:sums'. Did you mean 'terms'"),
        ("sums", {"seed": 3}, "reset\\(seed=\\) chooses the question"),
        ("sums", {"terms": 0}, "cannot be made with these settings: AssertionError: terms must be positive"),
        ("sums", {"state_format": "coordinates"}, "unknown setting 'state_format'"),
    ],
)
def test_mistakes_with_questions(sums, name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_env(f"reasoning_gym:{name}", **settings)


class ArenaState:
    """TextArena's SinglePlayerState, as far as games and adapter use it."""

    def __init__(self, seed):
        if seed is not None:
            random.seed(seed)
        self.observations, self.error_allowance, self.error_count = {0: []}, 1, 0
        self.rewards, self.done, self.turn, self.max_turns = None, False, 0, 4
        self.game_info = {0: {"invalid_move": False}}

    def say(self, text, kind):
        self.observations[0].append((-1, text, kind))

    def invalid(self, reason):
        if self.error_allowance > self.error_count:
            self.error_count += 1
            self.say(f"You attempted an invalid move. {reason}", KINDS.GAME_ADMIN)
        else:
            self.end(-1.0, reason)
            self.game_info[0]["invalid_move"] = True

    def end(self, reward, reason):
        self.rewards, self.done = {0: reward}, True
        self.game_info[0]["reason"] = reason


KINDS = SimpleNamespace(
    PROMPT=1, PLAYER_ACTION=2, GAME_ACTION_DESCRIPTION=3, GAME_MESSAGE=4, GAME_BOARD=5, GAME_ADMIN=6
)


class Guess:
    """A game of messages with a secret: guess a number. Trips over words, and damages itself before it finds a guess wrong."""

    def __init__(self, top: int = 9):
        self.top = top
        self.words = {str(i) for i in range(1000)}  # a list that copies must share

    def reset(self, num_players, seed=None):
        assert num_players == 1
        self.state = ArenaState(seed)
        self.number, self.guessed, self.luck = random.randint(1, self.top), {-1, -2, -3}, None
        self.state.say(f"Guess a number from 1 to {self.top}.", KINDS.PROMPT)

    def get_observation(self):
        seen, self.state.observations[0] = self.state.observations[0], []
        return 0, seen

    def step(self, action):
        self.luck = random.random()
        self.state.observations[0].append((0, action, KINDS.PLAYER_ACTION))
        guess = int(re.search(r"\[(\w+)\]", action)[1])
        known = guess in self.guessed
        self.guessed.add(guess)
        if known or not 0 < guess <= self.top:
            self.state.invalid("No such number.")
        elif guess == self.number:
            self.state.end(1, "Right!")
        else:
            self.state.turn += 1
            self.state.say("higher" if self.number > guess else "lower", KINDS.GAME_MESSAGE)
            if self.state.turn >= self.state.max_turns:
                self.state.end(0.5, "No turns left.")
        return self.state.done, {}


class Game2048Env:
    """A game of boards: up and down on a ladder."""

    def reset(self, num_players, seed=None):
        self.state = ArenaState(seed)
        self.at = random.randint(2, 7)
        self.state.say("Climb to 9.", KINDS.PROMPT)
        self.show()

    get_observation = Guess.get_observation

    def show(self):
        self.state.say(f"\n0 {'.' * self.at}P\n", KINDS.GAME_BOARD)

    def step(self, action):
        self.at += {"[up]": 1, "[down]": -1, "[left]": random.choice((-1, 1)), "[right]": 0}[action]
        if self.at == 9:
            self.state.end(1, "At the top.")
        else:
            self.show()
        return self.state.done, {}


class TwoPlayers(Guess):
    def reset(self, num_players, seed=None):
        assert num_players == 2, "two are needed"


class Wrapped:
    def __init__(self, env):
        self.env = env


@pytest.fixture
def arena(monkeypatch) -> None:
    games = {"Guess-v0": Guess, "Ladder-v0": Game2048Env, "Duel-v0": TwoPlayers, "Words-v0": None}

    def make(name, **settings):
        if games[name] is None:
            raise LookupError("Resource words not found; use nltk.download")
        return Wrapped(games[name](**settings))

    module(monkeypatch, "textarena", make=make, ObservationType=KINDS, SinglePlayerState=ArenaState)
    module(monkeypatch, "textarena.envs")
    module(monkeypatch, "textarena.envs.registration", ENV_REGISTRY=games)


def guess_it(env: TextEnv, seed: int) -> int:
    env.reset(seed=seed)
    for number in range(1, 10):
        state, reward, terminated, _, info = env.step(str(number))
        if info["success"]:
            assert terminated and reward == 1 and state.endswith(f"> {number}\nRight!")
            return number
        if terminated:
            return 0
    raise AssertionError


def test_a_game_of_messages(arena):
    env = make_env("textarena:Guess-v0")
    state, info = env.reset(seed=1)
    assert state == "No moves yet." and env.rules == "Guess a number from 1 to 9." and env.actions == ()
    assert env.reset(seed=1)[1]["content"] == info["content"]
    numbers = {seed: guess_it(env, seed) for seed in range(60)}
    assert set(numbers.values()) == {0, 1, 2, 3, 4}  # four guesses from below
    for one in range(10):  # the content tells secrets apart
        for two in range(10):
            contents = {env.reset(seed=seed)[1]["content"] for seed in (one, two)}
            if numbers[one] and numbers[two]:
                assert (len(contents) == 1) == (numbers[one] == numbers[two])


def test_invalid_moves_are_taken_back(arena):
    env, twin = make_env("textarena:Guess-v0"), make_env("textarena:Guess-v0")
    env.reset(seed=3)
    twin.reset(seed=3)
    for text in ("", "0", "99", "many", "[", "[x]", "1" * 5000, "\ud800", "[0]", "0"):
        state, reward, terminated, truncated, info = env.step(text)
        assert (state, reward, terminated, truncated) == ("No moves yet.", 0.0, False, False) and not info["valid"]
    for number in ("9", "9", "1"):
        assert env.step(number) == twin.step(number)
    assert env._game.luck == twin._game.luck and env._game.words is env._game.words
    assert env._game.guessed == {-1, -2, -3, 9, 1}


def test_a_game_of_boards_and_its_views(arena):
    env = make_env("textarena:Ladder-v0")
    assert env.actions == ("up", "down", "left", "right")
    state, _ = env.reset(seed=0)
    at = len(state) - 3
    assert state == "0 " + "." * at + "P"
    states = [env.step("UP")[0] for _ in range(9 - at)]
    assert states[0] == "0 " + "." * (at + 1) + "P"
    assert states[-1] == states[-2] + "\nAt the top."  # the game shows no last board
    said = make_env("textarena:Ladder-v0", view="history")
    said.reset(seed=0)
    assert said.step("down")[0] == f"{state}\n> down\n0 {'.' * (at - 1)}P"
    last = make_env("textarena:Ladder-v0", view="last")
    last.reset(seed=0)
    assert last.step("down")[0] == f"> down\n0 {'.' * (at - 1)}P"
    listed = make_env("textarena:Guess-v0", actions=["1", "2"])
    listed.reset(seed=0)
    assert listed.actions == ("1", "2") and not listed.step("3")[4]["valid"]


@pytest.mark.usefixtures("put_back_global_state")
def test_interleaved_games_do_not_disturb_each_other(arena):
    """Each is as if alone, though both draw from the global state; noise_seed decides what is random after the start."""

    def walk(envs, noise_seeds):
        states = [
            [env.reset(seed=5, options={"noise_seed": noise})[0]] for env, noise in zip(envs, noise_seeds, strict=True)
        ]
        for number in range(12):
            for env, seen in zip(envs, states, strict=True):
                random.seed(number)  # somebody else
                if env._running:
                    seen.append(env.step("left")[0])
        return states

    def new():
        return make_env("textarena:Ladder-v0")

    alone = [walk([new()], [noise])[0] for noise in (1, 2, 3)]
    together = walk([new(), new(), new()], [1, 2, 3])
    assert together == alone
    assert len({tuple(states) for states in alone}) > 1 and len({states[0] for states in alone}) == 1
    env = new()
    env.reset(seed=8)
    twin = pickle.loads(pickle.dumps(env))
    assert [env.step("left") for _ in range(2)] == [twin.step("left") for _ in range(2)]


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("Gues-v0", {}, "unknown world 'textarena:Gues-v0'. Did you mean 'textarena:Guess-v0'"),
        ("Duel-v0", {}, "textarena:Duel-v0 is not for one player"),
        ("Words-v0", {}, "needs word lists of nltk: python -m nltk.downloader words"),
        ("Guess-v0", {"tops": 3}, "unknown setting 'tops' of world 'textarena:Guess-v0'. Did you mean 'top'"),
        ("Guess-v0", {"view": "bord"}, "Did you mean 'board'"),
        ("Guess-v0", {"actions": "up"}, "must be a list of names"),
    ],
)
def test_mistakes_with_games(arena, name, settings, message):
    with pytest.raises(ValueError, match=message):
        make_env(f"textarena:{name}", **settings)
    assert make_env("textarena:Guess-v0", top=3).reset(seed=0)[0]


class Hanoi:
    """GEM's games: rules and a board as suffix; a format error ends the game, a wrong move only counts."""

    def __init__(self, top: int = 3, max_turns: int = 5, **_):
        self.top, self.max_turns = top, max_turns
        self.reset()

    def reset(self, seed=None):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        self.at, self.turn_count = random.randint(0, 1), 0
        return "Climb.", {"suffix": self.suffix()}

    def suffix(self):
        return f"The ladder:\n{self.at} of {self.top}\nYour move."

    def sample_random_action(self):
        return "\\boxed{" + random.choice(("up", "down")) + "}"

    def step(self, action):
        self.turn_count += 1
        info = {"suffix": self.suffix()}
        found = re.search(r"\\boxed{(\w+)}", action)
        if not found or found[1] not in ("up", "down"):
            return "What?", -0.1, True, False, info
        if found[1] == "down" and self.at == 0:
            return "You are down.", 0.0, False, False, info
        self.at += 1 if found[1] == "up" else -1
        info = {"suffix": self.suffix()}
        if self.at == self.top:
            return "Congratulations!", 1.0, True, False, info
        if self.turn_count >= self.max_turns:
            return "You have reached the maximum number of turns.", 0.4, True, True, info
        return "Moved.", 0.0, False, False, info


@pytest.fixture
def gem(monkeypatch) -> None:
    specs = {"game:Ladder-v0": {}, "game:Long-v0": {"top": 9}, "math:Sums": {}}

    def make(env_id, **settings):
        return Hanoi(**{**specs[env_id], **settings})

    module(monkeypatch, "gem")
    module(monkeypatch, "gem.envs")
    module(monkeypatch, "gem.envs.registration", ENV_REGISTRY=specs, make=make)
    module(monkeypatch, "gem.utils")
    rewards = SimpleNamespace(format_error_reward=-0.1)
    module(monkeypatch, "gem.utils.constants", LanguageGameReward=rewards)


def test_a_game_of_gem(gem):
    env = make_env("gem:game:Ladder-v0")
    starts = {seed: env.reset(seed=seed) for seed in range(20)}
    assert {state for state, _ in starts.values()} == {f"The ladder:\n{at} of 3\nYour move." for at in (0, 1)}
    assert len({info["content"] for _, info in starts.values()}) == 2 and env.rules == "Climb."
    seed = next(seed for seed, (state, _) in starts.items() if "0 of" in state)
    state, _ = env.reset(seed=seed)
    for bad in ("", "sideways", "\\boxed{x}", "down", "x" * 5000) * 2:
        assert env.step(bad)[:4] == (state, 0.0, False, False)
    assert env.step("up")[0] == "The ladder:\n1 of 3\nYour move."
    env.step("\\boxed{up}")
    state, reward, terminated, truncated, info = env.step("up")
    assert state == "The ladder:\n3 of 3\nYour move.\nCongratulations!"
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    rng = np.random.default_rng(0)
    assert {env.sample_action(rng) for _ in range(20)} == {"up", "down"}


def test_the_turn_limit_of_gem_is_no_success(gem):
    env = make_env("gem:game:Long-v0", max_turns=2)
    env.reset(seed=0)
    env.step("up")
    _, reward, terminated, _, info = env.step("up")
    assert (reward, terminated, info["success"]) == (0.4, True, False)


def test_only_gems_games_are_offered(gem):
    with pytest.raises(ValueError, match="unknown world 'gem:math:Sums'"):
        make_env("gem:math:Sums")
    with pytest.raises(ValueError, match="unknown setting 'state_format' of world 'gem:game:Ladder-v0'"):
        make_env("gem:game:Ladder-v0", state_format="coordinates")  # the game itself would swallow it


@pytest.mark.parametrize(
    "name",
    [
        "reasoning_gym:sums",
        "textarena:Guess-v0",
        pytest.param("textarena:Ladder-v0", marks=pytest.mark.slow),
        pytest.param("gem:game:Ladder-v0", marks=pytest.mark.slow),
    ],
)
def test_adapted_worlds_keep_the_contract(sums, arena, gem, name):
    findings = check_world(lambda: make_env(name), episodes=5, seeds=2)
    assert [one.line() for one in findings if one.failed] == []


# --- the libraries themselves

REAL = {
    "reasoning_gym": ["chain_sum", "countdown", "n_queens", "pool_matrix", "mini_sudoku", "maze"],
    "textarena": [
        "LightsOut-v0",
        "FrozenLake-v0-random",
        "GuessTheNumber-v0",
        "Mastermind-v0",
        "TowerOfHanoi-v0",
        "Sudoku-v0-easy",
    ],
    "gem": [
        "game:Mastermind-v0-easy",
        "game:TowerofHanoi-v0-easy",
        "game:Game2048-v0-easy",
        "game:Minesweeper-v0-easy",
    ],
}


@pytest.mark.integration
@pytest.mark.parametrize("name", [f"{prefix}:{name}" for prefix, names in REAL.items() for name in names])
def test_real_libraries(name):
    with untouched():  # what importing it draws is not the adapter's
        pytest.importorskip(name.partition(":")[0])
    findings = check_world(lambda: make_env(name), episodes=20, seeds=3, name=name)
    assert [one.line() for one in findings if one.failed] == []


@pytest.mark.integration
def test_real_answers_are_scored():
    with untouched():
        factory = pytest.importorskip("reasoning_gym.factory")
    refused = {"intermediate_integration", "polynomial_multiplication", "simple_integration"}
    for name in refused:
        with pytest.raises(ValueError, match="evaluates the answer"):
            make_env(f"reasoning_gym:{name}")
    for name in sorted(set(factory.DATASETS) - refused - {"composite"}):
        env = make_env(f"reasoning_gym:{name}")
        env.reset(seed=1)
        if answer := env._entry["answer"]:
            assert env.step(str(answer))[1] > 0.9, name
