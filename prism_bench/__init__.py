"""prism_bench: federated sub-model training, compared like for like."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_bench.base.version import __version__

# In a source tree the plugins stand beside this folder; installed, they are inside it.
_root = Path(__file__).parent.parent
if (_root / "pyproject.toml").exists() and (_root / "baselines").is_dir():
    __path__.append(str(_root))

if TYPE_CHECKING:
    from prism_bench.analysis.report import differences, plot, table, write_pictures, write_report
    from prism_bench.harness.callbacks import Callback
    from prism_bench.harness.results import Results
    from prism_bench.harness.runner import run

__all__ = [
    "Callback",
    "Results",
    "__version__",
    "differences",
    "plot",
    "run",
    "table",
    "write_pictures",
    "write_report",
]

_HOMES = {
    "Callback": "prism_bench.harness.callbacks",
    "Results": "prism_bench.harness.results",
    "run": "prism_bench.harness.runner",
    **dict.fromkeys(("differences", "plot", "table", "write_pictures", "write_report"), "prism_bench.analysis.report"),
}


def __getattr__(name: str) -> Any:
    # torch is imported when something needs it: `prism-bench --help` must not wait for it.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'prism_bench' has no attribute '{name}'")
