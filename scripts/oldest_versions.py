"""Prints the oldest versions that pyproject.toml allows, of the package and the extra ``dev``, as requirements of pip.

Torch is left out: its oldest versions can hardly be had for the CPU alone.
"""

from __future__ import annotations

import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    print("\n".join(one.replace(">=", "==") for one in needed if not one.startswith("torch")))


if __name__ == "__main__":
    main()
