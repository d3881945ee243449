"""The report of a run: one self-contained HTML file. Imports no torch."""
