"""``python -m spa``."""

import os
import sys

from spa.cli.app import is_rank, main

if __name__ == "__main__":
    code = main()
    if is_rank():  # at the interpreter's end a thread of gloo that still frees a tensor would abort the process
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
