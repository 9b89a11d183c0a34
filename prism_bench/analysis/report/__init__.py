"""Runs become tables, pictures and a page. Frames in, frames and files out: torch is not needed for any of it."""

from prism_bench.analysis.report.cells import human
from prism_bench.analysis.report.page import write_report
from prism_bench.analysis.report.plots import plot, write_pictures
from prism_bench.analysis.report.sheets import show
from prism_bench.analysis.report.tables import differences, table

__all__ = ["differences", "human", "plot", "show", "table", "write_pictures", "write_report"]
