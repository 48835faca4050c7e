"""The label-free probe: groups from the edges alone or from the features alone, and how well an embedding tells them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from carlg import synthetic
from carlg.probe import Probe, communities, feature_groups, modularity
from carlg.propagation import normalized_adjacency


@given(st.integers(2, 12), st.integers(1, 40), st.integers(1, 4), st.integers(0, 1000))
def test_modularity_by_its_definition(nodes, edges, groups, seed):
    generator = torch.Generator().manual_seed(seed)
    source, target = torch.randint(nodes, (2, edges), generator=generator)
    labels = torch.randint(groups, (nodes,), generator=generator)
    out, into = (torch.bincount(side, minlength=nodes).double() for side in (source, target))
    count = torch.zeros(nodes, nodes, dtype=torch.float64)
    for a, b in zip(source, target, strict=True):
        count[a, b] += 1
    together = labels[:, None] == labels[None]
    expected = ((count - out[:, None] * into[None] / edges) * together).sum() / edges
    assert modularity(labels, source, target) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 11])
def test_communities_are_as_many_as_were_planted(classes):
    graph = synthetic.block_model(900, classes=classes, mixing=0.2, seed=classes)
    nodes, found = communities(normalized_adjacency(graph.edge_index, graph.num_nodes))
    assert int(found.max()) + 1 == classes
    assert normalized_mutual_info_score(graph.y[nodes], found) > 0.9


def test_graphs_without_edges_or_with_few_nodes():
    assert [len(part) for part in communities(normalized_adjacency(torch.empty(2, 0, dtype=torch.int64), 30))] == [1, 1]
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    nodes, found = communities(normalized_adjacency(ring, 6))
    assert torch.equal(nodes, torch.arange(6)) and int(found.max()) == 1


def test_communities_are_those_of_the_largest_component():
    """Two planted halves of 200 nodes between small rings and lone nodes, all shuffled."""
    graph = synthetic.block_model(200, classes=2, mixing=0.02, seed=4)
    rings = torch.arange(200, 260).view(-1, 3)
    edges = torch.cat([graph.edge_index, *(torch.stack([rings[:, i], rings[:, (i + 1) % 3]]) for i in range(3))], 1)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    nodes, found = communities(normalized_adjacency(order[edges], 300))
    assert torch.equal(nodes, order[:200].sort().values)
    truth = torch.full((300,), -1).index_put((order[:200],), graph.y)
    assert int(found.max()) == 1 and normalized_mutual_info_score(truth[nodes], found) > 0.9


def test_scores_of_what_tells_everything_and_nothing():
    graph = synthetic.block_model(600, classes=4, mixing=0.1, seed=1)
    adjacency = normalized_adjacency(graph.edge_index, graph.num_nodes)
    probe, again = Probe(*communities(adjacency)), Probe(*communities(adjacency))
    assert len(probe.labels) == 600
    assert torch.equal(probe.labels, again.labels)
    noise = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    everything = 5 * probe.targets @ noise[:4] + 0.01 * noise
    assert probe.score(everything) == 1.0 == again.score(everything)
    chance = float(probe.targets.mean(0).max())
    assert abs(probe.score(noise) - chance) < 0.1
    half = torch.where(torch.arange(600)[:, None] % 2 == 0, everything, noise)
    assert 0.5 < probe.score(half) < 0.9


@pytest.mark.parametrize("classes, features", [(2, 200), (3, 300), (5, 64), (9, 100), (13, 700)])
def test_feature_groups_are_as_many_as_were_planted(classes, features):
    """The gain is what the class means explain of the unit rows."""
    graph = synthetic.block_model(1500, classes=classes, features=features, noise=0.5**0.5, seed=classes)
    gain, nodes, groups = feature_groups(graph.x)
    assert int(groups.max()) + 1 == classes and normalized_mutual_info_score(graph.y[nodes], groups) > 0.95
    x, y = torch.nn.functional.normalize(graph.x), graph.y
    centres = torch.stack([x[y == k].mean(0) for k in range(classes)])
    explained = 1 - float((x - centres[y]).square().sum() / (x - x.mean(0)).square().sum())
    assert gain == pytest.approx(explained, abs=0.05)


@pytest.mark.parametrize("features", [40, 600])
@pytest.mark.parametrize("kind", ["gauss", "skew", "binary"])
def test_independent_features_gain_nothing_by_groups(features, kind):
    x = torch.randn(1200, features, generator=torch.Generator().manual_seed(features))
    x = {"gauss": x, "skew": x.clamp(min=0), "binary": (x > 1).float()}[kind]
    gain, _, _ = feature_groups(x)
    assert abs(gain) < 0.03


def test_feature_groups_of_sparse_few_and_constant_features():
    graph = synthetic.block_model(400, classes=3, features=50, noise=0.5, seed=2)
    x = graph.x * (graph.x > 0.05)
    dense, sparse = feature_groups(x), feature_groups(x.to_sparse_csr())
    assert dense[0] == sparse[0] > 0.1 and all(torch.equal(a, b) for a, b in zip(dense[1:], sparse[1:], strict=True))
    for odd in (x[:30], torch.ones(300, 4), torch.zeros(300, 4)):
        gain, nodes, groups = feature_groups(odd)
        assert gain == 0 and len(nodes) == len(groups) == len(odd)


def test_a_probe_of_some_nodes_reads_their_rows_only():
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(3, (200,), generator=generator)
    nodes = torch.randperm(500, generator=generator)[:200]
    h = torch.full((500, 3), torch.nan)
    h[nodes] = torch.nn.functional.one_hot(labels).float()
    assert Probe(nodes, labels).score(h) == 1.0
