"""The figures of an embedding, always beside those of the untrained encoder and of the raw features."""

import sys
from typing import Any

import torch
from torch import Tensor

from carlg.config import Config, ConfigError
from carlg.encoder import Encoder
from carlg.graph import Graph, take_rows
from carlg.maps import sample_rows
from carlg.memo import recall
from carlg.propagation import Inputs
from carlg.trainer import build_models

# Nodes up to which all are evaluated; the published graphs have fewer.
MOST_NODES = 50_000
# Fewer make no splits worth the name.
_LEAST_NODES = 50
_EMPTY = dict.fromkeys(("accuracy_mean", "accuracy_std", "nmi", "homogeneity", "hits5", "hits10"))


def untrained_encoder(config: Config, inputs: Inputs) -> Encoder:
    """The encoder of epoch 0: as the seed makes it, a batch norm with the moments of the graph."""
    encoder = build_models(config, inputs.num_features)[0].to(inputs.adjacency.forward.device)
    if config.norm == "batch":
        with torch.no_grad():
            encoder.train()(inputs)
    return encoder


def check_most(most: int) -> int:
    """The number of nodes to evaluate at most, where it makes sense."""
    if most and most < _LEAST_NODES:
        raise ConfigError(f"evaluate_nodes must be 0 (all) or at least {_LEAST_NODES}, got {most}")
    return most


def compare(
    embeddings: Tensor, graph: Graph, config: Config, inputs: Inputs, protocol: str, most: int = MOST_NODES, quiet: bool = True
) -> dict[str, Any]:
    """Figures of metrics.json: of the embedding, under random_init and raw_features those of the others, which of
    them were known from earlier evaluations, and how many nodes they rest on."""
    if graph.y is None:
        return no_figures(graph)
    untrained = untrained_encoder(config, inputs).embed(inputs).cpu()
    rows = _evaluated(graph, protocol, most)
    part = graph if rows is None else graph.part(rows, graph.edge_index[:, :0])
    figures, known = {}, []
    for name, x in (("trained", embeddings), ("random_init", untrained), ("raw_features", graph.x)):
        if not quiet:
            print(f"evaluating {name.replace('_', ' ')} ...", file=sys.stderr, flush=True)
        found, recalled = recall(x if rows is None else take_rows(x, rows), part, protocol, config.splits)
        figures[name] = {**_EMPTY, **found}
        known += [name] if recalled else []
    sizes = {"evaluated_nodes": len(part.labelled), "labelled_nodes": len(graph.labelled)}
    return {**figures.pop("trained"), **figures, "evaluations_recalled": known, **sizes}


def no_figures(graph: Graph) -> dict[str, Any]:
    """The keys of :func:`compare` where nothing is evaluated."""
    return {
        **_EMPTY,
        "random_init": dict(_EMPTY),
        "raw_features": dict(_EMPTY),
        "evaluations_recalled": [],
        "evaluated_nodes": 0,
        "labelled_nodes": len(graph.labelled),
    }


def _evaluated(graph: Graph, protocol: str, most: int) -> Tensor | None:
    """Which nodes are evaluated where there are too many: ``most`` labelled ones at random; published masks are used whole."""
    if protocol == "masks" or not most or graph.num_nodes <= most or graph.y is None:
        return None
    return graph.labelled[sample_rows(len(graph.labelled), most)]
