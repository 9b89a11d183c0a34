"""What the gate found, as CI systems read it: JSON, JUnit's XML, GitHub's annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from prism_bench.harness.results import CELL

Writer = Callable[[pd.DataFrame, pd.DataFrame, str, str], str]


def as_json(compared: pd.DataFrame, failing: pd.DataFrame, baseline: str, results: str) -> str:
    """All that moved, and counts; a number that there is not is null."""
    moved = compared[(compared["verdict"] != "within") | (compared["change"] != 0)]
    columns = [*CELL, "seed", "round", "metric", "value", "now", "change", "allowed", "verdict"]
    rows = [
        {key: None if value != value else value for key, value in row.items()} | {"fails": place in failing.index}
        for place, row in zip(moved.index, moved[columns].to_dict("records"), strict=True)
    ]
    found = {
        "baseline": baseline,
        "results": results,
        "passed": failing.empty,
        "exact": int(compared["exact"].sum()),
        "counts": {verdict: int(count) for verdict, count in compared["verdict"].value_counts().items()},
        "moved": rows,
    }
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)


def as_junit(compared: pd.DataFrame, failing: pd.DataFrame, baseline: str, results: str) -> str:
    """A test case per cell and metric; a failure's text has each seed and round."""
    cells = compared.groupby([*CELL, "metric"], sort=False, dropna=False)
    suite = ElementTree.Element("testsuite", name=f"prism-bench check {baseline}", tests=str(len(cells)))
    failed = 0
    for labels, numbers in cells:
        *cell, metric = labels
        case = ElementTree.SubElement(suite, "testcase", classname=_cell(dict(zip(CELL, cell, strict=True))))
        case.set("name", str(metric))
        wrong = numbers[numbers.index.isin(failing.index)].to_dict("records")
        if wrong:
            failed += 1
            failure = ElementTree.SubElement(case, "failure", message=_says(wrong[0]), type=wrong[0]["verdict"])
            failure.text = "\n".join(map(_says, wrong))
    suite.set("failures", str(failed))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def as_github(compared: pd.DataFrame, failing: pd.DataFrame, baseline: str, results: str) -> str:
    """An annotation per cell and metric that fails, with its first number, then one line that sums up."""
    lines = []
    for labels, numbers in failing.groupby([*CELL, "metric"], sort=False, dropna=False):
        *cell, metric = labels
        row = numbers.iloc[0].to_dict()
        title = f"{_cell(dict(zip(CELL, cell, strict=True)))}: {metric}"
        more = f" (and {len(numbers) - 1} more seeds or rounds)" if len(numbers) > 1 else ""
        lines.append(
            f"::error file={_escape(baseline, True)},title={_escape(title, True)}::{_escape(_says(row) + more)}"
        )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in compared["verdict"].value_counts().items())
    return "\n".join([*lines, _escape(f"{results} against {baseline}: {counts}")])


def _cell(labels: Mapping[str, Any]) -> str:
    """Which row of a table: its method and what else it is told apart by."""
    return " ".join(str(labels[key]) for key in ("algorithm", "variant", "keep", "settings") if labels[key])


def _says(row: Mapping[Any, Any]) -> str:
    place = " ".join(f"{key} {row[key]}" for key in ("seed", "round") if row[key])
    # All digits: what moved may be the last one.
    numbers = " → ".join("none" if value != value else repr(float(value)) for value in (row["value"], row["now"]))
    allowed = "" if row["allowed"] != row["allowed"] else f", ±{row['allowed']:.3g} allowed"
    return f"{row['verdict']}: {place + ': ' if place else ''}{row['metric']} {numbers}{allowed}"


def _escape(text: str, property: bool = False) -> str:
    """As GitHub's workflow commands want it."""
    for sign, code in {"%": "%25", "\r": "%0D", "\n": "%0A", **({":": "%3A", ",": "%2C"} if property else {})}.items():
        text = text.replace(sign, code)
    return text


WRITERS: Mapping[str, Writer] = {"json": as_json, "junit": as_junit, "github": as_github}
