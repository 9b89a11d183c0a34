"""Partitions: exact sizes, no sample twice, and the distribution that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from prism_bench.analysis.report.partition_picture import draw
from prism_bench.base.errors import BadInput
from prism_bench.data.population import Population
from prism_bench.partitions.classes import Classes, by_classes
from prism_bench.partitions.dirichlet import Dirichlet, dirichlet
from prism_bench.partitions.femnist import FemnistWriters, femnist
from prism_bench.partitions.iid import IID, iid
from prism_bench.partitions.imdb import ImdbReviews, imdb
from prism_bench.partitions.writers import Writers, by_writer


def rng(seed=0):
    return np.random.default_rng(seed)


def disjoint(partition):
    every = np.concatenate([partition[client] for client in range(len(partition))])
    return len(np.unique(every)) == len(every)


def test_iid():
    partition = iid(103, 10, rng())
    assert partition.sizes.tolist() == [10] * 10
    assert disjoint(partition)
    assert iid(103, 10, rng(), samples=3).sizes.tolist() == [3] * 10
    assert iid(103, 10, rng(0))[0].tolist() == iid(103, 10, rng(0))[0].tolist()
    assert iid(103, 10, rng(0))[0].tolist() != iid(103, 10, rng(1))[0].tolist()


@pytest.mark.parametrize("alpha", [0.01, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("samples", [None, 20])
@pytest.mark.parametrize("balanced", [True, False])
def test_dirichlet_gives_equal_sizes_without_replacement(alpha, samples, balanced):
    labels = (
        np.arange(3000) % 10 if balanced else np.repeat(np.arange(10), [10, 20, 30, 60, 80, 100, 300, 400, 900, 1100])
    )
    partition = dirichlet(labels, 60, alpha, rng(), samples)
    assert partition.sizes.tolist() == [samples or 50] * 60
    assert disjoint(partition)
    counts = partition.histogram(labels)
    assert (counts.sum(0) <= np.bincount(labels)).all()
    assert counts.sum() == 60 * (samples or 50)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_dirichlet_histogram_has_the_dirichlet_distribution(alpha):
    """Over many clients, each class's share is distributed as Dir(α)'s, though every sample is dealt out."""
    clients, samples, classes = 1000, 100, 10
    labels = np.arange(clients * samples) % classes
    shares = dirichlet(labels, clients, alpha, rng(1)).histogram(labels) / samples
    wanted = rng(2).dirichlet(np.full(classes, alpha), clients)
    for label in range(classes):
        # A share of whole samples has steps of 1/100: compare with the same resolution.
        assert ks_2samp(shares[:, label], np.round(wanted[:, label] * samples) / samples).pvalue > 1e-3
    expected = (alpha + 1) / (classes * alpha + 1)
    assert (shares**2).sum(1).mean() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("samples", [None, 80])
def test_no_dirichlet_client_is_distorted_for_its_number(samples):
    """What a client gets is as near to what it drew for the last clients as for the first."""
    clients, classes = 400, 10
    labels = np.arange(clients * 100) % classes
    partition = dirichlet(labels, clients, 0.3, rng(5), samples)
    wishes = rng(5).dirichlet(np.full(classes, 0.3), clients)
    shares = partition.histogram(labels) / partition.sizes[:, None]
    distance = np.abs(shares - wishes).sum(1) / 2
    first, last = distance[: clients // 4], distance[-clients // 4 :]
    assert ks_2samp(first, last).pvalue > 1e-3
    # The sum of 400 wishes misses a class's supply by 7.5% (one std), and every sample is to be dealt out.
    assert distance.mean() < (0.075 if samples is None else 0.04)
    assert distance.max() < 0.2


def test_dirichlet_on_labels_with_a_gap():
    partition = dirichlet(np.repeat([0, 2, 7], 50), 10, 0.1, rng())
    assert partition.sizes.tolist() == [15] * 10
    assert disjoint(partition)


def test_dirichlet_is_skewed_where_alpha_is_small():
    labels = np.arange(5000) % 10
    near, far = (dirichlet(labels, 50, alpha, rng()).describe(labels)["distance"].mean() for alpha in (100.0, 0.1))
    assert near < 0.1 < 0.6 < far


@pytest.mark.parametrize(("clients", "samples"), [(101, None), (11, 10)])
@pytest.mark.parametrize(
    "split", [lambda c, s: iid(100, c, rng(), s), lambda c, s: dirichlet(np.arange(100) % 5, c, 1.0, rng(), s)]
)
def test_too_few_samples(split, clients, samples):
    with pytest.raises(BadInput, match=f"partition.clients: {clients} clients .* has 100; at most"):
        split(clients, samples)


@pytest.mark.parametrize(("clients", "each"), [(100, 2), (7, 3), (3, 10), (4, 1), (40, 9)])
def test_classes_of_a_client_are_exactly_so_many_and_equally_frequent(clients, each):
    labels = rng(3).permutation(np.arange(5000) % 10)
    partition = by_classes(labels, clients, each, rng())
    counts = partition.histogram(labels)
    assert disjoint(partition)
    assert ((counts > 0).sum(1) == each).all()
    assert len(np.unique(counts[counts > 0])) == 1, "as many of each class"
    holders = (counts > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    assert counts.max() == 500 // holders.max(), "the class that most clients share is dealt out"
    assert partition.order.tolist() == by_classes(labels, clients, each, rng()).order.tolist()
    assert partition.order.tolist() != by_classes(labels, clients, each, rng(1)).order.tolist()


def test_two_classes_per_client_by_hand():
    """Ten clients, ten classes of 5: each class is dealt to two clients, two samples each, one is left over."""
    labels = np.repeat(np.arange(10), 5)
    partition = Classes(clients=10).split(labels, None, rng())
    assert partition.sizes.tolist() == [4] * 10
    assert partition.histogram(labels).sum(0).tolist() == [4] * 10


def test_classes_draw_every_pair():
    labels = np.arange(10_000) % 5
    held = by_classes(labels, 2000, 2, rng()).histogram(labels) > 0
    pairs, often = np.unique(held, axis=0, return_counts=True)
    assert len(pairs) == 10
    # Of 2000 clients, 200 for each of ten pairs: four standard deviations are 54.
    assert np.abs(often - 200).max() < 54


def test_classes_with_a_number_of_samples():
    labels = np.repeat([0, 2, 7], [9, 50, 50])
    partition = by_classes(labels, clients=3, each=2, rng=rng(), samples=5)
    assert partition.sizes.tolist() == [5] * 3
    assert sorted(partition.histogram(labels)[0].tolist(), reverse=True)[:3] == [3, 2, 0]
    assert by_classes(labels, 3, 2, rng()).sizes.tolist() == [8] * 3, "the rarest class has 4 for each of two"
    for clients, each, samples, message in (
        (3, 4, None, r"partition.each: 4 classes per client, but the training data has 3\."),
        (3, 2, 12, r"3 clients with 12 samples of 2 classes each .* class 0 has 9 samples for 2 clients\."),
        (15, 2, None, r"15 clients with some samples .* class 0 has 9 samples for 10 clients\."),
        (3, 2, 1, r"3 clients with 1 samples of 2 classes"),
    ):
        with pytest.raises(BadInput, match=message):
            by_classes(labels, clients, each, rng(), samples)


def test_writers():
    writers = np.repeat([f"w{number}" for number in range(10)], range(1, 11))
    partition = by_writer(writers, clients=3, each=3, rng=rng())
    seen = [set(writers[partition[client]]) for client in range(3)]
    assert [len(group) for group in seen] == [3, 3, 3]
    assert len(set.union(*seen)) == 9
    for client, group in enumerate(seen):
        assert partition.sizes[client] == sum(int(name[1:]) + 1 for name in group), "all that a writer wrote"
    with pytest.raises(BadInput, match="4 clients × 3 writers need 12 writers, but the training data has 10"):
        by_writer(writers, clients=4, each=3, rng=rng())
    with pytest.raises(BadInput, match="needs data that names its writers"):
        Writers(clients=2).split(np.zeros(5, int), None, rng())


def test_femnist_takes_the_first_writers_by_name():
    writers = ["w3", "w1", "w0", "w2", "w1", "w4"]
    partition = femnist(writers, clients=2, each=2)
    assert [partition[client].tolist() for client in range(2)] == [[1, 2, 4], [0, 3]]
    for seed in range(3):
        plugin = FemnistWriters(clients=2, each=2).split(np.zeros(6, int), writers, rng(seed))
        assert plugin.order.tolist() == partition.order.tolist(), "nothing is drawn"
    assert (FemnistWriters().clients, FemnistWriters().each) == (100, 10), "the paper's"
    with pytest.raises(BadInput, match="100 clients × 10 writers need 1000 writers, but the training data has 5"):
        FemnistWriters().split(np.zeros(6, int), writers, rng())
    with pytest.raises(BadInput, match="needs data that names its writers"):
        FemnistWriters().split(np.zeros(6, int), None, rng())


def test_imdb_gives_the_papers_number_of_reviews():
    labels = np.arange(37_500) % 2
    even, skewed = (ImdbReviews(alpha=alpha).split(labels, None, rng(1)) for alpha in (None, 0.1))
    for partition in (even, skewed):
        assert partition.sizes.tolist() == [375] * 100
        assert disjoint(partition)
    assert even.order.tolist() == IID(clients=100, samples=375).split(labels, None, rng(1)).order.tolist()
    assert skewed.order.tolist() == dirichlet(labels, 100, 0.1, rng(1), 375).order.tolist()
    with pytest.raises(BadInput, match=r"100 clients with 375 samples each need 37500 samples, but .* has 25000"):
        imdb(np.arange(25_000) % 2, rng())


@pytest.mark.parametrize("clients", [1, 7, 3000])
def test_a_picture_of_any_number_of_clients(tmp_path, clients):
    labels = np.arange(3000) % 62
    draw(iid(3000, clients, rng()), labels, tmp_path / "new" / "picture.png", "some")
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_partition_reports_itself():
    labels = np.array([0, 0, 1, 1, 2, 2])
    partition = Population.from_owners(np.array([0, 0, 1, -1, 1, 1]), clients=2)
    frame = partition.describe(labels)
    assert frame["samples"].tolist() == [2, 3]
    assert frame["classes"].tolist() == [1, 2]
    # All of class 0, where a third is: 2/3 away. A third of class 1 and two of class 2: 1/3 away.
    assert frame["distance"].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert partition.summary(labels) == (
        "2 clients, samples 2-3 (median 2), classes 1-2 (median 2), distance 0.33-0.67 (median 0.50)"
    )


def test_dirichlet_as_a_plugin_is_the_function():
    labels = np.arange(200) % 4
    plugin = Dirichlet(clients=5, alpha=0.5).split(labels, None, rng(3))
    assert np.array_equal(plugin.order, dirichlet(labels, 5, 0.5, rng(3)).order)
