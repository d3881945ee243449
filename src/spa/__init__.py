"""SPA: self-play agents that learn how a world works before they are rewarded for winning in it.

Reproduces "Internalizing World Models via Self-Play Finetuning for Agentic RL" (arXiv 2510.15047).

::

    import spa

    run = spa.run("sokoban_easy", "ppo.steps=20", out="runs/first")
    print(run.table())
    run.episodes("spa")[0]

Importing this package imports no torch: each name below is imported on first use (PEP 562).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spa.agent.episode import Episode as Episode
    from spa.agent.episode import Turn as Turn
    from spa.agent.policy import Policy as Policy
    from spa.api import Comparison as Comparison
    from spa.api import Run as Run
    from spa.api import compare as compare
    from spa.api import episodes_frame as episodes_frame
    from spa.api import load_config as load_config
    from spa.api import play as play
    from spa.api import run as run
    from spa.config.schema import Config as Config
    from spa.envs.base import TextEnv as TextEnv
    from spa.envs.registry import make_env as make_env
    from spa.evaluate.summary import EvalResult as EvalResult
    from spa.report.compare import RunComparison as RunComparison

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "spa.api",
    "Config": "spa.config.schema",
    "Episode": "spa.agent.episode",
    "EvalResult": "spa.evaluate.summary",
    "Policy": "spa.agent.policy",
    "Run": "spa.api",
    "RunComparison": "spa.report.compare",
    "TextEnv": "spa.envs",
    "Turn": "spa.agent.episode",
    "compare": "spa.api",
    "episodes_frame": "spa.api",
    "load_config": "spa.api",
    "make_env": "spa.envs",
    "play": "spa.api",
    "run": "spa.api",
}
__all__ = ["__version__", *_HOMES]


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'spa' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
