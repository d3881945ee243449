"""An update on several ranks gives the numbers of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spa.agent.policy import Policy
from spa.rl import update as ppo
from spa.rl.learner import Learner
from spa.scale.fsdp import on_main_cpu
from tests.rl import test_golden as golden
from tests.scale.tools import in_ranks
from tests.scripted import tiny_policy

pytestmark = pytest.mark.scale
LAYOUTS = {"2": (2, 0), "3": (3, 0), "4": (4, 0), "2x2": (4, 2)}  # ranks, shards


CRITIC = "ppo, a critic of its own"


def updated(variant: str, **more: Any) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The metrics of two updates and the weights after them."""
    learners: list[Learner] = []

    class Kept(Learner):
        def __post_init__(self) -> None:
            super().__post_init__()
            learners.append(self)

    golden.Learner = Kept  # type: ignore[misc]
    ppo.needs_recompute = lambda learner: True
    golden.VARIANTS = {**golden.VARIANTS, variant: {**golden.VARIANTS.get(variant, {}), **more}}
    rows = golden.run(variant)
    weights = learners[0].actor.state_dict()
    if learners[0].critic is not None:
        weights |= {f"critic.{name}": value for name, value in learners[0].critic.state_dict().items()}
    return rows, {name: value.numpy() for name, value in on_main_cpu(weights).items()}


def checkpointed() -> Policy:
    policy = tiny_policy()
    policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def assert_equal(many: Any, one: Any) -> None:
    (rows, weights), (expected_rows, expected) = many, one
    for got, wanted in zip(rows, expected_rows, strict=True):
        for name, value in wanted.items():
            # Estimates of the KL divergence are means of small differences of log-probs; the smallest return is that of a
            # single token, whose value differs as the weights do.
            near = {"rel": 5e-5} if "approx_kl" in name else {"abs": 2e-6} if name == "critic/returns/min" else {}
            assert got[name] == pytest.approx(value, **{"rel": 1e-5, "abs": 5e-7, **near}), name
    assert weights.keys() == expected.keys()
    assert max(float(np.abs(weights[name] - expected[name]).max()) for name in weights) <= 1e-5


def all_updated() -> dict[str, Any]:
    return {variant: updated(variant) for variant in golden.VARIANTS}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return in_ranks(all_updated, 1)[0]


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_golden_updates(layout: str, alone: dict[str, Any]) -> None:
    together = in_ranks(all_updated, *LAYOUTS[layout])[0]
    for variant, one in alone.items():
        assert_equal(together[variant], one)


def test_gradient_checkpointing(monkeypatch: pytest.MonkeyPatch, alone: dict[str, Any]) -> None:
    monkeypatch.setattr(golden, "tiny_policy", checkpointed)
    assert_equal(in_ranks(lambda: updated(CRITIC), 2)[0], alone[CRITIC])


def test_bfloat16(alone: dict[str, Any]) -> None:
    """Gathered weights and products in bfloat16 are as near to float32 as that type is."""
    rows, weights = in_ranks(lambda: updated(CRITIC, precision="bfloat16"), 2)[0]
    expected_rows, expected = alone[CRITIC]
    for got, wanted in zip(rows, expected_rows, strict=True):
        assert got == {name: pytest.approx(value, rel=0.1, abs=0.02) for name, value in wanted.items()}
    assert 0 < max(float(np.abs(weights[name] - expected[name]).max()) for name in weights) <= 1e-2
