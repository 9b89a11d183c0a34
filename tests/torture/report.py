"""Carry out all torture in full and write what came of it into docs/reliability.md.

    python tests/torture/report.py [--scale 1.0] [--seed 0] [--only damage]

Each file test_KIND.py beside this one has a function ``torture(count, seed, folder)`` that gives tallies, and a count
below; a file without one is tried in its short form only.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reliability.md"
COUNTS = {"kills": 76, "crashes": 150, "damage": 10, "hostile": 13, "settings": 10_000, "foreign": 64}
"""How much of each kind; what it counts is said in its file."""

BEGIN, END = "<!-- torture: {kind} -->\n", "<!-- end -->\n"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--scale", type=float, default=1.0, help="of the counts: 0.1 for a tenth")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=COUNTS, action="append", help="this kind, again for more")
    options.add_argument("--dry", action="store_true", help="leave the page as it is")
    given = options.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for kind in given.only or COUNTS:
        print(f"{kind}: seed {given.seed}", flush=True)
        start = time.monotonic()
        with TemporaryDirectory() as folder:
            count = max(1, round(COUNTS[kind] * given.scale))
            tallies = importlib.import_module(f"torture.test_{kind}").torture(count, given.seed, Path(folder))
        rows = ""
        for tally in tallies:
            survived = tally.tried - len(tally.lost)
            print(f"  {tally.kind}: tried {tally.tried}, survived {survived}", *tally.lost, sep="\n    ", flush=True)
            rows += f"| {tally.kind} | {tally.tried} | {survived} | {len(tally.lost)} |\n"
            failed += len(tally.lost)
        how = f"--scale {given.scale:g} --seed {given.seed}"
        about = f"{how}, Python {platform.python_version()}, {time.monotonic() - start:.0f} s"
        print(f"  {about}", flush=True)
        if not given.dry:
            write(
                kind, f"\n{kind} ({about})\n\n| what was done | tried | survived | lost |\n|---|--:|--:|--:|\n{rows}\n"
            )
    return 1 if failed else 0


def write(kind: str, text: str) -> None:
    """Put a kind's table into its place on the page."""
    page, begin = PAGE.read_text("utf-8"), BEGIN.format(kind=kind)
    before, _, rest = page.partition(begin)
    PAGE.write_text(before + begin + text + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    sys.exit(main())
