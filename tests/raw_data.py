"""Where the real data is, and tiny data sets in every form in which people have them, written to a folder."""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

REAL = Path(os.environ.get("PRISM_BENCH_TEST_DATA") or Path(__file__).parents[2] / "shared/data")
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"real data is not in {REAL} (PRISM_BENCH_TEST_DATA)")


def encoded(array, form="PNG", mode=None):
    """An H×W or H×W×3 array as a file's bytes, in the Hub's form."""
    image = Image.fromarray(array)
    buffer = io.BytesIO()
    (image.convert(mode) if mode else image).save(buffer, form, **({"lossless": True} if form == "WEBP" else {}))
    return {"bytes": buffer.getvalue(), "path": None}


def parquet(file, columns):
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), file)


def cifar(count, seed=0, classes=10):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, classes, count)


def cifar_hub(root, train, test, form="PNG"):
    for split, (images, labels) in (("train", train), ("test", test)):
        columns = {"img": [encoded(image, form) for image in images], "label": labels}
        parquet(root / f"uoft-cs/cifar10/plain_text/{split}-00000-of-00001.parquet", columns)


def cifar_batches(root, train, test):
    """The training part is cut into its five batches."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    images, labels = (np.array_split(part, 5) for part in train)
    batches = {f"data_batch_{n + 1}": (images[n], labels[n]) for n in range(5)} | {"test_batch": test}
    for name, (pixels, numbers) in batches.items():
        flat = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)
        tree = {b"batch_label": b"some", b"data": flat, b"labels": numbers.tolist(), b"filenames": [b"x.png"]}
        (folder / name).write_bytes(pickle.dumps(tree, protocol=2))


def cifar100_hub(root, train, test):
    for split, (images, labels) in (("train", train), ("test", test)):
        columns = {"img": [encoded(image) for image in images], "fine_label": labels, "coarse_label": labels // 5}
        parquet(root / f"uoft-cs/cifar100/cifar100/{split}-00000-of-00001.parquet", columns)


def cifar100_python(root, train, test):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, (pixels, numbers) in (("train", train), ("test", test)):
        flat = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)
        tree = {b"filenames": [b"x.png"], b"batch_label": b"some", b"fine_labels": numbers.tolist()}
        tree |= {b"coarse_labels": (numbers // 5).tolist(), b"data": flat}
        (folder / name).write_bytes(pickle.dumps(tree, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple"]}, protocol=2))


def handwriting(sizes, seed=0):
    """Images N×28×28, labels and writers: so many images of each writer, in one shuffled order."""
    rng = np.random.default_rng(seed)
    writers = np.repeat([f"w{number}" for number in range(len(sizes))], sizes)
    rng.shuffle(writers)
    images = rng.integers(0, 256, (len(writers), 28, 28), dtype=np.uint8)
    return images, rng.integers(0, 62, len(writers)), writers


def femnist_hub(root, images, labels, writers, mode="RGB", form="PNG"):
    columns = {
        "image": [encoded(image, form, mode) for image in images],
        "writer_id": writers.tolist(),
        "hsf_id": [0] * len(labels),
        "character": labels,
    }
    parquet(root / "flwrlabs/femnist/data/train-00000-of-00001.parquet", columns)


def femnist_leaf(folder, images, labels, writers):
    """One JSON file, as LEAF writes it."""
    folder.mkdir(parents=True)
    tree = {
        writer: {
            "x": (images[writers == writer].reshape(-1, 784) / 255).tolist(),
            "y": labels[writers == writer].tolist(),
        }
        for writer in sorted(set(writers.tolist()))
    }
    text = json.dumps(
        {"users": list(tree), "num_samples": [len(user["y"]) for user in tree.values()], "user_data": tree}
    )
    (folder / "all_data_0.json").write_text(text)


def femnist_tff(file, images, labels, writers):
    import h5py

    with h5py.File(file, "w") as tree:
        for writer in sorted(set(writers.tolist())):
            group = tree.create_group(f"examples/{writer}")
            group["pixels"] = (images[writers == writer] / 255).astype(np.float32)
            group["label"] = labels[writers == writer].astype(np.int32)


def imdb_hub(root, train, test):
    """Each part is a list of (label, text)."""
    for split, part in (("train", train), ("test", test)):
        labels, texts = zip(*part, strict=True)
        parquet(root / f"stanfordnlp/imdb/plain_text/{split}-00000-of-00001.parquet", {"text": texts, "label": labels})


def imdb_folders(root, train, test):
    for split, part in (("train", train), ("test", test)):
        for number, (label, text) in enumerate(part):
            file = root / "aclImdb" / split / ("neg", "pos")[label] / f"{number}_5.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")


def imdb_csv(root, reviews):
    labels, texts = zip(*reviews, strict=True)
    frame = pd.DataFrame({"review": texts, "sentiment": [("negative", "positive")[label] for label in labels]})
    frame.to_csv(root / "IMDB Dataset.csv", index=False)
