"""verl's and RAGEN's way at the original's settings, in plain torch: see benchmarks/ppo.py."""

from __future__ import annotations

import copy
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

Rows = tuple[list[list[int]], list[dict[str, Any]]]


class Original:
    """Actor and critic; ``ragged`` leaves the padding out."""

    def __init__(self, folder: str, ragged: bool = False, *, actor: Any = None) -> None:
        self.actor = actor
        if actor is None:
            self.actor = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.ragged = ragged
        self.critic = copy.deepcopy(self.actor.base_model)
        self.head = torch.nn.Linear(self.actor.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.critic_parameters = [*self.critic.parameters(), *self.head.parameters()]
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), lr=1e-5, weight_decay=0.01)
        self.critic_optimizer = torch.optim.AdamW(self.critic_parameters, lr=1e-5, weight_decay=0.01)

    def batch(self, episodes: Sequence[dict[str, Any]]) -> Rows:
        """Rows by episode, each left-padded to the longest; ``mask`` marks the sampled tokens, ``reward`` the episode's score."""
        longest = max(len(s["ids"]) for e in episodes for s in e["sequences"])
        rows, members = [], []
        for episode in episodes:
            score = sum(turn["reward"] + turn["penalty"] for turn in episode["turns"])
            members.append(list(range(len(rows), len(rows) + len(episode["sequences"]))))
            for number, sequence in enumerate(episode["sequences"]):
                size = len(sequence["ids"])
                padding = 0 if self.ragged else longest - size
                ids = torch.tensor([[0] * padding + sequence["ids"]])
                attention = torch.tensor([[0] * padding + [1] * size])
                mask = torch.tensor([0] * padding + sequence["mask"]).float()[1:]
                reward = torch.zeros(padding + size - 1)
                if number + 1 == len(episode["sequences"]):
                    reward[mask.nonzero()[-1]] = score
                positions = (attention.cumsum(-1) - 1).clamp(min=0)
                inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": positions}
                rows.append({"inputs": inputs, "mask": mask, "reward": reward})
        return members, rows

    def token_logprobs(self, row: dict[str, Any]) -> tuple[Tensor, Tensor]:
        logits = self.actor(**row["inputs"], use_cache=False).logits[0, :-1].float()
        logprobs = logits.log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return logprobs.gather(-1, row["inputs"]["input_ids"][0, 1:, None]).squeeze(-1), entropy

    def values(self, row: dict[str, Any]) -> Tensor:
        return self.head(self.critic(**row["inputs"], use_cache=False).last_hidden_state[0, :-1]).squeeze(-1)

    def update(self, members: list[list[int]], rows: list[dict[str, Any]]) -> dict[str, float]:
        with torch.no_grad():
            for row in rows:
                row["old"] = self.token_logprobs(row)[0]
            for row in rows:
                row["values"] = self.values(row)
        for indices in members:  # GAE with gamma = lambda = 1 over the sampled tokens of an episode
            running = next_value = 0.0
            for index in reversed(indices):
                row = rows[index]
                row["advantages"], row["returns"] = torch.zeros_like(row["values"]), torch.zeros_like(row["values"])
                for t in row["mask"].nonzero().flatten().tolist()[::-1]:
                    value = float(row["values"][t])
                    running += float(row["reward"][t]) + next_value - value
                    next_value = value
                    row["advantages"][t], row["returns"][t] = running, running + value
        flat = torch.cat([row["advantages"][row["mask"] > 0] for row in rows])
        for row in rows:
            row["advantages"] = (row["advantages"] - flat.mean()) * torch.rsqrt(flat.var() + 1e-8)
        count = len(flat)
        sums = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0}
        self.critic_optimizer.zero_grad()
        for row in rows:
            predicted = self.values(row)
            near = row["values"] + (predicted - row["values"]).clamp(-0.5, 0.5)
            error = torch.maximum((predicted - row["returns"]) ** 2, (near - row["returns"]) ** 2)
            loss = 0.5 * (error * row["mask"]).sum() / count
            loss.backward()
            sums["value_loss"] += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.critic_parameters, 1.0)
        self.critic_optimizer.step()
        self.actor_optimizer.zero_grad()
        for row in rows:
            logprobs, entropy = self.token_logprobs(row)
            ratio = (logprobs - row["old"]).exp()
            clipped = torch.maximum(-row["advantages"] * ratio, -row["advantages"] * ratio.clamp(0.8, 1.28))
            lower = torch.minimum(clipped, -row["advantages"] * 3.0)
            losses = torch.where(row["advantages"] < 0, lower, clipped)
            policy, bonus = (losses * row["mask"]).sum() / count, (entropy * row["mask"]).sum() / count
            (policy - 0.001 * bonus).backward()
            sums["policy_loss"] += float(policy.detach())
            sums["entropy"] += float(bonus.detach())
        torch.nn.utils.clip_grad_norm_(self.actor.parameters(), 1.0)
        self.actor_optimizer.step()
        return sums


def main() -> None:
    peer, data, folder, updates, threads = sys.argv[1:6]
    torch.set_num_threads(int(threads))
    clock = time.process_time if int(threads) == 1 else time.perf_counter
    original = Original(folder, peer == "original-ragged")
    episodes = [json.loads(line) for line in Path(data).read_text(encoding="utf-8").splitlines()]
    members, rows = original.batch(episodes)
    metrics = original.update(members, rows)
    started = clock()
    for _ in range(int(updates)):
        original.update(members, rows)
    seconds = clock() - started
    tokens = sum(int(row["inputs"]["attention_mask"].sum()) for row in rows)
    print(
        json.dumps(
            {
                "per_second": tokens * int(updates) / seconds,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "before_mib": original.before / 1024,
                **metrics,
            }
        )
    )


if __name__ == "__main__":
    main()
