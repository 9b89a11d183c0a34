"""All that an author of a plugin imports: of an algorithm, a model, a partition, a data set, a sampler, an executor, a
view or a tracker.

    from prism_bench.plugin import Algorithm, Client, Selection, along, window

CONTRIBUTING.md shows a plugin of each kind; `prism_bench.testing` tells whether one holds what the others hold.
"""

from prism_bench.analysis.view import Picture, Rows, Table, View
from prism_bench.base.errors import BadInput, BadPlugin, Diverged, nearest
from prism_bench.base.settings import Settings
from prism_bench.core.algorithm import (
    Algorithm,
    Client,
    Forward,
    OrthogonalAlgorithm,
    OrthogonalParams,
    ServerModel,
)
from prism_bench.core.axes import Axis, Dim, Dims, Layout, Selection, State, without
from prism_bench.core.capacity import kept
from prism_bench.core.network import BlockNetwork, Layer, Network, Noisy, Weighted, block_part, dense_forward
from prism_bench.core.objective import SGD, Optimiser, Step, cross_entropy
from prism_bench.core.orthogonal import OrthogonalSpace, chosen_layers
from prism_bench.core.seeds import stream
from prism_bench.core.selections import (
    Rule,
    along,
    block,
    drawn,
    following,
    indices,
    prefix,
    sample,
    window,
)
from prism_bench.core.submodel import Merge, gather, gather_stacked
from prism_bench.data.dataset import Dataset, Signature, Source, Split
from prism_bench.data.population import Partitioner, Population, samples_each, whole
from prism_bench.data.sources import StoredSource
from prism_bench.engine.executors import Executor
from prism_bench.engine.local import LocalTrainer
from prism_bench.engine.round import Round, Task, Trained
from prism_bench.engine.sampler import Known, Sampler
from prism_bench.engine.sections import Execution
from prism_bench.harness.callbacks import Callback
from prism_bench.models.layers import BatchNorm2d, Conv2d, Dropout, Embedding, LayerNorm, Linear, Norm, recomputed
from prism_bench.models.model import Model, require_images

__all__ = [
    "SGD",
    "Algorithm",
    "Axis",
    "BadInput",
    "BadPlugin",
    "BatchNorm2d",
    "BlockNetwork",
    "Callback",
    "Client",
    "Conv2d",
    "Dataset",
    "Dim",
    "Dims",
    "Diverged",
    "Dropout",
    "Embedding",
    "Execution",
    "Executor",
    "Forward",
    "Known",
    "Layer",
    "LayerNorm",
    "Layout",
    "Linear",
    "LocalTrainer",
    "Merge",
    "Model",
    "Network",
    "Noisy",
    "Norm",
    "Optimiser",
    "OrthogonalAlgorithm",
    "OrthogonalParams",
    "OrthogonalSpace",
    "Partitioner",
    "Picture",
    "Population",
    "Round",
    "Rows",
    "Rule",
    "Sampler",
    "Selection",
    "ServerModel",
    "Settings",
    "Signature",
    "Source",
    "Split",
    "State",
    "Step",
    "StoredSource",
    "Table",
    "Task",
    "Trained",
    "View",
    "Weighted",
    "along",
    "block",
    "block_part",
    "chosen_layers",
    "cross_entropy",
    "dense_forward",
    "drawn",
    "following",
    "gather",
    "gather_stacked",
    "indices",
    "kept",
    "nearest",
    "prefix",
    "recomputed",
    "require_images",
    "sample",
    "samples_each",
    "stream",
    "whole",
    "window",
    "without",
]
