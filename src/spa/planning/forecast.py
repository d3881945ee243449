"""How much a planner asks, from a few worlds that are searched with true answers instead of a model's. Loads no model."""

from __future__ import annotations

from collections.abc import Sequence

from spa.agent.chat import Chat
from spa.agent.policy import Policy
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.task import Task
from spa.common.sequences import common_length
from spa.config.schema import Config
from spa.data.transitions import STARTS_OF_OUTCOMES, outcome_text, starts_of_states
from spa.envs.check_texts import CLOSE
from spa.planning.search import Imagined, Move
from spa.planning.simulator import Simulator
from spa.planning.world_model import Headers, Usage


class Forecast(Simulator):
    """A simulator whose ``usage`` counts the questions, and the tokens that a model would read and write to answer them as the true
    world does. Random actions take the place of the plain policy's proposals.

    Raises:
        ValueError: the world cannot be set to a state, or cannot be played by random moves.
    """

    def __init__(self, cfg: Config, task: Task, chat: Chat) -> None:
        engine = RandomEngine(chat, random_responder(task))
        policy = Policy(None, chat.tokenizer, chat, engine, cfg.sampling)
        planner = cfg.planner
        super().__init__(policy, task, samples=planner.samples, proposals=planner.proposals, seed=cfg.seeds.run)

    def predict(self, moves: Sequence[Move], headers: Sequence[Headers] = ()) -> list[tuple[Imagined, ...]]:
        answers = super().predict(moves)
        self._written |= dict.fromkeys(self._with_headers(moves, headers), 0)
        # By state: greedy answers about one state read what their questions share once.
        before: dict[tuple[str, Headers], list[int]] = {}
        for (move, shown), drawn in zip(self._with_headers(moves, headers), answers, strict=True):
            for answer in drawn:
                ids, read, written = self._tokens(move, shown, answer)
                shared = common_length(ids, before.get((move.state, shown), ())) if self.samples == 1 else 0
                before[move.state, shown] = ids
                self._written[move, shown] += written
                self.usage += Usage(questions=1, tokens_read=len(ids) - shared + read, tokens_written=written)
        return answers

    def _tokens(self, move: Move, headers: Headers, answer: Imagined) -> tuple[list[int], int, int]:
        """The ids of a question with its prompt, and the number of tokens read and written after it."""
        form, chat, ids = self._format, self.policy.chat, self.policy.chat.response_ids
        question, opened = form.question(*move), form.predicted(*move, answer.state)
        asked, _ = chat.unfinished(question, starts_of_states(move.state))
        before_outcome = len(chat.unfinished(opened, STARTS_OF_OUTCOMES)[0])
        guessed = len(ids(f"{question}{answer.state}{form.after_state}"))
        closed = len(ids(f"{opened}{outcome_text(answer.reward, answer.ended)}{CLOSE}"))
        read = before_outcome - guessed  # the tags between state and outcome
        written = guessed - len(asked) + closed - before_outcome
        return [*self._question_prompt(move.state, headers), *asked], read, written
