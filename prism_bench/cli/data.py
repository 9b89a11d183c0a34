"""What a person types about data: what there is, prepare it, check it; and a picture of a partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from prism_bench.base.errors import BadInput, within_memory
from prism_bench.base.trust import allow
from prism_bench.cli.command import Argument, Option
from prism_bench.cli.console import check_writable, err_console, escape, out_console
from prism_bench.cli.options import ToRun, Trust, parse_overrides

if TYPE_CHECKING:
    from prism_bench.data.dataset import Dataset
    from prism_bench.data.sources import OnProgress, Raw

Name = Annotated[str, Argument(help="A data set that [bold]prism-bench data list[/bold] shows.")]
Set = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Change a setting, again for more: [bold]--set words=500[/bold]."),
]
Root = Annotated[
    Path | None,
    Option(help="Folder with raw data.", show_default="$PRISM_BENCH_DATA, else the user's cache"),
]


def list_() -> None:
    """Show every data set: where its raw data was found, and whether it is prepared."""
    from rich.table import Table

    from prism_bench.base import registry
    from prism_bench.data.sources import StoredSource

    shown = Table(box=None, pad_edge=False, show_header=False)
    shown.add_column(no_wrap=True)
    # A path that is too long for the terminal goes on in the next line, whole.
    shown.add_column(overflow="fold")
    for name in registry.find("datasets"):
        plugin = registry.load("datasets", name, "datasets")
        shown.add_row(name, (plugin.__doc__ or "").strip().partition("\n")[0])
        if not issubclass(plugin, StoredSource):
            continue
        source = plugin()
        try:
            raw = source.find()
        except BadInput:
            state = f"not in {source.folder}"
        else:
            state = f"{'prepared' if source.prepared(raw) else 'not yet prepared'}, from {_origin(raw)}"
        shown.add_row("", f"[dim]{escape(state)}[/dim]")
    out_console.print(shown)


def prepare(
    name: Name,
    set_: Set = None,
    root: Root = None,
    allow_network: Annotated[
        bool, Option("--allow-network", help="Download from the Hub what is not in the root.")
    ] = False,
    trust: Trust = None,
) -> None:
    """Read a data set and keep it as tensors, so that runs start at once.

    [bold]Examples[/bold]

      prism-bench data prepare cifar10 --allow-network
      prism-bench data prepare imdb --set split=original --root ~/data
    """
    from prism_bench.data.sources import StoredSource

    allow(trust or ())
    source = _source(name, set_, root, allow_network)
    start = time.perf_counter()
    with _progress() as tell:
        data = source.load(tell) if isinstance(source, StoredSource) else source.load()
    out_console.print(f"[bold]{escape(name)}[/bold]: {describe(data)}", highlight=False, soft_wrap=True)
    if isinstance(source, StoredSource):
        raw = source.find()
        kept = ", ".join(str(file) for file in source.prepared(raw)) or "not kept"
        out_console.print(f"  from {escape(_origin(raw))}\n  {escape(kept)}", highlight=False, soft_wrap=True)
        _say_if_incomplete(source, data)
    out_console.print(f"  {time.perf_counter() - start:.1f} s", highlight=False)


def check(name: Name, set_: Set = None, root: Root = None, trust: Trust = None) -> None:
    """Is the data there, whole and readable? Reads all of it anew, looks at what is kept, and writes nothing."""
    from prism_bench.base.files import read_tensors
    from prism_bench.data.sources import StoredSource

    allow(trust or ())
    source = _source(name, set_, root)
    if not isinstance(source, StoredSource):
        out_console.print(f"[bold]{escape(name)}[/bold]: {describe(source.load())}", highlight=False, soft_wrap=True)
        return
    raw = source.find()
    kept = source.prepared(raw)
    damaged = [file for file in kept if read_tensors(file) is None]
    if damaged:
        raise BadInput(f"{damaged[0]}: is damaged (its checksum is wrong); prism-bench data prepare {name} renews it.")
    if raw.files or not kept:
        with _progress() as tell:
            data = source.assemble(source.prepare(raw, tell))
    else:
        # From the Hub, and here already: no reason to download it again.
        data = source.load()
    out_console.print(f"[bold]{escape(name)}[/bold]: {describe(data)}", highlight=False, soft_wrap=True)
    state = "kept and whole" if kept else f"not yet prepared: prism-bench data prepare {name}"
    out_console.print(f"  from {escape(_origin(raw))}\n  {state}", highlight=False, soft_wrap=True)
    _say_if_incomplete(source, data)


def partition(
    experiment: ToRun = "quickstart",
    set_: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Change a setting: [bold]--set partition.alpha=0.1[/bold]."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="The picture: .png, .pdf or .svg.", show_default="results/EXPERIMENT/partition.png"),
    ] = None,
    seed: Annotated[int | None, Option(min=0, help="Which seed.", show_default="the experiment's first")] = None,
    trust: Trust = None,
) -> None:
    """Draw how an experiment's data is split: clients × classes. Nothing is trained.

    Where its grid has several partitions it is the first; --set chooses another.

    [bold]Examples[/bold]

      prism-bench partition
      prism-bench partition my.yaml --set partition.alpha=0.1 --out skewed.png
    """
    from rich.table import Table

    from prism_bench.analysis.report.partition_picture import draw
    from prism_bench.engine.federation import split
    from prism_bench.harness.experiment import Experiment, blaming

    allow(trust or ())
    loaded = Experiment.load(experiment, parse_overrides(set_ or []), None if seed is None else [seed])
    file = out or Path("results") / loaded.name / "partition.png"
    if file.suffix not in (".png", ".pdf", ".svg") or file.is_dir():
        raise BadInput(f"--out {file}: needs a file that ends in .png, .pdf or .svg.")
    check_writable(file.parent)
    run = loaded.runs[0]
    with blaming(loaded.origin), within_memory("data"):
        data = run.data.settings.read(run.evaluation.on)
        parts = split(run, data)
    labels = data.train.labels.numpy()
    title = f"{run.data.label}, {run.partition.label}, seed {run.seed}"
    draw(parts, labels, file, title)

    frame = parts.describe(labels)
    shown = Table(title=f"{title}: {len(parts)} clients", title_justify="left", box=None, pad_edge=False)
    for column in ("a client's", "least", "median", "most"):
        shown.add_column(column, justify="left" if column == "a client's" else "right")
    meaning = {"samples": "samples", "classes": "classes", "distance": "distance from all the data's classes (0 to 1)"}
    for column, words in meaning.items():
        values = (frame[column].min(), frame[column].median(), frame[column].max())
        shown.add_row(words, *(f"{value:.2f}" if column == "distance" else f"{value:.0f}" for value in values))
    out_console.print(shown, highlight=False)
    out_console.print(f"  {escape(file)}", highlight=False, soft_wrap=True)


def describe(data: Dataset) -> str:
    """One line on what a data set holds."""
    shape = "×".join(map(str, data.signature.shape))
    text = f"{len(data.train):,} training and {len(data.test):,} test samples of {shape}, {data.classes} classes"
    if data.vocabulary is not None:
        text += f", vocabulary {data.vocabulary:,}"
    if data.owners is not None:
        text += f", {len(set(data.owners)):,} writers"
    return text


def _source(name: str, texts: list[str] | None, root: Path | None, allow_network: bool = False) -> Any:
    from prism_bench.base import registry
    from prism_bench.base.settings import validate
    from prism_bench.data.sources import StoredSource

    plugin = registry.load("datasets", name, "NAME")
    values = parse_overrides(texts or [])
    if issubclass(plugin, StoredSource):
        values |= ({"root": root} if root else {}) | ({"allow_network": True} if allow_network else {})
    elif root or allow_network:
        raise BadInput(f"NAME: '{name}' needs no raw data: leave out --root and --allow-network.")
    return validate(plugin, values, name)


def _origin(raw: Raw) -> str:
    if not raw.files:
        return f"the Hub, {raw.place}"
    return f"{raw.place} ({raw.form.name}, {len(raw.files):,} file{'s' * (len(raw.files) > 1)})"


def _say_if_incomplete(source: Any, data: Dataset) -> None:

    there = len(data.train) + len(data.test)
    if source.complete and there != source.complete:
        note = f"[yellow]note[/yellow]: {there:,} samples, but the whole of {source.title} has {source.complete:,}."
        err_console.print(note, highlight=False, soft_wrap=True)


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """A bar for each stage of reading; on a terminal only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err_console, disable=not err_console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
