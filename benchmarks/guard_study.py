"""What the guard of the default recipe sees, and what training would gain where it keeps the untrained encoder.

    python -m benchmarks.guard_study --root DATA [--missing | --judge]    writes results/guard_study.jsonl and the table of docs/TRAINING.md

Effective rank of z (share of its dimensions) and what can be told off the untrained encoder, for every graph at hand. On the small graphs,
where the guard decides, all variants are also trained to the end without it (`--select last`) and scored with ten splits 20/40/40.
"""

import argparse
import dataclasses
import functools
import pathlib
import random
import statistics
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.neighbors import kneighbors_graph

from benchmarks import harness
from benchmarks.tables import replace_block
from carlg import data, synthetic
from carlg.config import recipe
from carlg.graph import Graph, make_graph
from carlg.losses import effective_rank
from carlg.tasks import classify
from carlg.trainer import Trainer, build_models

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "TRAINING.md"
VARIANTS = ("sim", "sil", "vrc")
SMALL = {
    "digits": lambda seed: synthetic.digits().with_features("auto"),
    "sbm": lambda seed: synthetic.block_model(1000, seed=seed).with_features("auto"),
    "sbm, mixing 0.4, noise 3": lambda seed: synthetic.block_model(1000, mixing=0.4, noise=3.0, seed=seed).with_features("auto"),
    "sbm, 2,000 nodes, 8 classes, mixing 0.3, noise 3": lambda seed: synthetic.block_model(
        2000, classes=8, mixing=0.3, noise=3.0, seed=seed
    ).with_features("auto"),
}


@dataclasses.dataclass(frozen=True)
class Models:
    """Graphs of random settings."""

    name: str
    count: int
    draw: int
    first_seed: int
    choices: dict[str, list[float]]
    make: Callable[..., Graph] = synthetic.block_model

    def __iter__(self) -> Iterator[tuple[int, dict[str, float], Graph]]:
        choice = random.Random(self.draw).choice
        for seed in range(self.first_seed, self.first_seed + self.count):
            drawn = {name: choice(values) for name, values in self.choices.items()}
            yield seed, drawn, self.make(**drawn, seed=seed).with_features("auto")


def words_model(words: float, **settings: Any) -> Graph:
    """A block model whose features are present (that share of each node's highest) or absent; all as they are where the share is zero."""
    graph = synthetic.block_model(**settings)
    if words == 0:
        return graph
    present = graph.x >= graph.x.quantile(1 - words, dim=1, keepdim=True)
    return dataclasses.replace(graph, x=present.to(torch.float32))


def neighbours_model(neighbours: int, informative: float, seed: int, **settings: Any) -> Graph:
    """Nearest neighbours of scikit-learn's made classes, whose features are linear mixtures of a few informative ones and noise."""
    count = max(4, round(informative * settings["n_features"]))
    x, y = make_classification(n_informative=count, n_redundant=0, random_state=seed, **settings)
    adjacency = kneighbors_graph(x, neighbours, mode="connectivity").tocoo()
    edges = torch.from_numpy(np.stack([adjacency.row, adjacency.col]).astype(np.int64))
    return make_graph("neighbours", edges, torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64)))


# The guard was set with all but the last two in sight.
RANDOM = (
    Models(
        "16 random block models",
        16,
        7,
        0,
        {
            "nodes": [600, 1000, 1500, 2500],
            "classes": [3, 5, 8, 12],
            "features": [32, 64, 200],
            "mixing": [0.1, 0.3, 0.5, 0.6],
            "noise": [1.0, 2.0, 3.0, 5.0],
            "degree": [4, 10, 20],
        },
    ),
    Models(
        "30 other block models",
        30,
        8,
        800,
        {
            "nodes": [500, 800, 1200, 2000, 3000],
            "classes": [2, 3, 4, 6, 7, 10, 15],
            "features": [16, 50, 100, 300],
            "mixing": [0.05, 0.2, 0.35, 0.5, 0.65],
            "noise": [0.5, 1.5, 2.5, 4.0],
            "degree": [3, 6, 12, 25],
        },
    ),
    Models(
        "40 with words",
        40,
        9,
        1600,
        {
            "nodes": [700, 1000, 1600, 2400],
            "classes": [2, 3, 5, 8, 12],
            "features": [24, 48, 128, 256],
            "mixing": [0.1, 0.25, 0.4, 0.55],
            "noise": [0.8, 1.2, 1.8, 2.3, 3.0, 3.5],
            "degree": [3, 5, 8, 15],
            "words": [0, 0.1],
        },
        words_model,
    ),
    Models(
        "60 with words",
        60,
        10,
        2600,
        {
            "nodes": [600, 1200, 2000, 3500],
            "classes": [2, 4, 6, 9, 14],
            "features": [20, 60, 150, 400],
            "mixing": [0.05, 0.2, 0.35, 0.5],
            "noise": [0.6, 1.0, 1.6, 2.2, 2.8, 4.0],
            "degree": [2, 4, 7, 12],
            "words": [0, 0.05, 0.2],
        },
        words_model,
    ),
    Models(
        "60 others with words",
        60,
        11,
        3600,
        {
            "nodes": [500, 900, 1500, 2700],
            "classes": [2, 3, 5, 7, 11],
            "features": [18, 40, 110, 350],
            "mixing": [0.1, 0.3, 0.45, 0.6],
            "noise": [0.7, 1.3, 1.9, 2.5, 3.2, 4.5],
            "degree": [3, 5, 9, 18],
            "words": [0, 0.08, 0.15],
        },
        words_model,
    ),
    Models(
        "30 neighbour graphs",
        30,
        12,
        4600,
        {
            "n_samples": [400, 800, 1500, 2500],
            "n_features": [8, 20, 50, 120],
            "informative": [0.2, 0.5, 1.0],
            "n_classes": [2, 3, 5],
            "n_clusters_per_class": [1, 2],
            "class_sep": [0.5, 1.0, 2.0],
            "neighbours": [2, 4, 8],
        },
        neighbours_model,
    ),
    Models(
        "40 with words, drawn afterwards",
        40,
        13,
        5600,
        {
            "nodes": [600, 1100, 1800, 3000],
            "classes": [2, 3, 4, 6, 10],
            "features": [22, 70, 130, 300],
            "mixing": [0.08, 0.25, 0.42, 0.58],
            "noise": [0.9, 1.5, 2.1, 2.7, 3.4, 4.2],
            "degree": [3, 6, 10, 16],
            "words": [0, 0.07, 0.12],
        },
        words_model,
    ),
    Models(
        "30 neighbour graphs, drawn afterwards",
        30,
        14,
        6600,
        {
            "n_samples": [500, 900, 1700, 2700],
            "n_features": [10, 24, 60, 150],
            "informative": [0.15, 0.4, 0.8],
            "n_classes": [2, 4, 6],
            "n_clusters_per_class": [1, 2],
            "class_sep": [0.7, 1.3, 1.8],
            "neighbours": [3, 5, 10],
        },
        neighbours_model,
    ),
)


def untrained(graph: Graph, seed: int) -> dict[str, Any]:
    """What the guard sees of the untrained encoder, and the variants that it holds back."""
    trainer = Trainer(graph, recipe(seed=seed))
    with torch.no_grad():
        h = trainer.encoder(trainer.inputs)
    rank, width, guard = effective_rank(trainer.predictor(h)), trainer.config.layers[-1], trainer.guard
    assert guard is not None
    by_edges, by_features = guard.told(h)
    guarded = [v for v in VARIANTS if guard.objection(h, rank, width, barrier=recipe(variant=v).barrier > 0)]
    seen = {"rank_share": rank / width, "communities": by_edges, "gain": guard.gain, "groups": by_features}
    return {key: round(value, 4) for key, value in seen.items()} | {"guarded": guarded}


def gains(graph: Graph, seed: int) -> dict[str, Any]:
    """Accuracy of the untrained encoder and what every variant adds to it, guards off."""
    figures: dict[str, Any] = {}
    for variant in VARIANTS:
        free = Trainer(graph, recipe(variant=variant, seed=seed, select="last"))
        if "accuracy" not in figures:
            encoder = build_models(free.config, graph.num_features)[0]
            figures["accuracy"] = round(float(classify(free.embed(encoder), graph, splits=10)[1].mean()), 6)
        trained = float(classify(free.embed(free.run()), graph, splits=10)[1].mean())
        figures[variant] = round(100 * (trained - figures["accuracy"]), 3)
    return figures


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | runs | z spans | communities told | features grouped, told | untrained | sim without guard: mean, least | sil | vrc "
        "| guard holds (sim, sil, vrc) | below with it: runs, least |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["graph"] for row in rows):
        mine = [row for row in rows if row["graph"] == name]
        spans, told, groups = ([100 * row[key] for row in mine] for key in ("rank_share", "communities", "groups"))
        grouped = [share for share in groups if share > 0]
        cells = [name, str(len(mine)), _range(spans), _range(told), f"{len(grouped)}, {_range(grouped)}" if grouped else "none"]
        if "accuracy" in mine[0]:
            cells.append(f"{100 * statistics.fmean(row['accuracy'] for row in mine):.2f}")
            for variant in VARIANTS:
                found = [row[variant] for row in mine]
                cells.append(f"{statistics.fmean(found):+.2f}, {min(found):+.2f}")
        else:
            cells += [""] * (1 + len(VARIANTS))
        cells.append(", ".join(f"{sum(variant in row['guarded'] for row in mine)}/{len(mine)}" for variant in VARIANTS))
        cells.append(", ".join(_below(mine, variant) for variant in VARIANTS) if "accuracy" in mine[0] else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(percents: list[float]) -> str:
    return f"{min(percents):.0f} to {max(percents):.0f} %"


def _below(rows: list[dict[str, Any]], variant: str) -> str:
    """How many runs end below the untrained encoder with the guard, and by how much at worst."""
    losses = [row[variant] for row in rows if variant not in row["guarded"] and row[variant] < 0]
    return f"{len(losses)} ({min(losses):+.2f})" if losses else "0"


@dataclasses.dataclass(frozen=True)
class Case:
    """A graph to look at, and to train on where it is small."""

    graph: str
    seed: int
    make: Callable[[], Graph]
    model: dict[str, float] = dataclasses.field(default_factory=dict)
    small: bool = True


def cases(root: str, seeds: list[int]) -> Iterator[Case]:
    for name, make in SMALL.items():
        for seed in seeds:
            yield Case(name, seed, functools.partial(make, seed))
    for models in RANDOM:
        for seed, model, graph in models:
            yield Case(models.name, seed, functools.partial(lambda graph: graph, graph), model)
    for name, place in data.available(root).items():
        if place not in ("built in", "not found"):
            for seed in seeds[:3]:
                yield Case(name, seed, functools.partial(data.load, name, root), small=False)


def row_of(case: Case, known: dict[str, Any] | None, judge: bool) -> dict[str, Any]:
    """The row as it is known, judged again or not, or a new one."""
    if known is not None:
        return known | untrained(case.make(), case.seed) if judge else known
    graph = case.make()
    row = {"graph": case.graph, "seed": case.seed, **case.model, **untrained(graph, case.seed)}
    return row | gains(graph, case.seed) if case.small else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--missing", action="store_true", help="run only what the result file lacks")
    parser.add_argument("--judge", action="store_true", help="as --missing, and ask the guard again about the rows that are there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = harness.load("guard_study") if arguments.missing or arguments.judge else []
    known = {(row["graph"], row["seed"]): row for row in kept}
    rows = []
    for case in cases(arguments.root, [int(seed) for seed in arguments.seeds.split(",")]):
        rows.append(row_of(case, known.get((case.graph, case.seed)), arguments.judge))
        print(rows[-1], flush=True)
    harness.record("guard_study", rows)
    replace_block(PAGE, "guards", table(rows))


if __name__ == "__main__":
    main()
