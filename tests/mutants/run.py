"""Plant defects, one at a time, and see which guard catches each.

    python tests/mutants/run.py                          # all; the first guard that a patch names is tried first
    python tests/mutants/run.py kappa-40 merge-forgets   # some
    python tests/mutants/run.py --every --markdown docs/guards.md

A defect is a patch in this folder: a sentence, the guards that should see it, cheapest first, then the change. Each is
applied to a copy of the sources. A guard ``test:`` is a test, by pytest's name. ``gate:`` is the regression gate: the
runs of the named algorithm in the experiment `ci`, of its first seed, against the numbers of the copy without a defect,
which must be equal. Without a defect all guards must pass, and every defect must be caught: exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = ("prism_bench", "baselines", "partitions", "tests", "pyproject.toml")
PATIENCE = 300
"""Seconds after which a guard that does not end counts as one that fails."""


@dataclass(frozen=True)
class Guard:
    """What may catch a defect."""

    kind: str
    what: str

    @property
    def shown(self) -> str:
        if self.kind == "gate":
            return f"gate ({self.what})"
        kind = "conformance" if "test_conformance" in self.what else "unit test"
        return f"{kind} `{self.what.removeprefix('tests/')}`"


@dataclass(frozen=True)
class Mutant:
    """A planted defect."""

    file: Path
    says: str
    guards: tuple[Guard, ...]

    @classmethod
    def read(cls, file: Path) -> Mutant:
        """A patch with its head: a sentence, then a line per guard, up to the first empty line."""
        says, *lines = file.read_text("utf-8").partition("\n\n")[0].splitlines()
        guards = tuple(Guard(*line.split(": ", 1)) for line in lines)
        if not guards or {guard.kind for guard in guards} - {"gate", "test"}:
            raise SystemExit(f"{file}: needs lines 'gate: ALGORITHM' or 'test: NAME' after its sentence.")
        return cls(file, says, guards)

    @property
    def name(self) -> str:
        return self.file.stem


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """Those of this folder, or the named ones."""
    known = {file.stem: file for file in sorted(HERE.glob("*.patch"))}
    for name in names:
        if name not in known:
            raise SystemExit(f"There is no mutant '{name}': they are {', '.join(known)}.")
    return [Mutant.read(known[name]) for name in names or known]


def git_apply(file: Path, tree: Path, *options: str) -> None:
    """Apply a patch to a tree that need be no repository."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent), "GIT_DIR": os.devnull}
    command = ["git", "apply", *options, str(file.absolute())]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{file.name} does not apply any more; plant its defect in the code as it is now.\n{done.stderr}"
        )


class Copy:
    """A copy of the sources, laid out as they install, and what its guards say."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.log = tree, tree.with_name("log.txt")
        for name in SOURCES:
            source, skip = ROOT / name, shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(source, tree / name, ignore=skip) if source.is_dir() else shutil.copy(source, tree / name)
        for plugins in ("baselines", "partitions"):
            (tree / "prism_bench" / plugins).symlink_to(tree / plugins)
        # Checked by content: a second is too long to tell a planted source from the one before it.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(tree, quiet=1, invalidation_mode=checked)
        self.loaded = tree.with_name("loaded.txt")
        self.passed: set[Guard] = set()
        """Those that have passed without a defect."""

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        git_apply(mutant.file, self.tree)
        try:
            yield
        finally:
            git_apply(mutant.file, self.tree, "--reverse")

    def says(self, guards: Sequence[Guard]) -> int:
        """The exit code of some tests, or of one gate: 0 where they pass, 1 where they fail.

        In a fork, which has the heavy packages loaded, and none of the sources.
        """
        os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"})
        child = os.fork()
        if child == 0:
            code = 3
            try:
                with self.log.open("w") as log:
                    for stream in (1, 2):
                        os.dup2(log.fileno(), stream)
                code = self._ask(guards)
                self.loaded.write_text("\n".join(name for name in sys.modules if not self._own(sys.modules[name])))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        deadline = time.monotonic() + PATIENCE * len(guards)
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)

    def _own(self, module: ModuleType) -> bool:
        """Whether a module is of this suite, or of its tests."""
        file = getattr(module, "__file__", None) or ""
        return module.__name__.partition(".")[0] in ("prism_bench", "tests", "__main__") or str(self.tree) in file

    def _ask(self, guards: Sequence[Guard]) -> int:
        os.chdir(self.tree)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(self.tree))
        names = [guard.what for guard in guards]
        if guards[0].kind == "test":
            import pytest

            return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *names]))
        from tests.mutants.gate import equal_to

        return equal_to(self.tree / f"clean-{names[0]}.csv", names[0])

    def must_pass(self, guards: Sequence[Guard]) -> None:
        """Without a defect; the gate keeps its numbers then, for the defects to be told by."""
        new = [guard for guard in dict.fromkeys(guards) if guard not in self.passed]
        tests = [guard for guard in new if guard.kind == "test"]
        for some in [tests] * bool(tests) + [[guard] for guard in new if guard.kind == "gate"]:
            if self.says(some):
                raise SystemExit(f"A guard fails without a defect:\n{self.log.read_text()[-3000:]}")
            self.passed |= set(some)
            for name in self.loaded.read_text().split():
                with suppress(Exception):
                    importlib.import_module(name)  # what is the same with a defect and without: the next forks have it

    def catches(self, guard: Guard, mutant: Mutant) -> bool:
        """Whether a guard fails with the defect."""
        with self.planted(mutant):
            code = self.says([guard])
        if code > 1:
            raise SystemExit(f"{mutant.name}: {guard.what} can't be run:\n{self.log.read_text()[-3000:]}")
        return code != 0


def hunt(chosen: Sequence[Mutant], every: bool, tell: Callable[[str], None]) -> dict[str, list[Guard]]:
    """By mutant, the guards that caught it: the first one, or each that its patch names."""
    caught: dict[str, list[Guard]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder).resolve() / "tree")
        copy.must_pass([guard for one in chosen for guard in (one.guards if every else one.guards[:1])])
        for one in chosen:
            started = time.perf_counter()
            caught[one.name] = []
            for guard in one.guards:
                if not every and caught[one.name]:
                    break
                copy.must_pass([guard])
                if copy.catches(guard, one):
                    caught[one.name].append(guard)
            by = " and ".join(guard.shown for guard in caught[one.name]) or "NOBODY"
            tell(f"{one.name}: caught by {by}, {time.perf_counter() - started:.0f} s")
    return caught


def markdown(chosen: Sequence[Mutant], caught: dict[str, list[Guard]], command: str) -> str:
    lines = [
        "# Planted defects and what catches each",
        "",
        "Each of these was planted in a copy of the sources, alone, and its guards were run: the regression gate on",
        "the named algorithm's runs of `ci`, and the named tests. The list is written by",
        "",
        f"    {command}",
        "",
        f"{sum(map(bool, caught.values()))} of {len(chosen)} defects were caught. The patches are in `tests/mutants/`.",
        "",
        "| defect | what it does | caught by |",
        "| --- | --- | --- |",
    ]
    for one in chosen:
        by = ", ".join(guard.shown for guard in caught[one.name]) or "**nobody**"
        lines.append(f"| [{one.name}](../tests/mutants/{one.name}.patch) | {one.says} | {by} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="mutants, without .patch (default: all)")
    parser.add_argument(
        "--every", action="store_true", help="try every guard that a patch names, not only up to the first"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the list with its guards")
    options = parser.parse_args()
    chosen = mutants(options.names)
    caught = hunt(chosen, options.every, lambda line: print(line, flush=True))
    survived = [name for name, guards in caught.items() if not guards]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} caught.")
    for name in survived:
        print(f"{name} survived.")
    if options.markdown:
        flags = " --every" if options.every else ""
        command = f"python tests/mutants/run.py{flags} --markdown {options.markdown}"
        options.markdown.write_text(markdown(chosen, caught, command), "utf-8")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
