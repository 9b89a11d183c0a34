"""The sections of a run's settings that are no plugin: training, evaluation, execution."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from prism_bench.base.settings import Settings


class Training(Settings):
    """Local training and the rounds around it."""

    later = frozenset({"micro"})

    rounds: PositiveInt = Field(100, description="communication rounds")
    active: PositiveInt = Field(20, description="clients drawn each round")
    epochs: int = Field(2, ge=0, description="local epochs at each participation")
    steps: PositiveInt | None = Field(None, description="at most so many local steps; none: the whole epochs")
    batch: PositiveInt = Field(32, description="samples in a local step")
    micro: PositiveInt | None = Field(
        None,
        description="samples in a pass: a step adds up the gradients of its passes, which is the same step in less "
        "activation memory; for networks without BatchNorm",
    )
    lr: float = Field(0.1, gt=0, le=1e30, description="learning rate at the start")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate over the rounds")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD; its state is fresh at each participation")
    decay: NonNegativeFloat = Field(2e-4, description="weight decay, and λ of the factors' regulariser")
    clip: PositiveFloat | None = Field(None, description="largest norm of a client's gradient")
    fan_in: Literal["full", "thin"] = Field(
        "full",
        description="whose inputs the first weights are scaled by: the full model's, or those that a client of the "
        "largest capacity has; thin networks without normalisation fade under the former",
    )
    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="of clients in the mean of what they trained: equal, or by their numbers of samples"
    )
    augment: bool = Field(True, description="flip and crop, where the data set asks for it")
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32", description="of products, in training and in evaluation; tf32 is for GPUs that have it"
    )

    @property
    def passed(self) -> int:
        """The most samples that are passed through the network at once."""
        return min(self.batch, self.micro or self.batch)


class Evaluation(Settings):
    """When and how the server's model is tested."""

    on: Literal["test", "validation"] = Field(
        "test", description="samples: the test set's, or those that data.validation holds out, to choose settings by"
    )
    every: PositiveInt = Field(1, description="rounds between evaluations; the last round always is one")
    batch: PositiveInt = Field(500, description="also what BatchNorm's batch statistics are taken over")
    probes: tuple[str, ...] = Field(
        (),
        description="more to record at each evaluation; views that record: rank (required kernels of every layer), "
        "sampling (clients that held each kernel), parts (accuracy of sub-models), features (at the end: what the "
        "first kernels see)",
    )


class Execution(Settings):
    """How a run is carried out: changes nothing beyond floating point, so it is no part of a run's identity."""

    on: str | dict[str, Any] = Field(
        "threads", description="the executor that trains clients, alone or as 'name:' with its settings beside it"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, ... or mps; auto takes a GPU if there is one")
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

    @field_validator("on")
    @classmethod
    def _has_a_name(cls, on: str | dict[str, Any]) -> str | dict[str, Any]:
        if isinstance(on, dict) and not isinstance(on.get("name"), str):
            raise ValueError("needs a name, alone or as 'name:' with settings beside it")
        return on

    @field_validator("threads")
    @classmethod
    def _few_threads(cls, threads: int | str) -> int | str:
        if isinstance(threads, int) and threads > 1024:
            raise ValueError("must be at most 1024, which no machine has more cores than")
        return threads

    @property
    def executor(self) -> str:
        """The name of the executor."""
        return self.on if isinstance(self.on, str) else str(self.on["name"])

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", device):
            raise ValueError("must be auto, cpu, cuda, cuda:0, cuda:1, ... or mps")
        return device
