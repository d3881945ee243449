"""What the trackers get besides the curves of training: an evaluation's figures and episodes, and the final comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spa.common.secrets import redact, shown
from spa.config.schema import Config
from spa.evaluate.samples import SAMPLES, read_samples
from spa.evaluate.summary import EvalResult, comparison_cells, comparison_table
from spa.report.collect import read_results
from spa.runs.folder import variant_names, variants_folder
from spa.runs.trackers import Cell, make_trackers

_EPISODES = 200  # in the table of a tracker
_HEADER = ("seed", "member", "success", "status", "reward", "turns", "actions", "last response")


def track_evaluation(cfg: Config, variant: str, folder: Path) -> None:
    """Sends the result of an evaluation in ``folder``, and a table of its first episodes, to the trackers of the config."""
    result = EvalResult.read(folder / "result.json")
    rows: list[Sequence[Cell]] = []
    for episode in read_samples(folder / SAMPLES)[:_EPISODES]:
        actions = ", ".join(action for turn in episode.turns for action in turn.executed)
        answer = episode.turns[-1].response if episode.turns else redact(episode.error)
        numbers = (episode.success, episode.status, episode.total_reward, len(episode.turns))
        rows.append((episode.seed, episode.member, *numbers, actions, answer))
    trackers = make_trackers(cfg.report.trackers, folder, redact(f"{cfg.name}, evaluation, {variant}"), shown(cfg))
    figures = {**result.metrics, **result.world_model}
    trackers.log(0, {f"eval/{name}": value for name, value in figures.items()})
    trackers.table("eval/episodes", _HEADER, rows)
    trackers.close()


def track_comparison(cfg: Config, out: Path) -> None:
    """Sends the comparison of a run's variants to the trackers of the config."""
    folders = [variants_folder(out) / name / "eval" for name in variant_names(out, cfg)]
    rows = comparison_table(read_results(*folders))
    if not rows:
        return
    header, cells = comparison_cells(rows)
    table = [(row.variant, *line) for row, line in zip(rows, cells, strict=True)]
    trackers = make_trackers(cfg.report.trackers, out, redact(f"{cfg.name}, comparison"), shown(cfg))
    trackers.log(0, {f"comparison/{row.variant}": row.pass_1.mean for row in rows if row.pass_1 is not None})
    trackers.table("comparison", ("variant", *header), table)
    trackers.close()
