"""The conformance suite: what every algorithm plugin must hold, ours and a third party's.

In a plugin's own tests::

    import pytest
    from prism_bench.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS)
    def test_conformance(check):
        check("my_algorithm")

Each check takes the algorithm's registered name and, optionally, its settings and those of a model. Plain asserts, no
pytest needed; all of them together take seconds.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from prism_bench.base.errors import BadInput
from prism_bench.core.algorithm import Algorithm, Client
from prism_bench.core.axes import State
from prism_bench.core.submodel import Merge, gather, gather_stacked
from prism_bench.data.dataset import Dataset
from prism_bench.data.noise import Noise
from prism_bench.data.population import Population
from prism_bench.engine import costs
from prism_bench.engine.federation import Federation
from prism_bench.engine.local import Schedule, train
from prism_bench.engine.settings import Execution, Training
from prism_bench.engine.spec import Plugin, Run

TINY: Mapping[str, Any] = {"name": "smallcnn", "width": 10, "norm": "batch"}
KEEPS = (0.2, 0.4, 0.7, 1.0)


def tiny_data(
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 4,
    samples: int = 48,
    seed: int = 0,
    vocabulary: int | None = None,
) -> Dataset:
    """Random images, or words: for checks of mechanics, never of accuracy."""
    return Noise(shape=shape, classes=classes, train=samples, test=48, seed=seed, vocabulary=vocabulary).load()


def data_for(model: Mapping[str, Any], samples: int) -> Dataset:
    """The smallest data that the model takes: few words, small images, or images of its usual size."""
    settings = Plugin.choose("model", model).settings
    if settings.usual.vocabulary is not None:
        return tiny_data((7,), 3, samples, vocabulary=30)
    for shape in ((1, 8, 8), settings.usual.shape):
        data = tiny_data(shape, samples=samples)
        with suppress(BadInput):
            settings.build(data.signature)
            break
    return data


def federation(
    algorithm: str,
    params: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] = TINY,
    keep: float | Sequence[float] = 0.4,
    data: Dataset | None = None,
    sizes: Sequence[int] = (12, 12, 12, 12),
    at_once: int = 8,
    **training: Any,
) -> Federation:
    """A small run of the algorithm, ready to go; clients have the given numbers of samples."""
    data = data or data_for(model, sum(sizes))
    keeps = [keep] if isinstance(keep, (int, float)) else list(keep)
    run = Run.resolve(
        {
            "data": "digits",
            "partition": {"name": "iid", "clients": len(sizes)},
            "model": dict(model),
            "algorithm": {"name": algorithm, **(params or {})},
            "capacity": {"keep": keeps, "share": [1 / len(keeps)] * len(keeps)},
            "training": {"rounds": 3, "active": len(sizes), "batch": 4, "lr": 0.05, "epochs": 1} | training,
        }
    )
    population = Population.from_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    return Federation(run, data, population, Execution(device="cpu", at_once=at_once))


def check_described(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """It says in a line what it does, and its settings can't be changed under way."""
    one = federation(algorithm, params, model)
    assert (type(one.algorithm).__doc__ or "").strip(), f"{algorithm} needs a docstring: `prism-bench list` shows it"
    assert one.run.algorithm.settings.model_config.get("frozen"), "Params must be frozen: derive it from Settings"


def check_selection(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """Selections name axes that exist, with distinct indices in range, and equal seeds select alike."""
    first, second = (federation(algorithm, params, model, KEEPS).algorithm for _ in range(2))
    cohort = [Client(number, keep) for number, keep in enumerate(KEEPS)]
    for round in range(3):
        plan = first.select(round, cohort)
        assert len(plan) == len(cohort), "one list of selections a client, in the cohort's order"
        for selections in plan:
            assert selections, "a client that was drawn trains something"
            for selection in selections:
                for name, indices in selection.items():
                    axis = first.layout.axes[name]
                    assert axis.kind != "fixed", f"'{name}' is never cut"
                    assert len(indices) > 0, f"'{name}' has no index"
                    assert len(set(indices.tolist())) == len(indices), f"'{name}' has an index twice"
                    assert 0 <= int(indices.min()) <= int(indices.max()) < axis.size, f"'{name}' is out of range"
        assert _plain(plan) == _plain(second.select(round, cohort)), "equal seeds must select alike"


def check_round_trip(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """Gather, then merge without training, gives back the server's tensors bit for bit."""
    for keep in KEEPS:
        one = federation(algorithm, params, model, keep).algorithm
        merge = Merge(one.state, one.layout)
        for selections in one.select(0, [Client(number, keep) for number in range(7)]):
            for selection in selections:
                merge.add(selection, gather(one.state, one.layout, selection))
        merged = merge.result()
        assert merged.keys() == one.state.keys()
        assert all(torch.equal(merged[name], tensor) for name, tensor in one.state.items()), f"keep ratio {keep}"


def check_idle_round(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """A round without local steps leaves what the server model computes as it was."""
    one = federation(algorithm, params, model, keep=1.0, epochs=0)
    x = one.data.prepare(one.data.test.inputs)
    before = one.algorithm.full_model()
    expected = before.forward(before.state, x)
    one.round(0)
    after = one.algorithm.full_model()
    torch.testing.assert_close(after.forward(after.state, x), expected, rtol=1e-4, atol=1e-4)


def check_learning(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """A round changes the server's tensors, all stay finite, and equal seeds give equal tensors."""
    results = []
    for _ in range(2):
        one = federation(algorithm, params, model, (0.4, 0.2))
        before = copy.deepcopy(one.algorithm.state)
        record = one.round(0)
        assert {"accuracy", "accuracy_full", "accuracy_trained"} <= record.keys()
        state = one.algorithm.state
        assert all(torch.isfinite(tensor).all() for tensor in state.values())
        assert any(not torch.equal(tensor, before[name]) for name, tensor in state.items()), "nothing was learnt"
        results.append(state)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0]), "equal seeds, other numbers"


def check_batching(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """Clients trained at once, of unequal sizes and capacities, end where each alone would have.

    In double precision: a normalisation of a handful of samples, or of a token near zero, amplifies rounding so much
    that a tolerance for it in single precision would let real mistakes through.
    """
    sizes = (3, 12, 9, 12, 5)
    together, apart = (
        double(federation(algorithm, params, model, (0.4, 0.2), sizes=sizes, at_once=at_once)) for at_once in (8, 1)
    )
    for round in range(2):
        together.round(round)
        apart.round(round)
    for mine, other in zip(_dense(together.algorithm), _dense(apart.algorithm), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def check_equivalents(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """Every way to the logits that it offers gives those of `forward`, and their gradients; in double precision."""
    one = double(federation(algorithm, params, model))
    [[selection, *_]] = one.algorithm.select(0, [Client(0, 0.4)])
    state = gather(one.algorithm.state, one.algorithm.layout, selection)
    x = one.data.prepare(one.data.train.inputs[:6])
    results = []
    for forward in (one.algorithm.forward, *one.algorithm.equivalents()):
        tensors = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
        logits = forward(tensors, x)
        results.append([logits, *torch.autograd.grad(logits.square().sum(), list(tensors.values()))])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def check_meta_step(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """A training step runs on the meta device: no tensor is left behind on another."""
    meta = torch.device("meta")
    one = federation(algorithm, params, model)
    for at_once in (1, 2):
        selections = [one.algorithm.select(0, [Client(number, 0.4)])[0][0] for number in range(at_once)]
        stacked = gather_stacked(one.algorithm.state, one.algorithm.layout, selections)
        state: State = {name: tensor.to(meta) for name, tensor in stacked.items()}
        training = Training(batch=4, epochs=1, clip=1.0)
        work = [Schedule.plan(one.population[number], training, 0, 0, number) for number in range(at_once)]
        assert train(one.algorithm, state, work, one.data.to(meta), training, 0.1).device == meta


def check_costs(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """A larger keep ratio never costs less, every draw at one ratio costs the same, and small ones do save."""
    one = federation(algorithm, params, model, KEEPS)
    data, full = one.data, one.full_costs
    each = [costs.of_client(one.algorithm, keep, data.signature, batch=4) for keep in KEEPS]
    for smaller, larger in pairwise(each):
        assert smaller.parameters <= larger.parameters
        assert smaller.macs <= larger.macs
        assert smaller.transfer_bytes <= larger.transfer_bytes
    if one.algorithm.cuts:
        assert each[0].parameters < full.parameters
        assert each[0].macs < full.macs
    sizes = {
        tuple(sorted((axis, len(i)) for axis, i in selection.items()))
        for round in range(3)
        for selections in one.algorithm.select(round, [Client(number, 0.4) for number in range(4)])
        for selection in selections
    }
    assert len(sizes) == 1, "sub-models of one keep ratio must have equal shapes"


def check_resume(algorithm: str, params: Mapping[str, Any] | None = None, model: Mapping[str, Any] = TINY) -> None:
    """What `checkpoint` gives is all that the next rounds depend on, and can be read without running its code."""
    whole, before, after = (federation(algorithm, params, model, (0.4, 0.2)) for _ in range(3))
    records = [whole.round(round) for round in range(3)]
    before.round(0)
    kept = io.BytesIO()
    torch.save(before.algorithm.checkpoint(), kept)
    kept.seek(0)
    after.algorithm.restore(torch.load(kept, weights_only=True))
    resumed = [after.round(round) for round in (1, 2)]
    for one, other in zip(records[1:], resumed, strict=True):
        same = {key for key in one if not key.startswith("seconds")}
        assert {key: one[key] for key in same} == {key: other[key] for key in same}, "a resumed run differs"
    state = after.algorithm.state
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole.algorithm.state.items())


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (
    check_described,
    check_selection,
    check_round_trip,
    check_idle_round,
    check_learning,
    check_resume,
    check_batching,
    check_equivalents,
    check_meta_step,
    check_costs,
)


def _plain(plan: Any) -> Any:
    return [[{name: indices.tolist() for name, indices in one.items()} for one in selections] for selections in plan]


class _DoubleDataset(Dataset):
    def prepare(self, raw: torch.Tensor) -> torch.Tensor:
        x = super().prepare(raw)
        return x.double() if x.is_floating_point() else x


def double(one: Federation) -> Federation:
    """The same run in double precision."""
    one.algorithm.state = {name: tensor.double() for name, tensor in one.algorithm.state.items()}
    one.trainer.data = one.data = _DoubleDataset(**vars(one.data))
    return one


def _dense(algorithm: Algorithm) -> list[torch.Tensor]:
    """The full model's tensors: factors may differ in sign or order where what they stand for does not."""
    return list(algorithm.full_model().state.values())
