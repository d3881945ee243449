"""What is shipped, and whether the files that describe it agree."""

from __future__ import annotations

import re
import subprocess
import tomllib
from contextlib import suppress
from importlib import resources
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import spa

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def test_names_and_licence(project: dict[str, Any]) -> None:
    assert project["project"]["name"] == "spa-agent"
    assert project["project"]["scripts"] == {"spa": "spa.cli:main"}
    assert project["project"]["requires-python"] == ">=3.11"
    assert project["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+", spa.__version__)


def installed_for_tests(project: dict[str, Any]) -> list[Requirement]:
    """What `make test` installs by name."""
    extras = project["project"]["optional-dependencies"]
    return [Requirement(each) for each in project["project"]["dependencies"] + extras["dev"] + extras["docs"]]


def test_constraints_satisfy_the_ranges(project: dict[str, Any]) -> None:
    pins = constraints()
    for requirement in installed_for_tests(project):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{name} is not in constraints.txt"
        assert requirement.specifier.contains(pins[name]), f"{requirement} excludes the tested {pins[name]}"


def test_constraints_pin_what_the_dependencies_need(project: dict[str, Any]) -> None:
    pins, seen = constraints(), set()
    open_ends = [(requirement.name, frozenset(requirement.extras)) for requirement in installed_for_tests(project)]
    while open_ends:
        name, extras = open_ends.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == "setuptools":  # each environment has its own
            continue
        assert canonicalize_name(name) in pins, f"{name} is not in constraints.txt"
        with suppress(PackageNotFoundError):  # mkdocs is not everywhere
            others = version(name) != pins[canonicalize_name(name)]  # as with the oldest versions
            for each in map(Requirement, () if others else requires(name) or ()):
                if not each.marker or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                    open_ends.append((each.name, frozenset(each.extras)))


def test_all_is_every_extra_that_goes_into_one_environment(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    (whole,) = map(Requirement, extras["all"])
    own_torch, worlds = {"vllm", "verl"}, {"reasoning-gym", "textarena", "gem"}
    assert whole.name == "spa-agent"
    assert whole.extras == set(extras) - {"all", "dev", "docs", "browser"} - own_torch - worlds


def test_constraints_are_plain_pins() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line), line


def test_constraints_pin_nothing_that_breaks_transformers() -> None:
    assert not {"torchvision", "torchaudio"} & set(constraints())


def test_packaged_data_is_there() -> None:
    package = resources.files("spa")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("conf", "base.yaml").is_file()
    for group in ("env", "model", "variant"):
        assert any(entry.name.endswith(".yaml") for entry in package.joinpath("conf", group).iterdir())


def test_every_data_file_is_covered_by_the_package_data(project: dict[str, Any]) -> None:
    root = ROOT / "src" / "spa"
    patterns = project["tool"]["setuptools"]["package-data"]["spa"]
    covered = {path for pattern in patterns for path in root.glob(pattern)}
    files = {
        p
        for p in root.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".pyc", ".nbc", ".nbi") and p.name[0] != "."
    }
    assert files <= covered, sorted(str(path.relative_to(root)) for path in files - covered)


def test_every_package_has_an_init() -> None:
    root = ROOT / "src" / "spa"
    folders = {path.parent for path in root.rglob("*.py")}
    assert [str(folder.relative_to(root)) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_git_ignores_no_source() -> None:
    files = [path for top in ("src", "tests") for path in (ROOT / top).rglob("*.py")]
    listed = "\n".join(str(path.relative_to(ROOT)) for path in files)
    try:
        result = subprocess.run(
            ["git", "check-ignore", "--no-index", "--stdin"], input=listed, capture_output=True, text=True, cwd=ROOT
        )
    except FileNotFoundError:
        pytest.skip("no git")
    assert result.stdout == ""


def test_files_stay_readable() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): size for path, size in sizes.items() if size > 500} == {}


def test_ci_runs_the_readmes_test_command() -> None:
    runner = ROOT / ".ci" / "run"
    assert "make test" in runner.read_text(encoding="utf-8")
    assert runner.stat().st_mode & 0o111
