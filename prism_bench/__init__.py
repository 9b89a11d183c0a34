"""prism_bench: federated sub-model training, compared like for like."""

from pathlib import Path

__version__ = "0.1.0"

# In a source tree the plugins stand beside this folder; installed, they are inside it.
_root = Path(__file__).parent.parent
if (_root / "pyproject.toml").exists() and (_root / "baselines").is_dir():
    __path__.append(str(_root))
