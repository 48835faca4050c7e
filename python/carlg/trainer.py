"""The training loop with its label-free watch: churn of the clusters and effective rank of z, every epoch.

One epoch: z = unit rows of Pred(Enc(X)); cluster z; loss of the index on (z, labels); AdamW. Labels are constants, the gradient
flows through z and the centroids. The encoder "of epoch t" has made t steps; epoch 0 is the untrained one.
"""

import functools
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carlg.checkpoint import copy_state
from carlg.clustering import make_clusterer
from carlg.config import Config
from carlg.device import resolve_device
from carlg.encoder import Encoder, Predictor
from carlg.graph import Graph
from carlg.guard import Guard
from carlg.losses import cluster_index, effective_rank, index_loss, is_degenerate
from carlg.memory import keep_freed_memory
from carlg.propagation import Inputs, near_neighbours, renumbered

# Size of the first layer's entries on Amazon-Photos, the graph on which rates are easiest to compare with the paper's.
_REFERENCE_SIZE = 0.04
# Bytes of the widest activations below which memory is less scarce than time.
_SMALL_MATRIX = 64 << 20
# Epochs in a row with a single cluster, each seeded anew, after which the run has collapsed.
DEGENERATE_EPOCHS = 3


class CollapseWarning(UserWarning):
    """The embedding lost its dimensions or its clusters; the last sound encoder is kept."""


@dataclass(frozen=True)
class Epoch:
    """What is logged of an epoch."""

    epoch: int
    loss: float
    index: float
    churn: float
    rank: float
    clusters: int
    lr: float
    seconds: float


def default_clusters(nodes: int, batch: int = 0) -> int:
    """sqrt(n)/2, at least 2, fewer than the nodes and at most half of a batch."""
    return max(2, min(round(math.sqrt(nodes) / 2), nodes - 1, batch // 2 or nodes))


def learning_rate(config: Config, step: int) -> float:
    """Constant, or linear warm-up lr * t / warmup and then cosine to zero; t = 0 moves no weight but fills Adam's moments."""
    if config.schedule == "constant":
        return config.lr
    if step < config.warmup:
        return config.lr * step / config.warmup
    span = max(1, config.epochs - config.warmup)
    return config.lr * (1 + math.cos(math.pi * min(1.0, (step - config.warmup) / span))) / 2


def build_models(config: Config, features: int) -> tuple[Encoder, Predictor]:
    """Encoder and predictor as the seed makes them; the untrained encoder can be made again at any time."""
    generator = torch.Generator().manual_seed(config.seed)
    encoder = Encoder(features, config.layers, config.norm, generator)
    return encoder, Predictor(config.layers[-1], config.predictor, generator)


def parameter_groups(parameters: list[Tensor], relative: bool) -> list[dict[str, Any]]:
    """One group a matrix, whose rate is scaled with its initial size: Adam moves every entry by about the rate, whatever the matrix."""
    if not relative:
        return [{"params": parameters, "scale": 1.0}]
    matrices = [p for p in parameters if p.dim() == 2]
    groups = [{"params": [p], "scale": float(p.detach().square().mean().sqrt()) / _REFERENCE_SIZE} for p in matrices]
    return [*groups, {"params": [p for p in parameters if p.dim() != 2], "scale": 1.0}]


class Trainer:
    """Trains on one graph. ``state``/``load_state`` hold everything that the next epoch depends on."""

    batches = "the whole graph"
    renumbers = True  # whether epochs work on the nodes in an order of their own

    def __init__(self, graph: Graph, config: Config, generator: torch.Generator | None = None, batch: int = 0) -> None:
        """``batch``: nodes of a mini-batch, which the default number of clusters follows."""
        self.graph, self.config = graph, config
        self.device = resolve_device(config.device)
        if self.device.type == "cpu" and 4 * graph.num_nodes * max(config.layers) < _SMALL_MATRIX:
            keep_freed_memory()
        self.order = near_neighbours(graph) if self.renumbers else None
        self.edge_index = (graph.edge_index if self.order is None else renumbered(graph.edge_index, self.order)).to(self.device)
        self.clusters = min(config.clusters or default_clusters(graph.num_nodes, batch), graph.num_nodes - 1)
        self.encoder, self.predictor = (module.to(self.device) for module in build_models(config, graph.num_features))
        self.parameters = [*self.encoder.parameters(), *self.predictor.parameters()]
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.parameters, config.relative_lr),
            lr=config.lr,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.generator = generator or torch.Generator().manual_seed(config.seed + 1)
        self.clusterer = make_clusterer(config, self.clusters, self.generator, self.edge_index)
        self.epoch = 0
        self.labels: Tensor | None = None
        self.history: list[Epoch] = []
        self.kept: dict[str, Tensor] = copy_state(self.encoder)
        self.kept_labels: Tensor | None = None
        self.best_epoch = 0
        self.best_score = -math.inf
        self.solved = ""
        self.first_rank = 0.0
        self.degenerate = 0
        self.finished = ""
        self.warnings: list[str] = []

    @functools.cached_property
    def inputs(self) -> Inputs:
        """The whole graph as the encoder reads it."""
        return Inputs(self.graph, self.device, self.order)

    @functools.cached_property
    def guard(self) -> Guard | None:
        """The label-free judge of the untrained encoder, where labels do not select."""
        return Guard(self.graph, self.inputs) if self.config.select == "label-free" else None

    def run(
        self,
        on_epoch: Callable[["Trainer", Epoch], None] | None = None,
        validate: Callable[[Tensor], float] | None = None,
    ) -> Encoder:
        """Train to the end; the kept encoder, in place. ``validate`` scores embeddings where labels select."""
        while not self.finished:
            record = self.train_epoch(validate)
            self.history.append(record)
            if on_epoch is not None:
                on_epoch(self, record)
        self.encoder.load_state_dict(self.kept)
        return self.encoder

    def train_epoch(self, validate: Callable[[Tensor], float] | None = None) -> Epoch:
        config = self.config
        start = time.perf_counter()
        lr = learning_rate(config, self.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        self.encoder.train()
        h = self.encoder(self.inputs)
        z = self.predictor(h, config.normalize)
        if not math.isfinite(float(z.detach().sum())):
            return self._diverged(lr, time.perf_counter() - start)
        seeded = self.clusterer.state() is None
        labels = self.clusterer(z.detach())
        degenerate = is_degenerate(labels)
        as_given = self.inputs.restore(labels)
        churn = self._churn(as_given)
        self.labels = as_given
        rank = effective_rank(z)
        index = loss = math.nan
        if self._should_stop(h, None if seeded or degenerate else churn, rank):
            pass
        elif degenerate:
            self._skip()
        else:
            self.degenerate = 0
            value = cluster_index(config.variant, z, labels, self.clusters, self.edge_index)
            cost = index_loss(config, value, z, self.clusters)
            index, loss = float(value.detach()), float(cost.detach())
            if math.isfinite(loss):
                self.optimizer.zero_grad(set_to_none=True)
                cost.backward()
                self.optimizer.step()
            else:
                self._collapse(f"the loss is {loss}")
        if self.history and math.isnan(index):
            index, loss = self.history[-1].index, self.history[-1].loss
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - start
        present = int(torch.bincount(labels[labels >= 0], minlength=1).count_nonzero())
        self.epoch += 1
        self._after_epoch(validate)
        return Epoch(self.epoch, loss, index, churn, rank, present, lr, seconds)

    def _skip(self) -> None:
        """One cluster is left: no step, seed anew; a run in which that does not help has collapsed."""
        self.degenerate += 1
        if self.degenerate >= DEGENERATE_EPOCHS:
            self._collapse(f"one cluster is left in {self.degenerate} epochs in a row")
            return
        self._warn("one cluster is left: the step is skipped and the centroids are seeded anew")
        self.clusterer.reset()

    def _diverged(self, lr: float, seconds: float) -> Epoch:
        self._collapse("z is not finite")
        self.epoch += 1
        return Epoch(self.epoch, math.nan, math.nan, 1.0, 1.0, 0, lr, seconds)

    def _after_epoch(self, validate: Callable[[Tensor], float] | None) -> None:
        if validate is not None and not self.finished:
            self._select(validate)
        if self.epoch >= self.config.epochs and not self.finished:
            flaw = self._flaw() if validate is None else ""
            if flaw:
                self._collapse(f"{flaw} after the last step")
                return
            self.finished = f"all {self.config.epochs} epochs{self._reservation()}"
            if validate is None:
                self._consider()

    def _flaw(self) -> str:
        """What is wrong with the encoder as it stands, or nothing."""
        with torch.no_grad():
            z = self.predictor(self.encoder.embed(self.inputs), self.config.normalize)
        if not math.isfinite(float(z.sum())):
            return "z is not finite"
        return self._lost_rank(effective_rank(z))

    def _churn(self, labels: Tensor) -> float:
        """Share of the points whose cluster changed since the last epoch; 1 in the first."""
        if self.labels is None:
            return 1.0
        return float((labels != self.labels).float().mean())

    def _should_stop(self, h: Tensor | None, churn: float | None, rank: float) -> bool:
        """Judge the encoder before this epoch's step: settled clusters or a collapse end a label-free run, the others are only warned.

        ``churn`` is None where the clusters have no predecessors to compare them with.
        """
        if self.epoch == 0:
            self.first_rank = rank
            self.solved = self._nothing_to_gain(h, rank)
        flaw = self._lost_rank(rank)
        if not flaw and self.epoch > 3 and churn is not None and churn > 0.7:
            flaw = f"churn {churn:.2f}, effective rank {rank:.1f} (it was {self.first_rank:.1f})"
        if self.config.select != "label-free":
            self._note(flaw)
            if self.config.select == "last" and not flaw:
                self._consider()
            return False
        if flaw:
            self._collapse(flaw)
            return True
        self._consider()
        if self.epoch > self.config.warmup and churn is not None and churn < self.config.stop_churn:
            self.finished = f"fewer than {self.config.stop_churn:.2%} of the points changed cluster{self._reservation()}"
            return True
        return False

    def _lost_rank(self, rank: float) -> str:
        if rank < min(2.0, 0.5 * self.first_rank):
            return f"effective rank {rank:.1f} (it was {self.first_rank:.1f})"
        return ""

    def _note(self, flaw: str) -> None:
        """Warn of a collapse that does not end the run, once a run."""
        if flaw and not any("collapse" in message for message in self.warnings):
            self._warn(f"collapse in epoch {self.epoch + 1}: {flaw}; selection {self.config.select} goes on")

    def _nothing_to_gain(self, h: Tensor | None, rank: float) -> str:
        """Why the untrained encoder cannot be bettered, or nothing; ``h`` and ``rank`` are of the whole graph."""
        if self.guard is None:
            return ""
        assert h is not None
        return self.guard.objection(h, rank, self.config.layers[-1], self.config.barrier > 0)

    def _reservation(self) -> str:
        return f"; the untrained encoder is kept: {self.solved} (selection last keeps the trained one)" if self.solved else ""

    def _consider(self) -> None:
        """Keep this encoder, unless the untrained one cannot be bettered."""
        if not self.solved or self.epoch == 0:
            self._keep(self.epoch)

    def _keep(self, epoch: int) -> None:
        copy_state(self.encoder, self.kept)
        self.best_epoch = epoch
        self.kept_labels = None if self.labels is None else self.labels.clone()

    def _collapse(self, why: str) -> None:
        self.finished = f"collapse: {why}"
        self._warn(f"collapse in epoch {self.epoch + 1}: {why}; the encoder of epoch {self.best_epoch} is kept")

    def _warn(self, message: str) -> None:
        self.warnings.append(f"epoch {self.epoch + 1}: {message}")
        warnings.warn(message, CollapseWarning, stacklevel=3)

    def _select(self, validate: Callable[[Tensor], float]) -> None:
        h = self.encoder.embed(self.inputs)
        if not math.isfinite(float(h.sum())):
            self._collapse("the embedding is not finite")
            return
        score = validate(h)
        if score > self.best_score:
            self.best_score = score
            self._keep(self.epoch)
        elif self.epoch - self.best_epoch >= self.config.patience and not self.finished:
            self.finished = f"no better validation accuracy in {self.config.patience} epochs"

    def state(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "epoch": self.epoch,
            "encoder": self.encoder.state_dict(),
            "predictor": self.predictor.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "clusterer": self.clusterer.state(),
            "labels": self.labels,
            "kept": self.kept,
            "kept_labels": self.kept_labels,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "solved": self.solved,
            "first_rank": self.first_rank,
            "degenerate": self.degenerate,
            "finished": self.finished,
            "warnings": list(self.warnings),
            "history": [vars(record).copy() for record in self.history],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.predictor.load_state_dict(state["predictor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        carried = state["clusterer"]
        self.clusterer.load(None if carried is None else carried.to(self.device))
        for name in ("labels", "kept_labels"):
            setattr(self, name, None if state[name] is None else state[name].to(self.device))
        self.kept = {key: value.to(self.device) for key, value in state["kept"].items()}
        self.history = [Epoch(**record) for record in state["history"]]
        for name in ("epoch", "best_epoch", "best_score", "first_rank", "degenerate", "finished", "solved"):
            setattr(self, name, state[name])
        self.warnings = list(state["warnings"])

    def embed(self, encoder: Encoder) -> Tensor:
        """Embeddings of the whole graph."""
        return encoder.embed(self.inputs)
