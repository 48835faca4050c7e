"""One run from settings to files: train, evaluate, write (metrics.json, config.toml, encoder.pt, embeddings.npy, events, report.html)."""

import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carlg import checkpoint, data, measure
from carlg.comparison import MOST_NODES, check_most, compare, no_figures
from carlg.config import Config, ConfigError, recipe
from carlg.device import resolve_device
from carlg.encoder import Encoder
from carlg.events import EventLog
from carlg.graph import Graph, from_data
from carlg.progress import Progress
from carlg.report import write_report
from carlg.scaling import Scaling
from carlg.tasks import classify, resolve_protocol
from carlg.trainer import Trainer

# Settings that change where and how a run executes, not what it computes.
_NEUTRAL = {"root", "device", "threads", "checkpoint_every"}
# The data set in config.toml where the graph was given as an object.
GIVEN = "given"


@dataclass(frozen=True)
class Run:
    """A finished run."""

    encoder: Encoder
    embeddings: Tensor
    metrics: dict[str, Any]
    trainer: Trainer


@dataclass(frozen=True)
class Saved:
    """A run's folder as read; without the scaling and the graph's fingerprint where an older version wrote it."""

    config: Config
    encoder: Encoder
    scaling: Scaling | None
    graph: dict[str, Any] | None
    embeddings: np.ndarray


def train(
    graph: Graph | Any | None = None,
    out: str | pathlib.Path | None = None,
    config: Config | str | None = None,
    resume: bool = False,
    report: bool = True,
    quiet: bool = True,
    evaluate: bool = True,
    evaluate_nodes: int = MOST_NODES,
    loader: Any = None,
    **settings: Any,
) -> Run:
    """Train, evaluate and write a run.

    Parameters
    ----------
    graph : Graph or torch_geometric Data, optional
        Without it the data set named in the settings is loaded. Features that were not scaled yet are scaled as the setting
        ``features`` says; a graph from :func:`carlg.load` or ``with_features`` is taken as it is.
    out : path, optional
        Folder of the run's files; nothing is written without it.
    config : Config, path of a TOML file, or "published", optional
    resume : bool
        Continue from the checkpoint in ``out``, to the same bits as if never interrupted. Without ``config`` its settings are those of
        the folder; settings that differ from them and another graph are refused.
    report : bool
        Write report.html.
    quiet : bool
        No progress bar and no summary.
    evaluate : bool
        Evaluate where the graph has labels; without it the figures of metrics.json are null.
    evaluate_nodes : int
        Labelled nodes to evaluate at most, drawn at random; 0: all, else at least 50. Published masks are always used whole.
    loader : torch_geometric loader, optional
        Train on its batches, which must name their nodes: ``n_id``.
    **settings
        Any field of :class:`carlg.Config`.

    Examples
    --------
    >>> run = carlg.train(dataset="sbm", nodes=200, epochs=3, splits=2)
    >>> run.embeddings.shape
    torch.Size([200, 256])
    """
    most = check_most(evaluate_nodes) if evaluate else None
    folder = None if out is None else pathlib.Path(out)
    chosen = _settings(config, folder if resume else None, settings)
    resolve_device(chosen.device)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if graph is None:
        graph = load_graph(chosen)
    else:
        chosen = chosen.replace(dataset=GIVEN)
        graph = (graph if isinstance(graph, Graph) else from_data(graph)).with_features(chosen.features)
    if chosen.select == "validation" and graph.y is None:
        raise ConfigError(f"select validation needs labels, {graph.name} has none")
    protocol = resolve_protocol(chosen.protocol, graph) if evaluate or chosen.select == "validation" else chosen.protocol
    if folder is None:
        return _train(graph, chosen, protocol, None, False, False, quiet, most, loader)
    with checkpoint.only_run(folder):
        return _train(graph, chosen, protocol, folder, resume, report, quiet, most, loader)


def _settings(config: Config | str | None, resumed: pathlib.Path | None, settings: dict[str, Any]) -> Config:
    if isinstance(config, Config):
        return config.replace(**settings)
    if config is None and resumed is not None:
        if (resumed / "config.toml").exists():
            config = str(resumed / "config.toml")
        elif not settings:
            raise ConfigError(f"cannot resume {resumed}: there is no run in it (no config.toml), and no setting is given to start one")
    return recipe(config, **settings)


def load_graph(config: Config, scaling: Scaling | None = None) -> Graph:
    """The data set of the settings, its features scaled as they say or as those of the graph trained on."""
    if config.dataset == GIVEN:
        raise ConfigError(
            "the run was trained on a graph given as an object, not by name: name the graph with --dataset (perhaps an .npz file)"
        )
    return data.load(config.dataset, config.root, config.nodes, scaling or config.features, config.seed)


def _train(
    graph: Graph,
    config: Config,
    protocol: str,
    folder: pathlib.Path | None,
    resume: bool,
    report: bool,
    quiet: bool,
    most: int | None,
    loader: Any,
) -> Run:
    trainer = make_trainer(graph, config, loader)
    measure.reset_gpu_peak(trainer.device)
    known = checkpoint.fingerprint(graph)
    if folder is not None:
        _restore(trainer, folder, resume)
    progress = Progress(config.epochs, trainer.epoch, quiet)
    log = EventLog(folder, trainer.epoch)

    def on_epoch(trainer: Trainer, record: Any) -> None:
        progress.update(record)
        log.write(record)
        if folder is not None and (trainer.finished or trainer.epoch % config.checkpoint_every == 0):
            checkpoint.save(folder / "checkpoint.pt", {**trainer.state(), "graph": known})

    encoder = trainer.run(on_epoch, make_validator(graph, config, protocol))
    progress.close()
    log.close()
    peaks = {"peak_memory_mb": measure.peak_memory_mb(), "gpu_peak_memory_mb": measure.gpu_peak_memory_mb(trainer.device)}
    embeddings = trainer.embed(encoder).cpu()
    start = time.perf_counter()
    figures = no_figures(graph) if most is None else compare(embeddings, graph, config, trainer.inputs, protocol, most, quiet)
    metrics = {**_metrics(trainer, protocol), **peaks, "evaluation_seconds": time.perf_counter() - start, **figures}
    metrics |= {"graph": known, "versions": measure.versions()}
    if folder is not None:
        checkpoint.write_text(folder / "config.toml", config.to_toml())
        checkpoint.save_encoder(folder / "encoder.pt", encoder, graph)
        checkpoint.write_array(folder / "embeddings.npy", embeddings.numpy())
        checkpoint.write_json(folder / "metrics.json", metrics)
        if report:
            write_report(folder / "report.html", trainer, embeddings, metrics)
    if not quiet:
        _summary(metrics, folder, report)
    return Run(encoder, embeddings, metrics, trainer)


def make_validator(graph: Graph, config: Config, protocol: str) -> Callable[[Tensor], float] | None:
    """Mean validation accuracy over 3 splits (all published masks), where the settings select by it.

    It ranks epochs, so the classifier's grid is solved less far than that of the evaluation.
    """
    if config.select != "validation":
        return None
    return lambda h: float(classify(h.cpu(), graph, protocol, 3, tolerance=1e-3)[0].mean())


def make_trainer(graph: Graph, config: Config, loader: Any = None) -> Trainer:
    """Full batch, or mini-batches where the settings or a loader ask for them."""
    if loader is not None or 0 < config.batch_nodes < graph.num_nodes:
        from carlg.minibatch import BatchTrainer

        return BatchTrainer(graph, config, loader)
    return Trainer(graph, config)


def _restore(trainer: Trainer, folder: pathlib.Path, resume: bool) -> None:
    """Take up the checkpoint of the same settings, or clear what an earlier run left."""
    config, path, settings = trainer.config, folder / "checkpoint.pt", folder / "config.toml"
    if resume and path.exists():
        earlier = recipe(str(settings)) if settings.exists() else config
        differing = [name for name, value in vars(config).items() if name not in _NEUTRAL and getattr(earlier, name) != value]
        if differing:
            raise ConfigError(f"cannot resume {folder}: {', '.join(differing)} differ from its config.toml")
        state = checkpoint.load(path)
        batches = state.get("batches", trainer.batches)
        if batches != trainer.batches:
            raise ConfigError(f"cannot resume {folder}: it was trained on {batches}, not on {trainer.batches}")
        checkpoint.same_graph(trainer.graph, state.get("graph"), f"cannot resume {folder}")
        try:
            trainer.load_state(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"cannot resume {folder}: checkpoint.pt is not of this version ({checkpoint.first_line(error)})") from None
        return
    for name in ("checkpoint.pt", "metrics.json", "report.html", "encoder.pt", "embeddings.npy"):
        (folder / name).unlink(missing_ok=True)
    for events in (folder / "events").glob("events.out.tfevents.*"):
        events.unlink()
    checkpoint.write_text(settings, config.to_toml())


def _metrics(trainer: Trainer, protocol: str) -> dict[str, Any]:
    graph, config = trainer.graph, trainer.config
    last = trainer.history[-1]
    # The record of an epoch is of the encoder before its step; the last step of a run is not measured.
    kept = trainer.history[min(trainer.best_epoch, len(trainer.history) - 1)]
    return {
        "dataset": graph.name,
        "variant": config.variant,
        "protocol": protocol,
        "selection": config.select,
        "seed": config.seed,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "feature_scaling": graph.scaling.mode if graph.scaling is not None else "none",
        "classes": graph.num_classes,
        "clusters": trainer.clusters,
        "batches": trainer.batches,
        "epochs_run": trainer.epoch,
        "best_epoch": trainer.best_epoch,
        "stopped": trainer.finished,
        "warnings": trainer.warnings,
        "index": kept.index,
        "churn": kept.churn,
        "effective_rank": kept.rank,
        "measured_epoch": kept.epoch - 1,
        "last_epoch": {"index": last.index, "churn": last.churn, "effective_rank": last.rank},
        **measure.cost(trainer),
    }


def _percent(metrics: dict[str, Any]) -> str:
    if metrics.get("accuracy_mean") is None:
        return "not evaluated"
    return f"{100 * metrics['accuracy_mean']:.2f} ± {100 * metrics['accuracy_std']:.2f} %"


def _summary(metrics: dict[str, Any], folder: pathlib.Path | None, report: bool) -> None:
    print(
        f"{metrics['dataset']} {metrics['variant']}, seed {metrics['seed']}: {metrics['stopped']}; "
        f"encoder of epoch {metrics['best_epoch']} (selection: {metrics['selection']})"
    )
    print(
        f"accuracy ({metrics['protocol']}): {_percent(metrics)}; untrained encoder "
        f"{_percent(metrics['random_init'])}; raw features {_percent(metrics['raw_features'])}"
        if metrics["classes"]
        else "no labels to evaluate with"
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
        print(f"written to {folder}: {'report.html, ' if report else ''}metrics.json, encoder.pt, embeddings.npy, config.toml, events")


def load_run(folder: str | pathlib.Path) -> Saved:
    """Settings, encoder and embeddings of a run's folder."""
    folder = pathlib.Path(folder)
    if not (folder / "encoder.pt").exists():
        raise ConfigError(f"{folder} holds no finished run (no encoder.pt)")
    config = recipe(str(folder / "config.toml"))
    return Saved(config, *checkpoint.load_model(folder / "encoder.pt"), checkpoint.load_array(folder / "embeddings.npy"))
