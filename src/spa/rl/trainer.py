"""Stage 3: the PPO loop around the update: play, filter, learn, validate, save."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spa.agent.episode import Episode, write_episodes
from spa.agent.player import Player, make_task
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.evaluate.summary import summarize
from spa.evaluate.world_model import world_model_metrics
from spa.models.load import load_state, save_model
from spa.rl.ppo import Learner, TrainingDiverged, update
from spa.rl.rewards import filter_groups
from spa.runs.checkpoints import checkpoint_folder, latest_checkpoint, prune_checkpoints
from spa.runs.progress import progress
from spa.runs.schema import ArmConfig, Config
from spa.runs.seeds import ROLLOUT, UPDATE, VAL, stream_seed

Log = Callable[[int, dict[str, float]], None]

_EMPTY_STEPS = 3  # steps in a row without a usable episode before giving up


@dataclass
class PPOTrainer:
    """Trains ``player`` on ``task``; everything is written under ``out``.

    Args:
        task: the task as trained and validated.
        probe: the task with the world-model prompt, on which the accuracy of states is measured at each validation; or None.
        log: called with (step, metrics) after each step; step 0 is the validation before training.
        on_step: called with the number of steps done, for a progress bar.
    """

    config: Config
    player: Player
    task: Task
    out: Path
    log: Log
    probe: Task | None = None
    on_step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    played: set[str] = field(default_factory=set)
    step: int = 0
    empty_steps: int = 0

    def __post_init__(self) -> None:
        config, seeds = self.config.ppo, self.config.seeds
        for name in ("groups", "group_size", "epochs", "mini_batches"):
            if getattr(config, name) < 1:
                raise ValueError(f"ppo.{name} must be at least 1, not {getattr(config, name)}")
        if self.config.sampling.top_p != 1 or self.config.sampling.top_k != 0 or self.config.sampling.temperature <= 0:
            raise ValueError(
                "PPO needs sampling.top_p=1, sampling.top_k=0 and a temperature above 0: otherwise the tokens are "
                "drawn from another distribution than the one whose log-probs are trained"
            )
        from spa.rl.critic import Critic

        critic = Critic(config.critic, self.player.model)
        self.learner = Learner(self.player.model, critic, config, self.config.sampling.temperature)
        self.source = WorldSource(self.task, "train", seeds.train)
        self.val_worlds: list[World] = []
        if config.val_every:
            self.val_worlds = WorldSource(self.task, "val", seeds.val, unique=True).take(config.val_worlds)

    def train(self, *, resume: bool = False) -> Path:
        """Runs to ``ppo.steps``; returns the folder of the last checkpoint.

        Raises:
            ValueError: three steps in a row without a usable episode (a broken world), or divergence
                (the message names the last good checkpoint).
        """
        config = self.config.ppo
        found = latest_checkpoint(self.out) if resume else None
        if found:
            self._restore(found[1])
        self.player.model.train()
        if self.step == 0 and config.val_every and config.val_before_train:
            self.log(0, self.validate())
        while self.step < config.steps:
            metrics = self._one_step()
            done = self.step == config.steps
            if config.val_every and (self.step % config.val_every == 0 or done):
                metrics |= self.validate()
            self.log(self.step, metrics)
            self.on_step(self.step, metrics)
            if done or (config.save_every and self.step % config.save_every == 0):
                self._save()
        last = checkpoint_folder(self.out, self.step)
        if not last.is_dir():
            self._save()
        return last

    def _one_step(self) -> dict[str, float]:
        config, run = self.config.ppo, self.config.seeds.run
        started = time.perf_counter()
        step = self.step + 1
        worlds = self.source.take(config.groups)
        self.played.update(world.content for world in worlds)
        seed = stream_seed(run, ROLLOUT, step)
        episodes = self.player.play(self.task, worlds, samples=config.group_size, seed=seed)
        played = time.perf_counter()
        metrics = rollout_metrics(episodes)
        if config.log_episodes:
            write_episodes(self.out / "episodes" / f"step_{step:06d}.jsonl", episodes[: config.log_episodes])
        kept, filter_metrics = filter_groups(episodes, config.filter_ratio)
        metrics |= filter_metrics
        if kept:
            self.empty_steps = 0
            rng = np.random.default_rng(stream_seed(run, UPDATE, step))
            try:
                metrics |= update(
                    self.learner, kept, self.player.chat, rng=rng, critic_only=step <= config.critic_warmup
                )
            except TrainingDiverged as error:
                found = latest_checkpoint(self.out)
                where = f"the last good checkpoint is {found[1]}" if found else "no checkpoint was saved before"
                raise TrainingDiverged(
                    f"training diverged at step {step}: {error}; {where}. Lower ppo.actor_lr or ppo.max_grad_norm"
                ) from error
        else:
            self.empty_steps += 1
            if self.empty_steps >= _EMPTY_STEPS:
                failed = next((episode.error for episode in episodes if episode.error), "no error was reported")
                raise ValueError(f"no usable episode in {_EMPTY_STEPS} steps in a row; the first failure: {failed}")
        self.step = step
        ended = time.perf_counter()
        return metrics | {
            "time/rollout_s": played - started,
            "time/update_s": ended - played,
            "charts/episodes_per_second": len(episodes) / (ended - started),
            "charts/episodes": float(step * config.groups * config.group_size),
        }

    def validate(self) -> dict[str, float]:
        """Plays the validation worlds; metrics ``val/*`` and, with a probe, ``world_model/*``."""
        config = self.config
        started = time.perf_counter()
        # One seed for all validations: differences between steps are the policy's, as far as sampling allows.
        seed = stream_seed(config.seeds.run, VAL, 0)
        samples = config.ppo.val_samples
        episodes = self.player.play(self.task, self.val_worlds, samples=samples, seed=seed)
        summary = summarize(episodes, [1, samples], config.eval.bootstrap, config.seeds.run)
        metrics = {f"val/{name}": value for name, value in summary.items()}
        if self.probe is not None and config.eval.world_model_worlds:
            worlds = self.val_worlds[: config.eval.world_model_worlds]
            probed = self.player.play(self.probe, worlds, samples=1, seed=seed)
            metrics |= world_model_metrics(probed)
        return metrics | {"time/val_s": time.perf_counter() - started}

    def _save(self) -> None:
        state: dict[str, Any] = {
            "step": self.step,
            "cursor": self.source.cursor,
            "played": sorted(self.played),
            "learner": self.learner.state(),
        }
        folder = checkpoint_folder(self.out, self.step)
        save_model(self.player.model, self.player.tokenizer, folder, state)
        prune_checkpoints(self.out, self.config.ppo.keep_checkpoints)

    def _restore(self, folder: Path) -> None:
        """Takes over a checkpoint; the actor's weights were loaded from the same folder by whoever made the player."""
        state = load_state(folder)
        self.step = int(state["step"])
        self.source.cursor = int(state["cursor"])
        self.played = set(state["played"])
        self.learner.load_state(state["learner"])


def rollout_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Means over a step's training episodes, under the names ``train/*``."""
    played = [episode for episode in episodes if episode.status != "error"]
    metrics = {"train/errors": float(len(episodes) - len(played))}
    if not played:
        return metrics
    turns = [turn for episode in played for turn in episode.turns]
    metrics |= {
        "train/success": float(np.mean([episode.success for episode in played])),
        "train/score": float(np.mean([episode.score for episode in played])),
        "train/num_turns": len(turns) / len(played),
        "train/num_actions": sum(len(turn.executed) for turn in turns) / len(played),
        "train/format_rate": float(np.mean([turn.format_ok for turn in turns])),
        "train/cut_off": float(np.mean([turn.finish_reason == "length" for turn in turns])),
        "train/response_tokens": sum(sum(s.mask) for e in played for s in e.sequences) / len(turns),
    }
    return metrics


def train_ppo(cfg: Config, arm: ArmConfig, start: str, out: Path, *, resume: bool, log: Log) -> dict[str, Any]:
    """Stage 3 for one arm, from the model at ``start`` or, with ``resume``, from the last checkpoint in ``out``.

    Returns:
        what the stage records: the final model (relative to ``out``), the keys of the worlds used.

    Raises:
        ValueError: as ``PPOTrainer``, and for a model that cannot be loaded.
    """
    found = latest_checkpoint(out) if resume else None
    player = Player.load(cfg, str(found[1]) if found else start)
    task = make_task(cfg, state_format=arm.state_format)
    probe = make_task(cfg, state_format=arm.state_format, prompt="world_model") if arm.sft else None
    with progress(cfg.ppo.steps, f"PPO, arm {arm.name}") as bar:

        def on_step(step: int, metrics: dict[str, float]) -> None:
            bar.advance(
                1, **{name: metrics[f"train/{name}"] for name in ("success", "score") if f"train/{name}" in metrics}
            )

        trainer = PPOTrainer(cfg, player, task, out, log, probe, on_step)
        if found:
            bar.advance(min(found[0], cfg.ppo.steps))
        last = trainer.train(resume=resume)
    worlds = {"train": sorted(trainer.played), "val": sorted({world.content for world in trainer.val_worlds})}
    return {"model": str(last.relative_to(out)), "worlds": worlds}
