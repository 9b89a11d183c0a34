"""Runs that survive: killed, cut off, damaged, edited, started twice. the same numbers, or a clear word."""

from __future__ import annotations

import errno
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from prism_bench.base import files, registry
from prism_bench.base.errors import BadInput
from prism_bench.engine.sections import Execution
from prism_bench.harness import run_folder as store
from prism_bench.harness.callbacks import Callback
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import STAGES, Results
from prism_bench.harness.run_folder import RunFolder
from prism_bench.harness.runner import carry_out

TINY = {
    "name": "tiny",
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 6, "active": 2, "epochs": 1},
    "evaluation": {"batch": 100, "probes": ["rank", "sampling"]},
}


def numbers(frame):
    """All but the time it took."""
    return frame.drop(columns=["seconds", *(f"seconds_{stage}" for stage in STAGES)])


def same(one, other):
    pd.testing.assert_frame_equal(numbers(one), numbers(other), check_exact=True, check_dtype=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run as it is when nothing happens to it."""
    out = tmp_path_factory.mktemp("whole")
    carry_out(Experiment.load(TINY), out)
    return Results.open(out)


class StopAfter(Callback):
    def __init__(self, round):
        self.round = round

    def round_done(self, number, record):
        if record["round"] == self.round:
            raise KeyboardInterrupt


def begun(out, rounds=3):
    """The folder of a run that was stopped after so many rounds."""
    with pytest.raises(KeyboardInterrupt):
        carry_out(Experiment.load(TINY), out, callbacks=[StopAfter(rounds)])
    [path] = (out / "runs").iterdir()
    return path


def in_a_fork(work):
    """A process that has all modules loaded already; returns its id. It ends with 0 where ``work`` does."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            os._exit(code)
    return child


class Started(Callback):
    """Notes which rounds a start has found done, and makes a round last longer than the kill takes."""

    def __init__(self):
        self.done = []

    def run_started(self, number, run, label, done):
        self.done.append(done)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_thirty_random_moments(tmp_path):
    """kill -9, started again, killed again: never more than the round under way lost, and the same numbers in the end.

    Each kill comes a random while after a start has made progress, so that it lands anywhere in a round: while clients
    train, in the middle of a record, of a checkpoint, between the two.
    """
    rng, experiment = random.Random(0), Experiment.load(TINY | {"training": {"rounds": 90, "active": 2, "epochs": 1}})
    reference = carry_out(experiment).rounds
    each = reference["seconds"].median()
    reached = kills = 0
    while kills < 30:
        child = in_a_fork(lambda: carry_out(experiment, tmp_path))
        while _progress(tmp_path)[0] <= reached and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(each / 20)
        time.sleep(rng.uniform(0, 2 * each))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        lines, saved = _progress(tmp_path)
        assert saved > 0, "the kill came after a round was over"
        assert lines - saved <= 1, "at most the round under way is lost"
        assert saved >= reached, "what was reached stays reached"
        assert saved < 90, "all kills came before the end"
        assert Results.open(tmp_path).runs().empty, "no table shows a partial run as done"
        reached = saved
    started = Started()
    same(carry_out(experiment, tmp_path, callbacks=[started]).rounds, reference)
    assert started.done == [reached]
    assert not list((tmp_path / "runs").glob("*/.checkpoint*")), "no half-written file is left"


def _progress(out):
    """Rounds that are recorded, and the newest of which there is a checkpoint."""
    lines = [file.read_bytes().count(b"\n") for file in (out / "runs").glob("*/rounds.jsonl")]
    saved = [int(file.name.split("-")[1]) for file in (out / "runs").glob("*/checkpoint*")]
    return max(lines, default=0), max(saved, default=0)


@pytest.mark.parametrize("rounds", [1, 3, 5])
def test_stopped_and_resumed(tmp_path, whole, rounds):
    path = begun(tmp_path, rounds)
    assert Results.open(tmp_path).runs().empty, "no table shows a partial run as done"
    assert Results.open(tmp_path).missing == ["prism at 0.4, seed 0"]
    started = Started()
    resumed = carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds
    assert started.done == [rounds]
    same(resumed, whole.rounds())
    for probe in ("rank", "sampling"):
        pd.testing.assert_frame_equal(Results.open(tmp_path).probe(probe), whole.probe(probe))
    assert sorted(file.name for file in path.glob("checkpoint*"))[0].startswith("checkpoint-0000006"), "only the last"


def test_a_round_whose_checkpoint_is_not_there_is_run_again(tmp_path, whole):
    """Killed between the line and its checkpoint, or in the middle of the line."""
    path = begun(tmp_path)
    newest = max(path.glob("checkpoint*"))
    newest.unlink()
    with (path / store.ROUNDS).open("ab") as stream:
        stream.write(b'{"round": 4, "accu')
    started = Started()
    same(carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [2]


def cut(file):
    file.write_bytes(file.read_bytes()[:100])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, lambda file: file.write_bytes(b"")], ids=["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, whole, harm):
    path = begun(tmp_path)
    harm(max(path.glob("checkpoint*")))
    started = Started()
    with pytest.warns(UserWarning, match="is damaged .* going back"):
        resumed = carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds
    assert started.done == [2]
    same(resumed, whole.rounds())


def test_no_good_checkpoint_at_all(tmp_path, whole):
    path = begun(tmp_path)
    for file in path.glob("checkpoint*"):
        cut(file)
    with pytest.warns(UserWarning, match="starts anew"):
        same(carry_out(Experiment.load(TINY), tmp_path).rounds, whole.rounds())


def test_rounds_that_are_lost_are_run_again(tmp_path, whole):
    """rounds.jsonl cut short by hand: a checkpoint without its rounds is of no use."""
    path = begun(tmp_path)
    (path / store.ROUNDS).write_bytes(b"")
    with pytest.warns(UserWarning, match="no checkpoint can be used"):
        same(carry_out(Experiment.load(TINY), tmp_path).rounds, whole.rounds())


def test_checkpoints_hold_tensors_and_plain_values_only(tmp_path):
    path = begun(tmp_path)
    saved = torch.load(max(path.glob("checkpoint*")), weights_only=True)
    assert saved["round"] == 3
    assert set(saved["algorithm"]) == {"state"}


def test_checkpoints_can_be_rarer(tmp_path, whole):
    experiment = Experiment.load(TINY, {"execution.checkpoint": 2})
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, tmp_path, callbacks=[StopAfter(3)])
    started = Started()
    same(carry_out(experiment, tmp_path, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [2]


def test_other_settings_never_continue_an_old_run(tmp_path):
    begun(tmp_path)
    started = Started()
    carry_out(Experiment.load(TINY, {"algorithm.kappa": 3}), tmp_path, callbacks=[started])
    assert started.done == [0]
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_settings_that_were_edited_by_hand_are_set_right(tmp_path, whole):
    path = begun(tmp_path)
    good = (path / store.SETTINGS).read_bytes()
    settings = json.loads(good)
    settings["training"]["lr"] = 0.5
    for content in (json.dumps(settings), "{", "[]"):
        (path / store.SETTINGS).write_text(content)
        with pytest.warns(UserWarning, match=r"settings\.json: is not what the run was started with, and is written"):
            same(carry_out(Experiment.load(TINY), tmp_path).rounds, whole.rounds())
        assert (path / store.SETTINGS).read_bytes() == good


def test_damaged_settings_set_one_run_aside_and_no_other(tmp_path):
    carry_out(Experiment.load(TINY, seeds=2), tmp_path)
    victim = tmp_path / "runs" / Results.open(tmp_path).about["runs"][0]["folder"]
    (victim / store.SETTINGS).write_text("{")
    with pytest.warns(UserWarning, match=r"settings\.json: .* counts as not done"):
        assert Results.open(tmp_path).runs()["seed"].tolist() == [1]


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_an_edited_number_is_named_and_made_again(tmp_path, whole):
    """In the summary of a finished run, and in its rounds."""
    carry_out(Experiment.load(TINY), tmp_path)
    [path] = (tmp_path / "runs").iterdir()
    for name in (store.DONE, store.ROUNDS):
        edit(path / name, '"accuracy": ', '"accuracy": 9')
        with pytest.warns(UserWarning, match=rf"{name}: .* counts as not done"):
            assert Results.open(tmp_path).runs().empty
        with pytest.warns(UserWarning, match=rf"{name}: "):
            same(carry_out(Experiment.load(TINY), tmp_path).rounds, whole.rounds())


def test_an_edited_number_of_an_unfinished_run_is_never_certified(tmp_path, whole):
    path = begun(tmp_path)
    lines = (path / store.ROUNDS).read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"accuracy": ', '"accuracy": 9')
    (path / store.ROUNDS).write_text("".join(lines))
    started = Started()
    with pytest.warns(UserWarning, match=r"rounds\.jsonl: line 2: its checksum is wrong; the run goes back"):
        same(carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [1], "from the checkpoint that is known to be on the disk"


def test_an_edited_manifest_and_an_edited_table_are_refused(tmp_path, whole):
    out = tmp_path / "clone"
    shutil.copytree(whole.folder, out, ignore=shutil.ignore_patterns("runs"))
    edit(out / "rounds.csv", "0.4", "0.9")
    with pytest.raises(BadInput, match=r"rounds\.csv: can't be read: is not what was written there"):
        Results.open(out).runs()
    edit(out / "experiment.json", '"keep": "0.4"', '"keep": "0.9"')
    with pytest.raises(BadInput, match=r"experiment\.json: can't be read .* its checksum is wrong"):
        Results.open(out)


def test_line_ends_that_git_changed_are_no_damage(tmp_path, whole):
    out = tmp_path / "clone"
    shutil.copytree(whole.folder, out, ignore=shutil.ignore_patterns("runs"))
    for name in ("rounds.csv", "experiment.json"):
        (out / name).write_bytes((out / name).read_bytes().replace(b"\n", b"\r\n"))
    assert len(Results.open(out).runs()) == 1


def test_what_an_earlier_version_wrote_is_read_with_a_word(tmp_path, whole):
    """It had no checksum of a run's summary, nor of the manifest."""
    carry_out(Experiment.load(TINY), tmp_path)
    [path] = (tmp_path / "runs").iterdir()
    done = json.loads((path / store.DONE).read_text())
    (path / store.DONE).write_text(json.dumps({"checksum": done["rounds"], "summary": done["summary"]}))
    about = json.loads((tmp_path / "experiment.json").read_text())
    del about["format"], about["checksum"], about["tables"]
    (tmp_path / "experiment.json").write_text(json.dumps(about))
    with (
        pytest.warns(UserWarning, match="whose summaries had no checksum"),
        pytest.warns(UserWarning, match="so damage is not seen"),
    ):
        same(Results.open(tmp_path).rounds(), whole.rounds())


def test_a_done_file_that_cant_be_read_is_not_done(tmp_path, whole):
    carry_out(Experiment.load(TINY), tmp_path)
    [file] = (tmp_path / "runs").glob(f"*/{store.DONE}")
    file.write_text("{")
    with pytest.warns(UserWarning, match="counts as not done"):
        assert Results.open(tmp_path).runs().empty
    started = Started()
    with pytest.warns(UserWarning, match="counts as not done"):
        same(carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [6], "nothing was run again"


def test_other_conditions_are_said_and_recorded(tmp_path):
    path = begun(tmp_path)
    experiment = Experiment.load(TINY, {"execution.threads": 2})
    with pytest.warns(UserWarning, match="goes on under other conditions .threads 1 → 2.: the last digits may differ"):
        carry_out(experiment, tmp_path)
    first, second = RunFolder(path).environments()
    assert (first["from_round"], first["threads"], second["from_round"], second["threads"]) == (1, 1, 4, 2)
    assert {"torch", "numpy", "python", "platform", "device", "commit", "prism_bench"} <= first.keys()


def test_fresh_forgets(tmp_path, whole):
    begun(tmp_path)
    started = Started()
    same(carry_out(Experiment.load(TINY), tmp_path, fresh=True, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [0]


def test_a_fresh_start_that_is_stopped_goes_on_without_what_was_there(tmp_path):
    """All runs of the experiment are forgotten before the first one starts anew."""
    experiment = Experiment.load(TINY, seeds=2)
    carry_out(experiment, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, tmp_path, fresh=True, callbacks=[StopAfter(2)])
    started = Started()
    carry_out(experiment, tmp_path, callbacks=[started])
    assert started.done == [2, 0]


def test_two_starts_about_different_things_in_one_folder(tmp_path):
    """Each gives its own results, whatever the other has written there meanwhile."""
    other = Experiment.load(TINY, {"algorithm": "fedavg", "training.rounds": 1})

    class Meanwhile(Callback):
        def round_done(self, number, record):
            if record["round"] == 3:
                carry_out(other, tmp_path)

    mine = carry_out(Experiment.load(TINY), tmp_path, callbacks=[Meanwhile()]).rounds
    assert set(mine["algorithm"]) == {"prism"}
    assert set(Results.open(tmp_path).runs()["algorithm"]) == {"prism"}
    assert set(pd.read_csv(tmp_path / "rounds.csv")["algorithm"]) == {"prism"}


def test_what_is_out_of_date_goes(tmp_path, here):
    """A later start that is about something else leaves nothing of the earlier one's tables and pictures."""
    (tmp_path / "tiny.json").write_text(json.dumps(TINY | {"training": {"rounds": 1, "active": 2, "epochs": 1}}))
    assert here("run", "tiny.json", "--out", "out", "--set", "grid.algorithm=[fedavg,prism]")[0] == 0
    assert (tmp_path / "out" / "drops.png").exists()
    assert here("run", "tiny.json", "--out", "out", "--set", "training.lr=1e30")[0] == 1
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == ["experiment.json", "runs"]


# Two at once


class Slow(Callback):
    """Lasts long enough for another process to come."""

    def round_done(self, number, record):
        time.sleep(0.1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_second_process_waits_and_takes_the_result(tmp_path, whole):
    child = in_a_fork(lambda: carry_out(Experiment.load(TINY), tmp_path, callbacks=[Slow()]))
    while not list((tmp_path / "runs").glob("*/rounds.jsonl")):
        time.sleep(0.01)
    heard = []

    class Hear(Callback):
        def waiting(self, number, label):
            heard.append(("waiting", label))

        def run_done(self, number, label, summary, reused, error):
            heard.append(("reused", reused))

    same(carry_out(Experiment.load(TINY), tmp_path, callbacks=[Hear()]).rounds, whole.rounds())
    assert heard == [("waiting", "prism at 0.4, seed 0"), ("reused", True)]
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_processes_share_an_experiment(tmp_path):
    experiment = Experiment.load(TINY, seeds=4)
    reference = carry_out(experiment).rounds
    child = in_a_fork(lambda: carry_out(experiment, tmp_path, callbacks=[Slow()]))
    while not list((tmp_path / "runs").glob("*/rounds.jsonl")):
        time.sleep(0.01)
    kept = []

    class Hear(Callback):
        def run_done(self, number, label, summary, reused, error):
            kept.append(reused)

    same(carry_out(experiment, tmp_path, callbacks=[Hear()]).rounds, reference)
    assert os.waitpid(child, 0)[1] == 0
    assert True in kept, "what the other process had done was taken from it"
    assert False in kept, "and it left some to do"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_whose_process_was_killed_is_taken_over(tmp_path, whole):
    child = in_a_fork(lambda: carry_out(Experiment.load(TINY), tmp_path, callbacks=[Slow()]))
    while not list((tmp_path / "runs").glob("*/checkpoint*")):
        time.sleep(0.01)
    killer = threading.Timer(0.3, os.kill, (child, signal.SIGKILL))
    killer.start()
    same(carry_out(Experiment.load(TINY), tmp_path).rounds, whole.rounds())
    os.waitpid(child, 0)


# Disks


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("where", ["checkpoint", "append"])
def test_a_full_disk_is_a_failed_run_that_goes_on_later(tmp_path, whole, monkeypatch, where):
    method, calls = getattr(RunFolder, where), []

    def fails(self, *arguments):
        calls.append(arguments)
        if len(calls) > 3:
            full()
        method(self, *arguments)

    monkeypatch.setattr(RunFolder, where, fails)
    outcome = carry_out(Experiment.load(TINY), tmp_path)
    [error] = outcome.failed.values()
    assert "No space left on device" in error
    assert outcome.rounds.empty
    monkeypatch.undo()
    started = Started()
    same(carry_out(Experiment.load(TINY), tmp_path, callbacks=[started]).rounds, whole.rounds())
    assert started.done == [3]


def test_a_disk_that_fills_while_a_file_is_written_leaves_the_old_one(tmp_path, monkeypatch):
    file = tmp_path / "table.csv"
    files.write_csv(pd.DataFrame({"a": [1]}), file)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.replace(file, b"new", durable=True)
    assert file.read_text() == "a\n1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"], "no draft is left"


def in_a_small_disk(folder, options, script):
    """Run a shell script where ``folder`` is a disk of its own."""
    inner = f"mount -t tmpfs -o {options} none '{folder}' && {script}"
    command = ["unshare", "-rm", "sh", "-c", inner]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs Linux's unshare")
def test_a_disk_that_is_really_full(tmp_path):
    """A disk of 200 KB: the settings fit, the checkpoint of a wide model does not."""
    disk, file = tmp_path / "disk", tmp_path / "wide.yaml"
    disk.mkdir()
    if in_a_small_disk(disk, "size=64k", "true").returncode != 0:
        pytest.skip("mounting a disk is not allowed here")
    file.write_text(json.dumps(TINY | {"model": {"name": "smallcnn", "width": 24}}))
    command = f"'{sys.executable}' -m prism_bench run '{file}' --out '{disk}'"
    done = in_a_small_disk(disk, "size=200k", f"{command}; echo exit code $?; ls -A '{disk}/runs/'*")
    assert "No space left on device" in done.stderr
    assert "exit code 1" in done.stdout
    assert "Traceback" not in done.stderr
    assert ".checkpoint" not in done.stdout, "no half-written file is left"


def test_a_disk_that_fills_up_at_the_very_end(tmp_path, here, monkeypatch):
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    monkeypatch.setattr("prism_bench.harness.results.write_csv", full)
    code, _, printed = here("run", "tiny.json", "--out", "out")
    assert code == 1
    assert "No space left on device; finished rounds are kept" in printed
    monkeypatch.undo()
    code, _, printed = here("run", "tiny.json", "--out", "out")
    assert code == 0
    assert "kept from an earlier start" in printed


def test_a_read_only_folder_is_known_before_anything_runs(tmp_path, here, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    code, _, printed = here("run", "tiny.json", "--out", "out/deep")
    assert code == 2
    assert "--out out/deep:" in printed
    assert "is not a folder that can be written to (Read-only file system)" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


# Several at once


class Recorder(Callback):
    def __init__(self):
        self.ends, self.rounds, self.ended = {}, [], 0

    def round_done(self, number, record):
        self.rounds.append((number, record["round"]))

    def run_done(self, number, label, summary, reused, error):
        self.ends[label] = error

    def end(self):
        self.ended += 1


def test_jobs_give_the_same_numbers(tmp_path):
    experiment = Experiment.load(TINY | {"execution": {"threads": 1}}, seeds=3)
    recorder = Recorder()
    parallel = carry_out(experiment, tmp_path, jobs=2, callbacks=[recorder]).rounds
    same(parallel, carry_out(experiment).rounds)
    assert sorted(recorder.rounds) == [(number, round) for number in range(3) for round in range(1, 7)]
    assert recorder.ended == 1


FAILING = '''
import os, signal
from prism_bench.baselines.fedavg import FedAvg

class Failing(FedAvg):
    """Makes a mistake under seed 1, and ends its process under seed 2."""

    def select(self, round, cohort):
        if self._seed == 1 and round == 2:
            print("about to fail", flush=True)
            raise RuntimeError("a method's own mistake")
        if self._seed == 2 and round == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().select(round, cohort)
'''


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """An experiment with a method that fails under some seeds."""
    (tmp_path / "failing_method.py").write_text(FAILING)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("failing_method").Failing
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda *given: kind if given[1] == "failing" else load(*given))
    return lambda seeds: Experiment.load(TINY | {"algorithm": "failing", "execution": {"threads": 1}}, seeds=seeds)


def test_one_failing_run_and_one_dying_process_leave_the_others_unharmed(tmp_path, failing):
    """Also: what a failed run printed is in its log, and its message says where that is."""
    recorder = Recorder()
    outcome = carry_out(failing(4), tmp_path / "out", jobs=2, callbacks=[recorder])
    assert set(outcome.rounds["seed"]) == {0, 3}
    mistake, death = outcome.failed["failing, seed 1"], outcome.failed["failing, seed 2"]
    assert "RuntimeError: a method's own mistake" in mistake
    text = Path(mistake.rpartition("(log: ")[2].removesuffix(")")).read_text()
    assert "about to fail" in text
    assert "Traceback" in text
    assert "its process died (SIGKILL). Memory may have run out." in death
    assert recorder.ends["failing, seed 2"] == death


def test_a_failing_run_in_this_process_leaves_the_others_unharmed(tmp_path, failing):
    outcome = carry_out(failing([0, 1, 3]), tmp_path / "out")
    assert set(outcome.rounds["seed"]) == {0, 3}
    assert "RuntimeError: a method's own mistake" in outcome.failed["failing, seed 1"]


def test_an_interrupted_experiment_ends_its_workers(tmp_path):
    experiment = Experiment.load(TINY | {"training": {"rounds": 500, "active": 2, "epochs": 1}}, seeds=2)
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, tmp_path, jobs=2, callbacks=[StopAfter(3)])
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_stopped_at_the_terminal(tmp_path, sent, code, jobs):
    """Ctrl-C reaches the whole group of processes; what a cluster sends, only the first."""
    (tmp_path / "tiny.json").write_text(json.dumps(TINY | {"training": {"rounds": 5000, "active": 2, "epochs": 1}}))
    command = [sys.executable, "-m", "prism_bench", "run", "tiny.json", "--out", "out", "--jobs", jobs, "--seeds", "2"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As at a terminal: what a shell starts in the background ignores Ctrl-C, and so does all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list((tmp_path / "out").glob("runs/*/checkpoint*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == code, printed
    assert "Stopped. 0 of 2 runs are done" in printed
    assert "the same command goes on from there" in printed
    assert "Traceback" not in printed
    deadline = time.monotonic() + 20
    while _group_lives(process.pid):
        assert time.monotonic() < deadline, "a process was left behind"
        time.sleep(0.05)


def _group_lives(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_without_a_folder_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    carry_out(Experiment.load(TINY))
    assert list(tmp_path.iterdir()) == []


def test_execution_is_no_part_of_a_runs_identity():
    runs = [Experiment.load(TINY, {f"execution.{key}": 1}).runs[0] for key in ("threads", "at_once", "checkpoint")]
    assert len({run.identity for run in runs}) == 1
    assert set(Execution.model_fields) == {"on", "device", "threads", "at_once", "compile", "checkpoint", "keep_model"}


def test_a_seed_is_added_to_results_that_came_without_their_runs(tmp_path, whole):
    """As after a clone: rounds.csv and what probes recorded, no run folders. Nothing is trained again."""
    both = carry_out(Experiment.load(TINY, seeds=2), tmp_path / "both").rounds
    out = tmp_path / "clone"
    shutil.copytree(whole.folder, out, ignore=shutil.ignore_patterns("runs"))
    watcher = Watcher()
    outcome = carry_out(Experiment.load(TINY, seeds=2), out, exported=True, callbacks=[watcher])
    assert watcher.done == [(0, True), (1, False)]
    same(outcome.rounds, both)
    for name in ("rank", "sampling"):
        assert (out / f"{name}.csv").read_bytes() == (tmp_path / "both" / f"{name}.csv").read_bytes()
    now, then = Results.open(out).runs(), Results.open(tmp_path / "both").runs()
    same(now[then.columns], then)


def test_what_came_without_its_runs_counts_only_where_it_is_asked_for(tmp_path, whole):
    out = tmp_path / "clone"
    shutil.copytree(whole.folder, out, ignore=shutil.ignore_patterns("runs"))
    watcher = Watcher()
    carry_out(Experiment.load(TINY), out, callbacks=[watcher])
    assert watcher.done == [(0, False)]


def test_a_run_of_which_rounds_are_missing_is_made_again(tmp_path, whole):
    out = tmp_path / "clone"
    shutil.copytree(whole.folder, out, ignore=shutil.ignore_patterns("runs"))
    exported = Results.open(out)
    exported.write({"rounds": exported.rounds().iloc[:-1]})
    watcher = Watcher()
    same(carry_out(Experiment.load(TINY), out, exported=True, callbacks=[watcher]).rounds, whole.rounds())
    assert watcher.done == [(0, False)]


class Watcher(Callback):
    """Which runs ended, and whether an earlier start had finished them."""

    def __init__(self):
        self.done = []

    def run_done(self, number, label, summary, kept, error):
        self.done.append((number, kept))
