"""``prism-bench run``: an experiment is carried out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from prism_bench.base.errors import BadInput
from prism_bench.base.text import brief
from prism_bench.base.trust import allow
from prism_bench.cli.command import Exit, Option
from prism_bench.cli.console import check_results, err_console, escape
from prism_bench.cli.display import Display, present
from prism_bench.cli.options import Device, ToRun, Trust, Yes, parse_overrides

if TYPE_CHECKING:
    from prism_bench.integrations.ray.grid import RayGrid


def run(
    experiment: ToRun = "quickstart",
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting, again for more: [bold]--set training.rounds=5 --set algorithm.kappa=4[/bold]. "
            "Replaces the grid's values where the grid varies that key: "
            "[bold]--set 'algorithm=\\[prism,orthdrop]'[/bold]; [bold]algorithm=all[/bold] is every method there is, "
            "but for those that can't work with the other settings, which are named and left out. "
            "[bold]grid.[/bold] adds one to vary: "
            "[bold]--set 'grid.training.lr=[0.05,0.1]'[/bold].",
        ),
    ] = None,
    out: Annotated[Path | None, Option(help="Folder for the results.", show_default="results/EXPERIMENT")] = None,
    device: Device = "auto",
    seeds: Annotated[
        str | None,
        Option(help="How many seeds, or which: 3, or 0,1,2.", show_default="the experiment's"),
    ] = None,
    size: Annotated[
        str | None,
        Option(
            help="paper (the paper's own setting, for a GPU) or scaled (for two cores), where it has both.",
            show_default="scaled",
        ),
    ] = None,
    jobs: Annotated[int, Option(min=1, help="Runs at once, in processes that share the cores.")] = 1,
    on: Annotated[
        str | None,
        Option(
            metavar="ray",
            help="Where runs are carried out instead of here: [bold]ray[/bold], each a task of a Ray cluster, or of a "
            "Ray of this machine alone where there is no --address (docs/scale.md).",
            show_default="processes of this machine",
        ),
    ] = None,
    address: Annotated[
        str | None,
        Option(
            metavar="auto|HOST:PORT",
            help="Of the Ray cluster; auto: the one that this machine belongs to.",
            show_default="RAY_ADDRESS",
        ),
    ] = None,
    cpus: Annotated[float | None, Option(help="CPUs for each run on Ray.", show_default="1")] = None,
    gpus: Annotated[
        float | None, Option(help="GPUs for each run on Ray; 0.5: two share one.", show_default="0")
    ] = None,
    shard: Annotated[
        str | None,
        Option(
            metavar="I/N",
            help="Only the I-th of N parts of the runs, as in an array of jobs: [bold]--shard 1/4[/bold]. The same "
            "command with the other parts does the rest, into the same folder.",
            show_default="all of them",
        ),
    ] = None,
    track: Annotated[
        list[str] | None,
        Option(
            help="Also tell a tracker of every round to come: tensorboard or mlflow, again for more. Nothing is sent."
        ),
    ] = None,
    tuned: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Give each run the settings that [bold]prism-bench tune[/bold] chose for its method and capacity, "
            "from this file; [bold]none[/bold] leaves out those that the experiment names. --set beats the file.",
            show_default="the experiment's",
        ),
    ] = None,
    accept: Annotated[
        list[str] | None,
        Option(
            metavar="CODE",
            help="Count finished runs of that code as done, too, where their settings and data are equal; again for "
            "more, or [bold]all[/bold]. A start says which codes there are, and tables say which made which row.",
        ),
    ] = None,
    exported: Annotated[
        bool,
        Option(
            "--exported",
            help="Count as done, too, what is only in the folder's rounds.csv, as after a clone: so a seed or a method "
            "is added to results that came without their runs.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            min=1,
            help="End a run of which a round takes longer; it has failed, and the others go on.",
            show_default="none",
        ),
    ] = None,
    trust: Trust = None,
    yes: Yes = False,
    fresh: Annotated[bool, Option("--fresh", help="Run again what an earlier start has finished.")] = False,
) -> None:
    """Run an experiment; ends in a table, CSV files and pictures.

    Stopped or killed at any moment and started again, it goes on where it was: nothing is lost but the round under way.

    [bold]Examples[/bold]

      prism-bench run
      prism-bench run --set algorithm=all --out results/all
      prism-bench run --seeds 3 --set capacity.keep=[0.1,0.5] --out results/mine
      prism-bench run homogeneous_cnn --jobs 2 --track tensorboard
      prism-bench run my.yaml --set algorithm.kappa=4 --device cuda
      prism-bench run my.yaml --tuned results/tune/my/tuned.yaml
      prism-bench run my.yaml --on ray --address auto --cpus 2 --gpus 0.5
      prism-bench run my.yaml --shard 1/4
    """
    from prism_bench.harness.experiment import MOST_RUNS, Experiment
    from prism_bench.harness.runner import carry_out
    from prism_bench.harness.trackers import trackers

    if fresh and (accept or exported):
        raise BadInput(f"--{'accept' if accept else 'exported'}: is for runs that are kept, and --fresh keeps none.")
    if timeout is not None and not math.isfinite(timeout):
        raise BadInput(f"--timeout {timeout}: needs a number of seconds.")
    allow(trust or ())
    part = parse_shard(shard)
    place = parse_place(on, {"--address": address, "--cpus": cpus, "--gpus": gpus}, jobs)
    overrides = parse_overrides(set_ or [], device)
    loaded = Experiment.load(experiment, overrides, parse_seeds(seeds), size, tuned, most=None if yes else MOST_RUNS)
    folder = out or Path("results") / loaded.name
    check_results(folder)
    tracking = trackers(track or [], folder)
    with Display(err_console) as display, ExitStack() as connected:
        grid = None
        if place is not None:
            place.check(loaded.execution)
            grid = connected.enter_context(place)
        try:
            outcome = carry_out(
                loaded,
                folder,
                fresh=fresh,
                jobs=jobs,
                callbacks=[display, *tracking],
                accept=accept or (),
                exported=exported,
                isolate=True,
                timeout=timeout,
                shard=part,
                grid=grid,
            )
        except KeyboardInterrupt as stop:
            display.stop()
            again = "" if not fresh else " without --fresh"
            total = display.total or len(loaded.runs)
            err_console.print(
                f"Stopped. {display.done} of {total} runs are done, and finished rounds of the others are "
                f"kept in {escape(folder)}; the same command{again} goes on from there.",
                soft_wrap=True,
            )
            raise Exit(143 if "SIGTERM" in stop.args else 130) from None
    raise Exit(present(folder, outcome))


def parse_place(on: str | None, given: Mapping[str, Any], jobs: int) -> RayGrid | None:
    """Where runs are carried out, if not here."""
    if on is None:
        for name, value in given.items():
            if value is not None:
                raise BadInput(f"{name}: says how runs are carried out on Ray; add --on ray.")
        return None
    if on != "ray":
        raise BadInput(f"--on {brief(on)}: there is no such place. It may be ray; --jobs is for this machine.")
    if jobs > 1:
        raise BadInput("--jobs: says how many runs go on here; on Ray, --cpus and --gpus of each run say how many.")
    from prism_bench.integrations.ray.grid import RayGrid

    cpus, gpus = given["--cpus"], given["--gpus"]
    return RayGrid(given["--address"], 1 if cpus is None else cpus, 0 if gpus is None else gpus)


def parse_shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise BadInput(f"--shard {brief(text)}: needs I/N with I from 1 to N, such as 1/4 for the first of four parts.")
    return int(match[1]), int(match[2])


def parse_seeds(text: str | None) -> int | list[int] | None:
    if text is None:
        return None
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {brief(text)}: needs a number such as 3, or a list such as 0,1,2.") from None
    return numbers if "," in text else numbers[0]
