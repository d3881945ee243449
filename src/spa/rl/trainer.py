"""Stage 3: the PPO loop around the update: play, filter, learn, validate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spa.agent.episode import Episode, read_episodes, write_episodes
from spa.agent.failures import Failures
from spa.agent.policy import Policy, local_engine, make_task, sampling_for
from spa.agent.show import show_sample
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource, world_keys
from spa.common.checkpoints import check_best, checkpoint_folder, latest_checkpoint, list_checkpoints, prune_checkpoints
from spa.common.clock import measuring, work_stored
from spa.common.progress import note, on_terminal, progress
from spa.config.schema import Config, VariantConfig, check_ppo_sampling
from spa.config.seeds import AUXILIARY, ROLLOUT, UPDATE, VAL, stream_seed
from spa.data.encode import Example
from spa.engines.base import BrokenModel
from spa.evaluate.calibration import calibration_metrics
from spa.evaluate.summary import summarize
from spa.evaluate.world_model import world_model_metrics
from spa.models.load import load_model, load_sharded, load_state, load_weights, save_checkpoint, save_model
from spa.models.lora import add_lora
from spa.rl.auxiliary import world_model_examples
from spa.rl.critic import make_critic
from spa.rl.curriculum import Curriculum, is_real, task_labels, training_tasks, validation_worlds
from spa.rl.episode_files import some_of_each, step_file, write_step
from spa.rl.filters import filter_metrics, group_indices, informative, nothing_to_learn, select_groups
from spa.rl.health import Health, TrainingCollapsed
from spa.rl.learner import Learner
from spa.rl.metrics import rollout_metrics
from spa.rl.reference import Reference
from spa.rl.rewards import turn_rewards
from spa.rl.update import TrainingDiverged, update
from spa.scale import ranks

Log = Callable[[int, dict[str, float]], None]

_SHOWN = {  # beside the bar; the first ones fit on a narrow terminal
    "success": "train/success",
    "entropy": "losses/entropy",
    "kl": "losses/approx_kl",
    "format": "train/format_rate",
    "score": "train/score",
}
# What a checkpoint holds of the trainer itself, beside ``played``.
_COUNTED = ("step", "episodes", "actions", "empty_steps", "skipped_steps", "best_score", "best_reward", "best_step")
_EMPTY_STEPS = 3  # steps in a row without a usable episode before giving up


@dataclass
class PPOTrainer:
    """Trains ``policy`` on ``task``; everything is written under ``out``.

    Args:
        task: the validation task, and the training task unless ``config.curriculum`` sets others.
        probe: the task with the world-model prompt, for measuring the world model at each validation; or None.
        log: called with (step, metrics) after each step; step 0 is the validation before training.
        on_step: called with (step, metrics) after each step.
        start: the model that RL starts from, also the reference model; None for ``config.model.path``.
    """

    config: Config
    policy: Policy
    task: Task
    out: Path
    log: Log
    probe: Task | None = None
    on_step: Callable[[int, dict[str, float]], None] = lambda step, metrics: None
    start: str | None = None
    played: dict[str, str | None] = field(default_factory=dict)  # worlds trained on: content -> symmetry
    step: int = 0
    episodes: int = 0
    actions: int = 0  # executed in training worlds
    empty_steps: int = 0
    skipped_steps: int = 0
    alike_steps: int = 0
    best_score: float = -math.inf
    best_reward: float = -math.inf  # of equal scores the higher reward is better
    best_step: int = 0

    def __post_init__(self) -> None:
        config, seeds = self.config.ppo, self.config.seeds
        check_ppo_sampling(self.config.sampling)
        shown = self.task.env.state_format
        tasks = training_tasks(self.config, state_format=shown)
        if not self.config.curriculum.mixture:
            tasks[len(self.config.curriculum.levels)] = self.task  # after the levels, before imagined worlds
        self.learner = self._make_learner(max(task.env.max_turns for task in tasks))
        self.curriculum, self.labels = Curriculum(self.config, tasks), task_labels(self.config, tasks)
        self.world_model_tasks = (
            training_tasks(self.config, state_format=shown, prompt="world_model") if config.world_model_coef else []
        )
        self.health = Health(config)
        self.failures = [Failures(f"PPO in {label}", self.config.env.max_failed) for label in self.labels]
        self.validations: list[tuple[str, Task, list[World]]] = []
        if config.val_every:
            worlds = WorldSource(self.task, "val", seeds.val, unique=True).take(
                config.val_worlds, setting="ppo.val_worlds"
            )
            self.validations.append(("val/", self.task, worlds))
            for label, task in zip(self.labels, tasks, strict=True) if self.config.curriculum.mixture else ():
                if task.env != self.task.env:
                    few = validation_worlds(self.config)
                    worlds = WorldSource(task, "val", seeds.val, unique=True).take(few)
                    self.validations.append((f"val/{label}/", task, worlds))

    def _make_learner(self, turns: int) -> Learner:
        config, actor = self.config.ppo, self.policy.model
        critic = make_critic(config, actor, seed=self.config.seeds.run + 1)
        if config.lora_rank:
            add_lora(actor, config, config.lora_rank, self.config.seeds.run)
        reference = None
        if config.needs_reference:
            adapters_off = config.reference is None and config.lora_rank > 0
            model = actor if adapters_off else load_model(self.config.model, config.reference or self.start)
            reference = Reference(model, adapters_off)
        most = sampling_for(self.task, self.config.sampling).max_tokens
        one_row = most * (1 if self.config.agent.window else turns)
        temperature, exact = self.config.sampling.temperature, self.policy.exact
        return Learner(actor, critic, config, temperature, reference, horizon=one_row, exact=exact)

    @property
    def val_worlds(self) -> list[World]:
        return [world for _, _, worlds in self.validations for world in worlds]

    def train(self, *, resume: bool = False) -> Path:
        """Trains to ``ppo.steps``; returns the folder of the last or, with ``ppo.use=best``, the best checkpoint.

        Raises:
            TrainingDiverged, TrainingCollapsed: with ``ppo.on_collapse=stop`` (the message names the last good checkpoint).
            ValueError: three steps in a row without a usable episode, too many failures (``env.max_failed``), or a damaged best
                checkpoint.
        """
        config = self.config.ppo
        checkpoint = ranks.on_main(lambda: latest_checkpoint(self.out) if resume else None)
        if checkpoint:
            self._restore(checkpoint[1])
        self.policy.model.train()
        if checkpoint is None and config.val_every and config.val_before_train:
            self.log(0, self.validate())
        try:
            self._loop()
        except BrokenModel as error:
            # A checkpoint of this step would be just as broken.
            raise TrainingDiverged(
                f"training diverged at step {self.step}: {error}; {self._last_good(self.step)}. Lower ppo.actor_lr or "
                "ppo.max_grad_norm"
            ) from error
        last = checkpoint_folder(self.out, self.step)
        if not ranks.on_main(last.is_dir):
            self._save()
        if config.use == "best" and self.best_step:
            return ranks.on_main(lambda: check_best(self.out, self.best_step))
        return last

    def _loop(self) -> None:
        config = self.config.ppo
        while self.step < config.steps:
            metrics = self._one_step()
            done = self.step == config.steps
            improved = False
            if config.val_every and (self.step % config.val_every == 0 or done):
                validated = self.validate()
                improved = self._improved(validated)
                metrics |= validated
            self.log(self.step, metrics)
            self.on_step(self.step, metrics)
            self._check_health(metrics)
            regular = config.save_every and self.step % config.save_every == 0
            if done or regular or (improved and config.use == "best"):
                self._save()

    def best_checkpoint(self) -> Path | None:
        """The checkpoint with the best validation Pass@1, if it was kept."""
        folder = checkpoint_folder(self.out, self.best_step)
        return folder if self.best_step and folder.is_dir() else None

    def _improved(self, validated: dict[str, float]) -> bool:
        score, reward = validated.get("val/pass@1", -math.inf), validated.get("val/reward", -math.inf)
        if (score, reward) <= (self.best_score, self.best_reward):
            return False
        self.best_score, self.best_reward, self.best_step = score, reward, self.step
        return True

    def _one_step(self) -> dict[str, float]:
        config, run = self.config.ppo, self.config.seeds.run
        started = time.perf_counter()
        step = self.step + 1
        ranks.set_place(f"PPO step {step}")
        with self.policy.playing() as pushed:
            episodes, tasks, metrics = self._play(stream_seed(run, ROLLOUT, step))
        metrics |= pushed
        played = time.perf_counter()
        self.episodes += len(episodes)
        for index, failures in enumerate(self.failures):  # each world by itself: that of a small share may always fail
            failures.add(e for e, task in zip(episodes, tasks, strict=True) if task == index)
            failures.say()
        real = [is_real(self.curriculum.tasks[index]) for index in tasks]
        self.actions += sum(len(t.executed) for e, lived in zip(episodes, real, strict=True) if lived for t in e.turns)
        metrics |= rollout_metrics(episodes)
        metrics |= self._observe_curriculum(episodes, tasks)
        chosen, filtered = self._filter(episodes, tasks)
        metrics |= filtered
        try:
            if chosen:
                self.empty_steps = 0
                rng = np.random.default_rng(stream_seed(run, UPDATE, step))
                metrics |= self._update([episodes[i] for i in chosen], [tasks[i] for i in chosen], rng, step)
            else:
                self._count_empty(episodes)
                alike = not all(episode.failed for episode in episodes)
                self._say_alike(alike, step, "not updated")
                metrics |= {"rollout/all_equal": 1.0} if alike else {}
        finally:  # after the update, which adds its estimates; also where it fails, to see what was played
            if config.log_episodes and ranks.is_main():
                write_step(self.out, step, some_of_each(episodes, tasks, config.log_episodes), config.keep_episodes)
        self.step = step
        ended = time.perf_counter()
        return metrics | {
            "time/rollout_s": played - started,
            "time/update_s": ended - played,
            "charts/episodes_per_second": len(episodes) / (ended - started),
            "charts/episodes": float(self.episodes),
            "charts/actions": float(self.actions),
            "charts/skipped_steps": float(self.skipped_steps),
        }

    def _play(self, seed: int) -> tuple[list[Episode], list[int], dict[str, float]]:
        """Plays a batch or, with ``dynamic_groups``, batches until enough groups have differing scores.

        Returns:
            episodes with groups numbered consecutively, each episode's task index, metrics.
        """
        config = self.config.ppo
        episodes: list[Episode] = []
        tasks: list[int] = []
        groups = rounds = informative_groups = 0
        while True:
            for index, worlds in self.curriculum.take(config.groups):
                task = self.curriculum.tasks[index]
                if is_real(task):
                    self.played.update(world_keys(worlds))
                # The first batch uses the step's seed, however many follow.
                rollout_seed = stream_seed(seed, rounds, index) if rounds or index else seed
                played = self.policy.play(task, worlds, samples=config.group_size, seed=rollout_seed)
                for episode in played:
                    episode.group += groups
                groups += len(worlds)
                episodes += played
                tasks += [index] * len(played)
            rounds += 1
            informative_groups = len(informative(group_indices(episodes), self._scores(episodes)))
            if informative_groups >= config.dynamic_groups or rounds == config.dynamic_rounds:
                break
        return episodes, tasks, {"rollout/rounds": float(rounds), "rollout/informative": float(informative_groups)}

    def _scores(self, episodes: Sequence[Episode]) -> list[float]:
        return [float(sum(turn_rewards(episode, self.config.ppo))) for episode in episodes]

    def _filter(self, episodes: Sequence[Episode], tasks: Sequence[int]) -> tuple[list[int], dict[str, float]]:
        """Indices of the episodes that are trained on, and metrics."""
        groups, scores = group_indices(episodes), self._scores(episodes)
        chosen = select_groups(groups, scores, tasks, self.config.ppo)
        return [i for group in chosen for i in groups[group]], filter_metrics(groups, scores, chosen)

    def _count_empty(self, episodes: Sequence[Episode]) -> None:
        """Counts a skipped step; raises ValueError if every episode failed in several steps in a row."""
        self.skipped_steps += 1
        if not all(episode.failed for episode in episodes):
            self.empty_steps = 0
            return
        self.empty_steps += 1
        if self.empty_steps >= _EMPTY_STEPS:
            failed = next((episode.error for episode in episodes if episode.error), "no error was reported")
            raise ValueError(f"no usable episode in {_EMPTY_STEPS} steps in a row; the first failure: {failed}")

    def _update(
        self, episodes: Sequence[Episode], tasks: Sequence[int], rng: np.random.Generator, step: int
    ) -> dict[str, float]:
        config, chat = self.config.ppo, self.policy.chat
        warming_up = self.learner.critic is not None and step <= config.critic_warmup
        rewards = [turn_rewards(episode, config) for episode in episodes]
        alike = nothing_to_learn(rewards, [episode.group for episode in episodes], config)
        examples: list[Example] = []
        if config.world_model_coef and not warming_up:  # made once: a world need not answer all ranks alike
            examples = ranks.on_main(lambda: self._world_model_examples(episodes, tasks, step))
        learns = "not updated" if self.learner.critic is None else "not updated, only the critic is"
        self._say_alike(alike, step, "updated by the world-model loss alone" if examples else learns)
        if alike and self.learner.critic is None and not examples:
            self.skipped_steps += 1
            return {"rollout/all_equal": 1.0}
        try:
            updates = self.learner.updates
            learned = update(
                self.learner, episodes, chat, rng=rng, critic_only=warming_up or alike, world_model=examples
            )
            if alike and not (warming_up or examples):
                self.learner.updates = updates  # the learning rates' warm-up waits for the actor's first step
            return learned | {"rollout/all_equal": float(alike)}
        except TrainingDiverged as error:
            if config.on_collapse == "stop":
                raise TrainingDiverged(
                    f"training diverged at step {step}: {error}; {self._last_good(step)}. Lower ppo.actor_lr or "
                    "ppo.max_grad_norm, or leave such steps out with ppo.on_collapse=continue"
                ) from error
            note(f"PPO: the rest of step {step} was left out: {error}")
            self.skipped_steps += 1
            return {}

    def _world_model_examples(self, episodes: Sequence[Episode], tasks: Sequence[int], step: int) -> list[Example]:
        lived = [is_real(self.curriculum.tasks[index]) for index in tasks]  # imagined states are not ground truth
        return world_model_examples(
            [episode for episode, is_true in zip(episodes, lived, strict=True) if is_true],
            [self.world_model_tasks[index] for index, is_true in zip(tasks, lived, strict=True) if is_true],
            self.policy.chat,
            fraction=self.config.ppo.world_model_fraction,
            rng=np.random.default_rng(stream_seed(self.config.seeds.run, AUXILIARY, step)),
            transitions=self.config.selfplay.rows == "transitions",
            context=self.policy.engine.context_length,
        )

    def _say_alike(self, alike: bool, step: int, learns: str) -> None:
        """Counts steps in a row without an informative group; says so, and what the policy ``learns`` all the same, at the first,
        the tenth, the hundredth ..."""
        self.alike_steps = self.alike_steps + 1 if alike else 0
        if alike and self.alike_steps in (1, 10, 100, 1000):
            row = f" ({self.alike_steps} steps in a row)" if self.alike_steps > 1 else ""
            note(f"PPO, step {step}: in every group all episodes score the same, so the policy is {learns}{row}")

    def _observe_curriculum(self, episodes: Sequence[Episode], tasks: Sequence[int]) -> dict[str, float]:
        members: dict[int, list[bool]] = {}
        for episode, index in zip(episodes, tasks, strict=True):
            if not episode.failed:
                members.setdefault(index, []).append(episode.success)
        success = {index: float(np.mean(won)) for index, won in members.items()}
        metrics = self.curriculum.metrics(success, self.labels)
        self.curriculum.observe(success)
        return metrics

    def _check_health(self, metrics: dict[str, float]) -> None:
        collapsed = self.health.observe(self.step, metrics)
        if (
            self.step == self.config.ppo.collapse_patience
            and self.health.best_valid == 0
            and "train/valid_rate" in metrics
        ):
            plain = "set agent.prompt_after_sft=world_model, " if self.task.agent.prompt == "base" else ""
            text = (
                f"no turn of the first {self.step} steps had a valid action (see episodes/); the model does not answer this prompt "
                "in the format, or not within sampling.max_tokens_base, or does not know the world's actions. Without stage 2 it "
                f"cannot begin. After it, {plain}try another sft.lr or sft.epochs, or more tokens"
            )
            if self.config.ppo.on_collapse == "stop":
                raise TrainingCollapsed(f"{text}. Or continue anyway with --resume ppo.on_collapse=continue")
            note(f"PPO: {text}")
        if not collapsed:
            return
        text = f"the policy has collapsed: for {self.health.sick} steps {self.health.reason}"
        if self.config.ppo.on_collapse == "stop":
            raise TrainingCollapsed(
                f"{text} (step {self.step}); {self._last_good(self.health.healthy_step + 1)}. Lower ppo.actor_lr, set "
                "ppo.target_kl or ppo.kl_loss_coef, or continue anyway with --resume ppo.on_collapse=continue"
            )
        if self.health.sick == self.config.ppo.collapse_patience:
            note(f"PPO: {text} (step {self.step}); continuing (ppo.on_collapse=continue)")

    def _last_good(self, before: int) -> str:
        """Names the newest checkpoint of a step before ``before``."""
        good = [folder for step, folder in list_checkpoints(self.out) if step < before]
        none = "no checkpoint from before is kept (ppo.save_every, ppo.keep_checkpoints)"
        return f"the last good checkpoint is {good[-1]}" if good else none

    @measuring()
    def validate(self) -> dict[str, float]:
        """Plays the validation worlds; returns ``val/*`` and, with a probe, ``world_model/*`` (states the policy writes) and
        ``calibration/*`` (likelihoods on a fixed set of turns)."""
        with self.policy.playing():
            return self._validate()

    def _validate(self) -> dict[str, float]:
        config = self.config
        started = time.perf_counter()
        # One seed for all validations: as far as sampling allows, differences between steps come from the policy.
        seed = stream_seed(config.seeds.run, VAL, 0)
        samples = config.ppo.val_samples
        metrics: dict[str, float] = {}
        for prefix, task, worlds in self.validations:
            episodes = self.policy.play(task, worlds, samples=samples, seed=seed)
            Failures.check(f"validation in {task.tag}", config.env.max_failed, episodes)
            summary = summarize(episodes, [1, samples], config.eval.bootstrap, config.seeds.run)
            metrics |= {f"{prefix}{name}": value for name, value in summary.items()}
        if self.probe is not None and config.eval.world_model_worlds and self.validations:
            chosen = self.validations[0][2][: config.eval.world_model_worlds]
            probed = self.policy.play(self.probe, chosen, samples=1, seed=seed)
            Failures.check("world model", config.env.max_failed, probed)
            metrics |= world_model_metrics(probed, self.probe.make_env().legal)
            metrics |= calibration_metrics(
                self.policy.model,
                self.policy.chat,
                self.probe.make_env,
                self._known_turns(probed),
                seed=config.seeds.run,
            )
        return metrics | {"time/val_s": time.perf_counter() - started}

    def _known_turns(self, probed: list[Episode]) -> list[Episode]:
        """The probe's episodes from the first validation, so that the judged turns do not change with the policy."""
        path = self.out / "probe.jsonl"
        ranks.on_main(lambda: None if path.is_file() else write_episodes(path, probed))
        return list(read_episodes(path))

    def _save(self) -> None:
        state: dict[str, Any] = {
            **{name: getattr(self, name) for name in _COUNTED},
            "played": sorted(self.played.items()),
            "curriculum": self.curriculum.state(),
            "health": self.health.state(),
            "failed": [failures.state() for failures in self.failures],
        }
        folder, learner = checkpoint_folder(self.out, self.step), self.learner
        if ranks.world() > 1:
            state["learner"] = {"updates": learner.updates}
            save_checkpoint(self.policy.model, self.policy.tokenizer, folder, state, learner.optimizer, learner.modules)
        else:
            save_model(self.policy.model, self.policy.tokenizer, folder, state | {"learner": learner.state()})
        work_stored()
        self._prune()

    def _prune(self) -> None:
        keep, always = self.config.ppo.keep_checkpoints, (self.best_step,) if self.config.ppo.use == "best" else ()
        ranks.on_main(lambda: prune_checkpoints(self.out, keep, always, newest=self.step))

    def _restore(self, folder: Path) -> None:
        """Restores a checkpoint; the actor's weights were already loaded from the same folder when the policy was made."""
        state = load_state(folder)
        for name in _COUNTED:
            setattr(self, name, state[name])
        self.played = dict(state["played"])
        self.curriculum.load_state(state["curriculum"])
        self.health.load_state(state["health"])
        for failures, counts in zip(self.failures, state["failed"], strict=True):
            failures.load_state(counts)
        if self.config.ppo.critic_lora_rank and not self.config.ppo.lora_rank:
            # The critic's network was copied from the initial model.
            load_weights(self.policy.model, folder, self.config.model)
        self.learner.load_state(state["learner"])
        load_sharded(folder, self.learner.optimizer, self.learner.modules)
        self._prune()  # a killed process may have saved without


def train_ppo(cfg: Config, variant: VariantConfig, start: str, out: Path, *, resume: bool, log: Log) -> dict[str, Any]:
    """Stage 3 for one variant, from the model at ``start`` or, with ``resume``, from the last checkpoint in ``out``.

    Returns:
        the stage's record: the resulting model, the last and the best one kept (relative to ``out``), the actions played in
        training, the world keys.

    Raises:
        ValueError: as ``PPOTrainer``, or a model that cannot be loaded.
    """
    checkpoint = ranks.on_main(lambda: latest_checkpoint(out) if resume else None)
    adapters = cfg.ppo.lora_rank or cfg.ppo.critic_lora_rank  # added to the initial model
    path = str(checkpoint[1]) if checkpoint and not adapters else start
    policy = Policy.load(cfg, path, engine=local_engine(cfg), trained=True, precision=cfg.ppo.precision)
    task = make_task(cfg, state_format=variant.state_format)
    knows = variant.sft or cfg.ppo.world_model_coef or cfg.agent.prompt == "world_model"
    probe = make_task(cfg, state_format=variant.state_format, prompt="world_model") if knows else None
    config = cfg.report
    with closing(policy), progress(cfg.ppo.steps, f"PPO, variant {variant.name}") as bar:

        def on_step(step: int, metrics: dict[str, float]) -> None:
            bar.advance(1, **{name: metrics[metric] for name, metric in _SHOWN.items() if metric in metrics})
            if config.sample_every and step % config.sample_every == 0 and on_terminal() and cfg.ppo.log_episodes:
                note(show_sample(next(read_episodes(step_file(out, step)))))

        trainer = PPOTrainer(cfg, policy, task, out, log, probe, on_step, start)
        if checkpoint:
            bar.advance(min(checkpoint[0], cfg.ppo.steps))
        model = trainer.train(resume=resume)
    trainer.curriculum.say_left()
    worlds = {"train": dict(sorted(trainer.played.items())), "val": world_keys(trainer.val_worlds)}
    result: dict[str, Any] = {"model": str(model.relative_to(out)), "actions": trainer.actions, "worlds": worlds}
    result["last"] = str(checkpoint_folder(out, trainer.step).relative_to(out))
    best = trainer.best_checkpoint()
    if best is not None:
        result |= {"best": str(best.relative_to(out)), "best_score": trainer.best_score}
    return result
