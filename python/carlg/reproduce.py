"""The paper's tables on the data at hand: one row a (data set, variant, settings, seed), kept in a JSON file and never run twice."""

import argparse
import json
import pathlib
import statistics
import sys
from typing import Any

from carlg import checkpoint, data, measure
from carlg.comparison import untrained_encoder
from carlg.config import Config, ConfigError, recipe
from carlg.encoder import Encoder
from carlg.graph import Graph
from carlg.run import make_trainer, make_validator
from carlg.tasks import evaluate, resolve_protocol
from carlg.trainer import Trainer

DATASETS = ("wiki-cs", "amazon-computers", "amazon-photos", "coauthor-cs", "coauthor-physics")
# The paper: accuracy (mean, deviation over splits) in per cent; NMI, homogeneity, Hits@5, Hits@10 (published for sim only).
PAPER_ACCURACY = {
    "random": ((78.95, 0.58), (86.46, 0.38), (92.08, 0.48), (91.64, 0.29), (93.71, 0.29)),
    "sim": ((79.58, 0.60), (90.14, 0.33), (93.37, 0.37), (93.36, 0.39), (95.96, 0.09)),
    "sil": ((79.73, 0.44), (90.14, 0.34), (93.44, 0.32), (93.37, 0.33), (95.97, 0.14)),
    "vrc": ((78.81, 0.49), (88.90, 0.39), (93.31, 0.36), (93.18, 0.31), (95.92, 0.14)),
}
PAPER_OTHER = {
    "wiki-cs": (0.471, 0.491, 0.789, 0.775),
    "amazon-computers": (0.558, 0.607, 0.881, 0.871),
    "amazon-photos": (0.701, 0.718, 0.922, 0.917),
    "coauthor-cs": (0.790, 0.815, 0.916, 0.914),
    "coauthor-physics": (0.771, 0.776, 0.953, 0.950),
}
_OTHER_TASKS = ("nmi", "homogeneity", "hits5", "hits10")
# In the order of the tables. The middle one gives published settings of a constant rate the schedule that the authors' encoders show.
SETTINGS = ("published", "published-cosine", "defaults")


def reproduce(arguments: argparse.Namespace) -> None:
    """Run what is missing and write the tables after every row, with the remarks that lie beside the results."""
    results, tables = pathlib.Path(arguments.results), pathlib.Path(arguments.out)
    root = getattr(arguments, "root", Config().root)
    rows = read_rows(results)
    if not arguments.tables_only:
        fresh = 0
        graphs: dict[str, Graph] = {}
        for task in _plan(arguments, root):
            if task in {_key(row) for row in rows if _complete(row)}:
                continue
            rows = add_row(results, tables, _run(task, root, graphs, rows))
            fresh += 1
            if arguments.rows and fresh >= arguments.rows:
                break
    rows = add_row(results, tables, None)
    print(f"{len(rows)} rows; tables in {tables}")


def read_rows(results: pathlib.Path) -> list[dict[str, Any]]:
    """The rows done so far."""
    if not results.exists():
        return []
    try:
        rows = json.loads(results.read_text(encoding="utf-8"))
        keys = {_key(row) for row in rows if {"random_init", "accuracy_mean", "accuracy_std"} <= row.keys()}
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"results {results} must hold the rows of `carlg reproduce`, got {type(error).__name__}: {error}") from None
    if not isinstance(rows, list) or len(keys) != len(rows):
        raise ConfigError(f"results {results} must hold a list of different rows, got {len(keys)} different of {len(rows)}")
    return rows


def add_row(results: pathlib.Path, tables: pathlib.Path, row: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Rows with one more, unless another process was first; rows and tables are read and written under a lock, so none is lost."""
    remarks = results.with_name("reproduction_remarks.md")
    with checkpoint.locked(results):
        rows = read_rows(results)
        if row is not None and _key(row) not in {_key(known) for known in rows if _complete(known)}:
            rows = [*(known for known in rows if _key(known) != _key(row)), row]
            checkpoint.write_json(results, rows)
        checkpoint.write_text(tables, render(rows, remarks.read_text(encoding="utf-8") if remarks.exists() else ""))
    return rows


def _complete(row: dict[str, Any]) -> bool:
    """Whether all tasks were evaluated; earlier versions left some out."""
    return all(key in figures for figures in (row, row["random_init"]) for key in _OTHER_TASKS)


def _key(row: dict[str, Any]) -> tuple[str, str, str, int]:
    return row["dataset"], row["variant"], row["settings"], row["seed"]


def _plan(arguments: argparse.Namespace, root: str) -> list[tuple[str, str, str, int]]:
    found = {name for name, place in data.available(root).items() if place != "not found"}
    names = [n for n in arguments.datasets.split(",") if n] or [n for n in DATASETS if n in found]
    if not names:
        raise ConfigError(f"none of {', '.join(DATASETS)} is found under {root}")
    try:
        seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError:
        raise ConfigError(f"seeds must be numbers such as 0,1,2, got {arguments.seeds!r}") from None
    plan = [
        (name, variant, settings, seed)
        for seed in seeds
        for settings in arguments.settings.split(",")
        for variant in arguments.variants.split(",")
        for name in names
    ]
    for _, _, settings, _ in plan:
        if settings not in SETTINGS:
            raise ConfigError(f"settings must be of {', '.join(SETTINGS)}, got {settings!r}")
    fresh = [task for task in plan if not _repeats(task)]
    if not fresh:
        raise ConfigError("settings published-cosine has no row of its own here: the published schedule is the cosine already")
    return fresh


def _config(name: str, variant: str, settings: str, seed: int) -> Config:
    changed = {"schedule": "cosine"} if settings == "published-cosine" else {}
    return recipe(None if settings == "defaults" else "published", dataset=name, variant=variant, seed=seed, **changed)


def _repeats(task: tuple[str, str, str, int]) -> bool:
    """Whether the row would be that of the published settings: their schedule is the cosine already."""
    name, variant, settings, seed = task
    config = _config(*task)
    return settings == "published-cosine" and config == _config(name, variant, "published", seed)


def _run(task: tuple[str, str, str, int], root: str, graphs: dict[str, Graph], rows: list[dict[str, Any]]) -> dict[str, Any]:
    name, variant, settings, seed = task
    config = _config(name, variant, settings, seed)
    if name not in graphs:
        graphs.clear()
        graphs[name] = data.load(name, root)
    graph = graphs[name]
    protocol = resolve_protocol(config.protocol, graph)
    trainer = make_trainer(graph, config)
    encoder = trainer.run(validate=make_validator(graph, config, protocol))
    trained = _evaluate(trainer, encoder, protocol)
    random = _untrained(trainer, protocol, rows)
    row = {
        "dataset": name,
        "variant": variant,
        "settings": settings,
        "seed": seed,
        "protocol": protocol,
        "selection": config.select,
        "epochs_run": trainer.epoch,
        "best_epoch": trainer.best_epoch,
        "stopped": trainer.finished,
        "seconds_per_epoch": measure.seconds_per_epoch(trainer),
        **trained,
        "random_init": random,
    }
    gain = 100 * (row["accuracy_mean"] - random["accuracy_mean"])
    print(
        f"{name} {variant} {settings} seed {seed}: {100 * row['accuracy_mean']:.2f} ({gain:+.2f} over the untrained encoder), "
        f"epoch {row['best_epoch']} of {row['epochs_run']}",
        file=sys.stderr,
        flush=True,
    )
    return row


def _evaluate(trainer: Trainer, encoder: Encoder, protocol: str) -> dict[str, Any]:
    """Figures of all tasks."""
    figures = evaluate(trainer.embed(encoder).cpu(), trainer.graph, protocol, trainer.config.splits)
    return {key: value for key, value in figures.items() if key != "accuracies"}


def _untrained(trainer: Trainer, protocol: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the untrained encoder: the seed makes it, so every row of the data set and seed has the same."""
    config = trainer.config
    for row in rows:
        same = (row["dataset"], row["seed"], row["protocol"]) == (config.dataset, config.seed, protocol)
        if same and _complete(row):
            return row["random_init"]
    return _evaluate(trainer, untrained_encoder(config, trainer.inputs), protocol)


def _spread(values: list[float]) -> str:
    deviation = statistics.pstdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {deviation:.2f}"


def render(rows: list[dict[str, Any]], remarks: str = "") -> str:
    """REPRODUCTION.md from the rows, with remarks (written by hand, kept beside the rows) after the tables."""
    lines = [_INTRODUCTION]
    for name in _shown(rows):
        mine = [row for row in rows if row["dataset"] == name]
        if mine:
            lines.append(_accuracy_table(name, mine))
    whole = [row for row in rows if _complete(row)]
    if whole:
        lines.append(_other_table(whole))
    missing = [name for name in DATASETS if not any(row["dataset"] == name for row in rows)]
    if missing:
        lines.append(f"Not run yet, so without a row: {', '.join(missing)}.\n")
    if remarks:
        lines.append(remarks)
    return "\n".join(lines)


def _shown(rows: list[dict[str, Any]]) -> list[str]:
    """The paper's data sets, then others in the order of their rows."""
    return list(dict.fromkeys([*DATASETS, *(row["dataset"] for row in rows)]))


def _paper(variant: str, name: str) -> str:
    """The paper's accuracy, or nothing where it has none."""
    if name not in DATASETS or variant not in PAPER_ACCURACY:
        return ""
    return "{:.2f} ± {:.2f}".format(*PAPER_ACCURACY[variant][DATASETS.index(name)])


def _best(rows: list[dict[str, Any]]) -> str:
    """Accuracy of the seed with the highest validation accuracy, where labels select at all."""
    if any(row["selection"] != "validation" for row in rows):
        return ""
    return f"{100 * max(rows, key=lambda row: row['validation_mean'])['accuracy_mean']:.2f}"


def _accuracy_table(name: str, rows: list[dict[str, Any]]) -> str:
    random = [100 * row["random_init"]["accuracy_mean"] for row in {r["seed"]: r for r in rows}.values()]
    lines = [
        f"## {name}: accuracy, protocol {rows[0]['protocol']}\n",
        "| variant | settings | selection | seeds | accuracy (± over seeds) | best seed | ± over splits | over untrained | epoch kept | paper |",
        "|---|---|---|---|---|---|---|---|---|---|",
        f"| untrained encoder | | | {len(random)} | {_spread(random)} | | | | 0 | {_paper('random', name)} |",
    ]
    for variant in dict.fromkeys(["sim", "sil", "vrc", *(row["variant"] for row in rows)]):
        for settings in SETTINGS:
            mine = [r for r in rows if r["variant"] == variant and r["settings"] == settings]
            if not mine:
                continue
            gains = [100 * (r["accuracy_mean"] - r["random_init"]["accuracy_mean"]) for r in mine]
            over = statistics.fmean(100 * r["accuracy_std"] for r in mine)
            epochs = ", ".join(str(r["best_epoch"]) for r in mine)
            lines.append(
                f"| {variant} | {settings} | {mine[0]['selection']} | {len(mine)} | "
                f"{_spread([100 * r['accuracy_mean'] for r in mine])} | {_best(mine)} | {over:.2f} | {statistics.fmean(gains):+.2f} "
                f"(least {min(gains):+.2f}) | {epochs} | {_paper(variant, name)} |"
            )
    return "\n".join(lines) + "\n"


def _other_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "## Node clustering and similarity search\n",
        "The paper gives sim alone, and takes the best epoch and the best of 50 settings for each figure, with labels (oracle selection); "
        "ours are those of the encoder selected as named above, mean over the seeds.\n",
        "| data set | variant | settings | NMI | homogeneity | Hits@5 | Hits@10 |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = _OTHER_TASKS
    for name in _shown(rows):
        mine = [row for row in rows if row["dataset"] == name]
        if not mine:
            continue
        if name in PAPER_OTHER:
            lines.append(f"| {name} | sim | paper (oracle) | " + " | ".join(f"{v:.3f}" for v in PAPER_OTHER[name]) + " |")
        seeds = {row["seed"]: row["random_init"] for row in mine}.values()
        first = [statistics.fmean(figures[key] for figures in seeds) for key in keys]
        lines.append(f"| {name} | untrained encoder | | " + " | ".join(f"{v:.3f}" for v in first) + " |")
        for variant, settings in sorted({(row["variant"], row["settings"]) for row in mine}, key=_place):
            chosen = [row for row in mine if (row["variant"], row["settings"]) == (variant, settings)]
            values = [statistics.fmean(r[key] for r in chosen) for key in keys]
            lines.append(f"| {name} | {variant} | {settings} | " + " | ".join(f"{v:.3f}" for v in values) + " |")
    return "\n".join(lines) + "\n"


def _place(kind: tuple[str, str]) -> tuple[str, int]:
    """Variants by name, their settings in the order of the tables, others at the end."""
    variant, settings = kind
    return variant, SETTINGS.index(settings) if settings in SETTINGS else len(SETTINGS)


_INTRODUCTION = """# Reproduction of the paper's tables

Made by `carlg reproduce` from the rows in reproduction.json; run again to continue. Accuracy in per cent: L2-regularised one-vs-rest
logistic regression on unit rows, C by grid search inside the training part, mean over 20 random splits. "published" are the
authors' settings with their selection: the epoch with the best validation accuracy over 3 splits, so labels choose the epoch (the
settings themselves are the best of 50 trials; "best seed" is the one here with the highest validation accuracy). "published-cosine" are
the same with the cosine schedule where the published files name none: the remarks below have the reason. "defaults" look at no label in
training and stopping; how their constants were chosen is in TRAINING.md.
"""
