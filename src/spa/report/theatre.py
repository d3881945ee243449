"""The episode theatre's data: which episodes are embedded, and how the page's script gets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from spa.agent.episode import Episode, Turn
from spa.envs.states import bare, exact
from spa.evaluate.roles import MAIN_VARIANTS
from spa.report.boards import Alphabet
from spa.report.charts import number
from spa.report.data import VariantReport
from spa.report.turns import LONGEST, choose_episodes, cut

TEST, PREDICTED, TRAINING = "test", "test, with predictions", "training"
BUDGET = 110_000  # characters of embedded data; the same episodes as text take somewhat more

Decode = Callable[[int], str]
"""A token's text."""


@dataclass(frozen=True)
class Scene:
    """An episode of the theatre: ``step`` is the PPO step of a training episode."""

    id: str
    variant: str
    split: str
    step: int | None
    episode: Episode


def split_of(episode: Episode) -> str:
    return PREDICTED if episode.probe else TEST


def choose_scenes(variants: Mapping[str, VariantReport], limit: int) -> list[Scene]:
    """At most ``limit`` test and ``limit`` training episodes per variant.

    The worlds are those that ``choose_episodes`` takes for the recipe's variant (the last, without one), successes and
    failures in turn; the others show the same worlds, so that they can be compared, and more once it shows all of its own.
    """
    played = [name for name, report in variants.items() if report.episodes]
    leader = next((name for name in MAIN_VARIANTS if name in played), played[-1] if played else "")
    chosen = choose_episodes(variants[leader].episodes, limit) if leader else []
    order = {_world(episode): place for place, episode in reversed(list(enumerate(chosen)))}
    scenes: list[Scene] = []
    for name in sorted(variants, key=lambda name: name != leader):  # the page opens with the first
        report = variants[name]
        same = sorted((e for e in report.episodes if _world(e) in order), key=lambda e: order[_world(e)])
        shown = same[:limit]
        if not same or len(chosen) == len(variants[leader].episodes):
            others = [episode for episode in report.episodes if _world(episode) not in order]
            shown += choose_episodes(others, limit - len(shown))
        shown = sorted(shown, key=lambda episode: split_of(episode) != PREDICTED)
        scenes += [_scene(name, split_of(e), None, e) for e in shown]
        scenes += [_scene(name, TRAINING, step, e) for step, e in report.training[:limit]]
    return scenes


def _world(episode: Episode) -> tuple[int, bool]:
    return episode.seed, episode.probe


def _scene(variant: str, split: str, step: int | None, episode: Episode) -> Scene:
    where = f"step{step}" if step is not None else "wm" if split == PREDICTED else "test"
    name = re.sub(r"[^\w.+-]", "_", variant)
    return Scene(f"episode-{name}-{where}-{episode.group}-{episode.member}", variant, split, step, episode)


def data_block(
    scenes: Sequence[Scene], letters: Alphabet, colors: Mapping[str, str], decode: Decode | None, budget: int = BUDGET
) -> tuple[Markup, list[Scene]]:
    """The theatre's data as the content of a script element of type JSON, and the scenes in it: as many as fit ``budget``."""
    records: list[str] = []
    vocabulary: dict[str, int] = {}
    shown: list[Scene] = []
    for scene in _in_turn(scenes):
        record = _json(_record(scene, decode, vocabulary))
        if (budget := budget - len(record)) < 0 and shown:
            break
        records.append(record)
        shown.append(scene)
    head = _json({"tiles": letters.tiles, "digits": letters.digits, "colors": colors, "tokens": list(vocabulary)})
    return Markup(f'{head[:-1]},"episodes":[{",".join(records)}]}}'), shown


def _json(value: Mapping[str, Any]) -> str:
    """JSON without the characters that could end the script element or open a comment; in JSON they stand in strings only."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _in_turn(scenes: Sequence[Scene]) -> Iterator[Scene]:
    """One of each variant and split after the other, so that what a budget cuts off is cut from all."""
    places: dict[tuple[str, str], int] = {}
    ranked = []
    for scene in scenes:
        key = scene.variant, scene.split
        places[key] = places.get(key, -1) + 1
        ranked.append((places[key], scene))
    yield from (scene for _, scene in sorted(ranked, key=lambda pair: pair[0]))


def _record(scene: Scene, decode: Decode | None, vocabulary: dict[str, int]) -> dict[str, Any]:
    episode = scene.episode
    turns = []
    for turn in episode.turns:
        turns.append(_turn(turn, episode.turns[turn.index + 1 :][:1]))
        turns[-1] |= _tokens(episode, turn.index, decode, vocabulary)
    record: dict[str, Any] = {
        "id": scene.id,
        "variant": scene.variant,
        "split": scene.split,
        "step": scene.step,
        "task": episode.task,
        "seed": episode.seed,
        "group": episode.group,
        "member": episode.member,
        "outcome": "error" if episode.failed else "success" if episode.success else "failure",
        "status": episode.status,
        "error": cut(episode.error),
        "reward": round(episode.total_reward, 4),
        "turns": turns,
    }
    return {key: value for key, value in record.items() if value not in (None, "")}


def _turn(turn: Turn, following: Sequence[Turn]) -> dict[str, Any]:
    """A turn without its defaults. The next state is left out where it is that of the following turn."""
    record: dict[str, Any] = {
        "state": cut(turn.state),
        "response": cut(turn.response),
        "prediction": None if turn.prediction is None else cut(bare(turn.prediction, turn.next_state, turn.state)),
        "next": None if [t.state for t in following] == [turn.next_state] else cut(turn.next_state),
        "executed": turn.executed,
        "reward": round(turn.reward, 4),
        "penalty": round(turn.penalty, 4),
        "wrong_format": not turn.format_ok,
        "right": turn.prediction is not None and exact(turn.prediction, turn.next_state, turn.state),
        "imagined": imagined(turn),
    }
    return {
        key: value
        for key, value in record.items()
        if value is not None and value is not False and value not in ([], 0, {})
    }


def imagined(turn: Turn) -> dict[str, Any]:
    """Of a planner: the state that it expected after the executed actions, with its probability, and its whole plan."""
    steps = turn.imagined.get("path")
    path = [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    if not path:
        return {}
    expected = path[min(max(len(turn.executed), 1), len(path)) - 1]
    return {
        "state": cut(str(expected.get("state", ""))),
        "right": exact(str(expected.get("state", "")), turn.next_state),
        "probability": number(expected.get("probability")),
        "remembered": expected.get("remembered", False),
        "plan": [str(step.get("action", "")) for step in path],
    }


def _tokens(episode: Episode, turn: int, decode: Decode | None, vocabulary: dict[str, int]) -> dict[str, Any]:
    """A response's tokens as indices into ``vocabulary``, which grows, and their log-probs, None where they were not sampled; in
    training also what the update used: advantages and, with a critic, values."""
    tokens = [
        (token, round(logprob, 2) if mask else None)
        for sequence in episode.sequences
        if sequence.ids
        for token, mask, logprob, of in zip(sequence.ids, sequence.mask, sequence.logprobs, sequence.turns, strict=True)
        if of == turn
    ][:LONGEST]
    if decode is None or not tokens:
        return {}
    record = {
        "tokens": [vocabulary.setdefault(decode(token), len(vocabulary)) for token, _ in tokens],
        "logprobs": [logprob for _, logprob in tokens],
    }
    for name, by_turn in episode.estimates.items():
        if estimates := by_turn[turn] if turn < len(by_turn) else []:
            sampled = iter(estimates)
            record[name] = [None if logprob is None else next(sampled, None) for _, logprob in tokens]
    return record
