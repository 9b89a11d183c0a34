"""Prepared tensors on disk: made once, never trusted without their checksum.

A file is called NAME-KEY-CHECKSUM.pt. The key stands for the source's files and the settings, the checksum for the
file's own bytes; it is written beside its place and moved there in one step.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CHUNK = 1 << 22


def home() -> Path:
    """The user's cache folder, where the platform puts it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = "~/.cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or base).expanduser() / "prism_bench"


def find(name: str, key: str) -> list[Path]:
    """Files with tensors for that key; not yet checked."""
    return sorted((home() / "prepared").glob(f"{name}-{key}-*.pt"))


def read(file: Path) -> dict[str, Any] | None:
    """The tensors of a file; None where its bytes are not those that were written."""
    try:
        if _checksum(file) != file.stem.rpartition("-")[2]:
            return None
        tensors: dict[str, Any] = torch.load(file, weights_only=True)
    except OSError:
        return None
    return tensors


def fetch(name: str, key: str, prepare: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The tensors for that key: kept ones where they are whole, else prepared and kept."""
    for file in find(name, key):
        tensors = read(file)
        if tensors is not None:
            return tensors
        warnings.warn(f"{file}: is damaged (its checksum is wrong); the data is prepared again.", stacklevel=2)
        _remove(file)
    tensors = prepare()
    try:
        _write(name, key, tensors)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError. The data is there all the same; only the next start is slow.
        warnings.warn(f"{home()}: prepared data can't be kept: {error}", stacklevel=2)
    return tensors


def _write(name: str, key: str, tensors: dict[str, Any]) -> None:
    folder = home() / "prepared"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{name}-{key}.{os.getpid()}"
    try:
        torch.save(tensors, draft)
        draft.replace(folder / f"{name}-{key}-{_checksum(draft)}.pt")
    finally:
        _remove(draft)


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{file}: can't be removed: {error}", stacklevel=3)


def _checksum(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
