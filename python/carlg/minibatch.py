"""Training on mini-batches for graphs that do not fit at once; the centroids carry over from batch to batch.

A batch of a share f of the nodes moves centroid j by  m_j / (m_j + (1 - f) N_j)  of the way to its mean, where m_j points of the
batch belong to it and N_j counts those seen before, forgotten at the rate of one epoch. One batch of all nodes is the full batch.

Adam moves every weight by about the rate a step, so a step of one of p batches gets a p-th of the rate: an epoch moves the weights as far
as the full batch would.
"""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from carlg.config import Config, ConfigError
from carlg.graph import Graph
from carlg.guard import Guard
from carlg.losses import cluster_index, effective_rank, index_loss, is_degenerate
from carlg.propagation import Inputs
from carlg.sampling import LoaderSampler, Sampler
from carlg.trainer import DEGENERATE_EPOCHS, Epoch, Trainer, learning_rate

# Nodes up to which the whole graph is read before the first step, to be judged.
_MOST_GUARDED = 1 << 18


class BatchTrainer(Trainer):
    """As :class:`carlg.trainer.Trainer`, with one step a batch. The whole graph is read to judge the untrained encoder and to embed it."""

    renumbers = False

    def __init__(self, graph: Graph, config: Config, loader: Any = None) -> None:
        generator = torch.Generator().manual_seed(config.seed + 1)
        self.sampler: Sampler | LoaderSampler
        if loader is None:
            self.batches = "mini-batches"
            self.sampler = Sampler(graph, config.batch_nodes, config.sampler, config.fanout, len(config.layers), generator)
        else:
            self.batches = "the batches of a loader"
            self.sampler = LoaderSampler(graph, loader, generator)
            if config.clustering == "kmedoids":
                raise ConfigError("clustering must not be kmedoids with a loader: medoids of one batch are not in the next")
        super().__init__(graph, config, generator, self.sampler.seeds)
        if 0 < self.sampler.seeds <= self.clusters:
            raise ConfigError(f"clusters must be fewer than the nodes of a batch, got {self.clusters} and {self.sampler.seeds}")
        self.counts = torch.zeros(self.clusters, device=self.device)
        self.labels = torch.full((graph.num_nodes,), -1, device=self.device)

    @functools.cached_property
    def guard(self) -> Guard | None:
        """That of the full batch; none for graphs that are too large to be read whole."""
        return super().guard if self.graph.num_nodes <= _MOST_GUARDED else None

    def train_epoch(self, validate: Callable[[Tensor], float] | None = None) -> Epoch:
        config, start = self.config, time.perf_counter()
        assert self.labels is not None
        losses, values, changed, seen, rank, lr, skipped = [], [], 0, 0, 1.0, 0.0, 0
        for step, batch in enumerate(self.sampler):
            lr = learning_rate(config, self.epoch + step / len(self.sampler)) / len(self.sampler)
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            self.encoder.train()
            z = self.predictor(self.encoder(Inputs(batch.graph, self.device)), config.normalize)[: batch.seeds]
            if not math.isfinite(float(z.detach().sum())):
                return self._diverged(lr, time.perf_counter() - start)
            if step == 0:
                rank = effective_rank(z)
                if self._should_stop(None, self.history[-1].churn if self.history else None, rank):
                    break
            seen += batch.seeds
            if batch.seeds <= self.clusters:
                skipped += 1
                continue
            labels = self._cluster(z.detach())
            nodes = batch.nodes[: batch.seeds].to(self.device)
            changed += int((self.labels[nodes] != labels).sum())
            self.labels[nodes] = labels
            if is_degenerate(labels):
                skipped += 1
                self.clusterer.reset()
                self.counts.zero_()
                continue
            edges = batch.graph.edge_index
            edges = edges[:, (edges < batch.seeds).all(0)].to(self.device)
            value = cluster_index(config.variant, z, labels, self.clusters, edges)
            cost = index_loss(config, value, z, self.clusters)
            if not math.isfinite(float(cost.detach())):
                self._collapse(f"the loss is {float(cost.detach())}")
                break
            self.optimizer.zero_grad(set_to_none=True)
            cost.backward()
            self.optimizer.step()
            losses.append(float(cost.detach()))
            values.append(float(value.detach()))
        if skipped:
            self._warn(f"{skipped} of {len(self.sampler)} batches have one cluster or too few nodes: their steps are skipped")
        churn = changed / max(1, seen)
        self.degenerate = 0 if losses or self.finished else self.degenerate + 1
        if self.degenerate >= DEGENERATE_EPOCHS:
            self._collapse(f"one cluster is left in all batches of {self.degenerate} epochs")
        if not losses and self.history:
            last = self.history[-1]
            losses, values, churn = [last.loss], [last.index], last.churn
        seconds = time.perf_counter() - start
        present = int(torch.bincount(self.labels[self.labels >= 0], minlength=1).count_nonzero())
        self.epoch += 1
        self._after_epoch(validate)
        mean = (sum(v) / len(v) if v else math.nan for v in (losses, values))
        return Epoch(self.epoch, *mean, churn, rank, present, lr, seconds)

    @torch.no_grad()
    def _nothing_to_gain(self, h: Tensor | None, rank: float) -> str:
        """Of the whole graph, whatever the batch; what it took is given back."""
        if self.guard is None:
            return ""
        h = self.encoder.embed(self.inputs)
        why = super()._nothing_to_gain(h, effective_rank(self.predictor(h, self.config.normalize)))
        self.guard = None
        del self.inputs
        return why

    def _flaw(self) -> str:
        """Weights only: the whole graph is not at hand."""
        sound = all(bool(p.isfinite().all()) for p in self.parameters)
        return "" if sound else "a weight is not finite"

    def _cluster(self, z: Tensor) -> Tensor:
        """Labels of a batch; the carried centroids move by the batch's share."""
        before = self.clusterer.state()
        labels = self.clusterer(z)
        after = self.clusterer.state()
        if after is None or not after.is_floating_point():
            return labels
        seen = torch.bincount(labels, minlength=self.clusters).to(self.counts)
        memory = (1 - z.shape[0] / self.graph.num_nodes) * self.counts
        weight = torch.where(seen > 0, seen / (seen + memory).clamp(min=1), torch.zeros_like(seen))
        if before is not None:
            self.clusterer.load(torch.lerp(before, after, weight[:, None]))
        self.counts = seen + memory
        return labels

    def state(self) -> dict:
        return {**super().state(), "counts": self.counts}

    def load_state(self, state: dict) -> None:
        super().load_state(state)
        self.counts = state["counts"].to(self.device)
