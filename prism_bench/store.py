"""Where runs are kept: a folder each, named by hashes of settings, data and code, there only when the run is done."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import prism_bench

ROUNDS = "rounds.jsonl"


class RunFolder:
    """One run's results. Written beside its place and moved there in one step: it is whole or not there."""

    def __init__(self, out: Path, settings: str, data: str, code: str) -> None:
        """Hashes, of each: a run with other settings, on other data or of an edited method is another run."""
        self.path = out / "runs" / f"{settings}-{data}-{code}"

    def read(self) -> pd.DataFrame | None:
        """The rounds of a finished run."""
        file = self.path / ROUNDS
        if not file.exists():
            return None
        frame: pd.DataFrame = pd.DataFrame([json.loads(line) for line in file.read_text("utf-8").splitlines()])
        return frame

    def write(self, settings: dict[str, Any], rounds: pd.DataFrame, device: torch.device) -> None:
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.mkdir(parents=True, exist_ok=True)
        # JSON gives every float back as it was; how exactly a CSV is read depends on the version of pandas.
        lines = [json.dumps(record) for record in rounds.to_dict("records")]
        (draft / ROUNDS).write_text("\n".join(lines) + "\n", "utf-8")
        (draft / "settings.json").write_text(json.dumps(settings, indent=2) + "\n")
        (draft / "environment.json").write_text(json.dumps(environment(device), indent=2) + "\n")
        shutil.rmtree(self.path, ignore_errors=True)
        draft.rename(self.path)


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table in one step: an old one stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        frame.to_csv(draft, index=False)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def environment(device: torch.device) -> dict[str, Any]:
    """What produced a result, beside its settings."""
    return {
        "prism_bench": prism_bench.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The source tree's commit, where the package runs from one."""
    root = Path(prism_bench.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
