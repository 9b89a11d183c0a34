"""Where commands print, and what they check before they work."""

from __future__ import annotations

import os
from pathlib import Path

from rich import markup
from rich.console import Console

from prism_bench.base.errors import BadInput
from prism_bench.base.text import brief, visible

LONGEST = 255
"""Bytes of a name in a folder, on nearly all file systems."""


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    # Into a file or a pipe nothing needs to be folded.
    return console if console.is_terminal else Console(stderr=stderr, width=160)


out_console = _console()
err_console = _console(stderr=True)


def escape(text: object) -> str:
    """A text as it is: neither markup nor what a terminal obeys."""
    return markup.escape(visible(str(text)))


def check_writable(folder: Path, option: str = "--out") -> None:
    """Know before hours of training that the results can be written; leaves nothing behind."""
    import tempfile

    def bad(why: object) -> BadInput:
        return BadInput(f"{option} {visible(brief(folder))}: {why}")

    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise bad("is no name in UTF-8.") from None
    if any(len(os.fsencode(part)) > LONGEST for part in folder.parts):
        raise bad(f"a name of more than {LONGEST} bytes can't be written.")
    for path in (folder, *folder.absolute().parents):
        try:
            path.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            if isinstance(error, NotADirectoryError):
                continue  # said of the file that stands in the way
            raise bad(f"{brief(path)} can't be used ({error.strerror}).") from None
        existing = path
        break
    try:
        # To try is the only way to know: permissions, a read-only disk, a full one.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise bad(f"{existing} is not a folder that can be written to ({error.strerror}).") from None


def check_results(folder: Path, option: str = "--out") -> None:
    """The same for a folder of results, whose files and folders may stand in each other's way."""
    check_writable(folder, option)
    runs = folder / "runs"
    if os.path.lexists(runs) and not runs.is_dir():
        raise BadInput(f"{option} {folder}: {runs} is no folder, and the runs need one of that name.")
    inside = [*folder.glob("*"), *folder.glob("runs/*/*")] if folder.is_dir() else []
    for path in inside:
        if path.suffix in (".csv", ".json", ".jsonl", ".png", ".txt", ".yaml") and path.is_dir():
            raise BadInput(f"{option} {folder}: {path} is a folder, and a file of that name may have to be written.")
