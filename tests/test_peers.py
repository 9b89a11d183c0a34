"""The benchmark against peers, with the arms that need no environment of their own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

PEERS = Path(__file__).parent / "benchmarks" / "peers"
TINY = ("--clients", "3", "--active", "2", "--samples", "40", "--threads", "1", "--warmup", "1", "--rounds", "1")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux to stop and time processes")
def test_same_weights_and_an_arm_that_fails_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(PEERS)
    from drive import main

    out = tmp_path / "new" / "peers.csv"
    assert main([*TINY, "--arms", "ours", "flower", "plain", "--python", "flower=nowhere", "--out", str(out)]) == 1

    table = pd.read_csv(out).set_index("arm")
    assert list(table.index) == ["ours", "flower", "plain"]
    assert table.loc["flower", "error"] == "[Errno 2] No such file or directory: 'nowhere'"
    done = table.drop("flower")
    assert done["error"].isna().all()
    assert done["difference_early"].max() < 5e-3
    assert done.loc["plain", ["difference_early", "wall_ratio", "cpu_ratio"]].tolist() == [0, 1, 1]
    assert (done[["wall_min", "wall_median", "wall_max", "cpu_min", "cpu_median", "cpu_max"]] > 0).all(axis=None)
    assert (done[["threads", "rounds"]] == 1).all(axis=None)
    assert {"version", "torch", "python", "malloc", "processor", "cores"} <= set(table)
    assert "1 thread(s): median seconds a round" in capsys.readouterr().out
