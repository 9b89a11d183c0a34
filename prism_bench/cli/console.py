"""Where commands print, and what they check before they work."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from prism_bench.base.errors import BadInput


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    # Into a file or a pipe nothing needs to be folded.
    return console if console.is_terminal else Console(stderr=stderr, width=160)


out_console = _console()
err_console = _console(stderr=True)


def check_writable(folder: Path, option: str = "--out") -> None:
    """Know before hours of training that the results can be written; leaves nothing behind."""
    import tempfile

    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        # To try is the only way to know: permissions, a read-only disk, a full one.
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise BadInput(
            f"{option} {folder}: {existing} is not a folder that can be written to ({error.strerror})."
        ) from None
