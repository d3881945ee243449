"""Pass@k with intervals, world-model accuracy, and the comparison of variants. Imports no torch."""

from spa.data.states import cell_accuracy, grid_part
from spa.evaluate.bootstrap import Interval, bootstrap_difference, bootstrap_mean, percent
from spa.evaluate.passk import pass_at_k
from spa.evaluate.summary import (
    ComparisonRow,
    EvalResult,
    WorldResult,
    comparison_table,
    paired_difference,
    render_text,
    summarize,
)
from spa.evaluate.world_model import world_model_metrics

__all__ = [
    "ComparisonRow",
    "EvalResult",
    "Interval",
    "WorldResult",
    "bootstrap_difference",
    "bootstrap_mean",
    "cell_accuracy",
    "comparison_table",
    "grid_part",
    "paired_difference",
    "pass_at_k",
    "percent",
    "render_text",
    "summarize",
    "world_model_metrics",
]
