"""Tables: means, spreads and paired differences by hand, and the same sheet in every format."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from frames import rounds_of

from prism_bench.analysis.report import differences, rendering, table
from prism_bench.analysis.report.cells import Form
from prism_bench.base.errors import BadInput
from prism_bench.views import accuracy


def test_the_table_by_hand():
    rounds = rounds_of(("prism", "0.2", 0, [50, 90, 80]), ("prism", "0.2", 1, [40, 60, 84]), ("fedavg", "1", 0, [70]))
    result = table(rounds)
    assert result["algorithm"].tolist() == ["prism", "fedavg"], "in the order of the runs"
    prism, fedavg = result.iloc[0], result.iloc[1]
    assert prism["accuracy"] == 82
    assert prism["std"] == pytest.approx(2.828427)
    assert prism["n"] == 2
    assert prism["best"] == 87
    assert prism["accuracy_full"] == 81
    assert prism["seconds"] == 3
    assert (prism["macs"], prism["macs_%"]) == (20, 20)
    assert pd.isna(fedavg["std"])


def test_the_table_of_a_csv_is_the_same(tmp_path):
    rounds = rounds_of(("prism", "0.2", 0, [50, 90, 80]), ("fedavg", "1", 0, [70]))
    rounds.to_csv(tmp_path / "rounds.csv", index=False)
    again = table(pd.read_csv(tmp_path / "rounds.csv"))
    pd.testing.assert_frame_equal(again.drop(columns="keep"), table(rounds).drop(columns="keep"), check_dtype=False)


def test_drops_are_paired_by_seed():
    rounds = rounds_of(
        ("fedavg", "1", 0, [90]), ("fedavg", "1", 1, [80]), ("fedavg", "1", 3, [10]),
        ("prism", "0.2", 0, [88]), ("prism", "0.2", 1, [72]), ("prism", "0.2", 2, [99]),
    )  # fmt: skip
    fedavg, prism = table(rounds).to_dict("records")
    # Seeds 0 and 1 have both: -2 and -8. Seed 2 has no reference, seed 3 nothing to compare.
    assert (prism["drop"], prism["drop_n"]) == (-5, 2)
    assert prism["drop_std"] == pytest.approx(math.sqrt(18))
    assert prism["n"] == 3
    assert pd.isna(fedavg["drop"])
    assert fedavg["drop_n"] == 0


def test_a_run_without_accuracy_makes_no_pair():
    rounds = rounds_of(("fedavg", "1", 0, [90]), ("fedavg", "1", 1, [80]), ("prism", "0.2", 0, [math.nan]),
                       ("prism", "0.2", 1, [70, math.nan]))  # fmt: skip
    prism = table(rounds).iloc[1]
    assert (prism["accuracy"], prism["n"]) == (70, 1), "the last round that was evaluated"
    assert (prism["drop"], prism["drop_n"]) == (-10, 1)
    assert pd.isna(prism["drop_std"])


def test_drops_need_the_same_context():
    rounds = pd.concat(
        [rounds_of(("fedavg", "1", 0, [90]), partition="iid"), rounds_of(("prism", "0.2", 0, [80]), partition="skewed")]
    )
    assert table(rounds)["drop"].isna().all()


def test_without_a_reference_nothing_is_claimed():
    rounds = rounds_of(("prism", "0.2", 0, [80])).drop(columns="cuts")
    assert table(rounds)["drop"].isna().all()
    with pytest.raises(BadInput, match="no run trains the full model"):
        differences(rounds)


PAIRS = (
    ("fedavg", "1", 0, [90]), ("fedavg", "1", 1, [80]),
    ("prism", "0.2", 0, [80]), ("prism", "0.2", 1, [70]), ("prism", "0.4", 0, [85]),
    ("orthdrop", "0.2", 0, [81]), ("orthdrop", "0.2", 1, [67]), ("orthdrop", "0.4", 1, [60]),
)  # fmt: skip


def test_differences_against_a_method_are_at_equal_keep_ratios():
    result = differences(rounds_of(*PAIRS), "prism")
    assert result[["algorithm", "keep", "against", "difference", "n"]].values.tolist()[0] == [
        "orthdrop", "0.2", "prism", -1, 2,
    ]  # fmt: skip
    assert result["std"][0] == pytest.approx(math.sqrt(8))
    # At 0.4 the two share no seed; full-model training has no such keep ratio.
    assert (result["keep"][1], result["n"][1]) == ("0.4", 0)
    assert pd.isna(result["difference"][1])
    assert len(result) == 2


def test_differences_against_full_model_training_at_any_keep_ratio():
    for against in (None, "fedavg"):
        result = differences(rounds_of(*PAIRS), against)
        assert result["difference"].tolist() == [-10, -5, -11, -20]
        assert result["n"].tolist() == [2, 1, 2, 1]
        assert set(result["against"]) == {"fedavg"}


def test_a_variant_is_a_method_of_its_own():
    plain = rounds_of(("prism", "0.2", 0, [80]), ("orthdrop", "0.2", 0, [81]))
    rounds = pd.concat([plain, rounds_of(("prism", "0.2", 0, [84]), variant="channels=all")])
    assert differences(rounds, "prism")["difference"].tolist() == [1, 4]
    assert differences(rounds, "prism channels=all")["difference"].tolist() == [-4, -3]
    with pytest.raises(BadInput, match=r"against prims: the results have no such method. Did you mean 'prism'\?"):
        differences(rounds, "prims")
    only = rounds[rounds["variant"] != ""]
    more = pd.concat([only, rounds_of(("prism", "0.2", 0, [84]), variant="kappa=4")])
    with pytest.raises(BadInput, match=r"against prism: there are 2 of it. One of: prism channels=all, prism kappa=4"):
        differences(more, "prism")
    assert len(differences(only, "prism")) == 0


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_table_fits_the_terminal(width):
    from rich.console import Console

    rounds = rounds_of(("prism", "0.2", 0, [50, 90]), ("prism", "0.2", 1, [40, 60]), ("fedavg", "1", 0, [70]))
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rendering.text(accuracy.sheet(table(rounds), Form("title")), width))
    text = console.export_text()
    assert "75.0" in text
    assert "± 21.2 (2)" in text
    assert "…" not in text, "nothing cut off"
    assert ("20%" in text) or "No room here for the last" in " ".join(text.split())
