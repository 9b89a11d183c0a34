"""The same federated rounds by this suite, by hand and by its peers: seconds a round.

Each arm is a process with the Python of its own environment, and they take turns: in every repetition each does one
round while the others are stopped. Wall time is what counts with several threads, CPU-seconds with one: those of the
arm's process and of all that descend from it, Ray's included. After one round all must have the weights that the loop
by hand has, or they did other work. Exits with 1 where an arm failed; the others are measured all the same. Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ours_arm
import pandas as pd
import torch
from arms import Arm, Failed, environment

NAMES = ("ours", "plain", "pfl", "pfl_processes", "flower", "fedml")
YARDSTICKS = ("plain", "pfl", "pfl_processes")
"""Ratios are to the fastest of these."""
CHECKED = 1
"""Rounds after which weights are compared: with each more, rounding grows."""
TOLERANCE = 5e-3
"""Of the way that the weights have come by then. Rounding made 3e-4 of it; two batches of one client swapped, 2e-2."""
MALLOC = {"default": {}, "raised": {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}}
Weights = Mapping[str, np.ndarray]
COLUMNS = [
    *("arm", "version", "torch", "python", "threads", "malloc", "rounds"),
    *("wall_median", "wall_min", "wall_max", "wall_ratio", "cpu_median", "cpu_min", "cpu_max", "cpu_ratio"),
    *("difference_early", "difference_final", "processor", "cores", "error"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    pythons, errors = dict(options.python), {}
    for name in options.arms:
        try:
            if name not in pythons:
                pythons[name] = environment(name, options.environments, torch.__version__.partition("+")[0])
        except Failed as problem:
            errors[name] = str(problem)
    frames = []
    with TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        work = Path(folder) / "work.npz"
        settings = ours_arm.settings(options.clients, options.active, options.samples)
        plan = ours_arm.work(settings, options.warmup + options.rounds)
        plan.write(work)
        for threads in options.threads:
            # With one process it is pfl; and pfl deals a cohort out to its processes evenly, or not at all.
            left_out = {"pfl_processes"} if threads == 1 or options.active % threads else set()
            arms = [Arm(name, errors.get(name, "")) for name in options.arms if name not in left_out]
            _take_turns(arms, pythons, work, threads, options)
            frame = _summarise(arms, plan.weights).assign(
                threads=threads, malloc=options.malloc, rounds=options.rounds, **_machine()
            )
            print(_text(frame), flush=True)
            frames.append(frame)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    table = pd.concat(frames).reindex(columns=COLUMNS)
    table.to_csv(options.out, index=False, float_format="%.4g")
    return 1 if any(table["error"]) else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--arms", nargs="+", choices=NAMES, default=NAMES, metavar="ARM", help=f"of {', '.join(NAMES)}; default: all")
    add("--threads", nargs="+", type=_count, default=[2, 1], metavar="N", help="one after another; default: 2 1")
    add("--rounds", type=_count, default=7, metavar="N", help="measured, of each arm; default: 7")
    add("--warmup", type=_count, default=2, metavar="N", help="rounds before these; default: 2")
    add("--malloc", choices=MALLOC, default="default", help="glibc's thresholds as they are, or raised, in all arms")
    add("--clients", type=_count, default=100, metavar="N", help="default: 100")
    add("--active", type=_count, default=10, metavar="N", help="clients a round; default: 10")
    add("--samples", type=_count, default=200, metavar="N", help="images of a client; default: 200")
    add("--environments", type=Path, default=Path(".peers"), metavar="DIR", help="of the peers, made where missing")
    add("--python", type=_pair, action="append", default=[], metavar="ARM=PYTHON", help="one that you have, instead")
    add("--out", type=Path, default=Path("results/benchmarks/peers.csv"), metavar="CSV", help="default: %(default)s")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more (got {text})")
    return int(text)


def _pair(text: str) -> list[str]:
    arm, _, python = text.partition("=")
    if arm not in NAMES or not python:
        raise argparse.ArgumentTypeError(f"must be ARM=PYTHON (got {text})")
    return [arm, python]


def _take_turns(
    arms: list[Arm], pythons: dict[str, str], work: Path, threads: int, options: argparse.Namespace
) -> None:
    variables, order = _variables(work.parent, threads, options.malloc), random.Random(0)
    try:
        for arm in _well(arms):
            with arm.trying():
                arm.start(pythons[arm.name], work, threads, min(CHECKED, options.warmup), variables)
        for arm in _well(arms):
            with arm.trying():
                arm.get_ready()
        for number in range(options.warmup + options.rounds):
            # In another order each time, so that no arm always follows the same other.
            for arm in _well(order.sample(arms, len(arms))):
                with arm.trying():
                    arm.round(measured=number >= options.warmup)
        for arm in _well(arms):
            with arm.trying():
                arm.finish()
    finally:
        for arm in arms:
            arm.stop()


def _well(arms: Iterable[Arm]) -> Iterable[Arm]:
    return (arm for arm in arms if not arm.error)


def _variables(folder: Path, threads: int, malloc: str) -> dict[str, str]:
    """The variables that all arms see."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRE"))}
    theirs |= MALLOC[malloc] | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    # What a framework leaves behind goes with the folder, and what it would report to its makers is not reported.
    theirs |= {"TMPDIR": str(folder), "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0"}
    return theirs | {"RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": ""}


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else "unknown", "cores": os.cpu_count()}


def _summarise(arms: Sequence[Arm], start: Weights) -> pd.DataFrame:
    """A row for each arm, with ratios to the fastest yardstick and differences to the weights of `plain`."""
    plain = next((arm for arm in _well(arms) if arm.name == "plain"), None)
    rows = []
    for arm in arms:
        row: dict[str, Any] = {"arm": arm.name, **arm.facts}
        if plain and not arm.error:
            for when in ("early", "final"):
                row[f"difference_{when}"] = _difference(arm.weights(when), plain.weights(when), start)
            if row["difference_early"] > TOLERANCE:
                arm.error = f"other work: weights are {row['difference_early']:.1e} of the way from those of plain"
        if not arm.error:
            for clock, seconds in zip(("wall", "cpu"), np.transpose(arm.rounds), strict=True):
                row |= {f"{clock}_{what}": getattr(np, what)(seconds) for what in ("median", "min", "max")}
        rows.append(row | {"error": arm.error})
    frame = pd.DataFrame(rows).reindex(columns=COLUMNS)
    for clock in ("wall", "cpu"):
        median = frame[f"{clock}_median"]
        frame[f"{clock}_ratio"] = median / median[frame["arm"].isin(YARDSTICKS)].min()
    return frame


def _difference(one: Weights, other: Weights, start: Weights) -> float:
    """How far apart two arms are, as a share of the way that the second has come.

    Over all weights together: where the rounding of two nearly equal values lets the other one pass a pooling, a few
    weights move by as much as a mistake would move them, but a mistake moves all.
    """
    pairs = ((one, other), (other, start))
    apart, way = (np.sqrt(sum(np.square(a[name] - b[name]).sum() for name in start)) for a, b in pairs)
    return float(apart / way)


def _text(frame: pd.DataFrame) -> str:
    lines = [
        f"\n{frame['threads'].iloc[0]} thread(s): median seconds a round (min-max), times the fastest of plain and pfl"
    ]
    for row in frame.to_dict("records"):
        clocks = (
            f"{clock} {row[f'{clock}_median']:.3f} ({row[f'{clock}_min']:.3f}-{row[f'{clock}_max']:.3f})"
            f" {row[f'{clock}_ratio']:.2f}×"
            for clock in ("wall", "cpu")
        )
        weights = f"weights ±{row['difference_early']:.0e}, at the end ±{row['difference_final']:.0e}"
        told = row["error"] or f"{', '.join(clocks)}; {weights}"
        lines.append(f"  {row['arm']:<13}  {told}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
