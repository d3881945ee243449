"""Rows and micro-batches: every trainable token, once, beside its own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.agent.chat import Chat
from spa.agent.episode import Episode, TokenSequence, Turn
from spa.config.schema import PPOConfig
from spa.rl.advantages import gae, whiten
from spa.rl.batch import TrainSequence, micro_batches, train_sequences, trained_tokens
from spa.rl.losses import policy_loss, value_loss
from spa.rl.metrics import values_explained
from spa.rl.update import set_advantages
from tests.rl.tools import filtered, placed
from tests.scripted import CHAT, TOKENIZER

SMALL = st.floats(-3, 3)


@pytest.mark.parametrize(("returns", "explained"), [([0.1, 0.1, 0.1 + 2e-17], 0.0), ([0.0, 1.0, 2.0], 0.75)])
def test_explained_variance_is_zero_where_there_is_nothing_to_explain(returns: list[float], explained: float) -> None:
    ((row,),) = train_sequences([scripted("a")], CHAT)
    row.mask = np.arange(len(row.ids)) < 3
    row.returns[:3], row.values[:3] = returns, [0.5, 1.0, 1.5]
    assert values_explained([row]) == {"losses/explained_variance": pytest.approx(explained)}


def scripted(*responses: str, chat: Chat = CHAT, one_sequence: bool = False, end: bool = True) -> Episode:
    """An episode whose responses (without the forced tag) are given; -1 is every sampled log-prob."""
    one = Episode("T", 0, 0)
    for index, text in enumerate(responses):
        if index == 0 or not one_sequence:
            one.sequences.append(TokenSequence())
        sequence = one.sequences[-1]
        sequence.append(chat.opening(None, f"state {index}"))
        sequence.append(chat.forced_ids, turn=index)
        ids = chat.encode(text) + ([chat.closing_ids[0]] if end else [])
        sequence.append(ids, mask=1, logprobs=[-1.0] * len(ids), turn=index)
        one.turns.append(Turn(index, "s", "u", chat.forced + chat.decode(ids), "s", reward=float(index + 1)))
    return one


def trained_text(row: TrainSequence, turn: int, chat: Chat = CHAT) -> str:
    return chat.decode([row.ids[i] for i in row.positions if row.turns[i] == turn])


@pytest.mark.parametrize("one_sequence", [True, False])
def test_answer_mask_is_the_answer_of_every_turn(one_sequence: bool) -> None:
    answers = ["<answer>Up || Down</answer>", "<answer></answer>", "<answer>no such action</answer>"]
    one = scripted(*(f"go</think>{answer}Up and more" for answer in answers), one_sequence=one_sequence)
    (rows,) = train_sequences([one], CHAT, "answer")
    chat_end = CHAT.closing_ids[0]
    assert len(rows) == (1 if one_sequence else 3)
    for turn, answer in enumerate(answers):
        row = rows[0 if one_sequence else turn]
        assert trained_text(row, turn) == answer
        assert chat_end not in [row.ids[i] for i in row.positions]


def test_answer_mask_without_an_answer_trains_the_whole_response() -> None:
    one = scripted("I do not know</think>", "so</think><answer>Up</answer>")
    (rows,) = train_sequences([one], CHAT, "answer")
    sampled = [i for i, m in enumerate(one.sequences[0].mask) if m]
    assert rows[0].positions == sampled
    assert CHAT.decode([rows[1].ids[i] for i in rows[1].positions]) == "<answer>Up</answer>"
    assert rows[1].positions == [i for i, m in enumerate(one.sequences[1].mask) if m][-4:-1]  # not the end of the turn


def test_answer_mask_when_the_tag_itself_is_forced() -> None:
    chat = Chat(TOKENIZER, forced="<answer>")
    one = scripted("Up || Left</answer>", chat=chat)
    ((row,),) = train_sequences([one], chat, "answer")
    assert trained_text(row, 0, chat) == "Up || Left</answer>"


def test_the_first_token_is_never_trained_since_nothing_predicts_it() -> None:
    one = Episode(
        "T", 0, 0, turns=[Turn(0, "", "", "")], sequences=[TokenSequence([5, 6], [1, 1], [-1.0, -2.0], [0, 0])]
    )
    ((row,),) = train_sequences([one], CHAT, "sampled")
    assert (row.positions, row.logprobs[row.mask].tolist()) == ([1], [-2.0])
    ((row,),) = train_sequences([one], CHAT, "all")
    assert row.positions == [1]


def test_sequences_and_episodes_without_trained_tokens_leave_the_others_aligned() -> None:
    full, empty = scripted("a</think><answer>Up</answer>", "b</think>"), scripted("c</think>")
    full.sequences[0].mask = [0] * len(full.sequences[0])
    empty.sequences[0].mask = [0] * len(empty.sequences[0])
    by_episode = train_sequences([empty, full], CHAT, "sampled")
    assert [len(rows) for rows in by_episode] == [0, 1]
    (row,) = by_episode[1]
    set_advantages(by_episode, [empty, full], PPOConfig(whiten_advantages=False))
    np.testing.assert_array_equal(row.advantages[row.mask], full.score)


def test_reward_scale_and_whitening_touch_what_they_should() -> None:
    episodes = [scripted("a</think>", "b</think>"), scripted("c</think>")]

    def run(**ppo: object) -> tuple[np.ndarray, np.ndarray]:
        by_episode = train_sequences(episodes, CHAT, "sampled")
        rows = [row for group in by_episode for row in group]
        for number, row in enumerate(rows):
            row.values[row.mask] = np.linspace(0, number, len(row.positions))
        set_advantages(by_episode, episodes, PPOConfig(**ppo))
        tokens = trained_tokens(rows)
        return tokens.advantages, tokens.returns

    plain, returns = run(whiten_advantages=False)
    whitened, same_returns = run()
    np.testing.assert_allclose(whitened, (plain - plain.mean()) / plain.std(ddof=1), atol=1e-6)
    np.testing.assert_array_equal(returns, same_returns)
    np.testing.assert_allclose(run(reward_scale=0.1)[1], 0.1 * returns)  # gamma = lam = 1: the sum of rewards


@pytest.mark.parametrize("packing", [True, False])
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    budget=st.integers(1, 90),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=40)
def test_micro_batches_hold_every_trained_token_once_with_its_own_numbers(packing, lengths, budget, random) -> None:
    rows = []
    for number, length in enumerate(lengths):
        positions = sorted(random.sample(range(1, length + 1), random.randint(1, length)))
        ids = np.array([number * 100 + p for p in range(length + 1)])
        row = TrainSequence.of(ids.tolist(), np.isin(np.arange(length + 1), positions), np.zeros(length + 1), ids)
        row.values[:], row.advantages[:], row.returns[:] = ids + 0.25, ids + 0.5, ids + 0.75
        rows.append(row)
    seen: list[int] = []
    for batch in micro_batches(rows, [float(number) for number in range(len(rows))], budget, "cpu", packing=packing):
        tokens = batch.tokens
        group = tokens.indices
        seen += group
        assert packing or tokens.ids.numel() <= budget or len(group) == 1
        assert packing == (tokens.layout is not None)
        assert tokens.targets_N.tolist() == [rows[i].ids[p] for i in group for p in rows[i].positions]
        # The hidden state that predicts a token is the one before it; here a state is its own id.
        assert tokens.ids.flatten()[tokens.before_N].tolist() == (tokens.targets_N - 1).tolist()
        for add, values in enumerate((batch.logprobs_N, batch.values_N, batch.advantages_N, batch.returns_N)):
            assert values.tolist() == [float(t) + 0.25 * add for t in tokens.targets_N]
        weights = [float(i) for i in group for _ in rows[i].positions]
        assert batch.weights_N.tolist() == weights
    assert sorted(seen) == list(range(len(rows)))


# Losses: the counts that are logged, and gradients


@given(
    st.lists(st.tuples(SMALL, SMALL, SMALL), min_size=1, max_size=8),
    st.sampled_from([(0.2, 0.28), (0.1, 0.5)]),
    st.sampled_from([0.0, 1.5, 3.0]),
)
def test_what_policy_loss_counts(rows, clip: tuple[float, float], dual: float) -> None:
    kl = clipped = lower = 0.0
    for new, old, advantage in rows:
        ratio = np.exp(new - old)
        kl += ratio - 1 - (new - old)
        near = min(max(ratio, 1 - clip[0]), 1 + clip[1])
        clipped += -advantage * near > -advantage * ratio
        lower += bool(dual and advantage < 0 and -advantage * dual < max(-advantage * ratio, -advantage * near))
    tensors = [torch.tensor(x, dtype=torch.float64) for x in zip(*rows, strict=True)]
    _, sums = policy_loss(*tensors, clip_low=clip[0], clip_high=clip[1], dual_clip=dual)
    assert float(sums["approx_kl"].sum()) == pytest.approx(kl, rel=1e-6, abs=1e-6)
    assert (float(sums["clipfrac"].sum()), float(sums["clipfrac_lower"].sum())) == (clipped, lower)


@pytest.mark.parametrize(("dual", "moves"), [(0.0, True), (3.0, False)])
def test_dual_clip_stops_the_gradient_of_a_bad_token_that_became_likely(dual: float, moves: bool) -> None:
    new = torch.tensor([float(np.log(5.0))], requires_grad=True)
    loss, _ = policy_loss(new, torch.zeros(1), torch.tensor([-2.0]), clip_low=0.2, clip_high=0.2, dual_clip=dual)
    loss.sum().backward()
    assert float(loss.detach().sum()) == pytest.approx(6.0 if dual else 10.0)
    assert bool(new.grad) is moves


def test_value_clip_stops_values_that_ran_towards_the_return() -> None:
    values = torch.tensor([0.4, 0.9, -0.9], requires_grad=True)  # near the old; past the clip; away from the return
    loss, clipped = value_loss(values, torch.zeros(3), torch.ones(3), 0.5)
    loss.sum().backward()
    assert values.grad.tolist() == pytest.approx([-0.6, 0.0, -1.9])
    assert clipped.tolist() == [0, 1, 0]
    off, none = value_loss(values.detach(), torch.zeros(3), torch.ones(3), 0.0)
    assert (float(off.sum()), float(none.sum())) == (pytest.approx(0.5 * (0.36 + 0.01 + 3.61)), 0)


# Rewards, filter, advantages: what always holds


@given(st.lists(st.tuples(SMALL, SMALL, st.integers(0, 3)), min_size=1, max_size=5), st.sampled_from(["end", "turn"]))
def test_no_reward_is_lost_or_counted_twice(turns, placement: str) -> None:
    one = Episode("T", 0, 0)
    one.turns = [Turn(i, "", "", "", reward=r, penalty=p) for i, (r, p, _) in enumerate(turns)]
    turns_of_tokens = [i for i, (_, _, count) in enumerate(turns) for _ in range(count)] or [-1]
    assert placed(one, turns_of_tokens, placement).sum() == pytest.approx(one.score, abs=1e-9)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=8), st.floats(0.01, 1))
def test_the_filter_keeps_the_share_asked_for_and_no_better_group_is_dropped(groups, ratio: float) -> None:
    episodes = [
        Episode("T", 0, g, turns=[Turn(0, "", "", "", reward=float(r))]) for g, rs in enumerate(groups) for r in rs
    ]
    kept, _ = filtered(episodes, ratio)
    chosen = {e.group for e in kept}
    assert len(chosen) == max(1, int(ratio * len(groups)))
    assert kept == [e for e in episodes if e.group in chosen]  # whole groups, in order
    worst = min(np.std(groups[g]) for g in chosen)
    assert all(np.std(rs) <= worst for g, rs in enumerate(groups) if g not in chosen)


@given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=20))
def test_with_gamma_and_lambda_one_returns_are_rewards_to_go(pairs) -> None:
    rewards, values = (np.array(x) for x in zip(*pairs, strict=True))
    advantages, returns = gae(rewards, values, 1.0, 1.0)
    np.testing.assert_allclose(returns, rewards[::-1].cumsum()[::-1], atol=1e-9)
    np.testing.assert_allclose(advantages, returns - values, atol=1e-9)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=5), st.floats(1, 9))
def test_whitening_does_not_depend_on_shift_or_scale(lists, factor: float) -> None:
    arrays = [np.array(x) for x in lists]
    if np.concatenate(arrays).std() < 0.1:
        return
    for a, b in zip(whiten(arrays), whiten([factor * x + 3 for x in arrays]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
