"""What the guards of the default recipe see, and what training would gain where they keep the untrained encoder.

    python -m benchmarks.guard_study --root DATA [--seeds 0,1,2,3,4]    writes results/guard_study.jsonl and the table of docs/TRAINING.md

Effective rank of z (share of its dimensions) and probe of the untrained encoder, for every graph at hand. On the small graphs, where the
guards decide, all variants are also trained to the end without them (`--select last`) and scored with ten splits 20/40/40.
"""

import argparse
import pathlib
import random
import statistics
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import harness
from benchmarks.tables import replace_block
from carlg import data, synthetic
from carlg.config import recipe
from carlg.graph import Graph
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


@dataclass(frozen=True)
class Models:
    """Block models of random size, classes, features, degree, mixing and noise."""

    name: str
    count: int
    draw: int
    first_seed: int
    choices: dict[str, list[float]]

    def __iter__(self) -> Iterator[tuple[int, dict[str, float], Graph]]:
        choice = random.Random(self.draw).choice
        for seed in range(self.first_seed, self.first_seed + self.count):
            drawn = {name: choice(values) for name, values in self.choices.items()}
            yield seed, drawn, synthetic.block_model(**drawn, seed=seed).with_features("auto")


# The probe's ceilings were set with the first in sight; the others were drawn afterwards.
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
        "30 others, drawn afterwards",
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
)


def untrained(graph: Graph, seed: int) -> dict[str, Any]:
    """Share of the dimensions that z spans, the probe's accuracy, and the variants whose guard holds."""
    trainer = Trainer(graph, recipe(seed=seed))
    with torch.no_grad():
        h = trainer.encoder(trainer.inputs)
    rank = effective_rank(trainer.predictor(h))
    probe = trainer.probe.score(h) if trainer.probe is not None else 0.0
    guarded = []
    for variant in VARIANTS:
        judge = Trainer(graph, recipe(seed=seed, variant=variant, epochs=1, warmup=0))
        judge.probe = trainer.probe
        judge.train_epoch()
        guarded += [variant] if judge.solved else []
    return {"rank_share": round(rank / trainer.config.layers[-1], 4), "probe": round(probe, 4), "guarded": guarded}


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
        "| graph | seeds | z spans | probe | untrained | sim without guard: mean, least | sil | vrc | guard holds (sim, sil, vrc) "
        "| below with it: runs, least |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["graph"] for row in rows):
        mine = [row for row in rows if row["graph"] == name]
        spans, probe = ([100 * row[key] for row in mine] for key in ("rank_share", "probe"))
        cells = [name, str(len(mine)), f"{min(spans):.0f} to {max(spans):.0f} %", f"{min(probe):.0f} to {max(probe):.0f} %"]
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


def _below(rows: list[dict[str, Any]], variant: str) -> str:
    """How many runs end below the untrained encoder with the guard, and by how much at worst."""
    losses = [row[variant] for row in rows if variant not in row["guarded"] and row[variant] < 0]
    return f"{len(losses)} ({min(losses):+.2f})" if losses else "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    rows = []
    for name, make in SMALL.items():
        for seed in seeds:
            graph = make(seed)
            rows.append({"graph": name, "seed": seed, **untrained(graph, seed), **gains(graph, seed)})
            print(rows[-1], flush=True)
    for models in RANDOM:
        for seed, model, graph in models:
            rows.append({"graph": models.name, "seed": seed, **model, **untrained(graph, seed), **gains(graph, seed)})
            print(rows[-1], flush=True)
    for name, place in data.available(arguments.root).items():
        if place in ("built in", "not found"):
            continue
        graph = data.load(name, arguments.root)
        for seed in seeds[:3]:
            rows.append({"graph": name, "seed": seed, **untrained(graph, seed)})
            print(rows[-1], flush=True)
    harness.record("guard_study", rows)
    replace_block(PAGE, "guards", table(rows))


if __name__ == "__main__":
    main()
