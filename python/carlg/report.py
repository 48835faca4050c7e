"""report.html: one self-contained page with the figures, curves, cluster sizes and maps of a run."""

import html
import json
import pathlib
from typing import Any

import torch
from torch import Tensor

from carlg.charts import bar_chart, line_chart
from carlg.checkpoint import write_text
from carlg.maps import maps
from carlg.trainer import Trainer

_TASKS = (
    ("accuracy_mean", "Node classification, accuracy", True),
    ("nmi", "Node clustering, NMI", False),
    ("homogeneity", "Node clustering, homogeneity", False),
    ("hits5", "Similarity search, Hits@5", False),
    ("hits10", "Similarity search, Hits@10", False),
)
_COLUMNS = (("trained", "CARL-G"), ("random_init", "Untrained encoder"), ("raw_features", "Raw features"))
_NAMES = {
    "sim": "simplified silhouette",
    "sil": "silhouette",
    "vrc": "variance ratio",
    "mean": "mean silhouette",
    "margin": "margin",
}


def write_report(path: pathlib.Path, trainer: Trainer, embeddings: Tensor, metrics: dict[str, Any]) -> None:
    """Write the page; everything in it is inline, so the file can be sent around."""
    page = (pathlib.Path(__file__).parent / "report_template.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(f"CARL-G on {metrics['dataset']}"),
        "SUBTITLE": _subtitle(metrics),
        "CARDS": _cards(metrics),
        "WARNINGS": _warnings(metrics),
        "TABLE": _table(metrics),
        "CHARTS": _charts(trainer, metrics),
        "DATA": json.dumps(_points(trainer, embeddings)).replace("</", "<\\/"),
        "SETTINGS": html.escape(trainer.config.to_toml()),
        "VERSIONS": html.escape(", ".join(f"{k} {v}" for k, v in metrics["versions"].items())),
    }
    for key, value in parts.items():
        page = page.replace(f"@{key}@", value)
    write_text(path, page)


def _subtitle(metrics: dict[str, Any]) -> str:
    classes = f", {metrics['classes']} classes" if metrics["classes"] else ", no labels"
    return html.escape(
        f"{metrics['nodes']:,} nodes, {metrics['edges']:,} directed edges, {metrics['features']:,} features{classes}. "
        f"Index: {_NAMES[metrics['variant']]}, {metrics['clusters']} clusters, seed {metrics['seed']}."
    )


def _card(value: str, label: str, note: str = "") -> str:
    return (
        f'<div class="card"><div class="value">{html.escape(value)}</div>'
        f'<div class="label">{html.escape(label)}</div><div class="note">{html.escape(note)}</div></div>'
    )


def _cards(metrics: dict[str, Any]) -> str:
    cards = []
    if metrics["accuracy_mean"] is not None:
        gain = 100 * (metrics["accuracy_mean"] - metrics["random_init"]["accuracy_mean"])
        cards.append(
            _card(
                f"{100 * metrics['accuracy_mean']:.2f} %",
                f"accuracy, {metrics['protocol']}",
                f"{gain:+.2f} points over the untrained encoder",
            )
        )
        cards.append(_card(f"{metrics['nmi']:.3f}", "NMI of k-means", "one cluster a class"))
    cards.append(_card(str(metrics["best_epoch"]), "steps of the kept encoder", metrics["stopped"]))
    cards.append(
        _card(
            f"{1e3 * metrics['seconds_per_epoch']:.0f} ms",
            "an epoch (median)",
            f"{metrics['epoch_over_products']:.2f} times its {metrics['epoch_gflop']:.1f} GF of products",
        )
    )
    gpu = metrics["gpu_peak_memory_mb"]
    note = "of the process, training" + (f"; {gpu:.0f} MB on the GPU" if gpu is not None else "")
    cards.append(_card(f"{metrics['peak_memory_mb']:.0f} MB", "peak memory", note))
    rank, steps = metrics["effective_rank"], metrics["measured_epoch"]
    cards.append(
        _card(f"{rank:.1f}", "effective rank of z", f"after {steps} steps; {metrics['last_epoch']['effective_rank']:.1f} at the end")
    )
    return "".join(cards)


def _warnings(metrics: dict[str, Any]) -> str:
    return "".join(f'<p class="warning">{html.escape(text)}</p>' for text in metrics["warnings"])


def _table(metrics: dict[str, Any]) -> str:
    if not metrics["classes"]:
        return "<p>This graph has no labels, so there is nothing to evaluate against.</p>"
    if metrics["accuracy_mean"] is None:
        return "<p>The run was told not to evaluate (--no-evaluate); <code>carlg evaluate</code> does it later.</p>"
    values = {"trained": metrics, "random_init": metrics["random_init"], "raw_features": metrics["raw_features"]}
    rows = []
    for key, name, percent in _TASKS:
        best = max(values[column][key] for column, _ in _COLUMNS)
        cells = ""
        for column, _ in _COLUMNS:
            value = values[column][key]
            text = f"{100 * value:.2f} % ± {100 * values[column]['accuracy_std']:.2f}" if percent else f"{value:.3f}"
            cells += f'<td class="{"best" if value == best else ""}">{text}</td>'
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    head = "".join(f"<th>{name}</th>" for _, name in _COLUMNS)
    note = (
        f"Protocol {metrics['protocol']}, {len(metrics['accuracies'])} splits (± is the deviation over splits), one-vs-rest logistic "
        f"regression. Selection of the encoder: {metrics['selection']}. Clustering: mean of 10 fits."
    )
    if metrics["evaluated_nodes"] < metrics["labelled_nodes"]:
        note += f" On {metrics['evaluated_nodes']:,} of {metrics['labelled_nodes']:,} labelled nodes, drawn at random."
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table><p class='note'>{html.escape(note)}</p>"


def _charts(trainer: Trainer, metrics: dict[str, Any]) -> str:
    epochs = [record.epoch for record in trainer.history]
    mark = metrics["best_epoch"]
    curves = (
        ("Loss", "loss", "--blue", False),
        (f"Index ({_NAMES[metrics['variant']]})", "index", "--green", False),
        ("Churn: share of points that change cluster", "churn", "--orange", True),
        ("Effective rank of z", "rank", "--purple", False),
        ("Learning rate", "lr", "--grey", False),
    )
    charts = [line_chart(title, epochs, [getattr(r, key) for r in trainer.history], color, mark, log) for title, key, color, log in curves]
    labels = _clusters(trainer)
    if labels is not None:
        sizes = torch.bincount(labels[labels >= 0], minlength=trainer.clusters)
        ordered = sizes.sort(descending=True).values.tolist()
        charts.append(bar_chart("Points in every cluster of the kept encoder", ordered, "--teal", "clusters by size"))
    return "".join(charts)


def _clusters(trainer: Trainer) -> Tensor | None:
    """Clusters of the kept encoder, where it was clustered; -1 marks nodes that no batch has reached."""
    labels = trainer.kept_labels
    return labels.cpu() if labels is not None and bool((labels >= 0).any()) else None


def _points(trainer: Trainer, embeddings: Tensor) -> dict[str, Any]:
    rows, positions = maps(embeddings)
    colors: dict[str, list[int]] = {}
    if trainer.graph.y is not None:
        colors["class"] = trainer.graph.y[rows].tolist()
    labels = _clusters(trainer)
    if labels is not None:
        colors["cluster"] = labels[rows].tolist()
    return {
        "rows": rows.tolist(),
        "nodes": trainer.graph.num_nodes,
        "maps": {name: [[round(float(v), 4) for v in p] for p in points] for name, points in positions.items()},
        "colors": colors,
    }
