"""An episode in progress: the logic shared by token-based and message-based rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from spa.agent.cold_start import COOLING, messages
from spa.agent.episode import Episode, Turn
from spa.agent.response import Parsed, match_action, parse_response
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.envs import TextEnv


def new_episode(task: Task, world: World, group: int, member: int) -> Episode:
    """An episode without turns."""
    return Episode(
        task=task.tag,
        seed=world.seed,
        group=group,
        member=member,
        noise_seed=world.noise_seed(member),
        content=world.content,
        prompt=task.agent.prompt,
        system=task.system,
    )


@dataclass
class Play:
    """An episode, its world and its current state. A world that raises ends the episode with ``status="error"``."""

    task: Task
    episode: Episode
    env: TextEnv
    header: str = ""
    state: str = ""
    actions_left: int = 0
    live: bool = True
    header_shown: bool = False  # by the examples before the first turn

    @classmethod
    def start(cls, task: Task, world: World, group: int, member: int) -> Self:
        episode = new_episode(task, world, group, member)
        play = cls(task, episode, task.make_env(), actions_left=task.env.max_actions)
        try:
            play.state, _ = play.env.reset(seed=world.seed, options={"noise_seed": episode.noise_seed})
            play.header = task.header(play.env)
            examples = task.cold_start.draw(episode.noise_seed)
            play.header_shown = bool(examples) and all(user.startswith(play.header) for user, _ in examples)
            episode.shots = messages(examples, play.header if play.header_shown else "")
        except Exception as error:
            play._fail(error)
        return play

    def _fail(self, error: Exception) -> None:
        self.live = False
        self.episode.success = False
        self.episode.status = "error"
        self.episode.error = f"{type(error).__name__}: {error}"

    def first_shown(self, index: int) -> int:
        """The earliest turn visible in turn ``index``: 0, or the start of the history window."""
        window = self.task.agent.window
        return 0 if window == 0 else max(0, index - window + 1)

    def user_text(self, index: int, first: int) -> str:
        """The user message of a past or the next turn ``index`` in a context that begins at turn ``first``."""
        turns = self.episode.turns
        past = turns[index] if index < len(turns) else None
        state, left = (past.state, past.actions_left) if past else (self.state, self.actions_left)
        text = self.task.turn_text(index - first + 1, state, left)
        return (self.header if index == first else self.task.reward_text(turns[index - 1].reward)) + text

    def after_shots(self, text: str) -> str:
        """The first user message of a context as shown: without the header if an example has shown it."""
        return text.removeprefix(self.header) if self.header_shown else text

    def open_turn(self, index: int, user: str) -> None:
        """Begins turn ``index``, whose user message is ``user``."""
        self.episode.turns.append(Turn(index, self.state, user, "", self.state, actions_left=self.actions_left))

    def try_again(self, response: str) -> bool:
        """Whether the response to the open turn is rejected and to be sampled again; counts the tries."""
        turn, help = self.episode.turns[-1], self.task.cold_start
        again = turn.tries < help.tries and not help.complete(response)
        turn.tries += again
        return again

    @property
    def cooling(self) -> float:
        """The factor on the temperature in the present try of the open turn."""
        return float(COOLING ** (self.episode.turns[-1].tries - 1))

    def answer(self, response: str, finish_reason: str) -> None:
        """Records the response to the open turn and executes its actions."""
        turn = self.episode.turns[-1]
        turn.response, turn.finish_reason = response, finish_reason
        agent, env = self.task.agent, self.task.env
        parsed = parse_response(
            response,
            agent.prompt,
            think=agent.think,
            action_sep=agent.action_sep,
            max_actions=env.max_actions_per_turn,
        )
        turn.format_ok, turn.actions = parsed.format_ok, list(parsed.actions)
        turn.observation, turn.prediction = parsed.observation, parsed.prediction
        try:
            ended = self._execute(turn, parsed)
        except Exception as error:
            self._fail(error)
            return
        self.episode.success = bool(turn.info.get("success", self.episode.success))
        out_of_limits = self.actions_left <= 0 or turn.index + 1 >= env.max_turns
        if ended or out_of_limits:
            self.live = False
            self.episode.status = "completed" if ended else "truncated"

    def _execute(self, turn: Turn, parsed: Parsed) -> bool:
        """Executes the actions known to the world, up to its limits; True if the world ended the episode."""
        known = [match_action(action, self.env.actions) for action in parsed.actions]
        valid = [action for action in known if action is not None]
        agent = self.task.agent
        if not valid or len(valid) < len(known) or (agent.penalize_extra_actions and parsed.extra_actions):
            turn.penalty = agent.format_penalty
        rewards: list[Any] = []
        before = ""
        ended = False
        for action in valid[: self.actions_left]:
            self.state, reward, terminated, truncated, info = self.env.step(action)
            if turn.executed:
                turn.between.append(before)
            before = self.state
            rewards.append(reward)
            turn.rewards.append(float(reward))
            turn.executed.append(action)
            turn.ended = bool(terminated)
            turn.info = {key: value for key, value in info.items() if isinstance(value, (bool, int, float, str))}
            if terminated or truncated:
                ended = True
                break
        turn.reward = sum(rewards)
        turn.next_state = self.state
        self.actions_left -= len(turn.executed)
        return ended
