"""Estimates of a PPO step on N GPUs: what takes the time, and what breaks first. Not measured on a GPU.

    python examples/scale/bottlenecks.py

A step is a rollout and an update, one after the other. Change the constants for other GPUs, tasks or models.
"""

from __future__ import annotations

from dataclasses import dataclass

# An H200
FLOPS = 0.4 * 790e12  # of bfloat16 products, at 40% of the peak
BANDWIDTH = 4.8e12  # bytes/s of its memory
MEMORY = 141e9
NVLINK, NETWORK = 300e9, 50e9  # bytes/s for a broadcast within and between nodes
NODE = 8  # GPUs

# A task: 5 turns of at most 400 tokens
LONGEST = 5 * 400  # decode steps of the longest episode; all others wait for it
STEP = 4e-3  # seconds of a decode step besides reading weights and cache
CONTEXT = 700  # tokens, mean over the steps
TRAINED = 1100  # tokens of an episode in the update
KEPT = 1 / 4  # of the episodes are trained on
ROWS, PICKLE = 1.5e-3, 0.5e-3  # seconds of one process an episode: rows and advantages; sending it (both measured)


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    cache: int  # bytes of a token's keys and values in bfloat16

    @property
    def weights(self) -> float:
        return 2 * self.parameters

    def rollout(self, episodes: float) -> float:
        """Seconds with so many episodes on a GPU: every decode step reads the weights and all caches."""
        return LONGEST * (STEP + (self.weights + episodes * CONTEXT * self.cache) / BANDWIDTH)

    def update(self, episodes: float) -> float:
        """Seconds for so many episodes on a GPU: actor and critic, 2 + 4 FLOP a parameter and token, and 2 to recompute."""
        return 2 * 8 * self.parameters * KEPT * episodes * TRAINED / FLOPS

    def states(self, gpus: int) -> float:
        """Bytes on a GPU: weights, gradients and both Adam states of actor and critic in float32, divided within a node."""
        return 2 * 16 * self.parameters / min(gpus, NODE)


MODELS = (Model("1.5B", 1.54e9, 28 * 1024), Model("7B", 7.6e9, 56 * 1024))
CASES = ((1, 256), (8, 256), (64, 256), (512, 16384))


def table() -> str:
    heads = " | ".join(f"{model.name} rollout / update" for model in MODELS)
    lines = [f"| GPUs | episodes | {heads} | one process |", "| ---: | ---: |" + " --- |" * len(MODELS) + " --- |"]
    for gpus, episodes in CASES:
        cells = []
        for model in MODELS:
            full = " (states do not fit)" if model.states(gpus) > MEMORY else ""
            share = episodes / gpus
            cells.append(f"{model.rollout(share):.1f} / {model.update(share):.2g} s{full}")
        cells.append(f"{episodes * (ROWS + PICKLE):.1f} s")
        lines.append(f"| {gpus} | {episodes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def notes() -> str:
    return "\n".join(
        f"{model.name}: states {model.states(1) / 1e9:.0f} GB on one GPU, {model.states(NODE) / 1e9:.1f} GB on each of {NODE}; "
        f"a push of {model.weights / 1e9:.1f} GB {model.weights / NVLINK * 1e3:.0f} ms within a node, "
        f"{model.weights / NETWORK * 1e3:.0f} ms between nodes"
        for model in MODELS
    )


if __name__ == "__main__":
    print(table(), notes(), sep="\n\n")
