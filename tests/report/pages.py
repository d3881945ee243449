"""Made-up runs for the tests of the report and for ``make screenshots``: real worlds, played at random."""

from __future__ import annotations

import random

from spa.agent.episode import Episode, TokenSequence, Turn
from spa.envs import make_env
from spa.evaluate.summary import EvalResult
from spa.report.data import Correction, ReportData, SelfPlay, VariantReport

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
    "<!--<script> \u202eright to left\u202c \x00\x07\x1b[31m\ud800 &lt;b&gt; "
)
ESTIMATES = {"advantages": [-1.2, -0.8, -0.4, 0.0, 0.4, 0.8, 1.2], "values": [0.5] * 7}  # of a turn's sampled tokens
PIECES = ["<think>", "<observation>", "seen", "</observation>", "<prediction>", "next", "</prediction>", "</think>"]


def play(
    world: str,
    seed: int,
    rng: random.Random,
    *,
    skill: float,
    told: bool = False,
    planned: bool = False,
    turns: int = 6,
) -> Episode:
    """An episode at random, with predictions (``told``) or imagined states (``planned``) that are right at rate ``skill``."""
    env = make_env(world)
    state, info = env.reset(seed=seed)
    episode = Episode(world, seed, seed, content=str(seed), prompt="world_model" if told else "base", probe=told)
    for index in range(turns):
        actions = list(env.actions) or [f"{rng.randint(1, 4)},{rng.randint(1, 4)},{rng.randint(1, 4)}"]
        action = rng.choice(actions)
        following, reward, terminated, _, info = env.step(action)
        shown = following if rng.random() < skill else state
        written = f"<think><observation>{state}</observation><prediction>{shown}</prediction></think>" if told else ""
        turn = Turn(index, state, state, f"{written}<answer>{action}</answer>", following, rng.random() < 0.9)
        turn.prediction, turn.observation = (shown, state) if told else (None, None)
        turn.actions = turn.executed = [action]
        turn.reward, turn.ended = float(reward), terminated
        if planned:
            step = {"action": action, "state": shown, "reward": 0.0, "ended": False, "probability": 0.97}
            turn.imagined = {"path": [step, step], "values": {action: 0.7}, "questions": 12}
        episode.turns.append(turn)
        tokens = TokenSequence()
        tokens.append([0], turn=index)
        tokens.append(range(1, 8), mask=1, logprobs=[-0.3 * i for i in range(7)], turn=index)
        episode.sequences.append(tokens)
        state = following
        if terminated:
            break
    episode.success = bool(info.get("success")) or rng.random() < skill / 2
    return episode


def made_up(world: str = "frozen_lake", text: str = "", worlds: int = 12) -> ReportData:
    """A run of four variants; ``text`` is added wherever a model or a user can write."""
    rng = random.Random(0)
    variants = {}
    for name, skill in (("base", 0.2), ("vanilla", 0.4), ("spa", 0.9), ("spa+lookahead", 0.95)):
        planned = "+" in name
        played = [play(world, seed, rng, skill=skill, planned=planned) for seed in range(worlds)]
        told = [] if planned else [play(world, seed, rng, skill=skill, told=True) for seed in range(worlds)]
        for episode in [*played, *told] if text else []:
            episode.task += text[:200]
            for turn in episode.turns:
                turn.response += text
                turn.prediction = turn.prediction and turn.prediction + text
        rows = [
            {
                "step": step,
                "val/pass@1": skill * step / 20 + 0.05 * rng.random(),
                "train/success": 0.5 * skill + 0.2 * rng.random(),
                "losses/entropy": 1.2 - 0.04 * step + 0.1 * rng.random(),
                "losses/approx_kl": 0.01 * rng.random(),
            }
            for step in range(21)
        ]
        trains = name in ("vanilla", "spa")
        training = [(s, play(world, 100 + s + i, rng, skill=skill)) for s in (1, 10, 20) for i in (0, 1) if trains]
        for _, episode in training:
            episode.estimates = {name: [each] * len(episode.turns) for name, each in ESTIMATES.items()}
        measured = {} if planned else {"world_model/prediction_em": skill, "world_model/prediction_cell_acc": skill}
        result = EvalResult.from_episodes(name, played, [1], 200, world_model=measured)
        variants[name] = VariantReport(rows if trains else (), result, [*played, *told], training)
    state, _ = make_env(world).reset(seed=3)
    row = f"<think><observation>{state}{text}</observation><prediction>{state}</prediction></think><answer>Up</answer>"
    samples = [Correction(row.replace("_", "O", 2 + i), row, ["Up"]) for i in range(3)]
    return ReportData(
        name=f"{world}, made up{text}",
        config={"name": world, "env": {"id": world, "tag": world + text, "settings": {}}, "ppo": {"steps": 20}},
        versions={"spa": "0.1", "torch": "2.9" + text},
        machine={"processor": "two cores" + text},
        variants=variants,
        sft=[{"step": s, "train/loss": 1 / s, "val/loss": 1.1 / s} for s in range(1, 30)],
        overlaps={"train&test": 0},
        timings={"self-play": 80.0, "SFT": 61.0, "PPO, vanilla": 200.0, "PPO, spa": 220.0},
        created="2026-01-01T00:00:00+00:00",
        selfplay=[SelfPlay("", {"episodes": 600, "turns": 3317, "rows_train": 2100, "rows_val": 500}, samples)],
        info={"commands": [{"command": "run" + text, "argv": ["spa", "run", world], "git": {"commit": "0" * 40}}]},
        changed={"ppo.steps": ("50", "20" + text)},
        decode=lambda token: PIECES[token],
    )
