"""Real processes, killed at moments drawn at random: alone, a parent of two workers, and one of its workers."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torture.common import TINY, Tally, left_alone, made_again, wrongly_shown

from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import carry_out

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in Linux's /proc")

LONG = TINY | {"training": {**TINY["training"], "rounds": 60}}


def started(work: Callable[[], object]) -> int:
    """A process that has all modules loaded already; returns its id."""
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")
            work()
        finally:
            os._exit(0)
    return child


def progress(out: Path) -> int:
    """So many bytes of rounds are recorded."""
    return sum(file.stat().st_size for file in out.glob("runs/*/rounds.jsonl"))


def children(process: int) -> list[int]:
    """The workers of a process, by their ids."""
    found = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(one) for one in found if b"resource_tracker" not in Path(f"/proc/{one}/cmdline").read_bytes()]


def alive(process: int) -> bool:
    """Whether a process still runs; one that ended, and that nobody has asked about, does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill(experiment: Experiment, out: Path, jobs: int, victim: str, good: pd.DataFrame, rng: random.Random) -> str:
    """Start, wait for progress and a random while, kill; what is wrong then."""
    reached = progress(out)
    process = started(lambda: carry_out(experiment, out, jobs=jobs))
    give_up = time.monotonic() + 120
    while progress(out) <= reached and time.monotonic() < give_up and alive(process):
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.2))
    workers = children(process) if jobs > 1 else []
    os.kill(rng.choice(workers) if victim == "worker" and workers else process, signal.SIGKILL)
    os.waitpid(process, 0)
    late = time.monotonic() + 5
    while any(alive(one) for one in workers):
        if time.monotonic() > late:
            return "a worker outlived its parent by 5 s"
        time.sleep(0.01)
    return wrongly_shown(out, good)


def torture(count: int, seed: int, folder: Path) -> list[Tally]:
    """``count`` kills of a process that works alone, and a sixth of that of each a parent and a worker.

    Started over and over on the same folder until the runs are done, then on the next one.
    """
    rng, tallies = random.Random(seed), []
    for kind, jobs, victim, times in (
        ("kill -9 of a command at a random moment", 1, "parent", count),
        ("kill -9 of a parent of two workers", 2, "parent", max(1, count // 6)),
        ("kill -9 of one of two workers", 2, "worker", max(1, count // 6)),
    ):
        experiment, tally = Experiment.load(LONG, seeds=jobs), Tally(kind)
        good, out = left_alone(experiment, folder / f"whole-{kind}"), folder / "killed"
        while tally.tried < times:
            tally.count(f"kill {tally.tried}, seed {seed}", kill(experiment, out, jobs, victim, good.runs(), rng))
            if len(Results.open(out).runs()) == jobs or tally.tried == times:
                trouble = made_again(experiment, out, good.rounds())
                if trouble:
                    tally.lost.append(f"after kill {tally.tried}, seed {seed}: {trouble}")
                shutil.rmtree(out)
        tallies.append(tally)
    return tallies


def test_killed_parents_and_workers_in_short(tmp_path):
    """A command that works alone is killed thirty times in test_run_folder.py."""
    for tally in torture(1, seed=3, folder=tmp_path):
        assert tally.tried == 1
        assert tally.lost == []
