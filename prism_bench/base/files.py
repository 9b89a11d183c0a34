"""Files that are whole or not there, and tensors that are never trusted without their checksum."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.base.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd

SEAL = "checksum"
"""The key of a record's own checksum."""
FORMULA = re.compile(r"(?![+-]?[\d.]+(e[+-]?\d+)?%?$)[=+\-@\t\r]", re.IGNORECASE)
"""How a text begins that spreadsheets carry out; a number is none."""

# torch is imported where tensors are: tables are read without it.


class Damaged(ValueError):
    """What was read is not what was written there."""


def replace(file: Path, content: bytes | memoryview, durable: bool = False) -> None:
    """Write a file beside its place and move it there in one step: an old one stays until the new one is whole.

    ``durable`` waits until the disk has it, so that it outlives a power cut and not only this process.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several machines or containers may have one number.
    draft = file.with_name(f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(draft, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(draft, file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(file.parent)


def append(file: Path, content: bytes) -> None:
    """Add to a file's end. A process that is killed leaves what it wrote to the system."""
    with open(file, "ab") as stream:
        stream.write(content)


def sync(file: Path) -> None:
    """Wait until the disk has what is in a file; its name is its folder's to keep."""
    with open(file, "rb+") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder: what was made, renamed or removed there."""
    if os.name != "posix":
        return  # the system offers nothing of the kind
    try:
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    except OSError as error:
        # A folder above may be another user's; some network file systems keep names by themselves.
        if error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise


def write_json(value: Any, file: Path, durable: bool = False) -> None:
    replace(file, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(), durable)


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A record with the checksum of all that it says."""
    return {**value, SEAL: checksum(json.dumps(value).encode())}


def unsealed(value: Any) -> dict[str, Any]:
    """The record without its checksum; Damaged where that is not the record's.

    >>> unsealed({**sealed({"accuracy": 64.5}), "accuracy": 94.5})
    Traceback (most recent call last):
    prism_bench.base.files.Damaged: its checksum is wrong
    """
    if not isinstance(value, dict) or SEAL not in value:
        raise Damaged("it has no checksum")
    bare = {key: inner for key, inner in value.items() if key != SEAL}
    if sealed(bare)[SEAL] != value[SEAL]:
        raise Damaged("its checksum is wrong")
    return bare


def parsed(content: bytes) -> Any:
    """The value of a JSON text; Damaged where it is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None


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
    """The tensors of such a file; None where its bytes are not those that were written.

    BadInput where they are, by their checksum, and yet can't be read: somebody else wrote them, or memory is short.
    """
    import torch

    try:
        content = file.read_bytes()
    except OSError:
        return None
    if checksum(content) != file.stem.rpartition("-")[2]:
        return None
    try:
        tensors: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # of any kind: torch's reader meets whatever the bytes make it do
        raise BadInput(f"{file}: has the right checksum, and can't be read as tensors: {error!r}") from None
    if not isinstance(tensors, dict):
        raise BadInput(f"{file}: has the right checksum, and no tensors by name in it.")
    return tensors


def checksum(content: bytes | memoryview) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
