"""What several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

ToRun = Annotated[
    str, typer.Argument(help="An experiment that [bold]prism-bench list[/bold] shows, or your own YAML file.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps; auto takes a GPU where there is one.")]
