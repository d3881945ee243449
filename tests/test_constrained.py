"""Constrained decoding: every response has the format, whatever the model; the log-probs stay the model's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.agent.chat import Chat
from spa.agent.episode import Episode
from spa.agent.grammar import response_grammar
from spa.agent.policy import Policy
from spa.agent.response import parse_response
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.cli import main
from spa.config.schema import AgentConfig, EnvConfig, SamplingConfig
from spa.engines.constrained import Constraint
from spa.engines.transformers import TransformersEngine, sample
from spa.planning.world_model import WorldModel
from tests.agent.test_segments import zephyr
from tests.models.networks import network
from tests.scripted import TOKENIZER

pytest.importorskip("llguidance")

WORLDS = [World(seed, str(seed)) for seed in range(2)]
LIMIT = 120


def task(world: str, mode: str = "world_model", think: bool = True) -> Task:
    env = EnvConfig(id=world, state_format="coordinates", max_turns=2)
    return Task(env, AgentConfig(style="terse", prompt=mode, think=think))


def constraint(task: Task, limit: int = LIMIT) -> tuple[Chat, Constraint]:
    return constrained(Chat(TOKENIZER, forced=task.forced), task, limit)


def constrained(chat: Chat, task: Task, limit: int = LIMIT) -> tuple[Chat, Constraint]:
    grammar = response_grammar(task, chat, limit)
    return chat, Constraint(chat.tokenizer, chat.encode, 520, grammar, forced=chat.forced_ids, stop_ids=chat.stop_ids)


def walk(chat: Chat, grammar: Constraint, session: int, limit: int = LIMIT) -> str:
    """A response of random tokens out of those allowed."""
    rng = np.random.default_rng(session)
    ids: list[int] = []
    while not ids or ids[-1] not in chat.stop_ids:
        ids.append(int(rng.choice(np.flatnonzero(grammar.allowed([(session, ids)])[0].numpy()))))
    assert len(ids) <= limit
    return chat.forced + chat.decode(ids)


def test_a_tokenizer_that_begins_texts_with_a_space_finds_the_end_of_the_forced_tag() -> None:
    lakes = task("frozen_lake")
    chat, grammar = constrained(Chat(zephyr(), forced=lakes.forced), lakes, 400)  # its tokens are characters
    text = walk(chat, grammar, 0, 400)
    assert text.startswith("<think>") and parse_response(text, "world_model").format_ok


@pytest.mark.parametrize(
    ("world", "mode", "think"),
    [
        ("sokoban", "world_model", True),
        ("sudoku", "world_model", True),
        ("sokoban", "base", True),
        ("sudoku", "base", False),
    ],
)
def test_random_tokens_of_the_grammar_are_responses_that_fit(world: str, mode: str, think: bool) -> None:
    chosen = task(world, mode, think)
    chat, grammar = constraint(chosen)
    names = chosen.make_env().actions
    for session in range(20):
        parsed = parse_response(walk(chat, grammar, session), mode, think=think, max_actions=5)
        assert parsed.format_ok and parsed.actions
        if names:
            assert not parsed.extra_actions and set(parsed.actions) <= set(names)


class Doors:
    """A plain class that names its actions at ``reset``."""

    actions: tuple[str, ...] = ()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[str, dict]:
        self.actions = ("red door", "blue door")
        return "two doors", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        return action, 1.0, True, False, {}


def test_actions_that_a_world_names_at_reset_are_those_of_the_grammar_and_the_prompt() -> None:
    doors = Task(EnvConfig(id=f"{__name__}:Doors"), AgentConfig(style="paper", prompt="base"))
    chat, grammar = constraint(doors)
    for session in range(5):
        assert set(parse_response(walk(chat, grammar, session), "base").actions) <= {"red door", "blue door"}
    env = doors.make_env()
    env.reset(seed=1)
    assert "Your available actions are:\nred door, blue door" in doors.header(env)
    assert WorldModel(policy(), doors).headers(env).actions == ("red door", "blue door")


def policy(decoder: bool = True) -> Policy:
    """An untrained network: without a constraint it never writes a tag. ``decoder`` False: transformers' own forward pass."""
    model = network(vocab_size=600)
    engine = TransformersEngine(model, 0, TOKENIZER)
    if not decoder:
        engine.decoder = None
    return Policy(model, TOKENIZER, Chat(TOKENIZER), engine, SamplingConfig(max_tokens=LIMIT, processes=1))


def play(policy: Policy) -> list[Episode]:
    return policy.play(task("frozen_lake"), WORLDS, samples=1, seed=1)


@pytest.mark.parametrize("decoder", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_turns_have_the_format_and_the_model_s_own_log_probs(decoder: bool) -> None:
    player = policy(decoder)
    free = play(player)
    assert not any(turn.format_ok for episode in free for turn in episode.turns)
    player.constrain(task("frozen_lake"))
    episodes = play(player)
    turns = [turn for episode in episodes for turn in episode.turns]
    assert len(turns) > 1 and all(turn.format_ok and turn.executed for turn in turns)
    assert {turn.finish_reason for turn in turns} == {"stop"}
    for sequence in episodes[0].sequences:
        with torch.no_grad():
            logits = player.model(torch.tensor([sequence.ids])).logits[0, :-1]
        scores = logits.log_softmax(-1).gather(-1, torch.tensor(sequence.ids[1:])[:, None])[:, 0]
        sampled = torch.tensor(sequence.mask[1:], dtype=torch.bool)
        assert torch.allclose(scores[sampled], torch.tensor(sequence.logprobs[1:])[sampled], atol=1e-4)
    again = [turn.response for episode in play(player) for turn in episode.turns]
    assert again == [turn.response for turn in turns]
    player.engine.constraint = None
    assert [episode.to_json() for episode in play(player)] == [episode.to_json() for episode in free]


def test_forbidden_tokens_are_never_drawn_however_likely() -> None:
    logits, allowed = torch.zeros(1, 4), torch.tensor([[False, True, True, False]])
    logits[0, 0] = 500.0
    for temperature, draw, token in [(1.0, 0.0, 1), (1.0, 0.999, 2), (0.0, 0.0, 1)]:
        tokens, scores = sample(logits, SamplingConfig(temperature=temperature), torch.tensor([draw]), allowed)
        assert (tokens.item(), scores.item()) == (token, -500.0)


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"sampling\.max_tokens=60 leaves no room for constrained responses: set it to 400"
    ):
        response_grammar(task("sokoban"), Chat(TOKENIZER), 60)


def test_with_long_names_enough_is_more() -> None:
    env = EnvConfig(id="sokoban", settings={"action_names": [letter * 100 for letter in "abcd"]}, max_turns=2)
    long = Task(env, AgentConfig(style="terse", prompt="world_model"))
    with pytest.raises(ValueError, match="leaves no room") as refused:
        response_grammar(long, Chat(TOKENIZER), 400)
    enough = int(str(refused.value).rpartition(" ")[2])
    response_grammar(long, Chat(TOKENIZER), enough)
    with pytest.raises(ValueError, match=f"set it to {enough}"):
        response_grammar(long, Chat(TOKENIZER), enough - 1)


def test_actions_are_quoted() -> None:
    names = ['a "b"', "c\\d", "e/", "f|"]
    env = EnvConfig(id="sokoban", settings={"action_names": names}, max_actions_per_turn=2)
    chat, grammar = constraint(Task(env, AgentConfig(action_sep="\\n")))
    answers = [parse_response(walk(chat, grammar, session), action_sep="\\n").actions for session in range(10)]
    assert {action for actions in answers for action in actions} == set(names)


GENERATE = [
    "generate",
    "frozen_lake",
    "--quiet",
    "selfplay.constrained=true",
    "selfplay.groups=2",
    "selfplay.group_size=1",
]


def test_stage_1_keeps_every_turn(tmp_path: Path) -> None:
    assert main([*GENERATE, "sampling.processes=1", "--out", str(tmp_path)]) == 0
    stats = json.loads((tmp_path / "selfplay" / "stats.json").read_text())
    assert stats["format_rate"] == 1
    assert stats["dropped"] == {}


@pytest.mark.parametrize(
    ("settings", "installed", "message"),
    [
        ([], False, "pip install 'spa-agent[constrained]'"),
        (
            ["engine=openai", "engine.base_url=http://x/v1", "engine.model=m"],
            True,
            "needs engine=transformers",
        ),
        (["sampling.max_tokens=60", "sampling.max_tokens_base=0"], True, "set it to 400"),
    ],
)
def test_what_cannot_be_constrained_is_refused_before_anything_is_written(
    settings: list[str],
    installed: bool,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not installed:
        monkeypatch.delitem(sys.modules, "llguidance")
        monkeypatch.setattr("spa.engines.constrained.find_spec", lambda name: None)
    assert main([*GENERATE, *settings, "--out", str(tmp_path / "run")]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
