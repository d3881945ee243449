"""The data of a report; everything but the name is optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spa.agent.episode import Episode
from spa.evaluate.summary import EvalResult
from spa.runs.trainings import Training

MetricsRow = Mapping[str, Any]
"""One logged row: ``step`` and any metrics (``val/pass@1``, ``losses/entropy``, ...); other values are ignored."""


@dataclass
class VariantReport:
    """One variant: its rows of ``metrics.jsonl``, its final evaluation and episodes to show.

    ``training`` holds some of the training episodes with their PPO step.
    """

    metrics: Sequence[MetricsRow] = ()
    result: EvalResult | None = None
    episodes: Sequence[Episode] = ()
    training: Sequence[tuple[int, Episode]] = ()


@dataclass(frozen=True)
class Correction:
    """A response of stage 1 as the model wrote it (None: the row was made without one) and as it was trained on."""

    written: str | None
    trained: str
    executed: Sequence[str]


@dataclass(frozen=True)
class SelfPlay:
    """One stage 1: its ``stats.json`` and some of its rows."""

    title: str
    stats: Mapping[str, Any]
    samples: Sequence[Correction] = ()


@dataclass
class ReportData:
    """Everything that a report shows; what is missing or empty is left out of the page.

    Attributes:
        name: of the run; the title.
        config: the resolved config, nested.
        versions: package -> version.
        machine: a fact -> its value, e.g. ``{"CPU": "2 cores", "memory": "8 GiB"}``.
        variants: in the order of the table.
        sft: logged rows of stage 2 (``train/loss``, ``val/loss``, ``world_model/*``).
        sft_of_variants: the same for variants with their own stage 2.
        overlaps: pair of splits -> number of worlds in both; must be 0.
        symmetric_overlaps: the same up to rotation and reflection of worlds; empty if unknown.
        untaught: variants whose practice found nothing to teach, so that it left stage 2's policy as it was.
        timings: stage -> seconds.
        trained: what the variants' training took, for the verdict.
        planned: the variants that commands were to run.
        rl: some of them train by RL.
        error: how the last command failed; empty if it did not.
        created: when the run was made, as printed.
        episodes_per_variant: maximum number of episodes shown per variant, of the evaluation and of training each.
        all_episodes: these are shown whatever the size of the page.
        selfplay: the run's stage 1, then those of variants with their own.
        info: ``run.json``.
        changed: setting -> its value in the packaged config of the run's name, and here, where they differ.
        decode: a token's text; None if the tokenizer is not there.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, VariantReport] = field(default_factory=dict)
    sft: Sequence[MetricsRow] = ()
    sft_of_variants: Mapping[str, Sequence[MetricsRow]] = field(default_factory=dict)
    overlaps: Mapping[str, int] = field(default_factory=dict)
    symmetric_overlaps: Mapping[str, int] = field(default_factory=dict)
    untaught: Sequence[str] = ()
    timings: Mapping[str, float] = field(default_factory=dict)
    trained: Mapping[str, Training] = field(default_factory=dict)
    planned: Sequence[str] = ()
    rl: bool = True
    error: str = ""
    created: str = ""
    episodes_per_variant: int = 6
    all_episodes: bool = False
    selfplay: Sequence[SelfPlay] = ()
    info: Mapping[str, Any] = field(default_factory=dict)
    changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    decode: Callable[[int], str] | None = None
