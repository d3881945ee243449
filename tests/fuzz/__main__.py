"""``make fuzz``: libFuzzer on each target, one after the other; what it finds is kept in the folder given.

Usage: python -m tests.fuzz SECONDS FOUND [TARGET ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import atheris


def fuzz(target: str, seconds: str, found: Path) -> None:
    with atheris.instrument_imports(include=["spa"], enable_loader_override=False):
        from tests.fuzz.targets import CORPUS, TARGETS
    for folder in (found / target, found / "failures"):
        folder.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", "-timeout=5", "-max_len=4096", "-print_final_stats=1"]
    options += [f"-artifact_prefix={found}/failures/{target}-"]
    if (CORPUS / f"{target}.dict").is_file():
        options.append(f"-dict={CORPUS / f'{target}.dict'}")
    atheris.Setup([sys.argv[0], *options, str(found / target), str(CORPUS / target)], TARGETS[target])
    atheris.Fuzz()


def main() -> int:
    seconds, found, *names = sys.argv[1:]
    if len(names) == 1:
        fuzz(names[0], seconds, Path(found))  # libFuzzer ends the process
        return 0
    from tests.fuzz.targets import TARGETS

    return max(subprocess.call([sys.executable, "-m", "tests.fuzz", seconds, found, name]) for name in names or TARGETS)


if __name__ == "__main__":
    sys.exit(main())
