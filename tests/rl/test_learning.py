"""The update and the loop around it: what learns, what does not, exact resume."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import World
from spa.common.checkpoints import list_checkpoints
from spa.config.schema import AgentConfig, EnvConfig, VariantConfig
from spa.models.load import load_state
from spa.rl.batch import train_sequences
from spa.rl.critic import Critic
from spa.rl.learner import Learner
from spa.rl.trainer import PPOTrainer, train_ppo
from spa.rl.update import TrainingDiverged, score_tokens, update
from tests.scripted import lake_task, same, tiny_config, tiny_policy

WORLDS = [World(s, str(s)) for s in range(4)]


def learner(policy: Policy, **ppo: object) -> Learner:
    config = tiny_config(**ppo).ppo
    return Learner(policy.model, Critic(config.critic, policy.model), config, 1.0)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def episodes():
    return tiny_policy().play(lake_task(1), WORLDS, samples=4, seed=3)


def improve(episodes, policy=None, *, critic_only=False, times=1, **ppo):
    policy = policy or tiny_policy()
    one = learner(policy, **ppo)
    for _ in range(times):
        metrics = update(one, episodes, policy.chat, rng=np.random.default_rng(0), critic_only=critic_only)
    return policy, one, metrics


def test_recomputed_log_probs_are_those_of_the_sampler(episodes) -> None:
    policy = tiny_policy()
    rows = [row for group in train_sequences(episodes, policy.chat) for row in group]
    sampled = [row.logprobs.copy() for row in rows]
    score_tokens(learner(policy), rows, recompute=True)
    assert max(np.abs(a - row.logprobs).max() for a, row in zip(sampled, rows, strict=True)) < 1e-4


def test_the_first_step_is_on_policy(episodes) -> None:
    _, _, metrics = improve(episodes, mini_batches=1)
    assert metrics["losses/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["losses/clipfrac"] == 0


@pytest.mark.parametrize("critic", ["head", "model"])
def test_padding_and_micro_batches_do_not_matter(episodes, critic: str) -> None:
    """With plain SGD the step is the gradient: Adam would blow rounding up."""
    after = []
    for budget in (64, 100_000):
        policy = tiny_policy()
        one = learner(policy, mini_batches=1, micro_batch_tokens=budget, critic=critic)
        one.optimizer = torch.optim.SGD(
            [{"params": [*one.actor.parameters(), *one.critic.trained()], "lr": 1.0, "peak_lr": 1.0}]
        )
        update(one, episodes, policy.chat, rng=np.random.default_rng(0))
        after.append(torch.cat([p.flatten() for p in (*policy.model.parameters(), *one.critic.parameters())]).detach())
    torch.testing.assert_close(after[0], after[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("critic", ["head", "model"])
def test_critic_only_leaves_the_actor_alone(episodes, critic: str) -> None:
    before = weights(tiny_policy().model)
    policy, one, _ = improve(episodes, critic_only=True, critic=critic, critic_lr=1e-2)
    assert same(before, weights(policy.model))
    assert float(one.critic.head.weight.detach().abs().sum()) > 0


def test_the_entropy_bonus_raises_entropy(episodes) -> None:
    entropies = [improve(episodes, times=4, entropy_coef=c, actor_lr=1e-3)[2]["losses/entropy"] for c in (0.0, 1.0)]
    assert entropies[1] > entropies[0]


def test_a_rewarded_action_becomes_likelier() -> None:
    policy = tiny_policy()
    # Not whitened: once every episode is rewarded alike, whitening would blow the critic's noise up to size 1.
    one = learner(policy, mini_batches=2, actor_lr=1e-4, critic_lr=1e-2, whiten_advantages=False)
    rates = []
    for step in range(12):
        episodes = policy.play(lake_task(1, max_turns=1), WORLDS, samples=12, seed=step)
        for episode in episodes:
            for turn in episode.turns:
                turn.reward = float(turn.actions[:1] == ["Up"])
        rates.append(np.mean([t.reward for e in episodes for t in e.turns]))
        update(one, episodes, policy.chat, rng=np.random.default_rng(step))
    assert np.mean(rates[-3:]) > np.mean(rates[:3]) + 0.3


def train(out, *, resume=False, variant=None, **ppo):
    rows = []
    config = tiny_config(**ppo)

    def log(step: int, metrics: dict[str, float]) -> None:
        rows.append((step, {k: v for k, v in metrics.items() if "time" not in k and "per_second" not in k}))

    variant = variant or VariantConfig("vanilla")
    result = train_ppo(config, variant, "builtin:tiny", out, resume=resume, log=log)
    return weights(Policy.load(config, str(out / result["model"])).model), rows, result


@pytest.mark.parametrize("critic", ["head", pytest.param("model", marks=pytest.mark.slow)])
def test_resume_equals_an_uninterrupted_run_bit_for_bit(tmp_path, critic: str) -> None:
    whole, rows, result = train(tmp_path / "whole", critic=critic)
    train(tmp_path / "cut", critic=critic, steps=2)
    resumed, rest, resumed_result = train(tmp_path / "cut", resume=True, critic=critic)
    assert same(whole, resumed)
    assert rest == [row for row in rows if row[0] > 2]
    assert result == resumed_result
    first, second = (load_state(tmp_path / name / "checkpoints" / "global_step_4") for name in ("whole", "cut"))
    assert first["curriculum"] == second["curriculum"]
    assert same(first["learner"]["critic"], second["learner"]["critic"])


def test_same_seed_same_run(tmp_path) -> None:
    first, rows, _ = train(tmp_path / "a", steps=2)
    second, again, _ = train(tmp_path / "b", steps=2)
    assert same(first, second)
    assert rows == again


def test_what_a_run_leaves(tmp_path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, rows, result = train(
        tmp_path, steps=3, keep_checkpoints=1, log_episodes=2, variant=VariantConfig("spa", "coordinates", True)
    )
    assert [step for step, _ in list_checkpoints(tmp_path)] == [3]
    folder = tmp_path / result["model"]
    assert AutoModelForCausalLM.from_pretrained(folder).config.model_type == "llama"
    assert len(AutoTokenizer.from_pretrained(folder)) == len(tiny_policy().tokenizer)
    assert [step for step, _ in rows] == [0, 1, 2, 3]
    assert [step for step, metrics in rows if "val/pass@1" in metrics] == [0, 2, 3]
    assert any("world_model/coverage" in metrics for _, metrics in rows)
    assert len(list((tmp_path / "episodes").iterdir())) == 3
    assert set(result["worlds"]["train"]).isdisjoint(result["worlds"]["val"])
    assert len(result["worlds"]["train"]) == 6


def trainer(tmp_path, config, task: Task | None = None) -> PPOTrainer:
    policy = Policy.load(config)
    return PPOTrainer(config, policy, task or make_task(config), tmp_path, lambda step, metrics: None)


def test_sampling_that_training_cannot_follow_is_refused(tmp_path) -> None:
    config = tiny_config()
    config.sampling.top_p = 0.9
    with pytest.raises(ValueError, match=r"sampling\.top_p=1"):
        trainer(tmp_path, config)


class Hopeless:
    def reset(self, *, seed=None, options=None):
        return f"world {seed}", {}

    def step(self, action):
        raise RuntimeError("out of order")

    def close(self):
        pass


def test_a_world_that_always_fails_ends_the_run_with_its_reason(tmp_path) -> None:
    config = tiny_config(steps=9, val_every=0, groups=1)
    task = Task(EnvConfig(id=f"{__name__}:Hopeless", tag="H"), AgentConfig(style="terse", window=1))
    with pytest.raises(ValueError, match=r"3 steps in a row.*out of order"):
        trainer(tmp_path, config, task).train()


def test_divergence_names_the_last_good_checkpoint(tmp_path) -> None:
    one = trainer(tmp_path, tiny_config(save_every=1))

    def poison(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            with torch.no_grad():
                one.learner.critic.head.weight.fill_(float("nan"))

    one.on_step = poison
    with pytest.raises(TrainingDiverged, match=r"step 3.*global_step_2"):
        one.train()


def test_a_bad_step_changes_no_weights(episodes) -> None:
    policy = tiny_policy()
    one = learner(policy)
    with torch.no_grad():
        one.critic.head.weight.fill_(float("nan"))
    before = copy.deepcopy(weights(policy.model))
    with pytest.raises(TrainingDiverged):
        update(one, episodes, policy.chat, rng=np.random.default_rng(0))
    assert same(before, weights(policy.model))
