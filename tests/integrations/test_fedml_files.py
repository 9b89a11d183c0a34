"""FedML's files and data as ours: what needs no FedML to be known."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader, TensorDataset

import prism_bench
from prism_bench.base import registry
from prism_bench.base.errors import BadInput
from prism_bench.data.population import Population
from prism_bench.engine.federation import Federation
from prism_bench.engine.sections import Execution
from prism_bench.engine.spec import Run
from prism_bench.integrations.fedml import Config, from_fedml, run, to_fedml
from prism_bench.integrations.fedml.config import SETTINGS
from prism_bench.testing import tiny_data

PAGE = Path(__file__).parents[2] / "docs" / "fedml.md"
EXAMPLES = Path(prism_bench.__file__).parent / "integrations" / "fedml" / "examples"

FILE = {
    "common_args": {"training_type": "simulation", "random_seed": 7},
    "data_args": {
        "dataset": "digits",
        "data_cache_dir": "~/fedml_data",
        "partition_method": "hetero",
        "partition_alpha": 0.5,
    },
    "model_args": {"model": "smallcnn"},
    "train_args": {
        "federated_optimizer": "FedAvg",
        "client_id_list": "[]",
        "client_num_in_total": 12,
        "client_num_per_round": 3,
        "comm_round": 5,
        "epochs": 1,
        "batch_size": 10,
        "client_optimizer": "sgd",
        "learning_rate": 0.03,
        "weight_decay": 0.001,
    },
    "validation_args": {"frequency_of_the_test": 5},
    "device_args": {"using_gpu": False},
    "comm_args": {"backend": "sp"},
    "tracking_args": {"enable_wandb": False, "using_mlops": False},
    "prism_args": {"algorithm": {"name": "prism", "kappa": 4}, "model": {"width": 8}, "capacity": {"keep": 0.2}},
}


@pytest.fixture
def write(tmp_path):
    """Write the file with some keys changed, as 'section.key': value; None takes a key out."""

    def written(changes=None):
        tree = {section: dict(values) for section, values in FILE.items()}
        for place, value in (changes or {}).items():
            section, _, key = place.partition(".")
            if not key:
                tree[section] = value
            elif value is None:
                tree[section].pop(key)
            else:
                tree.setdefault(section, {})[key] = value
        file = tmp_path / "fedml_config.yaml"
        file.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}))
        return file

    return written


def test_fedmls_keys_are_our_settings(write):
    read = Config.read(write())
    own = Run.resolve(
        {
            "seed": 7,
            "data": "digits",
            "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 12},
            "model": {"name": "smallcnn", "width": 8},
            "algorithm": {"name": "prism", "kappa": 4},
            "capacity": {"keep": 0.2},
            "training": {"active": 3, "rounds": 5, "epochs": 1, "batch": 10, "lr": 0.03, "decay": 0.001},
            "evaluation": {"every": 5},
        }
    )
    assert [run.identity for run in read.experiment.runs] == [own.identity], "the same run as in an experiment of ours"
    assert read.experiment.name == "fedml_config"
    assert read.experiment.execution.device == "cpu"
    args = read.arguments(read.experiment.runs[0])
    assert (args.comm_round, args.client_num_per_round, args.client_num_in_total) == (5, 3, 12)
    assert args.using_mlops is False


def test_a_grid_and_seeds_are_an_experiment(write):
    changes = {
        "common_args.random_seed": None,
        "prism_args": {"seeds": 2, "grid": {"algorithm": ["fedavg", "prism"], "training.lr": [0.1, 0.2]}},
    }
    runs = Config.read(write(changes)).experiment.runs
    assert len(runs) == 2 * 2 * 2
    assert {run.training.lr for run in runs} == {0.1, 0.2}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prism_args": None}, "prism_args: is missing"),
        (
            {"prism_args.algorithm": "prisma"},
            "prism_args.algorithm.name: there is no algorithm called 'prisma'. Did you",
        ),
        ({"prism_args.algoritm": "prism"}, "prism_args.algoritm: there is no such setting. Did you mean 'algorithm'?"),
        ({"prism_args.algorithm": {"name": "prism", "kapa": 1}}, "prism_args.algorithm.kapa: there is no such setting"),
        ({"prism_args.capacity": {"keep": 2}}, "prism_args.capacity.keep: a keep ratio must be above 0"),
        ({"prism_args.execution": {"on": {"name": "mine"}}}, "prism_args.execution.on: must be left out"),
        ({"prism_args.patience": -1}, "prism_args.patience: Input should be greater than 0"),
        ({"train_args.learning_rate": -1}, "train_args.learning_rate: Input should be greater than 0 (got -1)"),
        ({"train_args.comm_round": "many"}, "train_args.comm_round: Input should be a valid integer"),
        ({"train_args.client_num_per_round": 13}, "train_args.client_num_per_round: 13 active clients per round"),
        ({"train_args.client_optimizer": "adam"}, "train_args.client_optimizer: must be sgd here"),
        ({"train_args.federated_optimizer": "FedOpt"}, "train_args.federated_optimizer: must be FedAvg here"),
        ({"train_args.epochs": None, "common_args.epochs": "x"}, "common_args.epochs: Input should be a valid integer"),
        ({"common_args.epochs": 3}, "train_args.epochs: is given a second time; common_args.epochs says it already"),
        (
            {"prism_args.training": {"lr": 0.1}},
            "prism_args.training.lr: is given a second time; train_args.learning_rate",
        ),
        ({"prism_args.seeds": 3}, "prism_args.seeds: is given a second time; common_args.random_seed says it already"),
        ({"common_args.random_seed": -1}, "common_args.random_seed: a number of seeds"),
        ({"data_args.dataset": "mnits"}, "data_args.dataset: there is no dataset called 'mnits'"),
        ({"data_args.partition_alpha": 0}, "data_args.partition_alpha: Input should be greater than 0"),
        ({"model_args": "cnn"}, "model_args: needs settings below it (got 'cnn')"),
        ({"comm_args.backend": "TRPC"}, "comm_args.backend: must be one of sp, MPI, GRPC (got 'TRPC')"),
        ({"comm_args": {}}, "comm_args.backend: must be one of sp, MPI, GRPC (got None)"),
        ({"comm_args.backend": "GRPC"}, "common_args.training_type: must be cross_silo with backend GRPC"),
        ({"tracking_args.enable_wandb": True}, "tracking_args.enable_wandb: must be False here, as nothing connects"),
        (
            {"security_args.enable_defense": True},
            "security_args.enable_defense: must be False here, as FedML's defense",
        ),
    ],
)
def test_bad_input_names_the_file_and_its_own_key(write, here, changes, says, tmp_path):
    file = write(changes)
    code, _, err = here("fedml", "--cf", str(file))
    assert code == 2
    assert f"{file}: {says}" in err
    assert {path.name for path in tmp_path.iterdir()} == {"fedml_config.yaml"}, "nothing is written"


SILOS = {
    "common_args.training_type": "cross_silo",
    "comm_args": {"backend": "GRPC", "grpc_ipconfig_path": "ip.csv"},
    "device_args.worker_num": 2,
}
HEAD = "eid,rank,grpc_server_ip,grpc_server_port\n"


@pytest.mark.parametrize(
    ("rows", "arguments", "says"),
    [
        (None, (), "comm_args.grpc_ipconfig_path: there is no file ip.csv"),
        ("a,b\n1,2\n", (), "needs the columns eid, rank, grpc_server_ip and grpc_server_port"),
        (f"{HEAD}0,0,127.0.0.1,1\n1,1,127.0.0.1,2\n", (), "has no row with eid 2; needs one for each of 0 to 2"),
        *(
            (f"{HEAD}0,0,{address},1\n1,1,127.0.0.1,2\n2,2,127.0.0.1,3\n", (), "has rank 0 listen on every interface")
            for address in ("0.0.0.0", "::", "", " ", "0", "0x0", "[::]", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0")
        ),
        (HEAD, ("--rank", "3"), "--rank 3: 0 is the server, and 1 to 2 are the silos"),
        (HEAD, ("--rank", "1", "--role", "server"), "--role server: rank 0 is the server"),
        (HEAD, ("--role", "boss"), "--role boss: must be server or client"),
    ],
)
def test_a_cross_silo_job_says_who_listens_where(write, here, tmp_path, rows, arguments, says):
    if rows is not None:
        (tmp_path / "ip.csv").write_text(rows)
    code, _, err = here("fedml", "--cf", str(write(SILOS)), *arguments)
    assert code == 2
    assert says in err


def test_every_interface_is_asked_for_by_name(write, tmp_path):
    rows = [f"{rank},{rank},0.0.0.0,{9000 + rank}" for rank in range(3)]
    (tmp_path / "ip.csv").write_text(HEAD + "\n".join(rows))
    assert Config.read(write(SILOS | {"prism_args": FILE["prism_args"] | {"every_interface": True}})).silos == 2


def test_reports_are_not_carried_between_processes(write, monkeypatch, tmp_path):
    """Known before anything starts, and in every process: none waits for another."""
    monkeypatch.setattr(registry.load("algorithms", "prism", ""), "report", lambda self, inputs, labels: {})
    rows = [f"{rank},{rank},127.0.0.1,{9000 + rank}" for rank in range(3)]
    (tmp_path / "ip.csv").write_text(HEAD + "\n".join(rows))
    config = Config.read(write(SILOS))
    for rank in (0, 1):
        with pytest.raises(BadInput, match="prism: its clients report to the server before it selects"):
            run(replace(config, rank=rank))


def test_a_silo_has_a_client(write, here):
    code, _, err = here("fedml", "--cf", str(write(SILOS | {"device_args.worker_num": 13})))
    assert code == 2
    assert "device_args.worker_num: 13 silos, but only 12 clients to deal out to them" in err


def test_silos_are_fedmls_clients(write, tmp_path):
    rows = [f"{rank},{rank},127.0.0.1,{9000 + rank}" for rank in range(3)]
    (tmp_path / "ip.csv").write_text(HEAD + "\n".join(rows))
    file = write(SILOS)
    server, silo = Config.read(file), Config.read(file, rank=2, role="client")
    args = server.arguments(server.experiment.runs[0])
    assert (args.client_id_list, args.client_num_per_round, args.worker_num) == ("[1, 2]", 2, 2)
    args = silo.arguments(silo.experiment.runs[0])
    assert (args.client_id_list, args.role, args.rank) == ("[2]", "client", 2)
    assert args.grpc_ipconfig_path == str(tmp_path / "ip.csv"), "found beside the file"
    with pytest.raises(BadInput, match="only cross-silo jobs have them"):
        Config.read(write(), rank=1)


@pytest.mark.parametrize("example", ["sp", "mpi", "cross_silo"])
def test_the_examples_are_valid_and_compare_the_same_runs(example):
    runs = Config.read(EXAMPLES / example / "fedml_config.yaml").experiment.runs
    assert len(runs) == 5
    assert [r.identity for r in runs] == [
        r.identity for r in Config.read(EXAMPLES / "sp" / "fedml_config.yaml").experiment.runs
    ]
    if example == "cross_silo":
        text = (EXAMPLES / example / "grpc_ipconfig.csv").read_text()
        assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", text)) == {"127.0.0.1"}, "an example listens on loopback only"


def test_the_documented_file_is_the_example(tmp_path):
    first = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.S)[0]
    (tmp_path / "fedml_config.yaml").write_text(first)
    documented = Config.read(tmp_path / "fedml_config.yaml").experiment.runs
    example = Config.read(EXAMPLES / "sp" / "fedml_config.yaml").experiment.runs
    assert [run.identity for run in documented] == [run.identity for run in example]


def test_every_key_of_fedmls_is_documented():
    page = PAGE.read_text("utf-8")
    assert [key for key in SETTINGS if f"`{key}`" not in page] == []


def test_a_missing_fedml_is_said_in_one_line(write, here, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = here("fedml", "--cf", str(write()))
    assert code == 2
    assert "fedml is not installed, and backend sp needs it: pip install 'prism-bench[fedml]'" in err


PARTITION = Population.from_owners(np.array([1, 0, -1, 1, 2, 0] * 8), 3)


def test_our_clients_as_fedmls_eight_tuple():
    data = tiny_data(samples=48)
    train_num, test_num, train, test, sizes, local, local_test, classes = to_fedml(data, PARTITION, batch=5)
    assert (train_num, test_num, classes) == (40, 48, 4)
    assert sizes == {0: 16, 1: 16, 2: 8}
    assert set(local) == set(local_test) == {0, 1, 2}
    assert sum(len(y) for _, y in train) == 40
    assert sum(len(y) for _, y in test) == 48
    x, y = next(iter(local[2]))
    assert (x.shape, y.shape) == ((5, 1, 8, 8), (5,))
    first = [int(label) for _, label in local[2].dataset]
    assert first == data.train.labels[torch.from_numpy(PARTITION[2])].tolist()


def test_there_and_back_trains_alike():
    """The same clients with the same samples in the same order: the same numbers to the last digit."""
    data = tiny_data(samples=48)
    back, partition = from_fedml(to_fedml(data, PARTITION, batch=5))
    for client in range(3):
        mine, theirs = data.train.inputs[PARTITION[client]], back.train.inputs[partition[client]]
        assert torch.equal(data.prepare(mine), back.prepare(theirs))
    tree = {
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "smallcnn", "width": 10},
        "algorithm": "prism",
        "capacity": {"keep": 0.4},
        "training": {"rounds": 2, "active": 2, "epochs": 1, "batch": 4},
    }
    records = [
        list(Federation(Run.resolve(tree), d, p, Execution(device="cpu")).rounds())
        for d, p in ((data, PARTITION), (back, partition))
    ]
    for one, other in zip(*records, strict=True):
        same = {key for key in one if not key.startswith("seconds")}
        assert {key: one[key] for key in same} == {key: other[key] for key in same}


def test_an_eight_tuple_of_batches_as_some_of_fedmls_loaders_give_it():
    """FedML's MNIST has lists of batches, and clients that are numbered with gaps."""
    x, y = torch.arange(12.0).view(6, 2, 1, 1), torch.arange(6) % 3
    local = {4: [(x[:2], y[:2]), (x[2:3], y[2:3])], 1: DataLoader(TensorDataset(x[3:], y[3:]), 2, shuffle=True)}
    data, partition = from_fedml((6, 6, None, [(x, y)], {1: 3, 4: 3}, local, {}, 3))
    assert partition.sizes.tolist() == [3, 3]
    assert data.train.inputs[partition[0]].equal(x[3:])
    assert data.train.inputs[partition[1]].equal(x[:3])
    assert data.test.labels.equal(y)
    assert data.signature.shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ((1, 2), "a tuple of 8 parts (got 2)"),
        ((0, 0, None, [], {}, {}, {}, 2), "needs a dict of loaders by client as 6th part"),
        ((0, 0, None, None, {}, {0: []}, {}, 2), "needs a test loader as 4th part"),
        ((0, 0, None, [], {}, {0: []}, {}, 2), "a loader has no samples"),
    ],
)
def test_odd_tuples_are_errors(dataset, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        from_fedml(dataset)


def test_a_loader_of_fedmls_as_data_of_an_experiment(tmp_path, monkeypatch):
    """Named in a file, its clients stay who they are."""
    (tmp_path / "my_loader.py").write_text(
        "import numpy as np\n"
        "from prism_bench.integrations.fedml import to_fedml\n"
        "from prism_bench.data.population import Population\n"
        "from prism_bench.testing import tiny_data\n"
        "def load():\n"
        "    return to_fedml(tiny_data(samples=48), Population.from_owners(np.arange(48) % 12, 12), 5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PRISM_BENCH_TRUST", "other, my_loader")
    tree = {
        "data": {"name": "fedml", "loader": "my_loader:load"},
        "partition": {"name": "fedml", "clients": 11},
        "model": {"name": "smallcnn", "width": 5},
        "algorithm": "fedavg",
        "training": {"rounds": 1, "active": 3, "epochs": 1, "batch": 4},
    }
    run = Run.resolve(tree)
    data = run.data.settings.load()
    partition = run.partition.settings.split(data.train.labels.numpy(), data.owners, np.random.default_rng(0))
    assert partition.sizes.tolist() == [4] * 11
    labels = tiny_data(samples=48).train.labels
    assert data.train.labels[partition[10]].equal(labels[10::12]), "client 10 is FedML's client 10"
    assert len(prism_bench.run(tree)) == 1
    sys.modules.pop("my_loader")
    with pytest.raises(BadInput, match=r"data.loader: 'my_loader:other' can't be found"):
        Run.resolve(tree | {"data": {"name": "fedml", "loader": "my_loader:other"}}).data.settings.load()
    partitioner = Run.resolve(tree | {"partition": {"name": "fedml", "clients": 13}}).partition.settings
    with pytest.raises(BadInput, match="13 clients, but the data comes with 12"):
        partitioner.split(data.train.labels.numpy(), data.owners, np.random.default_rng(0))
