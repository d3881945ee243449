"""Pass@k with intervals, world-model accuracy, and the comparison of variants. Imports no torch."""
