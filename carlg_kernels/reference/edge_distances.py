"""D_e = ||z_{u_e} - z_{v_e}||, edges in blocks."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import distance, points, row_blocks, unit


def edge_distances(z: Tensor, edge_index: Tensor) -> Tensor:
    x, (head, tail) = points(z), edge_index
    out = x.new_empty(head.shape[0])
    for block in row_blocks(head.shape[0], 2 * x.shape[1]):
        out[block] = distance(x[head[block]], x[tail[block]])
    return out


def edge_distances_backward(grad: Tensor, z: Tensor, edge_index: Tensor) -> Tensor:
    x, (head, tail) = points(z), edge_index
    dx = torch.zeros_like(x, memory_format=torch.contiguous_format)
    for block in row_blocks(head.shape[0], 4 * x.shape[1]):
        step = grad[block, None] * unit(x[head[block]] - x[tail[block]])
        dx.index_add_(0, head[block], step).index_add_(0, tail[block], step, alpha=-1)
    return dx.to(z.dtype)
