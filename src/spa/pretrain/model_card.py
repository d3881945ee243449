"""What the built-in model can do before any training: measured on test worlds, written into its card."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spa.agent.policy import Policy, make_task
from spa.agent.worlds import WorldSource
from spa.common.tables import markdown_table
from spa.config.schema import AgentConfig, Config, ModelConfig, SamplingConfig
from spa.config.seeds import EVAL
from spa.evaluate.play import play_chunks
from spa.evaluate.summary import summarize
from spa.evaluate.world_model import world_model_metrics
from spa.pretrain.corpus import WORLDS

COLUMNS = {
    "format_rate": "format",
    "world_model/observation_em": "observation EM",
    "world_model/prediction_em": "prediction EM",
    "pass@1": "Pass@1",
    "pass@8": "Pass@8",
}


def measure(path: str, worlds: Mapping[str, float], num_worlds: int = 64) -> list[dict[str, Any]]:
    """Plays ``num_worlds`` test worlds 8 times each, per world, prompt mode and state format.

    Returns one record per combination with ``world``, ``prompt``, ``states`` and the keys of ``COLUMNS`` as shares in
    [0, 1] (absent where nothing of the kind was written).
    """
    records = []
    for name in worlds:
        env = dataclasses.replace(WORLDS[name])
        if name == "frozen_lake":
            env = dataclasses.replace(env, settings={**env.settings, "is_slippery": False})
        config = Config(
            name=name,
            env=env,
            agent=AgentConfig(style="terse", window=1),
            model=ModelConfig(path=path, device="cpu"),
            sampling=SamplingConfig(max_tokens=200),
        )
        policy = Policy.load(config)
        for prompt in ("base", "world_model"):
            for states in ("grid", "coordinates"):
                task = make_task(config, state_format=states, prompt=prompt)
                chosen = WorldSource(task, "test", config.seeds.test, unique=True).take(num_worlds)
                episodes = play_chunks(policy, task, chosen, 8, 0, EVAL, f"{name}, {prompt}, {states}")
                metrics = summarize(episodes, [1, 8]) | world_model_metrics(episodes)
                record = {"world": name, "prompt": prompt, "states": states}
                records.append(record | {key: metrics[key] for key in COLUMNS if key in metrics})
    return records


def table(records: list[dict[str, Any]]) -> str:
    """The records as a Markdown table, in percent."""
    rows = []
    for record in records:
        values = [f"{100 * record[key]:.1f}" if key in record else "-" for key in COLUMNS]
        rows.append([record["world"], record["prompt"], record["states"], *values])
    return "\n".join(markdown_table(["world", "prompt", "states", *COLUMNS.values()], rows))


def write_card(folder: Path, settings: Mapping[str, Any], parameters: int, records: list[dict[str, Any]]) -> None:
    """Writes ``README.md`` beside the weights: how the model was made and what it can do."""
    changed = ", ".join(f"`{key}={value}`" for key, value in settings.items())
    measured = f"""
**Measured** on 64 held-out worlds x 8 samples at temperature 1 per row (percent; EM = exact match of what was
written with the true state; `spa pretrain` prints this table again):

{table(records)}

FrozenLake is played without slipping. Success is what random valid actions reach; predictions are wrong, as they must be.
"""
    text = f"""---
license: apache-2.0
library_name: transformers
---
# The built-in tiny model of SPA

A Llama architecture with {parameters:,} parameters and a byte-level tokenizer in which a cell, a coordinate pair, an action
name and a tag are single tokens. It exists so that the whole recipe runs on a laptop CPU; it knows no English.

**Made by** `spa pretrain` with {changed or "the default settings"}, from a synthetic corpus of single exchanges: the
answer format of both prompt modes, copying a state, reading coordinates, random valid actions. The corpus holds **no dynamics
and no solutions**: its boards are random placements, its actions are blind to the board, and the "prediction" of a
document is another random board.
{measured if records else ""}"""
    (folder / "README.md").write_text(text, encoding="utf-8")
