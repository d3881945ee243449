"""``python -m spa``."""

import os
import sys

from spa.cli import main

if __name__ == "__main__":
    code = main()
    if (
        "TORCHELASTIC_RUN_ID" in os.environ
    ):  # a rank: at the interpreter's end a thread of gloo that still frees a tensor aborts it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
