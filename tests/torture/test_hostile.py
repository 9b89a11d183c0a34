"""Hostile methods between honest ones: the honest runs' numbers stay what they are, and the exit code is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.common import TINY, Tally, left_alone, same
from torture.hostile import ENDS

from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="real-time signals")


def register(folder: Path) -> dict[str, str]:
    """An environment in which the hostile methods are installed."""
    about = folder / "hostile-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    lines = [f"{name.lower()} = torture.hostile:{name}\n" for name in ENDS]
    (about / "entry_points.txt").write_text("[prism_bench.algorithms]\n" + "".join(lines))
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(folder), str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def command(methods: list[object], jobs: int, folder: Path, timeout: int) -> subprocess.CompletedProcess[str]:
    (folder / "all.json").write_text(json.dumps(TINY | {"grid": {"algorithm": methods}}))
    words = [sys.executable, "-m", "prism_bench", "run", "all.json", "--out", "out"]
    return subprocess.run(
        [*words, "--jobs", str(jobs), "--timeout", str(timeout)],
        cwd=folder,
        env=register(folder / "installed"),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def torture(count: int, seed: int, folder: Path, at_once: tuple[int, ...] = (1, 2)) -> list[Tally]:
    """The first ``count`` hostile methods, each between two honest runs; there is no chance in it."""
    hostile = list(ENDS)[:count]
    tallies = []
    for jobs in at_once:
        tally, place = Tally(f"hostile method between honest runs, --jobs {jobs}"), folder / str(jobs)
        place.mkdir()
        honest = [{"name": "prism", "kappa": 1 + number} for number in range(len(hostile) + 1)]
        good = left_alone(Experiment.load(TINY | {"grid": {"algorithm": honest}}), place / "alone").rounds()
        methods: list[object] = [honest[0]]
        for number, name in enumerate(hostile, start=1):
            methods += [name.lower(), honest[number]]
        done = command(methods, jobs, place, timeout=20)
        found = Results.open(place / "out").rounds()
        ours = found[found["algorithm"] == "prism"].reset_index(drop=True)
        wrong = "" if same(ours, good) else "an honest run's numbers are others, or not there"
        if done.returncode != 1 or "Traceback" in done.stderr:
            wrong = wrong or f"exit code {done.returncode}: {done.stderr[-2000:]}"
        for name in hostile:
            finished = name.lower() in set(found["algorithm"])
            lied = ENDS[name] is not None and finished == bool(ENDS[name])
            tally.count(name, wrong or ("its run's end is told wrong" if lied else ""))
        tallies.append(tally)
    return tallies


def test_the_worst_methods_harm_no_other_run(tmp_path):
    [tally] = torture(2, 0, tmp_path, at_once=(1,))
    assert tally.tried == 2
    assert tally.lost == []
