"""Episodes in the formats of other tools: Inspect's evaluation log, whose viewer then shows them, and verifiers' JSON lines.

Imports neither. Texts are as the model was shown and wrote them; a turn's observation and outcome are metadata.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spa import __version__
from spa.agent.episode import Episode, Turn
from spa.common.files import atomic_write
from spa.common.names import choose
from spa.common.secrets import redact
from spa.engines.base import Message

FORMATS = ("inspect", "verifiers")


def write_episode_log(path: Path, episodes: Sequence[Episode], form: str, *, model: str, created: str = "") -> None:
    """Writes episodes, atomically.

    Args:
        form: one of ``FORMATS``.
        model: whose answers they are.
        created: when they were played, in ISO 8601.

    Raises:
        ValueError: an unknown format.
    """
    choose("format", form, FORMATS)
    if form == "inspect":
        log = inspect_log(episodes, model=redact(model), created=created)
        text = json.dumps(log, indent=1, ensure_ascii=False) + "\n"
    else:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in verifiers_rows(episodes))
    # A model can write lone surrogates, which Inspect refuses even as escapes.
    atomic_write(path, text.encode("utf-8", "replace").decode("utf-8"))


def verifiers_rows(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Rows as verifiers saves its rollouts (``RolloutOutput``, read by its ``load_outputs``), one per episode.

    ``timing`` is empty: episodes have no clock. Metrics stand in ``metrics`` and, as verifiers writes them, beside it.
    """
    rows = []
    for episode in episodes:
        prompt, *completion = split_messages(episode)
        error, metrics = redact(episode.error) if episode.failed else "", _metrics(episode)
        kind = error.partition(":")[0]
        facts = {"error": kind, "message": error, "error_chain_repr": error, "error_chain_str": kind}
        rows.append(
            {
                "example_id": episode.group,
                "prompt": prompt,
                "completion": [message for part in completion for message in part],
                "task": episode.task,
                "info": {"seed": episode.seed, "member": episode.member, "content": episode.content},
                "reward": episode.total_reward,
                "error": facts if error else None,
                "timing": {},
                "is_completed": not episode.failed,
                "is_truncated": episode.status == "truncated",
                "metrics": metrics,
                **metrics,
            }
        )
    return rows


def split_messages(episode: Episode) -> list[list[Message]]:
    """The messages before the first response, then those of each turn: the response, and the next user message if there is one."""
    system = [{"role": "system", "content": episode.system}] if episode.system is not None else []
    first = [{"role": "user", "content": episode.turns[0].user}] if episode.turns else []
    parts = [[*system, *episode.shots, *first]]
    for index, turn in enumerate(episode.turns):
        following = [{"role": "user", "content": after.user} for after in episode.turns[index + 1 : index + 2]]
        parts.append([{"role": "assistant", "content": turn.response}, *following])
    return parts


def inspect_log(episodes: Sequence[Episode], *, model: str, created: str = "") -> dict[str, Any]:
    """An evaluation log of Inspect (format 2): a sample per episode, its members as epochs, scored by success and reward."""
    created = created or datetime.now(UTC).isoformat(timespec="seconds")
    task = episodes[0].task if episodes else "none"
    key = hashlib.sha256(f"{task} {model} {created}".encode()).hexdigest()[:22]
    ids = list(dict.fromkeys(_sample_id(episode) for episode in episodes))
    played = [episode for episode in episodes if not episode.failed]
    means = {
        "success": sum(episode.success for episode in played) / max(1, len(played)),
        "reward": sum(episode.total_reward for episode in played) / max(1, len(played)),
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": key,
            "run_id": key,
            "created": created,
            "task": task,
            "task_id": key,
            "dataset": {"name": task, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": model,
            "config": {"epochs": len({episode.member for episode in episodes})},
            "packages": {"spa-agent": __version__},
        },
        "plan": {"name": "plan", "steps": [{"solver": "spa", "params": {}}], "config": {}},
        "results": {
            "total_samples": len(episodes),
            "completed_samples": len(played),
            "scores": [
                {
                    "name": name,
                    "scorer": name,
                    "params": {},
                    "metrics": {"mean": {"name": "mean", "value": mean, "params": {}}},
                }
                for name, mean in means.items()
            ],
        },
        "stats": {"started_at": created, "completed_at": created, "model_usage": {}},
        "samples": [_sample(episode, model) for episode in episodes],
    }


def _sample_id(episode: Episode) -> str:
    return f"{episode.seed}-{episode.prompt}"


def _sample(episode: Episode, model: str) -> dict[str, Any]:
    before, *parts = split_messages(episode)
    messages = [*before, *(message for part in parts for message in part)]
    answer = {"role": "assistant", "content": episode.turns[-1].response} if episode.turns else None
    stopped = "max_tokens" if episode.turns and episode.turns[-1].finish_reason == "length" else "stop"
    sample: dict[str, Any] = {
        "id": _sample_id(episode),
        "epoch": episode.member + 1,
        "input": before or "",
        "target": "",
        "messages": messages,
        "output": {"model": model, "choices": [{"message": answer, "stop_reason": stopped}] if answer else []},
        "scores": {
            "success": {
                "value": 1 if episode.success else 0,
                "answer": _played(episode),
                "explanation": episode.status,
            },
            "reward": {"value": episode.total_reward},
        },
        "metadata": {
            "seed": episode.seed,
            "group": episode.group,
            "content": episode.content,
            "turns": [_outcome(turn) for turn in episode.turns],
        },
    }
    if episode.failed:
        message = redact(episode.error)
        sample["error"] = {"message": message, "traceback": "", "traceback_ansi": ""}
    return sample


def _outcome(turn: Turn) -> dict[str, Any]:
    names = ("state", "observation", "prediction", "executed", "next_state", "reward", "penalty", "format_ok")
    return {name: getattr(turn, name) for name in names}


def _played(episode: Episode) -> str:
    return ", ".join(action for turn in episode.turns for action in turn.executed)


def _metrics(episode: Episode) -> dict[str, float]:
    turns = max(1, len(episode.turns))
    return {
        "success": float(episode.success),
        "penalty": episode.total_penalty,
        "num_turns": float(len(episode.turns)),
        "format_rate": sum(turn.format_ok for turn in episode.turns) / turns,
    }
