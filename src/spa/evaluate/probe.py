"""One measurement of a model's world model, the same during SFT and in evaluation."""

from __future__ import annotations

from spa.agent.episode import Episode
from spa.agent.failures import Failures
from spa.agent.policy import Policy, make_task
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.config.fields import StateFormat
from spa.config.schema import Config
from spa.evaluate.calibration import calibration_metrics
from spa.evaluate.perplexity import perplexity_by_format, random_guess
from spa.evaluate.world_model import world_model_metrics


def probe_world_model(
    cfg: Config,
    policy: Policy,
    *,
    state_format: StateFormat,
    worlds: int,
    seed: int,
) -> tuple[dict[str, float], list[Episode]]:
    """Plays ``worlds`` validation worlds once with the world-model prompt and measures the world model on them.

    Returns:
        ``world_model/*`` (with legality), ``calibration/*`` and ``perplexity/*`` as in ``measure_episodes``; the episodes.

    Raises:
        ValueError: a larger share than ``env.max_failed`` of the episodes fails.
    """
    task = make_task(cfg, state_format=state_format, prompt="world_model")
    chosen = WorldSource(task, "val", cfg.seeds.val, unique=True).take(worlds)
    episodes = policy.play(task, chosen, samples=1, seed=seed)
    Failures.check("world model", task.env.max_failed, episodes)
    return measure_episodes(cfg, policy, task, episodes, chosen, seed), episodes


def measure_episodes(
    cfg: Config, policy: Policy, task: Task, episodes: list[Episode], worlds: list[World], seed: int
) -> dict[str, float]:
    """World-model accuracy of played episodes; with local weights also calibration and, on ``worlds``, perplexity.

    ``perplexity/grid`` and ``perplexity/coordinates`` are per token of the bare states, ``perplexity/random_guess`` per cell.
    """
    metrics = world_model_metrics(episodes, task.make_env().legal)
    if policy.model is None:
        return metrics
    metrics |= calibration_metrics(policy.model, policy.chat, task.make_env, episodes, seed=seed)
    if worlds:
        scored = perplexity_by_format(cfg, policy, task, worlds, seed=seed)
        metrics |= {f"perplexity/{state_format}": score.perplexity for state_format, score in scored.items()}
        metrics["perplexity/random_guess"] = random_guess(task, len(policy.tokenizer))
    return metrics
