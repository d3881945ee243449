"""Which worlds stage 3 trains on: the run's own, a weighted mixture of tasks, or levels of increasing difficulty."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.agent.policy import make_task
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, check_enough
from spa.common.progress import note
from spa.config.fields import Prompt, StateFormat
from spa.config.load import OPERATION, conf_folder, env_block, is_file_name, joining, names_of, read_yaml
from spa.config.schema import Config, EnvConfig
from spa.config.seeds import first_seed

IMAGINED = "spa.planning.dream:ImaginedWorld"

Batch = list[tuple[int, list[World]]]
"""Index of a task and worlds of it."""


def training_tasks(cfg: Config, *, state_format: StateFormat | None = None, prompt: Prompt | None = None) -> list[Task]:
    """The tasks that stage 3 trains on: the mixture; or the levels, easiest first, then the run's own task; or the run's own task
    alone, followed by its imagined worlds once ``curriculum.imagined_file`` exists.

    Raises:
        ValueError: an unknown config, or a setting that a world does not accept.
    """
    if cfg.curriculum.mixture:
        blocks = _mixture(cfg)
    else:
        levels = cfg.curriculum.levels
        blocks = [dataclasses.replace(cfg.env, settings={**cfg.env.settings, **level}) for level in levels]
        blocks.append(cfg.env)
    if cfg.curriculum.imagined and cfg.curriculum.imagined_file:
        blocks.append(_imagined(cfg, state_format))
    configs = [dataclasses.replace(cfg, env=block) for block in blocks]
    return [make_task(one, state_format=state_format, prompt=prompt) for one in configs]


def _mixture(cfg: Config) -> list[EnvConfig]:
    """The worlds of the mixture: the run's own as the run has it, the others as in their configs but for how they are run."""
    blocks = {name: env_block(name) for name in cfg.curriculum.mixture}
    own_name = _config_of(cfg.env, blocks)
    # Set for the run; otherwise it is each world's own.
    everywhere = own_name and cfg.env.disjoint != env_block(own_name).disjoint

    def mixed(block: EnvConfig) -> EnvConfig:
        joined = joining(block, cfg.env)
        return (
            dataclasses.replace(joined, disjoint=cfg.env.disjoint)
            if everywhere and block.disjoint != "seed"
            else joined
        )

    return [cfg.env if name == own_name else mixed(block) for name, block in blocks.items()]


def _config_of(env: EnvConfig, mixed: Mapping[str, EnvConfig]) -> str | None:
    """The config of a world, one of ``mixed`` or packaged: of those with its id and tag (several, as with and without slipping),
    the first with the fewest other settings; a file only with the same ones. The run's name does not say: a resumed run may have
    another."""
    configs = {name: dataclasses.asdict(block) for name, block in mixed.items()}
    configs |= {name: read_yaml(conf_folder() / "env" / f"{name}.yaml")["env"] for name in names_of("env")}

    def changed(name: str) -> int:
        settings = configs[name]["settings"]
        return sum(settings.get(key) != env.settings.get(key) for key in {*settings, *env.settings})

    same = [name for name, config in configs.items() if (config["id"], config["tag"]) == (env.id, env.tag)]
    return min((name for name in same if not (is_file_name(name) and changed(name))), key=changed, default=None)


def _imagined(cfg: Config, state_format: StateFormat | None) -> EnvConfig:
    """The imagined worlds of a run, prompted like the real ones."""
    from spa.agent.prompt import instruction

    task = make_task(cfg, state_format=state_format)
    real = task.started_env()  # some worlds have their rules from then on
    try:
        instructions = {
            mode: instruction(cfg.env, mode, real, cfg.agent.action_sep) for mode in ("base", "world_model")
        }
    finally:
        real.close()
    path = os.path.expanduser(str(cfg.curriculum.imagined_file))
    settings = {"path": path, "world": cfg.env.id, "settings": dict(cfg.env.settings)}
    return dataclasses.replace(
        cfg.env,
        id=IMAGINED,
        disjoint="seed",  # all are of training worlds
        tag=f"{cfg.env.tag}Imagined",
        settings={**settings, "state_format": task.env.state_format},
        instruction=instructions["base"],
        instruction_world_model=instructions["world_model"],
    )


def task_labels(cfg: Config, tasks: Sequence[Task]) -> list[str]:
    """What metrics call the tasks: their tags; in a mixture, the name of a config that shares its tag with another or the run."""
    tags = [task.tag for task in tasks]
    if not cfg.curriculum.mixture:
        return tags
    unlisted = [] if any(_same_world(task.env, cfg.env) for task in tasks) else [cfg.env.tag]
    paths = [str(Path(name).with_suffix("")) if is_file_name(name) else name for name in cfg.curriculum.mixture]
    stems = [Path(path).name for path in paths]
    names = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, paths, strict=True)]
    labels = [tag if (tags + unlisted).count(tag) == 1 else name for tag, name in zip(tags, names, strict=True)]
    return [
        label if labels.count(label) == 1 else key for label, key in zip(labels, cfg.curriculum.mixture, strict=True)
    ]


def _same_world(env: EnvConfig, other: EnvConfig) -> bool:
    return env == dataclasses.replace(other, state_format=env.state_format)


def validation_worlds(cfg: Config) -> int:
    """How many worlds each task of a mixture is validated in beside the run's own."""
    return max(1, cfg.ppo.val_worlds // len(cfg.curriculum.mixture))


def check_training_worlds(configs: Iterable[Config]) -> None:
    """Refuses mixtures and levels in which a world clearly has too few instances to train, or to validate, on.

    Raises:
        ValueError: as ``training_tasks`` and ``check_enough``.
    """
    seen: list[EnvConfig] = []
    for cfg in configs:
        if cfg.curriculum.mixture or cfg.curriculum.levels:
            tasks = [task for task in training_tasks(cfg) if task.env != cfg.env and is_real(task)]
            few = validation_worlds(cfg) if cfg.ppo.val_every and cfg.curriculum.mixture else 0
            for task in tasks:
                if task.env not in seen:
                    try:
                        check_enough(task, {"train": 1, "val": few}, cfg.seeds.val, {"val": "ppo.val_worlds"})
                    except ValueError as error:
                        where = " in the config file of that world" if cfg.curriculum.mixture else ""
                        raise ValueError(f"{error}{where}") from error
            seen += [task.env for task in tasks]


def is_real(task: Task) -> bool:
    """Whether a task's worlds are real, not imagined."""
    return task.env.id != IMAGINED


class Curriculum:
    """Selects training worlds by task, each from that task's training split.

    Shares are exact in the long run and deterministic: the next world comes from the task farthest behind its share.
    """

    def __init__(self, cfg: Config, tasks: list[Task]) -> None:
        self.config = cfg.curriculum
        self.tasks = tasks
        self.sources = [WorldSource(task, "train", first_seed(cfg.seeds, "train")) for task in tasks]
        self.level = 0
        self.history: list[float] = []
        self.dealt = [0] * len(tasks)

    @property
    def by_level(self) -> bool:
        return bool(self.config.levels)

    def shares(self) -> list[float]:
        """The current share of each task."""
        if self.config.mixture:
            total = sum(self.config.mixture.values())
            return [weight / total for weight in self.config.mixture.values()]
        if self.config.imagined and len(self.tasks) > 1:
            return [1 - self.config.imagined, self.config.imagined]
        shares = [0.0] * len(self.tasks)
        rehearsal = self.config.rehearsal if self.level else 0.0
        shares[self.level] = 1.0 - rehearsal
        for earlier in range(self.level):
            shares[earlier] = rehearsal / self.level
        return shares

    def take(self, count: int) -> Batch:
        """``count`` worlds, grouped by task."""
        shares = self.shares()
        wanted = [0] * len(self.tasks)
        for _ in range(count):
            total = sum(self.dealt) + 1
            index = max(range(len(shares)), key=lambda i: (shares[i] * total - self.dealt[i], shares[i], -i))
            self.dealt[index] += 1
            wanted[index] += 1
        return [(index, self.sources[index].take(number)) for index, number in enumerate(wanted) if number]

    def metrics(self, success: Mapping[int, float], labels: Sequence[str]) -> dict[str, float]:
        """What to log of each task's training success in a step: that of each world; of levels the present one's."""
        if not self.by_level:
            several = self.config.mixture or self.config.imagined
            return {f"train/{labels[index]}/success": won for index, won in success.items()} if several else {}
        reached = {"curriculum/success": success[self.level]} if self.level in success else {}
        return {"curriculum/level": float(self.level), **reached}

    def observe(self, success: dict[int, float]) -> None:
        """Records each task's training success in a step; advances to the next level once the current one is mastered."""
        if not self.by_level or self.level not in success:
            return
        self.history = [*self.history, success[self.level]][-self.config.window :]
        mastered = len(self.history) == self.config.window and sum(self.history) >= self.config.threshold * len(
            self.history
        )
        if mastered and self.level + 1 < len(self.tasks):
            self.level += 1
            self.history = []
            self.dealt = [0] * len(self.tasks)

    def say_left(self) -> None:
        """Tells, at the end, of levels that training never came to."""
        if self.by_level and self.level + 1 < len(self.tasks):
            threshold, window = self.config.threshold, self.config.window
            note(
                f"PPO: training stayed at level {self.level + 1} of {len(self.tasks)} and never played the run's own world "
                f"(curriculum.threshold={threshold:g} success over {window} steps was not reached)"
            )

    def _worlds(self) -> list[dict[str, Any]]:
        """What defines the worlds of a mixture, whose config files may be changed before the run is resumed."""
        tasks = self.tasks if self.config.mixture else []
        return [dataclasses.asdict(task.env) | dict.fromkeys(OPERATION) for task in tasks]

    def state(self) -> dict[str, Any]:
        return {
            "worlds": self._worlds(),
            "cursors": [source.cursor for source in self.sources],
            "level": self.level,
            "history": list(self.history),
            "dealt": list(self.dealt),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues from ``state()``.

        Raises:
            ValueError: a world of the mixture, or their order, has changed.
        """
        for name, before, now in zip(self.config.mixture, state["worlds"], self._worlds(), strict=False):
            if before != now:
                raise ValueError(
                    f"curriculum.mixture: {name}, or the order of the worlds, has changed since the checkpoint: undo that or "
                    "start anew"
                )
        for source, cursor in zip(self.sources, state["cursors"], strict=True):
            source.cursor = int(cursor)
        self.level, self.history, self.dealt = int(state["level"]), list(state["history"]), list(state["dealt"])
