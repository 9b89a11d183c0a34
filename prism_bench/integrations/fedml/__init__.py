"""The suite's algorithms as FedML jobs: configured by a FedML file, carried by FedML, with the suite's own numbers.

`run` carries out a `Config`; `to_fedml` and `from_fedml` turn our clients into FedML's 8-tuple and back. None of them
imports fedml before it is needed.
"""

from __future__ import annotations

from prism_bench.integrations.fedml.config import Config
from prism_bench.integrations.fedml.data import from_fedml, to_fedml
from prism_bench.integrations.fedml.job import run

__all__ = ["Config", "from_fedml", "run", "to_fedml"]
