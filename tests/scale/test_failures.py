"""A rank that fails ends all, with one message that names it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scale.tools import in_ranks
from tests.test_pipeline import SMALL

pytestmark = pytest.mark.scale
ROOT = Path(__file__).parents[2]
BREAKS = """
import os
import signal

if os.environ.get("RANK") == "1":
    from spa.rl import trainer

    update = trainer.update

    def broken(learner, *arguments, **options):
        if learner.updates:
            if HOW == "raise":
                raise RuntimeError("broken on purpose")
            os.kill(os.getpid(), getattr(signal, HOW))
        return update(learner, *arguments, **options)

    trainer.update = broken
"""


def broken_run(folder: Path, how: str, *settings: str) -> tuple[int, str, float]:
    """`spa ppo` on two ranks, of which rank 1 breaks in its second update: exit code, messages, seconds."""
    (folder / "sitecustomize.py").write_text(f"HOW = {how!r}{BREAKS}")
    words = [
        "ppo",
        "frozen_lake",
        "--quiet",
        "--out",
        str(folder / "run"),
        *SMALL,
        "ppo.save_every=1",
        "ppo.val_every=0",
    ]
    words += ["ppo.steps=3", "ppo.epochs=1", "ppo.mini_batches=1", "ppo.filter_ratio=1.0", "ppo.critic_warmup=3"]
    words += ["launcher=torchrun", "nproc=2", *settings]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "spa", *words], env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr.strip(), time.monotonic() - started


def test_an_exception_on_one_rank_is_one_message(tmp_path: Path) -> None:
    code, messages, _ = broken_run(tmp_path, "raise")
    assert code == 2
    assert messages == "Error: rank 1, PPO step 2: RuntimeError: broken on purpose"


def test_a_killed_rank_ends_all(tmp_path: Path) -> None:
    code, messages, _ = broken_run(tmp_path, "SIGKILL")
    assert code == 2
    assert messages == "Error: rank 1 was killed by SIGKILL"


def not_a_number() -> str:
    from spa.rl import update as ppo
    from spa.rl.health import TrainingFailed
    from spa.scale import ranks
    from tests.rl import test_golden as golden

    ppo.needs_recompute = lambda learner: True
    if ranks.rank() == 1:
        policy_loss = ppo.policy_loss
        ppo.policy_loss = lambda *a, **k: (policy_loss(*a, **k)[0] * float("nan"), policy_loss(*a, **k)[1])
    try:
        golden.run("turn_gae, whole episode")
    except TrainingFailed as error:
        return str(error)
    return ""


def test_a_loss_that_is_not_a_number_stops_all_ranks_alike() -> None:
    assert in_ranks(not_a_number, 2) == ["the PPO loss is nan on rank 1"] * 2
