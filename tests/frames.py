"""Small frames and folders of results that a person can check by hand."""

from __future__ import annotations

import json

import pandas as pd

from prism_bench.harness.results import COSTS, LABELS


def rounds_of(*rows, **labels):
    """Rounds of runs, each given as algorithm, keep ratio, seed and its accuracy by round; ``labels`` are for all."""
    base = {
        "experiment": "small", "data": "d", "model": "m", "partition": "p", "variant": "", "settings": "",
        "seconds": 1.0, "seconds_create": 0.05, "seconds_train": 0.4, "seconds_merge": 0.025,
        "seconds_refresh": 0.025, "seconds_evaluate": 0.1,
        "parameters": 10, "macs": 20, "activation_bytes": 30, "transfer_bytes": 40,
        "full_parameters": 100, "full_macs": 100, "full_activation_bytes": 100, "full_transfer_bytes": 100,
    }  # fmt: skip
    records = []
    for algorithm, keep, seed, accuracies in rows:
        for number, accuracy in enumerate(accuracies, start=1):
            row = base | {"algorithm": algorithm, "keep": keep, "seed": seed} | labels
            row |= {"run": " ".join(str(row[key]) for key in ("partition", "algorithm", "variant", "keep", "seed"))}
            row |= {"cuts": algorithm != "fedavg", "round": number}
            row |= {} if row["cuts"] else {cost: row[f"full_{cost}"] for cost in COSTS if cost in row}
            row |= {"accuracy": accuracy, "accuracy_full": accuracy - 1, "accuracy_trained": accuracy}
            records.append(row)
    return pd.DataFrame(records)


def write_results(folder, rounds, paper=None, missing=(), **about):
    """A folder of results as it is in git: the manifest and the rounds. ``paper`` are its values, by algorithm."""
    runs = []
    for labels in rounds[[label for label in LABELS if label in rounds]].drop_duplicates().to_dict("records"):
        values = (paper or {}).get(labels["algorithm"], {})
        runs.append({"folder": "x", "label": labels["run"], "labels": labels, "paper": values})
    runs += [{"folder": "x", "label": label, "labels": {"run": label}} for label in missing]
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"name": folder.name, "description": "by hand", "command": f"prism-bench run {folder.name}"} | about
    (folder / "experiment.json").write_text(json.dumps(manifest | {"runs": runs}))
    rounds.to_csv(folder / "rounds.csv", index=False)
    return folder


def rank_of(seeds=2, rounds=3):
    """Two layers of 8 kernels and one of 16, in PriSM at 0.2."""
    return pd.DataFrame(
        {"round": number, "layer": layer, "kernels": kernels, "value": kernels / number + seed} | _labels(seed)
        for seed in range(seeds)
        for number in range(1, rounds + 1)
        for layer, kernels in (("a", 8), ("b", 8), ("c", 16))
    )


def sampling_of(seeds=2, rounds=3):
    return pd.DataFrame(
        {"round": number, "layer": layer, "kernel": kernel, "clients": kernels - kernel} | _labels(seed)
        for seed in range(seeds)
        for number in range(1, rounds + 1)
        for layer, kernels in (("a", 8), ("b", 8), ("c", 16))
        for kernel in range(kernels)
    )


def features_of(images=2, kernels=3, size=4):
    return pd.DataFrame(
        {"round": 1, "layer": "a", "image": image, "kernel": kernel, "y": y, "x": x, "value": x + y * kernel}
        | _labels(0)
        for image in range(images)
        for kernel in range(-1, kernels)
        for y in range(size)
        for x in range(size)
    )


def _labels(seed):
    labels = {"data": "d", "model": "m", "partition": "p", "algorithm": "prism", "variant": "", "keep": "0.2"}
    return labels | {"settings": "", "seed": seed, "run": f"p prism  0.2 {seed}", "cuts": True}
