"""FjORD: ordered dropout with another width at each step, and self-distillation.

Horváth, Laskaridis, Almeida, Leontiadis, Venieris, Lane, "FjORD: Fair and Accurate Federated Learning under
heterogeneous targets with Ordered Dropout", NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from pydantic import Field, field_validator
from torch import Tensor

from prism_bench.plugin import Layout, Selection, Step, kept

from .origdrop import OrigDrop


class FjORD(OrigDrop):
    """OrigDrop's sub-model, of which each step trains a width drawn up to the client's, taught by the widest.

    The widest's cross-entropy is in the loss of each step, and the narrower one follows its predictions alone: the
    paper's best, α = T = 1. A step with distillation so costs two passes; one at full width needs one.
    """

    class Params(OrigDrop.Params):
        widths: tuple[float, ...] = Field(
            (0.2, 0.4, 0.6, 0.8, 1.0), description="shares of the full width that steps draw among, up to the client's"
        )
        distil: bool = Field(True, description="the drawn width learns from the client's widest, and that from labels")

        @field_validator("widths")
        @classmethod
        def _rising_shares(cls, widths: tuple[float, ...]) -> tuple[float, ...]:
            rising = all(small < large for small, large in pairwise(widths))
            if not widths or not rising or not 0 < widths[0] <= widths[-1] <= 1:
                raise ValueError("must be rising shares above 0 and up to 1")
            return widths

    params: Params

    def views(self, layout: Layout) -> Sequence[Sequence[Selection]]:
        """The client's own width, and those below it."""
        held = layout.of_kind("feature")
        whole = {axis.name: axis.size for axis in self.layout.of_kind("feature")}
        views: list[Sequence[Selection]] = [[{}]]
        for width in self.params.widths:
            sizes = {axis.name: kept(width, whole[axis.name]) for axis in held}
            if any(sizes[axis.name] < axis.size for axis in held):
                part = {axis.name: torch.arange(min(sizes[axis.name], axis.size)) for axis in held}
                views.append([{}, part] if self.params.distil else [part])
        return views

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        for narrower in step.others:
            taught = step.logits.detach().log_softmax(-1)
            loss = loss + (taught.exp() * (taught - narrower.log_softmax(-1))).sum(-1).mean()
        return loss
