"""Functions become commands: their parameters say what may be typed, and their docstrings are the help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import rich_click as click
from click.exceptions import Exit
from rich_click.rich_parameter import RichArgument, RichOption

__all__ = ["Argument", "Exit", "Group", "Option"]


@dataclass(frozen=True)
class Argument:
    """Annotates a parameter that is typed by its place."""

    help: str = ""
    metavar: str | None = None
    show_default: str | bool = True


@dataclass(frozen=True)
class Option:
    """Annotates a parameter that is typed by its name, ``--name`` unless another is given."""

    name: str = ""
    help: str = ""
    metavar: str | None = None
    show_default: str | bool = True
    min: int | None = None
    max: int | None = None


class Group(click.RichGroup):
    """A group of commands."""

    def __init__(self, help: str, name: str | None = None) -> None:
        config = {"text_markup": "rich"}
        super().__init__(name=name, help=help, no_args_is_help=True, context_settings={"rich_help_config": config})

    def add(self, function: Callable[..., Any], name: str = "") -> None:
        """Take a function as a command, called as the function is unless another name is given."""
        hints = get_type_hints(function, include_extras=True)
        parameters = [
            _parameter(parameter, *get_args(hints[parameter.name]))
            for parameter in inspect.signature(function).parameters.values()
        ]
        # Indented lines stay lines of their own.
        parts = (inspect.getdoc(function) or "").split("\n\n")
        about = "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in parts)
        self.add_command(
            click.RichCommand(name=name or function.__name__, callback=function, params=parameters, help=about)
        )


def _parameter(parameter: inspect.Parameter, kind: Any, about: Argument | Option) -> click.Parameter:
    [kind] = [one for one in get_args(kind) if one is not type(None)] if type(None) in get_args(kind) else [kind]
    several = get_origin(kind) is list
    if several:
        [kind] = get_args(kind)

    def convert(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if several:
            return list(value)
        return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value

    required = parameter.default is inspect.Parameter.empty
    default = None if required or several else parameter.default
    common: dict[str, Any] = {
        "metavar": about.metavar,
        "required": required,
        "callback": convert,
        "type": _type(kind, about),
    }
    if default is not None:
        common["default"] = default.value if isinstance(default, Enum) else default
    if isinstance(about, Option):
        names = [about.name or f"--{parameter.name.replace('_', '-')}", parameter.name]
        shown = about.show_default if kind is not bool else False
        if kind is bool:  # said of any other, False would let it stand without its value
            common["is_flag"] = True
        return RichOption(names, help=about.help, multiple=several, show_default=shown, **common)
    said = about.show_default if isinstance(about.show_default, str) else default
    about_default = f" [dim]\\[default: {said}][/dim]" if said else ""
    return RichArgument([parameter.name], help=about.help + about_default, nargs=-1 if several else 1, **common)


def _type(kind: Any, about: Argument | Option) -> Any:
    """What a typed word may be."""
    if kind is Path:
        return click.Path(path_type=Path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return click.Choice([one.value for one in kind])
    if isinstance(about, Option) and (about.min, about.max) != (None, None):
        return (click.FloatRange if kind is float else click.IntRange)(about.min, about.max)
    return kind
