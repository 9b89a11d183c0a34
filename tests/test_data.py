"""Data sets from every form in which people have them, what is kept of them, and what is said where they are bad."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pandas as pd
import pytest
import raw_data as make
import torch
from raw_data import REAL, real

from prism_bench.base.errors import BadInput
from prism_bench.base.files import checksum, read_tensors
from prism_bench.data import batches, cache
from prism_bench.data.cifar10 import CIFAR10
from prism_bench.data.cifar100 import CIFAR100
from prism_bench.data.femnist import FEMNIST
from prism_bench.data.imdb import IMDB
from prism_bench.engine.spec import Run

TRAIN, TEST = make.cifar(10), make.cifar(4, seed=1)
REVIEWS = [(number % 2, f"word{'abcdefgh'[number]} movie number<br />and more, it's {number}") for number in range(8)]


def kept():
    return sorted(path.name for path in (cache.home() / "prepared").glob("*"))


def same(one, other):
    for split in ("train", "test"):
        for part in ("inputs", "labels"):
            left, right = (getattr(getattr(data, split), part) for data in (one, other))
            assert left.dtype == right.dtype
            assert torch.equal(left, right), (split, part)
    assert one.owners == other.owners
    assert (one.mean, one.std) == (other.mean, other.std)


# CIFAR-10


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_cifar10_from_the_hubs_layout(tmp_path, form):
    make.cifar_hub(tmp_path, TRAIN, TEST, form)
    data = CIFAR10(root=tmp_path).load()
    assert data.train.inputs.dtype == torch.uint8
    assert np.array_equal(data.train.inputs.numpy(), TRAIN[0].transpose(0, 3, 1, 2))
    assert data.test.labels.tolist() == TEST[1].tolist()
    assert data.mean == pytest.approx(TRAIN[0].mean((0, 1, 2)))
    assert data.std == pytest.approx(TRAIN[0].std((0, 1, 2)))
    assert data.augment
    assert data.signature.shape == (3, 32, 32)


def test_cifar10_batches_are_the_same(tmp_path):
    for form, write in (("hub", make.cifar_hub), ("batches", make.cifar_batches)):
        (tmp_path / form).mkdir()
        write(tmp_path / form, TRAIN, TEST)
    same(CIFAR10(root=tmp_path / "hub").load(), CIFAR10(root=tmp_path / "batches").load())


def test_a_pickle_can_run_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    make.cifar_batches(tmp_path, TRAIN, TEST)
    (tmp_path / "cifar-10-batches-py/data_batch_2").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadInput, match=r"data_batch_2: can't be read as a batch of CIFAR-10 \(it asks for posix.mkdir"):
        CIFAR10(root=tmp_path).load()
    assert not (tmp_path / "harm").exists()


# CIFAR-100

FINE = make.cifar(10, classes=100), make.cifar(4, seed=1, classes=100)


def test_cifar100_has_the_fine_labels_in_both_forms(tmp_path):
    for form, write in (("hub", make.cifar100_hub), ("python", make.cifar100_python)):
        write(tmp_path / form, *FINE)
    data = CIFAR100(root=tmp_path / "hub").load()
    same(data, CIFAR100(root=tmp_path / "python").load())
    assert np.array_equal(data.train.inputs.numpy(), FINE[0][0].transpose(0, 3, 1, 2))
    assert data.train.labels.tolist() == FINE[0][1].tolist()
    assert data.test.labels.tolist() == FINE[1][1].tolist()
    assert data.classes == 100
    assert data.augment
    assert data.signature.shape == (3, 32, 32)


def test_the_two_cifars_are_not_taken_for_each_other(tmp_path):
    make.cifar100_python(tmp_path, *FINE)
    make.cifar100_hub(tmp_path, *FINE)
    with pytest.raises(BadInput, match="data: CIFAR-10 is not in"):
        CIFAR10(root=tmp_path).load()
    make.cifar_hub(tmp_path, TRAIN, TEST)
    assert CIFAR10(root=tmp_path).load().classes == 10
    assert CIFAR100(root=tmp_path).load().classes == 100
    assert [name.partition("-")[0] for name in kept()] == ["cifar10", "cifar100"]


def test_a_pickle_of_cifar100_can_run_nothing_either(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    make.cifar100_python(tmp_path, *FINE)
    (tmp_path / "cifar-100-python/test").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadInput, match="cifar-100-python/test: can't be read as a batch of CIFAR-100"):
        CIFAR100(root=tmp_path).load()
    assert not (tmp_path / "harm").exists()


def asks_for(module, name, *arguments):
    """A pickle that calls what it names."""
    return b"\x80\x02c%s\n%s\n(%stR." % (module, name, b"".join(arguments))


def again_and_again(times):
    """A text of a megabyte, of which every few bytes more make another megabyte."""
    text = b"X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x01"
    return b"\x80\x02c_codecs\nencode\nq\x00" + text + b"U\x06latin1q\x02" + b"h\x00h\x01h\x02\x86R" * times + b"."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (asks_for(b"numpy.f2py.__main__", b"ndarray"), "it asks for numpy.f2py.__main__.ndarray"),
        (asks_for(b"numpy.testing", b"dtype"), "it asks for numpy.testing.dtype"),
        (asks_for(b"numpy", b"ndarray", b"J\xff\xff\xff\x7f"), "it makes something else than plain values and arrays"),
        (asks_for(b"numpy", b"dtype", b"U\x0bV2000000000"), "it makes something else than plain values and arrays"),
        (b"\x80\x02Nr\xff\xff\xff\x7f.", "it holds a NoneType and no dictionary"),
        (b"\x80\x02}(" + b"]q\x01h\x01a" + b"u.", "SETITEMS finds other values than it needs"),
        (b"\x80\x02}U\x01a]q\x01h\x01as.", "is a list of lists"),
        (again_and_again(1000), "it makes more bytes than a batch of its size holds"),
        (b"\x80\x02" + b"]" * 1_100_000, "it has more than 1,000,000 instructions"),
        (b"\x80\x02B\xff\xff\xff\x7f", "expected 2147483647 bytes in a bytes4, but only 0 remain"),
    ],
)
def test_a_pickle_can_take_no_memory(tmp_path, content, message):
    """A name under another module, and numbers that ask for gigabytes: each is refused within megabytes."""
    make.cifar_batches(tmp_path, TRAIN, TEST)
    (tmp_path / "cifar-10-batches-py/data_batch_2").write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BadInput, match=re.escape(message)):
        CIFAR10(root=tmp_path).load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**29
    assert "numpy.f2py.__main__" not in sys.modules


def test_batches_of_python_2_are_read(tmp_path):
    """As the original files have them: byte strings, and an array by NumPy's old names."""
    make.cifar_batches(tmp_path, TRAIN, TEST)
    file = tmp_path / "cifar-10-batches-py/test_batch"
    expected = batches.read(file)
    pixels = expected[b"data"].tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x04M\x00\x0c\x86"
    array += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array += b"\x89T" + len(pixels).to_bytes(4, "little") + pixels + b"tb"
    labels = b"".join(b"K" + bytes([label]) for label in expected[b"labels"])
    file.write_bytes(b"\x80\x02}q\x01(U\x04data" + array + b"U\x06labels](" + labels + b"eu.")
    assert np.array_equal(batches.read(file)[b"data"], expected[b"data"])
    assert CIFAR10(root=tmp_path).load().test.labels.tolist() == TEST[1].tolist()


# FEMNIST


def by_content(data, split):
    part = getattr(data, split)
    return sorted(
        (image.numpy().tobytes(), label) for image, label in zip(part.inputs, part.labels.tolist(), strict=True)
    )


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_femnist_is_grey_whatever_the_file_is(tmp_path, mode):
    images, labels, writers = make.handwriting([20])
    make.femnist_hub(tmp_path, images, labels, writers, mode)
    data = FEMNIST(root=tmp_path, min_images=1, test_share=0.1).load()
    assert data.train.inputs.shape == (18, 1, 28, 28)
    both = torch.cat([data.train.inputs, data.test.inputs]).numpy().reshape(20, -1)
    assert sorted(map(bytes, both)) == sorted(map(bytes, images.reshape(20, -1)))


def test_femnist_holds_out_a_part_of_each_writer_and_leaves_small_ones_out(tmp_path):
    sizes = [30, 19, 50, 20]
    images, labels, writers = make.handwriting(sizes)
    make.femnist_hub(tmp_path, images, labels, writers)
    data = FEMNIST(root=tmp_path, min_images=20, test_share=0.2).load()
    trained = {name: data.owners.count(name) for name in sorted(set(data.owners))}
    assert trained == {"w0": 24, "w2": 40, "w3": 16}
    assert len(data.test) == 6 + 10 + 4
    # Each sample keeps its writer, and none is in both parts.
    owner = {image.tobytes(): writer for image, writer in zip(images, writers.tolist(), strict=True)}
    assert [owner[image.numpy().tobytes()] for image in data.train.inputs] == data.owners
    assert not {i.numpy().tobytes() for i in data.train.inputs} & {i.numpy().tobytes() for i in data.test.inputs}
    assert data.classes == 62
    with pytest.raises(BadInput, match=r"data.min_images: no writer in .* has 51 images; the most that one has is 50"):
        FEMNIST(root=tmp_path, min_images=51).load()


def test_femnist_in_other_forms(tmp_path):
    train, test = make.handwriting([12, 8, 3]), make.handwriting([2, 3, 1], seed=1)
    for name in ("leaf", "tff", "whole"):
        (tmp_path / name).mkdir()
    for split, part in (("train", train), ("test", test)):
        make.femnist_leaf(tmp_path / "leaf/femnist/data" / split, *part)
        make.femnist_tff(tmp_path / "tff" / f"fed_emnist_{split}.h5", *part)
    leaf, tff = (FEMNIST(root=tmp_path / name, min_images=5).load() for name in ("leaf", "tff"))
    same(leaf, tff)
    # Their own split is kept, and counts together: 12 + 2 and 8 + 3 images are enough, 3 + 1 are not.
    assert {name: leaf.owners.count(name) for name in leaf.owners} == {"w0": 12, "w1": 8}
    assert len(leaf.test) == 5
    images, labels, writers = train
    expected = sorted(
        (image.tobytes(), label)
        for image, label, writer in zip(images, labels.tolist(), writers, strict=True)
        if writer != "w2"
    )
    assert by_content(leaf, "train") == expected

    make.femnist_leaf(tmp_path / "whole/femnist/all_data", *train)
    whole = FEMNIST(root=tmp_path / "whole", min_images=5, test_share=0.25).load()
    assert (len(whole.train), len(whole.test)) == (9 + 6, 3 + 2)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "fed_emnist_train.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(BadInput, match=r"needs h5py: pip install 'prism-bench\[h5\]'"):
        FEMNIST(root=tmp_path).load()


# IMDB


def test_imdb_vocabulary_and_padding_by_hand(tmp_path):
    train = [
        (1, "Great great GREAT film!<br /><br />The plot isn't dull."),  # the: a stop word
        (0, "Dull plot, dull film, and 2 hours of it"),
        (0, "Nothing"),  # a stop word too: an empty review
    ]
    test = [(0, "zebra zebra zebra zebra dull"), (1, "film great film great plot dull")]
    make.imdb_hub(tmp_path, train, test)
    data = IMDB(root=tmp_path, split="original", words=4, length=5).load()
    # dull 3, great 3, film 2, plot 2; equal ones by the alphabet. No zebra: it is in no training text.
    dull, great, film, plot = 1, 2, 3, 4
    texts = dict(zip(map(tuple, data.train.inputs.tolist()), data.train.labels.tolist(), strict=True))
    assert texts == {
        (great, great, great, film, plot): 1,  # its sixth word is cut
        (0, dull, plot, dull, film): 0,
        (0, 0, 0, 0, 0): 0,
    }
    assert data.test.inputs.tolist() == [[0, 0, 0, 0, dull], [film, great, film, great, plot]]
    assert data.train.inputs.dtype == torch.int16
    assert data.vocabulary == 5
    assert data.signature.shape == (5,)


def test_imdb_is_the_same_from_every_form(tmp_path):
    train, test = REVIEWS[:4], REVIEWS[4:]
    for name in ("hub", "folders", "csv"):
        (tmp_path / name).mkdir()
    make.imdb_hub(tmp_path / "hub", train, test)
    make.imdb_folders(tmp_path / "folders", train, test)
    make.imdb_csv(tmp_path / "csv", REVIEWS[::-1])
    hub, folders, csv = (IMDB(root=tmp_path / name, words=20, length=6).load() for name in ("hub", "folders", "csv"))
    same(hub, folders)
    same(hub, csv)
    assert (len(hub.train), len(hub.test)) == (6, 2)
    assert hub.train.labels.tolist().count(1) == 3, "stratified"
    original = [IMDB(root=tmp_path / name, split="original").load() for name in ("hub", "folders")]
    same(*original)
    assert (len(original[0].train), len(original[0].test)) == (4, 4)
    with pytest.raises(BadInput, match=r"data.split: .*IMDB Dataset.csv does not say which"):
        IMDB(root=tmp_path / "csv", split="original").load()


# Bad files


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def truncated_parquet(root):
    make.cifar_hub(root, TRAIN, TEST)
    cut(root / "uoft-cs/cifar10/plain_text/test-00000-of-00001.parquet")
    return CIFAR10, r"test-00000-of-00001.parquet: is no whole parquet file"


def parquet_without_a_column(root):
    make.parquet(root / "uoft-cs/cifar10/train.parquet", {"image": [1], "label": [1]})
    return CIFAR10, r"cifar10: the train split has no column 'img', only: image, label\."


def parquet_without_a_split(root):
    make.parquet(root / "uoft-cs/cifar10/train.parquet", {"img": [make.encoded(TRAIN[0][0])], "label": [1]})
    return CIFAR10, r"cifar10: the test split has no rows"


def labels_as_words(root):
    make.parquet(root / "uoft-cs/cifar10/train.parquet", {"img": [make.encoded(TRAIN[0][0])], "label": ["cat"]})
    return CIFAR10, r"train split needs a label in every row of column 'label' \(got string, 0 empty\)"


def review_without_text(root):
    make.imdb_hub(root, [(0, "bad"), (1, None)], REVIEWS)
    return IMDB, r"train split needs a text in every row of column 'text' \(got string, 1 empty\)"


def image_that_is_none(root):
    make.parquet(root / "uoft-cs/cifar10/train.parquet", {"img": [{"bytes": b"no image", "path": None}], "label": [1]})
    return CIFAR10, r"cifar10: has an image that can't be used"


def images_of_another_size(root):
    small = TRAIN[0][:, :16]
    make.cifar_hub(root, (small, TRAIN[1]), (small, TRAIN[1]))
    return CIFAR10, r"needs images of 3×32×32 with a label each \(got 10×3×16×32 and 10 labels\)"


def label_out_of_range(root):
    make.cifar_hub(root, (TRAIN[0], TRAIN[1] + 10), TEST)
    return CIFAR10, r"needs labels from 0 to 9 \(got 1\d to 1\d\)"


def batch_is_missing(root):
    make.cifar_batches(root, TRAIN, TEST)
    (root / "cifar-10-batches-py/data_batch_3").unlink()
    return CIFAR10, r"cifar-10-batches-py: 'data_batch_3' is missing"


def batch_is_cut(root):
    make.cifar_batches(root, TRAIN, TEST)
    cut(root / "cifar-10-batches-py/data_batch_3")
    return CIFAR10, r"data_batch_3: can't be read as a batch of CIFAR-10"


def batch_without_labels(root):
    make.cifar_batches(root, TRAIN, TEST)
    (root / "cifar-10-batches-py/test_batch").write_bytes(pickle.dumps({b"data": [0]}))
    return CIFAR10, r"test_batch: has no 'labels'"


def coarse_labels_only(root):
    columns = {"img": [make.encoded(TRAIN[0][0])], "coarse_label": [1]}
    make.parquet(root / "uoft-cs/cifar100/cifar100/train.parquet", columns)
    return CIFAR100, r"cifar100: the train split has no column 'fine_label', only: img, coarse_label\."


def pickle_without_fine_labels(root):
    make.cifar100_python(root, *FINE)
    (root / "cifar-100-python/test").write_bytes(pickle.dumps({b"data": [0], b"labels": [1]}))
    return CIFAR100, r"test: has no 'fine_labels'; it is no batch of CIFAR-100's Python version"


def fine_label_out_of_range(root):
    make.cifar100_python(root, (FINE[0][0], FINE[0][1] + 100), FINE[1])
    return CIFAR100, r"cifar-100-python/train: needs labels from 0 to 99 \(got 1"


def half_of_cifar100(root):
    make.cifar100_python(root, *FINE)
    (root / "cifar-100-python/test").unlink()
    return CIFAR100, r"cifar-100-python: 'test' is missing"


def json_file(text, message):
    def write(root):
        (root / "femnist/all_data").mkdir(parents=True)
        (root / "femnist/all_data/a.json").write_text(text)
        return FEMNIST, message

    return write


def h5_without_labels(root):
    import h5py

    with h5py.File(root / "fed_emnist_train.h5", "w") as tree:
        tree["examples/f1/pixels"] = np.zeros((2, 28, 28), np.float32)
    return FEMNIST, r"fed_emnist_train.h5: examples/f1: has no 'label'"


def h5_without_examples(root):
    import h5py

    with h5py.File(root / "fed_emnist_train.h5", "w") as tree:
        tree["other"] = [1]
    return FEMNIST, r"fed_emnist_train.h5: has no 'examples'"


def h5_without_test(root):
    make.femnist_tff(root / "fed_emnist_train.h5", *make.handwriting([3]))
    return FEMNIST, r"'fed_emnist_test.h5' is missing"


def h5_cut(root):
    make.femnist_tff(root / "fed_emnist_train.h5", *make.handwriting([3]))
    cut(root / "fed_emnist_train.h5")
    return FEMNIST, r"fed_emnist_train.h5: can't be read as HDF5"


def leaf_without_test(root):
    make.femnist_leaf(root / "femnist/train", *make.handwriting([60]))
    return FEMNIST, r"femnist: has no 'test' part"


def csv_file(text, message):
    def write(root):
        (root / "IMDB Dataset.csv").write_text(text)
        return IMDB, message

    return write


def folder_without_negatives(root):
    make.imdb_folders(root, [(1, "good"), (1, "better")], REVIEWS)
    return IMDB, r"aclImdb: needs reviews in both train/pos and train/neg"


def review_that_is_no_text(root):
    make.imdb_folders(root, REVIEWS, REVIEWS)
    (root / "aclImdb/test/pos/9_9.txt").write_bytes(b"\xff\xfe\x00")
    return IMDB, r"9_9.txt: can't be read"


@pytest.mark.parametrize(
    "write",
    [
        truncated_parquet,
        parquet_without_a_column,
        parquet_without_a_split,
        labels_as_words,
        review_without_text,
        image_that_is_none,
        images_of_another_size,
        label_out_of_range,
        batch_is_missing,
        batch_is_cut,
        batch_without_labels,
        coarse_labels_only,
        pickle_without_fine_labels,
        fine_label_out_of_range,
        half_of_cifar100,
        json_file('{"users": []}', r"a.json: has no 'user_data'"),
        json_file("[1]", r"a.json: has no 'user_data'"),
        json_file('{"user_data": {"f1"', r"a.json: can't be read as JSON"),
        json_file("[" * 100_000, r"a.json: can't be read as JSON"),
        json_file('{"user_data": {"f1": {"x": [[0, 1]]}}}', r"a.json: user_data.f1: needs 'x', .* and 'y'"),
        json_file('{"user_data": {"f1": {"x": [[0, 1]], "y": [3]}}}', r"user_data.f1.x: needs images of 784 numbers"),
        json_file(f'{{"user_data": {{"f1": {{"x": [{[255] * 784}], "y": [3]}}}}}}', r"from 0 \(ink\) to 1 \(paper\)"),
        json_file(f'{{"user_data": {{"f1": {{"x": [{[1] * 784}], "y": [3, 4]}}}}}}', r"with a label each"),
        json_file(f'{{"user_data": {{"f1": {{"x": [{[1] * 784}], "y": [62]}}}}}}', r"needs labels from 0 to 61"),
        h5_without_labels,
        h5_without_examples,
        h5_without_test,
        h5_cut,
        leaf_without_test,
        csv_file("review,score\ngood,1\n", r"IMDB Dataset.csv: has no column 'sentiment', only: review, score\."),
        csv_file("review,sentiment\ngood,fine\n", r"'sentiment' must be 'positive' or 'negative' .* \(got 'fine'\)"),
        csv_file("review,sentiment\n", r"it has no rows"),
        csv_file("", r"IMDB Dataset.csv: can't be read as CSV"),
        csv_file("review,sentiment\ngood,positive\n", r"has too few reviews to be split"),
        folder_without_negatives,
        review_that_is_no_text,
    ],
    ids=lambda write: write.__name__,
)
def test_a_bad_file_is_a_clear_error(tmp_path, write):
    source, message = write(tmp_path)
    with pytest.raises(BadInput, match=message):
        source(root=tmp_path).load()
    assert kept() == [], "nothing is kept of bad data"


# What is kept


@pytest.fixture
def cifar(tmp_path):
    make.cifar_hub(tmp_path, TRAIN, TEST)
    return CIFAR10(root=tmp_path)


def refuse(*_):
    raise AssertionError("prepared again")


def test_data_is_prepared_once(cifar, monkeypatch):
    first = cifar.load()
    (name,) = kept()
    monkeypatch.setattr(CIFAR10, "prepare", refuse)
    same(cifar.load(), first)
    assert kept() == [name]


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [flip_a_bit, cut, lambda file: file.write_bytes(b"")], ids=["flipped", "cut", "empty"])
def test_damaged_tensors_are_rebuilt(cifar, harm):
    first = cifar.load()
    (name,) = kept()
    harm(cache.home() / "prepared" / name)
    with pytest.warns(UserWarning, match=f"{name}: is damaged"):
        same(cifar.load(), first)
    assert kept() == [name]
    assert read_tensors(cache.home() / "prepared" / name) is not None


@pytest.mark.parametrize("content", [b"\x80\x02c\xab.", b"\x80\x02h\x00.", b"\x80\x02R.", b"\x80\x02N."])
def test_forged_tensors_are_an_error_with_a_name(tmp_path, content):
    """Their checksum is right, so nothing was damaged: it stays, and is not taken for tensors."""
    file = tmp_path / f"forged-{checksum(content)}.pt"
    file.write_bytes(content)
    with pytest.raises(BadInput, match=f"{file.name}: has the right checksum, and"):
        read_tensors(file)
    assert file.exists()


def test_other_files_or_settings_are_prepared_anew(tmp_path):
    make.imdb_csv(tmp_path, REVIEWS)
    source = IMDB(root=tmp_path)
    source.load()
    assert IMDB(root=tmp_path, words=3).load().vocabulary == 4
    assert len(kept()) == 2
    make.imdb_csv(tmp_path, [*REVIEWS, *((label, f"{text} again") for label, text in REVIEWS)])
    data = source.load()
    assert len(data.train) + len(data.test) == 16
    assert len(kept()) == 3


def test_a_cache_that_cant_be_written_is_no_reason_to_stop(cifar, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="prepared data can't be kept"):
        assert len(cifar.load().train) == 10


# Where it is looked for


def test_the_root_is_the_setting_then_the_variable_then_the_cache(tmp_path, monkeypatch):
    assert CIFAR10().folder == cache.home() / "data"
    monkeypatch.setenv("PRISM_BENCH_DATA", str(tmp_path / "variable"))
    assert CIFAR10().folder == tmp_path / "variable"
    assert CIFAR10(root=tmp_path / "setting").folder == tmp_path / "setting"


def test_missing_data_says_three_ways_to_get_it(tmp_path):
    with pytest.raises(BadInput) as error:
        IMDB(root=tmp_path).load()
    first, *ways = str(error.value).splitlines()
    assert first == f"data: IMDB is not in {tmp_path} (data.root or PRISM_BENCH_DATA). Three ways to get it:"
    assert [way[:8] for way in ways] == ["data: 1.", "data: 2.", "data: 3."]
    assert "prism-bench data prepare imdb --allow-network" in ways[0]
    assert f"hf download stanfordnlp/imdb --repo-type dataset --local-dir {tmp_path / 'stanfordnlp/imdb'}" in ways[1]
    assert "aclImdb/train/pos/*.txt" in ways[2]
    assert "IMDB Dataset.csv" in ways[2]


def test_the_hub_is_asked_only_where_it_is_allowed(tmp_path, monkeypatch):
    """A folder plays the Hub: the same call loads from both."""
    import datasets

    make.cifar_hub(tmp_path / "hub", TRAIN, TEST)
    real, asked = datasets.load_dataset, []

    def load_dataset(name, **options):
        asked.append(name)
        return real(str(tmp_path / "hub" / name), **options)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    empty = tmp_path / "empty"
    with pytest.raises(BadInput, match="Three ways"):
        CIFAR10(root=empty).load()
    monkeypatch.setenv("PRISM_BENCH_NETWORK", "0")
    with pytest.raises(BadInput, match="Three ways"):
        CIFAR10(root=empty).load()
    assert asked == []
    first = CIFAR10(root=empty, allow_network=True).load()
    assert asked == ["uoft-cs/cifar10"] * 2, "once a split"
    same(CIFAR10(root=empty).load(), first)
    assert len(asked) == 2, "what was prepared once needs no network"
    same(CIFAR10(root=tmp_path / "hub", allow_network=True).load(), first)
    assert len(asked) == 2, "the root comes first"
    monkeypatch.setenv("PRISM_BENCH_NETWORK", "1")
    make.imdb_hub(tmp_path / "hub", REVIEWS[:4], REVIEWS[4:])
    assert len(IMDB(root=empty).load().train) == 6


def test_where_data_lies_is_no_part_of_a_runs_identity(tmp_path):
    tree = {"partition": "iid", "model": "resnet18", "algorithm": "prism"}
    here, there, other = (
        Run.resolve(tree | {"data": {"name": "imdb", **settings}}).identity
        for settings in ({}, {"root": str(tmp_path), "allow_network": True}, {"words": 10})
    )
    assert here == there != other


@pytest.mark.parametrize("address", ["hf://datasets/a/b/train.parquet", "https://example.org/train.parquet"])
def test_local_data_needs_no_network(tmp_path, address):
    """Whatever lies beside the files: a README may name any address as the data."""
    make.cifar_hub(tmp_path, TRAIN, TEST)
    config = f"configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {address}\n"
    (tmp_path / "uoft-cs/cifar10/README.md").write_text(f"---\n{config}---\n")
    code = """
import socket
def refuse(*a, **k): print("asked", a); raise AssertionError(f"network: {a}")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
from prism_bench.data.cifar10 import CIFAR10
print(len(CIFAR10().load().train))
"""
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    env |= {"PRISM_BENCH_DATA": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "10"


# The real thing


@real
def test_real_cifar10():
    data = CIFAR10(root=REAL).load()
    assert data.train.labels.bincount().tolist() == [5000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    # The numbers that everybody uses, in bytes: 0.4914, 0.4822, 0.4465 and 0.2470, 0.2435, 0.2616.
    assert [mean / 255 for mean in data.mean] == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert [std / 255 for std in data.std] == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)


@real
def test_real_femnist():
    data = FEMNIST(root=REAL).load()
    counts = pd.Series(data.owners).value_counts()
    assert len(data.train) + len(data.test) >= 63_942
    assert len(counts) >= 391
    assert counts.min() >= 45, "nine tenths of 50"
    assert len(data.train.labels.unique()) == 62
    # White paper: the corners are, and most of an image is.
    assert data.train.inputs[:, 0, 0, 0].float().mean() > 250
    assert data.train.inputs.median() == 255


@real
@pytest.mark.parametrize(("split", "sizes"), [("paper", (37_500, 12_500)), ("original", (25_000, 25_000))])
def test_real_imdb(split, sizes):
    data = IMDB(root=REAL, split=split).load()
    for part, size in zip((data.train, data.test), sizes, strict=True):
        assert part.labels.bincount().tolist() == [size // 2] * 2
        assert part.inputs.shape == (size, 500)
        # Left padding: once a word has come, no zero follows.
        assert not ((part.inputs[:, :-1] > 0) & (part.inputs[:, 1:] == 0)).any()
    # Numbered by falling frequency in the training part, none left out; what is cut off after 500 hardly counts.
    frequency = data.train.inputs.flatten().long().bincount(minlength=1001)[1:]
    assert len(frequency) == 1000
    assert frequency.min() > 0
    assert (frequency[:-20] > frequency[20:]).all()
