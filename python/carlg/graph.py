"""A graph ready for training: edges, features (dense or sparse), optional labels and masks."""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from carlg.config import ConfigError
from carlg.scaling import Scaling, fit_scaling

# A sparse product moves about an eighth of the numbers a dense one does in the same time.
SPARSE_BELOW = 0.1

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@dataclass(frozen=True)
class Graph:
    """Undirected graphs hold each edge in both directions; no self-loops (the convolution adds them)."""

    name: str
    edge_index: Tensor  # (2, m) int64
    x: Tensor  # (n, f) float32, strided or sparse CSR
    y: Tensor | None = None  # (n,) int64, classes 0..k-1
    train_masks: Tensor | None = None  # (n, s) bool
    val_masks: Tensor | None = None  # (n, s) bool
    test_mask: Tensor | None = None  # (n,) bool
    scaling: Scaling | None = None  # how x was made from the features as given; None: not scaled yet

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def num_classes(self) -> int:
        return 0 if self.y is None else int(self.y.max()) + 1

    @property
    def is_sparse(self) -> bool:
        return self.x.layout == torch.sparse_csr

    def with_features(self, mode: str | Scaling) -> "Graph":
        """Features scaled as ``mode`` says, or as another graph's were; "auto" is "row" where no value is negative, else "column".

        Features are scaled once: "auto" and "none" leave a graph as it is that was scaled before, anything else must be what was done.
        """
        if self.scaling is not None:
            done = mode in ("auto", "none", self.scaling.mode) if isinstance(mode, str) else mode.same(self.scaling)
            if done:
                return self
            wanted = mode if isinstance(mode, str) else f"{mode.mode} of the graph trained on"
            raise ConfigError(
                f"features {wanted}: {self.name} is scaled already, by its own {self.scaling.mode}; load it with features none"
            )
        scaling = fit_scaling(self.x, mode) if isinstance(mode, str) else mode
        if scaling.mode == "none":
            return self
        if scaling.deviation is not None and len(scaling.deviation) != self.num_features:
            raise ConfigError(f"{self.name} must have {len(scaling.deviation)} features, as the graph trained on, got {self.num_features}")
        return replace(self, x=scaling.apply(self.x), scaling=scaling)


def csr_tensor(matrix: Any) -> Tensor:
    """A scipy matrix as a float32 sparse CSR tensor with sorted int64 indices."""
    matrix = sp.csr_matrix(matrix, dtype=np.float32)
    matrix.sum_duplicates()
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
        check_invariants=False,
    )


def scipy_csr(matrix: Tensor) -> sp.csr_matrix:
    return sp.csr_matrix(
        (matrix.values().numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy()),
        shape=tuple(matrix.shape),
    )


def choose_layout(matrix: Any) -> Tensor:
    """A scipy matrix as sparse CSR where few of its entries are set, else dense."""
    matrix = sp.csr_matrix(matrix, dtype=np.float32)
    matrix.sum_duplicates()
    if matrix.nnz < SPARSE_BELOW * matrix.shape[0] * matrix.shape[1]:
        return csr_tensor(matrix)
    return torch.from_numpy(matrix.toarray())


def normalize_rows(x: Tensor) -> Tensor:
    """Every row divided by its sum, where that is above 1 (torch_geometric's NormalizeFeatures)."""
    return fit_scaling(x, "row").apply(x)


def standardize(x: Tensor) -> Tensor:
    """Columns with mean 0 and population deviation 1; sparse features are scaled but not centred."""
    return fit_scaling(x, "column").apply(x)


def clean_edges(edge_index: Tensor, num_nodes: int, undirected: bool) -> Tensor:
    """Edges without self-loops and duplicates, sorted by row; both directions where ``undirected``."""
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ConfigError(f"edge_index must be of shape (2, m), got {tuple(edge_index.shape)}")
    edge_index = edge_index.to(torch.int64)
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ConfigError(f"edge_index must be in [0, {num_nodes}), got {int(edge_index.min())}..{int(edge_index.max())}")
    row, col = edge_index[:, edge_index[0] != edge_index[1]]
    if undirected:
        row, col = torch.cat([row, col]), torch.cat([col, row])
    key = torch.unique(row * num_nodes + col)
    return torch.stack([key // num_nodes, key % num_nodes])


def make_graph(
    name: str,
    edge_index: Tensor,
    x: Tensor,
    y: Tensor | None = None,
    undirected: bool = True,
    train_masks: Tensor | None = None,
    val_masks: Tensor | None = None,
    test_mask: Tensor | None = None,
) -> Graph:
    """Check and tidy the parts of a graph; ConfigError names what is wrong."""
    if x.dim() != 2 or x.shape[0] < 3 or x.shape[1] < 1:
        raise ConfigError(f"{name}: x must be of shape (n >= 3, f >= 1), got {tuple(x.shape)}")
    values = x.values() if x.layout == torch.sparse_csr else x
    if not bool(values.isfinite().all()):
        raise ConfigError(f"{name}: x must be finite, got NaN or infinite values")
    if y is not None:
        y = y.reshape(-1)
        if y.shape[0] != x.shape[0]:
            raise ConfigError(f"{name}: y must be of shape ({x.shape[0]},), got {tuple(y.shape)}")
        y = torch.unique(y, return_inverse=True)[1]
    masks = [None if m is None else m.bool() for m in (train_masks, val_masks, test_mask)]
    return Graph(name, clean_edges(edge_index, x.shape[0], undirected), x, y, *masks)


def from_data(data: Any, name: str = "data") -> Graph:
    """A :class:`Graph` from a torch_geometric ``Data`` object (or anything with x, edge_index and perhaps y)."""
    x = getattr(data, "x", None)
    edge_index = getattr(data, "edge_index", None)
    if x is None or edge_index is None:
        raise ConfigError(f"{name} must have x and edge_index, got {type(data).__name__}")
    x = _features(x)
    masks = {}
    for key, plural in (("train_mask", "train_masks"), ("val_mask", "val_masks")):
        mask = getattr(data, key, None)
        if mask is not None:
            masks[plural] = mask if mask.dim() == 2 else mask[:, None]
    test = getattr(data, "test_mask", None)
    if test is not None and test.dim() == 1 and len(masks) == 2:
        masks["test_mask"] = test
    else:
        masks = {}
    return make_graph(name, edge_index.cpu(), x, getattr(data, "y", None), True, **masks)


def _features(x: Any) -> Tensor:
    if sp.issparse(x):
        return choose_layout(x)
    if not isinstance(x, Tensor):
        x = torch.as_tensor(np.asarray(x))
    x = x.detach().cpu()
    if x.layout == torch.strided:
        return x.to(torch.float32).contiguous()
    if x.layout != torch.sparse_csr:
        x = x.to_sparse_csr()
    return csr_tensor(scipy_csr(x.to(torch.float32)))
