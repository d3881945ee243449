"""The report of a run: one self-contained HTML file. Imports no torch."""

from spa.report.data import ReportData, VariantReport
from spa.report.html import render_report, write_report

__all__ = ["ReportData", "VariantReport", "render_report", "write_report"]
