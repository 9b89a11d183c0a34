"""The conformance suite on every registered algorithm, on every model, and on PriSM's variants."""

from __future__ import annotations

import pytest
from shared import MODELS, model_id

from prism_bench.base import registry
from prism_bench.testing import CHECKS

names = [check.__name__.removeprefix("check_") for check in CHECKS]
OTHERS = [{"name": name} for name in registry.find("models") if name not in map(model_id, MODELS)]


@pytest.mark.parametrize("check", CHECKS, ids=names)
@pytest.mark.parametrize("model", [*MODELS, *OTHERS], ids=model_id)
@pytest.mark.parametrize("algorithm", registry.find("algorithms"))
def test_every_algorithm_on_every_model(algorithm, model, check):
    check(algorithm, model=model)


@pytest.mark.parametrize("check", CHECKS, ids=names)
@pytest.mark.parametrize(
    ("algorithm", "params"),
    [
        ("prism", {"channels": "kernels"}),
        ("prism", {"channels": "rolling", "sampling": "uniform"}),
        ("prism", {"channels": "random", "sampling": "softmax", "scaling": True}),
        ("prism", {"channels": "all", "factorise": "all", "regulariser": "weight_decay"}),
        ("orthdrop", {"factorise": ["blocks.*.conv2", "stem"]}),
        ("origdrop", {"scaling": True}),
        ("splitmix", {"scaling": True, "atom": 0.1}),
        ("fjord", {"distil": False, "widths": [0.1, 0.5]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_every_variant(algorithm, params, check):
    check(algorithm, params, MODELS[-1])
