"""The evaluation's classifier against scikit-learn's grid search: same splits, same grid of C, same folds a split.

    python -m benchmarks.classifier_grid --root DATA [--datasets amazon-photos,coauthor-cs] [--splits 2]    writes results/classifier.jsonl

Features are the embeddings of the untrained encoder. scikit-learn fits one-vs-rest liblinear for 21 values of C on five halves of the
training fifth and once on the whole of it, with all cores.
"""

import argparse
import json
import time

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit
from sklearn.multiclass import OneVsRestClassifier

import carlg
from benchmarks import harness
from carlg.classifier import PENALTIES, draw_orders, one_hot, prepare, search_and_fit
from carlg.config import recipe
from carlg.tasks import random_splits, unit_length
from carlg.trainer import Trainer


def usual(x: np.ndarray, y: np.ndarray, train: np.ndarray, classes: int, seed: int) -> GridSearchCV:
    grid = GridSearchCV(
        OneVsRestClassifier(LogisticRegression(solver="liblinear", max_iter=200)),
        {"estimator__C": PENALTIES},
        cv=ShuffleSplit(5, test_size=0.5, random_state=seed),
        n_jobs=-1,
    )
    return grid.fit(x[train], one_hot(torch.from_numpy(y[train]), classes).bool().numpy())


def compare(name: str, root: str, splits: int) -> dict[str, object]:
    graph = carlg.load(name, root)
    trainer = Trainer(graph, recipe(dataset=name))
    x, y, classes = unit_length(trainer.embed(trainer.encoder)), graph.y, graph.num_classes
    assert y is not None
    line: dict[str, object] = {"dataset": name, "nodes": graph.num_nodes, "classes": classes, "splits": splits}
    scores: dict[str, list[float]] = {"ours": [], "grid search": []}
    seconds: dict[str, list[float]] = {"ours": [], "grid search": []}
    for seed, (train, _, test) in enumerate(random_splits(graph.num_nodes, "20/40/40", splits)):
        start = time.perf_counter()
        orders = draw_orders(len(train), torch.Generator().manual_seed(seed))
        predicted, _ = search_and_fit(prepare(x, torch.arange(len(x))), y, train, test, classes, orders)
        seconds["ours"].append(time.perf_counter() - start)
        scores["ours"].append(float((predicted == y[test]).double().mean()))
        start = time.perf_counter()
        grid = usual(x.numpy(), y.numpy(), train.numpy(), classes, seed)
        found = grid.predict_proba(x[test].numpy()).argmax(1)
        seconds["grid search"].append(time.perf_counter() - start)
        scores["grid search"].append(float((found == y[test].numpy()).mean()))
    for peer in scores:
        line[peer] = {"accuracy": round(float(np.mean(scores[peer])), 5), "seconds": round(min(seconds[peer]), 4)}
    line["times faster"] = round(min(seconds["grid search"]) / min(seconds["ours"]), 1)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--datasets", default="amazon-photos,coauthor-cs")
    parser.add_argument("--splits", type=int, default=2)
    arguments = parser.parse_args()
    lines = [compare(name, arguments.root, arguments.splits) for name in arguments.datasets.split(",")]
    for line in lines:
        print(json.dumps(line))
    harness.record("classifier", lines)


if __name__ == "__main__":
    main()
