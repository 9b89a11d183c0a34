"""Whatever is in an experiment's file: it is one, or it is a clear error. Never a traceback."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from prism_bench.base.errors import BadInput
from prism_bench.engine.spec import PLUGINS, SECTIONS
from prism_bench.harness.experiment import TOP_LEVEL, Experiment, known

VALID = {
    "name": "small",
    "description": "a description",
    "seeds": 2,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "model": {"name": "smallcnn", "width": 5},
    "capacity": {"keep": [0.4, 0.2], "share": [0.4, 0.6]},
    "training": {"rounds": 2, "active": 2, "epochs": 1, "lr": 0.1},
    "evaluation": {"every": 1, "probes": ["rank"]},
    "execution": {"threads": 1},
    "grid": {"algorithm": ["fedavg", {"name": "prism", "kappa": 3}], "training.lr": [0.1, 0.2]},
    "scaled": {"note": "smaller", "set": {"training.rounds": 1, "seeds": 1}},
}
keys = st.sampled_from(
    [*TOP_LEVEL, *PLUGINS, *SECTIONS, "name", "keep", "budget", "lr", "rounds", "alpha", "clients", "set", "note",
     "training.lr", "capacity.keep", "capacity.budget", "algorithm.kappa",
     "capacity.budget.macs", "capacity.share", "capacity.redraw", "partition", "", ".", "a..b", "grid."]
)  # fmt: skip
leaves = (
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8) | keys
    | st.sampled_from(["prism", "iid", "20%", "-5%", "%", "1e400", ".nan", "../..", "digits", "[", "scaled"])
    | st.dates()
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.integers(), inner, max_size=3),
    max_leaves=8,
)
relaxed = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def loads_or_says_why(source, **more):
    with suppress(BadInput):
        Experiment.load(source, **more)


def paths(tree, above=()):
    """Every place in a nested structure."""
    yield above
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from paths(value, (*above, key))


places = st.sampled_from([path for path in paths(VALID) if path])


@relaxed
@given(place=places, value=values, size=st.sampled_from([None, "paper"]))
@example(place=("grid",), value={"algorithm": [["prism"]]}, size=None)
@example(place=("seeds",), value=10**12, size=None)
@example(place=("scaled", "set"), value={"grid.": 1}, size=None)
@example(place=("capacity", "budget"), value=[], size=None)
@example(place=("shows",), value=[[]], size=None)
def test_anything_in_any_place(tmp_path, place, value, size):
    tree = copy.deepcopy(VALID)
    *above, last = place
    inner = tree
    for key in above:
        inner = inner[key]
    inner[last] = value
    try:
        text = yaml.safe_dump(tree)
    except yaml.YAMLError:
        return
    file = tmp_path / "any.yaml"
    file.write_text(text, "utf-8")
    loads_or_says_why(file, size=size)


@relaxed
@given(place=places)
def test_anything_missing(place):
    tree = copy.deepcopy(VALID)
    *above, last = place
    inner = tree
    for key in above:
        inner = inner[key]
    del inner[last]
    loads_or_says_why(tree)


@relaxed
@given(st.dictionaries(keys, values, max_size=4))
def test_any_overrides(overrides):
    loads_or_says_why(VALID, overrides=overrides)


@relaxed
@given(st.binary(max_size=60))
@example(b"\xff\xfe")
@example(b"a: &a [*a]")
@example(b"a: !!python/object/apply:os.system ['true']")
@example(b"? {a: 1}\n: 2")
@example(b"? [1]\n: 2")
@example(b"<<: 3")
@example(b"data: 2026-13-45")
@example(b"{" * 2000)
@example(b"a: 0x\n1: 2\n1: 3")
def test_any_bytes(tmp_path, content):
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    loads_or_says_why(file)


@relaxed
@given(st.sampled_from(sorted(known())), st.integers(0, 3000), st.text(max_size=3))
def test_a_real_file_with_a_slip_of_the_pen(tmp_path, name, place, slip):
    """A character or three put in at any point of an experiment that comes with the package."""
    from importlib import resources

    text = (resources.files("prism_bench.harness.experiments") / f"{name}.yaml").read_text("utf-8")
    place %= len(text)
    file = tmp_path / "slip.yaml"
    file.write_text(text[:place] + slip + text[place + 1 :], "utf-8", errors="surrogatepass")
    loads_or_says_why(file)


@pytest.mark.parametrize(
    "text", ["a: [1, 2", "\x00", "- 1", "training: {rounds: 0}", "seeds: {}", "<<: 1", "? [1]\n: 2"]
)
def test_the_command_ends_with_2(tmp_path, here, text):
    (tmp_path / "bad.yaml").write_text(text)
    code, _, printed = here("run", "bad.yaml")
    assert code == 2
    assert "bad.yaml" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]
