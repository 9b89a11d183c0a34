"""``algorithm: all``: every registered algorithm, from a file, the command line and Python."""

from __future__ import annotations

import warnings

import pytest
import torch
import yaml

import prism_bench
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.base.settings import Settings
from prism_bench.core.algorithm import Algorithm
from prism_bench.harness.experiment import Experiment
from prism_bench.testing import federation

TREE = {
    "data": "digits",
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "smallcnn", "width": 6},
    "training": {"rounds": 1, "active": 2, "epochs": 1, "batch": 64},
    "capacity": {"keep": 0.5},
}
EVERY = list(registry.find("algorithms"))


def names(tree, overrides=None):
    return [run.algorithm.name for run in Experiment.load(tree, overrides).runs]


@pytest.mark.parametrize(
    ("tree", "overrides"),
    [
        (TREE | {"algorithm": "all"}, {}),
        (TREE | {"grid": {"algorithm": "all"}}, {}),
        (TREE | {"grid": {"algorithm": ["prism", "all"]}}, {}),
        (TREE | {"algorithm": "prism"}, {"algorithm": "all"}),
        (TREE, {"algorithm": ["all"]}),
        (TREE | {"grid": {"algorithm": ["prism", "fedavg"]}}, {"grid.algorithm": "all"}),
    ],
)
def test_it_is_every_registered_algorithm_once(tree, overrides):
    found = Experiment.load(tree, overrides)
    assert sorted(run.algorithm.name for run in found.runs) == EVERY
    assert found.every


def test_others_may_stand_beside_it():
    variant = {"name": "prism", "channels": "all"}
    found = Experiment.load(TREE | {"grid": {"algorithm": ["all", variant]}})
    assert len(found.runs) == len(EVERY) + 1
    assert found.runs[-1].algorithm.label == "prism channels=all"


def test_a_setting_goes_to_those_that_have_it():
    runs = Experiment.load(TREE, {"algorithm": "all", "algorithm.scaling": True}).runs
    given = {run.algorithm.name: run.algorithm.settings.model_dump().get("scaling") for run in runs}
    assert given["origdrop"] is given["splitmix"] is True
    assert given["fedavg"] is given["fedrolex"] is None


def test_what_is_given_last_counts():
    found = Experiment.load(TREE | {"algorithm": "all"}, {"algorithm": "prism"})
    assert [run.algorithm.name for run in found.runs] == ["prism"]
    assert not found.every


def test_a_name_that_there_is_not_is_an_error_beside_it():
    with pytest.raises(BadInput, match="there is no algorithm called 'prisn'"):
        Experiment.load(TREE | {"grid": {"algorithm": ["all", "prisn"]}})


def test_what_can_not_work_is_named_and_left_out_from_python():
    """SplitMix's atom is larger than this keep ratio; the others can work with it."""
    with pytest.warns(UserWarning, match="splitmix is left out: algorithm.atom: a client with keep ratio 0.01") as told:
        rounds = prism_bench.run(TREE | {"capacity": {"keep": 0.01}}, overrides={"algorithm": "all"})
    left_out = {str(one.message).split()[0] for one in told if "is left out" in str(one.message)}
    assert {"splitmix"} <= left_out
    assert sorted(rounds["algorithm"]) == sorted(set(EVERY) - left_out)


def test_asked_for_by_name_it_is_an_error():
    with pytest.raises(BadInput, match=r"algorithm\.atom: a client with keep ratio 0\.01"):
        prism_bench.run(TREE | {"capacity": {"keep": 0.01}}, overrides={"grid.algorithm": ["fedavg", "splitmix"]})


def test_where_none_can_work_the_reason_is_an_error(tmp_path, here):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TREE | {"partition": {"name": "iid", "clients": 2000}}))
    code, _, printed = here("run", "mine.yaml", "--set", "algorithm=all", "--out", "out")
    assert code == 2
    assert "mine.yaml: partition.clients: 2000 clients" in printed
    assert "left out" not in printed
    assert not (tmp_path / "out").exists()


def test_on_the_command_line(tmp_path, here):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TREE | {"capacity": {"keep": 0.01}}))
    code, printed, noted = here("run", "mine.yaml", "--set", "algorithm=all", "--out", "out")
    assert code == 0
    assert "splitmix is left out: " in noted
    assert "fedrolex" in printed
    assert "splitmix" not in printed
    assert "every method there is" in " ".join(here("run", "--help")[1].replace("│", " ").split())


def test_a_plugin_that_can_not_be_loaded_or_needs_a_setting_is_left_out(monkeypatch):
    class Needy(Algorithm):
        """Needs to be told something."""

        class Params(Settings):
            told: int

        def select(self, round, cohort):
            raise NotImplementedError

    load, find = registry.load, registry.find

    def found(group):
        return {**find(group), "broken": None, "needy": None} if group == "algorithms" else find(group)

    def loaded(group, name, where):
        if name == "broken":
            raise BadInput(f"{where}: 'broken' can't be loaded")
        return Needy if name == "needy" else load(group, name, where)

    monkeypatch.setattr(registry, "find", found)
    monkeypatch.setattr(registry, "load", loaded)
    with pytest.warns(UserWarning, match="left out") as told:
        assert sorted(names(TREE, {"algorithm": "all"})) == EVERY
    said = [str(one.message) for one in told]
    assert any(text.startswith("broken is left out: algorithm.name: 'broken' can't be loaded") for text in said)
    assert any(text.startswith("needy is left out: algorithm.told: ") for text in said)


@pytest.mark.parametrize("algorithm", EVERY)
def test_every_method_learns(algorithm):
    """In half of the quickstart: one that moves its weights, and is far from what the others reach, is seen here."""
    half = {"training.rounds": 15, "evaluation.every": 15}
    overrides = {"algorithm": algorithm, "capacity.keep": 0.4, "seeds": 1, **half}
    [last] = prism_bench.run("quickstart", overrides=overrides)["accuracy"].dropna()
    assert last > 70


@pytest.mark.parametrize("algorithm", EVERY)
def test_no_step_goes_through_stacked_clients_one_by_one(algorithm):
    """As torch does, with a warning, where an operation has no rule for them."""
    one = federation(algorithm, model={"name": "resnet18", "width": 10, "blocks": (1, 1)}, keep=(0.4, 1.0))
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            one.round(0)
    finally:
        torch.set_warn_always(always)
    assert not [str(each.message) for each in told if "batching rule" in str(each.message)]
