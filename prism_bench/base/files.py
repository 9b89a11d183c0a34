"""Files that are whole or not there, and tensors that are never trusted without their checksum."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FORMULA = re.compile(r"(?![+-]?[\d.]+(e[+-]?\d+)?%?$)[=+\-@\t\r]", re.IGNORECASE)
"""How a text begins that spreadsheets carry out; a number is none."""

# torch is imported where tensors are: tables are read without it.


def replace(file: Path, content: bytes | memoryview, durable: bool = False) -> None:
    """Write a file beside its place and move it there in one step: an old one stays until the new one is whole.

    ``durable`` waits until the disk has it, so that it outlives a power cut and not only this process.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def write_json(value: Any, file: Path, durable: bool = False) -> None:
    replace(file, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(), durable)


def write_csv(frame: pd.DataFrame, file: Path) -> None:
    replace(file, as_csv(frame).encode())


def as_csv(frame: pd.DataFrame) -> str:
    """A frame as CSV. A text that a spreadsheet would take for a formula gets an apostrophe in front of it."""

    def harmless(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value

    texts = [column for column in frame if frame[column].dtype.kind not in "biufc"]
    shown = frame.assign(**{str(column): frame[column].map(harmless) for column in texts})
    return str(shown.rename(columns=harmless).to_csv(index=False))


def write_tensors(tensors: dict[str, Any], folder: Path, stem: str) -> Path:
    """Keep tensors as STEM-CHECKSUM.pt, the checksum being of the file's own bytes."""
    import torch

    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    content = buffer.getbuffer()
    file = folder / f"{stem}-{checksum(content)}.pt"
    replace(file, content)
    return file


def read_tensors(file: Path) -> dict[str, Any] | None:
    """The tensors of such a file; None where its bytes are not those that were written."""
    import torch

    try:
        content = file.read_bytes()
    except OSError:
        return None
    if checksum(content) != file.stem.rpartition("-")[2]:
        return None
    tensors: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return tensors


def checksum(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
