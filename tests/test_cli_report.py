"""``prism-bench table``, ``plot`` and ``report`` as a person uses them."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pandas as pd
import pytest
from frames import rounds_of, write_results

from prism_bench.analysis.report import table

ROUNDS = rounds_of(
    ("fedavg", "1", 0, [70, 92]), ("fedavg", "1", 1, [70, 90]),
    ("prism", "0.2", 0, [60, 90]), ("prism", "0.2", 1, [60, 89]),
    ("orthdrop", "0.2", 0, [50, 85]), ("orthdrop", "0.2", 1, [50, 85]),
)  # fmt: skip


@pytest.fixture
def small(tmp_path):
    return write_results(tmp_path / "results" / "small", ROUNDS)


def test_the_table(small, here):
    code, printed, progress = here("table", "small")
    assert code == 0
    assert printed.startswith("small: by hand\n")
    assert "89.5 ± 0.7 (2)  -1.5" in printed
    assert progress == ""


def test_csv_has_full_numbers(small, here):
    code, printed, _ = here("table", "small", "--format", "csv")
    assert code == 0
    again, expected = pd.read_csv(io.StringIO(printed)), table(ROUNDS)
    assert list(again) == list(expected)
    assert again["std"].tolist() == expected["std"].tolist()
    assert again["drop_std"].tolist()[1:] == expected["drop_std"].tolist()[1:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "markdown"], "| prism | 0.2 | **89.5 ± 0.7 (2)** | -1.5 |"),
        (["--format", "latex"], "prism & 0.2 & \\textbf{89.5 $\\pm$ 0.7 (2)} & $-$1.5 &"),
        (["--format", "markdown", "--digits", "2"], "**89.50 ± 0.71 (2)**"),
        (["--show", "drops", "--format", "markdown"], "| prism | **89.5 ± 0.7 (2)** | -1.5 ± 0.7 (2) |"),
        (["--show", "costs"], "10 10%"),
        (["--show", "time"], "0.4 s 80%"),
        (["--against", "prism"], "-4.5 ± 0.7 (2)"),
        (["--against", "full"], "-6.0 ± 1.4 (2)"),
        (["--wide", "--format", "markdown"], "| prism |  | **89.5 ± 0.7 (2)** |"),
        (["--wide", "--format", "csv"], "algorithm,variant,settings,\"p, 1\",\"p, 1, std\""),
    ],
)  # fmt: skip
def test_what_can_be_asked_for(small, here, arguments, words):
    code, printed, _ = here("table", "small", *arguments)
    assert code == 0
    assert words in printed


def test_the_papers_values_on_demand(tmp_path, here):
    paper = {"prism": {"paper_accuracy": 90.0, "paper_std": 0.25, "paper_source": "Table 3"}}
    write_results(tmp_path / "results" / "small", ROUNDS, paper)
    assert "Table 3" not in here("table", "small")[1]
    printed = here("table", "small", "--paper")[1]
    assert "90.0 ± 0.2        -0.5" in printed
    assert "as printed (Table 3)" in printed
    write_results(tmp_path / "results" / "without", ROUNDS)
    assert "The paper has no values for this experiment." in here("table", "without", "--paper")[2]


def test_to_a_file(small, here, tmp_path):
    for form in ("text", "csv", "markdown", "latex"):
        code, printed, _ = here("table", "small", "--format", form, "--to", f"deep/table.{form}")
        assert (code, printed) == (0, "")
    assert "89.5 ± 0.7 (2)" in (tmp_path / "deep" / "table.text").read_text("utf-8")
    assert sorted(file.name for file in (tmp_path / "deep").iterdir()) == [
        "table.csv", "table.latex", "table.markdown", "table.text",
    ]  # fmt: skip
    code, _, printed = here("table", "small", "--to", "deep")
    assert code == 2
    assert "deep: can't be written: Is a directory" in printed


def test_unfinished_runs_are_said_and_left_out(tmp_path, here):
    write_results(tmp_path / "results" / "small", ROUNDS, missing=["splitmix at 0.2, seed 0"])
    code, printed, progress = here("table", "small")
    assert code == 0
    assert progress == "6 of 7 runs are done: prism-bench run small goes on.\n"
    assert "splitmix" not in printed


def test_no_finished_run_is_an_error(tmp_path, here):
    write_results(tmp_path / "results" / "small", ROUNDS[:0], missing=["prism at 0.2, seed 0"])
    for command in ("table", "plot"):
        code, _, printed = here(command, "small")
        assert code == 2
        assert "results/small: no run is finished yet. 'prism-bench run small' goes on." in printed


def test_where_results_are_looked_for(tmp_path, here):
    for name in ("a-scaled", "a-paper", "b"):
        write_results(tmp_path / "results" / name, ROUNDS, description=name)
    write_results(tmp_path / "elsewhere", ROUNDS, description="elsewhere")
    assert ": a-scaled\n" in here("table", "a")[1]
    assert ": a-paper\n" in here("table", "a", "--size", "paper")[1]
    assert ": b\n" in here("table", "b.yaml")[1]
    assert ": b\n" in here("table", "results/b")[1]
    assert ": elsewhere\n" in here("table", "a", "--out", "elsewhere")[1]
    code, _, printed = here("table", "c")
    assert code == 2
    assert "c: there are no results of it; looked in results/c, results/c-scaled, results/c-paper. " in printed
    assert "There are: a-paper, a-scaled, b." in printed
    code, _, printed = here("table", "a", "--out", "nowhere")
    assert code == 2
    assert "nowhere: holds no results" in printed


def test_where_there_is_nothing_at_all(here):
    assert "'prism-bench run quickstart' makes some." in here("table")[2]
    code, _, printed = here("report")
    assert code == 2
    assert "There are no results in ./results. 'prism-bench run' makes some." in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "small", "--against", "prims"], "against prims: the results have no such method. Did you mean"),
        (["table", "small", "--against", "prism", "--wide"], "--against: is a table of its own"),
        (["table", "small", "--wide", "--show", "time"], "--wide: is for accuracies, not for time."),
        (["table", "small", "--show", "cost"], "--show cost: there is no such table. Did you mean 'costs'?"),
        (["table", "small", "--show", "rank"], "there is no such table. Known: accuracy, clients, costs, drops"),
        (["plot", "small", "--show", "curve"], "--show curve: there is no such picture. Did you mean 'curves'?"),
        (["table", "tiny", "--size", "papper"], "--size papper: there is no such size. Did you mean 'paper'?"),
        (["table", "small", "--format", "word"], "'word' is not one of"),
        (["plot", "small", "--show", "rank"], "rank: the results have nothing of the kind."),
        (["report", "small", "nothere"], "nothere: there are no results of it"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(small, here, arguments, message):
    code, _, printed = here(*arguments)
    assert code == 2
    assert message in " ".join(printed.replace("│", " ").split())
    assert sorted(file.name for file in small.iterdir()) == ["experiment.json", "rounds.csv"]


def test_nothing_to_compare_with(tmp_path, here):
    write_results(tmp_path / "results" / "small", ROUNDS[ROUNDS["algorithm"] == "prism"])
    code, _, printed = here("table", "small", "--against", "prism")
    assert code == 2
    assert "--against prism: the results have no other method to compare with it." in printed


def test_damaged_rounds_are_named(small, here):
    (small / "rounds.csv").write_text("")
    code, _, printed = here("table", "small")
    assert code == 2
    assert "results/small/rounds.csv: can't be read" in printed


def test_plot_writes_what_the_experiment_is_about(small, here, tmp_path):
    code, printed, _ = here("plot", "small")
    assert code == 0
    assert printed.split() == [f"results/small/{kind}.png" for kind in ("curves", "drops", "costs")]
    code, printed, _ = here("plot", "small", "--show", "time", "--show", "drops", "--format", "svg", "--to", "figures")
    assert code == 0
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == ["drops.svg", "time.svg"]


@pytest.mark.parametrize(("command", "names"), [
    ("table", ("accuracy", "clients", "drops", "costs", "time")),
    ("plot", ("clients", "curves", "drops", "costs", "time", "rank", "sampling", "features", "parts")),
])  # fmt: skip
def test_every_view_and_picture_can_be_asked_for(here, command, names):
    code, printed, _ = here(command, "--help")
    assert code == 0
    code, _, error = here(command, "--show", "nothing")
    assert code == 2
    assert f"Known: {', '.join(sorted(names))}." in error
    for name in names:
        assert name in printed, name


def test_none_of_it_waits_for_torch(small, tmp_path):
    for command in (["table", "small"], ["plot", "small"], ["report", "small"]):
        code = f"import sys; sys.argv = {['prism-bench', *command]}\nfrom prism_bench.cli import main\n"
        code += "try: main()\nfinally: assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_rounds_of_another_kind_are_named(small, here):
    (small / "rounds.csv").write_text("a,b\n1,2\n")
    code, _, printed = here("table", "small")
    assert code == 2
    assert "results/small/rounds.csv: has no column 'run'" in printed


def test_rows_of_runs_that_are_not_the_experiments_dont_count(small, here):
    """A rounds.csv that an earlier start about something else left."""
    more = rounds_of(("origdrop", "0.2", 0, [50, 99]))
    pd.concat([ROUNDS, more]).to_csv(small / "rounds.csv", index=False)
    assert "origdrop" not in here("table", "small")[1]


def test_an_experiments_file_is_found_by_the_name_in_it(small, tmp_path, here):
    (tmp_path / "mine.yaml").write_text("name: small\ndata: digits\n")
    assert here("table", "mine.yaml")[0] == 0


def test_what_was_scaled_stands_under_the_table(tmp_path, here):
    write_results(tmp_path / "results" / "x-scaled", ROUNDS, size="scaled", note="A third of the rounds.")
    for form in ("text", "markdown", "latex"):
        assert "Scaled: A third of the rounds." in " ".join(here("table", "x", "--format", form)[1].split())


def test_the_papers_drops_follow_from_its_accuracies(tmp_path, here):
    paper = {"fedavg": {"paper_accuracy": 92.0}, "prism": {"paper_accuracy": 90.5}}
    write_results(tmp_path / "results" / "x", ROUNDS, paper)
    code, printed, _ = here("table", "x", "--paper", "--show", "drops", "--format", "csv")
    assert code == 0
    frame = pd.read_csv(io.StringIO(printed)).set_index("algorithm")
    assert frame.loc["prism", ["drop", "paper_drop", "paper_drop_difference"]].tolist() == [-1.5, -1.5, 0]


def test_one_bad_folder_is_no_reason_for_no_page(small, tmp_path, here):
    (tmp_path / "results" / "bad").mkdir()
    (tmp_path / "results" / "bad" / "experiment.json").write_text("{")
    with pytest.warns(UserWarning, match=r"left out: results/bad/experiment\.json: can't be read"):
        code, _, _ = here("report")
    assert code == 0
    assert "by hand" in (tmp_path / "report.html").read_text()
    assert here("report", "bad")[0] == 2


def test_a_pipe_that_cant_say_plus_minus(small, tmp_path):
    command = [sys.executable, "-m", "prism_bench", "table", "small"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "89.5" in done.stdout
