"""pfl-research as in `pfl_arm`, with one process for each thread, which is how its guide has simulations made fast."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import torch
from worker import Turns


def run(path: Path, threads: int, turns: Turns) -> None:
    with socket.create_server(("localhost", 0)) as free:
        address = f"localhost:{free.getsockname()[1]}"
    os.environ |= {"PFL_WORKER_ADDRESSES": ",".join([address] * threads), "OMP_NUM_THREADS": "1"}
    for rank in range(1, threads):
        subprocess.Popen([sys.executable, __file__, str(path), str(rank)])
    _join(path, 0, turns)


def _join(path: Path, rank: int, turns: Turns | None) -> None:
    torch.set_num_threads(1)
    os.environ["PFL_WORKER_RANK"] = str(rank)
    # The processes find each other when pfl is imported.
    import_module("pfl_arm").run(path, 1, turns)


if __name__ == "__main__":
    _join(Path(sys.argv[1]), int(sys.argv[2]), None)
