"""An engine with a copy of the weights: pushes, their check, and what training does with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from spa.agent.policy import Policy, make_task
from spa.engines.agreement import OutOfStep, logprob_differences
from spa.engines.transformers import TransformersEngine
from spa.rl.trainer import PPOTrainer
from tests.scripted import CHAT, flat, tiny_config


class Copied(TransformersEngine):
    """Samples with a copy of the model; ``pushes`` says which pushes are done in truth."""

    def __init__(self, model: Any, pad_id: int) -> None:
        super().__init__(copy.deepcopy(model), pad_id)
        self.pushes = iter([True] * 1000)
        self.calls: list[str] = []

    def push(self, model: Any) -> None:
        self.calls.append("push")
        if next(self.pushes):
            self.model.load_state_dict(model.state_dict())

    def sleep(self) -> None:
        self.calls.append("sleep")

    def serve(self, *args: Any, **kwargs: Any) -> None:
        assert self.calls[-1] == "push"
        super().serve(*args, **kwargs)


def copying(**ppo: object) -> Policy:
    policy = Policy.load(tiny_config(**ppo))
    policy.engine = Copied(policy.model, policy.tokenizer.pad_token_id)
    policy.max_logprob_diff = 1e-3
    return policy


def trainer(out, policy: Policy, **ppo: object) -> tuple[PPOTrainer, list[dict[str, float]]]:
    config, rows = tiny_config(**ppo), []
    return PPOTrainer(config, policy, make_task(config), out, lambda step, metrics: rows.append(metrics)), rows


def test_differences_are_those_of_the_weights() -> None:
    policy = copying()
    policy.engine.calls.append("push")
    contexts = [CHAT.opening(None, text) + CHAT.forced_ids for text in "abc"]
    same = logprob_differences(policy.engine, policy.model, contexts, 0.8)
    assert same.shape == (48,)
    assert same.max() < 1e-4
    for parameter in policy.model.parameters():
        parameter.data.mul_(1.05)
    assert policy.model.training is False
    assert logprob_differences(policy.engine, policy.model, contexts, 0.8).mean() > 1e-2


def test_training_plays_with_pushed_weights_and_sleeps_otherwise(tmp_path) -> None:
    policy = copying()
    one, rows = trainer(tmp_path, policy, steps=2, val_every=1)
    one.train()
    assert (
        policy.engine.calls == ["push", "sleep"] * 5
    )  # validation before training, then a step and its validation twice
    assert rows[1]["rollout/logprob_diff_max"] < 1e-4
    assert rows[1]["training/rollout_probs_diff_max"] < 1e-4  # old log-probs are recomputed
    assert "time/push_s" in rows[1]


def test_it_learns_as_with_the_model_itself(tmp_path) -> None:
    after = []
    for name, policy in (("itself", Policy.load(tiny_config())), ("copy", copying())):
        one, _ = trainer(tmp_path / name, policy, steps=2, val_every=0)
        one.train()
        after.append(flat(policy.model.parameters()))
    assert (after[0] - after[1]).abs().max() < 1e-4


def test_a_skipped_push_stops_the_run(tmp_path) -> None:
    policy = copying()
    policy.engine.pushes = iter([True, True, False])
    one, _ = trainer(tmp_path, policy, steps=4, val_every=0)
    with pytest.raises(OutOfStep, match=r"^after a push .* more than engine.max_logprob_diff=0.001: .*transformers.*$"):
        one.train()
    assert one.step == 2


def test_the_limit_is_a_setting(tmp_path) -> None:
    policy = copying()
    policy.max_logprob_diff = 10.0
    policy.engine.pushes = iter([False] * 4)
    trainer(tmp_path, policy, steps=2, val_every=0)[0].train()
