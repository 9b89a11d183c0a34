"""Hostile data folders, checkpoints, batches and manifests: nothing runs, no connection is made, memory stays bounded.

Each is a small file that asks for something; it is read in a process of its own with a guard on sockets, on starting
programs and on memory. What it gives is not looked at: an error with a name and a number are both well.
"""

from __future__ import annotations

import io
import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import raw_data as make
import torch
from torture.common import Tally

SPENT = 2**30
"""Bytes that reading a few kilobytes may take beyond what the libraries take themselves."""

READER = """
import os, resource, sys
folder, home, limit = sys.argv[1:]
os.environ["XDG_CACHE_HOME"], os.environ["PRISM_BENCH_DATA"] = home, folder
from prism_bench.base.errors import BadInput
from prism_bench.data.cifar10 import CIFAR10
from prism_bench.data.femnist import FEMNIST
from prism_bench.data.imdb import IMDB
from prism_bench.base.files import read_tensors
from prism_bench.harness.results import Results
from pathlib import Path
import datasets, h5py, pandas, PIL.Image, pyarrow.parquet, pickle, sklearn.model_selection, torch

def guard(event, arguments):
    asked = event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.mkdir")
    if asked and (event != "os.mkdir" or not str(arguments[0]).startswith(home)):
        print("ASKED", event, arguments, flush=True)
        os._exit(3)

sys.addaudithook(guard)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for read in (CIFAR10().load, FEMNIST().load, IMDB().load, lambda: Results.open(folder).runs(),
             *(lambda file=file: read_tensors(file) for file in Path(folder).glob("*.pt"))):
    try:
        read()
    except BadInput:
        pass
spent = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
if spent > int(limit):
    print("SPENT", spent)
    sys.exit(4)
"""


class Runs:
    """A pickle of it makes a folder: proof that it ran."""

    def __reduce__(self):
        return os.mkdir, ("/tmp/prism_bench-it-ran",)


def _named(module: str, name: str, rest: bytes = b"(tR.") -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + rest


def batches(draw: random.Random) -> bytes:
    """A pickle in place of a batch: one that asks for something, or a good one with a few bytes changed."""
    asks = [
        pickle.dumps(Runs()),
        _named("os", "system", b"(U\x04truetR."),
        _named("numpy.f2py.__main__", "main"),
        _named("numpy", "ndarray", b"(J\xff\xff\xff\x7ftR."),
        b"\x80\x02Nr" + draw.randbytes(4) + b".",
        b"\x80\x02]" + b"(h\x00e" * draw.randint(1, 1000),
        b"\x80\x02" + draw.choice([b"(", b"]", b"}", b")", b"N"]) * 100_000 + b".",
    ]
    tree = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1]}
    good = bytearray(pickle.dumps(tree, protocol=draw.choice([2, 3, 4])))
    for _ in range(draw.randint(1, 3)):
        good[draw.randrange(60) if draw.random() < 0.5 else draw.randrange(len(good))] = draw.randrange(256)
    return draw.choice([*asks, bytes(good), bytes(good[: draw.randrange(len(good))])])


def cases(count: int, draw: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Files of a data root or of a folder of results."""
    image, labels = make.cifar(4)
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: 'hf://datasets/a/b/c.parquet'}\n"
    parquet = io.BytesIO()
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"img": [make.encoded(one) for one in image], "label": labels}), parquet)
    for number in range(count):
        whole = bytearray(parquet.getvalue())
        for _ in range(draw.randint(0, 3)):
            whole[draw.randrange(len(whole))] = draw.randrange(256)
        checkpoint = io.BytesIO()
        with zipfile.ZipFile(checkpoint, "w") as archive:
            archive.writestr("archive/data.pkl", batches(draw))
            archive.writestr("archive/version", "3\n")
        from prism_bench.base.files import checksum

        seal = checksum(checkpoint.getvalue())
        depth = draw.choice([1, 100, 100_000])
        manifest = draw.choice(
            [
                '{"runs": [{}]}',
                "[" * depth,
                '{"runs": [{"folder": "../../..", "label": "", "labels": {"run": 1}}]}',
                "1e9999",
            ]
        )
        yield (
            f"number {number}",
            {
                "cifar-10-batches-py/data_batch_1": batches(draw),
                "cifar-10-batches-py/test_batch": batches(draw),
                **({"uoft-cs/cifar10/README.md": readme.encode() + b"---\n"} if number % 2 else {}),
                **({"uoft-cs/cifar10/train-0.parquet": bytes(whole)} if number % 2 else {}),
                "femnist/all_data/a.json": ("[" * depth).encode(),
                "IMDB Dataset.csv": b"review,sentiment\n" + b'"' * draw.randint(1, 9),
                f"checkpoint-{seal}.pt": checkpoint.getvalue(),
                "experiment.json": manifest.encode(),
                "rounds.csv": b"run,accuracy\n1,=cmd()\n",
            },
        )


def torture(count: int, seed: int, folder: Path) -> list[Tally]:
    tally = Tally("hostile data, batches, checkpoints and manifests: nothing ran, no connection, bounded memory")
    draw = random.Random(seed)
    environment = {
        key: text for key, text in os.environ.items() if key not in ("HF_HUB_OFFLINE", "PRISM_BENCH_NETWORK")
    }
    for name, files in cases(count, draw):
        root = folder / name.replace(" ", "-")
        for place, content in files.items():
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).write_bytes(content)
        command = [sys.executable, "-c", READER, str(root), str(folder / "home"), str(SPENT)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        tally.tried += len(files)
        if done.returncode:
            tally.lost.append(f"{root.name} (seed {seed}): {(done.stdout + done.stderr)[-800:]}")
    return [tally]


def test_foreign(tmp_path):
    torch.set_num_threads(1)
    [tally] = torture(2, 0, tmp_path)
    assert tally.tried > 10
    assert tally.lost == []
