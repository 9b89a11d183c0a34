"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from prism_bench.errors import BadInput


def write(path: Path, content: str | bytes) -> None:
    """Write a file in one step: an old one stays until the new one is whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)
    except OSError as error:
        raise BadInput(f"{path}: can't be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
