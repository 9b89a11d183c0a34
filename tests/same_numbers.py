"""Record every number of a small grid, or compare with a record: for changes that should move no number.

    python tests/same_numbers.py record before.pt        # on the code as it was
    python tests/same_numbers.py compare before.pt       # on the code as it is

All algorithms and PriSM's settings on all models, two rounds of random samples, one and two threads, one interrupted
run that goes on, and, where FedML is installed, a FedML job in one process; the conformance suite's small federation in
double precision. Every accuracy, loss, cost and server tensor must be equal bit for bit. Seconds and identities are
left out.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import prism_bench
from prism_bench import testing

MODELS: list[dict[str, Any]] = [
    {"name": "smallcnn", "width": 10, "norm": "batch"},
    {"name": "cnn", "width": 10},
    {"name": "vgg11", "width": 5},
    {"name": "lstm", "embedding": 10, "hidden": 10},
    {"name": "deit", "width": 30, "depth": 2},
    {"name": "resnet18", "width": 10, "blocks": [1, 1]},
]
PRISM: list[dict[str, Any]] = [
    {},
    *({"channels": rule} for rule in ("kernels", "rolling", "random", "all")),
    {"sampling": "softmax"},
    {"sampling": "uniform", "kappa": 0},
    {"importance": "part", "kappa": 10},
    {"importance": "part", "channels": "random", "draw": "round"},
    {"draw": "round", "refresh": 2},
    {"deploy": "trained"},
    {"deploy": "expected", "channels": "all", "kappa": 10},
    {"deploy": "expected", "importance": "part"},
    {"scaling": True, "factorise": "all"},
    {"rank_keep": 0.6, "channel_keep": 0.3, "regulariser": "weight_decay"},
]
OTHERS: list[dict[str, Any]] = [
    {"name": "fedavg"},
    {"name": "orthdrop"},
    {"name": "orthdrop", "refresh": 2},
    {"name": "origdrop"},
    {"name": "origdrop", "scaling": True},
    {"name": "splitmix"},
    {"name": "splitmix", "scaling": True, "atom": 0.1},
]
METHODS = [*OTHERS, *({"name": "prism", **params} for params in PRISM)]


def experiment(model: dict[str, Any], algorithm: Any, **more: Any) -> dict[str, Any]:
    words = model["name"] == "lstm"
    data = {"shape": [7], "vocabulary": 30} if words else {"shape": [3, 32, 32]}
    return {
        "name": "same",
        "data": {"name": "noise", "train": 120, "test": 60, "classes": 4, **data},
        "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
        "model": model,
        "capacity": {"keep": [0.4, 0.2], "share": [0.5, 0.5]},
        "training": {"rounds": 2, "active": 5, "epochs": 1, "batch": 4, "lr": 0.05, "clip": 5.0},
        "evaluation": {"batch": 20, "probes": ["rank", "sampling", "parts"]},
        "grid": {"algorithm": algorithm},
        **more,
    }


def numbers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every run's records and server tensors."""
    manifest = json.loads((folder / "experiment.json").read_text())
    for run in manifest["runs"]:
        label, place = run["label"], folder / "runs" / run["folder"]
        for line in (place / "rounds.jsonl").read_text().splitlines():
            record = {key: value for key, value in json.loads(line).items() if not key.startswith("seconds")}
            record.pop("checksum", None)
            yield f"{label}, round {record['round']}", record
        summary = json.loads((place / "done.json").read_text())["summary"]
        yield f"{label}, summary", {key: v for key, v in summary.items() if not key.startswith("seconds")}
        [checkpoint] = place.glob("checkpoint-*.pt")
        yield f"{label}, server", torch.load(checkpoint, weights_only=True)["algorithm"]["state"]


class Stop(BaseException):
    """As Ctrl-C would."""


class StopAfter(prism_bench.Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_done(self, number: int, record: Any) -> None:
        if record["round"] == self.rounds:
            raise Stop


def all_numbers(work: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    counter = itertools.count()

    def add(what: str, tree: dict[str, Any]) -> None:
        print(what, flush=True)
        out = work / str(next(counter))
        prism_bench.run(tree, out=out)
        found.update({f"{what}: {key}": value for key, value in numbers(out)})

    for threads, model in itertools.product((1, 2), MODELS):
        add(f"{model['name']}, {threads} threads", experiment(model, METHODS, execution={"threads": threads}))
    budget = {"capacity": {"budget": {"macs": "45%", "transfer_bytes": "60%"}}}
    add("budget", experiment(MODELS[0], ["prism", "origdrop", "splitmix", "orthdrop"], **budget))
    add("at once", experiment(MODELS[-1], ["prism", "splitmix"], execution={"at_once": 3}))

    tree = experiment(MODELS[-1], ["prism"])
    tree["training"] = {**tree["training"], "rounds": 4}
    with suppress(Stop):
        prism_bench.run(tree, out=work / "resumed", callbacks=[StopAfter(2)])
    prism_bench.run(tree, out=work / "resumed")
    found.update({f"resumed: {key}": value for key, value in numbers(work / "resumed")})

    for model, method in itertools.product(MODELS, METHODS):
        params = {key: value for key, value in method.items() if key != "name"}
        double = getattr(testing, "double", None) or testing._double
        one = double(testing.federation(method["name"], params, model, (0.4, 0.2)))
        what = f"float64, {model['name']}, {method}"
        for round in range(2):
            record = one.round(round)
            found[f"{what}, round {round}"] = {k: v for k, v in record.items() if not k.startswith("seconds")}
        found[f"{what}, server"] = dict(one.algorithm.state)

    if importlib.util.find_spec("fedml"):
        found.update(fedml(work))
    return found


def fedml(work: Path) -> dict[str, Any]:
    from prism_bench.integrations import fedml

    file = work / "fedml.yaml"
    file.write_text(
        json.dumps(
            {
                "common_args": {"training_type": "simulation", "random_seed": 0},
                "comm_args": {"backend": "sp"},
                "train_args": {"client_num_in_total": 8, "client_num_per_round": 5, "comm_round": 2, "epochs": 1},
                "prism_args": {
                    **{key: value for key, value in experiment(MODELS[-1], METHODS).items() if key != "training"},
                    "partition": {"name": "dirichlet", "alpha": 0.5},
                    "training": {"batch": 4, "lr": 0.05, "clip": 5.0},
                },
            }
        )
    )
    fedml.run(fedml.Config.read(file), work / "fedml")
    return {f"FedML: {key}": value for key, value in numbers(work / "fedml")}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return bool(one == other)


def main() -> None:
    what, file = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as work:
        found = all_numbers(Path(work))
    if what == "record":
        torch.save(found, file)
        print(f"{len(found)} records of numbers are in {file}.")
        return
    before = torch.load(file, weights_only=True)
    differ = [key for key in before if key in found and not same(before[key], found[key])]
    missing, new = before.keys() - found.keys(), found.keys() - before.keys()
    for title, keys in (("differs", differ), ("missing", sorted(missing)), ("new", sorted(new))):
        for key in keys[:20]:
            print(f"{title}: {key}")
    equal = len(before) - len(differ) - len(missing)
    print(f"{equal} equal, {len(differ)} differ, {len(missing)} missing, {len(new)} new")
    sys.exit(1 if differ or missing else 0)


if __name__ == "__main__":
    main()
