"""Tables in every format, byte by byte.

The frame is small enough to check by hand. After a change that is meant, ``PRISM_BENCH_RENEW=1 pytest
tests/test_golden.py`` writes the files anew, and git shows what moved.
"""

from __future__ import annotations

import io
import itertools
import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from frames import rounds_of
from rich.console import Console

from prism_bench.analysis.report import rendering, sheets, tables
from prism_bench.analysis.report.cells import Cell, Form, Sheet
from prism_bench.analysis.view import table_called
from prism_bench.harness.results import summarise
from prism_bench.views import accuracy, drops

GOLDEN = Path(__file__).parent / "golden"
NASTY = "a_b|c & 50% <script>"


def runs():
    """Two partitions, two seeds; PriSM and OrthDrop tie at one decimal on the first; a label that no format likes."""
    iid = rounds_of(
        ("fedavg", "1", 0, [50, 91]), ("fedavg", "1", 1, [60, 93]),
        ("prism", "0.2", 0, [40, 90]), ("prism", "0.2", 1, [50, 90]),
        ("orthdrop", "0.2", 0, [30, 90]), ("orthdrop", "0.2", 1, [20, 90.0625]),
        ("prism", "0.4", 0, [40, 91]), partition="iid",
    )  # fmt: skip
    others = ("fedavg", "1", 0, [85]), ("prism", "0.2", 0, [80]), ("orthdrop", "0.2", 0, [70])
    skewed = rounds_of(*others, partition="dirichlet alpha=0.1")
    odd = rounds_of(("splitmix", "0.2", 0, [88]), partition="iid", variant=NASTY)
    frame = summarise(pd.concat([iid, odd, skewed], ignore_index=True))
    prism, full = frame["algorithm"] == "prism", frame["algorithm"] == "fedavg"
    frame.loc[prism, ["paper_accuracy", "paper_std", "paper_drop"]] = [90.5, 0.25, -1.5]
    frame.loc[full, "paper_accuracy"] = 92.0
    frame.loc[prism, ["convention_params_M", "paper_params_M"]] = [0.5, 0.5]
    frame.loc[full, ["convention_params_M", "paper_params_M"]] = [10.99, 11]
    frame["paper_macs_G"] = pd.Series(35.0, frame.index).where(full)
    for stage, seconds in (("create", 3.27), ("train", 36.82), ("merge", 0.11), ("refresh", 0.96)):
        frame[f"paper_seconds_{stage}"] = pd.Series(seconds, frame.index).where(prism)
    frame["paper_source"] = pd.Series("Table 1", frame.index).where(prism | full)
    return frame


def sheet_of(view):
    form = Form("by hand: 50% & more", paper=view != "accuracy")
    if view == "wide":
        return tables.wide(runs()), sheets.wide(tables.table(runs()), form)
    if view == "differences":
        frame = tables.differences(runs(), "prism")
        return frame, sheets.differences(frame, form)
    table = table_called(view.removesuffix("-paper"), view)
    frame = table.numbers(runs())
    return frame, table.sheet(frame, form)


def written(view, kind):
    frame, sheet = sheet_of(view)
    if kind == "csv":
        return frame.to_csv(index=False)
    if kind == "txt":
        console = Console(file=io.StringIO(), width=160, record=True)
        console.print(rendering.text(sheet, 160))
        return "".join(f"{line.rstrip()}\n" for line in console.export_text().splitlines())
    return {"md": rendering.markdown, "tex": rendering.latex, "html": rendering.html}[kind](sheet)


VIEWS = ("accuracy", "accuracy-paper", "drops", "costs", "time", "wide", "differences")


@pytest.mark.parametrize("kind", ["txt", "csv", "md", "tex", "html"])
@pytest.mark.parametrize("view", VIEWS)
def test_golden(view, kind):
    file, content = GOLDEN / f"{view}.{kind}", written(view, kind)
    if os.environ.get("PRISM_BENCH_RENEW"):
        file.write_text(content, "utf-8")
    assert content == file.read_text("utf-8")


def test_no_golden_file_is_left_over():
    assert {file.stem for file in GOLDEN.iterdir()} == set(VIEWS)


def bold(sheet):
    return [[cell.text for cell in row if cell.bold] for row in sheet.rows]


def test_ties_at_the_digits_shown_are_all_bold():
    """90 and 90.03 are one at one decimal and two at two; the reference, with 92, is not in the contest."""
    frame = tables.table(rounds_of(
        ("fedavg", "0.2", 0, [92]), ("prism", "0.2", 0, [90]), ("orthdrop", "0.2", 0, [90.03]),
        ("splitmix", "0.2", 0, [89]), ("prism", "0.4", 0, [91]),
    ))  # fmt: skip
    assert bold(accuracy.sheet(frame, Form())) == [[], ["90.0 (1)"], ["90.0 (1)"], [], []]
    assert bold(accuracy.sheet(frame, Form(digits=2))) == [[], [], ["90.03 (1)"], [], []]
    assert bold(drops.sheet(frame, Form())) == [["90.0 (1)"], ["90.0 (1)"], [], []]


def test_ties_go_by_the_digits_that_are_printed():
    """8.345 is a little more in binary and prints as 8.35, where rounding by a multiplication would give 8.34."""
    frame = tables.table(rounds_of(("prism", "0.2", 0, [8.345]), ("orthdrop", "0.2", 0, [8.35])))
    assert bold(accuracy.sheet(frame, Form(digits=2))) == [["8.35 (1)"], ["8.35 (1)"]]


def test_nothing_is_bold_where_nothing_competes():
    frame = tables.table(rounds_of(("fedavg", "1", 0, [92]), ("prism", "0.2", 0, [90]), ("prism", "0.4", 0, [91])))
    sheet = accuracy.sheet(frame, Form())
    assert bold(sheet) == [[], [], []]
    assert "Bold" not in sheet.caption


def test_labels_that_are_all_the_same_are_left_out():
    frame = tables.table(rounds_of(("prism", "0.2", 0, [90]), ("orthdrop", "0.2", 0, [91])))
    assert accuracy.sheet(frame, Form()).columns[:2] == ["algorithm", "accuracy"]
    assert accuracy.sheet(frame[:1], Form()).columns[:2] == ["algorithm", "accuracy"]


@pytest.mark.parametrize("view", VIEWS)
def test_markdown_renders_as_a_table_with_the_label_as_it_is(view):
    from markdown_it import MarkdownIt

    _, sheet = sheet_of(view)
    tokens = MarkdownIt("commonmark").enable("table").parse(rendering.markdown(sheet))
    cells = [after.children for token, after in itertools.pairwise(tokens) if token.type in ("th_open", "td_open")]
    assert len(cells) == len(sheet.columns) * (len(sheet.rows) + 1)
    texts = ["".join(part.content for part in children) for children in cells]
    if "variant" in sheet.columns:
        assert NASTY in texts
    assert not any(part.type == "html_inline" for children in cells for part in children)


def test_html_keeps_a_label_as_text():
    class Reader(HTMLParser):
        tags, texts = set(), []

        def handle_starttag(self, tag, attributes):
            self.tags.add(tag)

        def handle_data(self, data):
            self.texts.append(data)

    reader = Reader()
    reader.feed(written("accuracy", "html"))
    assert "script" not in reader.tags
    assert NASTY in reader.texts


@pytest.mark.skipif(
    not shutil.which("pdflatex"), reason="needs pdflatex (package texlive-latex-recommended) to compile"
)
def test_latex_compiles(tmp_path):
    odd = Sheet(NASTY, ["\\~^{}$#"], [[Cell("κ ≤ 4 × 10² “é” -1.5 中", value=1.0, bold=True)]], NASTY, 0)
    content = "\n".join(rendering.latex(sheet) for sheet in [odd, *(sheet_of(view)[1] for view in VIEWS)])
    document = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{content}\\end{{document}}\n"
    (tmp_path / "tables.tex").write_text(document, "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
