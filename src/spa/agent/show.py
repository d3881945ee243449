"""Episodes as text for a terminal. Imports no torch."""

from __future__ import annotations

from spa.agent.episode import Episode, Turn
from spa.common.tables import side_by_side
from spa.common.text import clean
from spa.envs.states import exact


def show_sample(episode: Episode) -> str:
    """The last turn of an episode and how it ended, for a look at training now and then."""
    lines = [line for turn in episode.turns[-1:] for line in show_turn(turn)]
    return "\n".join([f"World {episode.seed}, {outcome(episode)}; the last turn:", *lines])


def show_turn(turn: Turn) -> list[str]:
    """A headline and a table of the states before, imagined (where a planner played) or predicted, and after."""
    return [_headline(turn), *side_by_side(_columns(turn))]


def outcome(episode: Episode) -> str:
    """``won after 3 actions, reward 1``."""
    result = "won" if episode.success else f"failed: {episode.error}" if episode.error else "not won"
    actions = sum(len(turn.executed) for turn in episode.turns)
    return clean(f"{result} after {actions} actions, reward {episode.total_reward:g}")


def _headline(turn: Turn) -> str:
    played = ", ".join(turn.executed) or "nothing that the world understands"
    text = f"Turn {turn.index + 1}: {played}; reward {turn.reward:g}"
    path = turn.imagined.get("path")
    if path:
        plan, first = ", ".join(step["action"] for step in path), path[0]
        expected = f"expected now: reward {first['reward']:g}, probability {first['probability']:.2f}"
        known = expected if first["probability"] else "no usable prediction"
        if first.get("remembered"):
            known = "seen before"
        text += f". Planned: {plan}; {known}; {turn.imagined['questions']} questions"
    elif turn.prediction:
        text += f". Its prediction is {'right' if exact(turn.prediction, turn.next_state, turn.state) else 'wrong'}"
    return clean(text)


def _columns(turn: Turn) -> list[tuple[str, str]]:
    columns = [("before", turn.state)]
    path = turn.imagined.get("path")
    if path:
        step = path[min(len(turn.executed), len(path)) - 1]
        columns.append(("remembered" if step.get("remembered") else "imagined", step["state"]))
    elif turn.prediction:
        columns.append(("predicted", turn.prediction.strip()))
    return [*columns, ("actual", turn.next_state)]
