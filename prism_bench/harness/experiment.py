"""A YAML file becomes a grid of runs."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import Field, field_validator

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, nearest
from prism_bench.base.settings import Settings, flat, validate
from prism_bench.base.text import short
from prism_bench.base.yaml_text import parse
from prism_bench.core.algorithm import Algorithm
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import PLUGINS, SECTIONS, Plugin, Run, fields_of
from prism_bench.harness import paper
from prism_bench.harness import tuned as choices

Size = Literal["paper", "scaled"]


MOST_RUNS = 2_000
"""Runs that an experiment may have unless more are asked for: a typo in a grid makes millions."""

LABELLED = ("data", "partition", "model", "algorithm", "capacity")
"""The sections that tables have columns of their own for."""

EVERY = "all"
"""Stands for every registered algorithm, each with its usual settings."""


class About(Settings):
    """What an experiment is, beside its settings."""

    description: str = Field("", description="one line for `prism-bench list`")
    shows: tuple[str, ...] = Field(("accuracy", "drops", "costs"), description="the views that it is about")
    reference: str = Field("", description="the result of the paper that it stands for")
    values: str | None = Field(None, description="the paper's values: the name of a CSV in prism_bench/harness/paper")

    @field_validator("shows")
    @classmethod
    def _known_views(cls, shows: tuple[str, ...]) -> tuple[str, ...]:
        for name in shows:
            if name not in registry.find("views"):
                raise ValueError(f"there is no view called '{name}'. {nearest(name, registry.find('views'))}")
        return shows


class Scaled(Settings):
    """The same experiment for a small machine."""

    note: str = Field(description="what was scaled, for everybody who reads the result")
    set: dict[str, Any] = Field(description="dotted keys with their values, as in --set")


TOP_LEVEL = ("name", "seeds", "grid", "scaled", "execution", "tune", "tuned", *About.model_fields, *PLUGINS, *SECTIONS)


@dataclass(frozen=True)
class Experiment:
    """A named grid of runs, all validated."""

    name: str
    about: About
    size: Size | None
    """None where the experiment has one size only."""
    note: str
    """What was scaled."""
    runs: list[Run]
    varied: list[str]
    """The settings that the grid varies, other than those with a column of their own: plugins and capacities."""
    execution: Execution
    origin: str
    """The file that errors name."""
    tune: choices.Lists = field(default_factory=dict)
    """What `prism-bench tune` chooses from."""
    chosen: Mapping[str, choices.Chosen] = field(default_factory=dict)
    """By a tuned run's identity: what it was before, and what tables say of it."""
    tuned: Mapping[str, Any] | None = None
    """How its settings were chosen, for people; None where they were not."""
    every: bool = False
    """Whether it asked for all algorithms: one that can't work with its settings is then left out, with a warning."""

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any] = "quickstart",
        overrides: Mapping[str, Any] | None = None,
        seeds: int | Sequence[int] | None = None,
        size: str | None = None,
        tuned: str | Path | None = None,
        most: int | None = MOST_RUNS,
    ) -> Experiment:
        """From an experiment's name, a YAML file or a mapping; ``overrides`` are dotted keys, as in ``--set``.

        An experiment with a ``scaled`` section has two sizes. Its own settings are the paper's; scaled is the default.
        The name of its results says the size too: ``rank-paper``.

        ``tuned`` is a file of choices in place of the experiment's own, or ``none``. More runs than ``most`` are an
        error, unless that is None.
        """
        if size is None and isinstance(source, str):
            base, _, suffix = source.rpartition("-")
            source, size = (base, suffix) if suffix in get_args(Size) and base in known() else (source, None)
        origin, tree = read_tree(source)
        overrides = overrides or {}
        with blaming(origin):
            experiment, own, by_hand = cls._from_tree(tree, origin, overrides, seeds, size, most)
            file, home = (own, Path(origin).parent) if tuned is None else (tuned, Path())
            found = choices.read(file, home)
            return experiment if found is None else experiment._with(found, file, by_hand)

    @classmethod
    def _from_tree(
        cls,
        tree: dict[str, Any],
        origin: str,
        overrides: Mapping[str, Any],
        seeds: int | Sequence[int] | None,
        size: str | None,
        most: int | None,
    ) -> tuple[Experiment, Any, set[str]]:
        """The experiment as its grid has it, the file of choices that it names, and the keys that are given by hand."""
        for key in tree:
            if key not in TOP_LEVEL:
                raise BadInput(f"{key}: there is no such setting. {nearest(str(key), TOP_LEVEL)}")
        size, scaled = _size(size, tree.pop("scaled", None))
        given = tree.pop("grid", None) or {}
        if not isinstance(given, Mapping):
            raise BadInput(f"grid: needs settings with a list of values each (got {short(given)}).")
        grid: dict[str, list[Any]] = {}
        if _asks_for_all(tree.get("algorithm")):
            given = {"algorithm": tree.pop("algorithm"), **given}
        for key, value in given.items():
            _override(tree, grid, f"grid.{key}", value)
        every = _asks_for_all(given.get("algorithm"))
        for key, value in {**(scaled.set if scaled else {}), **overrides}.items():
            _override(tree, grid, key, value)
            every = _asks_for_all(value) if key in ("algorithm", "grid.algorithm") else every
        about = validate(About, {key: tree.pop(key) for key in About.model_fields if key in tree})
        tune, own_choices = choices.read_lists(tree.pop("tune", None) or {}), tree.pop("tuned", None)
        name = tree.pop("name", None) or re.sub(r"[^\w.-]+", "-", Path(origin).stem).lstrip(".")
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise BadInput(f"name: must be letters, digits, '_', '-' or '.', as it names a folder (got {short(name)}).")
        own = tree.pop("seeds", 1)
        numbers = _seeds(own if seeds is None else seeds)
        execution = validate(Execution, tree.pop("execution", None) or {}, "execution")

        count = math.prod([len(numbers), *map(len, grid.values())])
        if most is not None and count > most:
            raise BadInput(
                f"grid: it makes {count:,} runs, seeds included; more than {most:,} need --yes, which runs them all."
            )
        runs: dict[str, Run] = {}
        for values in itertools.product(*grid.values()):
            cell = copy.deepcopy(tree)
            # Whole plugins first, so that a setting of a plugin finds the one it belongs to.
            for key, value in sorted(zip(grid, values, strict=True), key=lambda pair: pair[0].count(".")):
                _put(cell, key, {**(cell.get(key) or {}), **value} if _adds(key, value) else value)
            for seed in numbers:
                run = Run.resolve(cell | {"seed": seed})
                runs.setdefault(run.identity, run)
        # Plugins and capacities have columns of their own.
        varied = [key for key in grid if key.partition(".")[0] not in LABELLED]
        varied = [one for key in varied for one in _differing(key, [run.every_setting() for run in runs.values()])]
        tune = choices.check_lists(tune, list(runs.values()))
        if about.values is not None:
            paper.values(about.values)
        full_name = f"{name}-{size}" if size else name
        note = scaled.note.strip() if scaled else ""
        besides = [
            f"{key}={value}" for key, value in overrides.items() if key.partition(".")[0] not in ("execution", "name")
        ]
        if note and besides:
            note += f" Changed besides: {', '.join(besides)}."
        experiment = cls(
            full_name, about, size, note, list(runs.values()), varied, execution, origin, tune, every=every
        )
        experiment.check_labels()
        return experiment, own_choices, _by_hand(grid) | _by_hand(overrides)

    def _with(self, found: choices.Tuned, file: str | Path, by_hand: set[str]) -> Experiment:
        """The same with what was chosen for each run."""
        with blaming(str(file)):
            runs, chosen = found.apply(self.runs, by_hand, self.label)
        how = {"file": str(file), **found.model_dump(mode="json", exclude={"cells"})}
        return replace(self, runs=runs, chosen=chosen, tuned=how)

    def label(self, run: Run) -> str:
        """What tells a run from the others of this experiment."""
        run = self._untuned(run)
        parts = [run.label]
        for section in ("data", "model", "partition"):
            if len(self._choices[section]) > 1:
                parts.append(self._short(section, run))
        return ", ".join([*parts, *self._settings(run)])

    def labels(self, run: Run) -> dict[str, Any]:
        """The same in columns: what tables say in front of a run's numbers."""
        identity, run = run.identity, self._untuned(run)
        return {
            "experiment": self.name,
            "run": identity,
            "data": self._short("data", run),
            "model": self._short("model", run),
            "start": run.model.settings.start,
            "partition": self._short("partition", run),
            "algorithm": run.algorithm.name,
            "variant": run.algorithm.variant,
            "keep": run.capacity.label,
            "settings": " ".join(self._settings(run)),
            "seed": run.seed,
            "cuts": run.algorithm.kind.cuts or not run.algorithm.kind.reference,
            "tuned": self.chosen[identity].text if identity in self.chosen else "",
        }

    def _untuned(self, run: Run) -> Run:
        """The run as the grid has it: what was tuned is a method's own, and no part of what it is called."""
        chosen = self.chosen.get(run.identity) if self.chosen else None
        return run if chosen is None else chosen.run

    def check_labels(self) -> None:
        """Two runs that a table can't tell apart would count as two seeds of one."""
        seen: dict[str, Run] = {}
        for run in self.runs:
            labels = {key: value for key, value in self.labels(run).items() if key not in ("run", "start", "tuned")}
            other = seen.setdefault(json.dumps(labels), run)
            if other is not run:
                theirs = dict(flat(other.as_dict()))
                differ = [key for key, value in flat(run.as_dict()) if theirs.get(key) != value]
                raise BadInput(
                    f"grid: two runs are both called '{self.label(run)}'; they differ in {', '.join(differ)}, which "
                    "tables round or don't show. Values further apart, or one of them, would do."
                )

    def _settings(self, run: Run) -> list[str]:
        """The values of what the grid varies, other than plugins and capacities."""
        tree = run.every_setting()
        return [f"{key}={get(tree, key)}" for key in self.varied]

    def _short(self, section: str, run: Run) -> str:
        """A plugin's label; where the grid varies the plugin, without the settings that all of its choices share."""
        plugin, choices = getattr(run, section), self._choices[section]
        if len(choices) == 1:
            return str(plugin.label)
        given = plugin.settings.model_dump(exclude_unset=True)
        own = {key: value for key, value in given.items() if any(choice.get(key) != value for choice in choices)}
        return " ".join([plugin.name, *(f"{key}={value}" for key, value in own.items())])

    @cached_property
    def _choices(self) -> dict[str, list[dict[str, Any]]]:
        """The settings given to each of the plugins that the grid chooses from."""
        untuned = [self._untuned(run) for run in self.runs]
        return {
            section: [
                plugin.settings.model_dump(exclude_unset=True)
                for plugin in {getattr(run, section).label: getattr(run, section) for run in untuned}.values()
            ]
            for section in PLUGINS
        }


def _size(wanted: str | None, section: Any) -> tuple[Size | None, Scaled | None]:
    """The size to run, and what to change for it."""
    if wanted is not None and wanted not in get_args(Size):
        raise BadInput(f"--size {wanted}: there is no such size. {nearest(wanted, get_args(Size))}")
    if section is None:
        if wanted is not None:
            raise BadInput(f"--size {wanted}: this experiment has one size only (no 'scaled' section).")
        return None, None
    scaled = validate(Scaled, section, "scaled")
    return ("paper", None) if wanted == "paper" else ("scaled", scaled)


@contextmanager
def blaming(origin: str) -> Iterator[None]:
    """Say in front of each line of an error which file it is about."""
    try:
        yield
    except BadInput as error:
        raise BadInput("\n".join(f"{origin}: {line}" for line in str(error).splitlines())) from None


def known() -> dict[str, str]:
    """The experiments that come with the package, and what they are."""
    found = {}
    for file in sorted(resources.files("prism_bench.harness.experiments").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            found[file.name.removesuffix(".yaml")] = str(yaml.safe_load(file.read_text("utf-8"))["description"])
    return found


def read_tree(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What errors call it, and the settings that it holds."""
    if isinstance(source, Mapping):
        return "experiment", copy.deepcopy(dict(source))
    if isinstance(source, str) and source in known():
        text = (resources.files("prism_bench.harness.experiments") / f"{source}.yaml").read_text("utf-8")
    else:
        path = Path(source)
        if not path.is_file():
            if path.suffix in (".yaml", ".yml"):
                raise BadInput(f"{source}: there is no such file.")
            raise BadInput(f"{source}: no experiment and no YAML file is called that. {nearest(str(source), known())}")
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{source}: can't be read: {error}") from None
    origin = f"{source}.yaml" if source in known() else str(source)
    try:
        tree = parse(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(f"{origin}: is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise BadInput(f"{origin}: needs settings such as 'algorithm: prism' (got {type(tree).__name__}).")
    return origin, tree


def _seeds(value: Any) -> list[int]:
    numbers = list(range(min(value, 10_001))) if isinstance(value, int) and not isinstance(value, bool) else value
    whole = isinstance(numbers, (list, tuple)) and all(type(number) is int and number >= 0 for number in numbers)
    if not whole or not 1 <= len(numbers) <= 10_000:
        raise BadInput(f"seeds: a number of seeds, or a list of them such as [0, 1, 2] (got {short(value)}).")
    return list(dict.fromkeys(numbers))


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a plugin given by its name or itself becomes ``{name: ...}`` to take a setting."""
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents, start=1):
        below = tree.get(parent) or {}
        if isinstance(below, (str, type, Algorithm, Settings)):
            below = Plugin.given(parent, below)
        if not isinstance(below, Mapping):
            raise BadInput(f"{key}: '{'.'.join(parents[:depth])}' has no settings below it.")
        tree[parent] = dict(below)
        tree = tree[parent]
    tree[last] = copy.deepcopy(value)


def _override(tree: dict[str, Any], grid: dict[str, list[Any]], key: str, value: Any) -> None:
    """Apply one ``--set``: replaces the grid's values where the grid varies that key, or is asked to by ``grid.``."""
    into_grid = key.startswith("grid.")
    key = key.removeprefix("grid.")
    if key == "algorithm" and _asks_for_all(value):
        value, into_grid = _with_all(value), True
    top, _, rest = key.partition(".")
    allowed = (*PLUGINS, *SECTIONS) if into_grid else TOP_LEVEL
    if top not in allowed:
        raise BadInput(f"{'grid.' * into_grid}{key}: there is no such setting. {nearest(top, allowed)}")
    if top == "tune" and rest:
        tree["tune"] = {**dict(flat(tree.get("tune") or {})), rest: value}
    elif key in grid or into_grid:
        grid[key] = value if isinstance(value, list) else [value]
        if not grid[key]:
            raise BadInput(f"grid.{key}: needs at least one value.")
    elif rest and top in grid:
        # The grid compares choices with different settings: those that have this one get it.
        choices = [_long_form(top, choice) for choice in grid[top]]
        fields = [_fields(top, choice) for choice in choices]
        first = rest.partition(".")[0]
        if not any(first in known for known in fields):
            names = ", ".join(dict.fromkeys(_name_of(choice.get("name", top)) for choice in choices))
            every = {field for known in fields for field in known}
            raise BadInput(f"{key}: none of {names} has this setting. {nearest(first, every)}")
        for choice, known in zip(choices, fields, strict=True):
            if first in known:
                _put(choice, rest, value)
        grid[top] = choices
    else:
        for varied in [varied for varied in grid if varied.startswith(f"{key}.")]:
            del grid[varied]
        _put(tree, key, value)


def _asks_for_all(choices: Any) -> bool:
    """Whether ``algorithm`` is ``all``, alone or among others."""
    return EVERY in choices if isinstance(choices, list) else isinstance(choices, str) and choices == EVERY


def _with_all(choices: Any) -> list[Any]:
    """Put every registered algorithm in the place of ``all``; warn of one that can't be loaded or needs a setting."""
    every = []
    for name in registry.find("algorithms"):
        try:
            Plugin.choose("algorithm", name)
        except BadInput as error:
            warnings.warn(f"{name} is left out: {error}", stacklevel=2)
        else:
            every.append(name)
    given = choices if isinstance(choices, list) else [choices]
    return [one for choice in given for one in (every if choice == EVERY else [choice])]


def _by_hand(given: Mapping[str, Any]) -> set[str]:
    """The keys that a grid or ``--set`` decides: what was tuned doesn't take their place."""
    found = set()
    for key, value in given.items():
        key = key.removeprefix("grid.")
        found.add(key)
        if key == "training":
            every = value if isinstance(value, list) else [value]
            found |= {f"{key}.{name}" for one in every if isinstance(one, Mapping) for name in one}
    return found


def _adds(key: str, value: Any) -> bool:
    """Whether a grid's choice for a section adds to what the file says there; one for a plugin takes its place."""
    return key in ("training", "evaluation") and isinstance(value, Mapping)


def _differing(key: str, trees: Sequence[Mapping[str, Any]]) -> list[str]:
    """The key, or where whole sections are varied, those of their settings that differ."""
    values = [get(tree, key) for tree in trees]
    if not isinstance(values[0], Mapping):
        return [key]
    return [f"{key}.{name}" for name in values[0] if any(value[name] != values[0][name] for value in values)]


def _long_form(section: str, choice: Any) -> dict[str, Any]:
    if section in PLUGINS:
        return Plugin.given(section, choice)
    if not isinstance(choice, Mapping):
        raise BadInput(f"{section}: needs settings below it (got {short(choice)}).")
    return dict(choice)


def _fields(section: str, choice: Mapping[str, Any]) -> Iterable[str]:
    """The settings that a choice for a section has."""
    if section not in PLUGINS:
        return SECTIONS[section].model_fields
    return fields_of(Plugin.named(section, choice["name"])[0]).model_fields


def _name_of(name: str | type) -> str:
    return name if isinstance(name, str) else name.__name__


def get(tree: Any, key: str) -> Any:
    """The value at a dotted key."""
    for part in key.split("."):
        tree = tree[part]
    return tree
