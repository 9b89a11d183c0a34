"""Runs become tables, pictures and a page. Frames in, frames and files out: torch is not needed for any of it."""

from prism_bench.analysis.report.page import write_report
from prism_bench.analysis.report.plots import KINDS, plot, write_pictures
from prism_bench.analysis.report.sheets import human, show, view_of
from prism_bench.analysis.report.tables import differences, table

__all__ = ["KINDS", "differences", "human", "plot", "show", "table", "view_of", "write_pictures", "write_report"]
