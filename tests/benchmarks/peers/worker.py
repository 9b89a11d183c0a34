"""One arm in a process and an environment of its own: does a round each time the driver says so.

    python worker.py ARM WORK.npz THREADS EARLY WEIGHTS FD

Started by `drive.py`, which holds the other end of the connection FD.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module, metadata
from multiprocessing.connection import Connection
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
import torch

PACKAGES = {
    "ours": "prism-bench",
    "plain": "torch",
    "pfl": "pfl",
    "pfl_processes": "pfl",
    "flower": "flwr",
    "fedml": "fedml",
}


Weights = Mapping[str, Any]
"""Of anything that has ``numpy()``: tensors, or a framework's own arrays."""


class Turns:
    """The arm's side of taking turns. What happens from one `wait` to the next is a round, whole.

    Weights are handed in after so many early rounds, which are not measured, and at the end.
    """

    def __init__(self, connection: Connection, weights: str, early: int) -> None:
        self._connection, self._weights, self._ahead = connection, weights, early

    def wait(self, weights: Weights) -> None:
        """Say that setting up, or the round before, is over, and sleep until it is this arm's turn."""
        if self._ahead == 0:
            self._save("early", weights)
        self._ahead -= 1
        self._connection.send("ready")
        self._connection.recv()

    def finish(self, weights: Weights) -> None:
        """Say that the last round is over."""
        self._connection.send("ready")
        self._save("final", weights)
        self._connection.send("written")

    def _save(self, when: str, weights: Weights) -> None:
        np.savez(f"{self._weights}-{when}.npz", **{name: array.numpy() for name, array in weights.items()})


def main(arm: str, work: str, threads: str, early: str, weights: str, fd: str) -> None:
    connection = Connection(int(fd))
    torch.set_num_threads(int(threads))
    run = import_module(f"{arm}_arm").run
    version = metadata.version(PACKAGES[arm])
    connection.send({"version": version, "torch": torch.__version__, "python": python_version()})
    run(Path(work), int(threads), Turns(connection, weights, int(early)))


if __name__ == "__main__":
    main(*sys.argv[1:])
