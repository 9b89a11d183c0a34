"""Settings of all kinds through the command itself, in this process: one clear message, in two seconds, or none needed.

Everything is carried out up to the first round: settings are read, data is read and split, models are built, folders
are checked. Only the rounds themselves are left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from unittest import mock

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torture.common import Tally

from prism_bench.base import registry
from prism_bench.cli.app import main
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import PLUGINS, SECTIONS, fields_of

LIMIT = 2.0
"""Seconds of this process's own time."""

TINY = {
    "data": {"name": "noise", "shape": [1, 8, 8], "classes": 4, "train": 60, "test": 20},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 1, "active": 2, "epochs": 1, "batch": 4},
}


def _keys() -> list[str]:
    """Every setting that there is, by its dotted key."""
    sections = {**SECTIONS, "execution": Execution}
    keys = [f"{name}.{key}" for name, kind in sections.items() for key in kind.model_fields]
    for section, group in PLUGINS.items():
        for name in registry.find(group):
            keys += [f"{section}.{key}" for key in fields_of(registry.load(group, name, section)).model_fields]
        keys += [section, f"{section}.name"]
    return [*dict.fromkeys(keys), *sections, "grid", "seeds", "name", "scaled", "tune", "tuned", "description", "shows"]


KEYS = _keys()
NAMES = [name for group in PLUGINS.values() for name in registry.find(group)]

# Nothing here is large enough to be meant, and small enough to be carried out: that would be a test of the machine.
number = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31, -(2**31), 2**53, 2**62, 10**18]),
    st.floats(-1, 2),
    st.sampled_from([1e308, -1e308, float("nan"), float("inf"), -float("inf"), 5e-324]),
)
word = st.one_of(st.sampled_from([*NAMES, *KEYS, "", "auto", "none", "all"]), st.text(max_size=12))
value = st.recursive(
    st.one_of(st.none(), st.booleans(), number, word),
    lambda below: st.one_of(
        st.lists(below, max_size=4), st.dictionaries(st.one_of(word, st.sampled_from(["name"])), below, max_size=3)
    ),
    max_leaves=8,
)
RAW = [
    "2020-13-45",
    "!!int ''",
    "!!float x",
    "9" * 5000,
    "[" * 3000,
    "&a [*a]",
    "!!python/object:os.system x",
    "*a",
    "\x00",
]
RAW += [
    "!!binary x",
    "!!set {a}",
    "!!timestamp x",
    "<<: 1",
    "? [a]\n: b",
    "1:2:3",
    "0o777",
    "\ud800",
    "{a: &b [*b]}",
    "- ",
    "%",
]
raw = st.one_of(st.sampled_from(RAW), st.text(max_size=40))
change = st.tuples(st.sampled_from(KEYS) | st.text(max_size=12), value | raw.map(lambda text: ("raw", text)))


def _arguments(changes: list[tuple[str, object]]) -> list[str]:
    words = []
    for key, wanted in changes:
        text = wanted[1] if isinstance(wanted, tuple) else json.dumps(wanted)
        words += ["--set", f"{key}={text}"]
    return words


def _wrong(arguments: list[str]) -> str:
    """What is wrong with how the command takes these; nothing where it is well."""
    said, start = io.StringIO(), time.process_time()
    with (
        mock.patch("prism_bench.harness.runner.one_by_one", return_value=(nothing for nothing in ())),
        mock.patch.object(sys, "argv", ["prism-bench", *arguments]),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        except BaseException:
            return traceback.format_exc(limit=-3)
    took = time.process_time() - start
    if code not in (0, 1, 2):
        return f"exit code {code}"
    return f"{took:.1f} s" if took > LIMIT else ""


def torture(count: int, number: int, folder: Path) -> list[Tally]:
    """So many settings: as --set, and in a file whose text is cut or changed somewhere."""
    os.environ.pop("PRISM_BENCH_TRUST", None)
    torch.set_num_threads(1)
    tally = Tally("settings, up to the first round")
    file, home = folder / "tiny.yaml", os.getcwd()
    text = json.dumps(TINY)

    @seed(number)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(change, max_size=3), st.integers(0, 3 * len(text)), raw)
    def one(changes: list[tuple[str, object]], place: int, inserted: str) -> None:
        written = text if place >= len(text) else text[:place] + inserted + text[place + len(inserted) :]
        file.write_bytes(written.encode("utf-8", "surrogatepass"))
        tally.tried += 1
        arguments = ["run", "tiny.yaml", "--out", "out", *_arguments(changes)]
        wrong = _wrong(arguments)
        if wrong:
            tally.lost.append(f"{arguments} of {written!r}: {wrong}")

    os.chdir(folder)
    try:
        one()
    finally:
        os.chdir(home)
    return [tally]


def test_settings(tmp_path):
    [tally] = torture(150, 0, tmp_path)
    assert tally.tried >= 100
    assert tally.lost == []
