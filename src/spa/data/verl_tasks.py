"""Worlds as a data set for verl's RL trainers, with the config of our agent loop (``spa.agent.verl_loop``)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from spa.agent.failures import Failures
from spa.agent.play import Play
from spa.agent.policy import make_task
from spa.agent.task import Task
from spa.agent.worlds import WorldSource
from spa.common.files import atomic_file, atomic_write
from spa.config.load import to_yaml
from spa.config.schema import Config
from spa.config.seeds import first_seed


def export_tasks(cfg: Config, out: Path, train: int, val: int) -> dict[str, int]:
    """Writes ``train.parquet`` and ``val.parquet`` (a world a row, without those that fail), ``task.yaml`` and ``agent_loop.yaml``.

    Args:
        train, val: numbers of worlds; validation worlds are distinct.

    Returns:
        the number of rows by split.

    Raises:
        ValueError: a history window (verl trains one sequence an episode), a curriculum, too few distinct worlds, or too many that
            fail.
    """
    if cfg.agent.window:
        raise ValueError("verl trains one token sequence an episode: add agent.window=0")
    if cfg.curriculum.mixture or cfg.curriculum.levels:
        raise ValueError(
            "verl gets one world: export each world of a mixture or of levels by itself, without curriculum.*"
        )
    task = make_task(cfg)
    rows = {split: _rows(cfg, task, split, count) for split, count in (("val", val), ("train", train))}
    out.mkdir(parents=True, exist_ok=True)
    for split, worlds in rows.items():
        with atomic_file(out / f"{split}.parquet") as temporary:
            pq.write_table(pa.Table.from_pylist(worlds), temporary)
    atomic_write(out / "task.yaml", to_yaml(cfg))
    loop = {
        "name": "spa",
        "_target_": "spa.agent.verl_loop.SpaAgentLoop",
        "task_config": str((out / "task.yaml").resolve()),
    }
    atomic_write(out / "agent_loop.yaml", yaml.safe_dump([loop], sort_keys=False))
    return {split: len(worlds) for split, worlds in rows.items()}


def _rows(cfg: Config, task: Task, split: str, count: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    failures = Failures(f"worlds of split {split}", task.env.max_failed, count, unit="worlds")
    source = WorldSource(task, split, first_seed(cfg.seeds, split), unique=split == "val")
    for index, world in enumerate(source.take(count)):
        play = Play.start(task, world, 0, 0)
        play.host.close()
        failures.add([play.episode])
        if not play.live:
            continue
        system = [] if task.system is None else [{"role": "system", "content": task.system}]
        rows.append(
            {
                "data_source": task.tag,
                "agent_name": "spa",
                "prompt": [*system, {"role": "user", "content": play.user_text(0, 0)}],
                "ability": "world",
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": index, "split": split, "seed": world.seed, "content": world.content},
            }
        )
    failures.say()
    return rows
