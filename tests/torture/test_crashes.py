"""A model of what a kill or a power cut leaves of a run, at every single operation on its files.

All that a run does to its files is recorded. For each operation, the files are laid out as they may be had the process
died right before it or in the middle of it, or had the power gone: then what was not waited for is lost, cut short,
zeroed or there, and names that were made, changed or removed since the folder was last synced are each there or not,
in any order. From each such state, a table must show nothing wrong, and the next start must give the same numbers.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from torture.common import TINY, Tally, left_alone, made_again, wrongly_shown

from prism_bench.base import files
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import Results
from prism_bench.harness.run_folder import DONE, RunFolder

Operation = tuple[Any, ...]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 11), reason="the recorder looks into /proc, and into pathlib"
)


class Recorder:
    """Notes the operations on the files below a folder, each file by the number that it got when it was made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.names: dict[str, int] = {}
        self.made = 0

    def name(self, path: Any) -> str | None:
        path = Path(path).absolute()
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) and path != self.root else None

    def open(self, path: Any, mode: str) -> Any:
        stream, name = io.open(path, mode), self.name(path)  # noqa: SIM115, UP020
        if name is None or mode == "rb+":
            return stream
        if name not in self.names:
            self.made += 1
            self.names[name] = self.made
            self.operations.append(("create", name, self.made))
        elif mode == "wb":
            self.operations.append(("cut", self.names[name], 0))
        write, number = stream.write, self.names[name]

        def noted(content: Any) -> int:
            self.operations.append(("write", number, bytes(content)))
            return int(write(content))

        proxy = mock.MagicMock(wraps=stream)
        proxy.__enter__.return_value = proxy
        proxy.__exit__.side_effect = lambda *_: stream.close()
        proxy.write.side_effect = noted
        return proxy

    @contextmanager
    def recording(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink", "truncate", "mkdir")}

        def fsync(number: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            name = self.name(path)
            if path.is_dir() and (name or path == self.root):
                self.operations.append(("sync folder", name or "."))
            elif name in self.names:
                self.operations.append(("sync", self.names[name]))
            real["fsync"](number)

        def replace(source: Any, target: Any, **more: Any) -> None:
            real["replace"](source, target, **more)
            if (name := self.name(source)) is not None:
                number = self.names[self.name(target) or ""] = self.names.pop(name)
                self.operations.append(("rename", name, self.name(target), number))

        def unlink(path: Any, **more: Any) -> None:
            real["unlink"](path, **more)
            if (name := self.name(path)) in self.names:
                self.names.pop(name or "")
                self.operations.append(("unlink", name))

        def truncate(path: Any, size: int) -> None:
            real["truncate"](path, size)
            self.operations.append(("cut", self.names[self.name(path) or ""], size))

        def mkdir(path: Any, *more: Any, **others: Any) -> None:
            real["mkdir"](path, *more, **others)
            if (name := self.name(path)) is not None:
                self.operations.append(("mkdir", name))

        changed = {"fsync": fsync, "replace": replace, "unlink": unlink, "truncate": truncate, "mkdir": mkdir}
        with mock.patch.multiple(os, **changed), mock.patch.object(files, "open", self.open, create=True):
            yield


def laid_out(operations: Sequence[Operation], power: random.Random | None, root: Path) -> None:
    """Write the files as they are after these operations.

    ``power``: then the power went, and chance decides over all that was not waited for.
    """
    now: dict[int, bytes] = {}
    safe: dict[int, bytes] = {}
    names: dict[str, int | None] = {}
    pending: dict[str, list[Operation]] = {}
    for operation in operations:
        what, first = operation[0], operation[1]
        if what == "create":
            now[operation[2]] = safe[operation[2]] = b""
        if what in ("create", "rename", "unlink", "mkdir"):
            if power is None:
                _name(names, operation)
            else:
                pending.setdefault(str(Path(first).parent), []).append(operation)
        elif what == "write":
            now[first] += operation[2]
        elif what == "cut":
            now[first] = now[first][: operation[2]]
        elif what == "sync":
            safe[first] = now[first]
        elif what == "sync folder":
            for waiting in pending.pop(first, []):
                _name(names, waiting)
    if power is not None:
        usual = power.choice([0.0, 0.5, 1.0])
        for waiting in [one for group in pending.values() for one in group]:
            if power.random() < usual:
                _name(names, waiting)
        for number, content in now.items():
            old = safe[number]
            rest = content[len(old) :] if content.startswith(old) else b""
            cut, zeros = content[: len(content) - len(rest) // 2], old + bytes(len(rest))
            now[number] = content if content == old else power.choice([old, cut, zeros, content])
    root.mkdir(parents=True)
    folders = {name for name, number in names.items() if number is None}
    for folder in sorted(folders):
        if all(str(above) in folders for above in Path(folder).parents if str(above) != "."):
            (root / folder).mkdir(exist_ok=True)
    for name, number in names.items():
        if number is not None and (root / name).parent.is_dir():
            (root / name).write_bytes(now[number])


def _name(names: dict[str, int | None], operation: Operation) -> None:
    what, first, *rest = operation
    if what == "unlink":
        names.pop(first, None)
    elif what == "mkdir":
        names[first] = None
    elif what == "create":
        names[first] = rest[0]
    else:
        names.pop(first, None)
        names[rest[0]] = rest[1]


def forgotten(operations: Sequence[Operation], out: Path) -> str:
    """What is wrong where the run had been on the disk as done, and is not done any more."""
    for place, (what, *names) in enumerate(operations):
        if what == "rename" and Path(names[1]).name == DONE:
            folder = Path(names[1]).parent
            if ("sync folder", str(folder)) in operations[place:] and RunFolder(out / folder).summary() is None:
                return "a run that had been done is not any more"
    return ""


def torture(count: int, seed: int, folder: Path) -> list[Tally]:
    """Every operation once for a kill before it, once halfway; then ``count`` states that a power cut may leave."""
    experiment, rng = Experiment.load(TINY), random.Random(seed)
    recorder = Recorder(folder / "whole")
    (folder / "whole").mkdir()
    with recorder.recording():
        left_alone(experiment, folder / "whole")
    good, operations = Results.open(folder / "whole"), recorder.operations
    assert len(operations) > 40
    kill = Tally("killed before, or halfway through, each operation on a run's files")
    power = Tally("power cut at an operation: unsynced bytes lost, cut or zeroed, unsynced names in any order")
    states: list[tuple[Tally, int, list[Operation], random.Random | None]] = []
    for place in range(len(operations) + 1):
        states.append((kill, place, operations[:place], None))
        if place < len(operations) and operations[place][0] == "write":
            _, number, content = operations[place]
            half = ("write", number, content[: len(content) // 2])
            states.append((kill, place, [*operations[:place], half], None))
    if count < len(states):
        states = rng.sample(states, count)
    for _ in range(count):
        place = rng.randrange(len(operations) + 1)
        states.append((power, place, operations[:place], random.Random(rng.random())))
    for tally, place, done, chance in states:
        out = folder / "crashed"
        laid_out(done, chance, out)
        trouble = wrongly_shown(out, good.runs()) or forgotten(done, out) or made_again(experiment, out, good.rounds())
        tally.count(f"operation {place} of {len(operations)}, seed {seed}", trouble)
        shutil.rmtree(out)
    return [kill, power]


def test_every_kind_of_crash_in_short(tmp_path):
    for tally in torture(25, seed=1, folder=tmp_path):
        assert tally.tried >= 25
        assert tally.lost == []
