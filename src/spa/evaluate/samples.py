"""All episodes of an evaluation, from which its result can be computed again: ``samples.jsonl.gz``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from spa.agent.episode import Episode, TokenSequence, read_episodes
from spa.common.files import atomic_file

SAMPLES = "samples.jsonl.gz"


def write_samples(path: Path, episodes: Iterable[Episode]) -> None:
    """Writes episodes without token ids and log-probs, atomically; the same episodes give the same bytes.

    Lone surrogates, which UTF-8 does not have, become question marks.
    """
    with atomic_file(path) as temporary, open(temporary, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        for episode in episodes:
            masks = [TokenSequence(mask=sequence.mask) for sequence in episode.sequences]
            file.write((replace(episode, sequences=masks).to_json() + "\n").encode("utf-8", "replace"))


def read_samples(path: Path) -> list[Episode]:
    """What ``write_samples`` wrote; an episode's sequences hold masks alone.

    Raises:
        ValueError: it is not such a file (the message names it and the line).
    """
    episodes: list[Episode] = []
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                episodes.append(Episode.from_json(line))
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise ValueError(f"{path}, after {len(episodes)} episodes: {error}") from error
    return episodes


def read_any(source: Path) -> tuple[list[Episode], Path]:
    """The episodes of a file, or of a stage's folder (all samples where there are any), and the file.

    Raises:
        ValueError: there are none, or they cannot be read.
    """
    names = (SAMPLES, "episodes.jsonl")
    path = next((source / name for name in names if (source / name).is_file()), source)
    if not path.is_file():
        raise ValueError(
            f"{source} holds no episodes: give a file of episodes, or a stage's folder (.../eval, .../selfplay)"
        )
    episodes = read_samples(path) if path.suffix == ".gz" else list(read_episodes(path))
    if not episodes:
        raise ValueError(f"{path} holds no episodes")
    return episodes, path
