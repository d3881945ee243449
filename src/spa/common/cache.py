"""The user's cache of models. Imports no torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spa.common.files import expanded

CACHED = "cache:"  # as in model.path=cache:NAME


def cache_folder(name: str) -> Path:
    """Where ``spa model get NAME`` puts a model: ``$SPA_HOME/models/NAME``, else in the platform's cache folder."""
    home = os.environ.get("SPA_HOME")
    if home:
        return expanded(home) / "models" / name
    if sys.platform == "darwin":
        cache = Path("~/Library/Caches")
    elif os.name == "nt":
        cache = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return expanded(cache) / "spa" / "models" / name
