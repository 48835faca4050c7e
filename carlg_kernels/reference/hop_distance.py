"""Breadth-first search from every node at once: the frontier is a boolean matrix, a level is a sparse product."""

import torch
from torch import Tensor


def hop_distance(edge_index: Tensor, num_nodes: int) -> Tensor:
    ends = torch.cat([edge_index, edge_index.flip(0)], 1)
    ones = torch.ones(ends.shape[1], device=ends.device)
    adjacency = torch.sparse_coo_tensor(ends, ones, (num_nodes, num_nodes), check_invariants=False).coalesce()
    hops = torch.full((num_nodes, num_nodes), -1, dtype=torch.int16, device=ends.device)
    frontier = torch.eye(num_nodes, device=ends.device)
    level = 0
    while bool(frontier.any()):
        hops[frontier > 0] = level
        level += 1
        reached = torch.sparse.mm(adjacency, frontier) > 0
        frontier = (reached & (hops < 0)).float()
    return hops
