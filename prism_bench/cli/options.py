"""What several commands take."""

from __future__ import annotations

from typing import Annotated, Any

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument, Option

ToRun = Annotated[str, Argument(help="An experiment that [bold]prism-bench list[/bold] shows, or your own YAML file.")]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:0, ... or mps; auto takes a GPU where there is one.")]


Trust = Annotated[
    list[str] | None,
    Option(
        metavar="MODULE:FUNCTION",
        help="Let the settings import this and run it, or whatever is in this module or package; again for more. "
        "Without it nothing that a file names is imported.",
    ),
]
Yes = Annotated[bool, Option("--yes", help="Also where the grid makes more than 2,000 runs.")]


def parse_overrides(texts: list[str], device: str = "auto") -> dict[str, Any]:
    """What --set and --device change of an experiment."""
    import yaml

    from prism_bench.base.yaml_text import parse

    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {text[:200]}: needs KEY=VALUE, such as training.rounds=5.")
        try:
            overrides[key] = parse(value)
        except yaml.YAMLError as error:
            why = getattr(error, "problem", None) or str(error)
            raise BadInput(f"--set {text[:200]}: the value is not valid YAML ({why}).") from None
    return overrides if device == "auto" else overrides | {"execution.device": device}
