"""The recipe from Python: ``import spa`` offers these names. Imports no torch until something is played or trained."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from spa.common.files import expanded
from spa.config.load import load_config as _load_config
from spa.config.schema import Config

if TYPE_CHECKING:
    from spa.agent.episode import Episode
    from spa.evaluate.summary import ComparisonRow, EvalResult
    from spa.report.compare import RunComparison


def load_config(name: str | Path | Config | None = None, *settings: str) -> Config:
    """A checked config: a packaged name or YAML file, and ``key=value`` settings as on the command line.

    Raises:
        ValueError: one line that names the unknown key or the wrong value, and the nearest known one.
    """
    if not all(isinstance(setting, str) for setting in settings):
        raise ValueError(
            "settings are texts, each an argument of its own: load_config(name, 'ppo.steps=20', 'eval.worlds=8')"
        )
    if isinstance(name, Config):
        if settings:
            raise ValueError("settings are for a config given by its name; assign to a Config's fields instead")
        return name
    if name is not None and not isinstance(name, (str, Path)):
        raise ValueError(
            f"a config is a name, a YAML file or a Config, not {name!r}: settings follow as 'ppo.steps=20', and a world of your "
            "own is 'module:Class' ('__main__:Class' in a notebook)"
        )
    return _load_config(name, settings)


def _task(config: str | Path | Config, settings: Sequence[str]) -> Config:
    """``load_config`` of a config that must be given."""
    if config is None:
        raise ValueError("config is None: give a config's name or file, such as 'frozen_lake', or a Config")
    return load_config(config, *settings)


def _folder(folder: str | Path) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"the folder of a run is a path, not {folder!r}")
    if not str(folder):
        raise ValueError("the folder of a run is empty: give its path, as in 'runs/first'")
    return expanded(folder)


def run(
    config: str | Path | Config,
    *settings: str,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Runs all stages for all variants, as ``spa run`` does, and returns the finished run.

    Args:
        config: a config's name or YAML file, or a ``Config``.
        settings: ``key=value``, as on the command line.
        out: the run folder; default ``runs/NAME-TIME``.
        resume: continue what ``out`` holds; a folder that holds nothing yet is begun.
        quiet: neither progress on stderr nor the table on stdout.

    Raises:
        ValueError: a wrong setting, model or world, before anything is written; or a variant whose training failed, after
            the others have finished.
    """
    from spa import pipeline
    from spa.common.progress import quieted
    from spa.models.load import restoring_threads
    from spa.runs.folder import default_folder

    if resume and out is None:
        raise ValueError("resume=True continues the run in out=: name its folder")
    cfg = _task(config, settings)
    folder = _folder(out) if out is not None else default_folder(cfg)
    with quieted(quiet), restoring_threads():
        pipeline.run(cfg, folder, resume=resume, table=not quiet)
    return Run(folder)


def play(
    config: str | Path | Config,
    *settings: str,
    model: str | Path | None = None,
    worlds: int = 1,
    samples: int = 1,
    split: str = "test",
    skip: int = 0,
    on_turn: Callable[[Episode, bool], None] | None = None,
    take_over: Callable[[str], str] | None = None,
    quiet: bool = False,
) -> list[Episode]:
    """Plays worlds with a model, or with its planner if ``agent.planner`` is set.

    Args:
        config: as ``run``, or the folder of an exported model, which is played in its own task.
        settings: as ``run``.
        model: a checkpoint, a stage's folder or a hub name; default ``model.path``, or the chat server of ``engine``.
        worlds: number of worlds of ``split`` (test, val, selfplay or train), after the first ``skip``.
        samples: episodes per world.
        on_turn: called after each turn with the episode and whether it has ended (of those that another process plays only at
            their end); replaces the progress bar.
        take_over: given the state before each turn, returns a person's actions for it as text (``"Up || Right"``);
            empty lets the model play.
        quiet: no progress on stderr.

    Returns:
        ``worlds * samples`` episodes, world by world.

    Raises:
        ValueError: a wrong setting, model or world.
    """
    from spa.agent.policy import Policy, local_engine, make_task
    from spa.agent.take_over import play_with_person
    from spa.agent.worlds import SPLITS, WorldSource
    from spa.common.names import choose
    from spa.common.progress import quieted
    from spa.config.seeds import first_seed
    from spa.evaluate.planned import planning_model
    from spa.models.load import restoring_threads
    from spa.planning.play import play_with_planner
    from spa.preflight import check_planner
    from spa.runs.folder import TASK
    from spa.runs.stage import model_of

    counts: Sequence[Any] = (worlds, samples, skip)
    if (
        not all(isinstance(n, Integral) and not isinstance(n, bool) for n in counts)
        or min(worlds, samples, skip + 1) < 1
    ):
        raise ValueError(
            f"worlds={worlds!r} and samples={samples!r} must be whole numbers from 1, skip={skip!r} one from 0"
        )
    if take_over is not None and samples != 1:
        raise ValueError("take_over plays each world once: leave out samples")
    if isinstance(model, Run):
        raise ValueError("model: a run has several models: use run.play('spa'), or model=run.model('spa')")
    if model is not None and not isinstance(model, str | os.PathLike):
        raise ValueError(f"model is a path or a hub name, not {model!r}")
    if isinstance(config, str | os.PathLike) and (expanded(config) / TASK).is_file():
        folder = expanded(config)
        config, model, settings = folder / TASK, model or folder, (f"model={folder}", *settings)
    path = model_of(str(model), "model") if model else None
    preset = [f"model.path={path}"] if path and not isinstance(config, Config) else []
    cfg = _task(config, [*settings, *preset])
    if take_over is not None and cfg.agent.planner != "none":
        raise ValueError("a planner cannot be taken over: add agent.planner=none")
    task = make_task(cfg)
    check_planner(cfg, task.started_env())
    source = WorldSource(task, choose("split", split, SPLITS), first_seed(cfg.seeds, split), unique=True)
    chosen = source.take(skip + worlds)[skip:]
    seen: set[tuple[int, int]] = set()  # episodes whose end was told

    def tell(episode: Episode, ended: bool) -> None:
        assert on_turn is not None
        on_turn(episode, ended)
        if ended:
            seen.add((episode.group, episode.member))

    play_settings: dict[str, Any] = {"seed": cfg.seeds.run, "on_turn": tell if on_turn else None}
    with (
        quieted(quiet),
        restoring_threads(),
        closing(Policy.load(cfg, path, engine=local_engine(cfg) if path else cfg.engine)) as policy,
    ):
        if take_over is not None:
            episodes = play_with_person(policy, task, chosen, take_over, **play_settings)
        elif cfg.agent.planner == "none":
            episodes = policy.play(task, chosen, samples=samples, **play_settings)
        else:
            with planning_model(cfg, policy, task) as world_model:
                kind = cfg.agent.planner
                episodes = play_with_planner(
                    world_model, task, chosen, kind, cfg.planner, group_size=samples, **play_settings
                )
    for episode in episodes if on_turn else ():
        if (episode.group, episode.member) not in seen:
            tell(episode, True)
    return episodes


def compare(*runs: str | Path | Run) -> RunComparison:
    """Paired differences between runs, on the test worlds that all of them played; the first run is the reference.

    Args:
        runs: folders of runs; those that differ in their seed alone are taken together.

    Raises:
        ValueError: fewer than two runs, or runs that cannot be compared (no variant or test world in common, other tasks).
    """
    from spa.report.compare import compare_runs

    if not all(isinstance(run, (str, Path, Run)) for run in runs):
        raise ValueError("runs are folders, each an argument of its own: spa.compare('runs/first', 'runs/second')")
    return compare_runs([run.folder if isinstance(run, Run) else _folder(run) for run in runs])


class HowToPlay(TypedDict, total=False):
    """Arguments of ``play`` that ``Run.play`` passes on."""

    worlds: int
    samples: int
    split: str
    skip: int
    on_turn: Callable[[Episode, bool], None] | None
    take_over: Callable[[str], str] | None
    quiet: bool


class Run:
    """A run folder, finished or not: its config, comparison, metrics and episodes.

    Raises:
        ValueError: the folder holds no run.
    """

    def __init__(self, folder: str | Path) -> None:
        from spa.runs.folder import RunFolder

        self.folder = _folder(folder)
        self.config = RunFolder(self.folder).config()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.config.name}; evaluated: {', '.join(self.results()) or 'nothing'})"

    @property
    def variants(self) -> list[str]:
        """The variants with a folder, in the order of the config."""
        from spa.runs.folder import variant_names

        return variant_names(self.folder, self.config)

    @property
    def recipe(self) -> str:
        """The variant of the recipe: the one that the verdict is about."""
        from spa.evaluate.verdict import VariantScore, main_variant

        names = self.variants or self.config.variants
        return main_variant({each: VariantScore({}) for each in names}) or names[-1]

    def results(self) -> dict[str, EvalResult]:
        """The evaluation of each variant, planners included, as far as they are finished."""
        from spa.report.collect import read_results

        return read_results(*(self._stage(name, "eval") for name in self.variants))

    def table(self, baseline: str | None = None) -> Comparison:
        """Pass@1, Pass@k and paired differences to ``baseline`` (default: plain RL) with 95% intervals, under a verdict in words.

        Raises:
            ValueError: ``baseline`` is not evaluated.
        """
        from spa.common.names import choose
        from spa.evaluate.summary import comparison_table
        from spa.runs.trainings import trainings

        results = self.results()
        if baseline is not None:
            choose("evaluated variant", baseline, results)
        return Comparison(comparison_table(results, baseline or "vanilla", trainings(self.folder)))

    def metrics(self, variant: str | None = None, stage: str = "ppo") -> list[dict[str, Any]]:
        """The logged rows of a stage: ``ppo`` of a variant, or ``sft`` (of the run without a variant); none before it has begun."""
        from spa.common.names import choose
        from spa.runs.metrics import read_metrics

        choose("stage with metrics", stage, ["ppo", "sft"])
        return read_metrics(self._stage(variant, stage) / "metrics.jsonl")

    def episodes(self, variant: str | None = None, stage: str = "eval") -> list[Episode]:
        """The stored episodes of a variant's ``eval`` (every sample that its table counts), ``world_model`` (with the prompt that
        asks for predictions) or ``planner``, or of ``selfplay`` (of the run without a variant). Those of ``eval`` have no token
        ids.

        Raises:
            ValueError: the stage has none yet, or never has.
        """
        from spa.agent.episode import read_episodes
        from spa.common.names import choose
        from spa.evaluate.samples import SAMPLES, read_samples

        choose("stage with episodes", stage, ["eval", "world_model", "planner", "selfplay"])
        folder = self._stage(variant, "eval" if stage in ("planner", "world_model") else stage)
        if stage == "planner":
            return list(read_episodes(folder / "planner_episodes.jsonl"))
        if stage == "eval" and (folder / SAMPLES).is_file():
            return read_samples(folder / SAMPLES)
        episodes = list(read_episodes(folder / "episodes.jsonl"))
        if stage == "selfplay":
            return episodes
        return [episode for episode in episodes if episode.probe == (stage == "world_model")]

    def model(self, variant: str | None = None, stage: str | None = None) -> str:
        """The model that a variant's evaluation plays, or the one that a stage trained (``ppo``, ``sft`` or ``practice``).

        Raises:
            ValueError: it has not been trained.
        """
        from spa.common.names import choose
        from spa.runs.folder import RunFolder
        from spa.runs.products import trained_model
        from spa.runs.record import read_done
        from spa.runs.stage import model_of

        if stage:
            choose("stage", stage, ["ppo", "sft", "practice"])
        folder = self._stage(variant, stage or "ppo")
        if stage is None:
            return trained_model(self.config, RunFolder(self.folder).variant(str(variant)), self.folder)
        if read_done(folder) is None:
            raise ValueError(f"{folder} holds no finished stage, so no model")
        return model_of(str(folder), "stage")

    def player(self, variant: str | None = None, *settings: str, model: str | Path | None = None) -> tuple[Config, str]:
        """What plays for a variant (default: the recipe's): the config of its evaluation, and its model (or ``model``).

        Args:
            settings: ``key=value``, on top of the variant's own.

        Raises:
            ValueError: the variant has no model yet, or a wrong setting.
        """
        from spa.config.overrides import apply_overrides
        from spa.config.variants import played_config
        from spa.runs.folder import RunFolder
        from spa.runs.products import trained_model

        chosen = RunFolder(self.folder).variant(variant or self.recipe)
        cfg = apply_overrides(played_config(self.config, chosen), settings)  # last: the variant's must not undo them
        return cfg, str(model or trained_model(self.config, chosen, self.folder))

    def play(
        self, variant: str | None = None, *settings: str, model: str | Path | None = None, **how: Unpack[HowToPlay]
    ) -> list[Episode]:
        """``spa.play`` of a variant (default: the recipe's) as it was evaluated; see ``player``.

        Args:
            settings: ``key=value``, on top of the variant's own.
            how: as ``spa.play``.
        """
        config, path = self.player(variant, *settings, model=model)
        return play(config, model=path, **how)

    def export(self, variant: str, to: str | Path, *, dtype: str | None = None, force: bool = False) -> Path:
        """Writes a variant's model as a plain Hugging Face folder with a card, as ``spa export`` does; returns the folder.

        Raises:
            ValueError: no such model, or ``to`` exists.
        """
        from spa.models.export import export, find_checkpoint
        from spa.report.model_card import export_files

        checkpoint, folder = find_checkpoint(self.folder, variant=variant), _folder(to)
        export(checkpoint, folder, files=export_files(checkpoint, variant), dtype=dtype, force=force)
        return folder

    def report(self) -> Path:
        """Writes ``report.html``; returns its path."""
        from spa import pipeline

        return pipeline.report(self.folder, table=False)

    def _stage(self, variant: str | None, stage: str) -> Path:
        """The folder of a stage."""
        from spa.common.names import choose
        from spa.config.variants import practice_folder, selfplay_folder, sft_folder
        from spa.runs.folder import RunFolder, variants_folder

        choose("stage", stage, ["selfplay", "sft", "practice", "ppo", "eval"])
        if stage in ("ppo", "eval"):
            if variant is None:
                raise ValueError(f"stage {stage} belongs to a variant: give one of {', '.join(self.variants)}")
            return variants_folder(self.folder) / choose("variant of this run", variant, self.variants) / stage
        if variant is None:
            return self.folder / stage
        of = {"selfplay": selfplay_folder, "sft": sft_folder, "practice": practice_folder}[stage]
        chosen = RunFolder(self.folder).variant(variant)
        if not (chosen.practice if stage == "practice" else chosen.sft):
            raise ValueError(f"variant {variant} has no stage {stage}")
        return of(self.folder, chosen)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a run's variants: prints as its table, and shows as one in a notebook."""

    rows: Sequence[ComparisonRow]

    def __str__(self) -> str:
        from spa.evaluate.summary import render_text

        return render_text(self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def episodes_frame(episodes: Iterable[Episode] | Episode) -> Any:
    """One row per turn as a pandas data frame, or a Polars one if pandas is not installed.

    Columns: of the episode ``task``, ``seed``, ``group``, ``member``, ``success``, ``status``, ``total_reward``; of the turn
    ``turn`` (from 1), ``state``, ``response``, ``observation``, ``prediction``, ``executed`` (a list), ``next_state``, ``reward``,
    ``penalty``, ``format_ok``, ``finish_reason``.

    Raises:
        ValueError: neither package is installed.
    """
    from spa.agent.episode import Episode

    of_episode = ("task", "seed", "group", "member", "success", "status", "total_reward")
    of_turn = ("state", "response", "observation", "prediction", "executed", "next_state", "reward", "penalty")
    rows = [
        {name: getattr(episode, name) for name in of_episode}
        | {"turn": turn.index + 1}
        | {name: getattr(turn, name) for name in (*of_turn, "format_ok", "finish_reason")}
        | {"reward": float(turn.reward), "penalty": float(turn.penalty)}
        for episode in ([episodes] if isinstance(episodes, Episode) else episodes)
        for turn in episode.turns
    ]
    columns = [*of_episode, "turn", *of_turn, "format_ok", "finish_reason"]
    for package in ("pandas", "polars"):
        if find_spec(package) is not None:
            frame = import_module(package).DataFrame
            types = {"infer_schema_length": None} if package == "polars" else {}  # else of the first 100 rows
            return frame(rows, **types) if rows else frame({name: [] for name in columns})
    raise ValueError("episodes_frame needs pandas or Polars: pip install pandas")
