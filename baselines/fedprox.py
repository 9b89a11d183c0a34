"""FedProx: clients stay near where they began.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from prism_bench.plugin import Settings, Step

from .fedavg import FedAvg


class FedProx(FedAvg):
    """FedAvg with µ/2‖w − w₀‖² in each client's loss, w₀ being what the client was sent; a reference under skewed data.

    What the paper has for clients that do less work than others is left out: here all do the same.
    """

    reference = False

    class Params(Settings):
        mu: NonNegativeFloat = Field(0.01, description="strength µ of the proximal term; 0: FedAvg")

    params: Params

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        if not self.params.mu:
            return loss
        away = sum((tensor - step.start[name]).square().sum() for name, tensor in step.params.items())
        return loss + self.params.mu / 2 * away
