"""The conformance suite: what every plugin of a kind must hold, ours and a third party's.

In a plugin's own tests::

    import pytest
    from prism_bench.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS)
    def test_conformance(check):
        check("my_algorithm")

Each check takes the plugin's registered name or its class and, optionally, its settings; what else one kind needs is in
that kind's module. Plain asserts, no pytest needed; all checks of a plugin together take seconds. ``CHECKS`` are those
of algorithms; ``MODEL_CHECKS``, ``PARTITION_CHECKS``, ``DATASET_CHECKS``, ``SAMPLER_CHECKS`` and ``EXECUTOR_CHECKS``
are the others.
"""

from prism_bench.testing.algorithms import CHECKS
from prism_bench.testing.datasets import DATASET_CHECKS
from prism_bench.testing.executors import EXECUTOR_CHECKS
from prism_bench.testing.models import MODEL_CHECKS
from prism_bench.testing.partitions import PARTITION_CHECKS
from prism_bench.testing.samplers import SAMPLER_CHECKS
from prism_bench.testing.tiny import KEEPS, TINY, data_for, double, federation, tiny_data

__all__ = [
    "CHECKS",
    "DATASET_CHECKS",
    "EXECUTOR_CHECKS",
    "KEEPS",
    "MODEL_CHECKS",
    "PARTITION_CHECKS",
    "SAMPLER_CHECKS",
    "TINY",
    "data_for",
    "double",
    "federation",
    "tiny_data",
]
