"""What every algorithm must hold. Each check takes the algorithm and, optionally, its settings and those of a model."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from prism_bench.base.errors import BadPlugin
from prism_bench.core.algorithm import Algorithm, Client, viewed
from prism_bench.core.axes import Selection, State
from prism_bench.core.network import evaluating
from prism_bench.core.objective import Step
from prism_bench.core.submodel import gather, gather_stacked
from prism_bench.engine import costs
from prism_bench.engine.federation import Federation
from prism_bench.engine.local import Schedule, overrides, train
from prism_bench.engine.sections import Training
from prism_bench.engine.spec import Plugin, check_class
from prism_bench.testing.tiny import (
    KEEPS,
    TINY,
    Check,
    Given,
    Named,
    chosen,
    described,
    double,
    federation,
    one_by_one,
    same_training,
)


def check_described(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """It says in a line what it does, its settings are frozen, and what it deploys is there."""
    plugin = chosen("algorithm", algorithm, params)
    described(algorithm, plugin.kind, plugin.settings)
    assert plugin.kind.deploys in ("full", "trained"), "deploys must be 'full' or 'trained'"
    try:
        check_class(plugin.kind)
    except BadPlugin as error:
        raise AssertionError(str(error)) from None


def check_selection(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Selections name axes that exist, with distinct indices in range, and equal seeds select alike."""
    first, second = (federation(algorithm, params, model, KEEPS) for _ in range(2))
    cohort = _cohort(first, KEEPS)
    for round in range(3):
        plan = first.algorithm.select(round, cohort)
        assert len(plan) == len(cohort), "`select` must give one list of selections per client, in the cohort's order"
        for selections in plan:
            assert selections, "a client that was drawn trains something: its list of selections is empty"
            for selection in selections:
                _valid(first.algorithm.layout.check, selection, "`select`")
        other = second.algorithm.select(round, cohort)
        assert _plain(plan) == _plain(other), "equal seeds must select alike: draw from `self.random(round, client)`"


def check_round_trip(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Gather, then merge without training, gives back the server's tensors bit for bit.

    A method with a merge of its own may lose what a client did not have, and must lose nothing of the whole.
    """
    for keep in (1.0,) if _has(algorithm, "merge") else KEEPS:
        one = federation(algorithm, params, model, keep)
        method = one.algorithm
        merge = method.merge()
        for selections in method.select(0, _cohort(one, [keep] * 7)):
            for selection in selections:
                merge.add(selection, gather(method.state, method.layout, selection))
        merged = merge.result()
        assert merged.keys() == method.state.keys(), "the merge must give all of the server's tensors"
        for name, tensor in method.state.items():
            assert torch.equal(merged[name], tensor), f"at keep ratio {keep} the merge alone changes '{name}'"


def check_idle_round(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """A round without local steps leaves what the server model computes as it was."""
    one = federation(algorithm, params, model, keep=1.0, epochs=0)
    x = one.data.prepare(one.data.test.inputs)
    before = _logits(one, x)
    one.round(0)
    after = _logits(one, x)
    message = "a round in which nobody trains must leave what the server model computes as it was"
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4, msg=lambda text: f"{message}: {text}")


def check_learning(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """A round changes the server's tensors, all stay finite, and equal seeds give equal tensors."""
    results = []
    for _ in range(2):
        one = federation(algorithm, params, model, (0.4, 0.2))
        before = copy.deepcopy(one.algorithm.state)
        record = one.round(0)
        assert {"accuracy", "accuracy_full", "accuracy_trained"} <= record.keys()
        state = one.algorithm.state
        assert all(torch.isfinite(tensor).all() for tensor in state.values()), "a tensor is not finite"
        assert any(not torch.equal(tensor, before[name]) for name, tensor in state.items()), "nothing was learnt"
        results.append(state)
    assert _equal(*results), "equal seeds gave other numbers: draw from the streams that the run gives only"


def check_resume(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """What `checkpoint` gives is all that the next rounds depend on, and can be read without running its code.

    With it goes what clients remember.
    """
    whole, before, after = (federation(algorithm, params, model, (0.4, 0.2)) for _ in range(3))
    records = [whole.round(round) for round in range(3)]
    before.round(0)
    kept = io.BytesIO()
    torch.save(before.checkpoint(), kept)
    kept.seek(0)
    after.restore(torch.load(kept, weights_only=True))
    resumed = [after.round(round) for round in (1, 2)]
    for one, other in zip(records[1:], resumed, strict=True):
        same = {key for key in one if not key.startswith("seconds")}
        assert {key: one[key] for key in same} == {key: other[key] for key in same}, (
            "a resumed run differs: `checkpoint` and `restore` must carry all that the next round depends on"
        )
    assert _equal(whole.algorithm.state, after.algorithm.state), "the server's tensors of a resumed run differ"
    assert whole.costs() == after.costs(), "a resumed run's costs differ"


def check_batching(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
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


def check_equivalents(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Every way to the logits that it offers gives those of `forward`, and their gradients; in double precision."""
    one = double(federation(algorithm, params, model))
    state = _sub_model(one)
    x, frozen = one.data.prepare(one.data.train.inputs[:6]), one.algorithm.frozen()
    results = []
    for forward in (one.algorithm.forward, *one.algorithm.equivalents()):
        tensors = {name: tensor.clone().requires_grad_() for name, tensor in state.items()}
        with evaluating():
            logits = forward(tensors, x)
        trained = [tensor for name, tensor in tensors.items() if name not in frozen]
        results.append([logits, *torch.autograd.grad(logits.square().sum(), trained)])
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)


def check_meta_step(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """A training step runs on the meta device: no tensor is left behind on another."""
    meta = torch.device("meta")
    one = federation(algorithm, params, model)
    [[selection, *_]] = one.algorithm.select(0, _cohort(one, [0.4]))
    for at_once in (1, 2):
        stacked = gather_stacked(one.algorithm.state, one.algorithm.layout, [selection] * at_once)
        state: State = {name: tensor.to(meta) for name, tensor in stacked.items()}
        training = Training(batch=4, epochs=1, clip=1.0)
        work = [Schedule.plan(one.population[number], training, 0, 0, number) for number in range(at_once)]
        assert train(one.algorithm, state, work, one.data.to(meta), training, 0.1).device == meta


def check_costs(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """A larger keep ratio never costs less, small ones do save, and a run's costs are the mean of what was charged."""
    one = federation(algorithm, params, model, KEEPS)
    data, full = one.data, one.full_costs
    each = [costs.of_client(one.algorithm, keep, data.signature, batch=4) for keep in KEEPS]
    for smaller, larger in pairwise(each):
        for name, cost in asdict(smaller).items():
            # Another way to the same logits may run then, which keeps fewer activations.
            if name not in ("activation_bytes", "training_bytes"):
                assert cost <= asdict(larger)[name], f"a larger keep ratio has fewer {name}: budgets can't choose one"
    if one.trainer.algorithm.unsent():
        assert each[0].transfer_bytes < full.transfer_bytes, "some tensors are not sent up, and still nothing is saved"
    elif one.algorithm.cuts:
        assert each[0].parameters < full.parameters, "the smallest sub-model saves no parameters; else set cuts = False"
        assert each[0].macs < full.macs, "the smallest sub-model saves no work; else set cuts = False"
    paid: dict[float, list[costs.Costs]] = {keep: [] for keep in one.keeps if one.algorithm.takes_part(keep)}
    for round in range(2):
        opened = one.open(round)
        for client, price in zip(opened.cohort, opened.costs, strict=True):
            paid[client.keep].append(price)
        one.carry_out(opened)
    means = [costs.average(prices, [1 / len(prices)] * len(prices)) for prices in paid.values()]
    told = one.costs()
    shares = [share for keep, share in zip(one.keeps, one.run.capacity.share, strict=True) if keep in paid]
    for name, mean in asdict(costs.average(means, [share / sum(shares) for share in shares])).items():
        assert math.isclose(told[name], mean), f"{name}: a run tells {told[name]}, its clients paid {mean}"


def check_clients_side(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """One that was built only, never started, and pickled trains as the server's own would: it reads nothing of it."""
    one = federation(algorithm, params, model, (0.4, 0.2))
    one.round(0)
    opened = one.open(1)
    server = copy.copy(one.trainer)
    server.algorithm = one.algorithm
    expected = one_by_one(server, opened)
    message = "clients train where only `build` was called"
    try:
        trainer = pickle.loads(pickle.dumps(one.trainer))
        found = one_by_one(trainer, opened)
    except Exception as error:
        raise AssertionError(f"{message}, on a pickled copy, and there it fails: {error!r}") from error
    assert not trainer.algorithm.state, f"{message}: they must not have the server's tensors"
    assert same_training(found, expected), f"{message}, and there the numbers are others: something is the server's"


def check_loss(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Its own loss is one finite number with finite gradients, at the start too, and the same stacked or alone."""
    if not _has(algorithm, "loss"):
        return
    one = double(federation(algorithm, params, model))
    method, rng = one.trainer.algorithm, torch.Generator().manual_seed(0)
    start = {name: torch.stack([tensor] * 3) for name, tensor in _sub_model(one).items()}
    outputs = method.forward(_sub_model(one), one.data.prepare(one.data.train.inputs[:4]))
    logits = torch.randn(3, *outputs.shape, generator=rng, dtype=torch.float64)
    labels = torch.randint(one.data.classes, (3, 4), generator=rng)

    # As many sets of logits as the method's views may have parts, each by itself.
    parts = max(len(view) for view in method.views(method.layout))
    others = tuple(torch.randn(3, 4, one.data.classes, generator=rng, dtype=torch.float64) for _ in range(parts - 1))
    present = torch.zeros(3, one.data.classes, dtype=torch.bool).scatter_(1, labels, True)

    def loss(
        logits: Tensor, labels: Tensor, params: State, start: State, present: Tensor, others: tuple[Tensor, ...]
    ) -> Tensor:
        return method.loss(Step(logits, labels, params, start, present, others))

    for moved in (0.0, 0.1):
        now = {
            name: (tensor + moved * torch.randn(tensor.shape, generator=rng)).requires_grad_()
            for name, tensor in start.items()
        }
        outputs = logits.clone().requires_grad_()
        rows = [[{name: tensor[row] for name, tensor in state.items()} for state in (now, start)] for row in range(3)]
        each = [tuple(logits[row] for logits in others) for row in range(3)]
        alone = [
            loss(outputs[row], labels[row], rows[row][0], rows[row][1], present[row], each[row]) for row in range(3)
        ]
        assert all(each.shape == () and each.isfinite() for each in alone), "`loss` must give one finite number"
        inputs = [outputs, *now.values()]
        for gradient in torch.autograd.grad(torch.stack(alone).sum(), inputs, allow_unused=True):
            where = "where a client's training begins" if not moved else "under way"
            assert gradient is None or gradient.isfinite().all(), f"the gradient of `loss` is not finite {where}"
        stacked = vmap(loss)(outputs, labels, now, start, present, others)
        torch.testing.assert_close(stacked, torch.stack(alone), msg=lambda text: f"`loss` of stacked clients: {text}")


def check_frozen(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """No round of training changes what clients don't send up."""
    if not (_has(algorithm, "frozen") or _has(algorithm, "unsent")):
        return
    one = federation(algorithm, params, model, (0.4, 0.2))
    state = one.algorithm.state
    opened = one.open(0)
    for trained in one.executor.train(opened):
        opened.add(trained)
    merged = opened.merge.result()
    for name in one.trainer.algorithm.unsent():
        assert torch.equal(merged[name], state[name]), f"'{name}' is not sent up, and training changes it"


def check_views(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Views select validly on the sub-model's own layout, and follow from it alone."""
    if not _has(algorithm, "views"):
        return
    one = federation(algorithm, params, model)
    for state in (_sub_model(one), one.algorithm.state):
        layout = one.algorithm.layout.of({name: tensor.shape for name, tensor in state.items()})
        first, second = (one.trainer.algorithm.views(layout) for _ in range(2))
        viewed(one.trainer.algorithm, layout)
        assert _plain(first) == _plain(second), "`views` must follow from the layout alone: the run draws among them"
        read = _has(algorithm, "loss") or all(len(view) == 1 for view in first)
        assert read, "a view has several parts, and there is no `loss` that reads them"


def check_report(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Reports are tensors by name, and follow from the client's samples alone."""
    if not _has(algorithm, "report"):
        return
    one = federation(algorithm, params, model)
    one.round(0)
    elsewhere = pickle.loads(pickle.dumps(federation(algorithm, params, model).trainer))
    for client in range(len(one.population)):
        report, again = one.trainer.report(client), elsewhere.report(client)
        assert all(isinstance(tensor, Tensor) for tensor in report.values()), "`report` must give tensors by name"
        assert _equal(report, again), "`report` must follow from the client's samples alone"


def check_memory(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """What clients remember are tensors, and what they recall are tensors of the sub-model that they were sent."""
    if not (_has(algorithm, "recall") or _has(algorithm, "remember")):
        return
    assert _has(algorithm, "remember"), "`recall` never gets anything: there is no `remember`"
    one = federation(algorithm, params, model, (0.4, 0.2))
    for round in range(2):
        opened = one.open(round)
        for task in opened.tasks:
            sent = {name: tensor[0] for name, tensor in opened.gather([task]).items()}
            recalled = one.trainer.algorithm.recall(copy.copy(sent), task.memory)
            assert recalled.keys() <= sent.keys(), "`recall` gives tensors that the client was not sent"
            for name, tensor in recalled.items():
                assert tensor.shape == sent[name].shape, f"`recall` gives '{name}' in another shape"
        one.carry_out(opened)
    tensors = [tensor for parts in one.memories.values() for memory in parts.values() for tensor in memory.values()]
    assert tensors, "`remember` keeps nothing"
    assert all(isinstance(tensor, Tensor) for tensor in tensors), "`remember` must give tensors by name"
    assert not any(tensor.requires_grad for tensor in tensors), "`remember` keeps a graph: detach its tensors"


def check_weight(algorithm: Named, params: Given = None, model: Mapping[str, Any] = TINY) -> None:
    """Weights in the mean are positive and finite, and those by tensor name tensors that exist."""
    if not _has(algorithm, "weight"):
        return
    one = federation(algorithm, params, model, KEEPS, sizes=(3, 12, 1, 9))
    for client in _cohort(one, KEEPS):
        weight = one.algorithm.weight(client)
        if isinstance(weight, Mapping):
            unknown = weight.keys() - one.algorithm.state.keys()
            assert not unknown, f"`weight` names tensors that do not exist: {sorted(unknown)}"
        each = weight.values() if isinstance(weight, Mapping) else () if weight is None else (weight,)
        assert all(0 < number < math.inf for number in each), f"`weight` must be positive and finite, not {weight!r}"


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
    check_clients_side,
    check_loss,
    check_frozen,
    check_views,
    check_report,
    check_memory,
    check_weight,
)


def _has(algorithm: Named, hook: str) -> bool:
    """Whether the method has its own of one of the contract's functions."""
    return getattr(Plugin.named("algorithm", algorithm)[0], hook) is not getattr(Algorithm, hook)


def _cohort(one: Federation, keeps: Sequence[float]) -> list[Client]:
    """Clients with these keep ratios, with all that the server knows of a round's clients."""
    total = len(one.population)
    reports = overrides(one.algorithm, "report")
    return [
        Client(number, keep, one.population.size(number % total), one.trainer.report(number % total) if reports else {})
        for number, keep in enumerate(keeps)
    ]


def _sub_model(one: Federation) -> State:
    """One that a client of keep ratio 0.4 is sent."""
    [[selection, *_]] = one.algorithm.select(0, _cohort(one, [0.4]))
    return gather(one.algorithm.state, one.algorithm.layout, selection)


def _valid(check: Callable[[Selection], None], selection: Selection, where: str) -> None:
    try:
        check(selection)
    except BadPlugin as error:
        raise AssertionError(f"{where} {error}") from None


def _logits(one: Federation, x: Tensor) -> Tensor:
    model = one.algorithm.full_model()
    with evaluating():
        return model.forward(model.state, x)


def _plain(plan: Any) -> Any:
    return [[{name: indices.tolist() for name, indices in one.items()} for one in selections] for selections in plan]


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _dense(algorithm: Algorithm) -> list[Tensor]:
    """The full model's tensors: factors may differ in sign or order where what they stand for does not."""
    return list(algorithm.full_model().state.values())
