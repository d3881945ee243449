"""The wheel in an environment of its own: what it must bring is in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = ["selfplay.groups=2", "selfplay.group_size=1", "model.threads=1", "variants=[vanilla]"]


def run(*command: str | Path, cwd: Path) -> str:
    environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel; a .pth file lends it the dependencies that are installed here."""
    pytest.importorskip("setuptools", minversion="77")
    base = tmp_path_factory.mktemp("wheel")
    source = base / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", base, source, cwd=base)
    (wheel,) = base.glob("spa_agent-*.whl")
    venv.create(base / "venv", with_pip=False)
    python = base / "venv" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=base)
    (site,) = (base / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return base / "venv" / "bin"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="paths of an environment")
def test_the_first_seconds_of_a_run(environment: Path, tmp_path: Path) -> None:
    spa = environment / "spa"
    where = run(environment / "python", "-c", "import spa; print(spa.__file__)", cwd=tmp_path)
    assert where.startswith(str(environment.parent))
    assert "sokoban" in run(spa, "env", "list", cwd=tmp_path)
    run(spa, "generate", "frozen_lake", *TINY, "--out", "run", "--quiet", cwd=tmp_path)
    run(spa, "report", "run", cwd=tmp_path)
    assert (tmp_path / "run" / "selfplay" / "train.parquet").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
