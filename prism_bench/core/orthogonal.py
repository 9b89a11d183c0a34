"""The orthogonal space: layers as principal kernels σ·u·vᵀ, with √σ folded into both factors."""

from __future__ import annotations

import copy
from collections import deque
from fnmatch import fnmatch

import torch
from torch import Tensor

from prism_bench.base.errors import BadInput, Diverged, nearest
from prism_bench.core.axes import Axis, State
from prism_bench.core.network import Network, Weighted
from prism_bench.core.threads import in_threads, workers


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Thin SVD (u, σ, vᵀ) with σ falling, through the eigenvectors of the smaller Gram matrix in float64.

    Much faster than a full SVD where one side is long. σ is read off as the length of uᵀW rather than as the root of
    an eigenvalue, and u·uᵀW is the matrix again whatever the error in u, as u is a whole orthonormal basis.
    """
    if matrix.shape[0] > matrix.shape[1]:
        v, sigma, ut = svd(matrix.T)
        return ut.T, sigma, v.T
    # Apple's GPU has no float64: the decomposition is the server's work, and there it runs on the CPU.
    work = matrix.to("cpu" if matrix.device.type == "mps" else matrix.device).double()
    try:
        u = torch.linalg.eigh(work @ work.T).eigenvectors
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise Diverged("a layer's weights can't be decomposed; a smaller training.lr may help.") from None
    projected = u.T @ work
    del work  # a long matrix in float64 is more than all else that a round has in memory then
    sigma = torch.linalg.vector_norm(projected, dim=1)
    order = torch.argsort(sigma, descending=True, stable=True)
    sigma = sigma[order]
    projected = projected[order]
    projected /= sigma.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    return u[:, order].to(matrix), sigma.to(matrix), projected.to(matrix)


class OrthogonalSpace:
    """A network with some layers factorised, and the way there and back.

    ``factorise`` is the name of one of the network's groups of layers ("paper", "all", ...), or patterns of names. With
    ``rows``, the rows of each U are an axis of their own, apart from the layer's output channels.
    """

    def __init__(self, network: Network, factorise: str | tuple[str, ...] = "paper", rows: bool = False) -> None:
        self.paths = chosen_layers(network, factorise)
        self.module = copy.deepcopy(network)
        for path in self.paths:
            self.layer(path).factorise(f"{path}.rank", f"{path}.rows" if rows else None)
        self.layout = self.module.layout()
        self.factors = {f"{path}.{part}" for path in self.paths for part in "uv"}

    def layer(self, path: str) -> Weighted:
        layer = self.module.get_submodule(path)
        assert isinstance(layer, Weighted)
        return layer

    def rank(self, path: str) -> Axis:
        """The rank axis of a factorised layer."""
        return self.layout.axes[f"{path}.rank"]

    def enter(self, dense: State) -> State:
        """Decompose: every factorised layer's weight becomes u' = √σ·u and v' = √σ·v, σ falling."""
        state: State = {}
        for name in self.layout.dims:
            path, _, part = name.rpartition(".")
            if name not in self.factors:
                state[name] = dense[name]
            elif part == "u":
                state[name], state[f"{path}.v"] = _factors(dense[f"{path}.weight"])
        return state

    def leave(self, state: State) -> State:
        """Rebuild: the dense weights that the factors stand for."""
        dense: State = {}
        for name, tensor in state.items():
            path, _, part = name.rpartition(".")
            if name not in self.factors:
                dense[name] = tensor
            elif part == "u":
                dense[f"{path}.weight"] = self.layer(path).widened(_product(tensor, state[f"{path}.v"]))
        return dense

    def refresh(self, state: State) -> None:
        """Rebuild and decompose again, in place. No more layers are whole at a time than there are threads for."""

        def again(path: str) -> None:
            u, v = f"{path}.u", f"{path}.v"
            state[u], state[v] = _factors(_product(state[u], state[v]))

        count = workers(state[f"{self.paths[0]}.u"].device)
        deque(in_threads(again, self.paths, min(len(self.paths), count)), maxlen=0)

    def sigma(self, state: State, path: str) -> Tensor:
        """The size of each kernel, ‖u'‖·‖v'‖: its singular value right after `enter`."""
        u, v = state[f"{path}.u"], state[f"{path}.v"]
        sizes: Tensor = torch.linalg.vector_norm(u, dim=0) * torch.linalg.vector_norm(v.flatten(1), dim=1)
        return sizes

    def add_decay(self, params: State, gradients: State, strength: float) -> None:
        """Add the gradient of λ/2‖UV‖² on the factors, in closed form, and of λ/2‖·‖² on every other tensor.

        The closed form is λ·U(VVᵀ) and λ·(UᵀU)V: no graph to build. Works on one sub-model and on stacked ones.
        """
        for name, gradient in gradients.items():
            if name not in self.factors:
                gradient.add_(params[name], alpha=strength)
        for path in self.paths:
            u, v = params[f"{path}.u"], params[f"{path}.v"]
            flat = v.flatten(v.ndim - 1 - len(self.layer(path).kernel))
            if f"{path}.u" in gradients:
                gradients[f"{path}.u"].add_(u @ (flat @ flat.mT), alpha=strength)
            if f"{path}.v" in gradients:
                gradients[f"{path}.v"].add_(((u.mT @ u) @ flat).view_as(v), alpha=strength)


def _factors(weight: Tensor) -> tuple[Tensor, Tensor]:
    u, sigma, vt = svd(weight.flatten(1))
    root = sigma.sqrt()
    return u * root, (root[:, None] * vt).view(-1, *weight.shape[1:])


def _product(u: Tensor, v: Tensor) -> Tensor:
    return (u @ v.flatten(1)).view(-1, *v.shape[1:])


def chosen_layers(network: Network, factorise: str | tuple[str, ...]) -> tuple[str, ...]:
    """The layers that a ``factorise`` setting means; BadInput where it means none."""
    known, groups = network.weighted_layers(), network.groups()
    if isinstance(factorise, str) and factorise in groups:
        return groups[factorise]
    patterns = (factorise,) if isinstance(factorise, str) else factorise
    if not patterns:
        raise BadInput(f"algorithm.factorise: needs at least one layer. {nearest('', [*groups, *known])}")
    for pattern in patterns:
        if not any(fnmatch(path, pattern) for path in known):
            raise BadInput(
                f"algorithm.factorise: no layer is called '{pattern}'. {nearest(pattern, [*groups, *known])}"
            )
    return tuple(path for path in known if any(fnmatch(path, pattern) for pattern in patterns))
