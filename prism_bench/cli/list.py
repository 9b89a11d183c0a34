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
    for kind in registry.KINDS:
        shown.add_row(f"[bold]{kind}[/bold]", "")
        for plugin, point in registry.find(kind).items():
            loaded = registry.load(kind, plugin, kind)
            origin = "" if point.dist is None or point.dist.name == "prism-bench" else f" ({point.dist.name})"
            shown.add_row(f"  {plugin}", f"{escape(_first_line(loaded))}[dim]{origin}[/dim]")
    out_console.print(shown)
    out_console.print("\n[dim]Settings: prism-bench list NAME, of a plugin or of training, capacity, evaluation.[/dim]")


def _explain(name: str) -> None:
    """A plugin's or section's settings: default, allowed values, meaning."""
    from rich.table import Table

    from prism_bench.base import registry
    from prism_bench.base.errors import nearest
    from prism_bench.engine.settings import Execution
    from prism_bench.engine.spec import SECTIONS

    found: dict[str, Any] = {**SECTIONS, "execution": Execution}
    for kind in registry.KINDS:
        if name in registry.find(kind):
            found[name] = registry.load(kind, name, kind)
    if name not in found:
        every = [*found, *(plugin for kind in registry.KINDS for plugin in registry.find(kind))]
        raise BadInput(f"{name}: no plugin and no section is called that. {nearest(name, every)}")
    owner = found[name]
    shown = Table(title=escape(f"{name}: {_first_line(owner)}"), title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "default", "values", ""):
        shown.add_column(column)
    for setting, field in getattr(owner, "Params", owner).model_fields.items():
        default = "required" if field.is_required() else str(field.default)
        shown.add_row(setting, escape(default), escape(_values(field.annotation)), escape(field.description or ""))
    out_console.print(shown)


def _values(annotation: Any) -> str:
    """The values that a setting takes, in a word or two."""
    if get_origin(annotation) is Annotated:
        return _values(get_args(annotation)[0])
    parts = get_args(annotation)
    if not parts:
        return {type(None): "none"}.get(annotation, getattr(annotation, "__name__", str(annotation)))
    if annotation is not None and get_origin(annotation) is tuple:
        return f"list of {_values(parts[0])}"
    return " | ".join(part if isinstance(part, str) else _values(part) for part in parts)


def _first_line(plugin: Any) -> str:
    return (plugin.__doc__ or "").strip().partition("\n")[0]
