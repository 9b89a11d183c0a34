"""Every region of every file of a run is flipped, zeroed, cut off or emptied, and every file deleted.

A table must show the right numbers or none, and the next start must give the right ones.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torture.common import TINY, Tally, left_alone, made_again, wrongly_shown

from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.runner import carry_out


class StopAfterTwo(Callback):
    def round_done(self, number, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


def places(content: bytes, regions: int, rng: random.Random) -> list[int]:
    """One place in each of so many regions, or each byte where there are fewer."""
    width = max(1, len(content) // regions)
    return [rng.randrange(start, min(start + width, len(content))) for start in range(0, len(content), width)]


def harms(content: bytes, regions: int, rng: random.Random) -> Iterator[tuple[str, bytes | None]]:
    """What may become of a file: each change in a few words, with the bytes after it; None for no file."""
    for place in places(content, regions, rng):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        yield f"a bit of byte {place} flipped", bytes(flipped)
        wrong = bytearray(content)
        wrong[place] = rng.choice(b"0123456789")
        yield f"byte {place} another digit", bytes(wrong)
        yield f"cut off at byte {place}", content[:place]
        yield f"zeros from byte {place}", content[:place] + bytes(len(content) - place)
        yield f"16 bytes gone at byte {place}", content[:place] + content[place + 16 :]
    yield "emptied", b""
    yield "deleted", None


def torture(count: int, seed: int, folder: Path) -> list[Tally]:
    """``count`` regions per file are damaged for reading; a sample of these harms is followed by another start."""
    experiment, rng = Experiment.load(TINY), random.Random(seed)
    good = left_alone(experiment, folder / "done")
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, folder / "begun", callbacks=[StopAfterTwo()])
    shutil.copytree(folder / "done", folder / "exported", ignore=shutil.ignore_patterns("runs"))
    rounds, runs = good.rounds(), good.runs()
    reading = Tally("a file of a finished run damaged, then read")
    exported = Tally("a manifest or table without its runs damaged, then read")
    again = Tally("a file of a finished run damaged, then started again")
    resumed = Tally("a file of an unfinished run damaged, then started again")
    for place, read, start in (
        ("done", reading, again),
        ("exported", exported, None),
        ("begun", None, resumed),
    ):
        untouched = folder / place
        todo = [
            (file.relative_to(untouched), how, content)
            for file in sorted(untouched.rglob("*"))
            if file.is_file() and not file.name.startswith(".lease")
            for how, content in harms(file.read_bytes(), count, rng)
        ]
        out = folder / "damaged"
        shutil.copytree(untouched, out)
        for file, how, content in todo if read else []:
            before = (out / file).read_bytes()
            _harm(out / file, content)
            read.count(f"{place}: {file.name}: {how}", _looked_at(out, runs, rounds))
            (out / file).write_bytes(before)
        shutil.rmtree(out)
        for file, how, content in rng.sample(todo, min(len(todo), 12 * count)) if start else []:
            shutil.copytree(untouched, out)
            _harm(out / file, content)
            start.count(f"{place}: {file.name}: {how}", made_again(experiment, out, rounds))
            shutil.rmtree(out)
    return [reading, exported, again, resumed]


def _harm(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def _looked_at(out: Path, runs, rounds) -> str:
    return wrongly_shown(out, runs) or wrongly_shown(out, rounds, Results.rounds)


def test_no_damaged_byte_becomes_a_number(tmp_path):
    for tally in torture(2, seed=2, folder=tmp_path):
        assert tally.tried >= 24
        assert tally.lost == []
