"""The study behind docs/TRAINING.md: index, churn, effective rank and accuracy along a run, one line of JSON a run.

python benchmarks/training_study.py run --root DATA --dataset cora --variant sim --seed 0 [--every 5] [--splits 5] [--set lr=1e-3 ...]
python benchmarks/training_study.py plot        draws docs/training_curves.svg from the lines
"""

import argparse
import json
import pathlib

import carlg
from carlg.config import recipe
from carlg.evaluate import classify
from carlg.trainer import Trainer

HERE = pathlib.Path(__file__).parent
LINES = HERE / "results" / "training_study.jsonl"
FIGURE = HERE.parent / "docs" / "training_curves.svg"


def run(arguments: argparse.Namespace) -> None:
    """Train without stopping and score the encoder every few epochs; labels only measure, they select nothing."""
    settings = dict(item.split("=", 1) for item in arguments.set)
    graph = carlg.load(arguments.dataset, arguments.root)
    config = recipe(dataset=arguments.dataset, variant=arguments.variant, seed=arguments.seed, select="last", **settings)
    trainer = Trainer(graph, config)

    def accuracy() -> float:
        return float(classify(trainer.embed(trainer.encoder).cpu(), graph, splits=arguments.splits)[1].mean())

    scores = {0: accuracy()}

    def on_epoch(trainer: Trainer, record: object) -> None:
        if trainer.epoch % arguments.every == 0 or trainer.finished:
            scores[trainer.epoch] = accuracy()

    trainer.run(on_epoch)
    line = {
        "dataset": graph.name,
        "variant": config.variant,
        "seed": config.seed,
        "settings": settings,
        "lr": config.lr,
        "relative_lr": config.relative_lr,
        "epochs": config.epochs,
        "clusters": trainer.clusters,
        "splits": arguments.splits,
        "accuracy": scores,
        "index": [record.index for record in trainer.history],
        "churn": [record.churn for record in trainer.history],
        "rank": [record.rank for record in trainer.history],
    }
    LINES.parent.mkdir(parents=True, exist_ok=True)
    with open(LINES, "a") as file:
        file.write(json.dumps(line) + "\n")
    gains = " ".join(f"{epoch}:{100 * (value - scores[0]):+.2f}" for epoch, value in scores.items())
    print(f"{graph.name} {config.variant} seed {config.seed}: untrained {100 * scores[0]:.2f}, gains {gains}")


def plot() -> None:
    """Four panels over the epochs, one curve a run."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    runs = [json.loads(line) for line in LINES.read_text().splitlines()]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    for line in runs:
        style = {"label": f"{line['dataset']} {line['variant']} lr {line['lr']:g}", "linewidth": 1.4}
        epochs = range(1, len(line["index"]) + 1)
        first = line["index"][0] or 1
        axes[0, 0].plot(epochs, [value / first for value in line["index"]], **style)
        axes[0, 1].semilogy(epochs[1:], [max(value, 1e-4) for value in line["churn"]][1:], **style)
        axes[1, 0].semilogy(epochs, line["rank"], **style)
        start = line["accuracy"]["0"]
        points = sorted((int(epoch), 100 * (value - start)) for epoch, value in line["accuracy"].items())
        axes[1, 1].plot(*zip(*points, strict=True), marker="o", markersize=3, **style)
    titles = ("index / its first value", "churn", "effective rank of z", "accuracy over the untrained encoder (points)")
    for panel, title in zip(axes.flat, titles, strict=True):
        panel.set_title(title)
        panel.set_xlabel("epoch")
        panel.grid(alpha=0.3)
    axes[0, 0].set_yscale("log")
    axes[1, 1].axhline(0, color="black", linewidth=0.8)
    axes[1, 1].legend(fontsize=7)
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "plot"))
    parser.add_argument("--root", default="data")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--variant", default="sim")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    run(arguments) if arguments.command == "run" else plot()


if __name__ == "__main__":
    main()
