"""examples/scale and the page about it: the scripts start what they say, with settings that there are."""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from spa.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "scale"
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def stub(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def dry_run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ``spa run ...`` with --dry-run, without the options of launchers."""
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    assert words[:2] == ["spa", "run"]
    known = [word for word in words[1:] if not word.startswith(("launcher=", "nproc="))]
    assert main([*known, "model.device_memory=80", "ppo.memory_check=false", "--dry-run"]) == 0


def submitted(folder: Path, script: Path, srun: str = "") -> list[str]:
    """What the batch script gives to srun on the first of two nodes; ``srun``: what that does afterwards."""
    stub(folder, "scontrol", "echo node1; echo node2")
    stub(folder, "srun", f'printf "%s\\n" "$@"\n{srun}')
    slurm = {
        "SLURM_JOB_NAME": "spa",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_NNODES": "2",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_ID": "7",
    }
    given = {**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(script)], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if srun else 0)
    return done.stdout.splitlines()


def test_the_slurm_script_runs_torchrun_with_c10d_and_resumes(tmp_path: Path, monkeypatch) -> None:
    script = EXAMPLES / "train.sbatch"
    words = submitted(tmp_path, script)
    start = words.index("torchrun")
    assert {"--nnodes=2", "--nproc-per-node=8", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29500"} <= set(
        words[start:]
    )
    command = words[words.index("-m") + 1 :]
    dry_run(command, monkeypatch)
    assert "--resume" not in command
    run = tmp_path / "runs" / "spa"
    words = submitted(tmp_path, script, f"mkdir -p {run}; touch {run}/run.json; exit 1")
    attempts = [word for word in words if word.startswith("--rdzv-id=")]
    assert attempts == [f"--rdzv-id=7.{attempt}" for attempt in (1, 2, 3, 4)] and words.count("--resume") == 3
    assert submitted(tmp_path, script)[-1] == "--resume"
    options = [line.split()[1] for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue"} <= set(options)


def container(group: dict[str, Any]) -> dict[str, Any]:
    pod = group["template"]["spec"]
    (found,) = pod["containers"]
    assert {"name", "image", "resources", "volumeMounts"} <= set(found)
    assert {mount["name"] for mount in found["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    return dict(found)


def test_the_ray_job_runs_the_command_on_all_its_gpus(tmp_path: Path, monkeypatch) -> None:
    job = yaml.safe_load((EXAMPLES / "ray-job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob") and "generateName" in job["metadata"]
    cluster = job["spec"]["rayClusterSpec"]
    container(cluster["headGroupSpec"])
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    (group,) = cluster["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    gpus = group["replicas"] * int(container(group)["resources"]["limits"]["nvidia.com/gpu"])
    stub(tmp_path, "spa", 'printf "%s\\n" spa "$@"')
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = shlex.split(job["spec"]["entrypoint"])
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {"launcher=ray", f"nproc={gpus}"} <= set(done)
    assert done[-2:] == ["--out", "/shared/runs/spa"]
    dry_run(done, monkeypatch)


def strict(schema: Any) -> Any:
    """An OpenAPI schema of Kubernetes as a JSON schema that allows no unknown field."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    closed = {name: strict(value) for name, value in schema.items() if name != "properties"}
    if "properties" in schema:
        properties = {name: strict(value) for name, value in schema["properties"].items()}
        closed = {"additionalProperties": False, **closed, "properties": properties}
    return closed


@pytest.mark.integration
@pytest.mark.skipif("SPA_KUBERAY_CRD" not in os.environ, reason="SPA_KUBERAY_CRD names KubeRay's ray.io_rayjobs.yaml")
def test_the_ray_job_is_valid_by_kuberays_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    job = yaml.safe_load((EXAMPLES / "ray-job.yaml").read_text())
    versions = yaml.safe_load(Path(os.environ["SPA_KUBERAY_CRD"]).read_text(encoding="utf-8"))["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1")
    schema = strict(schema)
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    jsonschema.validate(job, schema)
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicaz"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        jsonschema.validate(job, schema)


def test_the_verl_script_names_the_exported_files(tmp_path: Path) -> None:
    stub(tmp_path, "python", 'printf "%s\\n" "$@"')
    done = subprocess.run(
        ["bash", str(EXAMPLES / "verl.sh"), str(tmp_path), "builtin", "trainer.nnodes=2"],
        env={**os.environ, "PYTHON": str(tmp_path / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[:2] == ["-m", "verl.trainer.main_ppo"] and words[-1] == "trainer.nnodes=2"
    assert f"actor_rollout_ref.rollout.agent.agent_loop_config_path={tmp_path}/agent_loop.yaml" in words
    assert all("=" in word for word in words[2:])


def test_the_page_has_what_the_script_prints() -> None:
    found = runpy.run_path(str(EXAMPLES / "bottlenecks.py"))
    assert found["table"]() in PAGE
    for line in found["notes"]().splitlines():
        assert line in PAGE
