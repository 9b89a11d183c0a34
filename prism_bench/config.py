"""Validated settings: what a run is, and errors that say which key of which file is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from prism_bench.errors import BadInput, nearest


class Settings(BaseModel):
    """Base of all settings: frozen, and a key that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def identity(settings: Mapping[str, Any]) -> str:
    """A hash that is equal for equal settings, and for those only."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted keys, as ``--set`` takes them.

    >>> dict(flat({"seed": 0, "training": {"lr": 0.1}}))
    {'seed': 0, 'training.lr': 0.1}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


S = TypeVar("S", bound=BaseModel)


def validate(kind: type[S], values: Any, where: str = "") -> S:
    """Settings of the given kind, or a BadInput that names each wrong key and what would be right."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{where}: needs settings below it (got {values!r}).")
    try:
        return kind.model_validate({str(key): value for key, value in values.items()})
    except ValidationError as error:
        raise BadInput("\n".join(_explain(problem, kind, where) for problem in error.errors())) from None


def _explain(problem: Any, kind: type[BaseModel], where: str) -> str:
    keys = [str(part) for part in problem["loc"]]
    key = ".".join([part for part in (where, *keys) if part]) or "settings"
    if problem["type"] == "extra_forbidden":
        owner: type[BaseModel] = kind
        for part in keys[:-1]:
            field = owner.model_fields.get(part)
            nested = field.annotation if field else None
            owner = nested if isinstance(nested, type) and issubclass(nested, BaseModel) else owner
        return f"{key}: there is no such setting. {nearest(keys[-1], owner.model_fields)}"
    if problem["type"] == "missing":
        return f"{key}: is missing."
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key}: {message} (got {problem['input']!r})."


class Training(Settings):
    """Local training and the rounds around it."""

    rounds: PositiveInt = Field(100, description="communication rounds")
    active: PositiveInt = Field(20, description="clients drawn each round")
    epochs: int = Field(2, ge=0, description="local epochs at each participation")
    steps: PositiveInt | None = Field(None, description="at most so many local steps; none: the whole epochs")
    batch: PositiveInt = Field(32, description="samples in a local step")
    lr: float = Field(0.1, gt=0, le=1e30, description="learning rate at the start")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate over the rounds")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD; its state is fresh at each participation")
    decay: NonNegativeFloat = Field(2e-4, description="weight decay, and λ of the factors' regulariser")
    clip: PositiveFloat | None = Field(None, description="largest norm of a client's gradient")
    augment: bool = Field(True, description="flip and crop, where the data set asks for it")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32", description="of products, in training and in evaluation; tf32 is for GPUs that have it"
    )


Probe = Literal["rank", "sampling", "features", "parts"]


class Evaluation(Settings):
    """When and how the server's model is tested."""

    every: PositiveInt = Field(1, description="rounds between evaluations; the last round always is one")
    batch: PositiveInt = Field(500, description="also what BatchNorm's batch statistics are taken over")
    probes: tuple[Probe, ...] = Field(
        (),
        description="more to record at each evaluation: required kernels of every layer, "
        "clients that held each kernel, accuracy of sub-models; at the end what the first kernels see",
    )


class Execution(Settings):
    """How a run is carried out: changes nothing beyond floating point, so it is no part of a run's identity."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    at_once: PositiveInt | Literal["auto"] = Field(
        "auto", description="clients that train in one pass; 1: one after another"
    )
    threads: PositiveInt | Literal["auto"] = Field(
        "auto", description="of the CPU; auto: one where the model is small, else what torch takes"
    )
    compile: bool = Field(
        False, description="torch.compile the forward pass: minutes at the start; on a CPU needs a C++ compiler"
    )
    keep_model: bool = Field(True, description="keep the server's tensors when a run is done")
    checkpoint: PositiveInt = Field(1, description="rounds between checkpoints: what a killed run loses at most")
