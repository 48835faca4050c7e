"""Downstream tasks against plain definitions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import carlg_kernels as ck
from carlg import synthetic
from carlg.classifier import PENALTIES
from carlg.config import ConfigError
from carlg.graph import csr_tensor, make_graph
from carlg.tasks import classify, evaluate, node_clustering, random_splits, resolve_protocol, similarity_search, unit_length


@pytest.mark.parametrize(
    ("protocol", "sizes"),
    [("20/40/40", (200, 400, 400)), ("10/10/80", (100, 100, 800)), ("80/10/10", (800, 100, 100))],
)
def test_split_sizes(protocol, sizes):
    splits = random_splits(1000, protocol, 3)
    assert [tuple(len(part) for part in split) for split in splits] == [sizes] * 3
    for split in splits:
        assert torch.equal(torch.cat(split).sort().values, torch.arange(1000))
    longer = random_splits(1000, protocol, 5)
    assert all(torch.equal(a, b) for s, t in zip(splits, longer, strict=False) for a, b in zip(s, t, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_similarity_search_by_brute_force(sparse):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 6, generator=generator) - 0.5
    if sparse:
        x = x * (x > 0)
    y = torch.randint(3, (70,), generator=generator)
    cosine = unit_length(x) @ unit_length(x).t()
    cosine.fill_diagonal_(-9)
    order = cosine.argsort(1, descending=True)
    expected = [float((y[order[:, :k]] == y[:, None]).float().mean()) for k in (5, 10)]
    got = similarity_search(csr_tensor(x.numpy()) if sparse else x, y, chunk=32)
    np.testing.assert_allclose(got, expected, atol=5e-3 if sparse else 1e-6)


def _forget(graph, every=3):
    """The graph with every third class unknown, and the numbers of the nodes that keep theirs."""
    known = torch.arange(graph.num_nodes) % every != 1
    return replace(graph, y=torch.where(known, graph.y, -1)), known.nonzero().flatten()


@pytest.mark.parametrize("sparse", [False, True])
def test_unlabelled_nodes_take_no_part_in_classification_and_search(tiny, sparse):
    """The figures are those of the labelled nodes alone."""
    x = tiny.x * (tiny.x > 0) if sparse else tiny.x
    partly, known = _forget(tiny)
    alone = replace(tiny, x=x[known], y=tiny.y[known])
    given, rest = (csr_tensor(m.numpy()) if sparse else m for m in (x, x[known]))
    tasks = ("class", "similar")
    assert evaluate(given, partly, splits=3, tasks=tasks) == evaluate(rest, alone, splits=3, tasks=tasks)


def test_unlabelled_nodes_are_in_no_mask_split(tiny):
    """Wrong features of unlabelled nodes inside the masks change nothing."""
    known = torch.arange(tiny.num_nodes) % 4 != 1
    train, val = torch.arange(tiny.num_nodes) % 3 == 0, torch.arange(tiny.num_nodes) % 3 == 1
    masks = (train[:, None], val[:, None], ~(train | val))
    graph = make_graph("g", tiny.edge_index, tiny.x, torch.where(known, tiny.y, -1), True, *masks)
    cut = make_graph("g", tiny.edge_index, tiny.x, tiny.y, True, *(m & (known[:, None] if m.dim() == 2 else known) for m in masks))
    expected = [scores.tolist() for scores in classify(tiny.x, cut, "masks")]
    assert [scores.tolist() for scores in classify(torch.where(known[:, None], tiny.x, 7.0), graph, "masks")] == expected


@pytest.mark.parametrize("partly", [False, True])
def test_clustering_scores_by_definition(tiny, partly):
    """All nodes are clustered and the labelled ones scored, mean over the fits."""
    graph, known = _forget(tiny) if partly else (tiny, torch.arange(tiny.num_nodes))
    x = tiny.x[:, :4]
    generator = torch.Generator().manual_seed(0)
    expected = []
    for _ in range(3):
        labels = ck.kmeans(unit_length(x), 3, n_init=1, max_iter=300, generator=generator).labels
        expected.append(_nmi_and_homogeneity(tiny.y[known], labels[known]))
    assert np.min(expected) > 0.05 and np.max(expected) < 0.95
    assert node_clustering(x, graph, runs=3, restarts=1) == pytest.approx(np.mean(expected, 0))


def _nmi_and_homogeneity(truth, found):
    """2 I / (H(truth) + H(found)) and I / H(truth), by the definitions."""
    joint = torch.zeros(int(truth.max()) + 1, int(found.max()) + 1, dtype=torch.float64)
    joint.index_put_((truth, found), torch.ones(len(truth), dtype=torch.float64), accumulate=True)
    joint /= joint.sum()

    def entropy(p):
        return -torch.special.xlogy(p, p).sum()

    rows, columns = entropy(joint.sum(1)), entropy(joint.sum(0))
    information = rows + columns - entropy(joint)
    return float(2 * information / (rows + columns)), float(information / rows)


def test_splits_of_labelled_graphs_are_the_published_ones():
    train, val, test = random_splits(10, "20/40/40", 1)[0]
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert torch.equal(train, order[:2]) and torch.equal(val, order[2:6]) and torch.equal(test, order[6:])


def test_protocols_without_nodes_to_learn_from(tiny):
    few = torch.full((tiny.num_nodes,), -1)
    few[:2] = torch.tensor([0, 1])
    with pytest.raises(ConfigError, match="protocol 20/40/40 needs labelled nodes .* has 2 labelled nodes"):
        resolve_protocol("auto", replace(tiny, y=few))
    mask = torch.zeros(tiny.num_nodes, 2, dtype=torch.bool)
    mask[:, 0] = True
    with pytest.raises(ConfigError, match="protocol masks needs labelled nodes"):
        resolve_protocol("auto", replace(tiny, train_masks=mask, val_masks=mask, test_mask=mask[:, 0]))


def test_perfect_and_useless_embeddings(tiny):
    perfect = torch.nn.functional.one_hot(tiny.y).float() + 0.01
    result = evaluate(perfect, tiny, "20/40/40", splits=2)
    assert result["accuracy_mean"] == 1 and result["hits5"] == 1
    assert result["nmi"] == pytest.approx(1) and result["homogeneity"] == pytest.approx(1)
    noise = torch.randn(tiny.num_nodes, 4, generator=torch.Generator().manual_seed(0))
    assert evaluate(noise, tiny, "20/40/40", splits=2)["accuracy_mean"] < 0.6


def test_evaluation_is_repeatable_and_leaves_global_generators_alone(tiny):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    state = np.random.get_state()[1].copy()
    first = evaluate(tiny.x, tiny, "20/40/40", splits=2)
    assert evaluate(tiny.x, tiny, "20/40/40", splits=2) == first
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])


def test_masks_against_liblinear():
    """Validation and test accuracy of the C that is best on the validation nodes, ties to the smallest, of liblinear's models."""
    from sklearn.linear_model import LogisticRegression

    graph = synthetic.block_model(240, classes=3, features=10, noise=2.5, seed=6)
    part = torch.randint(3, (240, 4), generator=torch.Generator().manual_seed(0))
    train, val, test = part == 0, part == 1, part[:, 0] == 2
    graph = make_graph("g", graph.edge_index, graph.x, graph.y, True, train, val, test)
    got = torch.stack(classify(graph.x, graph, "masks"), 1).numpy()
    x, y, expected = unit_length(graph.x).numpy(), graph.y.numpy(), []
    for split in range(4):
        rows = train[:, split].numpy()
        scores = []
        for c in PENALTIES:
            fits = [LogisticRegression(solver="liblinear", C=c, tol=1e-8, max_iter=5000).fit(x[rows], y[rows] == k) for k in range(3)]
            right = np.stack([fit.decision_function(x) for fit in fits], 1).argmax(1) == y
            scores.append((right[val[:, split].numpy()].mean(), right[test.numpy()].mean()))
        expected.append(max(scores, key=lambda score: score[0]))
    assert 0.4 < np.mean(expected) < 0.9
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_protocols(tiny):
    assert resolve_protocol("auto", tiny) == "20/40/40"
    with pytest.raises(ConfigError, match="masks"):
        resolve_protocol("masks", tiny)
    val, test = classify(tiny.x, tiny, "80/10/10", 2)
    assert val.shape == test.shape == (2,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_features_of_any_floating_type(dtype, tiny):
    words = (torch.rand(tiny.num_nodes, 20, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    assert evaluate(words.to(dtype), tiny, splits=2) == evaluate(words, tiny, splits=2)
