"""The conformance suite on every registered algorithm, and on variants.

Methods with a space, a layout or a way of merging of their own are tried on every network, the others, which differ in
what they select or in their loss, on one of each kind: plain, with residual additions, recurrent.
"""

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
OWN_WAYS = {"fedavg", "prism", "orthdrop", "fedhm", "lora", "origdrop", "splitmix", "flanc", "depthfl"}
ONE_OF_EACH_KIND = {"smallcnn", "resnet18", "lstm"}
OTHERS = [{"name": name} for name in registry.find("models") if name not in map(model_id, MODELS)]


PAIRS = [
    (algorithm, model)
    for algorithm in registry.find("algorithms")
    for model in [*MODELS, *OTHERS]
    if algorithm in OWN_WAYS or model["name"] in ONE_OF_EACH_KIND
]


@pytest.mark.parametrize("check", CHECKS, ids=names)
@pytest.mark.parametrize(
    ("algorithm", "model"), PAIRS, ids=lambda value: value if isinstance(value, str) else model_id(value)
)
def test_every_algorithm_conforms(algorithm, model, check):
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
