"""Serving sessions: the same text whatever shares the batch, and nothing lost when memory is short."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from spa.agent.worlds import World
from spa.common.sequences import common_length
from spa.config.schema import SamplingConfig
from spa.engines import transformers as module
from spa.engines.base import BrokenModel, Completion, Engine
from spa.engines.draws import stream, uniforms
from spa.engines.stops import Stops
from spa.engines.transformers import TransformersEngine, sample
from tests.models.networks import network, random_model
from tests.models.test_families import FAMILIES, UNPACKED
from tests.scripted import CHAT, TOKENIZER, lake_task, tiny_policy

STOPS = frozenset({2, 3, 4, 5})
TURNS = 3


def first_contexts(count: int = 9) -> list[list[int]]:
    """Rows with a common beginning, some of them equal."""
    rng = np.random.default_rng(1)
    rows = [[7, 8, 9, 10, *rng.integers(6, 128, size=int(n))] for n in rng.integers(1, 20, size=count)]
    return [list(map(int, row)) for row in [*rows, rows[0], rows[2]]]


class Talk:
    """What sessions ask next: their whole history and a new message, or (``window``) the common beginning and a new message."""

    def __init__(self, contexts: list[list[int]], window: bool = False) -> None:
        self.contexts = [list(context) for context in contexts]
        self.window = window
        self.heard: list[list[Completion]] = [[] for _ in contexts]

    def __call__(self, session: int, completion: Completion) -> list[int] | None:
        self.heard[session].append(completion)
        turn = len(self.heard[session])
        if turn >= TURNS - session % 2:  # sessions end at different turns
            return None
        message = [40 + turn, *range(6, 6 + 3 * turn + session % 3)]
        old = self.contexts[session][:4] if self.window else self.contexts[session] + completion.ids
        self.contexts[session] = old + message
        return self.contexts[session]


def talk(model, *, window: bool = False, contexts: list[list[int]] | None = None, **sampling) -> list[list[Completion]]:
    given = contexts or first_contexts()
    listener = Talk(given, window)
    settings = SamplingConfig(**{"max_tokens": 12, "batch_size": 64, **sampling})
    engine = TransformersEngine(model, 0)
    engine.serve(dict(enumerate(given)), settings, stop_ids=STOPS, seed=5, on_completion=listener)
    return listener.heard


def ids(heard: list[list[Completion]]) -> list[list[list[int]]]:
    return [[completion.ids for completion in turns] for turns in heard]


def naive(model, context: list[int], draws: np.ndarray, temperature: float) -> tuple[list[int], list[float]]:
    """One response, token by token, the whole context read again each time."""
    out: list[int] = []
    logprobs: list[float] = []
    while len(out) < 12 and not (out and out[-1] in STOPS):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context + out])).logits[0, -1].double() / temperature
        probs = logits.softmax(-1)
        token = int(np.searchsorted(probs.cumsum(-1).numpy(), draws[len(out)], side="right"))
        out.append(token)
        logprobs.append(float(probs[token].log()))
    return out, logprobs


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_every_turn_is_what_reading_all_of_it_again_gives(window: bool, temperature: float) -> None:
    model, contexts = network("qwen2").eval(), first_contexts()
    heard = talk(model, window=window, temperature=temperature)
    listener = Talk(contexts, window)
    for session, turns in enumerate(heard):
        context: list[int] | None = contexts[session]
        for turn, completion in enumerate(turns):
            assert context is not None
            expected, logprobs = naive(model, context, uniforms(12, stream(5, session, turn)), temperature)
            assert completion.ids == expected
            np.testing.assert_allclose(completion.logprobs, logprobs, atol=1e-4)
            assert completion.finish_reason == ("stop" if expected[-1] in STOPS else "length")
            context = listener(session, completion)
        assert context is None


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_waiting_for_a_slot_changes_nothing(window: bool, batch_size: int) -> None:
    model = network()
    assert ids(talk(model, window=window, batch_size=batch_size)) == ids(talk(model, window=window))


def test_contexts_that_are_equal_or_have_nothing_in_common() -> None:
    model = network()
    for contexts in ([[9, 8, 7]] * 5, [[9, 8, 7], [8], [10, 11]], [[6]], [[9, 8], [9, 8, 7]], [[9, 8], [9, 8], [9]]):
        together = talk(model, contexts=contexts)
        for session, turns in enumerate(together):
            expected, _ = naive(model.eval(), contexts[session], uniforms(12, stream(5, session, 0)), 1.0)
            assert turns[0].ids == expected


def test_equal_contexts_are_read_once_and_of_a_next_turn_only_what_is_new(monkeypatch) -> None:
    model, sizes = network(), []
    forward = module.Decoder.forward

    def counted(self, ids, positions, earlier=(), shared=0):
        sizes.append(len(ids) + sum(len(chunk.ids) for chunk in earlier))
        return forward(self, ids, positions, earlier, shared)

    monkeypatch.setattr(module.Decoder, "forward", counted)
    context = list(range(10, 60))
    talk(model, contexts=[context] * 4, max_tokens=1)
    # The first turn of four equal rows; then a message of 4 to 6 tokens and what was sampled last, for each.
    assert sizes[0] == 50 + 3
    assert all(size <= 4 * 12 for size in sizes[1:])


def test_short_of_memory_rows_wait_and_are_read_again(monkeypatch) -> None:
    model = network()
    expected = ids(talk(model))
    forward, most = module.Decoder.forward, []

    def limited(self, ids, positions, earlier=(), shared=0):
        if len(ids) > 3:
            raise torch.OutOfMemoryError("out of memory")
        most.append(len(ids))
        return forward(self, ids, positions, earlier, shared)

    monkeypatch.setattr(module.Decoder, "forward", limited)
    assert ids(talk(model)) == expected
    assert max(most) <= 3


def test_one_row_that_does_not_fit_is_an_error(monkeypatch) -> None:
    def never(self, *given):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(module.Decoder, "forward", never)
    with pytest.raises(torch.OutOfMemoryError):
        talk(network(), contexts=[[6, 7]])


def test_as_many_rows_as_free_memory_holds(monkeypatch) -> None:
    model = network()
    expected = ids(talk(model))
    allocate, asked = module.Decoder.allocate, []
    monkeypatch.setattr(module.Decoder, "allocate", lambda self, s, c: (asked.append(s), allocate(self, s, c)))
    size = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    monkeypatch.setattr(module, "free_memory", lambda device: int(5 * 100 * size / 0.6))
    assert ids(talk(model)) == expected
    assert 1 < max(asked) <= 5


def test_broken_weights_are_noticed_and_training_mode_comes_back() -> None:
    model = network().train()
    talk(model)
    assert model.training
    with torch.no_grad():
        model.lm_head.weight[0] = float("nan")
    for supported in (True, False):
        engine = TransformersEngine(model, 0)
        if not supported:
            engine.decoder = None
        with pytest.raises(BrokenModel, match="not finite"):
            engine.generate([[6, 7]], SamplingConfig(), stop_ids=STOPS, seed=0)
        assert model.training


def test_models_that_are_not_supported_play_in_rounds() -> None:
    model = network("mistral", sliding_window=64)
    engine = TransformersEngine(model, 0)
    assert engine.decoder is None
    contexts = first_contexts()
    listener = Talk(contexts)
    greedy = SamplingConfig(max_tokens=12, temperature=0)
    engine.serve(dict(enumerate(contexts)), greedy, stop_ids=STOPS, seed=5, on_completion=listener)
    plain = network("mistral")
    assert ids(listener.heard) == ids(talk(plain, temperature=0))


def test_padding_in_rounds_moves_no_row_of_a_model_that_numbers_its_positions() -> None:
    model, contexts = random_model("gpt2"), first_contexts()
    assert TransformersEngine(model, 0).decoder is None
    for session, (first, *_) in enumerate(talk(model)):
        expected, logprobs = naive(model, contexts[session], uniforms(12, stream(5, session, 0)), 1.0)
        assert first.ids == expected
        np.testing.assert_allclose(first.logprobs, logprobs, atol=1e-4)


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1"])
def test_rows_of_recurrent_models_stay_until_the_last_has_ended(family: str) -> None:
    model = random_model(family, **(FAMILIES | UNPACKED)[family])
    contexts = [[6, 7, 8, 9 + row] for row in range(8)]

    def ended(count: int) -> list[list[int]]:
        """Greedy, in a batch whose rows stop after different tokens."""
        engine = TransformersEngine(model, 0)
        assert engine.decoder is None
        played = engine.generate(contexts[:count], SamplingConfig(max_tokens=24, temperature=0), stop_ids=stops, seed=0)
        return [each.ids for each in played]

    stops: frozenset[int] = frozenset()
    free = ended(8)
    stops = frozenset({free[0][2], free[1][4], free[2][1]})
    lengths = {len(ids) for ids in ended(8)}
    assert len(lengths) > 1 and min(lengths) < 24
    assert ended(8)[0] == ended(1)[0]


@pytest.mark.parametrize("holds", [3, 1])
def test_short_of_memory_rounds_have_fewer_rows_and_the_same_samples(holds: int, monkeypatch) -> None:
    model = network("mistral", sliding_window=64)
    expected = ids(talk(model))
    forward, sizes = model.forward, []

    def limited(input_ids, **given):
        sizes.append(len(input_ids))
        if len(input_ids) > holds:
            raise torch.OutOfMemoryError("out of memory")
        return forward(input_ids=input_ids, **given)

    monkeypatch.setattr(model, "forward", limited)
    assert ids(talk(model)) == expected
    tried = [size for size in sizes if size > holds]
    assert tried == sorted(set(tried), reverse=True)  # what does not fit is tried once
    holds = 0
    with pytest.raises(torch.OutOfMemoryError):
        talk(model)


def test_rounds_have_the_rows_that_the_free_memory_has_room_for(monkeypatch) -> None:
    model = network("mistral", sliding_window=64)
    expected = ids(talk(model))
    forward, shapes = model.forward, []

    def watched(input_ids, **given):
        shapes.append(tuple(input_ids.shape))
        return forward(input_ids=input_ids, **given)

    monkeypatch.setattr(model, "forward", watched)
    # A token has keys and values of 2 layers, 2 heads, 8 numbers of 4 bytes; 60% of the memory is for 200 tokens.
    monkeypatch.setattr("spa.engines.rounds.free_memory", lambda device: 200 * (2 * 2 * 2 * 8 * 4) / 0.6 + 1)
    assert ids(talk(model)) == expected
    read = [(rows, tokens + 12) for rows, tokens in shapes if tokens > 1]
    assert all(rows * tokens <= 200 for rows, tokens in read)
    assert any((rows + 1) * tokens > 200 for rows, tokens in read)
    monkeypatch.setattr("spa.engines.rounds.free_memory", lambda device: 0)
    shapes.clear()
    assert ids(talk(model)) == expected
    assert {rows for rows, _ in shapes} == {1}


def test_rounds_give_every_session_its_turns() -> None:
    class Echo(Engine):
        def __init__(self) -> None:
            self.asked: list[list[list[int]]] = []

        def complete(self, contexts, sampling, *, stop_ids, streams):
            self.asked.append([list(context) for context in contexts])
            return [Completion([len(context)], [0.0], "stop") for context in contexts]

    engine, contexts = Echo(), [[6], [7], [8]]
    listener = Talk(contexts)
    engine.serve(dict(enumerate(contexts)), SamplingConfig(), stop_ids=STOPS, seed=0, on_completion=listener)
    assert [len(turns) for turns in listener.heard] == [3, 2, 3]
    assert [len(asked) for asked in engine.asked] == [3, 3, 2]


@pytest.mark.parametrize("window", [0, 1])
def test_episodes_do_not_depend_on_how_many_play_at_once(window: int) -> None:
    policy = tiny_policy()
    worlds = [World(s, str(s)) for s in range(5)]
    found = []
    for batch_size in (64, 3):
        policy.sampling = dataclasses.replace(policy.sampling, batch_size=batch_size)
        found.append(policy.play(lake_task(window), worlds, samples=2, seed=1))
    for a, b in zip(*found, strict=True):
        assert [turn.response for turn in a.turns] == [turn.response for turn in b.turns]
        assert [sequence.ids for sequence in a.sequences] == [sequence.ids for sequence in b.sequences]


@pytest.mark.parametrize("supported", [True, False])
def test_a_response_ends_once_it_contains_a_stop_string(supported: bool) -> None:
    policy = tiny_policy()
    if not supported:
        policy.engine.decoder = None
    contexts = [CHAT.encode(text) for text in ("a", "bcd", "<think>", "Turn 1:")]
    settings = SamplingConfig(max_tokens=60)

    def texts(**changes) -> list[str]:
        found = policy.engine.generate(
            contexts, dataclasses.replace(settings, **changes), stop_ids=CHAT.stop_ids, seed=3
        )
        assert {completion.finish_reason for completion in found} <= {"stop", "length"}
        return [TOKENIZER.decode(completion.ids) for completion in found]

    whole = texts()
    strings = sorted({text[len(text) // 2] for text in whole if text} - {" "})
    cut = texts(stop=strings)
    for before, after in zip(whole, cut, strict=True):
        places = [before.index(string) + len(string) for string in strings if string in before]
        if places:
            assert before.startswith(after) and len(after) < len(before)
            assert any(string in after for string in strings)
            # The last token may write on behind the string, none before it contains one.
            assert len(after) >= min(places)
        else:
            assert after == before


def test_stop_strings_over_several_tokens_and_outside_of_ascii() -> None:
    class Letters:
        """Token i writes the i-th piece."""

        pieces = ("</", "an", "swer", ">", "x>", "é", "> y")

        def get_vocab(self):
            return {piece: index for index, piece in enumerate(self.pieces)}

        def decode(self, ids, clean_up_tokenization_spaces):
            return "".join(self.pieces[i] for i in ids)

    stops = Stops(frozenset({9}), ["</answer>"], Letters())
    written = [4, 3, 0, 1, 2, 6]
    assert [stops.reached(written[: i + 1]) for i in range(6)] == [False] * 5 + [True]
    assert stops.reached([9])
    assert not stops.reached([0, 1, 3])
    assert Stops(frozenset(), ["é"], Letters()).reached([4, 5])
    assert not Stops(frozenset(), ["é"], Letters()).reached([5, 4][1:])


@pytest.mark.parametrize("string", ["停止", "停止回答吧", "🔚🔚🔚", "</answer>"])
def test_a_stop_string_may_take_several_tokens_a_character(string: str) -> None:
    ids = TOKENIZER.encode("abc " + string)
    stops = Stops(frozenset(), [string], TOKENIZER)
    assert [stops.reached(ids[: i + 1]) for i in range(len(ids))] == [False] * (len(ids) - 1) + [True]


def test_stop_strings_need_a_tokenizer_and_must_not_be_empty() -> None:
    engine = TransformersEngine(network(), 0)
    for strings, message in ((["x"], "tokenizer"), ([""], "stop")):
        with pytest.raises(ValueError, match=message):
            engine.generate([[6]], SamplingConfig(stop=strings), stop_ids=STOPS, seed=0)


def test_an_episode_whose_turns_end_at_a_string_goes_on_as_if_the_turn_had_been_closed() -> None:
    policy = tiny_policy()
    policy.sampling = dataclasses.replace(policy.sampling, stop=["</answer>"], max_tokens=150)
    episodes = policy.play(lake_task(0), [World(s, str(s)) for s in range(4)], samples=2, seed=1)
    ended = [turn for episode in episodes for turn in episode.turns if turn.response.endswith("</answer>")]
    assert ended
    for episode in episodes:
        (sequence,) = episode.sequences
        text = TOKENIZER.decode(sequence.ids)
        closing = TOKENIZER.decode(CHAT.closing_ids)
        for turn in episode.turns[:-1]:
            if turn.response.endswith("</answer>"):
                assert turn.response + closing in text


def test_samples_have_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf, 0.5]])
    draws = torch.arange(20_000) / 20_000
    for temperature in (1.0, 0.5):
        tokens, logprobs = sample(logits.expand(20_000, 5), SamplingConfig(temperature=temperature), draws)
        probs = (logits[0] / temperature).softmax(-1)
        torch.testing.assert_close(tokens.bincount(minlength=5) / 20_000, probs, atol=2e-4, rtol=0)
        torch.testing.assert_close(logprobs, probs.log()[tokens])


def test_the_largest_draw_takes_no_token_without_a_share() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0, -torch.inf]]).expand(64, 4)
    largest = torch.full((64,), 1 - 2.0**-24)
    assert set(sample(logits, SamplingConfig(), largest)[0].tolist()) == {2}
    assert set(sample(logits, SamplingConfig(top_k=2), largest)[0].tolist()) == {1}
    assert set(sample(logits, SamplingConfig(), torch.zeros(64))[0].tolist()) == {0}


def test_draws_are_uniform_and_of_their_key_alone() -> None:
    many = np.concatenate([uniforms(50, stream(3, session, turn)) for session in range(100) for turn in range(4)])
    assert many.dtype == np.float32 and many.min() >= 0 and many.max() < 1
    counts, _ = np.histogram(many, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees: 45 is exceeded once in a thousand
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03
    np.testing.assert_array_equal(uniforms(5, stream(1, 2)), uniforms(9, stream(1, 2))[:5])
    assert len({tuple(uniforms(3, stream(*key))) for key in [(0, 0), (0, 1), (1, 0), (1, 1), (0,), (0, 0, 0)]}) == 6


def test_common_beginnings() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        a, b = (rng.integers(0, 2, size=int(rng.integers(0, 8))).tolist() for _ in range(2))
        expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        assert common_length(a, b) == expected
