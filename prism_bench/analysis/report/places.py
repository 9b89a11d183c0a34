"""Where results are, and where what is made of them goes."""

from __future__ import annotations

from pathlib import Path

from prism_bench.base.errors import BadInput
from prism_bench.base.files import replace


def write(path: Path, content: str | bytes) -> None:
    """Write a file in one step; what stands in the way is said to the person who named the file."""
    try:
        replace(path, content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise BadInput(f"{path}: can't be written: {error.strerror or error}") from None


def every_folder() -> list[Path]:
    """Find all folders in ./results that hold some."""
    return [folder for folder in sorted(Path("results").glob("*")) if holds_results(folder)]


def holds_results(folder: Path) -> bool:
    """Tell whether a folder holds an experiment's results."""
    return any((folder / name).is_file() for name in ("experiment.json", "rounds.csv"))
