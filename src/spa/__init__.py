"""SPA: self-play agents that learn how a world works before they are rewarded for winning in it.

Reproduces "Internalizing World Models via Self-Play Finetuning for Agentic RL" (arXiv 2510.15047).
Importing this package imports no torch; the modules that need it import it themselves.
"""

__version__ = "0.1.0"
