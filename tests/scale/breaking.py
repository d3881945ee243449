"""Runs `spa` on two ranks, of which rank 1 breaks at given places."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.test_pipeline import SMALL

ROOT = Path(__file__).parents[2]
# As sitecustomize.py of the ranks: once at each place, also after a restart. Stage 1 breaks when rank 1 has played its share.
BREAKS = """
import os
import signal
from pathlib import Path

if os.environ.get("RANK") == "1":
    from spa.scale import ranks

    set_place, play_divided = ranks.set_place, ranks.play_divided

    def here(text):
        mark = Path(FOLDER, "broken at " + text)
        if text in PLACES and not mark.exists():
            mark.touch()
            if PLACES[text] == "raise":
                raise RuntimeError("broken on purpose")
            os.kill(os.getpid(), getattr(signal, PLACES[text]))

    def placed(text):
        set_place(text)
        if text != "selfplay":
            here(text)

    def played(play, skip):
        def broken(skip):
            episodes = play(skip)
            here(ranks.place().partition(", ")[2])
            return episodes

        return play_divided(broken, skip)

    ranks.set_place, ranks.play_divided = placed, played
"""
TRAINING = ["ppo.steps=3", "ppo.save_every=1", "ppo.val_every=0", "ppo.epochs=1", "ppo.mini_batches=1"]
PPO = [*TRAINING, "ppo.filter_ratio=1.0", "ppo.critic_warmup=3"]
RUN = ["run", "frozen_lake", *SMALL, *PPO, "sft.save_every=1", "variants=[spa]"]


def environment(folder: Path, places: Mapping[str, str]) -> dict[str, str]:
    """Environment variables in which rank 1 breaks at ``places``, each with how: "raise" or a signal's name."""
    heading = f"FOLDER, PLACES = {str(folder)!r}, {dict(places)!r}\n"
    (folder / "sitecustomize.py").write_text(heading + BREAKS)
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}


def spa(words: list[str], env: dict[str, str]) -> tuple[int, str, float]:
    """Exit code, messages, seconds."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "spa", *words], env=env, capture_output=True, text=True)
    return done.returncode, done.stderr.strip(), time.monotonic() - started


def break_at(folder: Path, how: str, place: str, *settings: str) -> tuple[int, str, float]:
    """`spa run` on two ranks, not started again."""
    words = [*RUN, "--quiet", "--out", str(folder / "run"), "launcher=torchrun", "nproc=2", "scale.restarts=0"]
    return spa([*words, *settings], environment(folder, {place: how}))
