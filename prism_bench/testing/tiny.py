"""Small runs, small data, and what the checks of several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from prism_bench.base.errors import BadInput
from prism_bench.data.dataset import Dataset
from prism_bench.data.noise import Noise
from prism_bench.data.population import Population
from prism_bench.engine.executors import MakeExecutor
from prism_bench.engine.federation import Federation
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Trained
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Plugin, Run

Check = Callable[..., None]
Named = str | type
"""A plugin by its registered name, or its class."""
Given = Mapping[str, Any] | None
"""A plugin's settings."""

TINY: Mapping[str, Any] = {"name": "smallcnn", "width": 10, "norm": "batch"}
KEEPS = (0.2, 0.4, 0.7, 1.0)


def chosen(section: str, plugin: Named, settings: Given = None) -> Plugin:
    """A plugin with its settings, as a run chooses it."""
    return Plugin.choose(section, {"name": plugin, **(settings or {})})


def described(plugin: Named, kind: type, settings: Any) -> None:
    """It says in a line what it does, and its settings can't be changed under way."""
    assert (kind.__doc__ or "").strip(), f"{plugin} needs a docstring: `prism-bench list` shows it"
    assert settings.model_config.get("frozen"), f"{plugin}: its settings must be frozen: derive them from Settings"


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
    algorithm: Named,
    params: Given = None,
    model: Mapping[str, Any] = TINY,
    keep: float | Sequence[float] = 0.4,
    data: Dataset | None = None,
    sizes: Sequence[int] = (12, 12, 12, 12),
    at_once: int = 8,
    executor: MakeExecutor | None = None,
    on: Any = "threads",
    sampler: Any = "uniform",
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
            "sampler": sampler,
            "capacity": {"keep": keeps, "share": [1 / len(keeps)] * len(keeps)},
            "training": {"rounds": 3, "active": len(sizes), "batch": 4, "lr": 0.05, "epochs": 1} | training,
        }
    )
    population = Population.from_owners(np.repeat(np.arange(len(sizes)), sizes), len(sizes))
    return Federation(run, data, population, Execution(device="cpu", at_once=at_once, on=on), executor)


class _DoubleDataset(Dataset):
    def prepare(self, raw: torch.Tensor) -> torch.Tensor:
        x = super().prepare(raw)
        return x.double() if x.is_floating_point() else x


def double(one: Federation) -> Federation:
    """The same run in double precision."""
    one.algorithm.state = {name: tensor.double() for name, tensor in one.algorithm.state.items()}
    one.trainer.data = one.data = _DoubleDataset(**vars(one.data))
    return one


def one_by_one(trainer: LocalTrainer, opened: Round) -> list[Trained]:
    """A round's tasks, each trained alone and one after another: what every other way has to equal."""
    return [trainer.train(opened.number, [task], opened.gather([task])) for task in opened.tasks]


def same_training(some: Iterable[Trained], others: Iterable[Trained]) -> bool:
    """Whether two trainings of the same tasks, in the same order, gave the same numbers bit for bit."""
    mine, theirs = _rows(some), _rows(others)
    return len(mine) == len(theirs) and all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(mine, theirs, strict=True)
    )


def _rows(trained: Iterable[Trained]) -> list[dict[str, torch.Tensor]]:
    return [
        {f"tensor {name}": tensor[row] for name, tensor in group.state.items()}
        | {f"memory {name}": tensor for name, tensor in group.memories[row].items()}
        | {"loss": group.losses[row]}
        for group in trained
        for row in range(len(group.tasks))
    ]
