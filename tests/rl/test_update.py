"""One update against a naive one, and what each setting of it does."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from spa.agent.policy import Policy
from spa.agent.worlds import World
from spa.rl.batch import train_sequences
from spa.rl.critic import Critic
from spa.rl.learner import Learner
from spa.rl.reference import Reference
from spa.rl.update import TrainingDiverged, needs_recompute, score_tokens, update
from tests.scripted import flat, lake_task, tiny_config, tiny_policy

WORLDS = [World(s, str(s)) for s in range(3)]


def make(
    critic: str = "head", temperature: float = 1.0, reference: bool = False, **ppo: object
) -> tuple[Policy, Learner]:
    policy = tiny_policy()
    config = tiny_config(critic=critic, **ppo).ppo
    fixed = Reference(copy.deepcopy(policy.model)) if reference else None
    return policy, Learner(policy.model, Critic(critic, policy.model), config, temperature, fixed)


def wake(one: Learner) -> None:
    """Gives the critic's head weights other than 0, so that values differ between tokens."""
    with torch.no_grad():
        one.critic.head.weight.copy_(0.05 * torch.cos(torch.arange(one.critic.head.in_features))[None])


def step(policy: Policy, one: Learner, episodes, seed: int = 0, **kind: bool) -> dict[str, float]:
    return update(one, episodes, policy.chat, rng=np.random.default_rng(seed), **kind)


@pytest.fixture(scope="module", params=[0, 1], ids=["one sequence", "one sequence a turn"])
def episodes(request):
    return tiny_policy().play(lake_task(request.param), WORLDS, samples=2, seed=3)


@pytest.mark.parametrize("critic", ["head", "model"])
@pytest.mark.parametrize("loss_mask", ["sampled", "all"])
def test_the_gradient_is_that_of_a_naive_implementation(episodes, critic: str, loss_mask: str) -> None:
    """No padding, no flat vectors, no formulas shared: token by token over whole logits, advantages by a double sum."""
    settings = {"gamma": 0.9, "lam": 0.8, "entropy_coef": 0.05, "value_coef": 0.7, "max_grad_norm": 1e9}
    policy, one = make(critic, mini_batches=1, micro_batch_tokens=150, loss_mask=loss_mask, **settings)
    wake(one)
    naive_actor, naive_critic = copy.deepcopy(policy.model), copy.deepcopy(one.critic)
    everything = [*one.actor.parameters(), *one.critic.parameters()]
    one.optimizer = torch.optim.SGD([{"params": everything, "lr": 1.0, "peak_lr": 1.0}])
    before = flat(everything)
    step(policy, one, episodes)

    tokens = []  # (log-prob, entropy, value, advantage, return)
    for episode in episodes:
        mine, rewards, last = [], [], {}
        for sequence in episode.sequences:
            ids = torch.tensor([sequence.ids])
            output = naive_actor(ids, output_hidden_states=True)
            logits = output.logits[0].log_softmax(-1)
            hidden = output.hidden_states[-1][0]
            if critic == "model":
                hidden = naive_critic.network(ids, output_hidden_states=True).hidden_states[-1][0]
            for i in range(1, len(sequence)):
                if sequence.mask[i] or loss_mask == "all":
                    entropy = -(logits[i - 1].exp() * logits[i - 1]).sum()
                    mine.append([logits[i - 1, sequence.ids[i]], entropy, naive_critic.head(hidden[i - 1])[0]])
                    rewards.append(0.0)
                    if sequence.mask[i]:
                        last[sequence.turns[i]] = len(rewards) - 1
        for turn in episode.turns:
            rewards[last[turn.index]] += turn.reward + turn.penalty
        values = [v.item() for _, _, v in mine]
        deltas = [r + 0.9 * v2 - v for r, v, v2 in zip(rewards, values, [*values[1:], 0.0], strict=True)]
        for t, token in enumerate(mine):
            advantage = sum(0.72 ** (k - t) * deltas[k] for k in range(t, len(deltas)))
            tokens.append([*token, advantage, advantage + values[t]])
    advantages = np.array([token[3] for token in tokens])
    advantages = (advantages - advantages.mean()) / advantages.std(ddof=1)
    total = torch.zeros(())
    for (logprob, entropy, value, _, target), advantage in zip(tokens, advantages, strict=True):
        ratio = (logprob - logprob.detach()).exp()
        total = total - advantage * ratio - 0.05 * entropy + 0.7 * 0.5 * (value - target) ** 2
    (total / len(tokens)).backward()
    naive = [*naive_actor.parameters(), *naive_critic.parameters()]
    gradient = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in naive])
    torch.testing.assert_close(before - flat(everything), gradient, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_log_probs_are_of_the_tempered_distribution(temperature: float) -> None:
    policy, one = make(temperature=temperature, reference=True)
    played = policy.play(lake_task(1), WORLDS, samples=2, seed=1, temperature=temperature)
    rows = [row for group in train_sequences(played, policy.chat) for row in group]
    sampled = np.concatenate([row.logprobs for row in rows])
    score_tokens(one, rows, recompute=True)
    np.testing.assert_allclose(np.concatenate([row.logprobs for row in rows]), sampled, atol=1e-4)
    np.testing.assert_allclose(np.concatenate([row.reference for row in rows]), sampled, atol=1e-4)
    one.config.mini_batches = 1
    assert step(policy, one, played)["losses/approx_kl"] == pytest.approx(0, abs=1e-6)


def test_the_samplers_log_probs_stand_unless_recomputed(episodes) -> None:
    policy, one = make()
    rows = [row for group in train_sequences(episodes, policy.chat) for row in group]
    for row in rows:
        row.logprobs = row.logprobs - 7
    before = [row.logprobs.copy() for row in rows]
    score_tokens(one, rows, recompute=False)
    assert all(np.array_equal(row.logprobs, old) for row, old in zip(rows, before, strict=True))


def test_what_weights_in_bfloat16_sampled_is_scored_again() -> None:
    _, one = make()
    assert not needs_recompute(one)
    one.actor.to(torch.bfloat16)
    assert needs_recompute(one)


def test_what_angles_that_change_with_the_length_sampled_is_scored_again() -> None:
    _, one = make()
    one.actor.config.rope_parameters["rope_type"] = "dynamic"
    assert needs_recompute(one)


def test_what_is_not_scored_is_not_packed(monkeypatch, episodes) -> None:
    policy = tiny_policy()
    one = Learner(policy.model, None, tiny_config(critic="none", estimator="grpo").ppo, 1.0)
    rows = [row for group in train_sequences(episodes, policy.chat) for row in group]
    monkeypatch.setattr("spa.rl.update.batches", None)
    assert score_tokens(one, rows, recompute=False) == {}


@pytest.mark.parametrize("critic", ["head", "model"])
def test_values_start_at_zero_and_every_trained_parameter_is_in_the_optimizer_once(critic: str) -> None:
    policy, one = make(critic)
    rows = train_sequences(policy.play(lake_task(1), WORLDS, samples=1, seed=0), policy.chat)[0]
    score_tokens(one, rows, recompute=False)
    assert not np.concatenate([row.values for row in rows]).any()
    held = [id(p) for group in one.optimizer.param_groups for p in group["params"]]
    wanted = {id(p) for p in (*one.actor.parameters(), *one.critic.trained())}
    assert len(held) == len(set(held))
    assert set(held) == wanted
    if critic == "model":
        shared = {p.data_ptr() for p in one.actor.parameters()} & {p.data_ptr() for p in one.critic.parameters()}
        assert not shared


def test_a_second_network_leaves_the_policys_gradient_alone(episodes) -> None:
    """With ``model`` the value loss cannot reach the actor; with ``head`` it does."""
    after = {}
    for critic in ("head", "model"):
        for coef in (0.0, 5.0):
            policy, one = make(critic, value_coef=coef, whiten_advantages=False, mini_batches=1, actor_lr=1e-4)
            wake(one)
            step(policy, one, episodes)
            after[critic, coef] = flat(policy.model.parameters())
    assert torch.equal(after["model", 0.0], after["model", 5.0])
    assert not torch.equal(after["head", 0.0], after["head", 5.0])


def test_a_large_value_error_does_not_shrink_the_policys_step(episodes) -> None:
    """Actor and critic are clipped apart: each to ``max_grad_norm``."""
    policy, one = make("model", max_grad_norm=0.01, value_coef=1000.0, mini_batches=1)
    actor, critic = list(one.actor.parameters()), list(one.critic.parameters())
    one.optimizer = torch.optim.SGD([{"params": actor + critic, "lr": 1.0, "peak_lr": 1.0}])
    before = flat(actor), flat(critic)
    metrics = step(policy, one, episodes)
    assert metrics["actor/grad_norm"] > 0.01  # the norm before clipping is what is logged
    for old, parameters in zip(before, (actor, critic), strict=True):
        assert float((old - flat(parameters)).norm()) == pytest.approx(0.01, rel=1e-2)


def test_epochs_and_mini_batches_count_optimizer_steps_and_leave_the_policy(episodes) -> None:
    policy, one = make(epochs=3, mini_batches=2)
    metrics = step(policy, one, episodes)
    assert metrics["train/updates"] == one.updates == 6
    assert metrics["losses/approx_kl"] > 0  # later steps are off-policy
    assert metrics["train/tokens"] == sum(sum(s.mask) for e in episodes for s in e.sequences)
    assert metrics["train/sequence_tokens"] == sum(len(s) for e in episodes for s in e.sequences)
    policy, one = make(mini_batches=1000)
    assert step(policy, one, episodes)["train/updates"] == sum(len(e.sequences) for e in episodes)


def test_the_order_of_rows_is_the_seeds(episodes) -> None:
    after = []
    for seed in (0, 0, 1):
        policy, one = make(mini_batches=3)
        step(policy, one, episodes, seed=seed)
        after.append(flat(policy.model.parameters()))
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])


def test_values_are_clipped_around_those_before_the_update(episodes) -> None:
    shares = {}
    for clip in (0.0, 1e-4):
        policy, one = make("model", epochs=3, mini_batches=1, critic_lr=1e-2, value_clip=clip)
        shares[clip] = step(policy, one, episodes)["losses/value_clipfrac"]
    assert shares[1e-4] > shares[0.0] == 0


def test_adamw_has_its_settings() -> None:
    _, one = make(weight_decay=0.3, adam_eps=1e-5, betas=[0.8, 0.9])
    groups = one.optimizer.param_groups
    assert {(group["eps"], *group["betas"]) for group in groups} == {(1e-5, 0.8, 0.9)}
    assert {group["weight_decay"] for group in groups if group["params"][0].ndim == 2} == {0.3}


def test_warm_up_is_linear_in_optimizer_steps(episodes) -> None:
    policy, one = make(warmup_steps=4, mini_batches=1, actor_lr=1e-4, critic_lr=1e-3)
    rates = [step(policy, one, episodes)["charts/learning_rate"] for _ in range(5)]
    assert rates == pytest.approx([0.25e-4, 0.5e-4, 0.75e-4, 1e-4, 1e-4])


@pytest.mark.parametrize("critic", ["head", "model"])
def test_a_restored_learner_goes_on_as_if_nothing_had_happened(episodes, critic: str) -> None:
    policy, one = make(critic, warmup_steps=4)
    step(policy, one, episodes)
    state, actor = copy.deepcopy(one.state()), copy.deepcopy(policy.model.state_dict())
    step(policy, one, episodes, seed=1)
    other_player, other = make(critic, warmup_steps=4)
    other_player.model.load_state_dict(actor)
    other.load_state(state)
    step(other_player, other, episodes, seed=1)
    assert torch.equal(flat(policy.model.parameters()), flat(other_player.model.parameters()))
    assert torch.equal(flat(one.critic.parameters()), flat(other.critic.parameters()))
    assert one.updates == other.updates == 4


@pytest.mark.parametrize("critic", ["head", "model"])
@pytest.mark.parametrize("critic_only", [False, True])
def test_a_gradient_that_is_not_finite_changes_nothing(episodes, critic: str, critic_only: bool) -> None:
    """The loss may be finite and the critic's gradient not."""
    policy, one = make(critic, mini_batches=1)
    one.critic.head.bias.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))
    before = flat(policy.model.parameters()), flat(one.critic.parameters())
    with pytest.raises(TrainingDiverged, match="gradient"):
        step(policy, one, episodes, critic_only=critic_only)
    assert torch.equal(before[0], flat(policy.model.parameters()))
    assert torch.equal(before[1], flat(one.critic.parameters()))
    assert one.updates == 0
    trained = [*one.actor.parameters(), *one.critic.parameters()]
    assert all(parameter.grad is None for parameter in trained), "the next rollout needs the memory"
