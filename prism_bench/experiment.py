"""A YAML file becomes a grid of runs; the runs become one long-format frame."""

from __future__ import annotations

import copy
import itertools
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import yaml

from prism_bench import registry, store
from prism_bench.config import Execution, validate
from prism_bench.data.dataset import Dataset
from prism_bench.errors import BadInput, Diverged, nearest
from prism_bench.partition import Partition
from prism_bench.rounds import PLUGINS, SECTIONS, Federation, Plugin, Run, choose_device, split, threads
from prism_bench.seeds import stream

TOP_LEVEL = ("name", "description", "seeds", "grid", "execution", *PLUGINS, *SECTIONS)


@dataclass(frozen=True)
class Experiment:
    """A named grid of runs, all validated."""

    name: str
    description: str
    runs: list[Run]
    varied: list[str]
    """The settings that the grid varies, other than those with a column of their own: plugins and capacities."""
    execution: Execution
    origin: str
    """The file that errors name."""

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any] = "quickstart",
        overrides: Mapping[str, Any] | None = None,
        seeds: int | Sequence[int] | None = None,
    ) -> Experiment:
        """From an experiment's name, a YAML file or a mapping; ``overrides`` are dotted keys, as in ``--set``."""
        origin, tree = _read(source)
        with blaming(origin):
            return cls._from_tree(tree, origin, overrides or {}, seeds)

    @classmethod
    def _from_tree(
        cls,
        tree: dict[str, Any],
        origin: str,
        overrides: Mapping[str, Any],
        seeds: int | Sequence[int] | None,
    ) -> Experiment:
        for key in tree:
            if key not in TOP_LEVEL:
                raise BadInput(f"{key}: there is no such setting. {nearest(str(key), TOP_LEVEL)}")
        given = tree.pop("grid", None) or {}
        if not isinstance(given, Mapping):
            raise BadInput(f"grid: needs settings with a list of values each (got {given!r}).")
        grid: dict[str, list[Any]] = {}
        for key, value in given.items():
            _override(tree, grid, f"grid.{key}", value)
        for key, value in overrides.items():
            _override(tree, grid, key, value)
        name = tree.pop("name", None) or re.sub(r"[^\w.-]+", "-", Path(origin).stem).lstrip(".")
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise BadInput(f"name: must be letters, digits, '_', '-' or '.', as it names a folder (got {name!r}).")
        description = str(tree.pop("description", "")).strip()
        own = tree.pop("seeds", 1)
        numbers = _seeds(own if seeds is None else seeds)
        execution = validate(Execution, tree.pop("execution", None) or {}, "execution")

        runs: dict[str, Run] = {}
        for values in itertools.product(*grid.values()):
            cell = copy.deepcopy(tree)
            # Whole plugins first, so that a setting of a plugin finds the one it belongs to.
            for key, value in sorted(zip(grid, values, strict=True), key=lambda pair: pair[0].count(".")):
                _put(cell, key, value)
            for seed in numbers:
                run = Run.resolve(cell | {"seed": seed})
                runs.setdefault(run.identity, run)
        told = {"capacity", "capacity.keep", "capacity.budget"}
        varied = [key for key in grid if key.partition(".")[0] not in PLUGINS and key not in told]
        return cls(name, description, list(runs.values()), varied, execution, origin)

    def label(self, run: Run) -> str:
        """What tells a run from the others of this experiment."""
        parts = [run.label]
        for section in ("data", "model", "partition"):
            if len({getattr(other, section).label for other in self.runs}) > 1:
                parts.append(getattr(run, section).label)
        return ", ".join([*parts, *self.settings(run)])

    def settings(self, run: Run) -> list[str]:
        """The values of what the grid varies, other than plugins and capacities."""
        tree = run.as_dict()
        return [f"{key}={_get(tree, key)}" for key in self.varied]


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
    for file in sorted(resources.files("prism_bench.experiments").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".yaml"):
            found[file.name.removesuffix(".yaml")] = str(yaml.safe_load(file.read_text("utf-8"))["description"])
    return found


def _read(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(source, Mapping):
        return "experiment", copy.deepcopy(dict(source))
    if isinstance(source, str) and source in known():
        text = (resources.files("prism_bench.experiments") / f"{source}.yaml").read_text("utf-8")
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
        tree = yaml.load(text, Loader=_UniqueKeys)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(f"{origin}: is not valid YAML: {error}") from None
    if not isinstance(tree, dict):
        raise BadInput(f"{origin}: needs settings such as 'algorithm: prism' (got {type(tree).__name__}).")
    return origin, tree


class _UniqueKeys(yaml.SafeLoader):
    """A key that is given twice is a typo, not a choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"'{key}' is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _seeds(value: Any) -> list[int]:
    numbers = list(range(min(value, 10_001))) if isinstance(value, int) and not isinstance(value, bool) else value
    whole = isinstance(numbers, (list, tuple)) and all(type(number) is int and number >= 0 for number in numbers)
    if not whole or not 1 <= len(numbers) <= 10_000:
        raise BadInput(f"seeds: a number of seeds, or a list of them such as [0, 1, 2] (got {value!r}).")
    return list(dict.fromkeys(numbers))


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; a plugin given by its name alone becomes ``{name: ...}`` to take a setting."""
    *parents, last = key.split(".")
    for depth, parent in enumerate(parents, start=1):
        below = tree.get(parent) or {}
        if isinstance(below, str):
            below = {"name": below}
        if not isinstance(below, Mapping):
            raise BadInput(f"{key}: '{'.'.join(parents[:depth])}' has no settings below it.")
        tree[parent] = dict(below)
        tree = tree[parent]
    tree[last] = copy.deepcopy(value)


def _override(tree: dict[str, Any], grid: dict[str, list[Any]], key: str, value: Any) -> None:
    """Apply one ``--set``: replaces the grid's values where the grid varies that key, or is asked to by ``grid.``."""
    into_grid = key.startswith("grid.")
    key = key.removeprefix("grid.")
    top, _, rest = key.partition(".")
    allowed = (*PLUGINS, *SECTIONS) if into_grid else TOP_LEVEL
    if top not in allowed:
        raise BadInput(f"{'grid.' * into_grid}{key}: there is no such setting. {nearest(top, allowed)}")
    if key in grid or into_grid:
        grid[key] = value if isinstance(value, list) else [value]
        if not grid[key]:
            raise BadInput(f"grid.{key}: needs at least one value.")
    elif rest and top in grid:
        # The grid compares choices with different settings: those that have this one get it.
        choices = [_long_form(top, choice) for choice in grid[top]]
        fields = [_fields(top, choice) for choice in choices]
        first = rest.partition(".")[0]
        if not any(first in known for known in fields):
            names = ", ".join(dict.fromkeys(str(choice.get("name", top)) for choice in choices))
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


def _long_form(section: str, choice: Any) -> dict[str, Any]:
    if section in PLUGINS:
        return Plugin.given(section, choice)
    if not isinstance(choice, Mapping):
        raise BadInput(f"{section}: needs settings below it (got {choice!r}).")
    return dict(choice)


def _fields(section: str, choice: Mapping[str, Any]) -> Iterable[str]:
    """The settings that a choice for a section has."""
    if section not in PLUGINS:
        return SECTIONS[section].model_fields
    kind = registry.load(PLUGINS[section], choice["name"], f"{section}.name")
    fields: Iterable[str] = getattr(kind, "Params", kind).model_fields
    return fields


class Watcher(Protocol):
    """Told what happens while an experiment runs."""

    def loading(self, data: str) -> None: ...
    def begin(self, experiment: Experiment, data: Dataset, partition: Partition, device: str) -> None: ...
    def run_started(self, number: int, run: Run, label: str) -> None: ...
    def round_done(self, record: Mapping[str, Any]) -> None: ...
    def run_done(self, number: int, label: str, frame: pd.DataFrame | None, reused: bool, error: str) -> None: ...


@dataclass
class Outcome:
    """What an experiment gave: the finished runs in long format, and the runs that failed."""

    rounds: pd.DataFrame
    failed: dict[str, str]
    """What failed, and why."""


def carry_out(
    experiment: Experiment, out: Path | None = None, fresh: bool = False, watcher: Watcher | None = None
) -> Outcome:
    """Run what has not been run yet. With ``out``, each finished run is kept there and not run again."""
    with blaming(experiment.origin):
        prepared = _prepare(experiment.runs, watcher)
        digests = {id(data): data.digest() for data, _ in prepared.values()} if out else {}
        device = choose_device(experiment.execution.device)
    if watcher:
        watcher.begin(experiment, *prepared[experiment.runs[0].identity], str(device))

    frames, failed = [], {}
    for number, run in enumerate(experiment.runs):
        data, partition = prepared[run.identity]
        folder = store.RunFolder(out, run.identity, digests[id(data)], run.code()) if out else None
        frame = folder.read() if folder and not fresh else None
        reused, error = frame is not None, ""
        if frame is None:
            if watcher:
                watcher.run_started(number, run, experiment.label(run))
            try:
                frame = _run(run, data, partition, experiment, watcher)
            except Diverged as problem:
                error = failed[experiment.label(run)] = str(problem)
            else:
                if folder:
                    folder.write(run.as_dict(), frame, device)
        if frame is not None:
            frames.append(_labels(frame, run, experiment))
        if watcher:
            watcher.run_done(number, experiment.label(run), frame, reused, error)
    return Outcome(pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), failed)


def _prepare(runs: Sequence[Run], watcher: Watcher | None) -> dict[str, tuple[Dataset, Partition]]:
    """Each run's data and partition. What can't work is known before anything runs or is written."""
    datasets: dict[Any, Dataset] = {}
    partitions: dict[Any, Partition] = {}
    models: set[Any] = set()
    prepared = {}
    for run in runs:
        source, key = run.data.settings, (run.data.settings, run.partition.settings, run.seed)
        if source not in datasets:
            if watcher:
                watcher.loading(run.data.label)
            datasets[source] = source.load()
        if key not in partitions:
            partitions[key] = split(run, datasets[source])
        network = run.model.settings.build(datasets[source].signature)
        if run.model.settings not in models:
            models.add(run.model.settings)
            run.model.settings.initial(network, stream(run.seed, "weights"))
        keeps = () if run.capacity.budget else run.capacity.keep
        run.algorithm.kind.check(run.algorithm.settings, network, keeps)
        if run.capacity.budget and run.seed == runs[0].seed:
            # Building the run finds its largest sub-model, or says that none fits.
            Federation(run, datasets[source], partitions[key], Execution(device="cpu"))
        prepared[run.identity] = (datasets[source], partitions[key])
    return prepared


def _run(
    run: Run, data: Dataset, partition: Partition, experiment: Experiment, watcher: Watcher | None
) -> pd.DataFrame:
    start = time.perf_counter()
    federation = Federation(run, data, partition, experiment.execution)
    records = []
    with threads(experiment.execution, federation.step_macs):
        for record in federation.rounds():
            records.append(record | {"seconds": time.perf_counter() - start})
            start = time.perf_counter()
            if watcher:
                watcher.round_done(record)
    frame: pd.DataFrame = pd.DataFrame(records)
    for name, value in federation.costs().items():
        frame[name] = value
    return frame


def _labels(frame: pd.DataFrame, run: Run, experiment: Experiment) -> pd.DataFrame:
    """Say in front of each row which run it belongs to."""
    columns = {
        "experiment": experiment.name,
        "run": run.identity,
        "data": run.data.label,
        "model": run.model.label,
        "start": run.model.settings.start,
        "partition": run.partition.label,
        "algorithm": run.algorithm.name,
        "variant": run.algorithm.variant,
        "keep": run.capacity.label,
        "settings": " ".join(experiment.settings(run)),
        "seed": run.seed,
        "cuts": run.algorithm.kind.cuts,
    }
    labelled: pd.DataFrame = pd.concat([pd.DataFrame(columns, index=frame.index), frame], axis=1)
    return labelled


def _get(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def run(
    experiment: str | Path | Mapping[str, Any] = "quickstart",
    *,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Run an experiment and return one row a run and round.

    ``experiment`` is a name, a YAML file or a mapping; ``overrides`` are dotted keys (``{"training.rounds": 5}``).
    Nothing is written unless ``out`` names a folder; with it, finished runs are kept there and not run again. A run
    that diverges is warned of and left out.
    """
    extra = {} if device is None else {"execution.device": device}
    loaded = Experiment.load(experiment, {**(overrides or {}), **extra}, seeds)
    outcome = carry_out(loaded, Path(out) if out else None)
    for label, error in outcome.failed.items():
        warnings.warn(f"{label} failed: {error}", stacklevel=2)
    return outcome.rounds
