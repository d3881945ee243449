"""The commands. Imports no torch."""

from spa.cli.app import main

__all__ = ["main"]
