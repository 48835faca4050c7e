"""Where the untrained encoder leaves nothing to gain: signs that are read off it before the first step, without labels.

Training gains by compressing directions that do not matter. Where the groups that the edges or the features show can be read off the
untrained embedding already, or where it has few dimensions, only the classes are left to be compressed.
"""

from torch import Tensor

from carlg.graph import Graph
from carlg.probe import Probe, communities, feature_groups
from carlg.propagation import Inputs

# Share of z's dimensions below which there is little to compress but the classes.
_SIMPLE = 0.12
# The share of the communities that, told already, leaves little to gain; a barrier keeps the dimensions, so that less is at risk.
_TOLD, _TOLD_BEHIND_BARRIER = 0.95, 0.985
# Fewer communities told than this: what the edges show, the embedding does not, and its clusters may be of neither.
_UNTOLD = 0.5
# What grouping the nodes by their features must gain for the groups to count, and the share of the groups that must be told.
_GAIN, _GROUPS_TOLD = 0.1, 0.85
# Fewest nodes whose communities are looked for.
_FEWEST = 20


class Guard:
    """Judges embeddings of one graph."""

    def __init__(self, graph: Graph, inputs: Inputs) -> None:
        self._restore = inputs.restore
        nodes, groups = communities(inputs.adjacency)
        self.edges = Probe(nodes, groups) if len(nodes) >= _FEWEST else None
        self.gain, nodes, groups = feature_groups(graph.x)
        self.groups = int(groups.max()) + 1
        self.features = Probe(nodes, groups) if self.gain >= _GAIN else None

    def told(self, h: Tensor) -> tuple[float, float]:
        """Shares of the communities and of the feature groups that can be read off ``h`` (0 where there are none)."""
        by_edges = self.edges.score(h) if self.edges is not None else 0.0
        return by_edges, self.features.score(self._restore(h)) if self.features is not None else 0.0

    def objection(self, h: Tensor, rank: float, width: int, barrier: bool) -> str:
        """Why the encoder with the embeddings ``h``, whose z of ``width`` dimensions has this effective rank, cannot be bettered, or nothing."""
        if rank < _SIMPLE * width:
            return f"its z spans {rank:.0f} of {width} dimensions, too few to compress"
        if self.edges is None:
            return f"no {_FEWEST} of the nodes are connected, so that the edges show no communities"
        by_edges, by_features = self.told(h)
        if by_edges >= (_TOLD_BEHIND_BARRIER if barrier else _TOLD):
            return f"{by_edges:.1%} of the graph's communities can be read off it already"
        if by_edges < _UNTOLD:
            return f"only {by_edges:.1%} of the graph's communities can be read off it, so that edges and features lead nowhere together"
        if by_features >= _GROUPS_TOLD:
            return f"the features fall into {self.groups} groups, which can be told of {by_features:.1%} of the nodes already"
        return ""
