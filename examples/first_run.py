"""The recipe from Python: trains plain RL and SPA in a small world, compares them and looks at an episode.

python examples/first_run.py
"""

import sys

import spa


def main(*settings: str) -> None:
    """Runs the comparison with ``settings`` over the example's."""
    run = spa.run("frozen_lake", "selfplay.groups=48", "ppo.steps=10", "eval.worlds=64", *settings)
    print(run.table())
    for row in run.metrics("spa")[-3:]:
        print(row["step"], row.get("train/success"))
    episode = run.episodes("spa")[0]
    print(episode)
    print(episode.turns[0].state, episode.turns[0].response, episode.turns[0].next_state, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
