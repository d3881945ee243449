"""Playing with a planner: it looks before it acts, in imagination alone, and learns from what it sees."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from spa.agent.episode import Episode
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, EnvConfig, PlannerConfig
from spa.envs import TextEnv
from spa.envs.frozen_lake.world import FrozenLake
from spa.planning.play import play_with_planner, search_all
from spa.planning.search import NOTHING, PLANNERS, Imagined, Move
from spa.planning.world_model import Headers, WorldModel
from spa.report.predictions import expected
from tests.planning.tools import Asked, TrueEngine, distances, oracle, player_of, seen, start_of, true_moves
from tests.scripted import LAKE, lake_task

WORLDS = [World(seed, f"w{seed}") for seed in range(16)]
TASK = lake_task(1)


def play(
    model: Any, task: Task = TASK, worlds: list[World] = WORLDS, kind: str = "lookahead", **kwargs: Any
) -> list[Episode]:
    group_size = kwargs.pop("group_size", 1)
    return play_with_planner(model, task, worlds, kind, PlannerConfig(**kwargs), seed=3, group_size=group_size)


def actions(episode: Episode) -> list[str]:
    return [action for turn in episode.turns for action in turn.executed]


class Watched(FrozenLake):
    """Tells what is done to it, in order."""

    log: ClassVar[list[str]] = []

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.world = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.world = -1 if seed is None else seed
        self.log.append("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        self.log.append(f"step {action}")
        return super().step(action)

    def legal(self, state: str, before: str | None = None) -> bool | None:
        self.log.append("legal")
        return super().legal(state, before)


class Rooms(TextEnv):
    """Offers two of six rooms, by its seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        first, second = (int(room) for room in self.np_random.permutation(6)[:2])
        self.actions, self.goal = (f"enter {first}", f"enter {second}"), f"enter {second}"
        return f"The key is in {second}.", {"content": f"{first} {second}", "success": False}

    def step(self, action: str) -> Any:
        right = action == self.goal
        return "gone", float(right), True, False, {"success": right, "valid": True, "effective": True}


def test_actions_that_a_world_names_at_reset_are_those_that_are_planned() -> None:
    task = Task(EnvConfig(id=f"{__name__}:Rooms", max_turns=2), AgentConfig(style="terse", window=1))

    class Known(Asked):
        def headers(self, env: Any) -> Headers:
            return WorldModel.headers(self.world_model, env)

        world_model = WorldModel(player_of(TrueEngine(TASK)), task)

    known = Known(lambda move: (seen("gone", float(move.state[-2] == move.action[-1]), True),))
    episodes = play(known, task)
    assert all(episode.success for episode in episodes)
    assert len({action for episode in episodes for action in actions(episode)}) > 2


class Fragile(FrozenLake):
    """Breaks in its second step where the seed is odd, and in its first reset at seed 6."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.odd, self.steps = bool(seed and seed % 2), 0
        if seed == 6 and options and "state" not in options:
            raise RuntimeError("no world")
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        self.steps += 1
        if self.odd and self.steps == 2:
            raise RuntimeError("fell apart")
        return super().step(action)


def of_class(name: str, **env: Any) -> Task:
    settings = EnvConfig(**{**vars(LAKE), "id": f"{__name__}:{name}", **env})
    return Task(settings, AgentConfig(style="terse", window=1))


@pytest.mark.parametrize("style", ["terse", "paper"])
@pytest.mark.parametrize("prompt", ["base", "world_model"])
def test_who_imagines_the_truth_wins_every_lake_on_a_shortest_way(style: str, prompt: str) -> None:
    task = Task(LAKE, AgentConfig(style=style, prompt=prompt, window=1))
    episodes = play(WorldModel(player_of(TrueEngine(task)), task), task)
    for episode, world in zip(episodes, WORLDS, strict=True):
        start = start_of(task, world)
        assert (episode.success, episode.status, episode.total_reward) == (True, "completed", 1.0)
        assert len(actions(episode)) == distances(task, start)[start]
        assert all(turn.format_ok and not turn.penalty for turn in episode.turns)
        assert [turn.index for turn in episode.turns] == list(range(len(episode.turns)))
        assert (episode.seed, episode.content, episode.prompt) == (world.seed, world.content, prompt)


def test_boxes_are_pushed_home() -> None:
    room = {"id": "sokoban", "tag": "Room", "settings": {"dim_room": [6, 6], "max_moves": 4}}
    task = Task(EnvConfig(**room), AgentConfig(style="terse", window=1))
    worlds = WORLDS[:3]
    episodes = play(oracle(task), task, worlds, depth=6)
    for episode, world in zip(episodes, worlds, strict=True):
        start = start_of(task, world)
        assert episode.success
        assert len(actions(episode)) == distances(task, start, won=lambda move: move.ended)[start] <= 4


@pytest.mark.parametrize("kind", ["beam", "mcts"])
def test_the_other_planners_win_too(kind: str) -> None:
    near = [world for world in WORLDS if distances(TASK, (start := start_of(TASK, world)))[start] <= 3]
    episodes = play(oracle(TASK), TASK, near, kind, width=4, simulations=120)
    assert len(near) >= 8
    assert all(episode.success for episode in episodes)


def test_the_world_is_touched_by_what_is_executed_alone() -> None:
    truth = oracle(TASK)
    task = of_class("Watched", max_actions_per_turn=2)
    Watched.log.clear()
    answered = truth.answer

    def answer(move: Move) -> tuple[Imagined, ...]:
        Watched.log.append("asked")
        return answered(move)

    truth.answer = answer
    episodes = play(truth, task, WORLDS[:6])
    taken = [action for episode in episodes for action in actions(episode)]
    log = Watched.log
    assert sorted(entry for entry in log if entry.startswith("step")) == sorted(f"step {action}" for action in taken)
    assert log.count("reset") == 6
    assert "legal" not in log
    first = log.index("asked")
    assert "asked" not in log[:first] and set(log[:first]) == {"reset"}, "it looks before it acts"
    assert all(episode.success for episode in episodes)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_turn_plays_as_much_of_the_plan_as_it_may(limit: int) -> None:
    task = lake_task(1, max_actions_per_turn=limit, max_turns=20)
    for episode, world in zip(play(oracle(task), task), WORLDS, strict=True):
        start = start_of(task, world)
        far = distances(task, start)[start]
        assert episode.success
        assert [len(turn.executed) for turn in episode.turns] == [limit] * (far // limit) + [far % limit] * (
            far % limit > 0
        )
        left = [turn.actions_left for turn in episode.turns]
        assert left == [10 - limit * number for number in range(len(left))]


def test_no_more_actions_are_played_than_are_left() -> None:
    task = lake_task(1, max_actions=3)
    for episode, world in zip(play(oracle(task), task), WORLDS, strict=True):
        start = start_of(task, world)
        within = distances(task, start)[start] <= 3
        assert episode.success == within
        assert within or (len(actions(episode)) == 3 and episode.status in ("truncated", "completed"))


def test_what_is_predicted_is_what_the_plan_expects_after_the_actions_of_the_turn() -> None:
    task = Task(
        EnvConfig(**{**vars(LAKE), "max_actions_per_turn": 2}), AgentConfig(style="paper", prompt="world_model")
    )
    for turn in (turn for episode in play(oracle(task), task) for turn in episode.turns):
        assert turn.observation == f"\n{turn.state}\n"
        assert turn.prediction == f"\n{turn.next_state}\n"


def test_a_group_is_played_in_one_world() -> None:
    episodes = play(oracle(TASK), worlds=WORLDS[:3], group_size=4)
    assert [(episode.group, episode.member) for episode in episodes] == [(g, m) for g in range(3) for m in range(4)]
    assert [episode.seed for episode in episodes] == [0] * 4 + [1] * 4 + [2] * 4
    assert len({episode.noise_seed for episode in episodes[:4]}) == 4
    assert all(episode.success for episode in episodes)
    again = play(oracle(TASK), worlds=WORLDS[:3], group_size=4)
    assert again == episodes


def test_members_of_a_group_break_ties_apart() -> None:
    nothing = Asked(lambda move: (seen(move.state),), TASK.make_env().actions)
    firsts = [episode.turns[0].executed[0] for episode in play(nothing, worlds=WORLDS[:1], group_size=16)]
    assert len(set(firsts)) == 4


@pytest.mark.parametrize("limit", [1, 5])
def test_a_world_that_breaks_ends_its_own_episode_only(limit: int) -> None:
    task = of_class("Fragile", max_actions_per_turn=limit)
    episodes = play(oracle(lake_task(1)), task)
    for episode in episodes:
        start = start_of(TASK, World(episode.seed, "w"))
        broken = episode.seed == 6 or (episode.seed % 2 and distances(TASK, start)[start] > 1)
        assert episode.status == ("error" if broken else "completed")
        assert episode.success == (not broken)
        if broken:
            assert ("no world" if episode.seed == 6 else "fell apart") in episode.error
    assert 4 <= sum(episode.status == "error" for episode in episodes) <= 12


def blocked(world: World) -> Move | None:
    """A move against the edge from the start, which does nothing."""
    start = start_of(TASK, world)
    look = true_moves(TASK)
    return next((move for name in TASK.make_env().actions if look(move := Move(start, name)).state == start), None)


def test_what_was_seen_is_believed_rather_than_imagined() -> None:
    task = lake_task(1, max_turns=12)
    found = [(world, lie) for world in WORLDS if (lie := blocked(world)) is not None]
    assert len(found) >= 8
    for world, lie in found:
        model = oracle(task, {lie: seen("won", 1.0, True)})
        (episode,) = play(model, task, [world])
        far = distances(task, lie.state)[lie.state]
        if far == 1:
            continue  # either of two wins may be tried first
        assert actions(episode)[0] == lie.action
        assert episode.turns[0].imagined["path"][0]["ended"]
        assert (len(actions(episode)), episode.success) == (1 + far, True), "it is tried once"
        assert model.moves.count(lie) == 1


def test_what_was_remembered_is_no_prediction() -> None:
    """Walls lie ahead of who believes that every move leads on; the second time it knows better."""
    hopeless = Asked(lambda move: (NOTHING if move.action == "Up" else seen(move.state),), ["Up", "Left"])
    episodes = play(hopeless, lake_task(1, max_turns=6), depth=1)
    turns = [turn for episode in episodes for turn in episode.turns]
    again = [turn for turn in turns if turn.imagined["path"][0].get("remembered")]
    assert again and len(again) < len(turns)
    for episode in episodes:
        known: set[Move] = set()
        for turn in episode.turns:
            move = Move(turn.state, turn.executed[0])
            assert turn.imagined["path"][0].get("remembered", False) == (move in known)
            assert (expected(turn) is None) == (move in known or not turn.imagined["path"][0]["state"])
            known.add(move)


def test_a_state_that_was_seen_to_be_another_is_gone_on_from_as_it_is() -> None:
    """Of several moves in a turn each is remembered: the one that was wrong too."""
    task = lake_task(1, max_turns=12)
    for world in WORLDS:
        start = start_of(task, world)
        if distances(task, start)[start] < 3:
            continue
        truth = oracle(task)
        first, second = play(truth, task, [world])[0].turns[0].imagined["path"][:2]
        lie = Move(first["state"], second["action"])
        model = oracle(task, {lie: seen("won", 9.0, True)})
        (episode,) = play(model, task, [world])
        assert model.moves.count(lie) == 1
        assert episode.success


def test_what_was_seen_to_do_nothing_is_not_preferred_to_the_unknown() -> None:
    """Nothing is believed of any move. 24 of 106 turns walked into a wall again, since that was known to cost nothing."""
    knows_nothing = Asked(lambda move: (seen("?", probability=0.1),), TASK.make_env().actions)
    again = 0
    for episode in play(knows_nothing, lake_task(1, max_actions_per_turn=1, max_turns=10)):
        vain = [(turn.state, *turn.executed) for turn in episode.turns if turn.state == turn.next_state]
        again += len(vain) - len(set(vain))
    assert again < 6


class Well(TextEnv):
    """Who drinks gains, and nothing changes."""

    actions = ("drink", "wait")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return "a well", {"content": str(seed)}

    def step(self, action: str) -> Any:
        return "a well", float(action == "drink"), False, False, {"success": False, "valid": True, "effective": True}


def test_what_was_seen_to_gain_is_done_again_though_it_changes_nothing() -> None:
    knows_nothing = Asked(lambda move: (seen("?", probability=0.1),), Well.actions)
    env = EnvConfig(id=f"{__name__}:Well", tag="Well", max_turns=6, max_actions_per_turn=1)
    made = [actions(episode) for episode in play(knows_nothing, Task(env, AgentConfig(style="terse", window=1)))]
    drunk = [one.count("drink") for one in made]
    assert made == [["wait"] * (6 - count) + ["drink"] * count for count in drunk] and max(drunk) > 1


class Shut(TextEnv):
    """One of four doors is open; the others are refused."""

    actions = ("1", "2", "3", "4")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return "shut", {"content": str(seed)}

    def step(self, action: str) -> Any:
        right = action == "3"
        info = {"success": right, "valid": right, "effective": right}
        return ("open" if right else "shut"), float(right), right, False, info


def test_a_refusal_is_remembered_where_chance_decides_too() -> None:
    task = Task(
        EnvConfig(id=f"{__name__}:Shut", tag="Shut", max_turns=4, max_actions_per_turn=1),
        AgentConfig(style="terse", window=1),
    )
    unsure = Asked(lambda move: (seen("shut"), seen("open", float(move.action != "3"), True)), Shut.actions)
    episodes = play(unsure, task, samples=2, depth=1)
    assert all(sorted(actions(episode)) == sorted(set(actions(episode))) for episode in episodes)
    assert all(episode.success for episode in episodes)


def test_where_chance_decides_one_look_is_no_answer() -> None:
    """Of a state that is met again every action is asked about again."""
    world, lie = next((world, lie) for world in WORLDS if (lie := blocked(world)) is not None)
    stuck = Asked(
        lambda move: (seen("won", 1.0, True) if move == lie else seen(move.state),) * 2, TASK.make_env().actions
    )
    (episode,) = play(stuck, lake_task(1, max_actions_per_turn=1), [world], samples=2, depth=1)
    assert actions(episode) == [lie.action] * 5
    assert stuck.moves.count(lie) == 5


def test_where_chance_decides_no_more_than_one_action_is_planned() -> None:
    truth = oracle(TASK)
    twice = Asked(lambda move: truth.answer(move) * 2, truth.actions)
    turns = [turn for episode in play(twice, samples=2, depth=5) for turn in episode.turns]
    assert max(len(turn.imagined["path"]) for turn in turns) > 1
    assert all(len(turn.executed) == 1 for turn in turns)


@pytest.mark.parametrize("limit", [1, 3])
def test_no_further_is_planned_than_the_turns_that_are_left_allow(limit: int) -> None:
    world, wall = next((world, move) for world in WORLDS if (move := blocked(world)) is not None)

    def planned(turns: int, samples: int) -> list[int]:
        task = lake_task(1, max_turns=turns, max_actions_per_turn=limit, max_actions=50)
        onward = Asked(
            lambda move: (seen(f"{move.state}.") if move.action == wall.action else NOTHING,) * samples, [wall.action]
        )
        (episode,) = play(onward, task, [world], samples=samples, depth=10)
        return [len(turn.imagined["path"]) for turn in episode.turns]

    assert planned(1, samples=1) == [limit]
    assert planned(3, samples=2) == [3, 2, 1], "one action a turn"


def test_what_was_imagined_is_kept_in_the_episode() -> None:
    episodes = play(WorldModel(player_of(TrueEngine(TASK, sure=0.95)), TASK))
    for episode in episodes:
        for turn in episode.turns:
            assert json.loads(json.dumps(turn.imagined)) == turn.imagined
            assert set(turn.imagined) == {"path", "values", "questions"}
            first, *_ = turn.imagined["path"]
            assert first["probability"] == pytest.approx(0.9025, abs=1e-4) or turn.index
            assert [step["action"] for step in turn.imagined["path"]][: len(turn.executed)] == turn.executed
            assert turn.imagined["path"][len(turn.executed) - 1]["state"] == turn.next_state
        assert Episode.from_json(episode.to_json()) == episode


@pytest.mark.parametrize("kind", ["lookahead", "beam", "mcts"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_model_that_knows_nothing_plays_all_the_same(kind: str, listed: bool) -> None:
    model = Asked(lambda move: (seen("", probability=0.0),), TASK.make_env().actions if listed else ())
    for episode in play(model, kind=kind, worlds=WORLDS[:4]):
        assert episode.status in ("completed", "truncated")
        assert len(episode.turns[0].executed) == listed
        assert all(bool(turn.executed) == listed for turn in episode.turns), "what was seen may be gone through at once"
        assert Episode.from_json(episode.to_json()) == episode


@pytest.mark.parametrize("kind", PLANNERS)
def test_proposals_are_asked_for_with_the_actions_left_that_the_prompt_states(kind: str) -> None:
    """However few turns are left to play them."""
    task = lake_task(1, max_turns=3, max_actions_per_turn=1, max_actions=10)
    model = Asked(lambda move: (seen(f"{move.state}+"),), (), lambda choice: {"Down": 1.0})
    asked: list[list[int]] = []

    def on_turn(episode: Episode, ended: bool) -> None:
        asked.append([choice.actions_left for choice in model.choices[sum(map(len, asked)) :]])

    config = PlannerConfig(depth=6, simulations=40)
    (episode,) = play_with_planner(model, task, WORLDS[:1], kind, config, seed=0, on_turn=on_turn)
    assert len(episode.turns) == 3
    for turn, lefts in zip(episode.turns, asked, strict=True):
        assert f"\n{turn.actions_left} left\n" in turn.user
        layers = 1 if kind == "best_of_n" else 3 - turn.index
        assert sorted(set(lefts)) == [turn.actions_left - layer for layer in reversed(range(layers))]


def test_searches_are_answered_side_by_side() -> None:
    truth = oracle(TASK)
    play(truth, worlds=WORLDS[:5])
    assert len(truth.calls[0]) == 5 * 4, "all that is asked at once goes to the model together"

    def search(number: int) -> Any:
        (answer,) = yield [Move(f"s{number}", "a")]
        for _ in range(number):
            (answer,) = yield [Move(answer[0].state, "a")]
        return number, answer

    known = {Move("s1", "a"): (seen("remembered"),)}
    model = Asked(lambda move: (seen(move.state + "+"),), ["a"])
    results = search_all(model, [search(number) for number in range(3)], [Headers()] * 3, [{}, known, {}])
    assert results == [(0, (seen("s0+"),)), (1, (seen("remembered+"),)), (2, (seen("s2+++"),))]
    assert search_all(model, [], []) == []
