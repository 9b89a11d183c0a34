"""SplitMix: independent thin networks, mixed at inference.

Hong, Wang, Wang, Zhou, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ Customization", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from prism_bench.algorithm import Algorithm, Client, dense_forward
from prism_bench.axes import Axis, Dim, Layout, Selection, State
from prism_bench.capacity import kept
from prism_bench.config import Settings
from prism_bench.errors import BadInput
from prism_bench.models.network import Network
from prism_bench.submodel import gather_stacked


class SplitMix(Algorithm):
    """round(1/atom) independent thin networks; a client trains round(ρ/atom) of them, the server averages logits.

    The server's tensors have the atom as leading axis, so that one atom is a selection like any other, and the whole
    of them under `forward` is the ensemble. Atoms share nothing, the classifier's bias included.
    """

    class Params(Settings):
        atom: float = Field(0.2, gt=0, le=1, description="width of one atom, as a share of the full model's")
        scaling: bool = Field(False, description="scale activations by 1/atom, as the method's authors do")

    params: Params

    def __init__(self, params: Params, network: Network, dense: State, seed: int) -> None:
        network.set_rescale(params.scaling)
        super().__init__(params, network, dense, seed)
        self.atoms = round(1 / params.atom)
        # Atom k starts as block k of the shared initial model; where the width does not divide, blocks overlap.
        self.state = gather_stacked(dense, self.layout, [self._block(number) for number in range(self.atoms)])
        atom = Dim(Axis("atom", self.atoms, "atom"))
        self.layout = Layout({name: (atom, *(None,) * (t.ndim - 1)) for name, t in self.state.items()})

    @classmethod
    def check(cls, params: Params, network: Network, keeps: Sequence[float]) -> None:
        for keep in keeps:
            if round(keep / params.atom) < 1:
                raise BadInput(
                    f"algorithm.atom: a client with keep ratio {keep:g} can't train one atom of "
                    f"{params.atom:g}; an atom of at most {keep:g} would do."
                )

    def _block(self, number: int) -> Selection:
        block = {}
        for axis in self.layout.of_kind("feature"):
            count = kept(self.params.atom, axis.size)
            start = round(number * (axis.size - count) / max(1, self.atoms - 1))
            block[axis.name] = torch.arange(start, start + count, device=self.device)
        return block

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

    def forward(self, params: State, x: Tensor) -> Tensor:
        atoms = [dict(zip(params, atom, strict=True)) for atom in zip(*params.values(), strict=True)]
        return torch.stack([dense_forward(self.network, atom, x) for atom in atoms]).mean(0)
