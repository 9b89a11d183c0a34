"""Leases: one owner at a time, without locks of the file system and without comparing clocks."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from prism_bench.harness import lease as leases
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.lease import Busy, Lease, TakenOver
from prism_bench.harness.run_folder import RunFolder
from prism_bench.harness.runner import carry_out

TINY = {
    "name": "tiny",
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "model": {"name": "smallcnn", "width": 5},
    "algorithm": "prism",
    "capacity": {"keep": 0.4},
    "training": {"rounds": 3, "active": 2, "epochs": 1},
}


@pytest.fixture
def fast(monkeypatch):
    """A tenth of a second between heartbeats, and six without one count as dead."""
    monkeypatch.setattr(leases, "BEAT", 0.1)
    monkeypatch.setattr(leases, "STALE", 0.6)
    monkeypatch.setattr(leases, "PAUSES", (0.01, 0.05))


@pytest.fixture
def elsewhere(monkeypatch):
    """Whoever looks is on another machine than who wrote."""
    monkeypatch.setattr(leases, "_known_dead", lambda content: False)
    monkeypatch.setattr(leases, "_known_alive", lambda found: False)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_one_owner_at_a_time_and_nothing_is_left(tmp_path):
    with Lease(tmp_path).held(wait=False):
        assert files(tmp_path) == [".lease-1"]
        said = json.loads((tmp_path / ".lease-1").read_text())
        assert {"host", "process", "start", "heartbeat"} <= said.keys()
        assert said["process"] == os.getpid()
        with pytest.raises(Busy), Lease(tmp_path).held(wait=False):
            pass
    assert files(tmp_path) == []


def test_a_process_of_this_machine_that_ended_is_followed_at_once(tmp_path):
    code = f"from pathlib import Path; from prism_bench.harness.lease import Lease; Lease(Path({str(tmp_path)!r}))"
    child = subprocess.Popen([sys.executable, "-c", f"{code}.acquire(False); import time; time.sleep(1000)"])
    while files(tmp_path) != [".lease-1"]:
        time.sleep(0.01)
    with pytest.raises(Busy), Lease(tmp_path).held(wait=False):
        pass
    child.kill()
    while True:  # not waited for: what is dead may stay in the table of processes
        try:
            with Lease(tmp_path).held(wait=False):
                assert files(tmp_path) == [".lease-2"]
            break
        except Busy:
            time.sleep(0.01)
    child.wait()
    assert files(tmp_path) == []


def test_another_process_with_a_dead_owners_number_is_not_taken_for_it(tmp_path):
    one = Lease(tmp_path)
    one.acquire(False)
    content = json.loads((tmp_path / ".lease-1").read_text())
    one._over.set()
    (tmp_path / ".lease-1").write_text(json.dumps(content | {"start": "1"}))
    with Lease(tmp_path).held(wait=False):
        pass


@pytest.mark.parametrize("minutes", [-5, 5])
def test_an_owner_elsewhere_lives_as_long_as_its_heart_beats_whatever_the_clocks_say(
    tmp_path, fast, elsewhere, minutes
):
    """The owner's clock is minutes off: so are the times of what it writes."""
    owner, other = Lease(tmp_path), Lease(tmp_path)
    owner.acquire(False)
    over = threading.Event()

    def shift():
        while not over.wait(0.02):
            then = time.time() + 60 * minutes
            if owner.file.exists():
                os.utime(owner.file, (then, then))

    shifting = threading.Thread(target=shift)
    shifting.start()
    began = time.monotonic()
    waiting = threading.Thread(target=lambda: other.acquire(True))
    waiting.start()
    time.sleep(2)
    assert waiting.is_alive(), "three times as long as it takes to count as dead"
    owner.check()
    owner._over.set()  # its machine is cut off: nothing is released
    stopped = time.monotonic()
    waiting.join(timeout=10)
    took = time.monotonic() - stopped
    over.set()
    shifting.join()
    assert leases.STALE - leases.BEAT <= took < leases.STALE + 5
    assert stopped - began >= 2
    assert files(tmp_path) == [".lease-2"]
    with pytest.raises(
        TakenOver, match=r"another process has taken it over, as this one gave no sign of life for 0\.6"
    ):
        owner.check()
    owner.release()
    assert files(tmp_path) == [".lease-2"], "nothing of the new owner's goes with it"
    other.release()


def test_of_many_that_follow_a_dead_owner_one_does(tmp_path, fast, elsewhere):
    for _ in range(3):
        dead = Lease(tmp_path)
        dead.acquire(False)
        dead._over.set()
        owners, most, inside = [], [], threading.Lock()

        def follow(owners=owners, most=most, inside=inside):
            with Lease(tmp_path).held(wait=True):
                owners.append(1)
                with inside:
                    most.append(len(owners))
                    time.sleep(0.002)
                owners.pop()

        threads = [threading.Thread(target=follow) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert most == [1] * 8
        assert files(tmp_path) == []


def test_processes_that_hold_in_turn_never_overlap(tmp_path):
    """Four processes, each 40 times: a file that is made anew each time would tell of a second owner."""
    code = f"""
import os, random, time
from pathlib import Path
from prism_bench.harness.lease import Lease
folder = Path({str(tmp_path)!r})
for _ in range(40):
    with Lease(folder).held(wait=True):
        os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
        time.sleep(random.random() / 1000)
        os.unlink(folder / "inside")
"""
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [child.wait(timeout=120) for child in children] == [0] * 4
    assert files(tmp_path) == []


def test_a_late_follower_steps_back(tmp_path, fast, elsewhere):
    """It saw a dead owner, and was stopped before it followed; another did and was done, and a third is there."""
    dead, late = Lease(tmp_path), Lease(tmp_path)
    dead.acquire(False)
    dead._over.set()
    seen = late._newest()
    with Lease(tmp_path).held(wait=True):
        pass
    with Lease(tmp_path).held(wait=False):
        assert not late._claim(seen)
        assert files(tmp_path) == [".lease-1"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]"])
def test_what_says_nothing_is_waited_for_too(tmp_path, fast, content):
    """Written at this moment, or cut off; it may be the lease of a file system without hard links."""
    (tmp_path / ".lease-1").write_bytes(content)
    with pytest.raises(Busy), Lease(tmp_path).held(wait=False):
        pass
    with Lease(tmp_path).held(wait=True):
        assert files(tmp_path) == [".lease-2"]


def test_a_file_system_without_locks_and_hard_links(tmp_path, monkeypatch):
    def missing(*_, **__):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("os.link", missing)
    monkeypatch.setattr("fcntl.flock", missing)
    folder = RunFolder(tmp_path)
    with folder.held(wait=False), pytest.raises(Busy), RunFolder(tmp_path).held(wait=False):
        pass
    assert files(tmp_path) == []


def test_fresh_waits_for_a_sign_of_life(tmp_path, fast, elsewhere):
    owner = Lease(tmp_path)
    owner.acquire(False)
    began = time.monotonic()
    with pytest.raises(Busy):
        RunFolder(tmp_path).forget()
    assert time.monotonic() - began < leases.STALE
    owner._over.set()
    RunFolder(tmp_path).forget()
    assert files(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_stopped_owner_that_goes_on_later_writes_nothing_more(tmp_path, fast, elsewhere, monkeypatch):
    """The first process is stopped in mid-run; the second takes its run over; then the first goes on."""
    experiment = Experiment.load(TINY)
    reference = carry_out(experiment).rounds
    child = os.fork()
    if child == 0:
        code = 1
        try:
            append = RunFolder.append

            def slow(self, record):
                append(self, record)
                time.sleep(1.5)

            RunFolder.append = slow
            carry_out(experiment, tmp_path)
            code = 0
        finally:
            os._exit(code)
    while not list(tmp_path.glob("runs/*/rounds.jsonl")):
        time.sleep(0.01)
    os.kill(child, signal.SIGSTOP)
    mine = carry_out(experiment, tmp_path).rounds
    [path] = (tmp_path / "runs").iterdir()
    there = {file.name: file.read_bytes() for file in path.iterdir()}
    os.kill(child, signal.SIGCONT)
    assert os.waitpid(child, 0)[1] == 0, "it takes the result of the other"
    assert {file.name: file.read_bytes() for file in path.iterdir()} == there
    assert mine["train_loss"].tolist() == reference["train_loss"].tolist()


def test_it_costs_next_to_nothing(tmp_path, monkeypatch):
    """Counted, not timed: what a run asks of the file system for its lease. A round asks for one file."""
    calls = []
    for name in ("listdir", "link", "unlink"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, name=name: calls.append(name) or real(*given))
    real_open = io.open
    monkeypatch.setattr(io, "open", lambda *given, **how: calls.append("open") or real_open(*given, **how))
    with Lease(tmp_path).held(wait=False):
        pass
    assert len(calls) <= 10, calls
