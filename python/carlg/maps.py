"""Two-dimensional maps of an embedding for the report: PCA of all, t-SNE of a sample."""

import warnings

import numpy as np
import torch
from torch import Tensor


def sample_rows(nodes: int, most: int, seed: int = 0) -> Tensor:
    """At most ``most`` row numbers, sorted."""
    if nodes <= most:
        return torch.arange(nodes)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(nodes, generator=generator)[:most].sort().values


def principal(x: Tensor, dimensions: int) -> Tensor:
    """Coordinates on the leading principal axes; signs fixed so that the largest entry of an axis is positive."""
    centred = (x - x.mean(0)).double()
    axes = torch.linalg.eigh(centred.t() @ centred)[1].flip(1)[:, :dimensions]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return (centred @ (axes * torch.where(largest < 0, -1.0, 1.0))).float()


def maps(embeddings: Tensor, most: int = 1500) -> tuple[Tensor, dict[str, np.ndarray]]:
    """Sampled rows and their (m, 2) positions by method, each scaled into [0, 1]."""
    rows = sample_rows(embeddings.shape[0], most)
    x = torch.nn.functional.normalize(embeddings[rows], dim=1)
    plane = torch.nn.functional.pad(principal(x, 2), (0, max(0, 2 - x.shape[1])))
    found = {"PCA": plane.numpy()}
    # t-SNE divides by distances: points that all coincide crash it.
    if len(rows) > 50 and x.shape[1] > 1 and float(plane.std(0).max()) > 1e-6:
        from sklearn.manifold import TSNE

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tsne = TSNE(2, init="pca", perplexity=min(30, len(rows) / 4), max_iter=500, random_state=0)
            found["t-SNE"] = tsne.fit_transform(principal(x, min(30, x.shape[1])).numpy())
    return rows, {name: _scaled(points) for name, points in found.items()}


def _scaled(points: np.ndarray) -> np.ndarray:
    points = np.nan_to_num(points)
    low, high = np.percentile(points, 0.5, axis=0), np.percentile(points, 99.5, axis=0)
    return np.clip((points - low) / np.maximum(high - low, 1e-12), -0.02, 1.02)
