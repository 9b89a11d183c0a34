"""``prism-bench profile``: where a round's time goes on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prism_bench.base.errors import BadInput, Diverged
from prism_bench.cli.command import Option
from prism_bench.cli.console import check_writable, err_console, escape, out_console
from prism_bench.cli.options import Device, ToRun, parse_overrides


def profile(
    experiment: ToRun = "quickstart",
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting or choose among the runs, as in [bold]prism-bench run[/bold]: "
            "[bold]--set algorithm=prism --set capacity.keep=0.2 --set execution.at_once=1[/bold].",
        ),
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Rounds to measure of each run, after one to warm up.")] = 3,
    device: Device = "auto",
    size: Annotated[
        str | None, Option(help="paper or scaled, where the experiment has both.", show_default="scaled")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Also write the table as a CSV file.", show_default="none is written")
    ] = None,
    trace: Annotated[
        Path | None,
        Option(
            help="Also write one round of the first run as a Chrome trace (JSON), for chrome://tracing or Perfetto.",
            show_default="none is written",
        ),
    ] = None,
) -> None:
    """Show where a round's time goes: create, train, merge, refresh, evaluate, other; and how busy training is.

    Carries out a few real rounds of each run of the first seed; nothing is kept of them. Training is compared with what
    a large matrix product reaches on the same threads and device, in floating-point operations per second.

    [bold]Examples[/bold]

      prism-bench profile
      prism-bench profile time_breakdown --out profile.csv
      prism-bench profile mine.yaml --set algorithm=prism --set execution.threads=1 --trace round.json
    """
    from prism_bench.analysis.profile import first_seed, time_rounds
    from prism_bench.analysis.profile import trace as write_trace
    from prism_bench.analysis.report import sheets
    from prism_bench.analysis.report.cells import Form
    from prism_bench.analysis.report.rendering import text
    from prism_bench.base.files import write_csv
    from prism_bench.harness.experiment import Experiment, blaming
    from prism_bench.harness.jobs import Shelf
    from prism_bench.harness.runner import check_runs

    overrides = parse_overrides(set_ or [], device)
    loaded = Experiment.load(experiment, overrides, size=size)
    for option, file, example in (("--out", out, "profile.csv"), ("--trace", trace, "round.json")):
        if file is not None:
            if file.is_dir():
                raise BadInput(f"{option} {file}: is a folder; a file such as {file / example} is needed.")
            check_writable(file.parent, option)

    def say(text: str) -> None:
        err_console.print(f"  {escape(text)}", style="dim", highlight=False, soft_wrap=True)

    shelf = Shelf(lambda _event, name: say(f"reading {name}"))
    with blaming(loaded.origin):
        check_runs(first_seed(loaded), shelf)
        try:
            frame = time_rounds(loaded, shelf, rounds, say)
        except Diverged as problem:
            raise BadInput(str(problem)) from None
    sheet = sheets.profile(frame, Form(loaded.name, note=loaded.note))
    out_console.print(text(sheet, out_console.width))
    if out is not None:
        write_csv(frame, out)
        out_console.print(f"  {escape(out)}", highlight=False, soft_wrap=True)
    if trace is not None:
        write_trace(loaded, shelf, trace)
        out_console.print(f"  {escape(trace)}", highlight=False, soft_wrap=True)
