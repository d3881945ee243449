"""What a finished run prints beside its table."""

from __future__ import annotations

from spa.report.data import ReportData, VariantReport
from spa.report.terminal import learning_curves


def curve(*steps: int) -> VariantReport:
    return VariantReport(
        metrics=[{"step": step, "val/pass@1": step / 100} for step in steps] + [{"step": 99, "train/success": 1}]
    )


def test_a_row_per_trained_variant() -> None:
    data = ReportData("demo", variants={"base": VariantReport(), "vanilla": curve(0, 15, 30), "spa": curve(0, 30)})
    assert learning_curves(data) == [
        "validation Pass@1, at step    0    15    30",
        "--------------------------  ---  ----  ----",
        "vanilla                     0.0  15.0  30.0",
        "spa                         0.0     -  30.0",
    ]
    assert learning_curves(ReportData("empty")) == []


def test_of_many_steps_some_are_shown_and_the_last() -> None:
    header = learning_curves(ReportData("long", variants={"spa": curve(*range(0, 100, 2))}))[0].split()
    assert header[-1] == "98" and len(header) <= 14
