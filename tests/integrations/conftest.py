"""A Ray cluster of three nodes on this machine, for the tests of the Ray integration."""

from __future__ import annotations

import importlib.util

import pytest
from ray_nodes import METHODS, Marked

OBJECTS = 100 * 2**20
"""Bytes for each node's objects."""


@pytest.fixture
def marked():
    one = Marked()
    yield one
    one.end()


@pytest.fixture(scope="session")
def nodes():
    """A head and two more, one CPU each; this process is connected."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'prism-bench[ray]'")
    one, patch = Marked(), pytest.MonkeyPatch()
    for name, value in one.environment.items():
        patch.setenv(name, value)
    patch.syspath_prepend(str(METHODS))
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"num_cpus": 1, "object_store_memory": OBJECTS, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=OBJECTS)
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    left = one.alive(grace=10)
    one.end()
    patch.undo()
    assert left == [], "processes were left behind"


@pytest.fixture
def another(nodes):
    """Adds nodes that go with the test."""
    added = []

    def add(**resources):
        added.append(nodes.add_node(object_store_memory=OBJECTS, **resources))
        return added[-1]

    yield add
    for node in added:
        if node in nodes.list_all_nodes():
            nodes.remove_node(node)
