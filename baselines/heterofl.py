"""HeteroFL: OrigDrop with what its authors add so that networks of several widths train well together.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor

from prism_bench.plugin import Network, Step

from .origdrop import OrigDrop


class HeteroFL(OrigDrop):
    """OrigDrop with scaled activations, static BatchNorm and a cross-entropy that leaves out labels a client lacks.

    The authors deploy the full model: at equal capacities below 1, as OrigDrop, the part that is trained. A part that
    is evaluated keeps its scale, as nothing else would make up for it. In the mean, rows of the classifier count for
    all clients; the authors leave out those that a client has no sample of.
    """

    class Params(OrigDrop.Params):
        scaling: bool = Field(True, description="scale activations by 1/ρ; no change where a normalisation follows")
        static: bool = Field(
            True,
            description="BatchNorm by the batch's statistics in training, and in evaluation by those of training "
            "samples; no change for a network without BatchNorm",
        )
        masked: bool = Field(True, description="logits of labels that a client has no sample of are 0 in its loss")

    params: Params

    def build(self, network: Network, seed: int) -> None:
        if self.params.static:
            network.set_static(True)
        super().build(network, seed)

    def loss(self, step: Step) -> Tensor:
        if self.params.masked:
            step = replace(step, logits=step.logits.where(step.present, 0.0))
        return super().loss(step)
