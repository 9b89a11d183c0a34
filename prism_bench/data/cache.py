"""Prepared tensors on disk: made once, never trusted without their checksum.

A file is called NAME-KEY-CHECKSUM.pt. The key stands for the source's files and the settings, the checksum for the
file's own bytes.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prism_bench.base.files import read_tensors, write_tensors


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


def fetch(name: str, key: str, prepare: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The tensors for that key: kept ones where they are whole, else prepared and kept."""
    for file in find(name, key):
        tensors = read_tensors(file)
        if tensors is not None:
            return tensors
        warnings.warn(f"{file}: is damaged (its checksum is wrong); the data is prepared again.", stacklevel=2)
        _remove(file)
    tensors = prepare()
    try:
        write_tensors(tensors, home() / "prepared", f"{name}-{key}")
    except OSError as error:
        # The data is there all the same; only the next start is slow.
        warnings.warn(f"{home()}: prepared data can't be kept: {error}", stacklevel=2)
    return tensors


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{file}: can't be removed: {error}", stacklevel=3)
