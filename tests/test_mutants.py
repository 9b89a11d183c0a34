"""Planted defects: each still applies and names its guards, and a handful are caught; `tox -e mutants` tries all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "mutants"
spec = importlib.util.spec_from_file_location("mutants_run", HERE / "run.py")
assert spec is not None
run = importlib.util.module_from_spec(spec)
sys.modules["mutants_run"] = run
spec.loader.exec_module(run)

EVERY = run.mutants()
HANDFUL = ("decay-of-v-dropped", "evaluation-on-training-data", "kappa-swapped", "merge-by-cohort", "refresh-dropped")


def test_there_are_enough_and_each_changes_what_counts():
    assert len(EVERY) >= 30
    for one in EVERY:
        changed = one.file.read_text("utf-8").split("\n+++ b/")[1].splitlines()[0]
        assert changed.startswith(("prism_bench/", "baselines/", "partitions/")), one.name
        assert one.says.endswith("."), one.name


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_a_patch_still_applies(one):
    run.git_apply(one.file, run.ROOT, "--check")


def test_the_list_in_the_docs_is_of_these():
    text = (run.ROOT / "docs/guards.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| [")]
    assert [row[3:].partition("]")[0] for row in rows] == [one.name for one in EVERY]
    assert "**nobody**" not in text
    for row, one in zip(rows, EVERY, strict=True):
        assert one.says in row


@pytest.mark.skipif(sys.platform == "win32", reason="guards run in forks")
def test_a_handful_is_caught():
    """By a process of its own, as it imports no source of this one."""
    done = subprocess.run([sys.executable, HERE / "run.py", *HANDFUL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(HANDFUL)} of {len(HANDFUL)} caught." in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="guards run in forks")
def test_what_is_no_defect_survives(tmp_path):
    """A patch that moves no number: the hunt says so, and fails."""
    harmless = (HERE / "kappa-40.patch").read_text("utf-8").replace("(40.0 if keep", "(4.00 if keep")
    assert "4.00 if" in harmless
    (tmp_path / "harmless.patch").write_text(harmless, "utf-8")
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import run; "
        "run.HERE = pathlib.Path(sys.argv[2]); sys.argv = ['run.py']; sys.exit(run.main())"
    )
    done = subprocess.run([sys.executable, "-c", code, HERE, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "harmless survived." in done.stdout


def test_a_patch_that_no_longer_applies_is_named(tmp_path):
    patch = tmp_path / "old.patch"
    patch.write_text((HERE / "kappa-40.patch").read_text("utf-8").replace("-        κ", "-        η"), "utf-8")
    with pytest.raises(SystemExit, match=r"old\.patch does not apply any more"):
        run.git_apply(patch, run.ROOT, "--check")
