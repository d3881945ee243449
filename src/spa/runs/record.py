"""``done.json``, the record of a finished stage: its results, the digests of its files and one of itself. Imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import (
    Any,
    Required,  # pydantic asks for these before Python 3.12
)

from pydantic import ConfigDict
from typing_extensions import TypedDict

from spa.common.manifest import digests, find_damage, own_digest
from spa.common.typed import Finite, Whole, parse

DONE = "done.json"
SECONDS = "seconds.json"  # the elapsed time of an unfinished stage
PLAYED = "episodes.played.jsonl"  # all episodes of a stage 1 that selects its rows again
# Checkpoints have manifests of their own; trackers write when they like.
_NOT_RECORDED = ("checkpoints", "tensorboard", "wandb", DONE)


class _Record(TypedDict, total=False):
    """What others read of a record; each stage adds results of its own."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    seconds: Required[Whole | Finite]  # the digest tells 3 from 3.0
    cpu_seconds: Whole | Finite
    worlds: dict[str, dict[str, str | None] | list[str]]
    last: str


def unfinished_work(folder: Path) -> list[Path]:
    """What an unfinished stage resumes from, in ``folder``; useless once it has its record, and not before."""
    names = ("*.partial.jsonl", PLAYED, "warmup", SECONDS, "*answers.jsonl")
    return [path for name in names for path in folder.glob(name)]


def write_record(folder: Path, result: Mapping[str, Any]) -> str:
    """The text of the record of a stage that has just finished in ``folder``."""
    record = {
        **result,
        "files": digests(folder, leave_out=[*_NOT_RECORDED, *(path.name for path in unfinished_work(folder))]),
    }
    return json.dumps({**record, "sha256": own_digest(record)}, indent=1) + "\n"


def read_done(folder: Path) -> dict[str, Any] | None:
    """The record of a finished stage (``seconds``, ``cpu_seconds`` and its results), or None if it has not finished.

    Raises:
        ValueError: it is damaged.
    """
    path = folder / DONE
    if not path.is_file():
        return None
    try:
        data = dict(parse(_Record, path.read_bytes()))
        if data.get("sha256", own_digest(data)) != own_digest(data):  # records of earlier versions have none
            raise ValueError("its content is not what was written")
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}): its stage's command, or spa run, makes it again with --resume"
        ) from error
    return data


def run_around(path: Path) -> Path | None:
    """The run that a path is of or lies in, if any: the next folder upwards with ``run.json``."""
    return next((each for each in (path, *path.parents) if (each / "run.json").is_file()), None)


def model_in(folder: Path, done: Mapping[str, Any]) -> Path:
    """The model that a finished stage's record names. Raises ValueError if that is outside of its run."""
    here = Path(os.path.normpath(folder.absolute()))
    run = run_around(here) or here
    if not Path(os.path.normpath(here / str(done["model"]))).is_relative_to(run):
        raise ValueError(f"{folder / DONE} names the model {done['model']}, which is outside of {run}")
    return folder / str(done["model"])


def taught_nothing(done: Mapping[str, Any]) -> bool:
    """Whether the record is that of a practice that found no lesson in any round."""
    rounds = done.get("rounds")
    return isinstance(rounds, list) and not any(isinstance(one, dict) and one.get("lessons") for one in rounds)


def damaged_files(folder: Path, done: Mapping[str, Any] | None) -> list[str]:
    """Lines about files of a finished stage that are missing or not as recorded: three, and how many more there are.

    Earlier versions recorded none.
    """
    lines = find_damage(folder, done["files"]) if done is not None and "files" in done else []
    more = f"{len(lines) - 3} more files of {folder} are missing or damaged"
    return lines if len(lines) <= 3 else [*lines[:3], more]


def check_recorded(folder: Path, *names: str) -> None:
    """Raises ValueError if one of these files of a finished stage is missing or not as recorded."""
    done = read_done(folder) if folder.is_dir() else None
    if done is not None and "files" in done and (lines := find_damage(folder, done["files"], names)):
        raise ValueError(lines[0])
