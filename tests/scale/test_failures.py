"""A rank that fails ends all, with one message that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spa.runs.folder import RunFolder
from tests.scale.breaking import RUN, break_at, environment, spa
from tests.scale.test_run import assert_same_run
from tests.scale.tools import in_ranks

pytestmark = pytest.mark.scale
STAGES = ["selfplay", "SFT step 2", "PPO step 2"]
RANKS = ["launcher=torchrun", "nproc=2"]


def test_an_exception_on_one_rank_is_one_message(tmp_path: Path) -> None:
    code, messages, _ = break_at(tmp_path, "raise", "PPO step 2")
    assert code == 2
    assert messages == "Error: rank 1, PPO step 2: RuntimeError: broken on purpose"
    recorded = RunFolder(tmp_path / "run").last_command()["error"]
    assert recorded == "ValueError: rank 1, PPO step 2: RuntimeError: broken on purpose"


def test_a_killed_rank_ends_all(tmp_path: Path) -> None:
    code, messages, _ = break_at(tmp_path, "SIGKILL", "PPO step 2")
    assert code == 2
    assert messages == "Error: rank 1, PPO step 2, was killed by SIGKILL"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    code, messages, _ = spa([*RUN, *RANKS, "--quiet", "--out", str(folder / "run")], environment(folder, {}))
    assert code == 0, messages
    return folder / "run"


@pytest.mark.parametrize("how, places", [("SIGKILL", STAGES), ("SIGSTOP", STAGES[2:])])
def test_lost_ranks_are_started_again(tmp_path: Path, undisturbed: Path, how: str, places: list[str]) -> None:
    words = [*RUN, *RANKS, "scale.timeout=60", "--out", str(tmp_path / "run")]
    code, messages, _ = spa(words, environment(tmp_path, dict.fromkeys(places, how)))
    assert code == 0, messages
    for place in places:
        lost = f"rank 1, {place}, was killed by {how}"
        if how == "SIGSTOP":
            lost = f"rank 1 was lost: it ended, or did not answer rank 0, {place}, for scale.timeout seconds"
        assert f"{lost}; continuing from the last checkpoint" in messages
    assert_same_run(tmp_path / "run", undisturbed)


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
