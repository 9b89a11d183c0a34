"""What several commands take."""

from __future__ import annotations

from typing import Annotated, Any

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument, Option

ToRun = Annotated[str, Argument(help="An experiment that [bold]prism-bench list[/bold] shows, or your own YAML file.")]
Device = Annotated[str, Option(help="auto, cpu, cuda, cuda:0, ... or mps; auto takes a GPU where there is one.")]


def parse_overrides(texts: list[str], device: str = "auto") -> dict[str, Any]:
    """What --set and --device change of an experiment."""
    import yaml

    from prism_bench.base.yaml_text import parse

    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {text}: needs KEY=VALUE, such as training.rounds=5.")
        try:
            overrides[key] = parse(value)
        except yaml.YAMLError:
            raise BadInput(f"--set {text}: the value is not valid YAML.") from None
    return overrides if device == "auto" else overrides | {"execution.device": device}
