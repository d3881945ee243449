"""Records what verl's core_algos compute on small random batches: ``python make_verl.py > verl.json``.

Needs verl 0.9.1 with what ``import verl.trainer.ppo.core_algos`` asks for (torch, transformers < 5.11, tensordict, ray, hydra-core,
orjson, ...), best in a virtual environment of its own; no GPU. The tests read ``verl.json`` and need none of this.

Matrices are lists of rows (B, T), padding and holes (observation tokens) included; ``mask`` says which entries count. Results at
places that do not count are left as verl leaves them.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import verl
import verl.trainer.ppo.core_algos as core
import verl.utils.torch_functional as functional

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
CASES: list[dict[str, Any]] = []


def plain(value: Any) -> Any:
    """Tensors and numbers as JSON, 12 significant digits."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return float(f"{value:.12g}") if isinstance(value, float) else value


def record(function: str, arguments: dict[str, Any], result: Any) -> None:
    CASES.append({"function": function, "arguments": plain(arguments), "result": plain(result)})


def batch(rng: np.random.Generator) -> dict[str, Any]:
    """Six sequences in groups of three, two and one; the second group scores alike. Rewards stand on a few counted tokens."""
    lengths = rng.integers(2, 10, size=6)
    mask = np.zeros((6, 9))
    for row, length in enumerate(lengths):
        mask[row, :length] = rng.random(length) < 0.7
        mask[row, rng.integers(length)] = 1
    rewards = np.zeros((6, 9))
    for row in range(6):
        counted = np.flatnonzero(mask[row])
        rewards[row, counted[-1]] = 1.0 if row in (3, 4) else rng.normal()
        if row not in (3, 4) and len(counted) > 1:
            rewards[row, counted[0]] = rng.normal()
    values = rng.normal(size=(6, 9))
    return {
        "rewards": torch.tensor(rewards),
        "values": torch.tensor(values),
        "mask": torch.tensor(mask),
        "group": np.array([0, 0, 0, 1, 1, 2]),
    }


def advantages(rng: np.random.Generator) -> None:
    for gamma, lam in ((1.0, 1.0), (0.95, 0.9), (1.0, 0.95), (0.9, 1.0)):
        one = batch(rng)
        got, returns = core.compute_gae_advantage_return(one["rewards"], one["values"], one["mask"], gamma, lam)
        record("gae", {**one, "gamma": gamma, "lam": lam}, {"advantages": got, "returns": returns})
    for divide in (True, False):
        for _ in range(2):
            one = batch(rng)
            got, _ = core.compute_grpo_outcome_advantage(
                one["rewards"].clone(), one["mask"], one["group"], norm_adv_by_std_in_grpo=divide
            )
            record("grpo" if divide else "dr_grpo", one, {"advantages": got})
    for name, function in (
        ("rloo", core.compute_rloo_outcome_advantage),
        ("reinforce_plus_plus_baseline", core.compute_reinforce_plus_plus_baseline_outcome_advantage),
    ):
        for _ in range(2):
            one = batch(rng)
            got, _ = function(one["rewards"].clone(), one["mask"], one["group"])
            record(name, one, {"advantages": got})
    for gamma in (1.0, 0.9):
        one = batch(rng)
        got, returns = core.compute_reinforce_plus_plus_outcome_advantage(
            one["rewards"].clone(), one["mask"], config=SimpleNamespace(gamma=gamma)
        )
        record("reinforce_plus_plus", {**one, "gamma": gamma}, {"advantages": got, "returns": returns})
    for _ in range(2):
        one = batch(rng)
        record("masked_whiten", one, functional.masked_whiten(one["values"], one["mask"]))


class Config(dict):  # type: ignore[type-arg]
    """What ``compute_policy_loss_vanilla`` asks of its config."""

    global_batch_info: dict[str, Any] = {}
    clip_ratio = 0.2

    def __getattr__(self, name: str) -> Any:
        return self[name]


def losses(rng: np.random.Generator) -> None:
    for aggregation in AGGREGATIONS:
        for low, high, dual in ((0.2, 0.28, 3.0), (0.1, 0.4, 1.5)):
            one = batch(rng)
            old = torch.tensor(-rng.random((6, 9)) * 2)
            new = (old + torch.tensor(rng.uniform(-2, 2, (6, 9)))).requires_grad_()
            advantage = torch.tensor(rng.normal(size=(6, 9)))
            config = Config(clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual)
            loss, metrics = core.compute_policy_loss_vanilla(old, new, advantage, one["mask"], aggregation, config)
            loss.backward()
            given = {"old": old, "new": new.detach(), "advantages": advantage, "mask": one["mask"]}
            given |= {"aggregation": aggregation, "low": low, "high": high, "dual": dual}
            record("policy_loss", given, {"loss": loss.item(), "gradient": new.grad, **metrics})
        one = batch(rng)
        old = torch.tensor(rng.normal(size=(6, 9)))
        new = torch.tensor(rng.normal(size=(6, 9))).requires_grad_()
        returns = torch.tensor(rng.normal(size=(6, 9)))
        loss, clipped = core.compute_value_loss(new, returns, old, one["mask"], 0.5, aggregation)
        loss.backward()
        given = {"old": old, "new": new.detach(), "returns": returns, "mask": one["mask"], "aggregation": aggregation}
        record("value_loss", given, {"loss": loss.item(), "gradient": new.grad, "clipfrac": clipped.item()})
        matrix = torch.tensor(rng.normal(size=(6, 9)))
        record(
            "agg_loss",
            {"matrix": matrix, "mask": one["mask"], "aggregation": aggregation},
            core.agg_loss(matrix, one["mask"], aggregation).item(),
        )
    for name in ("k1", "k2", "k3"):
        new = torch.tensor(-rng.random(20) * 4).requires_grad_()
        reference = torch.tensor(-rng.random(20) * 4)
        penalty = core.kl_penalty(new, reference, name)
        penalty.sum().backward()
        record(
            "kl_penalty",
            {"new": new.detach(), "reference": reference, "estimator": name},
            {"penalty": penalty.detach(), "gradient": new.grad},
        )
    logits = torch.tensor(rng.normal(size=(6, 9, 5)))
    one = batch(rng)
    record(
        "entropy",
        {"logits": logits, "mask": one["mask"]},
        {
            "entropy": functional.entropy_from_logits(logits),
            "loss": core.compute_entropy_loss(logits, one["mask"]).item(),
        },
    )


def main() -> None:
    rng = np.random.default_rng(0)
    advantages(rng)
    losses(rng)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in CASES)
    sys.stdout.write(f'{{"verl": "{verl.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
