"""Closes the network of a process: loopback only. What tries to leave is written down, and fails.

Python runs this at its start where this folder is on PYTHONPATH.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import traceback


def _leaves(host: object) -> bool:
    if host in (None, "", "localhost", b"localhost", socket.gethostname()):
        return False
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return True
    return not (address.is_loopback or address.is_unspecified)


def _refuse(what: str, host: object) -> None:
    with open(os.environ["NETWORK_GUARD"], "a") as log:
        log.write(f"{what} {host!r}\n{''.join(traceback.format_stack(limit=12))}\n")
    raise OSError(f"the network is closed: {what} {host!r}")


def _guard(name: str) -> None:
    original = getattr(socket.socket, name)

    def guarded(self: socket.socket, *arguments: object) -> object:
        address = arguments[-1]
        if self.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple) and _leaves(address[0]):
            _refuse(name, address)
        return original(self, *arguments)

    setattr(socket.socket, name, guarded)


if "NETWORK_GUARD" in os.environ:
    for method in ("connect", "connect_ex", "sendto"):
        _guard(method)
    resolve = socket.getaddrinfo

    def _getaddrinfo(host: object, *arguments: object, **options: object) -> object:
        if _leaves(host):
            _refuse("getaddrinfo", host)
        return resolve(host, *arguments, **options)

    socket.getaddrinfo = _getaddrinfo
    # A process without the guard would prove nothing.
    with open(f"{os.environ['NETWORK_GUARD']}.on", "a") as started:
        started.write(f"{sys.argv}\n")
