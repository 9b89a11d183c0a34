"""Pictures: what is in the axes, not how many bytes a file has."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from frames import features_of, rank_of, rounds_of, sampling_of, write_results
from hypothesis import given
from hypothesis import strategies as st

from prism_bench.analysis.report import plot, write_pictures
from prism_bench.analysis.report.plots import PALETTE, REFERENCE
from prism_bench.base.errors import BadInput
from prism_bench.harness.results import Results, summarise
from prism_bench.views.costs import pareto

ROUNDS = rounds_of(
    *(("fedavg", "1", seed, [50 + seed, math.nan, 90]) for seed in (0, 1)),
    *((name, keep, seed, [40 + seed, math.nan, 80 + seed]) for name in ("prism", "orthdrop") for keep in ("0.2", "0.4")
      for seed in (0, 1)),
)  # fmt: skip


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_curves_have_a_line_a_method_in_a_panel_a_keep_ratio():
    figure = plot(ROUNDS, "curves")
    assert [axes.get_title() for axes in figure.axes] == ["keep ratio 0.2", "keep ratio 0.4"]
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["fedavg", "prism", "orthdrop"]
        # Round 2 was not evaluated; the mean of two seeds.
        assert axes.lines[1].get_xydata().tolist() == [[1, 40.5], [3, 80.5]]
        assert len(axes.collections) == 3, "a band each"
    assert labels(figure) == ["fedavg", "prism", "orthdrop"]


def test_curves_of_several_partitions_are_apart():
    both = pd.concat([ROUNDS.assign(partition="iid"), ROUNDS.assign(partition="skewed")])
    titles = [axes.get_title() for axes in plot(both, "curves").axes]
    assert titles == ["iid, keep ratio 0.2", "skewed, keep ratio 0.2", "iid, keep ratio 0.4", "skewed, keep ratio 0.4"]


def test_one_run_has_a_line_and_no_band():
    [axes] = plot(rounds_of(("prism", "0.2", 0, [50, 60])), "curves").axes
    assert len(axes.lines) == 1
    assert len(axes.collections) == 0


def test_drops_have_a_bar_a_method_and_keep_ratio():
    figure = plot(ROUNDS, "drops")
    [axes] = figure.axes
    heights = [bar.get_height() for container in axes.containers for bar in getattr(container, "patches", [])]
    assert heights == [-9.5] * 4, "90 is full-model training's; 80 and 81 are theirs"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.2", "0.4"]
    assert labels(figure) == ["prism", "orthdrop"]


def test_drops_stand_by_what_differs():
    epochs = [
        ROUNDS.assign(settings=f"training.rounds={60 // n} training.epochs={n}", run=ROUNDS["run"] + str(n))
        for n in (1, 2)
    ]
    one = pd.concat(frame[frame["keep"] != "0.4"] for frame in epochs)
    [axes] = plot(one, "drops").axes
    assert axes.get_xlabel() == "settings"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        "training.rounds=60\ntraining.epochs=1", "training.rounds=30\ntraining.epochs=2",
    ]  # fmt: skip
    assert plot(pd.concat(epochs), "drops").axes[0].get_xlabel() == "keep ratio, settings"


def test_drops_show_the_papers_where_there_are_any():
    runs = summarise(ROUNDS).assign(paper_drop=-3.0)
    figure = plot(runs, "drops")
    assert labels(figure)[-1] == "paper"
    assert {y for line in figure.axes[0].lines if line.get_marker() == "D" for y in line.get_ydata()} == {-3.0}


def test_costs_have_four_panels_and_the_front():
    rounds = ROUNDS.copy()
    rounds.loc[rounds["algorithm"] == "orthdrop", "macs"] = 50
    figure = plot(rounds, "costs")
    assert len(figure.axes) == 4
    parameters, macs, *_ = figure.axes
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        assert sum(line.get_marker() in "os^" for line in axes.lines) >= 5, "a point a cell"
    # Those that cut are equally accurate: the cheapest of them is on the front, and full-model training.
    assert parameters.lines[0].get_xydata().tolist() == [[10, 80.5], [100, 90]]
    assert macs.lines[0].get_xydata().tolist() == [[20, 80.5], [100, 90]]
    assert labels(figure) == ["fedavg", "prism", "orthdrop", "keep 1", "keep 0.2", "keep 0.4", "Pareto front"]


def test_time_has_a_bar_a_cell_and_the_papers_once():
    runs = summarise(ROUNDS).assign(paper_seconds_train=9.0, paper_seconds_merge=1.0)
    [axes] = plot(runs, "time").axes
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == ["fedavg 1", "paper: fedavg 1", "prism 0.2", "prism 0.4", "orthdrop 0.2", "orthdrop 0.4"]
    assert len(axes.patches) == 4 * len(names)
    shares = [bar.get_width() for bar in axes.patches]
    assert shares[:4] == pytest.approx([10, 80, 5, 5])
    assert shares[4:8] == pytest.approx([0, 90, 10, 0])


def test_rank_has_a_panel_a_layer_size_and_a_line_a_layer():
    small, large = plot(rank_of(), "rank").axes
    assert [line.get_label() for line in small.lines] == ["a", "b"]
    assert [line.get_label() for line in large.lines] == ["c"]
    assert small.lines[0].get_xydata().tolist() == [[1, 8.5], [2, 4.5], [3, 8 / 3 + 0.5]]


def test_sampling_is_the_mean_over_rounds_and_seeds():
    small, large = plot(sampling_of(), "sampling").axes
    assert small.lines[0].get_ydata().tolist() == list(range(8, 0, -1))
    assert large.lines[0].get_xdata().tolist() == list(range(16))


def test_parts_are_dashed_beside_their_full_model(tmp_path):
    folder = write_results(tmp_path / "x", ROUNDS, shows=["parts"])
    rounds = Results.open(folder).rounds()
    rounds.drop(columns="accuracy_full").assign(client=0, accuracy=7.0).to_csv(folder / "parts.csv", index=False)
    first, *_ = plot(Results.open(folder), "parts").axes
    assert {line.get_linestyle() for line in first.lines} == {"-", "--"}
    assert {tuple(set(line.get_ydata())) for line in first.lines if line.get_linestyle() == "--"} == {(7.0,)}


def test_features_are_a_grid_with_the_input_first():
    figure = plot(features_of(), "features")
    assert len(figure.axes) == 2 * 4
    assert [axes.get_title() for axes in figure.axes[:4]] == ["input", "kernel 1", "kernel 2", "kernel 3"]
    assert all(len(axes.images) == 1 for axes in figure.axes)
    assert figure.axes[2].images[0].get_array().tolist() == [[x + y for x in range(4)] for y in range(4)]


def colours(figure):
    return {line.get_label(): line.get_color() for axes in figure.axes for line in axes.lines}


def test_a_method_has_the_same_colour_wherever_it_is_drawn():
    variant = rounds_of(("prism", "0.2", 0, [70]), variant="channels=all")
    every = colours(plot(pd.concat([ROUNDS, variant]), "curves"))
    alone = colours(plot(ROUNDS[ROUNDS["algorithm"] == "prism"], "curves"))
    assert alone["prism"] == every["prism"]
    assert every["fedavg"] == REFERENCE
    assert len(set(every.values())) == len(every) == 4
    assert set(every.values()) - {REFERENCE} <= set(PALETTE)


def test_what_there_is_nothing_for():
    with pytest.raises(BadInput, match="drops: no run has full-model training"):
        plot(rounds_of(("prism", "0.2", 0, [50])), "drops")
    with pytest.raises(BadInput, match="costs: all cells cost the same"):
        plot(rounds_of(("prism", "0.2", 0, [50])), "costs")
    with pytest.raises(BadInput, match="rank: the results have nothing of the kind"):
        plot(pd.DataFrame(), "rank")
    with pytest.raises(BadInput, match=r"pie: there is no such picture. .*Known: clients, costs, curves, drops"):
        plot(ROUNDS, "pie")


def test_pictures_are_those_that_the_experiment_is_about(tmp_path):
    folder = write_results(tmp_path / "x", ROUNDS, shows=["costs", "rank"])
    rank_of().to_csv(folder / "rank.csv", index=False)
    files = write_pictures(Results.open(folder), tmp_path / "out", form="svg")
    assert [file.name for file in files] == ["rank.svg"], "nothing was trained for its accuracy: none against costs"
    again = write_pictures(Results.open(folder), tmp_path / "again", form="svg")
    assert files[0].read_bytes() == again[0].read_bytes()
    for form in ("png", "pdf"):
        [file] = write_pictures(Results.open(folder), tmp_path, ["curves"], form)
        assert file.read_bytes()[:4] in (b"\x89PNG", b"%PDF")


points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20)


@given(points)
def test_the_front_is_what_nothing_beats(points):
    """No other point is at most as costly and at least as accurate, and better in one of the two."""
    front = [points[i] for i in pareto([c for c, _ in points], [a for _, a in points])]
    beaten = {
        (c, a)
        for c, a in points
        for cost, accuracy in points
        if cost <= c and accuracy >= a and (cost, accuracy) != (c, a)
    }
    assert front == sorted(set(points) - beaten)


def test_the_front_leaves_out_what_is_not_known():
    assert pareto([1, math.nan, 2], [math.nan, 90, 80]) == [2]
