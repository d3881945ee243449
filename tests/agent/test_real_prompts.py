"""What a tokenizer and a template of other models than ours change in prompts: merges, a default system message, lengths."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from spa.agent.chat import Chat
from spa.agent.lengths import length_notes, longest_answer, true_answers
from spa.agent.policy import make_task
from spa.agent.random_engine import PLAIN_THOUGHT
from spa.agent.response import parse_response
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.config.schema import AgentConfig, Config, EnvConfig, ModelConfig, SamplingConfig, SelfPlayConfig, SFTConfig
from tests.scripted import CHAT, TOKENIZER

DEFAULT = "You are a helpful AI assistant."
TEMPLATE = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
    + DEFAULT
    + "<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def merging() -> Any:
    """A byte-level BPE tokenizer that writes ``><`` as one token, with a template that has a default system message."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["<think><observation> <answer> think observation"] * 9, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    made.chat_template = TEMPLATE
    return made


def test_a_tag_is_forced_up_to_a_token_that_what_follows_may_change(merging: Any) -> None:
    chat = Chat(merging)
    assert chat.forced == "<think"
    assert "><" in merging.convert_ids_to_tokens(chat.encode("<think><observation>"))
    for text in ("<think><observation>P_</observation>", "<think>\ngo</think>"):
        encoded = chat.encode_response(text)
        assert encoded.ids == chat.encode(text)
        assert encoded.ids[: encoded.num_forced] == chat.forced_ids
        assert encoded.offsets[-1][1] == len(text)


def test_a_byte_level_tokenizer_that_puts_a_space_before_texts_does_so_nowhere(merging: Any) -> None:
    from tokenizers import pre_tokenizers

    tokenizer = copy.deepcopy(merging)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    chat, answer = Chat(tokenizer), "<think>the hall</think><answer>Up</answer>"
    response = chat.response_ids(answer)
    assert chat.decode(response) == answer and tokenizer.decode(chat.forced_ids) == chat.forced
    conversation = [*chat.opening(None, "one"), *response, *chat.closing(response), *chat.following("two")]
    assert " one" not in tokenizer.decode(conversation) and " two" not in tokenizer.decode(conversation)


def test_the_tiny_model_is_forced_the_whole_tag() -> None:
    assert (CHAT.forced, CHAT.forced_ids) == ("<think>", TOKENIZER.convert_tokens_to_ids(["<think>"]))
    assert Chat(TOKENIZER, forced="<answer>").forced == "<answer>"


def test_the_templates_own_system_message_is_recorded(merging: Any) -> None:
    from spa.agent.random_engine import RandomEngine, random_responder

    chat = Chat(merging)
    assert chat.default_system == DEFAULT
    assert chat.opening(DEFAULT, "x") == chat.opening(None, "x")
    assert CHAT.default_system is None
    for style, system in (("terse", DEFAULT), ("paper", "You're a helpful assistant. ")):
        task = Task(EnvConfig(id="frozen_lake"), AgentConfig(style=style))
        engine = RandomEngine(chat, random_responder(task))
        (episode,) = rollout(engine, chat, task, [World(1, "a")], SamplingConfig(), seed=0)
        assert episode.system == system
        assert merging.decode(episode.sequences[0].ids).startswith(f"<|im_start|>system\n{system}<|im_end|>")


def config(world: str = "frozen_lake", hint: int | None = None, **sampling: int) -> Config:
    env = EnvConfig(id=world, tag="T", response_hint=hint, state_format="coordinates")
    return Config(env=env, model=ModelConfig(path="builtin:tiny"), sampling=SamplingConfig(**sampling))


@pytest.mark.parametrize("world", ["sokoban", "frozen_lake", "sudoku"])
def test_prompts_state_a_length_that_true_answers_keep(world: str) -> None:
    task = make_task(config(world), prompt="world_model")
    answers = list(true_answers(task))
    assert all(parse_response(answer, "world_model").format_ok for answer in answers)
    longest = max(len(CHAT.encode(answer)) for answer in answers)
    assert longest < task.stated_length < 400
    assert f"Max response length: {task.stated_length} words" in task.turn_text(1, "S", 1)
    assert longest_answer(task, "builtin:tiny") == longest + 1


def test_a_stated_length_is_a_given_one_or_at_most_the_limit() -> None:
    assert "length: 77 words" in make_task(config(hint=77), prompt="world_model").turn_text(1, "S", 1)
    assert make_task(config(max_tokens=50), prompt="world_model").stated_length == 50
    assert make_task(config(), prompt="base").stated_length == 400


@pytest.mark.parametrize("hint", [None, 77])
def test_a_task_states_the_same_length_however_it_came_to_its_mode(hint: int | None) -> None:
    tasks = {mode: make_task(config(hint=hint), prompt=mode) for mode in ("base", "world_model")}
    for task in tasks.values():
        for mode, own in tasks.items():
            switched = dataclasses.replace(task, agent=dataclasses.replace(task.agent, prompt=mode))
            assert switched.turn_text(1, "S", 1) == own.turn_text(1, "S", 1)


def test_limits_that_cut_true_answers_off_are_named() -> None:
    task = make_task(config(hint=10, max_tokens=20), prompt="world_model")
    cut, hint = length_notes(task, config(hint=10, max_tokens=20))
    assert "sampling.max_tokens=20 cuts it off" in cut
    assert "ask for 10 words" in hint and "env.response_hint=null" in hint
    assert length_notes(make_task(config(), prompt="world_model"), config()) == []


def test_a_limit_that_cuts_off_what_a_planner_asks_is_named() -> None:
    asked = dataclasses.replace(config(max_tokens=16), selfplay=SelfPlayConfig(rows="transitions"))
    (note,) = length_notes(make_task(asked, prompt="base"), asked)
    assert "sampling.max_tokens=16 cuts off what a planner" in note
    roomy = dataclasses.replace(asked, sampling=SamplingConfig())
    assert length_notes(make_task(roomy, prompt="base"), roomy) == []


@pytest.mark.parametrize(
    ("play", "loss", "notes"),
    [({}, "think_answer", 1), ({}, "masked", 0), ({"states": "belief"}, "think_answer", 0)],
)
def test_after_random_play_the_limit_counts_where_states_are_taught(
    play: dict[str, Any], loss: Any, notes: int
) -> None:
    random = dataclasses.replace(
        config(hint=10, max_tokens=20), selfplay=SelfPlayConfig(policy="random", **play), sft=SFTConfig(loss=loss)
    )
    task = make_task(random, prompt="world_model")
    found = length_notes(task, random)
    assert len(found) == notes
    rows = [row for row in true_answers(task, random=True) if PLAIN_THOUGHT in row]
    assert len(rows) == 8 and all(row.replace(PLAIN_THOUGHT, "") in true_answers(task) for row in rows)
    assert not found or f"up to {longest_answer(task, 'builtin:tiny', random=True)} tokens" in found[0]
    assert all("sampling.max_tokens=20 cuts it off once the model plays" in text for text in found)
