"""Downstream tasks: node classification, node clustering, similarity search, each with its protocol's name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import carlg_kernels as ck
from carlg.classifier import PENALTIES, draw_orders, fit_grid, prepare, search_and_fit, search_bytes
from carlg.config import ConfigError
from carlg.graph import Graph, csr_tensor, scipy_csr, take_rows
from carlg.propagation import multiply, short_columns, split_binary
from carlg.sparse_kmeans import Points, sparse_kmeans
from carlg.workers import side_by_side

TASKS = ("class", "cluster", "similar")
SHARES = {"20/40/40": (0.2, 0.4), "10/10/80": (0.1, 0.1), "80/10/10": (0.8, 0.1)}


def resolve_protocol(protocol: str, graph: Graph) -> str:
    """ "auto": the masks of a data set that is published with several (WikiCS), else 20/40/40. ConfigError where a part has no node."""
    masks = graph.train_masks
    if protocol == "auto":
        protocol = "masks" if masks is not None and masks.shape[1] > 1 else "20/40/40"
    if protocol == "masks":
        if masks is None or graph.val_masks is None or graph.test_mask is None:
            raise ConfigError(f"protocol masks: {graph.name} has no train, validation and test masks")
        sizes = [int(part.sum(0).min()) for part in (masks, graph.val_masks, graph.test_mask)]
    else:
        sizes = _part_sizes(len(graph.labelled), protocol)
    if graph.y is not None and min(sizes) == 0:
        found = f"{len(graph.labelled)} labelled nodes, at least {'/'.join(map(str, sizes))} in a split"
        raise ConfigError(f"protocol {protocol} needs labelled nodes to train, validate and test; {graph.name} has {found}")
    return protocol


def _part_sizes(nodes: int, protocol: str) -> tuple[int, int, int]:
    """Nodes to train, validate and test."""
    train, val = SHARES[protocol]
    a, b = round(train * nodes), round((train + val) * nodes)
    return a, b - a, nodes - b


def unit_length(x: Tensor) -> Tensor:
    """Rows of length one in float32, dense or CSR."""
    if x.layout == torch.sparse_csr:
        matrix = scipy_csr(x).astype(np.float32).copy()
        length = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
        matrix.data /= np.repeat(np.where(length > 0, length, 1), np.diff(matrix.indptr))
        return csr_tensor(matrix)
    return torch.nn.functional.normalize(x.to(torch.float32), dim=1)


def random_splits(nodes: int, protocol: str, count: int, seed: int = 1) -> list[tuple[Tensor, Tensor, Tensor]]:
    """``count`` unstratified (train, validation, test) index sets; the first few are the same whatever the count."""
    generator = torch.Generator().manual_seed(seed)
    train, val, test = _part_sizes(nodes, protocol)
    orders = [torch.randperm(nodes, generator=generator) for _ in range(count)]
    return [order.split([train, val, test]) for order in orders]


def classify(x: Tensor, graph: Graph, protocol: str = "20/40/40", splits: int = 20, tolerance: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Validation and test accuracy of every split of the labelled nodes, rows of ``x`` scaled to length one.

    ``tolerance``: of the random splits' grids, as :func:`carlg.classifier.search_and_fit` takes it.
    """
    assert graph.y is not None
    x, y, classes = unit_length(x), graph.y, graph.num_classes
    if protocol == "masks":
        return _classify_masks(x, graph)
    features = prepare(x, graph.labelled)
    generator = torch.Generator().manual_seed(2)
    labelled = graph.labelled

    def score(train: Tensor, val: Tensor, test: Tensor, order: Tensor) -> tuple[float, float]:
        rest = torch.cat([val, test])
        predicted, _ = search_and_fit(features, y, train, rest, classes, order, tolerance)
        right = (predicted == y[rest]).double()
        return float(right[: len(val)].mean()), float(right[len(val) :].mean())

    parts = [[labelled[part] for part in split] for split in random_splits(len(labelled), protocol, splits)]
    jobs = [partial(score, *split, draw_orders(len(split[0]), generator)) for split in parts]
    table = torch.tensor(side_by_side(jobs, search_bytes(x, len(parts[0][0]), classes)), dtype=torch.float64)
    return table[:, 0], table[:, 1]


def _classify_masks(x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
    """Fixed masks: the C with the best validation accuracy, ties to the smallest; no inner folds."""
    assert graph.y is not None and graph.train_masks is not None
    assert graph.val_masks is not None and graph.test_mask is not None
    y, classes = graph.y, graph.num_classes
    test = graph.test_mask.nonzero().flatten()
    features = prepare(x, (graph.train_masks | graph.val_masks).any(1).logical_or(graph.test_mask).nonzero().flatten())

    def score(train: Tensor, val: Tensor) -> tuple[float, float]:
        fitted, weights = fit_grid(features, y, train[None], classes)
        rest = torch.cat([val, test])
        decisions = fitted.decisions(rest[None])(weights)[0].unflatten(1, (len(PENALTIES), classes))
        right = (decisions.argmax(2) == y[rest][:, None]).double()
        on_val, on_test = right[: len(val)].mean(0), right[len(val) :].mean(0)
        best = int(on_val.argmax())
        return float(on_val[best]), float(on_test[best])

    masks = zip(graph.train_masks.t(), graph.val_masks.t(), strict=True)
    jobs = [partial(score, *(mask.nonzero().flatten() for mask in pair)) for pair in masks]
    table = torch.tensor(side_by_side(jobs), dtype=torch.float64)
    return table[:, 0], table[:, 1]


def node_clustering(x: Tensor, graph: Graph, runs: int = 10, restarts: int = 10, seed: int = 0) -> tuple[float, float]:
    """NMI (arithmetic) and homogeneity of k-means with one cluster a class, mean of ``runs`` fits of ``restarts`` starts each.

    All nodes are clustered, the labelled ones scored.
    """
    from sklearn.metrics import homogeneity_score, normalized_mutual_info_score

    assert graph.y is not None
    scored = graph.labelled.numpy()
    truth = graph.y.numpy()[scored]
    fit = _fitter(unit_length(x), graph.num_classes, restarts, torch.Generator().manual_seed(seed))
    labels = [fit().numpy() for _ in range(runs)]
    nmi = [normalized_mutual_info_score(truth, found[scored]) for found in labels]
    homogeneity = [homogeneity_score(truth, found[scored]) for found in labels]
    return float(np.mean(nmi)), float(np.mean(homogeneity))


def _fitter(z: Tensor, clusters: int, restarts: int, generator: torch.Generator) -> Callable[[], Tensor]:
    """Labels of another k-means fit at every call; sparse rows and rows of bits by products of their own."""
    if z.layout == torch.sparse_csr or split_binary(z) is not None:
        points = Points(z if z.layout == torch.sparse_csr else z.to_sparse_csr())
        return lambda: sparse_kmeans(points, clusters, restarts, generator)
    return lambda: ck.kmeans(z, clusters, n_init=restarts, max_iter=300, generator=generator).labels


def similarity_search(x: Tensor, y: Tensor, ranks: tuple[int, ...] = (5, 10), chunk: int = 2048, most_queries: int = 50_000) -> list[float]:
    """Share of the k most similar other nodes (cosine) that have the query's class, for k in ``ranks``; labelled nodes only.

    Queries go by in chunks; above ``most_queries`` nodes evenly spaced ones are asked, against all nodes. Of sparse features they become
    dense, unless there are more features than nodes.
    """
    sparse = x.layout == torch.sparse_csr
    known = (y >= 0).nonzero().flatten()
    if len(known) < len(y):
        x, y = take_rows(x, known), y[known]
    x = unit_length(x)
    wide = scipy_csr(x) if sparse and x.shape[1] > x.shape[0] else None
    columns = short_columns(x) if sparse else None
    most = min(max(ranks), x.shape[0] - 1)
    hits = torch.zeros(len(ranks), dtype=torch.float64)
    asked = torch.arange(0, x.shape[0], -(-x.shape[0] // most_queries))
    for rows in asked.split(max(1, min(chunk, (1 << 28) // x.shape[0]))):
        if wide is not None:
            similar = torch.from_numpy((wide[rows.numpy()] @ wide.T).toarray())
        elif sparse:
            queries = take_rows(x, rows).to_dense().t().contiguous()
            similar = multiply(x, queries, columns).t().contiguous()
        else:
            similar = x[rows] @ x.t()
        similar[torch.arange(len(rows)), rows] = -torch.inf
        same = (y[similar.topk(most, dim=1).indices] == y[rows, None]).double()
        hits += torch.stack([same[:, :k].mean(1).sum() for k in ranks])
    return (hits / len(asked)).tolist()


def evaluate(x: Tensor, graph: Graph, protocol: str = "auto", splits: int = 20, tasks: tuple[str, ...] = TASKS) -> dict[str, Any]:
    """Figures of all tasks for features or embeddings ``x`` (dense or CSR); none where the graph has no labels."""
    if graph.y is None:
        return {}
    protocol = resolve_protocol(protocol, graph)
    result: dict[str, Any] = {}
    if "class" in tasks:
        val, test = classify(x, graph, protocol, splits)
        result |= {
            "accuracy_mean": float(test.mean()),
            "accuracy_std": float(test.std(correction=0)),
            "validation_mean": float(val.mean()),
            "accuracies": [round(float(a), 6) for a in test],
        }
    if "cluster" in tasks:
        result["nmi"], result["homogeneity"] = node_clustering(x, graph)
    if "similar" in tasks:
        result["hits5"], result["hits10"] = similarity_search(x, graph.y)
    return result
