"""Settings are chosen on validation data, by successive halving.

Each cell of an experiment's grid, that is a method at a capacity on a partition, is given the same number of tries. All
of them train for a quarter of the rounds, the better half of them for half of the rounds, and the better half of these
for all. Each of these rungs is an experiment of its own that is carried out as any other: killed, it goes on where it
was. Test data is never looked at: a try trains without the validation samples and is evaluated on these.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from prism_bench.base.errors import BadInput
from prism_bench.base.files import replace as replace_file
from prism_bench.base.files import write_csv
from prism_bench.base.settings import identity
from prism_bench.engine.spec import Run
from prism_bench.harness.experiment import Experiment
from prism_bench.harness.results import CELL
from prism_bench.harness.runner import Outcome, carry_out, command
from prism_bench.harness.tuned import Choice, Lists, Tuned, applies, describe, shown, with_values

RUNGS = 3
SHARE = 0.1
"""The share of the training samples to choose on, where the experiment has none of its own."""

DEPLOY = "algorithm.deploy"
"""Says which of a run's models counts, and changes nothing else: both are evaluated in every run, so it is no try."""

LOST = -math.inf
"""What a try scores that came to no end."""

YAML_NAME, CSV_NAME, PICTURE_NAME = "tuned.yaml", "tuned.csv", "tuned.png"

Values = dict[str, Any]
"""What a try sets, by dotted keys."""
Carry = Callable[[Experiment, Path], Outcome]
"""Carries an experiment out in a folder."""


# What there is to try ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A cell of the grid, and what is tried for it."""

    name: str
    runs: list[Run]
    """As the grid has them, one per seed."""
    tries: list[Values]
    rounds: list[int]
    """Of each rung."""
    deploys: list[str]
    """Which models a try may be judged by; none: the one that the method deploys."""


@dataclass(frozen=True)
class Search:
    """All that is to be tried for an experiment."""

    experiment: Experiment
    cells: list[Cell]
    validation: float
    tries: int
    """How many each cell may have; one that has fewer possible settings tries them all."""

    @property
    def rungs(self) -> int:
        return len(self.cells[0].rounds)

    def attempts(self, cell: Cell, number: int, rung: int) -> list[Run]:
        """The runs of one try, one per seed."""
        values = cell.tries[number] | {
            "training.rounds": cell.rounds[rung],
            "data.validation": self.validation,
            "evaluation.on": "validation",
            "evaluation.probes": (),
        }
        return [with_values(run, values) for run in cell.runs]

    def rung(self, number: int, runs: Sequence[Run]) -> Experiment:
        """A rung as an experiment: what is tuned is what it varies."""
        own = self.experiment
        # An algorithm's settings are part of what tables call it.
        varied = [*own.varied, *(key for key in own.tune if key.startswith("training."))]
        experiment = replace(
            own,
            name=f"{own.name}-rung-{number}",
            about=own.about.model_copy(update={"shows": ("accuracy",), "values": None}),
            runs=list({run.identity: run for run in runs}.values()),
            varied=varied,
            execution=own.execution.model_copy(update={"keep_model": False}),
            # A try that was left out would have no result to be chosen by.
            every=False,
        )
        experiment.check_labels()
        return experiment


def plan(
    experiment: Experiment,
    tries: int | None = None,
    rungs: int = RUNGS,
    rounds: int | None = None,
    validation: float | None = None,
) -> Search:
    """What to try for an experiment that says what may be tuned."""
    _check(experiment, validation)
    groups: dict[str, list[Run]] = {}
    for run in experiment.runs:
        tree = {key: value for key, value in run.as_dict().items() if key != "seed"}
        groups.setdefault(identity(tree), []).append(run)
    lists = [
        {key: values for key, values in experiment.tune.items() if applies(key, runs[0])} for runs in groups.values()
    ]
    deploys = [own.pop(DEPLOY, []) for own in lists]
    tries = _usual(lists) if tries is None else tries
    cells = []
    for runs, own, models in zip(groups.values(), lists, deploys, strict=True):
        last = rounds or runs[0].training.rounds
        steps = [math.ceil(last / 2 ** (rungs - 1 - rung)) for rung in range(rungs)]
        name = experiment.label(runs[0]).replace(f", seed {runs[0].seed}", "")
        cells.append(Cell(name, runs, spread(own, tries), steps, models))
    share = validation or experiment.runs[0].data.settings.validation or SHARE
    return Search(experiment, cells, share, tries)


def _check(experiment: Experiment, validation: float | None) -> None:
    if validation is not None and not 0 < validation < 1:
        raise BadInput(f"--validation {validation}: needs a share between 0 and 1, such as {SHARE}.")
    if not experiment.tune:
        raise BadInput(
            f"{experiment.origin}: has no section 'tune', so there is nothing to choose from. Add what may be tuned, "
            "with the values to try, to the file ('tune: {training.lr: [0.01, 0.03, 0.1]}') or by "
            "--set 'tune.training.lr=[0.01,0.03,0.1]'."
        )
    for key in experiment.tune:
        if key in experiment.varied:
            raise BadInput(f"{experiment.origin}: tune.{key}: the grid varies it; leave it out of one of them.")
        if key == DEPLOY and not {"full", "trained"} >= set(experiment.tune[key]):
            raise BadInput(f"{experiment.origin}: tune.{key}: 'full' and 'trained' can be chosen from.")
        if not any(applies(key, run) for run in experiment.runs):
            raise BadInput(f"{experiment.origin}: tune.{key}: each method that has it says its value already.")


def _usual(lists: Sequence[Lists]) -> int:
    """As many tries as what all cells are tuned in has settings; where that is nothing, as the largest cell has."""
    common = [key for key in lists[0] if all(key in own for own in lists)]
    if common:
        return math.prod(len(lists[0][key]) for key in common)
    return max(math.prod(map(len, own.values())) for own in lists)


def spread(lists: Lists, count: int) -> list[Values]:
    """So many of all settings that the lists allow, in their order; where there are fewer, all of them.

    Drawn so that each value comes about as often as the others of its list, those of the learning rate before all, and
    so does each with each value of another list:

    >>> spread({"training.lr": [0.1, 0.2], "training.clip": [1, 2]}, 2)
    [{'training.lr': 0.1, 'training.clip': 1}, {'training.lr': 0.2, 'training.clip': 2}]
    """
    every = list(itertools.product(*(range(len(values)) for values in lists.values())))
    waiting = random.Random(0).sample(every, len(every))
    first = list(lists).index("training.lr") if "training.lr" in lists else 0
    drawn: list[tuple[int, ...]] = []

    def crowd(one: tuple[int, ...]) -> tuple[int, int, int]:
        """How often its first value, its pairs of values and its values were drawn already."""
        shared = [[mine == theirs for mine, theirs in zip(one, other, strict=True)] for other in drawn]
        return (
            sum(same[first] for same in shared),
            sum(math.comb(sum(same), 2) for same in shared),
            sum(map(sum, shared)),
        )

    while waiting and len(drawn) < count:
        drawn.append(min(waiting, key=crowd))
        waiting.remove(drawn[-1])
    return [{key: lists[key][index] for key, index in zip(lists, one, strict=True)} for one in sorted(drawn)]


# The search -------------------------------------------------------------------------------------------------------


def better_half(scores: Sequence[float], last: bool = False) -> list[int]:
    """The places of the better half of the scores, or after the last rung of the best; of equal ones the earlier.

    What came to no end is never among them:

    >>> better_half([90, 95, 90, 80, -math.inf]), better_half([90, 95, 95], last=True), better_half([-math.inf])
    ([0, 1, 2], [1], [])
    """
    count = 1 if last else math.ceil(len(scores) / 2)
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[:count]
    return sorted(place for place in order if scores[place] > LOST)


class Score(NamedTuple):
    """How good a try is, and by which of its models; no name: by the one that its method deploys."""

    accuracy: float
    deploy: str


class Best(NamedTuple):
    """The best try of a cell."""

    number: int
    accuracy: float
    deploy: str


@dataclass(frozen=True)
class Found:
    """What came of a search: every try of every rung, and by cell the best try, its accuracy and what is deployed."""

    search: Search
    tries: pd.DataFrame
    best: dict[int, Best]

    def values(self, number: int) -> Values:
        """What was chosen for a cell."""
        best = self.best[number]
        return self.search.cells[number].tries[best.number] | ({DEPLOY: best.deploy} if best.deploy else {})

    @property
    def lost(self) -> list[str]:
        """The cells that nothing was found for."""
        return [cell.name for number, cell in enumerate(self.search.cells) if number not in self.best]

    def edges(self) -> list[str]:
        """Where the best value is the smallest or largest that was tried: a better one may lie beyond."""
        said = []
        for number, best in self.best.items():
            cell = self.search.cells[number]
            for key, value in cell.tries[best.number].items():
                tried = {values[key] for values in cell.tries if type(values[key]) in (int, float)}
                if type(value) in (int, float) and len(tried) > 1 and value in (min(tried), max(tried)):
                    which = "largest" if value == max(tried) else "smallest"
                    said.append(f"{cell.name}: {key} {shown(value)} is the {which} that was tried")
        return said

    def fewer(self) -> list[str]:
        """The cells that have fewer possible settings than the others have tries."""
        return [cell.name for cell in self.search.cells if len(cell.tries) < self.search.tries]


def tune(search: Search, out: Path, carry: Carry = carry_out) -> Found:
    """Carry the rungs out, one after the other, each in a folder of its own in ``out``."""
    alive = {number: list(range(len(cell.tries))) for number, cell in enumerate(search.cells)}
    rows: list[dict[str, Any]] = []
    best: dict[int, Best] = {}
    for rung in range(search.rungs):
        last = rung == search.rungs - 1
        # Who is alone has nobody to be compared with until the end.
        asked = {number: tries for number, tries in alive.items() if len(tries) > 1 or (last and tries)}
        runs = {
            (number, one): search.attempts(search.cells[number], one, rung)
            for number, tries in asked.items()
            for one in tries
        }
        if not runs:
            continue
        experiment = search.rung(rung, list(itertools.chain(*runs.values())))
        ends = _ends(experiment, carry(experiment, out / f"rung-{rung}"))
        for number, tries in asked.items():
            scores = [_score(runs[number, one], ends, search.cells[number].deploys) for one in tries]
            kept = better_half([score.accuracy for score in scores], last)
            alive[number] = [tries[place] for place in kept]
            if last and kept:
                best[number] = Best(tries[kept[0]], *scores[kept[0]])
            for one, score in zip(tries, scores, strict=True):
                goes_on = one in alive[number]
                rows += [
                    _row(search, number, one, rung, run, ends, score.deploy) | {"kept": goes_on}
                    for run in runs[number, one]
                ]
    return Found(search, pd.DataFrame(rows), best)


@dataclass(frozen=True)
class _End:
    """How a run ended; its accuracies in the last round, never the best of all: by what is deployed."""

    accuracies: dict[str, float]
    status: str
    error: str = ""

    def accuracy(self, deploy: str) -> float:
        return self.accuracies.get(deploy, LOST)


def _ends(experiment: Experiment, outcome: Outcome) -> dict[str, _End]:
    """How each run of a rung ended, by its identity."""
    every = {"accuracy": "", "accuracy_full": "full", "accuracy_trained": "trained"}
    columns = {name: deploy for name, deploy in every.items() if name in outcome.rounds}
    final = outcome.rounds.groupby("run")[list(columns)].last().to_dict("index") if columns else {}
    ends = {}
    for run in experiment.runs:
        error = outcome.failed.get(experiment.label(run), "")
        # All that diverges says so, and anything else that goes wrong is no fault of the settings.
        status = "diverged" if "a smaller training.lr may help" in error else "failed"
        there = run.identity in final and not error
        done = {deploy: final[run.identity][name] for name, deploy in columns.items()} if there else {}
        ends[run.identity] = _End(done, "done") if there else _End({}, status, error)
    return ends


def _score(runs: Sequence[Run], ends: dict[str, _End], deploys: Sequence[str]) -> Score:
    """The mean over the seeds, lost where one of them is; of the model that does best."""
    means = {deploy: sum(ends[run.identity].accuracy(deploy) for run in runs) / len(runs) for deploy in deploys or [""]}
    best = max(means, key=lambda deploy: means[deploy])
    return Score(means[best], best)


def _row(
    search: Search, number: int, one: int, rung: int, run: Run, ends: dict[str, _End], deploy: str
) -> dict[str, Any]:
    """A line of the table of all tries."""
    cell, end = search.cells[number], ends[run.identity]
    labels = search.experiment.labels(cell.runs[0])
    set_ = cell.tries[one] | ({DEPLOY: deploy} if deploy else {})
    values = {key: shown(set_[key]) if key in set_ else "" for key in search.experiment.tune}
    return {
        **{label: labels[label] for label in CELL},
        "cuts": labels["cuts"],
        **values,
        "rung": rung,
        "rounds": run.training.rounds,
        "seed": run.seed,
        "accuracy": end.accuracy(deploy) if end.status == "done" else math.nan,
        "status": end.status,
        "error": end.error,
        "run": run.identity,
    }


# What is left behind ----------------------------------------------------------------------------------------------


def choices(found: Found) -> Tuned | None:
    """What was found, as a file has it; None where nothing was."""
    search = found.search
    firsts = [cell.runs[0] for cell in search.cells]
    same = len({tuple(cell.rounds) for cell in search.cells}) == 1
    cells = [
        Choice(
            **describe(cell.runs[0], firsts, search.experiment.varied),
            set=found.values(number),
            accuracy=round(found.best[number].accuracy, 3),
            tries=len(cell.tries),
            rounds=() if same else tuple(cell.rounds),
        )
        for number, cell in enumerate(search.cells)
        if number in found.best
    ]
    if not cells:
        return None
    return Tuned(
        experiment=search.experiment.name,
        command=command(),
        over=search.experiment.tune,
        validation=search.validation,
        rounds=tuple(search.cells[0].rounds) if same else (),
        seeds=tuple(run.seed for run in search.cells[0].runs),
        tries=search.tries,
        curves=f"rung-*/rounds.csv has every try's accuracy on validation data by round; {CSV_NAME} has all tries.",
        cells=tuple(cells),
    )


def write(found: Found, out: Path) -> list[Path]:
    """Leave the choices and all tries in a folder; returns the files."""
    write_csv(found.tries, out / CSV_NAME)
    chosen = choices(found)
    if chosen is None:
        (out / YAML_NAME).unlink(missing_ok=True)  # of an earlier start that was about something else
        return [out / CSV_NAME]
    tree = chosen.model_dump(mode="json", exclude_unset=True)
    tree["cells"] = [{key: value for key, value in cell.items() if value not in ([], None)} for cell in tree["cells"]]
    text = "# Chosen on validation data. To use it: prism-bench run EXPERIMENT --tuned THIS_FILE\n"
    text += yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    replace_file(out / YAML_NAME, text.encode())
    return [out / YAML_NAME, out / CSV_NAME]
