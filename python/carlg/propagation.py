"""The constant side of the convolutions:  A_hat = D^-1/2 (A + I) D^-1/2  and the features, as sparse or dense matrices.

The product with constants needs no autograd bookkeeping: for Y = M B the gradient of B is M^T dY, and M^T is kept in CSR too.
"""

import abc
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee
from torch import Tensor

from carlg.graph import Graph
from carlg_kernels.ops.binary_product import binary_product, encode
from carlg_kernels.ops.dense_product import dense_product
from carlg_kernels.ops.sparse_product import sparse_product

# Rows that are looked at at a time.
_ROWS = 4096
# Nodes up to which a copy of the embeddings costs little.
_MOST_RENUMBERED = 1 << 18


class ConstantMatrix(abc.ABC):
    """A matrix without gradient: its product with a dense one, and that of its transpose."""

    multiply_adds: int  # of a product with one column

    @abc.abstractmethod
    def product(self, dense: Tensor, transposed: bool) -> Tensor:
        """The matrix, or its transpose, times ``dense``."""

    def __matmul__(self, dense: Tensor) -> Tensor:
        product: Tensor = _ConstantProduct.apply(dense, self, False)
        return product


class _ConstantProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dense: Tensor, matrix: ConstantMatrix, transposed: bool) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return matrix.product(dense, transposed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _ConstantProduct.apply(grad, ctx.matrix, not ctx.transposed), None, None


class SparseMatrix(ConstantMatrix):
    """A matrix and its transpose, both CSR; the same tensor twice where it is symmetric."""

    def __init__(self, forward: Tensor, backward: Tensor) -> None:
        self.forward, self.backward = forward, backward
        self.columns = short_columns(forward)
        self.columns_backward = self.columns if backward is forward else short_columns(backward)
        self.multiply_adds = forward.values().numel()

    def to(self, device: torch.device) -> "SparseMatrix":
        forward = self.forward.to(device)
        return SparseMatrix(forward, forward if self.backward is self.forward else self.backward.to(device))

    def product(self, dense: Tensor, transposed: bool) -> Tensor:
        if transposed:
            return multiply(self.backward, dense, self.columns_backward)
        return multiply(self.forward, dense, self.columns)


class PropagatedSparse(ConstantMatrix):
    """A_hat X for sparse X, one after the other: the product of the two would fill up."""

    def __init__(self, adjacency: SparseMatrix, features: SparseMatrix) -> None:
        self.adjacency, self.features = adjacency, features
        self.multiply_adds = adjacency.multiply_adds + features.multiply_adds

    def product(self, dense: Tensor, transposed: bool) -> Tensor:
        first, second = (self.adjacency, self.features) if transposed else (self.features, self.adjacency)
        return second.product(first.product(dense, transposed), transposed)


class PropagatedBits(ConstantMatrix):
    """A_hat diag(scale) B for a matrix B of bits, kept as codes of its rows and of its columns.

    Its multiply-adds are those of a dense matrix, which tables of subset sums undercut.
    """

    def __init__(self, adjacency: SparseMatrix, bits: Tensor, scale: Tensor) -> None:
        self.multiply_adds = bits.numel()
        spread = adjacency.forward.values() * scale[adjacency.forward.col_indices()]
        gathered = adjacency.backward.values() * scale.repeat_interleave(adjacency.backward.crow_indices().diff())
        self.forward = *encode(bits), adjacency.forward.crow_indices(), adjacency.columns, spread, False
        self.backward = *encode(bits.t()), adjacency.backward.crow_indices(), adjacency.columns_backward, gathered, True

    def product(self, dense: Tensor, transposed: bool) -> Tensor:
        return binary_product(*(self.backward if transposed else self.forward), dense)


def split_binary(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """``x`` (n, f) as bits and a scale a row, x = diag(scale) bits; None where a row holds two values beside zero."""
    if x.shape[1] == 0:
        return None
    bits, scales = torch.empty(x.shape, dtype=torch.bool), []
    for part, found in zip(x.split(_ROWS), bits.split(_ROWS), strict=True):
        scale = torch.where(part.amax(1) > 0, part.amax(1), part.amin(1))
        torch.ne(part, 0, out=found)
        if not torch.equal(torch.where(found, scale[:, None], part), part):
            return None
        scales.append(scale)
    return bits, torch.cat(scales)


def short_columns(matrix: Tensor) -> Tensor:
    """The column indices in half the memory, as the kernel reads them."""
    return matrix.col_indices().to(torch.int32)


def multiply(matrix: Tensor, dense: Tensor, columns: Tensor | None = None) -> Tensor:
    """CSR times dense; the vendor's product on devices that have one. ``columns``: :func:`short_columns` where it is kept."""
    if dense.device.type != "cpu":
        return matrix @ dense
    columns = short_columns(matrix) if columns is None else columns
    return sparse_product(matrix.crow_indices(), columns, matrix.values(), dense)


def transpose(matrix: Tensor) -> Tensor:
    rows = torch.repeat_interleave(torch.arange(matrix.shape[0]), matrix.crow_indices().diff())
    return build_csr(matrix.col_indices(), rows, matrix.values(), (matrix.shape[1], matrix.shape[0]))


def build_csr(row: Tensor, col: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    order = torch.argsort(row * size[1] + col)
    pointers = torch.zeros(size[0] + 1, dtype=torch.int64)
    pointers[1:] = torch.bincount(row, minlength=size[0]).cumsum(0)
    return torch.sparse_csr_tensor(pointers, col[order], values[order], size=size, check_invariants=False)


def normalized_adjacency(edge_index: Tensor, num_nodes: int) -> SparseMatrix:
    """A_hat with self-loops; the degree counts them. Row i sums over edges that end in i, as torch_geometric's GCNConv does."""
    loops = torch.arange(num_nodes)
    source, target = torch.cat([edge_index[0], loops]), torch.cat([edge_index[1], loops])
    scale = torch.bincount(target, minlength=num_nodes).to(torch.float32).rsqrt_()
    values = scale[source] * scale[target]
    forward = build_csr(target, source, values, (num_nodes, num_nodes))
    backward = build_csr(source, target, values, (num_nodes, num_nodes))
    symmetric = torch.equal(forward.crow_indices(), backward.crow_indices()) and torch.equal(forward.col_indices(), backward.col_indices())
    return SparseMatrix(forward, forward if symmetric else backward)


def near_neighbours(graph: Graph) -> Tensor | None:
    """The nodes in an order in which neighbours are near one another (reverse Cuthill-McKee), so that products with A_hat find their rows
    in the cache. None for large graphs, whose embeddings are not worth copying back."""
    nodes = graph.num_nodes
    if nodes > _MOST_RENUMBERED:
        return None
    source, target = graph.edge_index.cpu().to(torch.int32).numpy()
    edges = scipy.sparse.csr_matrix((np.ones(len(source), dtype=bool), (source, target)), shape=(nodes, nodes))
    return torch.from_numpy(reverse_cuthill_mckee(edges).astype(np.int64))


def renumbered(edge_index: Tensor, order: Tensor) -> Tensor:
    """The edges between the nodes' places in ``order``."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    return places[edge_index]


class Inputs:
    """What the encoder reads: A_hat, and the first layer's constant side.

    Dense features are propagated once, A_hat X; the first layer is then one dense product. Where a row holds one value beside zero, as
    normalised words do, X = diag(s) B with bits B, and on a CPU A_hat diag(s) (B W) costs less. Sparse features stay sparse:
    A_hat (X W) costs nnz(X) and nnz(A_hat) multiples of the width, where A_hat X would fill up. The rows of all of it, and of what the
    encoder makes of it, are the graph's nodes in ``order``, as they come where it is None.
    """

    def __init__(self, graph: Graph, device: torch.device | str = "cpu", order: Tensor | None = None) -> None:
        device = torch.device(device)
        self.order = order
        if order is not None:
            graph = graph.part(order, renumbered(graph.edge_index, order))
        self.num_nodes, self.num_features = graph.num_nodes, graph.num_features
        adjacency = normalized_adjacency(graph.edge_index, graph.num_nodes)
        self.adjacency = adjacency.to(device)
        self.features: ConstantMatrix | Tensor
        if graph.is_sparse:
            self.features = PropagatedSparse(self.adjacency, SparseMatrix(graph.x, transpose(graph.x)).to(device))
        elif device.type == "cpu" and self._many_features() and (binary := split_binary(graph.x)) is not None:
            self.features = PropagatedBits(adjacency, *binary)
        else:
            self.features = multiply(adjacency.forward, graph.x).to(device)

    def _many_features(self) -> bool:
        """Whether the product with the features costs more than spreading the result, which bits need in every epoch."""
        return self.num_features * self.num_nodes > 4 * self.adjacency.multiply_adds

    def restore(self, rows: Tensor) -> Tensor:
        """``rows`` of the nodes in ``order`` as rows of the nodes as they come."""
        if self.order is None:
            return rows
        restored = torch.empty_like(rows)
        restored[self.order.to(rows.device)] = rows
        return restored

    def first_product(self, weight: Tensor) -> Tensor:
        """A_hat X W."""
        return dense_product(self.features, weight) if isinstance(self.features, Tensor) else self.features @ weight

    def flops(self, widths: tuple[int, ...], predictor: int) -> float:
        """Multiply-adds of one training epoch times two: every product forward, by weights, by inputs; bits as the dense matrix they are."""
        first = self.features.numel() if isinstance(self.features, Tensor) else self.features.multiply_adds
        total = 2 * 2.0 * first * widths[0]
        for fan_in, fan_out in zip(widths, widths[1:], strict=False):
            total += 3 * 2.0 * self.num_nodes * fan_in * fan_out + 2 * 2.0 * self.adjacency.multiply_adds * fan_out
        if predictor:
            total += 3 * 2.0 * self.num_nodes * widths[-1] * predictor * 2
        return total
