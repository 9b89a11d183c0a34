"""What a run is: plugins and settings, resolved and validated, and the identity that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, BadPlugin, nearest
from prism_bench.base.settings import Settings, identity, validate
from prism_bench.base.text import short
from prism_bench.core.algorithm import Algorithm
from prism_bench.core.capacity import Capacity
from prism_bench.engine import identity as codes
from prism_bench.engine.sections import Evaluation, Training

PLUGINS: Mapping[str, registry.Group] = {
    "data": "datasets",
    "partition": "partitions",
    "model": "models",
    "algorithm": "algorithms",
    "sampler": "samplers",
}
"""The sections that choose a plugin."""

USUAL: Mapping[str, str] = {"sampler": "uniform"}
"""What is chosen where a file doesn't say."""

SECTIONS: Mapping[str, type[Settings]] = {
    "capacity": Capacity,
    "training": Training,
    "evaluation": Evaluation,
}


@dataclass(frozen=True)
class Plugin:
    """A chosen plugin with its validated settings."""

    name: str
    settings: Any
    kind: Any

    @classmethod
    def choose(cls, section: str, value: Any) -> Plugin:
        """From ``name``, from ``{name: ..., setting: ...}``, or from a plugin's class or instance itself."""
        values = cls.given(section, value)
        kind, name = cls.named(section, values["name"])
        return cls(name, validate(fields_of(kind), {k: v for k, v in values.items() if k != "name"}, section), kind)

    @staticmethod
    def given(section: str, value: Any) -> dict[str, Any]:
        """The long form of what was given: ``{name: ..., setting: ...}``; the name may be a class."""
        if isinstance(value, (str, type)):
            return {"name": value}
        if isinstance(value, (Algorithm, Settings)):
            settings = value.params if isinstance(value, Algorithm) else value
            return {"name": type(value), **settings.model_dump(exclude_unset=True)}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), (str, type)):
            several = " Several to compare go below 'grid:'." if isinstance(value, (list, tuple)) else ""
            raise BadInput(
                f"{section}: needs a name, alone or as 'name:' with settings beside it (got {short(value)}).{several}"
            )
        return dict(value)

    @staticmethod
    def named(section: str, name: str | type) -> tuple[Any, str]:
        """The plugin of a registered name, or the given class with the name that tables call it."""
        group = PLUGINS[section]
        if isinstance(name, str):
            return registry.load(group, name, f"{section}.name"), name
        contract = Algorithm if section == "algorithm" else Settings
        if not issubclass(name, contract):
            raise BadInput(f"{section}: {name.__name__} is no class of a plugin; it must derive from its contract.")
        known = registry.find(group)
        for registered, point in known.items():
            if point.value == f"{name.__module__}:{name.__qualname__}":
                return name, registered
        own = name.__name__.lower()
        if own in known:
            raise BadInput(f"{section}: an installed plugin is called '{own}' already; give your class another name.")
        return name, own

    @property
    def variant(self) -> str:
        """The settings that were given, where not all are the defaults."""
        return " ".join(f"{key}={value}" for key, value in self.settings.model_dump(exclude_unset=True).items())

    @property
    def label(self) -> str:
        return f"{self.name} {self.variant}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings.recorded()}


def fields_of(kind: Any) -> type[Settings]:
    """The class of a plugin's settings: an algorithm's own, else the plugin is one itself."""
    fields: type[Settings] = getattr(kind, "Params", kind)
    return fields


@dataclass(frozen=True)
class Run:
    """All that decides a run's numbers, resolved and validated."""

    seed: int
    data: Plugin
    partition: Plugin
    model: Plugin
    algorithm: Plugin
    sampler: Plugin
    capacity: Capacity
    training: Training
    evaluation: Evaluation

    @classmethod
    def resolve(cls, tree: Mapping[str, Any]) -> Run:
        """From a nested mapping, as a YAML file gives it."""
        for key in tree:
            if key not in {*PLUGINS, *SECTIONS, "seed"}:
                raise BadInput(f"{key}: there is no such setting. {nearest(key, [*PLUGINS, *SECTIONS])}")
        chosen = {**USUAL, **tree}
        for section in PLUGINS:
            if section not in chosen:
                raise BadInput(f"{section}: is missing.")
        plugins = {section: Plugin.choose(section, chosen[section]) for section in PLUGINS}
        sections = {key: validate(kind, tree.get(key) or {}, key) for key, kind in SECTIONS.items()}
        if not plugins["algorithm"].kind.cuts:
            sections["capacity"] = Capacity()
        run = cls(seed=tree.get("seed", 0), **plugins, **sections)  # type: ignore[arg-type]
        if run.training.active > run.partition.settings.clients:
            raise BadInput(
                f"training.active: {run.training.active} active clients per round, but partition.clients is only "
                f"{run.partition.settings.clients}."
            )
        for probe in run.evaluation.probes:
            recorder(probe)
        return run

    def as_dict(self) -> dict[str, Any]:
        """What its record and its identity have."""
        return {
            "seed": self.seed,
            **{section: getattr(self, section).as_dict() for section in PLUGINS},
            **{section: getattr(self, section).recorded() for section in SECTIONS},
        }

    def every_setting(self) -> dict[str, Any]:
        """The same, with later settings at their defaults too."""
        return self.as_dict() | {section: getattr(self, section).model_dump(mode="json") for section in SECTIONS}

    @property
    def identity(self) -> str:
        """Equal for equal settings, and for those only."""
        return identity(self.as_dict())

    def code(self) -> str:
        """A hash of all code that decides the numbers, and of weights to start from: edited, it is another run."""
        plugins = [getattr(self, section).kind for section in PLUGINS]
        recorders = [recorder(probe) for probe in self.evaluation.probes]
        return codes.code(plugins, recorders, self.model.settings.content())

    @property
    def label(self) -> str:
        """For people: what is running."""
        keep = f" at {self.capacity.label}" if self.algorithm.kind.cuts else ""
        return f"{self.algorithm.label}{keep}, seed {self.seed}"


def recorder(probe: str) -> Any:
    """The function of a view that records something of each evaluated round."""
    record = registry.load("views", probe, "evaluation.probes").record
    if record is None:
        raise BadInput(f"evaluation.probes: the view '{probe}' records nothing. {nearest(probe, recording())}")
    return record


def recording() -> list[str]:
    """The views that record something; one that can't be loaded is left out."""
    found = []
    for name in registry.find("views"):
        with suppress(BadInput):
            if registry.load("views", name, "views").record is not None:
                found.append(name)
    return found


def check_class(kind: type[Algorithm]) -> None:
    """BadPlugin where a method contradicts itself."""
    if kind.deploys == "trained" and kind.trained_part is Algorithm.trained_part:
        raise BadPlugin(
            f"{kind.__name__}: deploys = 'trained', but it has no `trained_part`; without one its whole server model "
            "would be taken for the trained part."
        )
