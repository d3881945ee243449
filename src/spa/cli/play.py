"""``spa play``: watch a model play, and what it imagined beside the actual states. Imports no torch at import time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spa.cli.arguments import Words, config_of
from spa.common.files import expanded
from spa.common.secrets import redact
from spa.common.text import clean

if TYPE_CHECKING:
    from spa.agent.episode import Episode
    from spa.config.schema import Config


def play(
    words: Words = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A checkpoint, a stage's folder or a hub name. Default: the base model."),
    ] = None,
    worlds: Annotated[int, typer.Option("--worlds", min=1, help="Test worlds to play.")] = 1,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Number of test worlds to skip first.")] = 0,
    variant: Annotated[
        str | None, typer.Option("--variant", help="Of a run: whose model. Default: the recipe's.", show_default=False)
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Before each turn, type actions for it, or Enter to let the model play.")
    ] = False,
) -> None:
    """Watch a model play test worlds, turn by turn; NAME may be a run: its model, with its predictions beside the actual states."""
    from spa import api

    folder = expanded(words[0]) if words else None
    if words and folder and (folder / "config.yaml").is_file():
        cfg, model = _of_run(folder, words[1:], variant, model)
    else:
        if variant:
            raise ValueError("--variant chooses a model of a run: give the run's folder first, as in `spa play runs/a`")
        words, model = exported(words, model, "play")
        cfg = config_of(words, "spa play frozen_lake --model runs/a/sft", model)
    screen = Screen()
    ask = _asker(cfg) if take_over else None
    episodes = api.play(cfg, model=model, worlds=worlds, skip=skip, on_turn=screen.on_turn, take_over=ask)
    if all(episode.failed for episode in episodes):
        raise ValueError(f"nothing could be played: {episodes[0].error}")


def _of_run(folder: Path, settings: list[str], variant: str | None, model: str | None) -> tuple[Config, str]:
    """As ``Run.player``, which is asked for predictions if it writes any."""
    from spa import api
    from spa.common.progress import note

    _no_model(settings, str(folder))
    run = api.Run(folder)
    variant = variant or run.recipe
    cfg, model = run.player(variant, *settings, model=model)
    asked = any(setting.startswith("agent.prompt=") for setting in settings)
    if cfg.agent.planner == "none" and not asked and _predicts(folder, variant):
        cfg.agent.prompt = "world_model"
    note(f"{folder}, variant {variant}: {model}")
    return cfg, model


def _predicts(run: Path, name: str) -> bool:
    """Whether the model still writes predictions when asked: as its evaluation measured, else if only stage 2 trained it. A policy
    that practice trained is the plain prompt's alone."""
    from spa.report.collect import read_result
    from spa.runs.folder import RunFolder, variants_folder

    variant = RunFolder(run).variant(name)
    if variant.practice:
        return False
    result = read_result(variants_folder(run) / variant.name / "eval" / "result.json")
    coverage = result.world_model.get("world_model/coverage") if result else None
    return variant.sft and not variant.rl if coverage is None else coverage > 0.5


def exported(words: list[str] | None, model: str | None, command: str) -> tuple[list[str] | None, str | None]:
    """An exported folder given as NAME stands for its task and itself as the model.

    Raises:
        ValueError: a folder that holds no task, or another model beside it.
    """
    from spa.config.load import names_of
    from spa.runs.folder import TASK

    if not words or not (folder := expanded(words[0])).is_dir():
        return words, model
    if not (folder / TASK).is_file():
        if words[0] in names_of("env"):  # a world that a folder happens to be called like
            return words, model
        is_run, is_model = (folder / "config.yaml").is_file(), (folder / "config.json").is_file()
        hint = f": use `spa {command} NAME --model {folder}`" if is_model or is_run else " and holds no model"
        run = f" or, for a run, --out {folder}" if command != "play" and is_run else ""
        raise ValueError(f"{folder} is no exported model (no {TASK}){hint}{run}")
    _no_model(words[1:], str(folder))
    return [str(folder / TASK), f"model={folder}", *words[1:]], model or str(folder)


def _no_model(settings: list[str], folder: str) -> None:
    for setting in settings:
        if setting.startswith(("model=", "model.path=")):
            raise ValueError(f"{folder} plays its own model: give another one as --model {setting.partition('=')[2]}")


def _asker(cfg: Config) -> Callable[[str], str]:
    """Asks for a person's actions; the answer is empty to let the model play, which also the end of the input does."""
    from spa.agent.policy import make_task
    from spa.envs.actions import match_action, split_actions

    names, separator = make_task(cfg).started_env().actions, cfg.agent.action_sep
    if names:
        several = f"; up to {cfg.env.max_actions_per_turn}, separated by {separator}"
        print(f"Actions: {', '.join(names)}{several if cfg.env.max_actions_per_turn > 1 else ''}")

    def ask(state: str) -> str:
        print(clean(redact(f"\n{state}\n")))
        while True:
            try:
                text = input("Your actions (Enter: the model plays): ").strip()
            except EOFError:
                return ""
            unknown = [name for name in split_actions(text, separator) if match_action(name, names) is None]
            if not unknown:
                return text
            print(f"No such action: {clean(', '.join(unknown))}")

    return ask


class Screen:
    """Prints turns as they are played, one world after the other, however their turns interleave."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Episode, bool]] = {}
        self._printed = 0  # turns of the world being shown
        self._group = 0

    def on_turn(self, episode: Episode, ended: bool) -> None:
        from spa.agent.show import outcome, show_turn

        if episode.group < self._group:
            return
        self._waiting[episode.group] = episode, ended
        while self._group in self._waiting:
            shown, over = self._waiting[self._group]
            if not self._printed:
                print(f"World {shown.seed}")
            for turn in shown.turns[self._printed :]:
                print(redact("\n".join(["", *show_turn(turn)])), flush=True)
            self._printed = len(shown.turns)
            if not over:
                return
            print(redact("\n".join(["", outcome(shown), ""])), flush=True)
            self._group, self._printed = self._group + 1, 0
