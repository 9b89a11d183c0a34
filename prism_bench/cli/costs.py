"""``prism-bench costs``: what a client pays, as it runs and as the paper counts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from prism_bench.base.errors import BadInput
from prism_bench.cli.command import Argument, Option
from prism_bench.cli.console import check_writable, escape, out_console

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def costs(
    more: Annotated[list[str] | None, Argument(help="Further keep ratios.", show_default=False)] = None,
    model: Annotated[str, Option(help="A model that [bold]prism-bench list[/bold] shows.")] = "resnet18",
    keep: Annotated[list[str] | None, Option(help="Keep ratios: --keep 1 0.8 0.6 0.4 0.2.")] = None,
    batch: Annotated[int, Option(min=1, max=1_000_000, help="Samples in a batch, for the activations.")] = 32,
    out: Annotated[Path | None, Option(help="CSV file.", show_default="results/costs/MODEL.csv")] = None,
) -> None:
    """Show what one client pays with every algorithm: parameters, MACs, memory, bytes; writes a CSV.

    Counted on the whole sub-model as it runs. Memory is that of activations; all memory has the parameters, gradients
    and momentum, too. Where training takes a cheaper way to the same logits, a second line has the costs of the method
    as its authors state it: a factorised layer as V, then U. Beside it, for ResNet-18, the paper's table and the
    convention behind it, which counts only the factorised layers.

    [bold]Examples[/bold]

      prism-bench costs
      prism-bench costs --model lstm --keep 0.5 0.25
    """
    from prism_bench.base.files import write_csv

    texts = [*(keep or []), *(more or [])] or ["1", "0.8", "0.6", "0.4", "0.2"]
    file = out or Path("results") / "costs" / f"{model}.csv"
    if file.is_dir():
        raise BadInput(f"--out {file}: is a folder; a file such as {file}/costs.csv is needed.")
    check_writable(file.parent)
    frame = table(model, [_ratio(text) for text in texts], batch)
    write_csv(frame, file)
    out_console.print(show(frame, f"Costs of one client, {model}, batch {batch}"))
    out_console.print(f"  {escape(file)}", highlight=False, soft_wrap=True)


def table(model: str, keeps: list[float], batch: int = 32) -> pd.DataFrame:
    """One row an algorithm and keep ratio: costs as it runs, in % of the full model's, and the paper's if any.

    Where the method as stated costs otherwise, columns ``stated_...`` have those costs.
    """
    import pandas as pd
    import torch

    from prism_bench.base import registry
    from prism_bench.engine import costs as counting
    from prism_bench.engine.sections import Training
    from prism_bench.engine.spec import Plugin
    from prism_bench.harness import paper

    settings = Plugin.choose("model", model).settings
    data = settings.usual
    network = settings.build(data)
    about = (data, batch, Training.model_fields["momentum"].default)
    full = counting.of_full_model(network, *about)
    rows = []
    for name in registry.find("algorithms"):
        try:
            kind = registry.load("algorithms", name, "algorithm.name")
        except BadInput as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
            continue
        dense = {path: torch.zeros(tensor.shape) for path, tensor in network.named_parameters()}
        algorithm = kind()
        algorithm.build(settings.build(data), seed=0)
        algorithm.start(dense)
        for keep in [keep for keep in keeps if kind.cuts] or [1.0]:
            try:
                kind.check(algorithm.params, network, (keep,))
            except BadInput:
                continue  # SplitMix below one atom: there is no such sub-model
            algorithm.keeps = (keep,)
            one, stated = (way(algorithm, keep, *about) for way in (counting.of_client, counting.as_stated))
            row = {"algorithm": name, "keep": keep}
            for cost, whole in vars(full).items():
                row |= {cost: getattr(one, cost), f"{cost}_%": 100 * getattr(one, cost) / whole}
                if getattr(stated, cost) != getattr(one, cost):
                    row |= {f"stated_{cost}": getattr(stated, cost)}
                    row |= {f"stated_{cost}_%": 100 * getattr(stated, cost) / whole}
            if model == "resnet18":
                own = paper.convention(network, data, name, keep)
                chosen = {"name": name, **algorithm.params.model_dump()}
                run = {"model": {"name": model}, "algorithm": chosen, "capacity": {"keep": [keep]}}
                row |= {f"convention_{key}": value for key, value in own.items()}
                row |= paper.beside(run, "modelsize")
                row.pop("paper_source", None)
            rows.append(row)
    frame: pd.DataFrame = pd.DataFrame(rows)
    return frame


def show(frame: pd.DataFrame, title: str) -> Table:
    """For the terminal: as it runs, below it as stated where that differs; then convention | paper where there are."""
    import pandas as pd
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from prism_bench.analysis.report import human
    from prism_bench.analysis.report.cells import COST_NAMES

    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    paper = [key for key in ("params_M", "macs_G", "mem_M") if f"paper_{key}" in frame]
    for column in ("algorithm", "keep"):
        shown.add_column(column)
    for column in COST_NAMES.values():
        shown.add_column(column, justify="right", no_wrap=True)
    for key in paper:
        shown.add_column(f"{key.replace('_', ', ')}:\nconvention | paper", justify="right")
    for row in frame.to_dict("records"):
        cells = [f"{human(row[cost])} {row[f'{cost}_%']:.1f}%" for cost in COST_NAMES]
        for key in paper:
            ours, theirs = row.get(f"convention_{key}"), row.get(f"paper_{key}")
            both = [("-" if pd.isna(v) else form.format(v)) for v, form in ((ours, "{:.2f}"), (theirs, "{:g}"))]
            cells.append("" if both == ["-", "-"] else " | ".join(both))
        shown.add_row(str(row["algorithm"]), f"{row['keep']:g}", *cells)
        stated = {cost: row.get(f"stated_{cost}") for cost in COST_NAMES}
        if any(pd.notna(value) for value in stated.values()):
            cells = [
                f"{human(value)} {row[f'stated_{cost}_%']:.1f}%" if pd.notna(value) else ""
                for cost, value in stated.items()
            ]
            shown.add_row("  as stated", "", *cells)
    return shown


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise BadInput(f"--keep {text}: a keep ratio is above 0 and at most 1 (a model is chosen with --model).")
    return value
