"""Mini-batches of a graph, in plain torch or from a torch_geometric loader (most of those need compiled extras).

"cluster": the nodes in an order that keeps neighbours together (reverse Cuthill-McKee), cut into parts; a batch is the graph induced
by one part. "neighbor": random seeds with sampled neighbours, two hops by default; a batch is the graph they induce, the seeds first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carlg.config import ConfigError
from carlg.graph import Graph


@dataclass(frozen=True)
class Batch:
    """An induced graph, the numbers of its nodes in the whole one, and how many of the first ones are scored."""

    graph: Graph
    nodes: Tensor
    seeds: int


class Batches:
    """Graphs induced by some nodes of a graph."""

    def __init__(self, graph: Graph, generator: torch.Generator) -> None:
        self.graph, self.generator = graph, generator
        nodes = graph.num_nodes
        self.pointers = torch.zeros(nodes + 1, dtype=torch.int64)
        order = torch.argsort(graph.edge_index[0], stable=True)
        self.targets = graph.edge_index[1][order]
        self.pointers[1:] = torch.bincount(graph.edge_index[0], minlength=nodes).cumsum(0)
        self.local = torch.full((nodes,), -1)

    def induced(self, nodes: Tensor, seeds: int) -> Batch:
        """The graph on ``nodes``: the edges among them, their features and labels."""
        self.local[nodes] = torch.arange(len(nodes))
        start, length = self.pointers[nodes], self.pointers[nodes + 1] - self.pointers[nodes]
        ends = length.cumsum(0)
        index = torch.arange(int(ends[-1])) + torch.repeat_interleave(start - (ends - length), length)
        source = torch.repeat_interleave(torch.arange(len(nodes)), length)
        target = self.local[self.targets[index]]
        self.local[nodes] = -1
        inside = target >= 0
        edges = torch.stack([source[inside], target[inside]])
        return Batch(self.graph.part(nodes, edges), nodes, seeds)


class Sampler(Batches):
    """Yields the batches of an epoch; every node is a seed once."""

    def __init__(self, graph: Graph, size: int, kind: str, fanout: int, hops: int, generator: torch.Generator) -> None:
        super().__init__(graph, generator)
        self.kind, self.fanout, self.hops = kind, fanout, hops
        self.parts = max(1, -(-graph.num_nodes // size))
        self.order = self._locality() if kind == "cluster" else torch.arange(graph.num_nodes)

    @property
    def seeds(self) -> int:
        """Of the smallest batch."""
        return self.graph.num_nodes // self.parts

    def _locality(self) -> Tensor:
        import numpy as np
        import scipy.sparse as sp
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        n = self.graph.num_nodes
        ones = np.ones(len(self.targets), dtype=np.int8)
        matrix = sp.csr_matrix((ones, self.targets.numpy().astype(np.int32), self.pointers.numpy().astype(np.int32)), shape=(n, n))
        return torch.from_numpy(reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(np.int64))

    def __len__(self) -> int:
        return self.parts

    def __iter__(self) -> Iterator[Batch]:
        if self.kind == "cluster":
            parts = self.order.tensor_split(self.parts)
            for i in torch.randperm(self.parts, generator=self.generator).tolist():
                yield self.induced(parts[i], len(parts[i]))
            return
        shuffled = torch.randperm(self.graph.num_nodes, generator=self.generator)
        for seeds in shuffled.tensor_split(self.parts):
            nodes = self._expand(seeds)
            yield self.induced(nodes, len(seeds))

    def _expand(self, seeds: Tensor) -> Tensor:
        """Seeds followed by the nodes drawn around them."""
        known, frontier = seeds, seeds
        for _ in range(self.hops):
            start, degree = self.pointers[frontier], self.pointers[frontier + 1] - self.pointers[frontier]
            linked = degree > 0
            uniform = torch.rand(int(linked.sum()), self.fanout, generator=self.generator, dtype=torch.float64)
            drawn = start[linked, None] + (uniform * degree[linked, None]).long()
            found = self.targets[drawn].unique()
            self.local[known] = 0
            frontier = found[self.local[found] < 0]
            self.local[known] = -1
            known = torch.cat([known, frontier])
        return known


class LoaderSampler(Batches):
    """The nodes that a torch_geometric loader draws, and the graph that they induce.

    The loader must name the nodes of a batch, ``n_id``: NeighborLoader does, others do where their ``Data`` has ``n_id = arange(n)``. The
    first ``batch_size`` nodes are scored, all of them where it is not given. What the loader draws from torch's generator follows
    from ours, so that a seed fixes its batches, and is taken back afterwards.
    """

    def __init__(self, graph: Graph, loader: Any, generator: torch.Generator) -> None:
        if not hasattr(loader, "__iter__") or not hasattr(loader, "__len__") or len(loader) == 0:
            what = "an empty one" if hasattr(loader, "__len__") else type(loader).__name__
            raise ConfigError(f"loader must be a torch_geometric loader with batches, got {what}")
        super().__init__(graph, generator)
        self.loader = loader

    @property
    def seeds(self) -> int:
        """Of a batch, as far as the loader tells; else 0."""
        return getattr(self.loader, "batch_size", None) or 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        seed = int(torch.randint(2**62, (1,), generator=self.generator))
        state = torch.Generator().manual_seed(seed).get_state()
        batches: Iterator[Any] | None = None
        while True:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                batches = iter(self.loader) if batches is None else batches
                data = next(batches, None)
                state = torch.get_rng_state()
            if data is None:
                return
            yield self._checked(data)

    def _checked(self, data: Any) -> Batch:
        nodes, n = getattr(data, "n_id", None), self.graph.num_nodes
        if nodes is None:
            raise ConfigError("loader must yield batches with n_id, the numbers of their nodes: give its Data n_id = torch.arange(n)")
        if not isinstance(nodes, Tensor) or nodes.dtype != torch.int64 or nodes.dim() != 1 or len(nodes) == 0:
            raise ConfigError(f"loader must yield batches whose n_id is int64 of shape (m,), m > 0, got {nodes}")
        if int(nodes.min()) < 0 or int(nodes.max()) >= n:
            raise ConfigError(f"loader must be of the graph of {n} nodes, got nodes {int(nodes.min())} to {int(nodes.max())}")
        return self.induced(nodes.cpu(), getattr(data, "batch_size", None) or len(nodes))
