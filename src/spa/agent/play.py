"""An episode in progress: the logic shared by token-based and message-based rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from spa.agent.cold_start import COOLING, messages
from spa.agent.episode import Episode, Turn
from spa.agent.host import Host, LocalHost
from spa.agent.response import parse_response
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.envs.actions import match_action
from spa.envs.checked import Step, WorldError


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
    """An episode, its world and its current state. A world that fails ends the episode with ``status="error"``."""

    task: Task
    episode: Episode
    host: Host
    header: str = ""
    state: str = ""
    names: Sequence[str] = ()  # of the world's actions
    actions_left: int = 0
    live: bool = True
    header_shown: bool = False  # by the examples before the first turn

    @classmethod
    def start(cls, task: Task, world: World, group: int, member: int, host: Host | None = None) -> Self:
        """Begins an episode; its world lives in this process unless another host is given."""
        episode = new_episode(task, world, group, member)
        play = cls(task, episode, host or LocalHost(task), actions_left=task.env.max_actions)
        try:
            play.state, content, play.header, play.names = play.host.start(world.seed, episode.noise_seed)
            if world.from_reset and content != world.content:
                play.host.close()
                raise WorldError(
                    "reset: a second one gave another world; reset(seed=...) must always give the same one"
                )
        except WorldError as error:
            play.fail(str(error))
            return play
        examples = task.cold_start.draw(episode.noise_seed)
        play.header_shown = bool(examples) and all(user.startswith(play.header) for user, _ in examples)
        episode.shots = messages(examples, play.header if play.header_shown else "")
        return play

    def fail(self, message: str) -> None:
        """Ends the episode with an error."""
        self.live = False
        self.episode.success = False
        self.episode.status = "error"
        self.episode.error = message

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
        self.learn(*self.host.run(*self.choose(response, finish_reason)))

    def choose(self, response: str, finish_reason: str) -> tuple[list[str], bool]:
        """Records the response to the open turn.

        Returns:
            its actions that the world knows, as many as may be executed, and whether the limits end the episode after them.
        """
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
        known = [match_action(action, self.names) for action in parsed.actions]
        valid = [action for action in known if action is not None]
        if not valid or len(valid) < len(known) or (agent.penalize_extra_actions and parsed.extra_actions):
            turn.penalty = agent.format_penalty
        turn.executed = valid[: self.actions_left]
        return turn.executed, len(turn.executed) >= self.actions_left or turn.index + 1 >= env.max_turns

    def learn(self, steps: Sequence[Step], failure: str) -> None:
        """Records what the world returned for the actions of the open turn, and what went wrong ("" if nothing)."""
        turn = self.episode.turns[-1]
        turn.executed = turn.executed[: len(steps)]
        turn.between = [step.state for step in steps[:-1]]
        turn.rewards = [float(step.reward) for step in steps]
        turn.reward = sum(step.reward for step in steps)
        turn.invalid = sum(step.info.get("valid") is False for step in steps)
        if steps:
            self.state, turn.ended, turn.info = steps[-1].state, steps[-1].terminated, steps[-1].info
        turn.next_state = self.state
        self.actions_left -= len(steps)
        if failure:
            self.fail(failure)
            return
        self.episode.success = bool(turn.info.get("success", self.episode.success))
        ended = bool(steps) and (steps[-1].terminated or steps[-1].truncated)
        if ended or self.actions_left <= 0 or turn.index + 1 >= self.task.env.max_turns:
            self.live = False
            self.episode.status = "completed" if turn.ended else "truncated"
