"""A world whose steps take time: the rollout of a batch with all worlds in this process, and each in its own (env.processes).

    python benchmarks/slow_world.py                        # 8 groups of 4, 50 ms a step, as many processes as episodes
    python benchmarks/slow_world.py --step 0.2 --processes 8

The built-in model plays FrozenLake whose step sleeps. Both rollouts must give the same episodes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from spa.agent.episode import Episode
from spa.agent.policy import Policy, make_task
from spa.agent.worlds import WorldSource
from spa.config.load import load_config
from spa.envs.frozen_lake.world import FrozenLake


class SlowLake(FrozenLake):
    """FrozenLake whose step takes ``seconds`` more."""

    def __init__(self, seconds: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        self.seconds = seconds

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return super().step(action)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", type=float, default=0.05, help="seconds that a step takes")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--processes", type=int, default=0, help="0: as many as there are episodes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    episodes = options.groups * options.group_size
    processes = options.processes or episodes
    world = ["env.id=slow_world:SlowLake", f"+env.settings.seconds={options.step}", "sampling.processes=1"]
    cfg = load_config("frozen_lake", [*world, "model.path=builtin:tiny"])
    policy, task = Policy.load(cfg), make_task(cfg)
    worlds = WorldSource(task, "train", cfg.seeds.train).take(options.groups)

    def play(count: int) -> tuple[list[Episode], float]:
        own = dataclasses.replace(task, env=dataclasses.replace(task.env, processes=count))
        begun = time.perf_counter()
        played = policy.play(own, worlds, samples=options.group_size, seed=0)
        return played, time.perf_counter() - begun

    (one, slow), (other, fast) = play(0), play(processes)
    # Log-probs are rounded differently in another batch.
    assert [episode.turns for episode in one] == [episode.turns for episode in other], "the episodes differ"
    steps = sum(len(turn.executed) for episode in one for turn in episode.turns)
    print(f"{episodes} episodes, {steps} steps of {options.step:g} s: {steps * options.step:.1f} s one after the other")
    print(
        f"in this process {slow:.1f} s, in {processes} processes {fast:.1f} s: {slow / fast:.1f} times as fast, same episodes"
    )
    if options.json:
        found = {"episodes": episodes, "steps": steps, "step_s": options.step, "processes": processes}
        options.json.write_text(json.dumps({**found, "here_s": slow, "processes_s": fast}, indent=1) + "\n")


if __name__ == "__main__":
    main()
