"""Small frames of results that a person can check by hand."""

from __future__ import annotations

import pandas as pd


def rounds_of(*rows, **labels):
    """Rounds of runs, each given as algorithm, keep ratio, seed and its accuracy by round; ``labels`` are for all."""
    base = {
        "data": "d", "model": "m", "partition": "p", "variant": "", "settings": "", "seconds": 1.0,
        "parameters": 10, "macs": 20, "activation_bytes": 30, "transfer_bytes": 40,
        "full_parameters": 100, "full_macs": 100, "full_activation_bytes": 100, "full_transfer_bytes": 100,
    }  # fmt: skip
    records = []
    for algorithm, keep, seed, accuracies in rows:
        for number, accuracy in enumerate(accuracies, start=1):
            row = base | {"algorithm": algorithm, "keep": keep, "seed": seed} | labels
            row |= {"run": " ".join(str(row[key]) for key in ("partition", "algorithm", "variant", "keep", "seed"))}
            row |= {"cuts": algorithm != "fedavg", "round": number}
            row |= {"accuracy": accuracy, "accuracy_full": accuracy - 1, "accuracy_trained": accuracy}
            records.append(row)
    return pd.DataFrame(records)
