"""How many of the actions that practice teaches are right: on a shortest way of the true world, by depth of imagination.

    python scripts/plan_labels.py RUN                                                    # over stage 2 of the variant plan
    python scripts/plan_labels.py RUN --model RUN/practice-plan/round_2/world --worlds 200 --min-probability 0.5

Of training worlds that can be reset to a state (Sokoban, FrozenLake without slipping), in style terse. The true world only judges.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from spa.agent.policy import Policy, make_task
from spa.agent.worlds import WorldSource
from spa.common.progress import set_quiet
from spa.config.seeds import first_seed
from spa.config.variants import variant_config
from spa.envs import TextEnv, make_env
from spa.planning.world_model import WorldModel
from spa.runs.folder import RunFolder
from spa.runs.products import world_model_of
from spa.runs.stage import model_of
from spa.sft.practice import lesson_rows

FAR = 12  # actions within which a state counts as solvable


def judge_of(env: TextEnv, actions: tuple[str, ...]) -> Callable[[str, str], str]:
    """What an action taught in a state is in the true world: ``optimal``, ``detour``, ..."""

    @lru_cache(None)
    def step(state: str, action: str) -> tuple[str, bool, bool]:
        env.reset(seed=0, options={"state": state})
        after, _, ended, _, info = env.step(action)
        return after, ended, bool(info["success"])

    @lru_cache(None)
    def distance(state: str) -> float:
        seen, layer = {state}, [state]
        for number in range(1, FAR + 1):
            following = []
            for after, ended, won in (step(here, action) for here in layer for action in actions):
                if won:
                    return number
                if not ended and after not in seen:
                    seen.add(after)
                    following.append(after)
            layer = following
        return float("inf")

    def judge(state: str, action: str) -> str:
        try:
            best = distance(state)
            after, ended, won = step(state, action)
        except (ValueError, RuntimeError):
            return "no state of the world"
        if best > FAR:
            return "in an unsolvable state"
        if (won and best == 1) or (not ended and distance(after) == best - 1):
            return "optimal"
        return "dead end" if ended or distance(after) > FAR else "detour"

    return judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--variant", default="plan")
    parser.add_argument("--model")
    parser.add_argument("--worlds", type=int, default=200)
    parser.add_argument("--min-probability", type=float)
    args = parser.parse_args()

    set_quiet(True)
    run = RunFolder(args.run)
    variant = run.variant(args.variant)
    cfg = variant_config(run.config(), variant)
    model = model_of(args.model or world_model_of(variant, args.run), "--model")
    planner = dataclasses.replace(cfg.planner, values=False)
    if args.min_probability is not None:
        planner = dataclasses.replace(planner, min_probability=args.min_probability)
    task = make_task(cfg, state_format=cfg.selfplay.state_format, prompt="base")
    worlds = WorldSource(task, "train", first_seed(cfg.seeds, "train"), unique=True).take(args.worlds)
    with closing(Policy.load(cfg, model)) as policy:
        world_model = WorldModel(policy, task, samples=planner.samples, proposals=planner.proposals, seed=cfg.seeds.run)
        lessons = lesson_rows(world_model, task, worlds, planner, whole=cfg.practice.whole)
    judge = judge_of(make_env(cfg.env.id, **cfg.env.settings), world_model.actions)
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for row in lessons.plans:
        state = row.prompt[-1]["content"].rsplit("\n", 2)[0]
        found[row.extra["turn"]][judge(state, row.extra["executed"][0])] += 1
    total = sum(found.values(), Counter())
    print(f"{lessons.solved} of {len(worlds)} starts solved, {total.total()} rows")
    print(", ".join(f"{name} {count / total.total():.1%}" for name, count in total.most_common()))
    for depth, counts in sorted(found.items()):
        print(f"depth {depth}: {counts.total()} rows, optimal {counts['optimal'] / counts.total():.1%}")


if __name__ == "__main__":
    main()
