"""Two updates on fixed episodes give the numbers that they gave before: a refactor changes none of them.

After a change that is meant to change them: ``python -m tests.rl.test_golden`` writes ``golden_update.json`` anew.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spa.agent.rollout import rollout
from spa.agent.worlds import World
from spa.rl import update as ppo
from spa.rl.auxiliary import world_model_examples
from spa.rl.critic import make_critic
from spa.rl.learner import Learner
from spa.rl.reference import Reference
from spa.rl.update import update
from tests.scripted import Scripted, lake_task, tiny_config, tiny_policy

# Counts of values that equal each other but for rounding.
SHAKY = ("rollout_probs_diff_mean", "rollout_probs_diff_max", "value_clipfrac")
GOLDEN = Path(__file__).with_name("golden_update.json")
TEXTS = (
    "I go.</think><answer>Up || Right</answer>",
    "<observation>P__\n</observation>so<prediction>_P_</prediction></think><answer>Down</answer>",
    "no format at all",
    "</think><answer>Left || Left || Down</answer>",
)
VARIANTS = {
    "ppo, a critic of its own": {"critic": "model", "lam": 0.95, "gamma": 0.99},
    "ppo, shared trunk, two epochs": {"critic": "head", "epochs": 2, "mini_batches": 3, "entropy_coef": 0.01},
    "turn_gae, whole episode": {"estimator": "turn_gae", "window": 0},
    "bi_level_gae": {"estimator": "bi_level_gae", "high_level_gamma": 0.9},
    "grpo with kl": {
        "estimator": "grpo",
        "loss_aggregation": "seq-mean-token-mean",
        "kl_loss_coef": 0.1,
        "reward_placement": "end",
        "reward_norm": "asym_clip",
    },
    "reinforce_plus_plus, kl in reward": {"estimator": "reinforce_plus_plus", "kl_reward_coef": 0.1},
    "auxiliary loss, states rewarded": {"world_model_coef": 0.5, "prediction_reward": 0.5, "state_match": "cells"},
    "everything is trained": {"loss_mask": "all", "mini_batches": 1},
}


def run(variant: str) -> list[dict[str, float]]:
    settings = {"actor_lr": 1e-4, "critic_lr": 1e-3, **VARIANTS[variant]}
    task = lake_task(settings.pop("window", 1))
    config = tiny_config(**settings).ppo
    policy = tiny_policy()
    # Not ``policy.play``, which divides the episodes among ranks: what is scripted depends on who else plays.
    engine, worlds = Scripted(lambda i: TEXTS[i % len(TEXTS)]), [World(s, str(s)) for s in range(3)]
    episodes = rollout(engine, policy.chat, task, worlds, policy.sampling, seed=0, group_size=4)
    reference = Reference(copy.deepcopy(policy.model)) if config.needs_reference else None
    one = Learner(policy.model, make_critic(config, policy.model), config, 1.0, reference)
    told = replace(task, agent=replace(task.agent, prompt="world_model"))
    examples = []
    if config.world_model_coef:
        rng = np.random.default_rng(0)
        examples = world_model_examples(episodes, [told] * len(episodes), policy.chat, fraction=0.5, rng=rng)
    rows = []
    for seed in range(2):
        metrics = update(one, episodes, policy.chat, rng=np.random.default_rng(seed), world_model=examples)
        rows.append({name: value for name, value in sorted(metrics.items()) if not name.endswith(SHAKY)})
    return rows


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_numbers_of_an_update_stay(variant: str, monkeypatch) -> None:
    monkeypatch.setattr(ppo, "needs_recompute", lambda learner: True)  # the scripted log-probs are not the model's
    assert_golden(variant)


def assert_golden(variant: str) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert set(golden) == set(VARIANTS)
    for got, expected in zip(run(variant), golden[variant], strict=True):
        assert got == {name: pytest.approx(value, rel=2e-3, abs=2e-5) for name, value in expected.items()}


def main() -> None:
    ppo.needs_recompute = lambda learner: True
    data = {variant: run(variant) for variant in VARIANTS}
    shown = {v: [{n: float(f"{x:.7g}") for n, x in row.items()} for row in rows] for v, rows in data.items()}
    GOLDEN.write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
