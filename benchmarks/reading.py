"""Reads 100,000 characters of each kind of hostile text with everything that reads a model's replies; prints the longest times.

Run from the repository: ``python benchmarks/reading.py``. Processor time, the least of five tries, on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.agent.test_reading import KINDS, READERS, seconds, text_of


def main() -> None:
    print(f"{'reader':18} {'longest':>9}  text")
    for reader, read in READERS.items():
        spent, kind = max((seconds(read, text_of(text, 100_000), 0.0), kind) for kind, text in KINDS.items())
        print(f"{reader:18} {1000 * spent:6.1f} ms  {kind}")


if __name__ == "__main__":
    main()
