"""Estimators and losses equal verl's core_algos (recorded in ``oracle/verl.json``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PretrainedConfig

from spa.config.overrides import choices
from spa.config.schema import PPOConfig
from spa.models.forward import token_logprobs
from spa.rl.advantages import estimate, whiten
from spa.rl.batch import TrainSequence
from spa.rl.losses import kl_penalty, policy_loss, token_weights, value_loss
from tests.rl.oracle import cases
from tests.rl.tools import tokens

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


def episodes(given: dict[str, Any]) -> list[TrainSequence]:
    """Of the counted tokens alone: holes and padding are no steps of time."""
    out = []
    for rewards, values, mask, group in zip(*(given[n] for n in ("rewards", "values", "mask", "group")), strict=True):
        kept = np.flatnonzero(mask)
        out.append(tokens(np.array(rewards)[kept], np.array(values)[kept], [0] * len(kept), group))
    return out


@pytest.mark.parametrize(
    "name", ["gae", "grpo", "dr_grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
)
def test_estimators(name: str) -> None:
    for given, result in cases(name):
        config = PPOConfig(estimator=name, gamma=given.get("gamma", 1.0), lam=given.get("lam", 1.0))
        pairs = estimate(episodes(given), config)
        for row, (advantages, returns) in enumerate(pairs):
            kept = np.flatnonzero(given["mask"][row])
            # verl adds 1e-8 under a square root and 1e-8 to a count; GRPO's statistics are float32 there.
            np.testing.assert_allclose(advantages, np.array(result["advantages"][row])[kept], rtol=1e-6, atol=1e-6)
            if "returns" in result:
                np.testing.assert_allclose(returns, np.array(result["returns"][row])[kept], **TIGHT)


def test_whitening() -> None:
    for given, result in cases("masked_whiten"):
        kept = [np.flatnonzero(mask) for mask in given["mask"]]
        arrays = whiten([np.array(row)[k] for row, k in zip(given["values"], kept, strict=True)])
        for row, array in enumerate(arrays):
            np.testing.assert_allclose(array, np.array(result[row])[kept[row]], rtol=1e-7, atol=1e-7)


def flat(matrix: Any, mask: Any) -> Tensor:
    """The counted entries, row by row."""
    return torch.tensor(matrix, dtype=torch.float64)[torch.tensor(mask) > 0]


def weights(given: dict[str, Any]) -> Tensor:
    lengths = [int(sum(row)) for row in given["mask"]]
    # verl's constant is the width of the matrix unless it is told another.
    each = token_weights(lengths, given["aggregation"], horizon=len(given["mask"][0]))
    return torch.tensor([w for w, n in zip(each, lengths, strict=True) for _ in range(n)], dtype=torch.float64)


def test_aggregation() -> None:
    assert {given["aggregation"] for given, _ in cases("agg_loss")} == set(choices(PPOConfig, "loss_aggregation"))
    for given, result in cases("agg_loss"):
        total = (weights(given) * flat(given["matrix"], given["mask"])).sum()
        assert float(total) == pytest.approx(result, rel=1e-7)


def test_policy_loss() -> None:
    lower = 0.0
    for given, result in cases("policy_loss"):
        new, old, advantages = (flat(given[name], given["mask"]) for name in ("new", "old", "advantages"))
        new.requires_grad_()
        loss, parts = policy_loss(
            new, old, advantages, clip_low=given["low"], clip_high=given["high"], dual_clip=given["dual"]
        )
        total = (weights(given) * loss).sum()
        total.backward()
        assert float(total.detach()) == pytest.approx(result["loss"], rel=1e-7)
        torch.testing.assert_close(new.grad, flat(result["gradient"], given["mask"]), rtol=1e-6, atol=1e-9)
        for ours, theirs in (
            ("clipfrac", "pg_clipfrac"),
            ("clipfrac_lower", "pg_clipfrac_lower"),
            ("old_approx_kl", "ppo_kl"),
        ):
            assert float(parts[ours].mean()) == pytest.approx(result[f"actor/{theirs}"], rel=1e-6)
        lower += result["actor/pg_clipfrac_lower"]
    assert lower > 0  # the dual clip was at work somewhere


def test_value_loss() -> None:
    for given, result in cases("value_loss"):
        new, old, returns = (flat(given[name], given["mask"]) for name in ("new", "old", "returns"))
        new.requires_grad_()
        loss, clipped = value_loss(new, old, returns, 0.5)
        total = (weights(given) * loss).sum()
        total.backward()
        assert float(total.detach()) == pytest.approx(result["loss"], rel=1e-7)
        torch.testing.assert_close(new.grad, flat(result["gradient"], given["mask"]), rtol=1e-6, atol=1e-9)
        assert float(clipped.mean()) == pytest.approx(result["clipfrac"], rel=1e-6)


def test_kl_penalty() -> None:
    assert {given["estimator"] for given, _ in cases("kl_penalty")} == {"k1", "k2", "k3"}
    for given, result in cases("kl_penalty"):
        new = torch.tensor(given["new"], dtype=torch.float64, requires_grad=True)
        penalty = kl_penalty(new, torch.tensor(given["reference"], dtype=torch.float64), given["estimator"])
        penalty.sum().backward()
        torch.testing.assert_close(penalty.detach(), torch.tensor(result["penalty"], dtype=torch.float64), **TIGHT)
        torch.testing.assert_close(new.grad, torch.tensor(result["gradient"], dtype=torch.float64), **TIGHT)


class Head:
    """A model whose logits are its hidden states."""

    config = PretrainedConfig()

    def get_output_embeddings(self) -> torch.nn.Linear:
        linear = torch.nn.Linear(5, 5, bias=False)
        with torch.no_grad():
            linear.weight.copy_(torch.eye(5))
        return linear


def test_entropy() -> None:
    for given, result in cases("entropy"):
        logits = torch.tensor(given["logits"]).flatten(0, 1)
        _, entropy = token_logprobs(Head(), logits, torch.zeros(len(logits), dtype=torch.long), entropy=True)
        assert entropy is not None
        torch.testing.assert_close(entropy.detach(), torch.tensor(result["entropy"]).flatten(), rtol=1e-5, atol=1e-6)
        kept = entropy.detach()[torch.tensor(given["mask"]).flatten() > 0]
        assert float(kept.mean()) == pytest.approx(result["loss"], rel=1e-5)
