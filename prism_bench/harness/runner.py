"""An experiment is carried out, each run in a folder of its own.

Started again, it skips what is done and goes on with what is not. Two starts of one experiment share its work.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, nearest, within_memory
from prism_bench.core.seeds import stream
from prism_bench.engine import costs, regime
from prism_bench.engine.executors import MakeExecutor
from prism_bench.engine.federation import Federation
from prism_bench.engine.hardware import choose_device
from prism_bench.engine.local import check_passes
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import PLUGINS, Run, check_class, recording
from prism_bench.harness import paper
from prism_bench.harness.callbacks import Callback, Callbacks
from prism_bench.harness.experiment import About, Experiment, blaming
from prism_bench.harness.exported import bring_back
from prism_bench.harness.jobs import Grid, Shelf, Tell, foreign, jobs_of, one_by_one, side_by_side
from prism_bench.harness.lease import Busy, Lease
from prism_bench.harness.results import Results
from prism_bench.harness.run_folder import RunFolder
from prism_bench.harness.tuned import NOT_TUNED

ANY_CODE = "all"
"""Accepts finished runs whatever their code."""


@dataclass
class Outcome:
    """What an experiment gave: the finished runs in long format, and the runs that failed."""

    rounds: pd.DataFrame
    failed: dict[str, str]
    """What failed, and why."""


def carry_out(
    experiment: Experiment,
    out: Path | None = None,
    *,
    fresh: bool = False,
    jobs: int = 1,
    callbacks: Iterable[Callback] = (),
    executor: MakeExecutor | None = None,
    accept: Sequence[str] = (),
    exported: bool = False,
    isolate: bool = False,
    timeout: float | None = None,
    shard: tuple[int, int] = (1, 1),
    grid: Grid | None = None,
) -> Outcome:
    """Run what has not been run yet, ``jobs`` at once. Runs are kept in ``out``, or forgotten where that is None.

    ``shard`` is which part of the runs, and of how many: the others are somebody else's. The results in ``out`` are
    always about all runs, and whoever is done last leaves the whole table there. ``grid`` carries the runs out, in
    place of this process and those that it would start.

    Finished runs of other code count as done where ``accept`` names that code, or is ``all``, and their settings and
    data are equal. ``exported`` takes for done, too, what is only in ``out``'s ``rounds.csv``.

    ``executor`` makes what trains the clients of each run, in place of what ``execution.on`` names.

    ``isolate`` gives runs of anybody else's code processes of their own also where ``jobs`` is 1. A run of which a
    round takes over ``timeout`` seconds is ended, and has failed.
    """
    if out is None:
        how: dict[str, Any] = {"jobs": jobs, "callbacks": callbacks, "isolate": isolate, "timeout": timeout}
        with TemporaryDirectory(prefix="prism_bench-") as name:
            return carry_out(experiment, Path(name), executor=executor, **how)
    tell = Callbacks(callbacks).tell
    shelf = Shelf(tell)
    with blaming(experiment.origin):
        if experiment.every:
            experiment = _without_the_unfit(experiment, shelf)
        else:
            check_runs(experiment.runs, shelf)
        device = choose_device(experiment.execution.device)
        _check_execution(experiment, apart=jobs > 1 or grid is not None)
        _check_shard(shard, len(experiment.runs))
    if exported:
        bring_back(out, experiment.runs, recording())
    folders = [RunFolder.of(out, run.identity, shelf.digest(run), run.code()) for run in experiment.runs]
    for run, folder in zip(experiment.runs, folders, strict=True):
        folder.mend(run.as_dict())
    mine = range(shard[0] - 1, len(folders), shard[1])
    if fresh:
        _forget([folders[number] for number in mine])
    else:
        folders = _accepted(experiment.runs, folders, accept, tell)
    (out / "runs").mkdir(parents=True, exist_ok=True)
    about = manifest(experiment, folders, shelf)
    with Lease(out).held(wait=True):
        Results(out, about | {"tables": _tables(out)}).write()
    labels = [experiment.label(run) for run in experiment.runs]
    folders, labels = [folders[number] for number in mine], [labels[number] for number in mine]
    experiment = replace(experiment, runs=[experiment.runs[number] for number in mine])
    first = experiment.runs[0]
    tell("begin", experiment, shelf.data(first), shelf.population(first), str(device))
    failed = {}
    todo = jobs_of(experiment, folders, labels)
    apart = isolate and any(foreign(run, experiment.execution) for run in experiment.runs)
    if grid is not None:
        ends = grid(todo, tell, timeout)
    elif jobs > 1 or timeout is not None or apart:
        ends = side_by_side(todo, tell, jobs, executor, timeout)
    else:
        ends = one_by_one(todo, shelf, tell, executor)
    try:
        for number, end in ends:
            label = labels[number]
            if end.how == "failed":
                failed[label] = end.error
            summary = None if end.how == "failed" else folders[number].summary()
            tell("run_done", number, label, summary, end.how == "kept", end.error)
    finally:
        ends.close()
        tell("end")
    # By what this start is about, whatever another one has written there meanwhile; one after another, so that the last
    # to write has seen all that is done.
    with Lease(out).held(wait=True):
        return Outcome(export(Results(out, about)), failed)


def _tables(out: Path) -> dict[str, str]:
    """The checksums of the tables that an earlier start left, which stand until this one is over."""
    with suppress(BadInput), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(Results.open(out).about.get("tables", {}))
    return {}


def _accepted(runs: Sequence[Run], folders: Sequence[RunFolder], accept: Sequence[str], tell: Tell) -> list[RunFolder]:
    """The runs' folders; where one is not finished, that of accepted code. Says what else could be accepted."""
    unfinished = [folder.summary() is None for folder in folders]
    if not accept and not any(unfinished):
        return list(folders)  # nothing to look for: a folder may hold hundreds of runs
    chosen, offered = [], Counter[str]()
    place = folders[0].path.parent
    earlier = _finished(place)
    there = sorted({code for codes in earlier.values() for code in codes})
    accept = there if ANY_CODE in accept else accept
    for code in accept:
        if code not in there:
            raise BadInput(f"--accept {code}: {place} has no finished run of it. {nearest(code, [*there, ANY_CODE])}")
    for run, folder, wanted in zip(runs, folders, unfinished, strict=True):
        codes = earlier.get((run.identity, folder.parts[1]), {}) if wanted else {}
        chosen.append(next((codes[code] for code in accept if code in codes), folder))
        if chosen[-1] is folder:
            offered.update(codes.keys())
    for code, count in offered.items():
        tell("other_code", code, count)
    return chosen


def _finished(place: Path) -> dict[tuple[str, str], dict[str, RunFolder]]:
    """The finished runs in a folder, by the identity that their settings have today and by their data; then by code."""
    found: dict[tuple[str, str], dict[str, RunFolder]] = {}
    for path in sorted(place.glob("*-*-*")):
        folder = RunFolder(path)
        try:
            settings = folder.settings() if folder.summary() is not None else None
            # A setting that came later has its default: equal settings have one identity, then and now.
            today = Run.resolve(settings).identity if settings is not None else None
        except (BadInput, OSError, ValueError):
            continue  # damaged, or of a plugin that is no longer there
        if today is not None:
            _, data, code = folder.parts
            found.setdefault((today, data), {})[code] = folder
    return found


def _forget(folders: Sequence[RunFolder]) -> None:
    """Before the first run starts, so that an interrupted --fresh can go on without it."""
    for folder in folders:
        try:
            folder.forget()
        except Busy:
            raise BadInput(f"--fresh: another process is at {folder.path}; stop it, or leave out --fresh.") from None


def _check_shard(shard: tuple[int, int], runs: int) -> None:
    part, parts = shard
    if not 1 <= part <= parts:
        raise BadInput(f"--shard {part}/{parts}: needs I/N with I from 1 to N.")
    if parts > runs:
        raise BadInput(f"--shard {part}/{parts}: there are {runs} runs, so at most {runs} parts.")


def _check_execution(experiment: Experiment, apart: bool) -> None:
    """BadInput where the runs can't be carried out in the way that is asked for; ``apart``: not in this process."""
    name = experiment.execution.executor
    kind = registry.load("executors", name, "execution.on")
    kind.settings(experiment.execution)
    if apart and kind.elsewhere:
        raise BadInput(
            f"execution.on: '{name}' starts processes of its own for each run; use --jobs 1 with it, and no --on."
        )
    # A class that was typed into a notebook or a shell is in no file that another process could import.
    typed = not hasattr(sys.modules["__main__"], "__file__")
    for plugin in (getattr(run, section).kind for run in experiment.runs for section in PLUGINS):
        if typed and plugin.__module__ == "__main__" and (apart or kind.elsewhere):
            raise BadInput(
                f"{plugin.__name__} is defined here and nowhere else, so other processes can't find it; use one job "
                "and execution.on: threads, or put it into a file."
            )


def export(results: Results) -> pd.DataFrame:
    """Write what is done in long format, for people and for version control; what is out of date goes.

    Returns the rounds.
    """
    frames = {"rounds": results.rounds(), **{name: results.probe(name) for name in recording()}}
    Results(results.folder, results.about | {"environments": results.environments()}).write(frames)
    return frames["rounds"]


def check_runs(runs: Sequence[Run], shelf: Shelf) -> None:
    """Read the data and split it. What can't work is known before anything runs or is written."""
    models: set[Any] = set()
    for run in runs:
        check_class(run.algorithm.kind)
        with within_memory("data"):
            data, population = shelf.data(run), shelf.population(run)
        with within_memory("model"):
            network = run.model.settings.build(data.signature)
            first = run.model.settings not in models
            if first:
                models.add(run.model.settings)
                run.model.settings.initial(network, stream(run.seed, "weights"))
        if first or run.training.batch != runs[0].training.batch:
            with within_memory("training.batch"):
                costs.of_full_model(network, data.signature, run.training.batch)
        keeps = () if run.capacity.budget else run.capacity.keep
        run.algorithm.kind.check(run.algorithm.settings, network, keeps)
        check_passes(run.training, network)
        if run.capacity.budget and run.seed == runs[0].seed:
            # Building the run finds its largest sub-model, or says that none fits.
            Federation(run, data, population, Execution(device="cpu"))


def _without_the_unfit(experiment: Experiment, shelf: Shelf) -> Experiment:
    """Leave out the algorithms that can't work with the experiment's settings, each with a warning.

    Where none can, what keeps the first from it is wrong.
    """
    unfit: dict[str, BadInput] = {}
    for name in dict.fromkeys(run.algorithm.name for run in experiment.runs):
        try:
            check_runs([run for run in experiment.runs if run.algorithm.name == name], shelf)
        except BadInput as error:
            unfit[name] = error
    runs = [run for run in experiment.runs if run.algorithm.name not in unfit]
    if not runs:
        raise next(iter(unfit.values()))
    for name, reason in unfit.items():
        warnings.warn(f"{name} is left out: {reason}", stacklevel=3)
    return replace(experiment, runs=runs)


def manifest(experiment: Experiment, folders: Sequence[RunFolder], shelf: Shelf | None = None) -> dict[str, Any]:
    """What a folder of results says of itself, `results.Results.about`. ``shelf`` has the data, where it is at hand."""
    return {
        "name": experiment.name,
        **experiment.about.model_dump(mode="json", exclude={"values"}),
        "size": experiment.size,
        "note": experiment.note,
        "tuned": experiment.tuned,
        "command": command(),
        "settings": _common([run.as_dict() for run in experiment.runs]),
        "regime": {"own": regime.of_runs(experiment.runs, _known(shelf)), "paper": _paper_regime(experiment)},
        "runs": [
            {
                "folder": folder.path.name,
                "label": experiment.label(run),
                "labels": experiment.labels(run) | {"code": folder.parts[2]},
                "paper": _beside(run, experiment.about),
            }
            for run, folder in zip(experiment.runs, folders, strict=True)
        ],
        "environments": [],
    }


def _known(shelf: Shelf | None) -> Callable[[Run], regime.Known]:
    """What tells how much is known of a run's data."""
    if shelf is None:
        return regime.known_of
    return lambda run: regime.Known(shelf.population(run).sizes, shelf.data(run).signature)


def _paper_regime(experiment: Experiment) -> list[dict[str, Any]]:
    """The regime at the experiment's full size, to be read beside that of its scaled one."""
    if experiment.size == "scaled":
        with suppress(BadInput):  # it came as a mapping, which is no longer there
            a_file = Path(experiment.origin).is_file()
            source = experiment.origin if a_file else experiment.origin.removesuffix(".yaml")
            return regime.of_runs(Experiment.load(source, size="paper", tuned=NOT_TUNED).runs, regime.known_of)
    return []


def command() -> str:
    """What was typed; nothing where a script of the user's runs the experiment."""
    typed = Path(sys.argv[0]).stem in ("prism-bench", "__main__")
    words = list(sys.argv[1:])
    if "--shard" in words:  # the results are those of all parts
        place = words.index("--shard")
        del words[place : place + 2]
    # Without --fresh, which would not go on with what there is.
    rest = [word for word in words if word != "--fresh" and not word.startswith("--shard=")]
    return shlex.join(["prism-bench", *rest]) if typed else ""


def _beside(run: Run, about: About) -> dict[str, Any]:
    """The paper's values for a run, and where they are costs, ours as the paper counts them."""
    found = paper.beside(run.as_dict(), about.values)
    if "costs" in about.shows and "paper_params_M" in found:
        data = run.model.settings.usual
        own = paper.convention(run.model.settings.build(data), data, run.algorithm.name, max(run.capacity.keep))
        found |= {f"convention_{key}": value for key, value in own.items()}
    return found


def _common(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What all the nested mappings agree on."""
    first, *others = trees
    shared: dict[str, Any] = {}
    for key, value in first.items():
        if isinstance(value, Mapping) and all(isinstance(other.get(key), Mapping) for other in others):
            shared[key] = _common([value, *(other[key] for other in others)])
        elif all(key in other and other[key] == value for other in others):
            shared[key] = value
    return shared


def run(
    experiment: str | Path | Mapping[str, Any] = "quickstart",
    *,
    seeds: int | Sequence[int] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    size: str | None = None,
    jobs: int = 1,
    callbacks: Iterable[Callback] = (),
    accept: Sequence[str] = (),
    tuned: str | Path | None = None,
) -> pd.DataFrame:
    """Run an experiment and return one row per run and round.

    ``experiment`` is a name, a YAML file or a mapping; ``overrides`` are dotted keys (``{"training.rounds": 5}``).
    Where an algorithm's name may stand, so may its class or an instance: ``{"algorithm": [Mine, Mine(step=2)]}``.
    ``{"algorithm": "all"}`` is every registered one; what can't work with the other settings is warned of and left out.
    Nothing is kept unless ``out`` names a folder; with it, runs are kept there, resumed and not run again; ``accept``
    names other code whose finished runs count too. ``tuned`` names a file of settings that `prism-bench tune` chose, in
    place of the experiment's own, or is ``"none"``. A run that fails is warned of and left out. ``jobs`` above 1 starts
    processes: a script that uses it needs the usual ``if __name__ == "__main__":``.
    """
    extra = {} if device is None else {"execution.device": device}
    loaded = Experiment.load(experiment, {**(overrides or {}), **extra}, seeds, size, tuned)
    outcome = carry_out(loaded, Path(out) if out else None, jobs=jobs, callbacks=callbacks, accept=accept)
    for label, error in outcome.failed.items():
        warnings.warn(f"{label} failed: {error}", stacklevel=2)
    return outcome.rounds
