"""World models that are right because they look: at the true world, or at a table. And what they are compared with."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spa.agent.chat import Chat
from spa.agent.policy import Policy
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import PlannerConfig, SamplingConfig
from spa.data.transitions import outcome_text
from spa.engines.base import Completion, Engine
from spa.planning.search import PLANNERS, Choice, Imagined, Move, Plan, Question, Worth
from spa.planning.world_model import Headers, Usage
from tests.scripted import CHAT, TOKENIZER

T = TypeVar("T")
Answers = tuple[Imagined, ...]
Table = dict[str, dict[str, Answers]]
MOVES = ("Left", "Down", "Right", "Up")
IMAGINING = [kind for kind in PLANNERS if kind != "best_of_n"]


def seen(state: str, reward: float = 0.0, ended: bool = False, probability: float = 1.0) -> Imagined:
    return Imagined(state, reward, ended, probability)


class Asked:
    """Answers from ``answer``; remembers every question of every call."""

    has_weights = False

    def __init__(
        self,
        answer: Callable[[Move], Answers],
        actions: Sequence[str] = (),
        shares: Callable[[Choice], dict[str, float]] = lambda choice: {},
        worth: Callable[[Worth], float | None] = lambda worth: None,
    ) -> None:
        self.answer, self.actions, self.shares, self.worth = answer, tuple(actions), shares, worth
        self.calls: list[list[Question]] = []
        self.usage = Usage()

    @property
    def moves(self) -> list[Move]:
        return [question for call in self.calls for question in call if isinstance(question, Move)]

    @property
    def choices(self) -> list[Choice]:
        return [question for call in self.calls for question in call if isinstance(question, Choice)]

    def headers(self, env: Any) -> Headers:
        return Headers(actions=self.actions)

    def ask(self, questions: Sequence[Question], headers: Sequence[Headers] = ()) -> list[Any]:
        self.calls.append(list(questions))
        self.usage += Usage(questions=len(questions))
        return [self._reply(question) for question in questions]

    def _reply(self, question: Question) -> Any:
        if isinstance(question, Worth):
            return self.worth(question)
        return self.answer(question) if isinstance(question, Move) else self.shares(question)

    def forget(self) -> None:
        pass


class True_(NamedTuple):
    """What a move does in a world."""

    state: str
    reward: float
    ended: bool


_looked: dict[str, dict[Move, True_]] = {}


def true_moves(task: Task) -> Callable[[Move], True_]:
    """What a move does, by making it in a world that is set to the state (a world without chance). Each is looked at once."""
    env, known = task.make_env(), _looked.setdefault(repr(task.env), {})

    def look(move: Move) -> True_:
        if move not in known:
            env.reset(seed=0, options={"state": move.state})
            state, reward, terminated, _, _ = env.step(move.action)
            known[move] = True_(state, float(reward), bool(terminated))
        return known[move]

    return look


def oracle(task: Task, lies: Mapping[Move, Imagined] | None = None) -> Asked:
    """Right about everything but ``lies``."""
    look, wrong = true_moves(task), lies or {}
    return Asked(lambda move: (wrong[move] if move in wrong else seen(*look(move)),), task.make_env().actions)


def of_table(
    table: Table, shares: Callable[[Choice], dict[str, float]] = lambda choice: {}, *, listed: bool = True, **more: Any
) -> Asked:
    """Right about a world that is written down; its actions are those of its first state, unless they are free text."""
    actions = tuple(next(iter(table.values()))) if listed else ()
    return Asked(lambda move: table[move.state][move.action], actions, shares, **more)


def finish(search: Generator[list[Question], list[Any], T], model: Asked) -> T:
    answers: list[Any] | None = None
    try:
        while True:
            answers = model.ask(search.send(answers))  # type: ignore[arg-type]
    except StopIteration as stop:
        result: T = stop.value
        return result


def decide(kind: str, root: str, model: Asked, *, left: int = 99, seed: int = 0, **settings: Any) -> Plan:
    """One decision of a planner."""
    rng = np.random.default_rng(seed)
    return finish(PLANNERS[kind](root, model.actions, left, left, PlannerConfig(**settings), rng), model)


def start_of(task: Task, world: World) -> str:
    state, _ = task.make_env().reset(seed=world.seed)
    return str(state)


def depths(task: Task, root: str) -> dict[str, int]:
    """Fewest actions from ``root`` to each state in which the world goes on, by search in the true world."""
    look, actions = true_moves(task), task.make_env().actions
    found, queue = {root: 0}, deque([root])
    while queue:
        state = queue.popleft()
        for move in (look(Move(state, action)) for action in actions):
            if not move.ended and move.state not in found:
                found[move.state] = found[state] + 1
                queue.append(move.state)
    return found


def shortest(
    task: Task, states: Collection[str], *, won: Callable[[True_], bool] = lambda move: move.reward > 0
) -> dict[str, tuple[int, set[str]]]:
    """Fewest actions from each of ``states`` to winning, and the actions that begin such a way, by ways through these states."""
    look, actions = true_moves(task), task.make_env().actions
    moves = {state: {action: look(Move(state, action)) for action in actions} for state in states}
    found: dict[str, tuple[int, set[str]]] = {}
    for length in range(1, len(states) + 1):
        nearer = {state for state, (far, _) in found.items() if far == length - 1}
        new = {}
        for state in moves.keys() - found.keys():
            first = {
                action
                for action, move in moves[state].items()
                if (length == 1 and won(move)) or (not move.ended and move.state in nearer)
            }
            if first:
                new[state] = length, first
        found |= new
    return found


def distances(task: Task, root: str, **kwargs: Any) -> dict[str, int]:
    """Fewest actions to winning from each state that can be reached."""
    return {state: far for state, (far, _) in shortest(task, depths(task, root), **kwargs).items()}


_QUESTION = re.compile(r"<observation>\n?(.*)\n?</observation> ?(\w+) ?<prediction>\n?", re.DOTALL)
_GUESS = re.compile(r"</prediction> ?<outcome>")


class TrueEngine(Engine):
    """Continues a question by what the true world would do, in the words that a trained model would use.

    ``state`` and ``outcome`` may say something else. Each answer has probability ``sure`` (state and outcome together: its square).
    """

    def __init__(
        self,
        task: Task,
        state: Callable[[Move, str], str] = lambda move, text: text,
        outcome: Callable[[Move, str], str] = lambda move, text: text,
        sure: float = 1.0,
    ) -> None:
        self.look, self.state, self.outcome, self.sure = true_moves(task), state, outcome, sure
        self.contexts: list[str] = []

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        assert sampling.stop == ["</"]
        return [self._complete(TOKENIZER.decode(list(context))) for context in contexts]

    def _complete(self, context: str) -> Completion:
        self.contexts.append(context)
        response = context.rpartition("<|im_start|>assistant\n")[2]
        asked = _QUESTION.search(response)
        assert asked, response
        move = Move(asked[1].strip("\n"), asked[2])
        gap = "\n" if asked[0].endswith("\n") else ""
        true = self.look(move)
        if _GUESS.search(response, asked.end()):
            text = self.outcome(move, outcome_text(true.reward, true.ended) + "</")
        else:
            assert asked.end() == len(response), response
            text = self.state(move, f"{true.state}{gap}</prediction>")
        ids = CHAT.encode(text)
        return Completion(ids, [float(np.log(self.sure)) / len(ids)] * len(ids), "stop" if "</" in text else "length")


def player_of(engine: Any, **sampling: Any) -> Policy:
    return Policy(None, TOKENIZER, CHAT, engine, SamplingConfig(**sampling))


def merging_chat() -> Chat:
    """Chat tokens of a BPE tokenizer that merges the end of a tag with a minus sign or with a cell that begins a state."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    merges = [(end, first) for end in (">", "Ċ") for first in "P_#-"]  # Ċ is a byte-level tokenizer's line break
    words = ["<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(words[:2])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    made.chat_template = TOKENIZER.chat_template
    return Chat(made)


class ByHeart(Engine):
    """Knows the tokens of some rows, each with probability ``sure``, and continues whatever one of them begins with."""

    def __init__(self, chat: Chat, rows: Sequence[list[int]], sure: float = 0.9) -> None:
        self.chat, self.rows, self.sure = chat, rows, sure
        self.written: list[list[int]] = []

    def complete(
        self,
        contexts: Sequence[Sequence[int]],
        sampling: SamplingConfig,
        *,
        stop_ids: frozenset[int],
        streams: Sequence[int],
    ) -> list[Completion]:
        return [self._complete(list(context)) for context in contexts]

    def _complete(self, context: list[int]) -> Completion:
        row = next(row for row in self.rows if row[: len(context)] == context)
        ids: list[int] = []
        while "</" not in self.chat.decode(ids):
            ids.append(row[len(context) + len(ids)])
        self.written.append(ids)
        return Completion(ids, [float(np.log(self.sure))] * len(ids), "stop")
