"""Settings that were chosen on validation data, and the runs that they are for.

`prism-bench tune` (`tuning`) writes such a file, one entry per cell of an experiment's grid; `prism-bench run --tuned`
reads it and gives each run what was chosen for its cell.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, nearest
from prism_bench.base.settings import Settings, flat, validate
from prism_bench.base.text import short
from prism_bench.base.yaml_text import parse
from prism_bench.core.capacity import Capacity
from prism_bench.engine.sections import Training
from prism_bench.engine.spec import PLUGINS, SECTIONS, Run, fields_of

TUNABLE = ("training", "algorithm")
"""The sections whose settings can be tuned; the others say what is compared."""

NOT_TUNED = "none"
"""In place of a file: what an experiment was tuned to is left out."""

WHERE = ("data", "partition", "model")
"""What a cell says only where the cells differ in it, beside its method and capacity."""

Lists = dict[str, list[Any]]
"""What a setting is chosen from, by its dotted key."""


# Settings of a run ------------------------------------------------------------------------------------------------


def with_values(run: Run, values: Mapping[str, Any]) -> Run:
    """The run with other values of some settings, by dotted keys: the same as if they had been given by hand."""
    tree: dict[str, Any] = {"seed": run.seed, **{section: _plugin(run, section) for section in PLUGINS}}
    tree |= {section: getattr(run, section).model_dump(exclude_unset=True) for section in SECTIONS}
    for key, value in values.items():
        section, _, name = key.partition(".")
        tree[section] = {**tree[section], name: value}
    return Run.resolve(tree)


def _plugin(run: Run, section: str) -> dict[str, Any]:
    plugin = getattr(run, section)
    name = plugin.name if plugin.name in registry.find(PLUGINS[section]) else plugin.kind
    return {"name": name, **plugin.settings.model_dump(exclude_unset=True)}


def _given(plugin: Any) -> dict[str, Any]:
    """The settings of a plugin that were given, as a file can hold them."""
    given: dict[str, Any] = plugin.settings.model_dump(mode="json", exclude_unset=True)
    return given


# What is tuned ----------------------------------------------------------------------------------------------------


def read_lists(given: Any) -> Lists:
    """The section ``tune`` of an experiment: dotted keys with a list of values each."""
    if not isinstance(given, Mapping):
        raise BadInput(f"tune: needs settings with a list of values each (got {short(given)}).")
    lists = {key: value if isinstance(value, list) else [value] for key, value in flat(given)}
    for key, values in lists.items():
        section, _, name = key.partition(".")
        if section not in TUNABLE or not name:
            known = {*PLUGINS, *SECTIONS} - {*TUNABLE}
            what = "is what is compared" if section in known and name else "there is no such setting to tune"
            raise BadInput(f"tune.{key}: {what}; keys are such as training.lr. {nearest(section, TUNABLE)}")
        if key == "training.rounds":
            raise BadInput(f"tune.{key}: can't be tuned: tuning itself decides how many rounds a try gets.")
        if not values:
            raise BadInput(f"tune.{key}: needs at least one value.")
        for one, other in itertools.combinations(values, 2):
            if one == other:
                raise BadInput(f"tune.{key}: has {one} twice.")
    return lists


def check_lists(lists: Lists, runs: Sequence[Run]) -> Lists:
    """Those that these runs can be tuned in; BadInput where a key is no setting, or a value is none that it can have.

    A setting that only other registered algorithms have is left out: so ``--set algorithm=...`` can tune any of them.
    """
    kept = {}
    methods = list({run.algorithm.label: run for run in runs}.values())
    for key, values in lists.items():
        section, _, name = key.partition(".")
        known = {name for run in methods for name in fields_of(run.algorithm.kind).model_fields}
        if section == "training" and name not in Training.model_fields:
            raise BadInput(f"tune.{key}: there is no such setting. {nearest(name, Training.model_fields)}")
        if section == "algorithm" and name not in known:
            if name in _all_settings():
                continue
            names = ", ".join(dict.fromkeys(run.algorithm.name for run in methods))
            raise BadInput(f"tune.{key}: none of {names} has this setting. {nearest(name, known)}")
        kept[key] = values
        for run in methods:
            for value in values if applies(key, run) else ():
                _checked(run, {key: value}, "tune.")
    return kept


def _all_settings() -> set[str]:
    """The names of the settings of every registered algorithm that can be imported."""
    names: set[str] = set()
    for name in registry.find("algorithms"):
        with contextlib.suppress(BadInput):
            names |= fields_of(registry.load("algorithms", name, "algorithm")).model_fields.keys()
    return names


def applies(key: str, run: Run) -> bool:
    """Whether a run is tuned in this setting: its method has it, and the grid's own choice doesn't say its value."""
    section, _, name = key.partition(".")
    if section == "training":
        return True
    return name in fields_of(run.algorithm.kind).model_fields and name not in run.algorithm.settings.model_fields_set


def _checked(run: Run, values: Mapping[str, Any], where: str) -> Run:
    """The run with these values; an error says in front of the key where they stand."""
    try:
        return with_values(run, values)
    except BadInput as error:
        raise BadInput("\n".join(f"{where}{line}" for line in str(error).splitlines())) from None


# What was chosen --------------------------------------------------------------------------------------------------


class Choice(Settings):
    """What a cell is, and what was chosen for it."""

    algorithm: str | dict[str, Any] = Field(description="its name, alone or with the settings that were given")
    capacity: dict[str, Any] = Field(default_factory=dict, description="nothing for full-model training")
    data: str | dict[str, Any] | None = None
    partition: str | dict[str, Any] | None = None
    model: str | dict[str, Any] | None = None
    settings: dict[str, Any] = Field(default_factory=dict, description="others that the cells differ in")
    set: dict[str, Any] = Field(description="dotted keys with the values that were chosen")
    accuracy: float = Field(description="in % on validation data, after the last round")
    tries: PositiveInt
    rounds: tuple[PositiveInt, ...] = Field((), description="of the rungs, where the cells differ in them")

    def text(self, keys: Iterable[str]) -> str:
        """What a table says of the chosen values: 'lr 0.03, clip 5; 9 tries'."""
        values = ", ".join(f"{key.rpartition('.')[2]} {shown(self.set[key])}" for key in keys)
        return f"{values}; {self.tries} {'try' if self.tries == 1 else 'tries'}" if values else ""

    def is_about(self, run: Run, by_hand: Collection[str]) -> bool:
        """Whether a run belongs to this cell; a value that is given by hand in place of the chosen one is no other."""
        name, given = _parts(self.algorithm)
        chosen = {key for key in self.set if key in by_hand}
        theirs = {key: value for key, value in _given(run.algorithm).items() if f"algorithm.{key}" not in chosen}
        if (run.algorithm.name, theirs) != (name, given):
            return False
        if validate(Capacity, self.capacity, "capacity").model_dump() != run.capacity.model_dump():
            return False
        tree = run.every_setting()
        wanted = dict(self.settings)
        for section in WHERE:
            name, given = _parts(getattr(self, section) or tree[section]["name"])
            wanted |= flat({section: {"name": name, **given}})
        known = dict(flat(tree))
        return all(key in known and known[key] == value for key, value in wanted.items())


def shown(value: Any) -> str:
    """A value of a setting in few characters."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _parts(given: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name of a plugin and the settings beside it."""
    if isinstance(given, str):
        return given, {}
    return str(given.get("name")), {key: value for key, value in given.items() if key != "name"}


@dataclass(frozen=True)
class Chosen:
    """What a tuned run was before it was tuned, and what tables say of it."""

    run: Run
    text: str


class Tuned(Settings):
    """A file of choices."""

    experiment: str
    command: str = ""
    over: dict[str, list[Any]] = Field(description="what was tuned, and the values that were chosen from")
    validation: float = Field(gt=0, lt=1, description="share of the training samples that the choice was made on")
    rounds: tuple[PositiveInt, ...] = Field((), description="of the rungs: after each the better half goes on")
    seeds: tuple[NonNegativeInt, ...] = (0,)
    tries: PositiveInt = Field(description="settings that each cell may try")
    curves: str = Field("", description="where the learning curves of all tries are")
    cells: tuple[Choice, ...] = Field(min_length=1)

    def apply(
        self, runs: Sequence[Run], by_hand: Collection[str], label: Callable[[Run], str]
    ) -> tuple[list[Run], dict[str, Chosen]]:
        """The runs with what was chosen for each, and by the new identity what each was.

        ``by_hand`` are keys that the experiment's grid or ``--set`` decides: their values stay. ``label`` is what
        errors call a run.
        """
        self._check_names(runs)
        tuned: dict[str, Run] = {}
        chosen: dict[str, Chosen] = {}
        missing: dict[str, None] = {}
        for run in runs:
            found = [number for number, cell in enumerate(self.cells) if cell.is_about(run, by_hand)]
            if len(found) > 1:
                raise BadInput(f"cells {found[0]} and {found[1]} are both about '{label(run)}'; one of them would do.")
            if not found:
                missing[label(run).replace(f", seed {run.seed}", "")] = None
                continue
            cell = self.cells[found[0]]
            values = {key: value for key, value in cell.set.items() if key not in by_hand}
            new = _checked(run, values, f"cells {found[0]}: set: ")
            if tuned.setdefault(new.identity, new) is not new:
                same = label(chosen[new.identity].run)
                warnings.warn(f"'{label(run)}' was tuned to the same settings as '{same}'; see there.", stacklevel=2)
            chosen.setdefault(new.identity, Chosen(run, cell.text(values)))
        if missing:
            what = "has nothing for" if tuned else f"is about '{self.experiment}' and has nothing at all for"
            raise BadInput(
                f"{what} {'; '.join(missing)}. `prism-bench tune` chooses for every cell of an experiment; "
                f"`--tuned {NOT_TUNED}` does without."
            )
        return list(tuned.values()), chosen

    def _check_names(self, runs: Sequence[Run]) -> None:
        known = {*registry.find("algorithms"), *(run.algorithm.name for run in runs)}
        for number, cell in enumerate(self.cells):
            name, _ = _parts(cell.algorithm)
            if name not in known:
                raise BadInput(f"cells {number}: there is no algorithm called '{name}'. {nearest(name, known)}")
            for key in cell.set:
                if key.partition(".")[0] not in TUNABLE or "." not in key:
                    raise BadInput(f"cells {number}: set: {key}: only {' and '.join(TUNABLE)} settings can be tuned.")


def describe(run: Run, among: Sequence[Run], varied: Iterable[str]) -> dict[str, Any]:
    """What a file says of a run's cell: its method and capacity, and else what tells it from the other cells."""
    given = _given(run.algorithm)
    about: dict[str, Any] = {"algorithm": {"name": run.algorithm.name, **given} if given else run.algorithm.name}
    if run.algorithm.kind.cuts:
        capacity = run.capacity.model_dump(mode="json", exclude_unset=True)
        about["capacity"] = {
            key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in capacity.items()
        }
    for section in WHERE:
        own = getattr(run, section)
        others = list({getattr(other, section).label: getattr(other, section) for other in among}.values())
        if len(others) > 1:
            said = {key for other in others if other.name == own.name for key in _given(other)}
            values = {key: value for key, value in own.as_dict().items() if key in said}
            differ = {
                key: value
                for key, value in values.items()
                if any(key not in other.as_dict() or other.as_dict()[key] != value for other in others)
            }
            about[section] = {"name": own.name, **differ} if differ else own.name
    known = dict(flat(run.every_setting()))
    settings = {key: known[key] for key in varied}
    return about | ({"settings": settings} if settings else {})


# Files ------------------------------------------------------------------------------------------------------------


def shipped() -> dict[str, Any]:
    """The files of choices that come with the package, by name."""
    folder = resources.files("prism_bench.harness.experiments") / "tuned"
    if not folder.is_dir():
        return {}
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


def read(given: Any, home: Path) -> Tuned | None:
    """The choices in a file, by its path from ``home`` or by its name in the package; None where it is ``none``."""
    if given is None or given == NOT_TUNED:
        return None
    if not isinstance(given, (str, Path)):
        raise BadInput(f"tuned: needs the name of a file that `prism-bench tune` wrote (got {short(given)}).")
    own = home / given
    file = own if own.is_file() else shipped().get(str(given))
    if file is None:
        raise BadInput(f"tuned {given}: no file is called that. {nearest(str(given), [*shipped(), NOT_TUNED])}")
    try:
        tree = parse(file.read_text("utf-8"))
        if not isinstance(tree, dict):
            raise BadInput("holds no choices; `prism-bench tune` writes such a file.")
        return validate(Tuned, tree)
    except BadInput as error:
        raise BadInput("\n".join(f"{given}: {line}" for line in str(error).splitlines())) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(f"{given}: can't be read as a file of choices: {error}") from None
