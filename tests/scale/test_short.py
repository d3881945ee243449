"""The short part of ``make test-scale``: one update on two ranks, and what one process imports."""

from __future__ import annotations

import errno
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from spa.agent.policy import Policy, make_task
from spa.cli import main
from spa.config.load import load_config, load_variant
from spa.config.schema import Config, VariantConfig
from spa.evaluate import calibration, perplexity
from spa.pipeline import evaluate, generate
from spa.rl.trainer import PPOTrainer, train_ppo
from spa.scale import checkpoints, launch, ranks
from tests.scale.test_update import assert_equal, updated
from tests.scale.tools import in_ranks
from tests.scripted import CHAT, tiny_config


def test_an_update_on_two_ranks() -> None:
    variant = "ppo, shared trunk, two epochs"
    (one,) = in_ranks(lambda: updated(variant), 1)
    assert_equal(in_ranks(lambda: updated(variant), 2)[0], one)


def collectives() -> list[object]:
    sums = {"a": 1.0, **({"b": 2.0} if ranks.rank() else {})}
    ranks.add(sums)
    infinite = {"loss": math.inf if ranks.rank() else -math.inf}
    ranks.add(infinite)
    assert math.isnan(infinite["loss"]), "no error: it is told as a loss that is not finite"
    rows = [[1, 2], [1, 2, 3], [1, 2, 4], [7]]
    passes = ranks.passes(rows, lambda part: [[i] for i in range(len(part))])
    try:
        ranks.on_main(lambda: int("x"))
    except ValueError as error:
        caught = str(error)
    return [sums, passes, ranks.on_main(ranks.rank), caught]


def test_sums_passes_and_errors_of_two_ranks() -> None:
    first, second = in_ranks(collectives, 2)
    for sums, _, of_main, caught in (first, second):
        assert sums == {"a": 2.0, "b": 2.0} and of_main == 0 and "invalid literal" in caught
    assert len(first[1]) == len(second[1])
    counted = [i for passes in (first[1], second[1]) for indices, counts in passes if counts for i in indices]
    assert sorted(counted) == [0, 1, 2, 3]


def limits_of_time() -> list[float]:
    """Seconds that the groups of a mesh wait: copies, shards."""
    from spa.scale.fsdp import mesh

    groups = mesh("cpu").get_all_groups()
    return [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]


def test_groups_of_copies_and_shards_wait_for_the_set_time() -> None:
    assert in_ranks(limits_of_time, 2, shards=1) == [[60.0, 60.0]] * 2


def resumed_from(out: Path) -> str:
    """What stage 3 loads where only the main rank sees a checkpoint: a shared disk may be late."""
    seen = (4, out / "global_step_4") if ranks.is_main() else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spa.rl.trainer.latest_checkpoint", lambda folder: seen)
        patch.setattr(Policy, "load", lambda cfg, path, **given: int(path))
        try:
            train_ppo(Config(), VariantConfig(), "start", out, resume=True, log=lambda *_: None)
        except ValueError as error:
            return str(error)
    return ""


def test_all_ranks_resume_from_the_same_checkpoint(tmp_path: Path) -> None:
    first, second = in_ranks(lambda: resumed_from(tmp_path), 2)
    assert first == second and "global_step_4" in first


def asked_once(out: Path) -> list[object]:
    """What a step of PPO with the auxiliary loss, calibration and perplexity take from worlds that only the main rank may ask."""

    def only_main(value: Any) -> Any:
        def answer(*_: Any, **__: Any) -> Any:
            assert ranks.is_main()
            return value

        return answer

    seen: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spa.rl.trainer.world_model_examples", only_main(["example"]))
        patch.setattr("spa.rl.trainer.update", lambda *args, world_model, **given: seen.extend(world_model) or {})
        patch.setattr(PPOTrainer, "_save", lambda self: None)
        cfg = tiny_config(steps=1, val_every=0, world_model_coef=0.1)
        train_ppo(cfg, VariantConfig(), cfg.model.path, out, resume=False, log=lambda *_: None)
        patch.setattr(calibration, "cases", only_main([]))
        patch.setattr("spa.models.score.sum_logprobs", lambda model, rows: [])
        seen.append(calibration.calibration_metrics(None, CHAT, make_task(cfg).make_env, []))
        patch.setattr(perplexity, "formats", only_main(["grid"]))
        patch.setattr(perplexity, "sample_states", only_main(["a state"]))
        patch.setattr(perplexity, "state_perplexity", lambda model, chat, task, states, **given: states)
        policy: Any = SimpleNamespace(model=None, chat=CHAT)
        seen.append(perplexity.perplexity_by_format(cfg, policy, make_task(cfg), [], seed=0))
    return seen


def test_what_all_ranks_compute_with_comes_from_the_main_ranks_worlds(tmp_path: Path) -> None:
    answers = ["example", {"calibration/cases": 0}, {"grid": ["a state"]}]
    assert in_ranks(lambda: asked_once(tmp_path), 2) == [answers, answers]


def unwritten(folder: Path, failure: BaseException) -> str:
    """What a checkpoint raises whose part of the last rank cannot be written."""

    def write(*_: object) -> None:
        raise failure

    layer = torch.nn.Linear(2, 2)
    with pytest.MonkeyPatch.context() as patch:
        if ranks.rank() == ranks.world() - 1:
            patch.setattr(checkpoints.HuggingFaceStorageWriter, "write_data", write)
        try:
            with checkpoints.shared_folder(folder) as temporary:
                checkpoints.save_tensors(temporary, torch.optim.AdamW(layer.parameters()), {"actor": layer})
        except BaseException as error:
            return f"{type(error).__name__}: {error}".replace(str(folder.parent), "")
    return ""


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (OSError(errno.ENOSPC, ""), r"OSError: \[Errno 28\] No space left on device: '/step'"),
        (ValueError("its part\nis wrong"), r"RuntimeError: /\.step\.\w+\.tmp: its part"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_a_rank_that_cannot_write_its_part_of_a_checkpoint(
    tmp_path: Path, failure: BaseException, message: str
) -> None:
    for text in in_ranks(lambda: unwritten(tmp_path / "step", failure), 2):
        assert re.fullmatch(message, text)


def evaluated(out: Path) -> list[int]:
    """The ranks in which an evaluation was sent to the trackers."""
    sent: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spa.evaluate.play.evaluate_model", lambda *args: {"model": "builtin:tiny"})
        patch.setattr("spa.report.track.track_evaluation", lambda *args: sent.append(ranks.rank()))
        cfg = load_config("frozen_lake", ["report.trackers=[tensorboard]"])
        evaluate(cfg, load_variant("base"), out, model=None, resume=True, begun=True)
    return sent


def test_one_rank_tells_the_trackers(tmp_path: Path) -> None:
    assert in_ranks(lambda: evaluated(tmp_path), 2) == [[0], []]


@pytest.mark.slow
def test_one_process_imports_no_distributed_code() -> None:
    code = (
        "import sys, spa.cli, spa.pipeline, spa.rl.trainer, spa.sft.train, spa.sft.selfplay; from spa.scale import ranks;"
        "ranks.on_main(list); ranks.gather(1); print(sorted(m for m in sys.modules if m.startswith('spa.scale.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['spa.scale.launch',", "'spa.scale.ranks']"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        pytest.param(
            {"RANK": "x", "WORLD_SIZE": "2"}, "Error: RANK=x and WORLD_SIZE=2 must be numbers", marks=pytest.mark.slow
        ),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2"},
            "Error: cannot join the other ranks at 127.0.0.1:",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3"},
            "Error: torchrun --max-restarts",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_do_not_meet(tmp_path: Path, variables: dict[str, str], message: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    done = subprocess.run(
        [sys.executable, "-m", "spa", "generate", "frozen_lake", "scale.timeout=1", "--out", str(tmp_path / "r")],
        env={**os.environ, **address, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert done.returncode == 2 and line.startswith(message) and "Traceback" not in done.stderr


def test_the_main_rank_alone_prints_a_dry_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for rank in ("0", "1"):
        for name, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        assert main(["run", "frozen_lake", "--dry-run"]) == 0
        printed.append(capsys.readouterr().out)
    assert "ppo spa" in printed[0] and printed[1] == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["nproc=3", "model.device=auto"], "nproc=3 is more than the 2 GPUs"),
        (["model.device=cuda:1"], "set it to auto or cuda"),
    ],
)
def test_each_rank_needs_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch, settings: list[str], message: str) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    launch.check(load_config("frozen_lake", ["launcher=torchrun"]), [])
    launch.check(load_config("frozen_lake", ["launcher=torchrun", "nproc=3", "model.device=cpu"]), [])
    with pytest.raises(ValueError, match=message):
        launch.check(load_config("frozen_lake", ["launcher=torchrun", *settings]), [])


def test_torchrun_prints_what_a_rank_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setattr("signal.signal", lambda *args: None)
    monkeypatch.setattr(ranks, "_place", "")
    for error, says in ((ValueError("no such model"), "no such model"), (KeyError("defect"), "KeyError: 'defect'")):
        try:
            raise error
        except Exception as raised:
            launch.record(raised)
        report = str(
            ChildFailedError("spa", {0: ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))})
        )
        assert f"rank 0: {says}" in report
        assert ("Traceback (most" in report) == isinstance(error, KeyError)


def test_one_process_says_what_it_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = load_config("frozen_lake", ["nproc=4"])
    assert launch.unused(cfg, ["nproc=4", "ppo.steps=1"]) == [
        "nproc=4 has no effect with launcher=local: set launcher=torchrun or launcher=ray"
    ]
    assert launch.unused(load_config("frozen_lake", ["nproc=4", "launcher=torchrun"]), ["nproc=4"]) == []
    monkeypatch.setattr(ranks, "under_torchrun", lambda: True)
    assert launch.unused(cfg, ["scale.shards=2"]) == []


@pytest.mark.parametrize(("code", "name"), [(-9, "SIGKILL"), (143, "SIGTERM"), (130, "SIGINT")])
def test_a_rank_that_a_signal_ended_was_lost(tmp_path: Path, code: int, name: str) -> None:
    error = launch.failure(1, code, "", tmp_path)
    assert isinstance(error, launch.Lost) and str(error) == f"rank 1 was killed by {name}"


def test_ranks_that_are_started_again_take_the_settings_that_the_run_has_saved(tmp_path: Path, monkeypatch) -> None:
    """A hub's model may be in the cache by then, and its preset another."""
    started: list[list[str]] = []

    def lost(cfg: Config, words: list[str]) -> None:
        started.append(words)
        if len(started) == 2:
            (tmp_path / "config.yaml").touch()
        raise launch.Lost("rank 1 was lost")

    monkeypatch.setattr(launch, "torchrun", lost)
    cfg = load_config("frozen_lake", ["launcher=torchrun", "nproc=2", "scale.restarts=2"])
    with pytest.raises(ValueError, match="rank 1 was lost"):
        launch.start(cfg, ["run", "frozen_lake"], tmp_path, ["run", "--resume"])
    assert started == [["run", "frozen_lake"], ["run", "frozen_lake", "--resume"], ["run", "--resume"]]


def test_a_rank_that_left_a_message_was_not_lost(tmp_path: Path) -> None:
    error = launch.failure(1, 143, {"message": "no such model", "extraInfo": {"lost": False}}, tmp_path)
    assert isinstance(error, ValueError) and str(error) == "no such model"


def test_python_does_not_start_ranks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="launcher=local"):
        generate(Config(launcher="torchrun", nproc=2), tmp_path, resume=False)
