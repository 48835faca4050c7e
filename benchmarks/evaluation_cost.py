"""What the evaluation of a run costs beside its training, task by task, and its k-means beside scikit-learn's.

    python -m benchmarks.evaluation_cost --root DATA [--datasets amazon-photos,...]    writes results/evaluation.jsonl

A run of the default recipe, then the evaluation of its embedding and of the raw features: 20 splits, 10 fits of k-means with 10 starts each,
similarity search. scikit-learn fits once with 10 starts, from the same rows (sparse where ours are), and counts ten times. Each figure is
from one run in one process, as the command runs.
"""

import argparse
import pathlib
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks import harness
from benchmarks.tables import replace_block

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "COST.md"
DATASETS = ("amazon-photos", "amazon-computers", "coauthor-cs", "coauthor-physics")
_FITS = 10


def seconds_of_tasks(x: Tensor, graph: Any) -> dict[str, float]:
    """Seconds of each task, and of scikit-learn's k-means."""
    from sklearn.cluster import KMeans

    from carlg.graph import scipy_csr
    from carlg.tasks import classify, node_clustering, resolve_protocol, similarity_search, unit_length

    rows = unit_length(x)
    plain = scipy_csr(rows) if rows.layout == torch.sparse_csr else rows.numpy()
    tasks = {
        "class": lambda: classify(x, graph, resolve_protocol("auto", graph)),
        "cluster": lambda: node_clustering(x, graph, _FITS),
        "similar": lambda: similarity_search(x, graph.y),
        "scikit-learn cluster": lambda: KMeans(graph.num_classes, n_init=10, random_state=0).fit(plain),
    }
    found = {}
    for name, task in tasks.items():
        start = time.perf_counter()
        task()
        found[name] = round(time.perf_counter() - start, 2)
    found["scikit-learn cluster"] *= _FITS
    return found


def measure(name: str, root: str) -> dict[str, Any]:
    from carlg import data
    from carlg.config import recipe
    from carlg.trainer import Trainer

    graph = data.load(name, root)
    start = time.perf_counter()
    trainer = Trainer(graph, recipe(dataset=name))
    encoder = trainer.run()
    training = time.perf_counter() - start
    line = {"dataset": name, "variant": trainer.config.variant, "epochs": trainer.epoch, "training": round(training, 2)}
    return {**line, "embedding": seconds_of_tasks(trainer.embed(encoder), graph), "raw": seconds_of_tasks(graph.x, graph)}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | training | embedding: classification | clustering | search | raw features: classification | clustering | search "
        "| scikit-learn's clustering: embedding | raw |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [f"{part[task]:.1f} s" for part in (row["embedding"], row["raw"]) for task in ("class", "cluster", "similar")]
        peers = [
            f"{part['scikit-learn cluster']:.0f} s ({part['scikit-learn cluster'] / part['cluster']:.1f}x)"
            for part in (row["embedding"], row["raw"])
        ]
        lines.append(f"| {row['dataset']} | {row['training']:.1f} s ({row['epochs']} epochs) | " + " | ".join([*figures, *peers]) + " |")
    if rows:
        lines += ["", f"{rows[0]['threads']} threads, {rows[0]['cpu']} ({rows[0]['isa']}), {rows[0]['variant']}, one run."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    arguments = parser.parse_args()
    chosen = arguments.datasets.split(",")
    known = {row["dataset"]: row for row in harness.load("evaluation")}
    for name in chosen:
        known[name] = measure(name, arguments.root)
        harness.record("evaluation", [known[each] for each in DATASETS if each in known])
    replace_block(PAGE, "evaluation", table(harness.load("evaluation")))


if __name__ == "__main__":
    main()
