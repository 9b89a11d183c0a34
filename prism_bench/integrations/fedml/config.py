"""A FedML configuration file becomes an experiment of the suite, and the arguments that FedML goes by."""

from __future__ import annotations

import copy
import csv
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, get_args

from pydantic import Field, PositiveFloat

from prism_bench.base import registry
from prism_bench.base.errors import BadInput, nearest
from prism_bench.base.settings import Settings, validate
from prism_bench.base.text import short
from prism_bench.engine.spec import PLUGINS, SECTIONS, Run
from prism_bench.harness.experiment import Experiment, blaming, read_tree

Backend = Literal["sp", "MPI", "GRPC"]

OURS = "prism_args"

SETTINGS: Mapping[str, str] = {
    "dataset": "data.name",
    "data_cache_dir": "data.root",
    "partition_method": "partition.name",
    "partition_alpha": "partition.alpha",
    "client_num_in_total": "partition.clients",
    "model": "model.name",
    "client_num_per_round": "training.active",
    "comm_round": "training.rounds",
    "epochs": "training.epochs",
    "batch_size": "training.batch",
    "learning_rate": "training.lr",
    "momentum": "training.momentum",
    "weight_decay": "training.decay",
    "frequency_of_the_test": "evaluation.every",
}
"""FedML's keys, in whatever section they stand, and the settings they are here."""

OPTIONAL = ("data_cache_dir", "partition_alpha")
"""FedML's files carry these also where data or partition has no use for them."""

PARTITIONS: Mapping[str, str] = {"homo": "iid", "hetero": "dirichlet"}
"""FedML's names for partitions; ours are understood too."""

ONE_MODEL = "knows one model for all clients, not sub-models"
OFFLINE = "nothing connects to a network"
ONLY: Mapping[str, tuple[Any, str]] = {
    "federated_optimizer": ("FedAvg", "prism_args.algorithm says the method, and FedML carries it as FedAvg"),
    "client_optimizer": ("sgd", "clients train with the suite's own SGD"),
    "scenario": ("horizontal", "silos hold different samples"),
    "using_mlops": (False, OFFLINE),
    "enable_tracking": (False, OFFLINE),
    "enable_wandb": (False, OFFLINE),
    "enable_attack": (False, f"FedML's attack {ONE_MODEL}"),
    "enable_defense": (False, f"FedML's defense {ONE_MODEL}"),
    "enable_dp": (False, f"FedML's noise {ONE_MODEL}"),
    "enable_fhe": (False, f"FedML's encryption {ONE_MODEL}"),
    "enable_contribution": (False, f"FedML's assessment {ONE_MODEL}"),
}
"""Keys of FedML's that may say one thing only here, and why."""

TRAINING_TYPE: Mapping[Backend, str] = {"sp": "simulation", "MPI": "simulation", "GRPC": "cross_silo"}


class Job(Settings):
    """What ``prism_args`` says beside the sections of an experiment."""

    name: str | None = Field(None, description="of the experiment; by default the file's")
    description: str = ""
    seeds: int | list[int] | None = Field(None, description="in place of random_seed: how many, or which")
    grid: dict[str, Any] = Field({}, description="what to compare: a list of values per setting")
    every_interface: bool = Field(False, description="let a row of grpc_ipconfig_path listen on all of a machine's")
    patience: PositiveFloat = Field(120, description="seconds that processes of a cross-silo job wait for each other")


@dataclass(frozen=True)
class Config:
    """A FedML job: an experiment, what carries its messages, and which of its processes this is."""

    experiment: Experiment
    values: Mapping[str, Any]
    """FedML's keys, whatever their section."""
    backend: Backend
    patience: float
    silos: int = 0
    rank: int = 0

    @classmethod
    def read(cls, path: str | Path, rank: int = 0, role: str | None = None) -> Config:
        """From a file; ``rank`` and ``role`` say which process of a cross-silo job this is."""
        path = Path(path)
        _, sections = read_tree(path)
        with blaming(str(path)):
            for section, below in sections.items():
                if not isinstance(below, Mapping):
                    raise BadInput(f"{section}: needs settings below it (got {short(below)}).")
            ours = sections.pop(OURS, None)
            if ours is None:
                raise BadInput(f"{OURS}: is missing; 'prism_args: {{algorithm: prism}}' is the least it needs.")
            values, places = _flat(sections)
            backend = _backend(values, places)
            for key, (right, why) in ONLY.items():
                if key in values and str(values[key]).lower() != str(right).lower():
                    raise BadInput(f"{places[key]}: must be {right} here, as {why} (got {short(values[key])}).")
            job = validate(Job, {key: value for key, value in ours.items() if key in Job.model_fields}, OURS)
            tree, origins = _tree(values, places, {k: v for k, v in ours.items() if k not in Job.model_fields}, job)
            with _in_their_words(origins):
                experiment = Experiment.load(tree | {"name": job.name or path.stem, "description": job.description})
            if experiment.execution.executor != "threads":
                raise BadInput(f"{OURS}.execution.on: must be left out, as FedML is what brings clients their tasks.")
            config = cls(replace(experiment, origin=str(path)), values, backend, job.patience, rank=rank)
            return config._with_silos(path, places, role, job.every_interface)

    def arguments(self, run: Run) -> SimpleNamespace:
        """What FedML goes by in a run: the file's keys, and those that it fills in itself."""
        args = SimpleNamespace(**copy.deepcopy(dict(self.values)))
        args.run_id, args.rank, args.process_id, args.comm = "0", self.rank, self.rank, None
        args.role = "client" if self.rank else "server"
        args.training_type, args.backend = TRAINING_TYPE[self.backend], self.backend
        args.federated_optimizer, args.scenario = "FedAvg", "horizontal"
        args.using_mlops = args.enable_wandb = args.enable_tracking = args.sys_perf_profiling = False
        args.dataset, args.batch_size = run.data.name, run.training.batch
        args.comm_round, args.frequency_of_the_test = run.training.rounds, run.evaluation.every
        args.client_num_in_total = run.partition.settings.clients
        args.worker_num = args.client_num_per_round = run.training.active
        args.patience = self.patience
        if self.backend == "GRPC":
            # For FedML a silo is a client; which clients of the suite's it trains for is in its messages.
            args.worker_num = args.client_num_in_total = args.client_num_per_round = self.silos
            args.client_id_list = str([self.rank] if self.rank else list(range(1, self.silos + 1)))
        return args

    def _with_silos(self, path: Path, places: Mapping[str, str], role: str | None, every: bool) -> Config:
        """Also knows how many silos there are, and where each process listens."""
        if role not in (None, "server", "client"):
            raise BadInput(f"--role {role}: must be server or client.")
        if self.backend != "GRPC":
            if self.rank or role == "client":
                raise BadInput(f"--rank, --role: only cross-silo jobs have them (comm_args.backend is {self.backend}).")
            return self
        silos = self.values.get("worker_num") or self.experiment.runs[0].training.active
        if type(silos) is not int or silos < 1:
            raise BadInput(f"{places['worker_num']}: must be the number of silos, 1 or more (got {short(silos)}).")
        clients = min(run.partition.settings.clients for run in self.experiment.runs)
        if silos > clients:
            raise BadInput(f"{places['worker_num']}: {silos} silos, but only {clients} clients to deal out to them.")
        if not 0 <= self.rank <= silos:
            raise BadInput(f"--rank {self.rank}: 0 is the server, and 1 to {silos} are the silos.")
        if role not in (None, "client" if self.rank else "server"):
            raise BadInput(f"--role {role}: rank 0 is the server, every other a client (got --rank {self.rank}).")
        file = _listening(self.values.get("grpc_ipconfig_path"), silos, path, places, every)
        return replace(self, silos=silos, values={**self.values, "grpc_ipconfig_path": str(file)})


def _flat(sections: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """FedML's own view of its file: all keys in one, whatever their section; and where each stands."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for section, below in sections.items():
        for key, value in below.items():
            if key in values:
                raise BadInput(f"{section}.{key}: is given a second time; {places[key]} says it already.")
            values[key], places[key] = value, f"{section}.{key}"
    return values, places


def _backend(values: Mapping[str, Any], places: Mapping[str, str]) -> Backend:
    backend: Any = values.get("backend")
    training = values.get("training_type")
    if backend not in get_args(Backend):
        place = places.get("backend", "comm_args.backend")
        raise BadInput(f"{place}: must be one of {', '.join(get_args(Backend))} (got {short(backend)}).")
    if training != TRAINING_TYPE[backend]:
        place = places.get("training_type", "common_args.training_type")
        raise BadInput(f"{place}: must be {TRAINING_TYPE[backend]} with backend {backend} (got {short(training)}).")
    found: Backend = backend
    return found


def _tree(
    values: Mapping[str, Any], places: Mapping[str, str], ours: Mapping[str, Any], job: Job
) -> tuple[dict[str, Any], dict[str, str]]:
    """An experiment's tree of settings, and where in the file each stands."""
    allowed = {*PLUGINS, *SECTIONS, "execution"}
    for key in ours:
        if key not in allowed:
            raise BadInput(f"{OURS}.{key}: there is no such setting. {nearest(key, {*allowed, *Job.model_fields})}")
    tree: dict[str, Any] = copy.deepcopy(dict(ours))
    # 'algorithm: prism' is short for 'algorithm: {name: prism}'.
    tree |= {key: {"name": tree[key]} for key in PLUGINS if isinstance(tree.get(key), str)}
    origins = {key: f"{OURS}.{key}" for key in (*allowed, "grid", "seeds", "name", "description")}

    def put(setting: str, value: Any, place: str) -> None:
        section, _, key = setting.partition(".")
        below = tree.setdefault(section, {})
        if not isinstance(below, dict):
            raise BadInput(f"{OURS}.{section}: needs settings below it (got {short(below)}).")
        if key in below:
            raise BadInput(f"{OURS}.{setting}: is given a second time; {place} says it already.")
        below[key], origins[setting] = value, place

    for theirs, setting in SETTINGS.items():
        if values.get(theirs) is not None and not (theirs in OPTIONAL and _useless(setting, tree)):
            value = values[theirs]
            put(setting, PARTITIONS.get(value, value) if theirs == "partition_method" else value, places[theirs])
    if values.get("using_gpu") is not None:
        put("execution.device", "cuda" if values["using_gpu"] else "cpu", places["using_gpu"])
    if job.grid:
        tree["grid"] = job.grid
    seeds = job.seeds
    if "random_seed" in values:
        if seeds is not None:
            raise BadInput(f"{OURS}.seeds: is given a second time; {places['random_seed']} says it already.")
        seeds, origins["seeds"] = [values["random_seed"]], places["random_seed"]
    return tree | ({} if seeds is None else {"seeds": seeds}), origins


def _useless(setting: str, tree: Mapping[str, Any]) -> bool:
    """Whether the chosen plugin has no such setting."""
    section, _, key = setting.partition(".")
    name = tree.get(section, {}).get("name")
    if name not in registry.find(PLUGINS[section]):
        return False
    return key not in registry.load(PLUGINS[section], name, f"{section}.name").model_fields


@contextmanager
def _in_their_words(origins: Mapping[str, str]) -> Iterator[None]:
    """Errors name the key that stands in the file."""
    try:
        yield
    except BadInput as error:
        lines = []
        for line in str(error).splitlines():
            key, colon, rest = line.removeprefix("experiment: ").partition(":")
            ours = next((k for k in sorted(origins, key=len, reverse=True) if f"{key}.".startswith(f"{k}.")), "")
            lines.append(f"{origins[ours]}{key.removeprefix(ours)}{colon}{rest}" if ours else f"{key}{colon}{rest}")
        raise BadInput("\n".join(lines)) from None


def _listening(given: Any, silos: int, path: Path, places: Mapping[str, str], every: bool) -> Path:
    """The file that says where each process listens, checked."""
    place = places.get("grpc_ipconfig_path", "comm_args.grpc_ipconfig_path")
    if not isinstance(given, str):
        raise BadInput(f"{place}: is missing: a CSV file that says where each rank listens.")
    file = Path(given) if Path(given).exists() else path.parent / given
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            found = {int(row["eid"]): (int(row["rank"]), row["grpc_server_ip"], int(row["grpc_server_port"]))
                     for row in csv.DictReader(lines)}  # fmt: skip
    except FileNotFoundError:
        raise BadInput(f"{place}: there is no file {given}, here or beside the configuration.") from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        columns = "eid, rank, grpc_server_ip and grpc_server_port"
        raise BadInput(f"{place}: {file} needs the columns {columns} in every row ({error!r}).") from None
    for rank in range(silos + 1):
        if rank not in found:
            # FedML would have such a process listen on every interface of the machine.
            raise BadInput(f"{place}: {file} has no row with eid {rank}; needs one for each of 0 to {silos}.")
    for rank, address, _ in found.values():
        if _is_every_interface(address) and not every:
            raise BadInput(
                f"{place}: {file} has rank {rank} listen on every interface of its machine (grpc_server_ip is "
                f"'{address}'). Name one address; or, where that is meant, {OURS}.every_interface: true."
            )
    return file


def _is_every_interface(address: str | None) -> bool:
    """Whether a server that is given this address listens on all that its machine has."""
    host = (address or "").strip().strip("[]").partition("%")[0]
    try:
        # The way of old for IPv4, in which 0 and 0x0 are 0.0.0.0, too.
        return not host or host == "*" or socket.inet_aton(host) == bytes(4)
    except OSError:
        pass
    try:
        known = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name
    mapped = getattr(known, "ipv4_mapped", None)
    return known.is_unspecified or (mapped is not None and mapped.is_unspecified)
