"""``launcher=ray`` on two nodes: workers that are killed and a node that is lost do not change a run; other ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scale.breaking import RUN, environment, spa
from tests.scale.test_failures import STAGES
from tests.scale.test_run import assert_same_run

pytest.importorskip("ray")
pytestmark = [pytest.mark.scale, pytest.mark.integration]
LAST = "PPO step 3"
BREAKS = {**dict.fromkeys(STAGES, "SIGKILL"), LAST: "SIGSTOP"}
# No statistics; workers are not slower than other processes; no actor that watches for nodes that a cloud takes back.
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(params=[BREAKS])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room for a rank and two nodes with room for one each, on which rank 1 breaks."""
    from ray.cluster_utils import Cluster

    for name, value in {**environment(tmp_path, request.param), **RAY}.items():
        monkeypatch.setenv(name, value)
    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    try:
        for _ in range(2):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


def test_two_nodes_are_one_process(tmp_path: Path, cluster: Any) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert spa([*RUN, "--quiet", "--out", str(one)], dict(os.environ))[0] == 0
    words = [*RUN, "launcher=ray", "nproc=2", "scale.restarts=4", "--out", str(two)]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with (tmp_path / "messages").open("w") as file:
        started = subprocess.Popen([sys.executable, "-m", "spa", *words], env=environment, stderr=file)
    while not (tmp_path / f"broken at {LAST}").exists() and started.poll() is None:
        time.sleep(0.5)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    cluster.add_node(**NODE)
    code, messages = started.wait(), (tmp_path / "messages").read_text()
    assert code == 0, messages
    assert messages.count("continuing from the last checkpoint") == len(BREAKS), messages
    assert_same_run(two, one)
    assert not list(tmp_path.glob(".ray-*"))


@pytest.mark.parametrize("cluster", [{LAST: "raise"}], indirect=True)
def test_a_rank_that_raises_ends_all_with_one_line(tmp_path: Path, cluster: Any) -> None:
    words = [*RUN, "launcher=ray", "nproc=2", "--out", str(tmp_path / "run")]
    code, messages, _ = spa(words, {**os.environ, "RAY_ADDRESS": cluster.address})
    last = messages.rstrip().splitlines()[-1]
    assert (code, last) == (2, f"Error: rank 1, {LAST}: RuntimeError: broken on purpose"), messages
    assert "WorkerGroupError" not in messages


@pytest.mark.parametrize("cluster", [{}], indirect=True)
@pytest.mark.parametrize(("number", "nproc"), [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGINT, 3)])
def test_ctrl_c_and_sigterm_end_a_command_that_trains_or_waits(
    tmp_path: Path, cluster: Any, number: signal.Signals, nproc: int
) -> None:
    words = [*RUN, "ppo.steps=1000", "launcher=ray", f"nproc={nproc}", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with (tmp_path / "messages").open("w") as file:
        started = subprocess.Popen([sys.executable, "-m", "spa", *words], env=environment, stderr=file)
    begun = "PPO, variant spa" if nproc == 2 else "waiting for 3 CPUs: the Ray cluster has 2"
    while begun not in (tmp_path / "messages").read_text() and started.poll() is None:
        time.sleep(0.5)
    started.send_signal(number)
    code, messages = started.wait(60), (tmp_path / "messages").read_text()
    assert code == 128 + number, messages
    assert messages.rstrip().splitlines()[-1].startswith(("Interrupted. ", "Terminated. ")), messages
    assert not list(tmp_path.glob(".ray-*"))


def test_an_address_where_nobody_answers(tmp_path: Path) -> None:
    words = [*RUN, "launcher=ray", "nproc=2", "--out", str(tmp_path / "run")]
    code, messages, _ = spa(words, {**os.environ, "RAY_ADDRESS": "127.0.0.1:1"})
    assert code == 2 and "cannot join the Ray cluster RAY_ADDRESS=127.0.0.1:1" in messages
