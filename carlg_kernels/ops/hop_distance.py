"""Hops of the shortest path between all pairs of nodes of an undirected graph, by breadth-first search; -1 where there is no path."""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels.reference import hop_distance as reference


def _fake(edge_index: Tensor, num_nodes: int) -> Tensor:
    return edge_index.new_empty((num_nodes, num_nodes), dtype=torch.int16)


register(
    "hop_distance",
    "(Tensor edge_index, int num_nodes) -> Tensor",
    reference=reference.hop_distance,
    fake=_fake,
    triton=False,
)


def hop_distance(edge_index: Tensor, num_nodes: int) -> Tensor:
    return torch.ops.carlg_kernels.hop_distance(edge_index, num_nodes)  # type: ignore[no-any-return]
