"""``prism-bench list``: every experiment and plugin, and all settings of one."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import typer
from rich.markup import escape

from prism_bench.base.errors import BadInput
from prism_bench.cli.console import out_console


def list_(
    name: Annotated[
        str | None,
        typer.Argument(help="A plugin, or a section of an experiment (training, capacity, ...): all its settings."),
    ] = None,
) -> None:
    """Show every experiment and plugin, ours and installed ones; with a NAME, all its settings.

    [bold]Examples[/bold]

      prism-bench list
      prism-bench list prism
      prism-bench list training
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
        for plugin, point in registry.find(group).items():
            origin = "" if point.dist is None or point.dist.name == "prism-bench" else f" ({point.dist.name})"
            try:
                said = escape(_first_line(registry.load(group, plugin, group)))
            except BadInput as error:
                said = f"[red]{escape(str(error))}[/red]"  # the others are worth a list without it
            shown.add_row(f"  {plugin}", f"{said}[dim]{escape(origin)}[/dim]")
    out_console.print(shown)
    out_console.print("\n[dim]Settings: prism-bench list NAME, of a plugin or of training, capacity, evaluation.[/dim]")


def _explain(name: str) -> None:
    """Show a plugin's or section's settings: default, allowed values, meaning."""
    from rich.table import Table

    from prism_bench.base import registry
    from prism_bench.base.errors import nearest
    from prism_bench.engine.sections import Execution
    from prism_bench.engine.spec import SECTIONS

    found: dict[str, Any] = {**SECTIONS, "execution": Execution}
    for group in registry.GROUPS:
        if name in registry.find(group):
            found[name] = registry.load(group, name, group)
    if name not in found:
        every = [*found, *(plugin for group in registry.GROUPS for plugin in registry.find(group))]
        raise BadInput(f"{name}: no plugin and no section is called that. {nearest(name, every)}")
    owner = found[name]
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


def _first_line(plugin: Any) -> str:
    """Say what a plugin is: a view by its heading, as it is an instance, others by their docstring."""
    from prism_bench.analysis.view import View

    if isinstance(plugin, View):
        return plugin.heading
    return (plugin.__doc__ or "").strip().partition("\n")[0]
