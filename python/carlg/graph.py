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
# Size of features whose squares still add up in float32.
_LARGEST = 1e17

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


@dataclass(frozen=True)
class Graph:
    """Undirected graphs hold each edge in both directions; no self-loops (the convolution adds them)."""

    name: str
    edge_index: Tensor  # (2, m) int64
    x: Tensor  # (n, f) float32, strided or sparse CSR
    y: Tensor | None = None  # (n,) int64, classes 0..k-1 with k >= 2, -1 where unlabelled
    train_masks: Tensor | None = None  # (n, s) bool, labelled nodes only, as the other masks
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
    def labelled(self) -> Tensor:
        """Numbers of the nodes with a class."""
        return torch.empty(0, dtype=torch.int64) if self.y is None else (self.y >= 0).nonzero().flatten()

    @property
    def is_sparse(self) -> bool:
        return self.x.layout == torch.sparse_csr

    def part(self, nodes: Tensor, edge_index: Tensor) -> "Graph":
        """Features and labels of some nodes, in the order given, with these edges and without masks."""
        y = None if self.y is None else self.y[nodes]
        return Graph(self.name, edge_index, take_rows(self.x, nodes), y, scaling=self.scaling)

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
        values = parts(self.x)[-1]
        largest = float(values.abs().max()) if values.numel() else 0.0
        if largest > _LARGEST:
            raise ConfigError(f"{self.name}: x must be at most {_LARGEST:g} in size, its squares overflow float32, got {largest:.3g}")
        scaling = fit_scaling(self.x, mode) if isinstance(mode, str) else mode
        if scaling.mode == "none":
            return self
        if scaling.deviation is not None and len(scaling.deviation) != self.num_features:
            raise ConfigError(f"{self.name} must have {len(scaling.deviation)} features, as the graph trained on, got {self.num_features}")
        return replace(self, x=scaling.apply(self.x), scaling=scaling)


def canonical(matrix: Any) -> sp.csr_matrix:
    """A float32 CSR matrix with sorted indices and no duplicates; the given one is not written to."""
    matrix = sp.csr_matrix(matrix, dtype=np.float32)
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def csr_tensor(matrix: Any) -> Tensor:
    """A scipy matrix as a float32 sparse CSR tensor with sorted int64 indices."""
    matrix = canonical(matrix)
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
        check_invariants=False,
    )


def parts(matrix: Tensor) -> list[Tensor]:
    """The tensors that hold a dense or CSR matrix."""
    if matrix.layout == torch.sparse_csr:
        return [matrix.crow_indices(), matrix.col_indices(), matrix.values()]
    return [matrix]


def scipy_csr(matrix: Tensor) -> sp.csr_matrix:
    return sp.csr_matrix(
        (matrix.values().numpy(), matrix.col_indices().numpy(), matrix.crow_indices().numpy()),
        shape=tuple(matrix.shape),
    )


def choose_layout(matrix: Any) -> Tensor:
    """A scipy matrix or dense tensor as sparse CSR where few of its entries are set, else dense.

    A dense tensor with negative values stays: standardised columns of dense features are centred, those of sparse ones are not.
    """
    few = SPARSE_BELOW * matrix.shape[0] * matrix.shape[1]
    if isinstance(matrix, Tensor):
        return matrix.to_sparse_csr() if int(matrix.count_nonzero()) < few and float(matrix.min()) >= 0 else matrix
    matrix = canonical(matrix)
    return csr_tensor(matrix) if matrix.nnz < few else torch.from_numpy(matrix.toarray())


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor on the CPU from a tensor of any layout or an array; ConfigError where it holds no real numbers."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise ConfigError(f"{name} must hold real numbers, got {value.dtype}")
        return value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be an array of numbers, got {type(value).__name__} ({error})") from None
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"{name} must hold real numbers, got {array.dtype} from {type(value).__name__}")
    if array.dtype.kind != "b":
        wide = np.float64 if array.dtype.kind == "f" and array.dtype.itemsize > 4 else np.float32
        array = array.astype(wide if array.dtype.kind == "f" else np.int64, copy=False)
    return torch.from_numpy(np.ascontiguousarray(array))


def as_features(x: Any, name: str) -> Tensor:
    """Float32 features from a tensor of any layout, an array or a scipy matrix, sparse or dense by :func:`choose_layout`."""
    sparse = sp.issparse(x)
    if sparse and x.dtype.kind not in "biuf":
        raise ConfigError(f"{name}: x must hold real numbers, got {x.dtype}")
    x = x if sparse else as_tensor(x, f"{name}: x").to(torch.float32)
    if len(x.shape) != 2:
        raise ConfigError(f"{name}: x must be of shape (n, f), got {tuple(x.shape)}")
    if sparse:
        return choose_layout(x)
    if x.layout == torch.strided:
        return choose_layout(x.contiguous())
    return choose_layout(scipy_csr(x if x.layout == torch.sparse_csr else x.to_sparse_csr()))


def clean_edges(edge_index: Tensor, num_nodes: int, undirected: bool, name: str = "edge_index") -> Tensor:
    """Edges without self-loops and duplicates, sorted by row; both directions where ``undirected``."""
    if edge_index.layout != torch.strided or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ConfigError(f"{name} must be dense and of shape (2, m), got {edge_index.layout} {tuple(edge_index.shape)}")
    if edge_index.numel() and (edge_index.is_floating_point() or edge_index.dtype == torch.bool):
        raise ConfigError(f"{name} must hold integers, got {edge_index.dtype}")
    edge_index = edge_index.to(torch.int64)
    if edge_index.numel() and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ConfigError(f"{name} must be in [0, {num_nodes}), got {int(edge_index.min())}..{int(edge_index.max())}")
    row, col = edge_index[:, edge_index[0] != edge_index[1]]
    if undirected:
        row, col = torch.cat([row, col]), torch.cat([col, row])
    key = torch.unique(row * num_nodes + col)
    return torch.stack([key // num_nodes, key % num_nodes])


def class_labels(y: Any, nodes: int, name: str) -> Tensor | None:
    """Classes 0..k-1 in the order of their numbers or names, -1 where ``y`` is -1; None where fewer than two classes occur."""
    if not isinstance(y, Tensor):
        y = np.asarray(y)
        if y.dtype.kind in "US":
            y = np.unique(y, return_inverse=True)[1].reshape(y.shape)
    y = as_tensor(y, f"{name}: y")
    if tuple(y.shape) not in ((nodes,), (nodes, 1)):
        raise ConfigError(f"{name}: y must be of shape ({nodes},), got {tuple(y.shape)}")
    y = y.reshape(-1)
    whole = y.to(torch.int64)
    bad = (whole != y) | (whole < -1)
    if bool(bad.any()):
        raise ConfigError(f"{name}: y must hold whole numbers from 0 on, or -1 where unlabelled, got {y[bad][0].item()}")
    known = whole >= 0
    classes, numbers = torch.unique(whole[known], return_inverse=True)
    if len(classes) < 2:
        return None
    whole[known] = numbers
    return whole


def _labelled_mask(mask: Tensor | None, y: Tensor | None, nodes: int, name: str) -> Tensor | None:
    if mask is None:
        return None
    if mask.shape[:1] != (nodes,):
        raise ConfigError(f"{name} must have {nodes} rows, got shape {tuple(mask.shape)}")
    mask = mask.cpu().bool()
    return mask if y is None else mask & (y >= 0).reshape(-1, *[1] * (mask.dim() - 1))


def make_graph(
    name: str,
    edge_index: Tensor,
    x: Tensor,
    y: Any = None,
    undirected: bool = True,
    train_masks: Tensor | None = None,
    val_masks: Tensor | None = None,
    test_mask: Tensor | None = None,
) -> Graph:
    """Check and tidy the parts of a graph; ConfigError names what is wrong. ``y`` as :func:`class_labels` takes it."""
    if x.dim() != 2 or x.shape[0] < 3 or x.shape[1] < 1:
        raise ConfigError(f"{name}: x must be of shape (n >= 3, f >= 1), got {tuple(x.shape)}")
    values = x.values() if x.layout == torch.sparse_csr else x
    if not bool(values.isfinite().all()):
        raise ConfigError(f"{name}: x must be finite, got NaN or infinite values")
    nodes = x.shape[0]
    y = None if y is None else class_labels(y, nodes, name)
    if train_masks is not None and val_masks is not None and train_masks.shape != val_masks.shape:
        raise ConfigError(f"{name}: val_masks must be of shape {tuple(train_masks.shape)} as train_masks, got {tuple(val_masks.shape)}")
    named = {"train_masks": train_masks, "val_masks": val_masks, "test_mask": test_mask}
    masks = {key: _labelled_mask(mask, y, nodes, f"{name}: {key}") for key, mask in named.items()}
    return Graph(name, clean_edges(edge_index, nodes, undirected, f"{name}: edge_index"), x, y, **masks)


def from_data(data: Any, name: str = "data") -> Graph:
    """A :class:`Graph` from a torch_geometric ``Data`` object (or anything with x, edge_index and perhaps y).

    The graph is undirected: an edge given in one direction counts in both. Self-loops and repeated edges are dropped. Weights and
    attributes of edges are not used, which a warning says where there is one number an edge. Features of few entries become sparse.
    Nodes with y = -1 are unlabelled.
    """
    missing = [key for key in ("x", "edge_index") if getattr(data, key, None) is None]
    if missing:
        raise ConfigError(f"{name} must have x and edge_index, got {type(data).__name__} without {' and '.join(missing)}")
    x = as_features(data.x, name)
    edge_index = as_tensor(data.edge_index, f"{name}: edge_index")
    edges = edge_index.shape[-1]
    for key in ("edge_weight", "edge_attr"):
        if tuple(getattr(getattr(data, key, None), "shape", ())) in ((edges,), (edges, 1)):
            warn_unused(f"{name}: {key}")
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
    return make_graph(name, edge_index, x, getattr(data, "y", None), True, **masks)


def take_rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows of a matrix, dense or CSR."""
    if matrix.layout != torch.sparse_csr:
        return matrix[rows]
    pointers = matrix.crow_indices()
    start, length = pointers[rows], pointers[rows + 1] - pointers[rows]
    ends = length.cumsum(0)
    offset = torch.repeat_interleave(start - (ends - length), length)
    index = torch.arange(len(offset)) + offset
    new = torch.cat([ends.new_zeros(1), ends])
    return torch.sparse_csr_tensor(
        new,
        matrix.col_indices()[index],
        matrix.values()[index],
        size=(rows.shape[0], matrix.shape[1]),
        check_invariants=False,
    )


def warn_unused(name: str) -> None:
    warnings.warn(f"{name} is not used, all edges count the same", UserWarning, stacklevel=3)
