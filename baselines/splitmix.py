"""SplitMix: independent thin networks, mixed at inference.

Hong, Wang, Wang, Zhou, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ Customization", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from prism_bench.plugin import (
    Algorithm,
    Axis,
    BadInput,
    Client,
    Dim,
    Layout,
    Network,
    Selection,
    ServerModel,
    Settings,
    State,
    along,
    block,
    dense_forward,
    gather_stacked,
)


class SplitMix(Algorithm):
    """round(1/atom) independent thin networks; a client trains round(ρ/atom) of them, the server averages logits.

    The server's tensors have the atom as leading axis, so that one atom is a selection like any other, and the whole
    of them under `forward` is the ensemble. Atoms share nothing, the classifier's bias included.
    """

    smaller_in = ("width",)

    class Params(Settings):
        atom: float = Field(0.2, gt=0, le=1, description="width of one atom, as a share of the full model's")
        scaling: bool = Field(False, description="scale activations by 1/atom, as the method's authors do")

    params: Params

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        for keep in keeps:
            if round(keep / params.atom) < 1:
                raise BadInput(
                    f"algorithm.atom: a client with keep ratio {keep:g} can't train one atom of "
                    f"{params.atom:g}; an atom of at most {keep:g} would do."
                )

    def build(self, network: Network, seed: int) -> None:
        network.set_rescale(self.params.scaling)
        super().build(network, seed)
        self.atoms = round(1 / self.params.atom)
        atom = Dim(Axis("atom", self.atoms, "atom"))
        self.layout = Layout({name: (atom, *(None,) * len(dims)) for name, dims in self.layout.dims.items()})

    def start(self, dense: State) -> None:
        """Atom k starts as block k of the shared initial model."""
        whole = self.network.layout()
        blocks = [
            along(whole.of_kind("feature"), self.params.atom, block(number, self.atoms)) for number in range(self.atoms)
        ]
        self.state = gather_stacked(dense, whole, blocks)

    def _budget(self, keep: float) -> int:
        return min(self.atoms, round(keep / self.params.atom))

    def ratios(self) -> list[float]:
        return [min(1.0, count * self.params.atom) for count in range(1, self.atoms + 1)]

    def select(self, round: int, cohort: Sequence[Client]) -> list[list[Selection]]:
        plan: list[list[Selection]] = []
        for position, client in enumerate(cohort):
            # The first atom comes from a shuffled cycle through all atoms, so that each gets trained.
            turn, place = divmod(round * len(cohort) + position, self.atoms)
            lead = self.random(turn).permutation(self.atoms)[place]
            others = self.random(round, 1 + client.number).permutation(self.atoms)
            chosen = [lead, *others[others != lead][: self._budget(client.keep) - 1]]
            plan.append([{"atom": torch.tensor([atom], device=self.device)} for atom in chosen])
        return plan

    def features(self) -> float:
        return self.params.atom

    def client_model(self, keep: float) -> ServerModel:
        return self.part({"atom": torch.arange(self._budget(keep), device=self.device)})

    def forward(self, params: State, x: Tensor) -> Tensor:
        atoms = [dict(zip(params, atom, strict=True)) for atom in zip(*params.values(), strict=True)]
        return torch.stack([dense_forward(self.network, atom, x) for atom in atoms]).mean(0)
