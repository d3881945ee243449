"""How long each stage takes, from a model's products, this machine's speed and the lengths of random episodes."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch

from spa.agent.chat import Chat
from spa.agent.policy import make_task, sampling_for
from spa.agent.random_engine import RandomEngine, random_responder
from spa.agent.response import forced_tag
from spa.agent.rollout import rollout
from spa.agent.task import Task
from spa.agent.worlds import World, WorldSource
from spa.config.schema import SIMULATOR, Config, VariantConfig
from spa.config.seeds import first_seed
from spa.config.training import WITH_VALUES
from spa.config.variants import (
    given_data,
    own_steps,
    played_config,
    practice_variants,
    selfplay_variants,
    sft_variants,
    source_config,
)
from spa.data.encode import encode_rows
from spa.data.ground_truth import Row
from spa.data.layouts import data_files, read_rows
from spa.models.load import load_config, load_tokenizer, pick_device
from spa.models.memory import count_parameters
from spa.planning.forecast import Forecast
from spa.planning.play import play_with_planner
from spa.planning.world_model import Usage
from spa.sft.practice import lesson_rows
from spa.sft.selfplay import selfplay_task, training_rows

T = TypeVar("T")

TOO_SMALL = 10e6  # parameters below which Python, not the products, takes the time
# Speed of a whole pass, attention and all, relative to that of a large product alone: on a CPU measured (SmolLM2-135M in float32,
# dev/LOG.md, section 74), elsewhere assumed.
CPU_SHARE, OTHER_SHARE = 0.9, 0.5
WORTHWHILE = 1.5  # times as fast: bfloat16 products that are worth a word
WIDTH = 2048  # of the products that are timed
WORLDS = 8  # played by random moves, for the lengths of episodes and rows


@dataclass(frozen=True)
class Speed:
    """Products of this machine in FLOP/s, of many rows at once and of the rows decoded at once; ``share`` of it is the speed of a
    whole pass of a model."""

    many: float
    few: float
    share: float = OTHER_SHARE


Measured = Callable[[str], Speed]  # of a dtype's name


@dataclass(frozen=True)
class Lengths:
    """Of an episode, on average: its turns, the tokens of its prompts, the most that its responses may have, and the tokens of the
    rows that stage 1 makes of it, together and of one.

    Of a planner's episode, or of a start that practice plans from: the tokens that the world model reads and writes.
    """

    turns: float
    read: float
    written: float
    rows: float = 0.0
    row: float = 0.0

    @property
    def trained(self) -> float:
        """Tokens of its training sequences in stage 3."""
        return self.read + self.written


def time_estimates(cfg: Config, command: str, variants: Sequence[VariantConfig]) -> list[str]:
    """One line with a time for each stage of a command, one with the assumptions, and one where bfloat16 products make SFT faster;
    none where they would not be sound: for a chat server, vLLM, a model of fewer than 10 million parameters, one whose files are
    not on this disk, and a world that cannot be played by random moves. Planners and practice are left out, and it says so, in a
    world that cannot be set to a state."""
    try:
        model = load_config(cfg.model.path, cfg.model, local_only=True)
        device = pick_device(cfg.model.device)
    except ValueError:
        return []
    parameters = count_parameters(model)
    if cfg.engine.kind != "transformers" or parameters < TOO_SMALL:
        return []
    played = [source_config(cfg, variant) for variant in selfplay_variants(cfg, command, variants)]
    sft_sources = [(source_config(cfg, each), given_data(cfg, each)) for each in sft_variants(cfg, command, variants)]
    tuned = [source for source, rows in sft_sources if rows is None]
    practised = [source_config(cfg, variant) for variant in practice_variants(cfg, command, variants)]
    trained, tested = command in ("run", "ppo"), command in ("run", "eval")
    variant_cfgs = [(variant, played_config(cfg, variant)) for variant in variants if trained or tested]
    try:
        chat = Chat(load_tokenizer(cfg.model.path, cfg.model, local_only=True), forced=forced_tag(cfg.agent.think))
        data = [(source, selfplay_lengths(source, chat)) for source in _distinct([*played, *tuned, *practised])]
        rows = [(source, _given_tokens(source, str(file), chat)) for source, file in _distinct(sft_sources) if file]
        plays = {variant.name: lengths(variant_cfg, chat) for variant, variant_cfg in variant_cfgs}
    except ValueError:
        return []
    speed_in = cache(lambda dtype: measure(device, getattr(torch, dtype), min(cfg.sampling.batch_size, 64)))
    speed = speed_in(cfg.model.dtype)
    stages = {
        "generate": sum(_selfplay(source, sizes, parameters, speed_in) for source, sizes in data if source in played),
        "sft": sum(_sft(source, sizes, parameters, speed_in) for source, sizes in data if source in tuned)
        + sum(_tune(source, tokens, parameters, speed_in) for source, tokens in rows),
        "ppo": sum(
            own_steps(cfg, variant) * _ppo_step(variant_cfg, plays[variant.name], parameters, speed_in)
            for variant, variant_cfg in variant_cfgs
            if trained and variant.rl
        ),
        "eval": sum(
            _play(plays[variant.name], variant_cfg.eval.worlds * variant_cfg.eval.samples, parameters, speed)
            for variant, variant_cfg in variant_cfgs
            if tested
        ),
    }
    uncounted = False
    try:
        stages["practice"] = sum(
            _practice(source, sizes, chat, parameters, speed_in) for source, sizes in data if source in practised
        )
        stages["planner"] = sum(
            _play(planner_lengths(variant_cfg, chat), variant_cfg.eval.worlds, parameters, speed)
            for _, variant_cfg in variant_cfgs
            if tested and variant_cfg.agent.planner != "none" and variant_cfg.planner.model != SIMULATOR
        ) + sum(
            _play(planner_lengths(source, chat), source.selfplay.groups * source.selfplay.group_size, parameters, speed)
            for source in played
            if source.selfplay.policy == "planner" and source.planner.model != SIMULATOR
        )
    except ValueError:
        uncounted = True
    times = [f"{stage} {about(seconds)}" for stage, seconds in stages.items() if seconds]
    if not times:
        return []
    lines = [
        f"time, about: {', '.join(times)} (an order of magnitude{'; planners and practice not counted' * uncounted})",
        f"time assumes: episodes as long as {WORLDS} of random moves, responses of sampling.max_tokens (plain prompts: "
        f"max_tokens_base); {parameters / 1e6:.0f} million parameters; {speed.many / 1e9:.0f} GFLOP/s in large products and "
        f"{speed.few / 1e9:.0f} in decoding, measured now on {device.type} in 0.2 s, {speed.share:.0%} of it in a whole pass",
    ]
    if stages["sft"] and _dtype(cfg, cfg.sft.precision) == "float32" and has_bfloat16(device):
        gain = speed_in("bfloat16").many / speed.many
        if gain >= WORTHWHILE:
            lines.append(
                f"time: products are {gain:.1f} times as fast in bfloat16 (sft.precision=bfloat16; weights stay float32)"
            )
    return lines


def lengths(cfg: Config, chat: Chat) -> Lengths:
    """Of episodes of random moves under a config's own prompt.

    Raises:
        ValueError: a world that cannot be played so.
    """
    return _lengths(cfg, make_task(cfg), chat, rows=False)


def selfplay_lengths(cfg: Config, chat: Chat) -> Lengths:
    """Of stage 1, with the rows that it makes of such episodes.

    Raises:
        ValueError: a world that cannot be played so, or rows of which nothing can be trained on.
    """
    return _lengths(*selfplay_task(cfg), chat, rows=True)


def _lengths(cfg: Config, task: Task, chat: Chat, *, rows: bool) -> Lengths:
    worlds = _worlds(cfg, task)
    engine = RandomEngine(chat, random_responder(task))
    sampling = dataclasses.replace(sampling_for(task, cfg.sampling), processes=1)
    episodes = [e for e in rollout(engine, chat, task, worlds, sampling, seed=0) if not e.failed]
    if not episodes:
        raise ValueError("every world failed")
    turns = sum(len(episode.turns) for episode in episodes)
    read = sum(len(part) - sum(part.mask) for episode in episodes for part in episode.sequences)
    trained, chosen = 0, list[Row]()
    if rows:
        chosen, _ = training_rows(cfg, episodes)
        trained = sum(len(example.ids) for example in encode_rows(chosen, chat, cfg.sft)[0])
    count = len(episodes)
    per_row = trained / max(1, len(chosen))
    return Lengths(turns / count, read / count, turns / count * sampling.max_tokens, trained / count, per_row)


def planner_lengths(cfg: Config, chat: Chat) -> Lengths:
    """Of an episode that ``agent.planner`` plays, if its model answers as the world does.

    Raises:
        ValueError: a world that cannot be set to a state.
    """
    task = make_task(cfg)
    forecast = Forecast(cfg, task, chat)
    episodes = play_with_planner(forecast, task, _worlds(cfg, task), cfg.agent.planner, cfg.planner, seed=0)
    turns = sum(len(episode.turns) for episode in episodes)
    return _per(len(episodes), turns, forecast.usage)


def plan_lengths(cfg: Config, chat: Chat) -> Lengths:
    """Of a start that practice plans from, if its model answers as the world does.

    Raises:
        ValueError: a world that cannot be set to a state, or starts from which no gain is in reach.
    """
    task = make_task(cfg, state_format=cfg.selfplay.state_format, prompt="base")
    forecast = Forecast(cfg, task, chat)
    config = dataclasses.replace(cfg.planner, values=False)
    worlds = _worlds(cfg, task)
    plans = lesson_rows(forecast, task, worlds, config, whole=cfg.practice.whole, title="time of practice").plans
    tokens = sum(len(example.ids) for example in encode_rows(plans, chat, cfg.sft)[0])
    sizes = _per(len(worlds), len(plans), forecast.usage)
    return dataclasses.replace(sizes, rows=tokens / len(worlds))


def _per(count: int, turns: int, usage: Usage) -> Lengths:
    return Lengths(turns / count, usage.tokens_read / count, usage.tokens_written / count)


def _worlds(cfg: Config, task: Task) -> list[World]:
    return WorldSource(task, "selfplay", first_seed(cfg.seeds, "selfplay")).take(WORLDS)


def measure(device: torch.device, dtype: torch.dtype, rows: int) -> Speed:
    """Times products of two sizes for 0.1 s each; on a CPU by processor time, which other jobs disturb little."""
    threads = torch.get_num_threads()
    # On macOS products run in threads that are not torch's.
    cpu = device.type == "cpu" and sys.platform != "darwin"
    weights = [torch.randn(WIDTH, WIDTH, dtype=dtype, device=device) for _ in range(4)]  # more than fits a cache
    speeds = []
    for count in (1024, rows):
        states, done, started, seconds = torch.randn(count, WIDTH, dtype=dtype, device=device), 0, 0.0, 0.0
        while not done or seconds < 0.1:
            states @ weights[done % 4].T
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            now = time.process_time() / threads if cpu else time.perf_counter()
            if not started:
                started = now  # the first product starts threads and libraries
            else:
                done, seconds = done + 1, now - started
        speeds.append(2 * count * WIDTH**2 * done / seconds)
    many, few = speeds
    return Speed(many, few, CPU_SHARE if device.type == "cpu" else OTHER_SHARE)


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has units for bfloat16 products. A CPU without them is slow even to measure."""
    if device.type == "cpu":
        return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def about(seconds: float) -> str:
    """``"3 min"``, ``"2 h"`` or ``"12 days"``: one or two digits, since no more are known."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{float(f'{seconds / size:.{1 if seconds / size < 10 else 2}g}'):.0f} {unit}"
    return "1 min"


def _play(episode: Lengths, episodes: float, parameters: int, speed: Speed) -> float:
    """Seconds to play ``episodes``: prompts are read at the speed of large products, responses at that of decoding."""
    return 2 * parameters * episodes * (episode.read / speed.many + episode.written / speed.few) / speed.share


def _dtype(cfg: Config, precision: str) -> str:
    """That of a stage's products: autocast lowers that of the weights."""
    return "bfloat16" if "bfloat16" in (cfg.model.dtype, precision) else "float32"


def _pass(cfg: Config, lora: int, parameters: int, speed: Speed) -> float:
    """Seconds to train on a token: 2 FLOP per parameter forward, 2 for the states' and 2 for the weights' gradient."""
    flops = 2 + 2 + (0 if lora else 2) + (2 if cfg.model.gradient_checkpointing else 0)
    return flops * parameters / speed.many / speed.share


def _selfplay(cfg: Config, episode: Lengths, parameters: int, speed_in: Measured) -> float:
    play = cfg.selfplay
    if play.policy != "model":
        return 0.0
    warm_up = play.warmup_rows * episode.row * _pass(cfg, cfg.sft.lora_rank, parameters, _tuning_speed(cfg, speed_in))
    return warm_up + _play(episode, play.groups * play.group_size, parameters, speed_in(cfg.model.dtype))


def _sft(cfg: Config, episode: Lengths, parameters: int, speed_in: Measured) -> float:
    play = cfg.selfplay
    tokens = play.groups * play.group_size * episode.rows * (1 - play.val_fraction)
    return _tune(cfg, tokens, parameters, speed_in)


def _tune(cfg: Config, tokens: float, parameters: int, speed_in: Measured) -> float:
    """Seconds of stage 2 on rows of ``tokens`` tokens."""
    return tokens * cfg.sft.epochs * _pass(cfg, cfg.sft.lora_rank, parameters, _tuning_speed(cfg, speed_in))


def _tuning_speed(cfg: Config, speed_in: Measured) -> Speed:
    return speed_in(_dtype(cfg, cfg.sft.precision))


def _practice(cfg: Config, episode: Lengths, chat: Chat, parameters: int, speed_in: Measured) -> float:
    """Seconds of all rounds. ``episode`` is one of stage 1."""
    practice, start = cfg.practice, plan_lengths(cfg, chat)
    speed, tuning_speed = speed_in(cfg.model.dtype), _tuning_speed(cfg, speed_in)
    planning = _play(start, practice.worlds, parameters, speed)
    tokens = start.rows + (practice.rehearsal + practice.values) * start.turns * episode.row
    tuning = practice.worlds * tokens * practice.epochs * _pass(cfg, cfg.sft.lora_rank, parameters, tuning_speed)
    playing = _play(lengths(cfg, chat), practice.groups * practice.group_size, parameters, speed)
    again = playing + _sft(cfg, episode, parameters, speed_in)  # before every further round
    return practice.rounds * (planning + tuning) + (practice.rounds - 1) * again


def _ppo_step(cfg: Config, episode: Lengths, parameters: int, speed_in: Measured) -> float:
    ppo = cfg.ppo
    speed = speed_in(_dtype(cfg, ppo.precision))
    episodes = ppo.groups * ppo.group_size
    validated = ppo.val_worlds * ppo.val_samples / ppo.val_every if ppo.val_every else 0
    values = ppo.estimator in WITH_VALUES
    passes = ppo.epochs * _pass(cfg, ppo.lora_rank, parameters, speed)
    if values and ppo.critic == "model":
        passes += ppo.epochs * _pass(cfg, ppo.critic_lora_rank, parameters, speed)
    scored = bool(values) + ppo.needs_reference  # without gradients, before the update
    passes += scored * 2 * parameters / speed.many / speed.share
    kept_share = 1.0 if ppo.filter == "off" else ppo.filter_ratio
    played = _play(episode, episodes + validated, parameters, speed_in(cfg.model.dtype))
    return played + kept_share * episodes * episode.trained * passes


def _given_tokens(cfg: Config, data: str, chat: Chat) -> int:
    """Tokens of the training rows of ``sft.data``."""
    rows = read_rows(data_files(Path(data))[0])[0]
    return sum(len(example.ids) for example in encode_rows(rows, chat, cfg.sft, required=False)[0])


def _distinct(values: Iterable[T]) -> list[T]:
    distinct: list[T] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct
