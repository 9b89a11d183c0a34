"""The conformance suite on every registered algorithm, on every model, and on PriSM's variants."""

from __future__ import annotations

import pytest
from shared import MODELS, model_id

from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.engine.spec import Plugin
from prism_bench.testing import CHECKS
from prism_bench.testing.tiny import KEEPS, data_for

WITHOUT_DEPTH = {("depthfl", "perceptron"), ("scalefl", "perceptron")}
names = [check.__name__.removeprefix("check_") for check in CHECKS]
OTHERS = [{"name": name} for name in registry.find("models") if name not in map(model_id, MODELS)]


@pytest.mark.parametrize("check", CHECKS, ids=names)
@pytest.mark.parametrize("model", [*MODELS, *OTHERS], ids=model_id)
@pytest.mark.parametrize("algorithm", registry.find("algorithms"))
def test_every_algorithm_on_every_model(algorithm, model, check):
    if refused := refusal(algorithm, model):
        pytest.skip(refused)
    check(algorithm, model=model)


def refusal(algorithm, model):
    """Why a run of that algorithm on that model would not start: some networks have no depth to cut."""
    plugin, network = Plugin.choose("algorithm", {"name": algorithm}), Plugin.choose("model", model).settings
    try:
        plugin.kind.check(plugin.settings, network.build(data_for(model, 1).signature), KEEPS)
    except BadInput as error:
        return str(error) if (algorithm, model["name"]) in WITHOUT_DEPTH else None


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
