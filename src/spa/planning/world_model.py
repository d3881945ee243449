"""Query interface to stage 2's world model: the result of an action, its value, and what the plain policy would do."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from spa.agent.chat import Chat
from spa.agent.policy import Policy, ServedPolicy, sampling_for
from spa.agent.response import parse_response
from spa.agent.task import Task
from spa.common.progress import show
from spa.common.sequences import common_length
from spa.config.schema import SamplingConfig
from spa.data.transitions import RESPONSE_FORMATS, STARTS_OF_OUTCOMES, ResponseFormat, read_outcome, starts_of_states
from spa.engines.base import Completion
from spa.engines.processes import in_processes
from spa.envs import TextEnv
from spa.envs.actions import match_action
from spa.envs.check_texts import CLOSE
from spa.envs.checked import WorldError
from spa.planning.journal import Journal
from spa.planning.search import Answer, Choice, Imagined, Move, Question, Worth

Q = TypeVar("Q")
T = TypeVar("T")
_Answers = tuple[list[T], list[int], "Usage"]  # the tokens written for each; the usage lacks them


@dataclasses.dataclass
class Usage:
    """Query counts: questions answered by the model and by the cache, tokens read and tokens written."""

    questions: int = 0
    cached: int = 0
    tokens_read: int = 0
    tokens_written: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    @property
    def tokens(self) -> int:
        return self.tokens_read + self.tokens_written


class Headers(NamedTuple):
    """The texts before the first turn in a world (``Task.header``), by prompt mode, and the actions that it names."""

    base: str = ""
    world_model: str = ""
    actions: tuple[str, ...] = ()


Asked = tuple[Q, Headers]
"""A question and the headers of the world that it is about."""


class WorldModel:
    """Answers questions about a world with a model trained on transition rows (``selfplay.rows=transitions``).

    A question is the beginning of such a row's response, which the engine continues: first the next state, then the outcome.
    Equal questions about worlds with equal headers are asked once. This class does not know the world: states are texts, and only
    the model's probability distinguishes valid states from other text.

    Args:
        policy: the policy whose model is queried; any engine that continues tokens.
        task: the world and its prompts. Its prompt mode does not matter.
        samples: answers per move. 1 is the likeliest; more are sampled at temperature 1.
        proposals: actions sampled from the plain policy to answer a ``Choice``; with 0 the answer is ``{}`` (no preference).
        seed: for sampling. An answer depends only on it, on the question and on its headers, not on other questions.
        player: the policy that proposes actions; None is ``policy``.

    Raises:
        ValueError: a model is behind a chat server, which cannot continue a partial response.
    """

    def __init__(
        self,
        policy: Policy,
        task: Task,
        *,
        samples: int = 1,
        proposals: int = 0,
        seed: int = 0,
        player: Policy | None = None,
    ) -> None:
        if isinstance(policy, ServedPolicy) or isinstance(player, ServedPolicy):
            raise ValueError(
                "a planner continues partial responses: use engine=transformers or vllm, not a chat server"
            )
        self.policy, self.player = policy, player or policy
        self.samples, self.proposals, self.seed = samples, proposals, seed
        self.usage = Usage()
        self._format: ResponseFormat = RESPONSE_FORMATS[task.agent.style]
        agent = dataclasses.replace(task.agent, prompt="world_model", window=1)
        self._world_model_task = dataclasses.replace(task, agent=agent)
        self._plain_task = dataclasses.replace(task, agent=dataclasses.replace(agent, prompt="base"))
        env = self._plain_task.make_env()
        self._first_headers = Headers()  # of seed 0
        with suppress(WorldError):  # which need not be a world that is asked about
            env.reset(seed=0)
            self._first_headers = self.headers(env)
        self._known: dict[Asked[Question], Answer] = {}
        self._written: dict[Asked[Question], int] = {}  # tokens of the answers
        self.journal: Journal | None = None
        self.gives_values: bool | None = None  # whether any Worth had an answer; None: none was asked

    def headers(self, env: TextEnv) -> Headers:
        """Those of a world that has been reset."""
        return Headers(self._plain_task.header(env), self._world_model_task.header(env), tuple(env.actions))

    def _with_headers(self, questions: Sequence[Q], headers: Sequence[Headers]) -> list[Asked[Q]]:
        """Questions with the headers of their worlds."""
        return list(zip(questions, headers or [self._first_headers for _ in questions], strict=True))

    def ask(self, questions: Sequence[Question], headers: Sequence[Headers] = ()) -> list[Answer]:
        """The answers in the order of the questions: see ``Move``, ``Choice`` and ``Worth``.

        Args:
            headers: of the world that each question is about; without them those of the world of seed 0.

        Raises:
            ValueError: something else is asked.
        """
        if odd := [question for question in questions if not isinstance(question, Question)]:
            raise ValueError(f"a question is a Move, Choice or Worth, not {odd[0]!r}")
        keys = self._with_headers([self._key(question) for question in questions], headers)
        new = [key for key in dict.fromkeys(keys) if key not in self._known]
        self.usage += Usage(cached=len(questions) - len(new))
        stored = self.journal.replay(new) if self.journal and new else None
        if stored:
            answers, written, usage = stored
            self._known.update(zip(new, answers, strict=True))
            self._written.update(zip(new, written, strict=True))
            self.usage = Usage(*usage)
        elif new:
            self._answer(new)
            if self.journal:
                written = [self._written.get(key, 0) for key in new]
                self.journal.add(new, [self._known[key] for key in new], written, dataclasses.astuple(self.usage))
        if worths := [self._known[key] for key in new if isinstance(key[0], Worth)]:
            self.gives_values = self.gives_values or any(worth is not None for worth in worths)
        show(questions=self.usage.questions)
        return [self._known[key] for key in keys]

    def _answer(self, asked: Sequence[Asked[Question]]) -> None:
        """Puts the answers into the cache."""
        moves = [(question, headers) for question, headers in asked if isinstance(question, Move)]
        choices = [(question, headers) for question, headers in asked if isinstance(question, Choice)]
        worths = [(question, headers) for question, headers in asked if isinstance(question, Worth)]
        predicted = self.predict([move for move, _ in moves], [headers for _, headers in moves])
        self._known.update(zip(moves, predicted, strict=True))
        self._known.update(zip(choices, self._choose(choices), strict=True))
        valued = self._spread(self.policy, self._value, [(one, 0) for one in worths], self._reading(0.0))
        self._known.update(zip(worths, valued, strict=True))

    def answered(self) -> dict[Move, tuple[Imagined, ...]]:
        """What is in the cache about moves in worlds with the headers of the world of seed 0."""
        return {
            question: answers
            for (question, headers), answers in self._known.items()
            if isinstance(question, Move) and headers == self._first_headers
        }

    def tokens_written(self, questions: Iterable[Question], headers: Headers) -> int:
        """How many tokens the answers to questions of ``ask`` had, whoever asked first."""
        return sum(self._written.get((self._key(question), headers), 0) for question in questions)

    def forget(self) -> None:
        """Empties the cache, e.g. after further training."""
        self._known.clear()
        self._written.clear()

    def _key(self, question: Question) -> Question:
        return Choice(question.state, 0) if isinstance(question, Choice) and not self.proposals else question

    def predict(self, moves: Sequence[Move], headers: Sequence[Headers] = ()) -> list[tuple[Imagined, ...]]:
        """The model's predictions for moves, ``samples`` answers each; bypasses the cache. ``headers`` as of ``ask``.

        An answer that is cut off, has no readable outcome, or does not fit into the model's context has probability 0.

        Raises:
            ValueError: something else than moves is asked.
        """
        for move in moves:
            if not isinstance(move, tuple) or len(move) != 2 or not all(isinstance(part, str) for part in move):
                raise ValueError(f"a move is a state and an action, both texts, not {move!r}")
        sampling = self._reading(0.0 if self.samples == 1 else 1.0)
        asked = self._with_headers([Move(*move) for move in moves], headers)
        queries = [(one, sample) for one in asked for sample in range(self.samples)]
        answers = self._spread(self.policy, self._imagine, queries, sampling)
        return [tuple(answers[i : i + self.samples]) for i in range(0, len(answers), self.samples)]

    @property
    def has_weights(self) -> bool:
        """Whether ``log_probs`` is available."""
        return self.policy.model is not None

    def log_probs(self, outcomes: Sequence[tuple[Move, str]], headers: Sequence[Headers] = ()) -> list[float]:
        """Log-probability (nats) of each state as the result of its move, whatever the model itself would predict. ``headers`` as
        of ``ask``.

        Raises:
            ValueError: the engine has no weights to score with.
        """
        from spa.models.score import Chosen, sum_logprobs

        if not self.has_weights:
            raise ValueError("states are scored by the model's weights: use engine=transformers")
        chat, form = self.policy.chat, self._format
        asked = self._with_headers([move for move, _ in outcomes], headers)
        states_of: dict[Asked[Move], list[str]] = {}
        for one, (_, state) in zip(asked, outcomes, strict=True):
            states_of.setdefault(one, []).append(f"{state}{form.after_state}")
        rows = {
            (move, shown): iter(
                chat.continuations(self._question_prompt(move.state, shown), form.question(*move), states)
            )
            for (move, shown), states in states_of.items()
        }
        return sum_logprobs(self.policy.model, [Chosen(*next(rows[one])) for one in asked])

    def _reading(self, temperature: float) -> SamplingConfig:
        """Sampling settings for an answer up to its closing tag."""
        return dataclasses.replace(
            self.policy.sampling,
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            stop=[CLOSE],
            max_tokens=max(self.policy.sampling.max_tokens, 16),
        )

    def _imagine(self, queries: Sequence[tuple[Asked[Move], int]], sampling: SamplingConfig) -> _Answers[Imagined]:
        """Answers each question in two turns of a session: first the state, then the outcome."""
        chat, form = self.policy.chat, self._format
        # Greedy answers about one state share a session: their contexts share a prefix, which engines with a KV cache read once.
        # Sampling depends on the session, so there each question has its own.
        sessions: dict[int, list[tuple[Asked[Move], int]]] = {}
        prompts: dict[int, list[int]] = {}
        for query in queries:
            (move, headers), sample = query
            session = self._session(move if self.samples > 1 else (move.state,), sample, headers)
            sessions.setdefault(session, []).append(query)
            if session not in prompts:
                prompts[session] = self._question_prompt(move.state, headers)
        place = dict.fromkeys(sessions, 0)
        state: dict[int, tuple[str, float]] = {}
        done: dict[tuple[Asked[Move], int], Imagined] = {}
        before: dict[int, list[int]] = {}
        begun: dict[int, str] = {}  # the end of the question with which an answer begins
        written: Counter[tuple[Asked[Move], int]] = Counter()
        usage = Usage(questions=len(queries))

        def asked(session: int) -> Move:
            return sessions[session][place[session]][0][0]

        def context(session: int, text: str, following: Iterable[str]) -> list[int]:
            ids, begun[session] = chat.unfinished(text, following)
            return [*prompts[session], *ids]

        def question(session: int) -> list[int]:
            move = asked(session)
            return context(session, form.question(*move), starts_of_states(move.state))

        def read(session: int, ids: list[int], before_ids: Sequence[int] = ()) -> list[int]:
            usage.tokens_read += len(ids) - common_length(ids, before_ids)
            before[session] = ids
            return ids

        def following(session: int, imagined: Imagined) -> list[int] | None:
            done[sessions[session][place[session]]] = imagined
            place[session] += 1
            return next_question(session)

        def next_question(session: int) -> list[int] | None:
            if place[session] == len(sessions[session]):
                return None
            ids = question(session)
            if not self.policy.engine.has_room(ids, sampling):
                return following(session, Imagined(asked(session).state, 0.0, False, 0.0))
            return read(session, ids, before.get(session, ()))

        def answer(session: int, completion: Completion) -> list[int] | None:
            written[sessions[session][place[session]]] += len(completion.ids)
            text, closed = _read(chat.decode(completion.ids), begun[session])
            sure = math.exp(min(0.0, math.fsum(completion.logprobs)))
            if session in state:
                next_state, likely = state.pop(session)
                outcome = read_outcome(text) if closed else None
                reward, ended = outcome or (0.0, False)
                return following(session, Imagined(next_state, reward, ended, likely * sure if outcome else 0.0))
            next_state = text.removesuffix(form.after_state.partition(CLOSE)[0])
            if not closed:
                return following(session, Imagined(next_state, 0.0, False, 0.0))
            state[session] = next_state, sure
            before[session] = [*before[session], *completion.ids]
            ids = context(session, form.predicted(*asked(session), next_state), STARTS_OF_OUTCOMES)
            if not self.policy.engine.has_room(ids, sampling):
                del state[session]
                return following(session, Imagined(next_state, 0.0, False, 0.0))
            return read(session, ids, before[session])

        contexts = {session: ids for session in sessions if (ids := next_question(session)) is not None}
        self.policy.engine.serve(contexts, sampling, stop_ids=chat.stop_ids, seed=self.seed, on_completion=answer)
        return [done[key] for key in queries], [written[key] for key in queries], usage

    def _choose(self, choices: Sequence[Asked[Choice]]) -> list[dict[str, float]]:
        """Frequencies of the first actions in the plain policy's responses; unreadable ones are left out."""
        if not self.proposals:
            return [{} for _ in choices]
        sampling = sampling_for(self._plain_task, self.player.sampling)
        queries = [(one, sample) for one in choices for sample in range(self.proposals)]
        named = self._spread(self.player, self._propose, queries, sampling)
        shares = []
        for start in range(0, len(named), self.proposals):
            counts = Counter(name for name in named[start : start + self.proposals] if name is not None)
            shares.append({name: count / counts.total() for name, count in counts.most_common()})
        return shares

    def _propose(self, queries: Sequence[tuple[Asked[Choice], int]], sampling: SamplingConfig) -> _Answers[str | None]:
        chat, agent = self.player.chat, self._plain_task.agent
        sessions = [self._session(choice, sample, headers) for (choice, headers), sample in queries]
        contexts = {
            session: [*_prompt(chat, self._plain_task, *choice, headers.base), *chat.forced_ids]
            for session, ((choice, headers), _) in zip(sessions, queries, strict=True)
        }
        texts, written, usage = self._continue(self.player, contexts, sampling)
        named = []
        for session, ((_, headers), _) in zip(sessions, queries, strict=True):
            text = chat.forced + texts[session]
            parsed = parse_response(text, "base", think=agent.think, action_sep=agent.action_sep, max_actions=1)
            named.append(match_action(parsed.actions[0], headers.actions) if parsed.actions else None)
        return named, [written[session] for session in sessions], usage

    def _value(self, queries: Sequence[tuple[Asked[Worth], int]], sampling: SamplingConfig) -> _Answers[float | None]:
        """The model's estimates of action values."""
        chat, form = self.policy.chat, self._format
        worths = [one for one, _ in queries]
        asked = [chat.unfinished(form.worth(one.state, one.action), STARTS_OF_OUTCOMES) for one, _ in worths]
        contexts = {
            number: [*self._question_prompt(one.state, headers), *ids]
            for number, ((one, headers), (ids, _)) in enumerate(zip(worths, asked, strict=True))
        }
        texts, written, usage = self._continue(self.policy, contexts, sampling)
        values: list[float | None] = []
        for number, (_, begun) in enumerate(asked):
            text, closed = _read(texts[number], begun)
            outcome = read_outcome(text) if closed else None
            values.append(None if outcome is None or outcome[1] else outcome[0])
        return values, [written[number] for number in range(len(worths))], usage

    def _continue(
        self, policy: Policy, contexts: dict[int, list[int]], sampling: SamplingConfig
    ) -> tuple[dict[int, str], Counter[int], Usage]:
        """A policy's continuation of each session's context, "" of one that the model cannot read, and its tokens."""
        chat, written = policy.chat, Counter[int]()
        usage = Usage(questions=len(contexts))
        texts = dict.fromkeys(contexts, "")
        contexts = {session: ids for session, ids in contexts.items() if policy.engine.has_room(ids, sampling)}
        usage.tokens_read = sum(map(len, contexts.values()))

        def answer(session: int, completion: Completion) -> None:
            written[session] += len(completion.ids)
            texts[session] = chat.decode(completion.ids)

        policy.engine.serve(contexts, sampling, stop_ids=chat.stop_ids, seed=self.seed, on_completion=answer)
        return texts, written, usage

    def _question_prompt(self, state: str, headers: Headers) -> list[int]:
        task = self._world_model_task
        return _prompt(self.policy.chat, task, state, task.env.max_actions, headers.world_model)

    def _session(self, question: tuple[object, ...], sample: int, headers: Headers | None = None) -> int:
        """A session number from which the engine samples for this question and sample, independent of other questions.

        Headers count where worlds differ in them: a question about two worlds is two questions.
        """
        others = () if headers is None or headers == self._first_headers else (headers,)
        digest = hashlib.sha256(repr((tuple(question), sample, *others)).encode()).digest()
        return int.from_bytes(digest[:6])

    def _spread(
        self,
        policy: Policy,
        answer: Callable[[Sequence[tuple[Asked[Q], int]], SamplingConfig], _Answers[T]],
        queries: Sequence[tuple[Asked[Q], int]],
        sampling: SamplingConfig,
    ) -> list[T]:
        """``answer``'s results for all queries, questions with the number of a sample, in several processes where that is faster;
        ``policy`` is the one it asks."""
        count = len(queries)
        if not count:
            return []
        engine = policy.engine
        processes = engine.split(sampling, count, 1)

        def work(number: int) -> _Answers[T]:
            with engine.alone(processes):
                return answer(queries[number::processes], sampling)

        parts = in_processes(work, processes)
        written: Counter[Any] = Counter()
        for number, (_, tokens, usage) in enumerate(parts):
            self.usage += usage + Usage(tokens_written=sum(tokens))
            for (question, _), count_of_tokens in zip(queries[number::processes], tokens, strict=True):
                written[question] += count_of_tokens
        self._written |= written
        return [parts[place % processes][0][place // processes] for place in range(count)]


def _prompt(chat: Chat, task: Task, state: str, actions_left: int, header: str) -> list[int]:
    return chat.opening(task.system, header + task.turn_text(1, state, actions_left))


def _read(answer: str, begun: str) -> tuple[str, bool]:
    """The text of an answer, and whether it is one: it begins with the end of its question (``Chat.unfinished``) and is closed."""
    text, closed, _ = answer.partition(CLOSE)
    return text.removeprefix(begun), bool(closed) and text.startswith(begun)
