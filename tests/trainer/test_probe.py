"""The label-free probe: communities from the edges alone, and how well an embedding tells them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from carlg import synthetic
from carlg.probe import Probe, communities, modularity
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
    found = communities(normalized_adjacency(graph.edge_index, graph.num_nodes))
    assert int(found.max()) + 1 == classes
    assert normalized_mutual_info_score(graph.y, found) > 0.9


def test_graphs_without_edges_or_with_few_nodes():
    assert not communities(normalized_adjacency(torch.empty(2, 0, dtype=torch.int64), 30)).any()
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    assert int(communities(normalized_adjacency(ring, 6)).max()) == 1


def test_scores_of_what_tells_everything_and_nothing():
    graph = synthetic.block_model(600, classes=4, mixing=0.1, seed=1)
    adjacency = normalized_adjacency(graph.edge_index, graph.num_nodes)
    probe, again = Probe(adjacency), Probe(adjacency)
    assert torch.equal(probe.labels, again.labels)
    noise = torch.randn(600, 16, generator=torch.Generator().manual_seed(0))
    everything = 5 * probe.targets @ noise[:4] + 0.01 * noise
    assert probe.score(everything) == 1.0 == again.score(everything)
    chance = float(probe.targets.mean(0).max())
    assert abs(probe.score(noise) - chance) < 0.1
    half = torch.where(torch.arange(600)[:, None] % 2 == 0, everything, noise)
    assert 0.5 < probe.score(half) < 0.9
