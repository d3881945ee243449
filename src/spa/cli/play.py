"""``spa play``: watch a model play, and what it imagined beside what came. Imports no torch at import time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spa.cli.arguments import Words, config_of
from spa.common.secrets import redact
from spa.common.tables import side_by_side

if TYPE_CHECKING:
    from spa.agent.episode import Episode, Turn


def play(
    words: Words = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A checkpoint, a stage's folder or a hub name. Default: the base model."),
    ] = None,
    worlds: Annotated[int, typer.Option("--worlds", min=1, help="Test worlds to play.")] = 1,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Test worlds to leave out before.")] = 0,
) -> None:
    """Watch a model play test worlds; with agent.planner=lookahead, what it expected of each move beside what came."""
    from spa import api

    words, model = _exported(words, model)
    cfg = config_of(words, "spa play frozen_lake --model runs/a/sft")
    for episode in api.play(cfg, model=model, worlds=worlds, skip=skip):
        print(redact(show_episode(episode)))


def _exported(words: list[str] | None, model: str | None) -> tuple[list[str] | None, str | None]:
    """An exported folder given as NAME stands for its task and itself as the model.

    Raises:
        ValueError: a folder that holds no task.
    """
    from spa.runs.folder import TASK

    if not words or not (folder := Path(words[0]).expanduser()).is_dir():
        return words, model
    if not (folder / TASK).is_file():
        raise ValueError(f"{folder} names no world (no {TASK}): use `spa play NAME --model {folder}`")
    return [str(folder / TASK), f"model={folder}", *words[1:]], model or str(folder)


def show_episode(episode: Episode) -> str:
    """An episode as text: a table a turn, of the states before, imagined (where a planner played) and after."""
    lines = [f"World {episode.seed}"]
    for turn in episode.turns:
        lines += ["", _headline(turn), *side_by_side(_columns(turn))]
    outcome = "won" if episode.success else f"failed: {episode.error}" if episode.error else "not won"
    actions = sum(len(turn.executed) for turn in episode.turns)
    return "\n".join([*lines, "", f"{outcome} after {actions} actions, reward {episode.total_reward:g}", ""])


def _headline(turn: Turn) -> str:
    played = ", ".join(turn.executed) or "nothing that the world understands"
    text = f"Turn {turn.index + 1}: {played}; reward {turn.reward:g}"
    path = turn.imagined.get("path")
    if path:
        plan, first = ", ".join(step["action"] for step in path), path[0]
        expected = f"expected now: reward {first['reward']:g}, probability {first['probability']:.2f}"
        text += f". Planned: {plan}; {expected if first['probability'] else 'no usable prediction'}"
    return text


def _columns(turn: Turn) -> list[tuple[str, str]]:
    columns = [("before", turn.state)]
    path = turn.imagined.get("path")
    if path:
        columns.append(("imagined", path[min(len(turn.executed), len(path)) - 1]["state"]))
    elif turn.prediction is not None:
        columns.append(("predicted", turn.prediction.strip()))
    return [*columns, ("came", turn.next_state)]
