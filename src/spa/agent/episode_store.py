"""Stores episodes as they finish, so that an interrupted generation can be resumed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from spa.agent.episode import Episode
from spa.common.clock import work_stored
from spa.common.files import append, no_link
from spa.scale import ranks

Key = tuple[int, int]  # group, member


class EpisodeStore:
    """Episodes by (group, member), in memory and, if a path is given, in an append-only JSONL file.

    Args:
        path: read if it exists; a half-written last line is truncated.
        retry: failed episodes count as not played.

    Raises:
        ValueError: another line of the file is not an episode.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, retry: bool = True) -> None:
        self.path = None if path is None else Path(path)
        self._retry = retry
        self._episodes: dict[Key, Episode] = {}
        if self.path is not None:
            ranks.on_main(self._read_file)
            self._episodes = ranks.gather(self._episodes)[0]

    def _read_file(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        path = self.path
        *whole, torn = path.read_bytes().split(b"\n")
        for number, line in enumerate(whole, 1):
            try:
                episode = Episode.from_json(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}; delete the file to start over") from error
            if not episode.failed or not self._retry:
                self._episodes[_key(episode)] = episode
        if torn:  # appended lines must start on a new line
            with open(path, "r+b", opener=no_link) as file:
                file.truncate(path.stat().st_size - len(torn))

    def __len__(self) -> int:
        return len(self._episodes)

    def __contains__(self, key: Key) -> bool:
        return key in self._episodes

    def add(self, episodes: Iterable[Episode]) -> None:
        """Adds new episodes, ignoring those already stored; they are written when this returns."""
        new = [episode for episode in episodes if _key(episode) not in self]
        if self.path is not None and ranks.is_main():
            append(self.path, "".join(episode.to_json() + "\n" for episode in new))
            work_stored()
        self._episodes.update((_key(episode), episode) for episode in new)

    @property
    def success(self) -> float:
        """Success rate of the episodes."""
        return sum(episode.success for episode in self._episodes.values()) / max(1, len(self))

    def in_order(self) -> list[Episode]:
        """All episodes, group by group."""
        return [self._episodes[key] for key in sorted(self._episodes)]


def _key(episode: Episode) -> Key:
    return episode.group, episode.member
