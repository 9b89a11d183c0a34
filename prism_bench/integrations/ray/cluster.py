"""How the suite gets to a Ray cluster: one that is there, or one of this machine alone."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from prism_bench.base.errors import BadInput
from prism_bench.engine.hardware import cores

LOCAL = "local"
"""Stands for a Ray of this machine alone."""
PATIENCE = 60.0
"""For so many seconds a place to work is waited for where there is none."""

_users = 0
"""How many have called `connect` and not yet `disconnect`, where this process was not connected before."""


def needs_ray(key: str) -> None:
    """BadInput where Ray is not installed; ``key`` is what asked for it."""
    if find_spec("ray") is None:
        raise BadInput(f"{key}: needs Ray, which is not installed: pip install 'prism-bench[ray]'.")


def connect(address: str | None, cpus: float) -> bool:
    """Connect this process to the cluster at that address: ``auto``, ``HOST:PORT``, or ``local``.

    Without one it is the environment's ``RAY_ADDRESS``, and without that a Ray of this machine with so many ``cpus``.
    Returns whether `disconnect` is due: where the user's own script has connected this process, it stays connected.
    """
    global _users
    wanted = address or os.environ.get("RAY_ADDRESS") or LOCAL
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    if wanted == LOCAL:
        _for_this_machine()
    import ray

    if ray.is_initialized():
        _users += _users > 0
        return _users > 0
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    with _own_signals():
        if wanted == LOCAL:
            ray.init(LOCAL, num_cpus=max(cores(), math.ceil(cpus)), include_dashboard=False, **quiet)
        else:
            try:
                _answers(wanted)
                ray.init(wanted, **quiet)
            except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise BadInput(
                    f"address: no Ray cluster answers at '{wanted}' ({reason}). `ray start --head` starts one, and "
                    "prints its HOST:PORT; auto is the one that this machine belongs to."
                ) from None
    _users = 1
    return True


def _answers(address: str) -> None:
    """OSError or ValueError where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def disconnect() -> None:
    """The last to leave ends what runs there for this process, and a Ray of this machine alone."""
    global _users
    import ray

    _users -= 1
    if _users > 0:
        return
    with _own_signals():
        ray.shutdown()


def _for_this_machine() -> None:
    """Have Ray listen on the loopback alone, and to nobody without a token that exists in this process tree only."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        # Ray would write one of its own into the home folder.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself, which here ends a run as cleanly as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def places(cpus: float, gpus: float) -> int:
    """How many workers with so many CPUs and GPUs each the cluster has room for, were nothing else running there."""
    import ray

    count = 0
    for node in ray.nodes():
        if node["Alive"]:
            there = node["Resources"]
            fits = [int(there.get(kind, 0) / each + 1e-9) for kind, each in (("CPU", cpus), ("GPU", gpus)) if each]
            count += min(fits)
    return count


def largest(kind: str) -> float:
    """The most that a node has of a resource: ``CPU`` or ``GPU``."""
    import ray

    return max((float(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]), default=0.0)


def check_room(cpus: float, gpus: float, where: str) -> None:
    """BadInput where no node has as much as one worker is to have; ``where`` names the setting."""
    if places(cpus, gpus) == 0:
        raise BadInput(
            f"{where}: no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs; the largest have "
            f"{largest('CPU'):g} CPUs and {largest('GPU'):g} GPUs."
        )


def use_share_of_gpu(share: float) -> None:
    """Keep this process to its share of a GPU's memory: to want more is an error of its own, and no other's."""
    import torch

    if 0 < share < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)
