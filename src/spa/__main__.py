"""``python -m spa``."""

import sys

from spa.cli import main

if __name__ == "__main__":
    sys.exit(main())
