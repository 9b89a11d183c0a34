"""``prism-bench list``: every experiment and plugin; all settings of a plugin, and what an experiment is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument
from prism_bench.cli.console import escape, out_console

if TYPE_CHECKING:
    from rich.table import Table

    from prism_bench.harness.experiment import Experiment

KINDS = ("width", "rank", "depth", "updates", "nothing", "not said")
"""What algorithms cut, in the order of their groups."""

CITATION = re.compile(
    r"(?P<first>[\w.'-]+)(?P<others>(?:,? and [\w.'-]+|, [\w.'-]+)*?)(?P<et_al> et al\.)?, "
    r"\"[^\"]+\", (?P<where>[^,.;()\"]*\d{4})"
)
"""As in: Diao, Ding, Tarokh, "HeteroFL: ...", ICLR 2021."""


def list_(
    name: Annotated[
        str | None,
        Argument(
            help="A plugin, or a section of an experiment (training, capacity, ...): all its settings. An experiment, "
            "by its name or YAML file: what it is, and its regime."
        ),
    ] = None,
) -> None:
    """Show every experiment and plugin, ours and installed ones; with a NAME, all its settings, or what it is.

    Algorithms are grouped by what they cut, with the papers that they are from.

    The regime of an experiment is what decides whether sub-models can be sampled: local steps, clients that hold a
    kernel, kernels that a layer keeps, decay and passes over the data; of each of its sizes. It needs no data.

    [bold]Examples[/bold]

      prism-bench list
      prism-bench list prism
      prism-bench list training
      prism-bench list homogeneous_resnet18
    """
    from rich.table import Table

    from prism_bench.base import registry
    from prism_bench.harness.experiment import known

    if name is not None:
        return _explain(name)
    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    shown.add_row("[bold]experiments[/bold]", "")
    for experiment, description in known().items():
        shown.add_row(f"  {experiment}", escape(description))
    for group in registry.GROUPS:
        shown.add_row(f"[bold]{group}[/bold]", "")
        kinds: dict[str, list[tuple[str, str]]] = {}
        for plugin, point in registry.find(group).items():
            origin = "" if point.dist is None or point.dist.name == "prism-bench" else f" ({point.dist.name})"
            kind = KINDS[-1]
            try:
                found = registry.load(group, plugin, group)
                said, kind = escape(_first_line(found)), _cut(found)
                origin = _cited(found) * (group == "algorithms") + origin
            except BadInput as error:
                said = f"[red]{escape(str(error))}[/red]"  # the others are worth a list without it
            kinds.setdefault(kind, []).append((f"  {plugin}", f"{said}[dim]{escape(origin)}[/dim]"))
        for kind in sorted(kinds, key=_place):
            if group == "algorithms":
                shown.add_row("", f"[italic]cut: {kind}[/italic]")
            for row in kinds[kind]:
                shown.add_row(*row)
    out_console.print(shown)
    out_console.print(
        "\n[dim]Settings: prism-bench list NAME, of a plugin or of training, capacity, evaluation; "
        "of an experiment: what it is.[/dim]"
    )


def _explain(name: str) -> None:
    """Show what has that name: a plugin or section, an experiment, or one of each."""
    from prism_bench.base import registry
    from prism_bench.base.errors import nearest
    from prism_bench.engine.sections import Execution
    from prism_bench.engine.spec import SECTIONS
    from prism_bench.harness.experiment import known

    found: dict[str, Any] = {**SECTIONS, "execution": Execution}
    for group in registry.GROUPS:
        if name in registry.find(group):
            found[name] = registry.load(group, name, group)
    base, _, size = name.rpartition("-")
    experiment = base if base in known() and size in ("paper", "scaled") else name
    is_file = name.endswith((".yaml", ".yml")) or (name not in found and Path(name).is_file())
    is_experiment = experiment in known() or is_file
    if name not in found and not is_experiment:
        every = [*found, *known(), *(plugin for group in registry.GROUPS for plugin in registry.find(group))]
        raise BadInput(f"{name}: no plugin, no section and no experiment is called that. {nearest(name, every)}")
    if name in found:
        _settings(name, found[name])
    if name in found and is_experiment:
        out_console.print()
    if is_experiment:
        _experiment(experiment)


def _settings(name: str, owner: Any) -> None:
    """Show a plugin's or section's settings: default, allowed values, meaning."""
    from rich.table import Table

    settings = getattr(getattr(owner, "Params", owner), "model_fields", {})
    if not settings:
        return out_console.print(escape(f"{name}: {_first_line(owner)}\nIt has no settings."), highlight=False)
    shown = Table(title=escape(f"{name}: {_first_line(owner)}"), title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "default", "values", ""):
        shown.add_column(column)
    for setting, field in settings.items():
        default = "required" if field.is_required() else str(field.default)
        shown.add_row(setting, escape(default), escape(_values(field.annotation)), escape(field.description or ""))
    out_console.print(shown)


def _experiment(name: str) -> None:
    """Show what an experiment is, and the regime of each of its sizes."""
    from rich.table import Table

    from prism_bench.harness.experiment import Experiment, read_tree
    from prism_bench.harness.tuned import NOT_TUNED

    _, tree = read_tree(name)
    sizes = ("scaled", "paper") if tree.get("scaled") is not None else (None,)
    # What was tuned at one size says nothing of the paper's own settings.
    loaded = {
        size or "": Experiment.load(name, size=size, tuned=NOT_TUNED if size == "paper" else None) for size in sizes
    }
    first = next(iter(loaded.values()))
    title = first.name.removesuffix(f"-{first.size}")
    title += f": {first.about.description}" if first.about.description else ""
    shown = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column()
    for fact, value in _facts(loaded, tree):
        shown.add_row(fact, escape(value))
    out_console.print(shown)
    out_console.print()
    table, hints = _regime(loaded)
    out_console.print(table)
    for hint in hints:
        out_console.print(escape(hint), style="dim", highlight=False)


def _facts(loaded: Mapping[str, Experiment], tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """List what an experiment says of itself."""
    first = next(iter(loaded.values()))
    if first.about.reference:
        yield "stands for", first.about.reference
    yield "shows", ", ".join(first.about.shows)
    for number, (key, values) in enumerate((tree.get("grid") or {}).items()):
        yield "" if number else "grid", f"{key}: {_flow(values)}"
    for number, (key, values) in enumerate(first.tune.items()):
        yield "" if number else "tune", f"{key}: {_flow(values)}"
    if first.tuned:
        yield "tuned", f"{first.tuned['file']}, {first.tuned['tries']} tries"
    yield "seeds", _by_size({size: len({run.seed for run in one.runs}) for size, one in loaded.items()})
    yield "runs", _by_size({size: len(one.runs) for size, one in loaded.items()})
    if first.note:
        yield "scaled", first.note


def _by_size(counts: Mapping[str, int]) -> str:
    """Show a count, or that of each size where they differ."""
    if len(set(counts.values())) == 1:
        return str(next(iter(counts.values())))
    return ", ".join(f"{count} ({size})" for size, count in counts.items())


def _flow(value: Any) -> str:
    """Write a value as YAML has it, in one line."""
    import yaml

    if not isinstance(value, (list, dict)):
        return str(value)
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=float("inf"))
    return text.strip()


def _regime(loaded: Mapping[str, Experiment]) -> tuple[Table, list[str]]:
    """Lay out the numbers that decide whether sub-models can be sampled, one column per size; and say what is open."""
    from rich.table import Table

    from prism_bench.engine.regime import known_of, of_runs

    regimes = {size: of_runs(one.runs, known_of) for size, one in loaded.items()}
    shown = Table(box=None, pad_edge=False)
    shown.add_column("regime")
    for size in loaded:
        shown.add_column(size, justify="right")
    unknown = False
    for words, cells in _rows(regimes):
        shown.add_row(escape(words), *cells)
        unknown |= "-" in cells
    hints = []
    if unknown:
        data = next(iter(loaded.values())).runs[0].data.name
        hints.append(
            f"-: how many samples each client has is known with the data at hand: prism-bench data prepare {data}"
        )
    if any(run.capacity.budget for one in loaded.values() for run in one.runs):
        hints.append("What a budget lets clients keep is found when the experiment runs.")
    return shown, hints


def _rows(regimes: Mapping[str, list[dict[str, Any]]]) -> Iterator[tuple[str, list[str]]]:
    """List each number with its value at each size; by keep ratio where it differs."""
    from prism_bench.analysis.regime import BY_SAMPLES, NUMBERS, value_of

    most_first = sorted(regimes.values(), key=len, reverse=True)
    keeps = list(dict.fromkeys(entry["keep"] for entries in most_first for entry in entries))
    for name, words in NUMBERS.items():
        at = {
            keep: [[entry for entry in entries if entry["keep"] == keep] for entries in regimes.values()]
            for keep in keeps
        }
        # A size that has no such keep ratio has nothing to say of it; what it has and doesn't know is a dash.
        cells = {keep: [entries and (value_of(name, entries) or "-") for entries in at[keep]] for keep in keeps}
        if name not in BY_SAMPLES and not any(cell not in ([], "-") for row in cells.values() for cell in row):
            continue
        columns = [{cell for cell in column if cell} for column in zip(*cells.values(), strict=True)]
        if all(len(column) <= 1 for column in columns):
            yield words, [next(iter(column), "") for column in columns]
        else:
            for keep, row in cells.items():
                yield f"{words}, at {keep}", [cell or "" for cell in row]


def _values(annotation: Any) -> str:
    """Name the values that a setting takes, in a word or two."""
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    parts = get_args(annotation)
    if not parts:
        return {type(None): "none"}.get(annotation, getattr(annotation, "__name__", str(annotation)))
    if annotation is not None and get_origin(annotation) is tuple:
        return f"list of {_values(parts[0])}"
    return " | ".join(part if isinstance(part, str) else _values(part) for part in parts)


def _cut(plugin: Any) -> str:
    """Say what of a model an algorithm cuts."""
    if not getattr(plugin, "cuts", True):
        return "nothing"
    return " and ".join(getattr(plugin, "smaller_in", ())) or "not said"


def _place(kind: str) -> tuple[int, str]:
    """Sort by the first of what is cut, and what is cut alone first."""
    first = next((place for place, one in enumerate(KINDS) if kind.startswith(one)), len(KINDS))
    return first, kind


def _cited(plugin: Any) -> str:
    """Name the papers that the docstring of a plugin's module cites as: authors, "title", where and when."""
    text = " ".join((getattr(sys.modules.get(plugin.__module__), "__doc__", None) or "").split())
    found = []
    for paper in CITATION.finditer(text):
        several = paper["others"] or paper["et_al"]
        found.append(f"{paper['first']}{' et al.' if several else ''}, {paper['where']}")
    return f" ({'; '.join(found)})" if found else ""


def _first_line(plugin: Any) -> str:
    """Say what a plugin is: a view by its heading, as it is an instance, others by their docstring."""
    from prism_bench.analysis.view import View

    if isinstance(plugin, View):
        return plugin.heading
    return (plugin.__doc__ or "").strip().partition("\n")[0]
