"""Data and partitions on the command line: what is printed, what is left behind, and what bad input says."""

from __future__ import annotations

import subprocess
import sys

import pytest
import raw_data as make
import yaml

from prism_bench.data import cache

TRAIN, TEST = make.cifar(10), make.cifar(4, seed=1)


@pytest.fixture
def root(tmp_path, monkeypatch):
    folder = tmp_path / "raw"
    make.cifar_hub(folder, TRAIN, TEST)
    monkeypatch.setenv("PRISM_BENCH_DATA", str(folder))
    return folder


def kept():
    return sorted((cache.home() / "prepared").glob("*"))


def test_list_prepare_check(root, here):
    code, before, _ = here("data", "list")
    assert code == 0
    # Without white space: a long path is folded.
    text = "".join(before.split())
    assert f"notyetprepared,from{root / 'uoft-cs/cifar10'}(theHub'slayout,2files)" in text
    assert text.count(f"notin{root}") == 3, "cifar100, femnist and imdb"

    code, printed, noted = here("data", "check", "cifar10")
    assert code == 0
    assert "not yet prepared: prism-bench data prepare cifar10" in printed
    assert "note: 14 samples, but the whole of CIFAR-10 has 60,000." in noted
    assert kept() == [], "check writes nothing"

    code, printed, _ = here("data", "prepare", "cifar10")
    assert code == 0
    assert "cifar10: 10 training and 4 test samples of 3×32×32, 10 classes" in printed
    (file,) = kept()
    assert str(file) in printed
    assert " prepared, from " in here("data", "list")[1]
    assert "kept and whole" in here("data", "check", "cifar10")[1]

    file.write_bytes(file.read_bytes()[:-1])
    code, _, printed = here("data", "check", "cifar10")
    assert code == 2
    assert f"{file}: is damaged" in printed


def test_settings_and_root_are_given_to_the_data(tmp_path, here):
    make.imdb_hub(tmp_path / "other", [(0, "bad film"), (1, "good film")], [(0, "awful film"), (1, "fine film")])
    code, printed, _ = here(
        "data", "prepare", "imdb", "--root", "other", "--set", "split=original", "--set", "words=7", "--set", "length=3"
    )
    assert code == 0
    assert "2 training and 2 test samples of 3, 2 classes, vocabulary 8" in printed


def test_data_without_files(here):
    for command in ("prepare", "check"):
        code, printed, _ = here("data", command, "digits")
        assert code == 0
        assert "digits: 1,347 training and 450 test samples of 1×8×8, 10 classes" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prepare", "cifar"], "NAME: there is no dataset called 'cifar'. Did you mean 'cifar10'?"),
        (["check", "imdb"], "data: IMDB is not in"),
        (["prepare", "imdb", "--set", "split=half"], "imdb.split: Input should be 'paper' or 'original' (got 'half')"),
        (["prepare", "imdb", "--set", "word=3"], "imdb.word: there is no such setting. Did you mean 'words'?"),
        (["prepare", "imdb", "--set", "words=40000"], "imdb.words: Input should be less than or equal to 32767"),
        (["prepare", "femnist", "--set", "test_share=1"], "femnist.test_share: Input should be less than 1"),
        (["prepare", "digits", "--allow-network"], "NAME: 'digits' needs no raw data"),
        (["prepare", "cifar10", "--root", "nowhere"], "nowhere, which is not a folder yet"),
    ],
)
def test_bad_input(root, here, arguments, message):
    code, _, printed = here("data", *arguments)
    assert code == 2, printed
    assert message in printed
    assert kept() == []


FILE = {
    "data": "cifar10",
    "partition": {"name": "iid", "clients": 5},
    "model": {"name": "resnet18", "width": 4, "blocks": [1]},
    "algorithm": "prism",
    "training": {"rounds": 1, "active": 2, "epochs": 1, "batch": 2},
    "capacity": {"keep": 0.5},
}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FILE))
    return tmp_path


def test_a_run_on_data_from_a_disk(root, file, here):
    code, printed, _ = here("run", "mine.yaml", "--out", "out")
    assert code == 0
    assert "out/table.csv" in printed
    assert len(kept()) == 1


def test_a_picture_of_a_partition(root, file, here):
    code, printed, _ = here("partition", "mine.yaml", "--out", "new/picture.png", "--seed", "3")
    assert code == 0
    assert "cifar10, iid clients=5, seed 3: 5 clients" in printed
    samples = next(line for line in printed.splitlines() if line.startswith("samples"))
    assert samples.split() == ["samples", "2", "2", "2"]
    assert (file / "new/picture.png").read_bytes().startswith(b"\x89PNG")
    assert here("partition", "mine.yaml")[0] == 0
    assert (file / "results/mine/partition.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.yaml", "--out", "picture.txt"], "--out picture.txt: needs a file that ends in .png, .pdf or .svg"),
        (["mine.yaml", "--out", "mine.yaml/x.png"], "mine.yaml is not a folder"),
        (["mine.yaml", "--set", "partition.clients=11"], "mine.yaml: partition.clients: 11 clients with at least one"),
        (["mine.yaml", "--set", "partition=writers"], "mine.yaml: partition.name: needs data that names its writers"),
        (["mine.yaml", "--set", "data=imdb"], "mine.yaml: data: IMDB is not in"),
        (["nothing"], "nothing: no experiment and no YAML file is called that"),
    ],
)
def test_bad_input_leaves_no_picture(root, file, here, arguments, message):
    code, _, printed = here("partition", *arguments)
    assert code == 2, printed
    assert message in printed
    assert sorted(path.name for path in file.iterdir()) == ["mine.yaml", "raw"]


@pytest.mark.parametrize("command", [["data", "--help"], ["data", "prepare", "--help"], ["partition", "--help"]])
def test_help_does_not_wait_for_torch(command):
    code = f"import sys; sys.argv = ['prism-bench', *{command}]\nfrom prism_bench.cli.app import app\n"
    code += "try: app()\nfinally: assert not {'torch', 'pandas', 'datasets'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
