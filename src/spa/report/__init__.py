"""The report of a run: one self-contained HTML file. Imports no torch."""

from spa.report.data import ArmReport, ReportData
from spa.report.html import render_report, write_report

__all__ = ["ArmReport", "ReportData", "render_report", "write_report"]
