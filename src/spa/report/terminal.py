"""What a finished run prints beside its table."""

from __future__ import annotations

from spa.common.tables import text_table
from spa.report.charts import series
from spa.report.data import ReportData

_COLUMNS = 10  # steps shown


def learning_curves(data: ReportData) -> list[str]:
    """Validation Pass@1 in percent by PPO step, a row per variant; empty if nothing was validated."""
    curves = {
        name: {int(step): value for step, value in series(variant.metrics, "val/pass@1")}
        for name, variant in data.variants.items()
    }
    curves = {name: curve for name, curve in curves.items() if curve}
    steps = sorted({step for curve in curves.values() for step in curve})
    if not steps:
        return []
    stride = -(-len(steps) // _COLUMNS)
    chosen = steps[::-1][::stride][::-1]  # the last step is always among them
    rows = [
        [name, *(f"{100 * curve[step]:.1f}" if step in curve else "-" for step in chosen)]
        for name, curve in curves.items()
    ]
    return text_table(["validation Pass@1, at step", *map(str, chosen)], rows)
