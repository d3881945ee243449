"""What the settings of the update do: packing, aggregation, KL terms, early stop, auxiliary loss, adapters, precision."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from spa.agent.policy import Policy
from spa.agent.worlds import World
from spa.config.overrides import choices
from spa.config.schema import PPOConfig
from spa.data.encode import Example
from spa.models.lora import add_lora, without_adapters
from spa.rl.auxiliary import world_model_examples
from spa.rl.batch import TrainSequence, train_sequences
from spa.rl.critic import Critic, make_critic
from spa.rl.learner import Learner
from spa.rl.reference import Reference
from spa.rl.update import TrainingDiverged, score_tokens, set_advantages, update
from spa.scale import ranks
from tests.models.networks import network
from tests.scripted import flat, lake_task, tiny_config, tiny_policy

WORLDS = [World(s, str(s)) for s in range(3)]


def make(*, reference: bool = False, sgd: bool = False, policy: Policy | None = None, **ppo) -> tuple[Policy, Learner]:
    policy = policy or tiny_policy()
    config = tiny_config(**{"mini_batches": 1, **ppo}).ppo
    fixed = Reference(copy.deepcopy(policy.model)) if reference else None
    one = Learner(policy.model, make_critic(config, policy.model), config, 1.0, fixed, horizon=7)
    if one.critic is not None:
        with torch.no_grad():
            one.critic.head.weight.copy_(0.05 * torch.cos(torch.arange(one.critic.head.in_features))[None])
    if sgd:
        trained = [*one.actor.parameters(), *(one.critic.parameters() if one.critic else [])]
        one.optimizer = torch.optim.SGD([{"params": trained, "lr": 1.0, "peak_lr": 1.0}])
    return policy, one


def step(policy: Policy, one: Learner, episodes, seed: int = 0, **more) -> dict[str, float]:
    return update(one, episodes, policy.chat, rng=np.random.default_rng(seed), **more)


def gradient(episodes, **settings) -> torch.Tensor:
    """Of one step over everything trained, through plain SGD."""
    policy, one = make(sgd=True, max_grad_norm=1e9, **settings)
    trained = [p for group in one.optimizer.param_groups for p in group["params"]]
    before = flat(trained)
    step(policy, one, episodes)
    return before - flat(trained)


@pytest.fixture
def episodes(played):
    """A copy for each test: some change rewards or log-probs."""
    return copy.deepcopy(played)


@pytest.fixture(scope="module")
def played():
    """Sequences of several turns, of unequal length, and of one turn."""
    policy = tiny_policy()
    return policy.play(lake_task(0), WORLDS, samples=2, seed=3) + policy.play(lake_task(1), WORLDS, samples=2, seed=4)


def test_accidents_in_good_episodes_are_silenced(episodes, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"critic": "model", "estimator": "gae"}
    everything = gradient(episodes, **settings)
    assert torch.equal(gradient(episodes, silence_below=1e-12, **settings), everything), "no token is so unlikely"
    policy, one = make(silence_below=1.0, **settings)
    shares = step(policy, one, episodes)["losses/silenced"]
    got = gradient(episodes, silence_below=1.0, **settings)

    def without(by_episode, *rest) -> dict[str, float]:
        metrics = set_advantages(by_episode, *rest)
        for sequence in (sequence for sequences in by_episode for sequence in sequences):
            sequence.advantages[sequence.logprobs < 0] = np.minimum(sequence.advantages, 0)[sequence.logprobs < 0]
        return metrics

    monkeypatch.setattr("spa.rl.update.set_advantages", without)
    torch.testing.assert_close(got, gradient(episodes, **settings))
    assert not torch.allclose(got, everything) and 0 < shares < 1


# Packing, padding, order


OFTEN = [("head", "token-mean"), ("detached_head", "seq-mean-token-mean")]
EVERY = product(("head", "model", "detached_head"), ("token-mean", "seq-mean-token-mean"))
SELDOM = [pytest.param(*pair, marks=pytest.mark.slow) for pair in EVERY if pair not in OFTEN]


@pytest.mark.parametrize(("critic", "aggregation"), OFTEN + SELDOM)
def test_neither_packing_nor_padding_nor_order_matters(episodes, critic: str, aggregation: str) -> None:
    settings = {"critic": critic, "loss_aggregation": aggregation, "entropy_coef": 0.05, "kl_loss_coef": 0.1}
    wanted = gradient(episodes, reference=True, packing=False, micro_batch_tokens=100_000, **settings)
    assert float(wanted.norm()) > 0.1
    for other in (
        {"packing": True},
        {"packing": True, "micro_batch_tokens": 200},
        {"packing": False, "micro_batch_tokens": 200},
    ):
        got = gradient(episodes, reference=True, **{**settings, **other})
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=2e-5)
    got = gradient(episodes[::-1], reference=True, **settings)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=2e-5)


def test_sequences_of_the_update_do_not_see_each_other(episodes) -> None:
    """A row's gradient is the same whatever stands beside it in the pack."""
    settings = {"whiten_advantages": False, "estimator": "reinforce_plus_plus", "entropy_coef": 0.0}
    alone = gradient(episodes[:1], **settings)
    silent = copy.deepcopy(episodes[1:])
    for episode in silent:  # no reward, no penalty: no gradient of their own
        for turn in episode.turns:
            turn.reward = turn.penalty = 0.0
    beside = gradient([*episodes[:1], *silent], loss_aggregation="seq-mean-token-sum", **settings)
    tokens = sum(sum(s.mask) for s in episodes[0].sequences)
    rows = sum(len(e.sequences) for e in episodes)
    torch.testing.assert_close(beside * rows, alone * tokens, rtol=1e-3, atol=1e-4)


def test_packing_a_model_that_cannot_be_packed_names_the_setting() -> None:
    model = network("mistral", sliding_window=16)
    config = tiny_config().ppo
    with pytest.raises(ValueError, match=r"ppo\.packing=false"):
        Learner(model, Critic("head", model), config, 1.0)
    config.packing = False
    Learner(model, Critic("head", model), config, 1.0)


@pytest.mark.slow
def test_actor_and_critic_are_compiled_if_asked() -> None:
    def compiled(**settings: object) -> list[bool]:
        actor, config = network(), tiny_config(**settings).ppo
        one = Learner(actor, Critic("model", actor), config, 1.0)
        assert one.critic is not None
        blocks = [*one.actor.model.layers, *one.critic.network.model.layers]
        return [block.mlp._compiled_call_impl is not None for block in blocks]

    assert compiled() == [False] * 4
    assert compiled(compile=True) == [True] * 4


# Aggregation


AGGREGATIONS = choices(PPOConfig, "loss_aggregation")


def test_the_gradient_follows_the_aggregation(episodes) -> None:
    """Sums over sequences are a constant times each other; means of means are not."""
    got = {name: gradient(episodes, loss_aggregation=name, critic="none", estimator="grpo") for name in AGGREGATIONS}
    torch.testing.assert_close(got["seq-mean-token-sum"], 7 * got["seq-mean-token-sum-norm"], rtol=1e-3, atol=1e-4)
    rows = [row for group in train_sequences(episodes, tiny_policy().chat) for row in group]
    ratio = sum(len(row.positions) for row in rows) / len(rows)
    torch.testing.assert_close(got["seq-mean-token-sum"], ratio * got["token-mean"], rtol=1e-3, atol=1e-4)
    other, plain = got["seq-mean-token-mean"], got["token-mean"]
    assert float((other / other.norm() - plain / plain.norm()).norm()) > 0.01


# KL


def test_the_reference_model_is_wanted_only_for_a_coefficient() -> None:
    assert not tiny_config().ppo.needs_reference
    assert tiny_config(kl_reward_coef=0.1).ppo.needs_reference
    assert tiny_config(kl_loss_coef=0.1).ppo.needs_reference


def test_kl_in_the_loss_pulls_the_policy_back(episodes) -> None:
    policy, one = make(reference=True, kl_loss_coef=10.0, actor_lr=3e-5, estimator="grpo", entropy_coef=0.0)
    assert step(policy, one, episodes)["losses/kl_loss"] == pytest.approx(0, abs=1e-6)  # both are the same at first
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)
    same_scores = copy.deepcopy(episodes)
    for episode in same_scores:
        for turn in episode.turns:
            turn.reward = turn.penalty = 0.0
    distances = [step(policy, one, same_scores)["losses/kl_loss"] for _ in range(6)]
    assert distances[0] > 0.001
    assert all(later < earlier for earlier, later in pairwise(distances))


def test_kl_in_the_reward_is_subtracted_token_by_token(episodes) -> None:
    policy, one = make(reference=True, kl_reward_coef=0.5, whiten_advantages=False, estimator="reinforce_plus_plus")
    by_episode = train_sequences(episodes, policy.chat)
    rows = [row for group in by_episode for row in group]
    score_tokens(one, rows, recompute=False)
    rng = np.random.default_rng(0)
    for row in rows:
        row.reference = row.logprobs + rng.normal(size=len(row.ids))
    plain = copy.deepcopy(one.config)
    plain.kl_reward_coef = 0.0
    set_advantages(by_episode, episodes, plain)
    without = [row.advantages.copy() for row in rows]
    set_advantages(by_episode, episodes, one.config)
    for group in by_episode:
        kl = np.concatenate([(row.logprobs - row.reference)[row.mask] for row in group])
        to_go = 0.5 * kl[::-1].cumsum()[::-1]
        got = np.concatenate([row.advantages[row.mask] for row in group])
        old = np.concatenate([without[next(i for i, r in enumerate(rows) if r is row)][row.mask] for row in group])
        np.testing.assert_allclose(got, old - to_go, atol=1e-9)


def test_context_tokens_carry_no_kl() -> None:
    row = TrainSequence.of([1, 2, 3], [False, True, True], [-1, -1, 0], [0.0, -1.0, -1.0])
    row.reference[:] = [0.0, -9.0, -1.0]
    from spa.agent.episode import Episode, Turn

    one = Episode("T", 0, 0, turns=[Turn(0, "", "", "", reward=1.0)])
    config = tiny_config(kl_reward_coef=1.0, whiten_advantages=False, estimator="reinforce_plus_plus").ppo
    set_advantages([[row]], [one], config)
    assert row.advantages.tolist() == [0.0, 1.0, 1.0]


# Early stop


def test_a_batch_is_left_once_the_policy_has_moved_too_far(episodes) -> None:
    policy, one = make(epochs=5, mini_batches=2, actor_lr=1e-3)
    free = step(policy, one, episodes)
    assert (free["train/updates"], free["train/kl_stop"]) == (10, 0)
    policy, one = make(epochs=5, mini_batches=2, actor_lr=1e-3, target_kl=5 * free["losses/approx_kl"])
    assert step(policy, one, episodes)["train/kl_stop"] == 0, "a mean over tokens, not over rows"
    policy, one = make(epochs=5, mini_batches=2, actor_lr=1e-3, target_kl=0.005)
    stopped = step(policy, one, episodes)
    assert 1 <= stopped["train/updates"] < 10
    assert stopped["train/kl_stop"] == 1
    assert one.updates == stopped["train/updates"]
    assert stopped["losses/approx_kl"] <= 0.005
    # The next batch begins afresh.
    assert step(policy, one, policy.play(lake_task(1), WORLDS, samples=2, seed=9))["train/updates"] >= 1


def test_dropout_alone_does_not_stop_a_batch_before_its_first_step(episodes) -> None:
    """Nothing would ever change again: the noise of each batch would stop the next."""
    policy, one = make(lora_rank=4, lora_dropout=0.5, target_kl=1e-9, critic="none", estimator="rloo", epochs=2)
    add_lora(policy.model, one.config, 4, 0)
    with torch.no_grad():
        for name, weights in policy.model.named_parameters():
            if "lora_B" in name:
                weights.normal_(0, 0.5)
    stopped = step(policy, one, episodes)
    assert (stopped["train/updates"], stopped["train/kl_stop"]) == (1, 1)


@pytest.mark.parametrize(
    "estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_a_kl_of_rounding_moves_nothing(estimator: str, episodes) -> None:
    """Scores are equal, and the policy is its reference: baselines and Adam would make full steps of what rounding leaves."""
    policy, one = make(reference=True, estimator=estimator, critic="none", kl_reward_coef=0.05, entropy_coef=0.0)
    alike = [
        replace(each, turns=[replace(turn, rewards=[0.0], reward=0.0, penalty=0.0) for turn in each.turns])
        for each in episodes
    ]
    assert step(policy, one, alike)["actor/grad_norm"] == 0


# Critics


def test_a_detached_head_leaves_the_policy_alone(episodes) -> None:
    after = {}
    for critic in ("head", "detached_head"):
        for coef in (0.0, 5.0):
            policy, one = make(critic=critic, value_coef=coef, whiten_advantages=False, actor_lr=1e-4)
            step(policy, one, episodes)
            after[critic, coef] = flat(policy.model.parameters())
    assert not torch.equal(after["head", 0.0], after["head", 5.0])
    assert torch.equal(after["detached_head", 0.0], after["detached_head", 5.0])


@pytest.mark.parametrize(
    "estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_estimators_without_values_have_no_critic(episodes, estimator: str) -> None:
    policy, one = make(estimator=estimator, critic="model")
    assert one.critic is None
    before = flat(policy.model.parameters())
    metrics = step(policy, one, episodes)
    assert "losses/value_loss" not in metrics
    assert np.isfinite(list(metrics.values())).all()
    assert not torch.equal(before, flat(policy.model.parameters()))


@pytest.mark.parametrize("estimator", ["turn_gae", "bi_level_gae"])
def test_other_estimators_with_values_train(episodes, estimator: str) -> None:
    policy, one = make(estimator=estimator)
    before = flat(policy.model.parameters())
    metrics = step(policy, one, episodes)
    assert np.isfinite(list(metrics.values())).all()
    assert not torch.equal(before, flat(policy.model.parameters()))


# The auxiliary loss


def example(policy: Policy) -> Example:
    ids = policy.chat.opening(None, "abc") + policy.chat.encode("<think><observation>P___</observation>")
    return Example(ids, list(range(len(ids) - 6, len(ids) - 1)))


def test_the_auxiliary_loss_is_added_with_its_coefficient(episodes) -> None:
    got = {}
    for coefficient in (0.0, 0.5, 1.0):
        policy, one = make(sgd=True, max_grad_norm=1e9, world_model_coef=coefficient, critic="none", estimator="grpo")
        before = flat(policy.model.parameters())
        metrics = step(policy, one, episodes, world_model=[example(policy)] * 2)
        got[coefficient] = before - flat(policy.model.parameters())
    policy = tiny_policy()
    row = example(policy)
    logprobs = policy.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
    naive = -torch.stack([logprobs[p - 1, row.ids[p]] for p in row.positions]).mean()
    assert metrics["losses/world_model"] == pytest.approx(float(naive.detach()), rel=1e-4)
    naive.backward()
    wanted = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    torch.testing.assert_close(got[1.0] - got[0.0], wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(2 * (got[0.5] - got[0.0]), wanted, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_auxiliary_loss_is_the_mean_of_the_steps_that_have_examples(episodes, epochs: int) -> None:
    losses = []
    for mini_batches in (1, 4):
        policy, one = make(mini_batches=mini_batches, epochs=epochs, world_model_coef=1.0, actor_lr=0.0)
        losses.append(step(policy, one, episodes, world_model=[example(policy)])["losses/world_model"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_the_auxiliary_loss_teaches_the_states_that_were_seen(episodes) -> None:
    policy, one = make(world_model_coef=1.0, actor_lr=1e-4, estimator="grpo", entropy_coef=0.0)
    played = [episode for episode in episodes if len(episode.sequences) == len(episode.turns)]
    told = lake_task(1)
    told = replace(told, agent=replace(told.agent, prompt="world_model"))
    rng = np.random.default_rng(0)
    examples = world_model_examples(played, [told] * len(played), policy.chat, fraction=1.0, rng=rng)
    for episode in played:
        for turn in episode.turns:
            turn.reward = turn.penalty = 0.0
    losses = [step(policy, one, played, world_model=examples)["losses/world_model"] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]


def test_the_auxiliary_loss_changes_nothing_else(episodes) -> None:
    """Mini-batches are the same with and without it, and where the policy's own loss is left out it is all that moves the actor."""
    plain_player, plain = make(mini_batches=3)
    step(plain_player, plain, episodes)
    policy, one = make(mini_batches=3, world_model_coef=0.0)
    step(policy, one, episodes, world_model=[example(policy)])
    assert torch.equal(flat(policy.model.parameters()), flat(plain_player.model.parameters()))
    policy, one = make(world_model_coef=1.0)
    before = flat(policy.model.parameters())
    step(policy, one, episodes, critic_only=True)
    assert torch.equal(before, flat(policy.model.parameters()))
    step(policy, one, episodes, world_model=[example(policy)], critic_only=True)
    assert not torch.equal(before, flat(policy.model.parameters()))


# Adapters


def lora_learner(**ppo) -> tuple[Policy, Learner]:
    policy = tiny_policy()
    config = tiny_config(
        **{"mini_batches": 1, "lora_rank": 4, "critic": "model", "critic_lora_rank": 2, "lora_alpha": 8, **ppo}
    ).ppo
    critic = make_critic(config, policy.model, seed=1)
    add_lora(policy.model, config, 4)
    return policy, Learner(policy.model, critic, config, 1.0, Reference(policy.model, adapters_off=True))


def test_with_adapters_nothing_else_is_trained(episodes) -> None:
    policy, one = lora_learner()
    assert one.critic is not None
    networks = {"actor": policy.model, "critic": one.critic.network}
    before = {
        who: {n: p.detach().clone() for n, p in net.named_parameters() if "lora_" not in n}
        for who, net in networks.items()
    }
    adapters = {who: flat(p for n, p in net.named_parameters() if "lora_" in n) for who, net in networks.items()}
    step(policy, one, episodes)
    step(policy, one, episodes)
    for who, net in networks.items():
        after = dict(net.named_parameters())
        assert all(torch.equal(value, after[name]) for name, value in before[who].items())
        assert not torch.equal(adapters[who], flat(p for n, p in net.named_parameters() if "lora_" in n))
    trained = sum(p.numel() for g in one.optimizer.param_groups for p in g["params"])
    assert trained < 0.3 * sum(p.numel() for p in policy.model.parameters())


def test_the_reference_of_an_actor_with_adapters_is_itself_without_them(episodes) -> None:
    policy, one = lora_learner(actor_lr=1e-2)
    assert one.reference is not None
    rows = [row for group in train_sequences(episodes, policy.chat) for row in group]
    score_tokens(one, rows, recompute=True)
    start = [row.logprobs.copy() for row in rows]
    for number in range(3):
        step(policy, one, episodes, seed=number)
    score_tokens(one, rows, recompute=True)
    assert max(np.abs(row.reference - old)[row.mask].max() for row, old in zip(rows, start, strict=True)) < 1e-5
    assert max(np.abs(row.reference - row.logprobs)[row.mask].max() for row in rows) > 1e-2
    ids = torch.tensor([rows[0].ids])
    with without_adapters(policy.model):
        bare = policy.model(ids).logits
    assert not torch.allclose(bare, policy.model(ids).logits, atol=1e-3)
    assert any(p.requires_grad for n, p in policy.model.named_parameters() if "lora_" in n)


def test_a_learner_with_adapters_is_restored_from_them_alone(episodes) -> None:
    policy, one = lora_learner()
    step(policy, one, episodes)
    state = copy.deepcopy(one.state())
    assert set(state["critic"]) == {"head", "lora"}
    step(policy, one, episodes, seed=1)
    other_player, other = lora_learner()
    other.load_state(state)
    step(other_player, other, episodes, seed=1)
    assert torch.equal(flat(policy.model.parameters()), flat(other_player.model.parameters()))
    assert torch.equal(flat(one.critic.parameters()), flat(other.critic.parameters()))


def test_dropout_of_a_step_is_the_steps_seeds_and_another_on_another_rank(episodes, monkeypatch) -> None:
    after = []
    for noise, rank in ((0, 0), (1, 0), (0, 1)):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        policy = tiny_policy()
        config = tiny_config(mini_batches=1, lora_rank=4, lora_alpha=8, lora_dropout=0.5, estimator="grpo").ppo
        add_lora(policy.model, config, 4)
        policy.model.train()
        torch.manual_seed(noise)
        step(policy, Learner(policy.model, None, config, 1.0), episodes)
        after.append(flat(policy.model.parameters()))
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])


# Precision


def test_in_bfloat16_old_log_probs_are_recomputed_and_the_difference_is_told(episodes) -> None:
    policy, one = make(precision="bfloat16")
    metrics = step(policy, one, episodes)
    assert 0 < metrics["training/rollout_probs_diff_mean"] <= metrics["training/rollout_probs_diff_max"] < 0.2
    # Micro-batches make other kernels, so the ratio need not be exactly 1; it is where they are the same.
    assert metrics["losses/approx_kl"] == pytest.approx(0, abs=1e-5)
    assert all(p.dtype == torch.float32 for p in policy.model.parameters())
    assert "training/rollout_probs_diff_mean" not in step(*make(), episodes)


def test_a_world_model_loss_that_is_not_finite_stops_the_step(episodes, monkeypatch) -> None:
    policy, one = make(world_model_coef=1.0)
    monkeypatch.setattr(
        "spa.rl.update.loss_sums", lambda *a, **k: iter([torch.tensor(float("inf"), requires_grad=True)])
    )
    before = flat(policy.model.parameters())
    with pytest.raises(TrainingDiverged, match="world-model loss"):
        step(policy, one, episodes, world_model=[example(policy)])
    assert torch.equal(before, flat(policy.model.parameters()))


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_value_head_of_a_bfloat16_model_is_float32(kind: str, episodes) -> None:
    policy = tiny_policy()
    policy.model.to(torch.bfloat16)
    policy, one = make(policy=policy, critic=kind)
    assert one.critic is not None
    step(policy, one, episodes)  # Adam's states
    saved = copy.deepcopy(one.state())
    weights = list(one.critic.head.parameters())
    assert {each.dtype for p in weights for each in (p, p.grad) if each is not None} == {torch.float32}
    # What earlier versions saved.
    saved["critic"] = {name: value.bfloat16() for name, value in saved["critic"].items()}
    for values in saved["optimizer"]["state"].values():
        values.update({name: value.bfloat16() for name, value in values.items() if name != "step"})
    one.load_state(saved)
    assert {p.dtype for p in weights} == {one.optimizer.state[p]["exp_avg"].dtype for p in weights} == {torch.float32}
    assert torch.equal(one.critic.head.weight, saved["critic"]["head.weight"].float())
    step(policy, one, episodes)
