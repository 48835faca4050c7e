"""One run from settings to files: train, evaluate, write (metrics.json, config.toml, encoder.pt, embeddings.npy, events, report.html)."""

import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carlg import checkpoint, data, measure
from carlg.config import Config, ConfigError, recipe
from carlg.encoder import Encoder
from carlg.evaluate import classify, evaluate, resolve_protocol
from carlg.events import EventLog
from carlg.graph import Graph
from carlg.progress import Progress
from carlg.report import write_report
from carlg.trainer import Trainer, build_models

# Settings that change where and how a run executes, not what it computes.
_NEUTRAL = {"root", "device", "threads", "checkpoint_every"}


@dataclass(frozen=True)
class Run:
    """A finished run."""

    encoder: Encoder
    embeddings: Tensor
    metrics: dict[str, Any]
    trainer: Trainer


def train(
    graph: Graph | Any | None = None,
    out: str | pathlib.Path | None = None,
    config: Config | str | None = None,
    resume: bool = False,
    report: bool = True,
    quiet: bool = True,
    **settings: Any,
) -> Run:
    """Train, evaluate and write a run.

    Parameters
    ----------
    graph : Graph or torch_geometric Data, optional
        Without it the data set named in the settings is loaded.
    out : path, optional
        Folder of the run's files; nothing is written without it.
    config : Config, path of a TOML file, or "published", optional
    resume : bool
        Continue from the checkpoint in ``out``, to the same bits as if never interrupted.
    report : bool
        Write report.html.
    quiet : bool
        No progress bar and no summary.
    **settings
        Any field of :class:`carlg.Config`.

    Examples
    --------
    >>> run = carlg.train(dataset="sbm", nodes=200, epochs=3, splits=2)
    >>> run.embeddings.shape
    torch.Size([200, 256])
    """
    chosen = config.replace(**settings) if isinstance(config, Config) else recipe(config, **settings)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if graph is None:
        graph = data.load(chosen.dataset, chosen.root, chosen.nodes, chosen.features, chosen.seed)
    elif not isinstance(graph, Graph):
        from carlg.graph import from_data

        graph = from_data(graph).with_features(chosen.features)
    if chosen.select == "validation" and graph.y is None:
        raise ConfigError(f"select validation needs labels, {graph.name} has none")
    resolve_protocol(chosen.protocol, graph)
    if out is None:
        return _train(graph, chosen, None, False, False, quiet)
    folder = pathlib.Path(out)
    with checkpoint.only_run(folder):
        return _train(graph, chosen, folder, resume, report, quiet)


def _train(graph: Graph, config: Config, folder: pathlib.Path | None, resume: bool, report: bool, quiet: bool) -> Run:
    trainer = make_trainer(graph, config)
    if folder is not None:
        _restore(trainer, folder, resume)
    protocol = resolve_protocol(config.protocol, graph)
    progress = Progress(config.epochs, trainer.epoch, quiet)
    log = EventLog(folder, trainer.epoch)

    def on_epoch(trainer: Trainer, record: Any) -> None:
        progress.update(record)
        log.write(record)
        if folder is not None and (trainer.finished or trainer.epoch % config.checkpoint_every == 0):
            checkpoint.save(folder / "checkpoint.pt", trainer.state())

    encoder = trainer.run(on_epoch, make_validator(graph, config, protocol))
    progress.close()
    log.close()
    peak = measure.peak_memory_mb()
    embeddings = trainer.embed(encoder).cpu()
    metrics = _metrics(trainer, embeddings, protocol, peak, quiet)
    if folder is not None:
        checkpoint.write_text(folder / "config.toml", config.to_toml())
        checkpoint.save_encoder(folder / "encoder.pt", encoder, features=graph.num_features)
        checkpoint.write_array(folder / "embeddings.npy", embeddings.numpy())
        if report:
            write_report(folder / "report.html", trainer, embeddings, metrics)
        checkpoint.write_json(folder / "metrics.json", metrics)
    if not quiet:
        _summary(metrics, trainer, folder)
    return Run(encoder, embeddings, metrics, trainer)


def make_validator(graph: Graph, config: Config, protocol: str) -> Callable[[Tensor], float] | None:
    """Mean validation accuracy over 3 splits (all published masks), where the settings select by it.

    It ranks epochs, so the classifier stops at a hundredth of the first gradient.
    """
    if config.select != "validation":
        return None
    return lambda h: float(classify(h.cpu(), graph, protocol, 3, tolerance=1e-2)[0].mean())


def make_trainer(graph: Graph, config: Config) -> Trainer:
    if config.batch_nodes and config.batch_nodes < graph.num_nodes:
        from carlg.minibatch import BatchTrainer

        return BatchTrainer(graph, config)
    return Trainer(graph, config)


def _restore(trainer: Trainer, folder: pathlib.Path, resume: bool) -> None:
    """Take up the checkpoint of the same settings, or clear what an earlier run left."""
    config, path, settings = trainer.config, folder / "checkpoint.pt", folder / "config.toml"
    if resume and path.exists():
        earlier = recipe(str(settings)) if settings.exists() else config
        differing = [name for name, value in vars(config).items() if name not in _NEUTRAL and getattr(earlier, name) != value]
        if differing:
            raise ConfigError(f"cannot resume {folder}: {', '.join(differing)} differ from its config.toml")
        trainer.load_state(checkpoint.load(path))
        return
    for name in ("checkpoint.pt", "metrics.json", "report.html", "encoder.pt", "embeddings.npy"):
        (folder / name).unlink(missing_ok=True)
    for events in (folder / "events").glob("events.out.tfevents.*"):
        events.unlink()
    checkpoint.write_text(settings, config.to_toml())


def _metrics(trainer: Trainer, embeddings: Tensor, protocol: str, peak: float, quiet: bool) -> dict[str, Any]:
    graph, config = trainer.graph, trainer.config
    untrained = trainer.embed(build_models(config, graph.num_features)[0].to(trainer.device)).cpu()
    tasks: dict[str, dict[str, Any]] = {}
    start = time.perf_counter()
    for name, x in (("trained", embeddings), ("random_init", untrained), ("raw_features", graph.x)):
        if not quiet and graph.y is not None:
            print(f"evaluating {name.replace('_', ' ')} ...", file=sys.stderr, flush=True)
        tasks[name] = evaluate(x, graph, protocol, config.splits)
    evaluation = time.perf_counter() - start
    empty = dict.fromkeys(("accuracy_mean", "accuracy_std", "nmi", "homogeneity", "hits5", "hits10"))
    last = trainer.history[-1]
    return {
        "dataset": graph.name,
        "variant": config.variant,
        "protocol": protocol,
        "selection": config.select,
        "seed": config.seed,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "classes": graph.num_classes,
        "clusters": trainer.clusters,
        "epochs_run": trainer.epoch,
        "best_epoch": trainer.best_epoch,
        "stopped": trainer.finished,
        "warnings": trainer.warnings,
        "index": last.index,
        "churn": last.churn,
        "effective_rank": last.rank,
        **measure.cost(trainer),
        "peak_memory_mb": peak,
        "evaluation_seconds": evaluation,
        **empty,
        **tasks["trained"],
        "random_init": {**empty, **tasks["random_init"]},
        "raw_features": {**empty, **tasks["raw_features"]},
        "versions": measure.versions(),
    }


def _percent(metrics: dict[str, Any]) -> str:
    if metrics.get("accuracy_mean") is None:
        return "no labels"
    return f"{100 * metrics['accuracy_mean']:.2f} ± {100 * metrics['accuracy_std']:.2f} %"


def _summary(metrics: dict[str, Any], trainer: Trainer, folder: pathlib.Path | None) -> None:
    print(
        f"{metrics['dataset']} {metrics['variant']}, seed {metrics['seed']}: {metrics['stopped']}; "
        f"encoder of epoch {metrics['best_epoch']} (selection: {metrics['selection']})"
    )
    print(
        f"accuracy ({metrics['protocol']}): {_percent(metrics)}; untrained encoder "
        f"{_percent(metrics['random_init'])}; raw features {_percent(metrics['raw_features'])}"
    )
    if metrics["nmi"] is not None:
        print(
            f"clustering: NMI {metrics['nmi']:.3f}, homogeneity {metrics['homogeneity']:.3f}; "
            f"similarity search: Hits@5 {metrics['hits5']:.3f}, Hits@10 {metrics['hits10']:.3f}"
        )
    print(
        f"epoch {1e3 * metrics['seconds_per_epoch']:.0f} ms for {metrics['epoch_gflop']:.1f} GF of products: "
        f"{metrics['epoch_over_products']:.2f} times what they cost at {metrics['product_gflops']:.0f} GF/s; "
        f"peak memory {metrics['peak_memory_mb']:.0f} MB"
    )
    if folder is not None:
        print(f"written to {folder}: report.html, metrics.json, encoder.pt, embeddings.npy, config.toml, events")


def load_run(folder: str | pathlib.Path) -> tuple[Config, Encoder, np.ndarray]:
    """Settings, encoder and embeddings of a run's folder."""
    folder = pathlib.Path(folder)
    if not (folder / "encoder.pt").exists():
        raise ConfigError(f"{folder} holds no finished run (no encoder.pt)")
    config = recipe(str(folder / "config.toml"))
    embeddings = np.load(folder / "embeddings.npy", allow_pickle=False)
    return config, checkpoint.load_encoder(folder / "encoder.pt"), embeddings
