"""What comes from outside: settings, names and labels that somebody else wrote."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pandas as pd
import pytest
import yaml
from frames import rounds_of, write_results
from test_cli import FILE, call, left_behind

from prism_bench.analysis.report.plots import drawn, plot
from prism_bench.base.errors import BadInput
from prism_bench.base.files import as_csv
from prism_bench.base.settings import Settings, validate
from prism_bench.base.trust import VARIABLE, allow, imported
from prism_bench.base.yaml_text import parse
from prism_bench.harness.results import Results


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FILE))
    return tmp_path


# Settings


def bomb(levels):
    """Nine times as many values per level, in one line each."""
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{'abcdefghijkl'[n]}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_aliases_that_multiply_are_refused_at_once():
    start = time.perf_counter()
    with pytest.raises(yaml.YAMLError, match="aliases make more than 100,000 values"):
        parse(bomb(9))
    assert time.perf_counter() - start < 1
    assert parse("a: &a {lr: 1}\nb: *a") == {"a": {"lr": 1}, "b": {"lr": 1}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("&a [*a]", "lists within lists"),
        ("[" * 100_000, "lists within lists"),
        ("[" * 32 + "]" * 32, "more than 30 lists within lists"),
        ("? [a]\n: b", "a key must be a word"),
        ("!!int ''", "IndexError"),
        ("!!float x", "could not convert"),
        ("!!timestamp x", "AttributeError"),
        ("9" * 5000, "Exceeds the limit"),
        (str(2**63), "a whole number is beyond"),
        ('"\\ud800"', "a character is no Unicode"),
    ],
)
def test_a_text_that_cant_be_read_is_said(text, says):
    with pytest.raises(yaml.YAMLError, match=says):
        parse(text)


def test_nothing_is_a_date():
    assert parse("2020-13-45") == "2020-13-45"


def test_an_error_shows_little_of_a_large_value():
    class Some(Settings):
        number: int

    with pytest.raises(BadInput) as error:
        validate(Some, {"number": [["x" * 10_000] * 1000] * 1000})
    assert len(str(error.value)) < 400


def test_a_grid_of_millions_is_no_silence(file, here):
    values = ",".join(f"0.{n:03}" for n in range(1, 60))
    arguments = [f"grid.training.{key}=[{values}]" for key in ("lr", "momentum", "decay", "clip")]
    code, _, printed = here("run", "mine.yaml", *(word for one in arguments for word in ("--set", one)))
    assert code == 2
    assert f"grid: it makes {59**4:,} runs, seeds included; more than 2,000 need --yes" in printed
    assert left_behind(file) == ["mine.yaml"]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("execution.threads=200000", "must be at most 1024"),
        ("data={name: noise, vocabulary: 100000}", "data.vocabulary: Input should be less than or equal to 32767"),
        ("training.rounds=2020-13-45", "training.rounds: Input should be a valid integer"),
        ("model.width=10000000", "mine.yaml: model: takes more memory than this machine has: Unable to allocate"),
        (f"model.width={2**62}", "mine.yaml: model: takes more memory than this machine has: Storage size"),
        (f"training.batch={2**62}", "mine.yaml: training.batch: takes more memory than this machine has: Storage size"),
        ("data={name: noise, train: 100000000000}", "mine.yaml: data: takes more memory than this machine has"),
        ("data={name: noise, shape: [100000, 100000, 100000]}", "mine.yaml: data: takes more memory than this"),
    ],
)
def test_numbers_that_nothing_can_carry_out(file, here, key, says):
    for command in ("run", "partition") if key.startswith("data=") else ("run",):
        code, _, printed = here(command, "mine.yaml", "--set", key)
        assert code == 2, printed
        assert says in printed
    assert left_behind(file) == ["mine.yaml"]


@pytest.mark.parametrize("arguments", [["run", "x" * 300 + ".yaml"], ["table", "x" * 5000], ["list", "x" * 300]])
def test_a_name_that_is_too_long_to_be_one(file, here, arguments):
    code, _, printed = here(*arguments)
    assert code == 2
    assert "name too long" in printed.lower()
    assert len(printed) < 400


def test_an_error_shows_little_of_a_long_word(file, here):
    for arguments in (["--seeds", "9" * 5000], ["--out", "/".join(["x" * 200] * 30)]):
        code, _, printed = here("run", "mine.yaml", *arguments)
        assert code == 2
        assert len(printed) < 800


# Names that would be imported


def test_a_name_is_imported_only_where_it_is_trusted(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(BadInput, match=r"data.loader: would import os.path and run its join.*--trust os.path:join"):
        imported("os.path:join", "data.loader")
    for name in ("os.path:join", "os.path", "os", " other , os"):
        monkeypatch.setenv(VARIABLE, name)
        assert imported("os.path:join", "data.loader") is os.path.join
    for name in ("os.pat", "os.path:joi", "path", "*"):
        monkeypatch.setenv(VARIABLE, name)
        with pytest.raises(BadInput, match="would import"):
            imported("os.path:join", "data.loader")
    allow(["os"])
    assert imported("os.path:join", "data.loader") is os.path.join
    with pytest.raises(BadInput, match="needs 'module:function'"):
        imported("os.path", "data.loader")


def test_a_file_cant_call_what_it_names(file, here, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    (file / "loaded.py").write_text("def load():\n    raise SystemError('it ran')\n")
    monkeypatch.syspath_prepend(file)
    code, _, printed = here("run", "mine.yaml", "--set", "data={name: fedml, loader: 'loaded:load'}")
    assert code == 2
    assert "data.loader: would import loaded and run its load" in printed
    assert "loaded" not in sys.modules
    arguments = ["mine.yaml", "--set", "data={name: fedml, loader: 'loaded:nothing'}", "--trust", "loaded"]
    code, _, printed = here("run", *arguments)
    assert code == 2
    assert "data.loader: 'loaded:nothing' can't be found" in printed


# Folders and files in the way


def long(folder):
    return "x" * 300, "a name of more than 255 bytes can't be written"


def loop(folder):
    (folder / "out").symlink_to("out")
    return "out", "Too many levels of symbolic links"


def dangling(folder):
    (folder / "out").symlink_to("nowhere")
    return "out", "out is not a folder"


def no_text(folder):
    return os.fsdecode(b"\xff\xfe"), "is no name in UTF-8"


def runs_a_file(folder):
    (folder / "out").mkdir()
    (folder / "out/runs").touch()
    return "out", "out/runs is no folder"


def table_a_folder(folder):
    (folder / "out/table.csv").mkdir(parents=True)
    return "out", "out/table.csv is a folder"


def done_a_folder(folder):
    (folder / "out/runs/a-b-c/done.json").mkdir(parents=True)
    return "out", "out/runs/a-b-c/done.json is a folder"


@pytest.mark.parametrize("make", [long, loop, dangling, no_text, runs_a_file, table_a_folder, done_a_folder])
def test_what_cant_be_written_is_known_before_anything_runs(file, here, make):
    name, says = make(file)
    before = sorted(file.rglob("*"))
    code, _, printed = here("run", "mine.yaml", "--out", name)
    assert code == 2, printed
    assert says in printed
    assert sorted(file.rglob("*")) == before


@pytest.mark.parametrize("run", ["{}", "1", '{"folder": 1, "label": 1, "labels": 1}'])
def test_a_manifest_that_says_too_little(tmp_path, run):
    (tmp_path / "experiment.json").write_text(f'{{"runs": [{run}]}}')
    with pytest.raises(BadInput, match=r"experiment.json: can't be read as an experiment's manifest"):
        Results.open(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "mine.yaml", "--timeout", "nan"], "--timeout nan: needs a number of seconds"),
        (["costs", "--model", "smallcnn", "--batch", "9" * 30], "is not in the range"),
    ],
)
def test_numbers_of_options(file, here, arguments, says):
    code, _, printed = here(*arguments)
    assert code == 2
    assert says in printed


def test_a_file_where_a_runs_folder_must_be(file, here):
    assert here("run", "mine.yaml", "--set", "training.rounds=1")[0] == 0
    [folder] = (file / "results/mine/runs").iterdir()
    shutil.rmtree(folder)
    folder.touch()
    code, _, printed = here("run", "mine.yaml", "--set", "training.rounds=1")
    assert code == 2
    assert folder.name in printed


def test_a_text_among_accuracies(tmp_path):
    rounds = rounds_of(("prism", "0.2", 0, [50, 60])).astype({"accuracy": object})
    rounds.loc[0, "accuracy"] = "much"
    with pytest.raises(BadInput, match=r"rounds.csv: column 'accuracy' holds a text where numbers belong"):
        Results.open(write_results(tmp_path, rounds)).runs()


# What is shown and written


def test_a_spreadsheet_carries_nothing_out():
    frame = pd.DataFrame({"algorithm": ["=1+1", "+x", "@a", "-b", "-0.5", "+1e-3", "prism"], "value": [-1.0] * 7})
    first = [line.partition(",")[0] for line in as_csv(frame).splitlines()]
    assert first == ["algorithm", "'=1+1", "'+x", "'@a", "'-b", "-0.5", "+1e-3", "prism"]
    assert "-1.0" in as_csv(frame)


def test_a_terminal_obeys_nobody(file):
    """What a plugin says, and brackets in a path, are shown as they are."""
    (file / "a[b]").mkdir()
    (file / "evil.py").write_text(
        "from prism_bench.plugin import Algorithm\n"
        "class Evil(Algorithm):\n"
        "    def select(self, round, cohort):\n"
        "        raise ValueError('\\x1b[31mred\\x07 [bold]markup')\n"
        "import prism_bench.cli.app as app, sys\n"
        "from prism_bench.harness import experiment\n"
        "if __name__ == '__main__':\n"
        "    load = experiment.Experiment.load.__func__\n"
        "    change = lambda cls, file, given, *a, **k: load(cls, file, given | {'algorithm': Evil}, *a, **k)\n"
        "    experiment.Experiment.load = classmethod(change)\n"
        "    sys.argv = ['prism-bench', 'run', 'mine.yaml', '--out', 'a[b]/c']\n"
        "    app.main()\n"
    )
    done = subprocess.run([sys.executable, "evil.py"], cwd=file, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert "\x07" not in done.stderr + done.stdout
    assert r"\x1b[31mred\x07 [bold]markup" in done.stderr


def test_a_dollar_in_a_label_is_one():
    frame = rounds_of(("prism", "0.2", 0, [50, 60]), variant="scale=$x^{$")
    assert drawn(plot(frame, "curves"), "png")


def test_sigterm_is_143(file):
    code = "import os, signal, sys, prism_bench.cli.app as app\n"
    code += "app.app.commands['list'].callback = lambda name: os.kill(os.getpid(), signal.SIGTERM)\n"
    code += "sys.argv = ['prism-bench', 'list']\napp.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=file, capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    assert "Traceback" not in done.stderr


def test_brackets_in_a_path(file):
    done = call("run", "mine.yaml", "--set", "training.rounds=1", "--out", "a[red]b", cwd=file)
    assert done.returncode == 0, done.stderr
    assert "a[red]b/table.csv" in done.stdout
