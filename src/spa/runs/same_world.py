"""Whether a world is still the one that a run's stage 1 was played in: its code is not part of the run's config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spa.agent.episode import read_episodes
from spa.agent.task import Task
from spa.agent.worlds import content_of
from spa.config.schema import Config
from spa.envs.checked import WorldError


def changed_world(source: Config, selfplay: Path) -> str:
    """A note if the first world of stage 1 begins otherwise now; "" if it does not, or if none was played.

    Args:
        source: the config of that stage.
        selfplay: its folder.
    """
    if not (file := selfplay / "episodes.jsonl").is_file():
        return ""
    played = next((each for each in read_episodes(file) if each.turns), None)
    if played is None:
        return ""
    task = Task(replace(source.env, state_format=source.selfplay.state_format), source.agent)
    env = task.make_env()
    try:
        state, info = env.reset(seed=played.seed, options={"noise_seed": played.noise_seed})
    except WorldError:  # which the stage itself reports
        return ""
    finally:
        env.close()
    if (state, content_of(state, info)) == (played.turns[0].state, played.content):
        return ""
    return (
        f"note: world {task.env.id!r} has changed since {selfplay} was played: seed {played.seed} begins otherwise, so stages 1 "
        "and 2 are of another world than what follows; generate into a new folder unless this is meant (spa verify says more)"
    )
