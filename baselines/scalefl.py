"""ScaleFL: sub-models cut in width and in depth, whose last classifier teaches the earlier ones.

Ilhan, Su, Liu, "ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients", CVPR 2023.
"""

from __future__ import annotations

import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor

from prism_bench.plugin import Selection, Settings, State, Step, along, prefix

from .depthfl import DepthFL


class ScaleFL(DepthFL):
    """The first ⌈√ρ·N⌉ filters in the first ⌊√ρ·B⌋ of B blocks; earlier classifiers learn from the last one too.

    The server deploys the last classifier that is trained.
    Width and depth share a capacity evenly, √ρ each, so that together they keep about ρ of the features; the paper
    searches for the two. A later classifier weighs more: the i-th i times.
    """

    class Params(Settings):
        distillation: float = Field(
            0.5, ge=0, lt=1, description="share of the loss that is learnt from the last classifier; 0: labels only"
        )
        temperature: PositiveFloat = Field(3.0, description="by which logits are divided for the distillation")

    smaller_in = ("width", "depth")  # type: ignore[assignment]
    params: Params  # type: ignore[assignment]

    def first(self, keep: float) -> Selection:
        share = keep**0.5
        return {**along(self.layout.of_kind("feature"), share, prefix, self.device), **super().first(share)}

    def ratios(self) -> list[float]:
        """Where the width grows, and where the depth does."""
        sizes = {axis.size for axis in self.layout.of_kind("feature")} | {self.network.depth}
        return sorted({(count / size) ** 2 for size in sizes for count in range(1, size + 1)})

    def features(self) -> float:
        return float(max(self.keeps) ** 0.5)

    def ensemble(self, params: State, x: Tensor) -> Tensor:
        return self.forward(params, x)[:, -1]

    def loss(self, step: Step) -> Tensor:
        share, degrees = self.params.distillation, self.params.temperature
        *earlier, last = step.logits.unbind(1)
        given = (last.detach() / degrees).log_softmax(-1)
        loss = (len(earlier) + 1) * F.cross_entropy(last, step.labels)
        for weight, logits in enumerate(earlier, start=1):
            # Not F.kl_div: it has no rule for stacked clients, and would go through them one by one.
            apart = given.exp() * (given - (logits / degrees).log_softmax(-1))
            taught = apart.sum(-1).mean() * degrees**2
            loss = loss + weight * ((1 - share) * F.cross_entropy(logits, step.labels) + share * taught)
        return loss / sum(range(1, len(earlier) + 2))
