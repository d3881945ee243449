"""The stages of a run under one clock: which comes, and the time left of all of them. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spa.common.progress import duration, note, set_outlook
from spa.config.schema import Config, VariantConfig
from spa.config.variants import shared_stages, source_config, variant_config
from spa.runs.folder import variants_folder
from spa.runs.record import DONE


@dataclass(frozen=True)
class Planned:
    """A stage to come: ``size`` is its work, in the unit of its ``kind`` (episodes, passes over them, rounds)."""

    folder: Path
    title: str
    kind: str
    size: float


def planned_stages(cfg: Config, out: Path, variants: Sequence[VariantConfig]) -> list[Planned]:
    """The stages of a run in their order."""
    played, models, practised = shared_stages(cfg, out, variants)
    stages = []
    for folder, variant in played.items():
        selfplay = source_config(cfg, variant).selfplay
        stages.append(
            Planned(folder, folder.name, f"self-play, {selfplay.policy}", selfplay.groups * selfplay.group_size)
        )
    for folder, variant in models.items():
        source = source_config(cfg, variant)
        episodes = source.selfplay.groups * source.selfplay.group_size
        stages.append(Planned(folder, folder.name, "SFT", source.sft.epochs * episodes))
    for folder, variant in practised.items():
        practice = source_config(cfg, variant).practice
        stages.append(Planned(folder, folder.name, "practice", practice.rounds * practice.worlds))
    steps: dict[str, int] = {}
    for variant in variants:
        name, own_config = variant.name, variant_config(cfg, variant)
        folder = variants_folder(out) / name
        if variant.rl:
            ppo = own_config.ppo
            steps[name] = ppo.steps
            size = (ppo.steps - steps.get(variant.continues, 0)) * ppo.groups * ppo.group_size
            stages.append(Planned(folder / "ppo", f"PPO, variant {name}", "PPO", size))
        kind = f"evaluation, planner {own_config.agent.planner}"
        size = own_config.eval.worlds * own_config.eval.samples
        stages.append(Planned(folder / "eval", f"evaluation, variant {name}", kind, size))
    return stages


class Schedule:
    """Announces stages (``[2/7] SFT, 3 min 05 s since the start, ~12 min left of the run``) and estimates the time left.

    A stage of a kind takes as long per unit of size as those of its kind that this command has run from their beginning and, during
    PPO, as its bar says. There is no estimate as long as a stage to come is of a kind not seen yet.
    """

    def __init__(self, planned: Sequence[Planned], clock: Callable[[], float] = time.monotonic) -> None:
        self.planned = list(planned)
        self._number = 0
        self._clock, self._started = clock, clock()
        self._seen: dict[str, tuple[float, float]] = {}  # kind -> seconds, size
        self._measured = False  # whether the present stage starts from its beginning
        self._begun = self._started

    def __enter__(self) -> Schedule:
        set_outlook(self.outlook)
        return self

    def __exit__(self, *_: object) -> None:
        set_outlook(None)

    def begin(self, folder: Path) -> None:
        """Announces the stage of ``folder``, which is the next."""
        now = self._clock()
        self._end(now)
        self._number = next(i for i, stage in enumerate(self.planned, 1) if stage.folder == folder)
        self._begun, self._measured = now, not folder.exists()
        passed = f", {duration(now - self._started)} since the start" if self._number > 1 else ""
        left = self.outlook("", None)
        note(
            f"[{self._number}/{len(self.planned)}] {self._stage.title}{passed}{f', {left} of the run' if left else ''}"
        )

    @property
    def _stage(self) -> Planned:
        return self.planned[self._number - 1]

    def _end(self, now: float) -> None:
        if self._number and self._measured:
            seconds, size = self._seen.get(self._stage.kind, (0.0, 0.0))
            self._seen[self._stage.kind] = seconds + now - self._begun, size + self._stage.size

    def outlook(self, title: str, left: tuple[float, float] | None) -> str:
        """``~12 min left``, or nothing where that cannot be said.

        Args:
            title: of the outermost bar.
            left: the seconds that it has left and the share that this is; None if unknown.
        """
        if not self._number:
            return ""
        paces = {kind: seconds / size for kind, (seconds, size) in self._seen.items() if size}
        stage = self._stage
        if left is not None and title == stage.title and left[1] > 0 and stage.size:
            paces[stage.kind] = left[0] / (left[1] * stage.size)
            total = left[0]
        elif stage.kind in paces:
            total = max(0.0, paces[stage.kind] * stage.size - (self._clock() - self._begun))
        else:
            return ""
        for later in self.planned[self._number :]:
            if not (later.folder / DONE).is_file():
                if later.kind not in paces:
                    return ""
                total += paces[later.kind] * later.size
        return f"~{_rough(total)} left"


def _rough(seconds: float) -> str:
    """Whole minutes, or tens of them beyond an hour: an estimate has no seconds."""
    minutes = round(seconds / 60)
    return "1 min" if minutes < 2 else f"{minutes} min" if minutes < 60 else duration(600 * round(seconds / 600))
