"""The paper's Table 2 (arXiv 2510.15047), Pass@1 / Pass@8 in percent after 1,000 PPO steps, by our names of variants and worlds."""

from __future__ import annotations

WORLDS = ("sokoban", "frozen_lake", "sudoku")

_TABLE: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {
    "Qwen2.5-0.5B-Instruct": {
        "base": ((5.5, 25.8), (8.1, 32.8), (0.0, 0.0)),
        "vanilla": ((16.9, 35.9), (22.8, 30.1), (0.0, 0.0)),
        "se": ((20.4, 38.7), (24.2, 26.6), (4.5, 14.1)),
        "vagen": ((33.3, 44.9), (25.8, 40.6), (0.1, 0.8)),
        "sft": ((1.8, 11.7), (3.1, 15.6), (0.1, 0.8)),
        "spa": ((36.7, 45.3), (46.9, 65.6), (18.2, 43.8)),
    },
    "Qwen2.5-1.5B-Instruct": {
        "base": ((16.3, 47.3), (17.2, 49.2), (1.6, 11.3)),
        "vanilla": ((25.6, 34.0), (22.1, 30.7), (0.0, 0.0)),
        "se": ((52.7, 53.9), (27.6, 34.8), (39.1, 72.3)),
        "vagen": ((44.5, 50.0), (37.7, 43.0), (0.0, 0.0)),
        "sft": ((8.3, 36.7), (9.8, 43.8), (3.5, 24.2)),
        "spa": ((59.8, 69.5), (70.9, 75.0), (59.6, 94.9)),
    },
    "Qwen2.5-3B": {
        "base": ((12.5, 35.9), (6.9, 26.9), (0.0, 0.0)),
        "vanilla": ((31.4, 35.5), (7.6, 16.0), (0.0, 0.0)),
        "se": ((26.2, 27.7), (24.7, 35.5), (24.1, 26.2)),
        "vagen": ((31.9, 43.0), (30.7, 34.0), (0.0, 0.0)),
        "sft": ((6.0, 29.7), (1.6, 10.5), (0.3, 2.7)),
        "spa": ((49.7, 58.2), (41.3, 46.1), (69.9, 89.8)),
    },
    "Llama-3.2-1B-Instruct": {
        "base": ((8.3, 33.2), (10.2, 41.0), (0.0, 0.0)),
        "vanilla": ((21.2, 39.8), (10.8, 24.6), (0.1, 1.2)),
        "se": ((31.6, 44.1), (19.3, 29.7), (45.0, 71.1)),
        "vagen": ((47.4, 50.8), (24.5, 29.3), (0.1, 0.8)),
        "sft": ((6.3, 27.7), (11.4, 38.3), (1.3, 9.8)),
        "spa": ((53.0, 68.0), (64.8, 71.1), (81.3, 100.0)),
    },
}

# Sokoban only: Tables 3 to 5.
_ABLATED = "Qwen2.5-1.5B-Instruct"
_ABLATIONS: dict[str, tuple[float, float]] = {
    "epochs_1": (29.2, 52.7),
    "epochs_5": (59.8, 69.5),
    "random_policy_1_epoch": (0.14, 0.39),
    "random_policy": (20.2, 50.0),
    "self_belief": (39.2, 44.2),
    "no_coordinates": (36.3, 40.6),
}


MODELS = tuple(_TABLE)


def paper_numbers(world: str, variant: str, model: str) -> tuple[float, float] | None:
    """Pass@1 and Pass@8 in percent; None if the paper has no such cell."""
    if world == "sokoban" and model == _ABLATED and variant in _ABLATIONS:
        return _ABLATIONS[variant]
    row = _TABLE.get(model, {}).get(variant)
    return row[WORLDS.index(world)] if row and world in WORLDS else None
