"""Graphs that need no file: scikit-learn's digits as a kNN graph, and a stochastic block model."""

import math

import numpy as np
import torch

from carlg.graph import Graph, make_graph


def digits(neighbors: int = 3) -> Graph:
    """1797 handwritten digits, 8 x 8 pixels; every image is joined with its three nearest ones."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    pixels, classes = load_digits(return_X_y=True)
    adjacency = kneighbors_graph(pixels, neighbors, mode="connectivity").tocoo()
    edges = torch.from_numpy(np.stack([adjacency.row, adjacency.col]).astype(np.int64))
    x = torch.from_numpy(pixels.astype(np.float32))
    return make_graph("digits", edges, x, torch.from_numpy(classes.astype(np.int64)))


def block_model(
    nodes: int = 1000,
    classes: int = 5,
    features: int = 64,
    degree: float = 10.0,
    mixing: float = 0.2,
    noise: float = 1.5,
    seed: int = 0,
) -> Graph:
    """Stochastic block model of any size: a node has about ``degree`` neighbours, a share ``mixing`` of them at random.

    Features are the class centre (unit deviation a coordinate, divided by sqrt(features)) plus Gaussian noise ``noise`` times as large.
    Edges are drawn one by one, so a million nodes take seconds and no n x n table exists.
    """
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (nodes,), generator=generator)
    order = torch.argsort(y, stable=True)
    counts = torch.bincount(y, minlength=classes)
    starts = counts.cumsum(0) - counts
    half = max(1, round(nodes * degree / 2))
    source = torch.randint(nodes, (half,), generator=generator)
    uniform = torch.rand(half, generator=generator, dtype=torch.float64)
    own = y[source]
    within = order[(starts[own] + (uniform * counts[own]).long()).clamp(max=nodes - 1)]
    anywhere = (uniform * nodes).long().clamp(max=nodes - 1)
    mixed = torch.rand(half, generator=generator) < mixing
    target = torch.where(mixed, anywhere, within)
    centres = torch.randn(classes, features, generator=generator) / math.sqrt(features)
    x = torch.randn(nodes, features, generator=generator).mul_(noise / math.sqrt(features))
    x += centres[y]
    return make_graph(f"sbm-{nodes}", torch.stack([source, target]), x, y)
