"""``launcher=ray`` on two nodes: workers that are killed and a node that is lost do not change a run."""

from __future__ import annotations

import os
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


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room for a rank and two nodes with room for one each, on which rank 1 breaks."""
    from ray.cluster_utils import Cluster

    for name, value in {**environment(tmp_path, BREAKS), **RAY}.items():
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
