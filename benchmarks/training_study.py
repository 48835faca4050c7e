"""The study behind docs/TRAINING.md: index, churn, effective rank and accuracy along runs of the default recipe, one JSON line a run.

    python -m benchmarks.training_study all --root DATA      runs what the plan still lacks (see PLAN), then writes figure and tables
    python -m benchmarks.training_study run --root DATA --dataset cora --variant sim --seed 0 [--every 2] [--splits 5] [--set lr=1e-3 ...]
    python -m benchmarks.training_study write                figure and tables from the committed lines

Labels only measure; they select nothing. "curve" runs go on to the last epoch and are scored every other epoch; "end" runs stop by the
label-free rule and only the kept encoder is scored.
"""

import argparse
import json
import pathlib
import statistics
from typing import Any

import carlg
from benchmarks import harness
from benchmarks.tables import replace_block
from carlg.config import recipe
from carlg.tasks import classify
from carlg.trainer import Trainer, build_models

HERE = pathlib.Path(__file__).parent
LINES = HERE / "results" / "training_study.jsonl"
FIGURE = HERE.parent / "docs" / "training_curves.svg"
PAGE = HERE.parent / "docs" / "TRAINING.md"
VARIANTS = ("sim", "sil", "vrc")
# The published kind of rate, constant from the first step, and no barrier.
_CONSTANT = {"lr": "7e-3", "relative_lr": "false", "epochs": "30", "warmup": "0", "barrier": "0"}
# (data set, variant, seed, epochs between scores or 0, splits, settings)
PLAN = [
    *(
        (name, variant, seed, 0, 10, {})
        for name in ("cora", "citeseer", "pubmed", "digits", "sbm")
        for seed in (0, 1, 2)
        for variant in VARIANTS
    ),
    *((name, variant, 0, 2, 4, {}) for name in ("amazon-photos", "cora", "coauthor-cs") for variant in VARIANTS),
    *(("amazon-photos", variant, 0, 2, 4, _CONSTANT) for variant in VARIANTS),
]


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []


def run(root: str, dataset: str, variant: str, seed: int, every: int, splits: int, settings: dict[str, str]) -> dict[str, Any]:
    graph = carlg.load(dataset, root)
    select = "last" if every else "label-free"
    config = recipe(dataset=dataset, variant=variant, seed=seed, select=select, **settings)
    trainer = Trainer(graph, config)

    def accuracy(encoder: Any) -> float:
        return round(float(classify(trainer.embed(encoder).cpu(), graph, splits=splits)[1].mean()), 6)

    scores = {0: accuracy(build_models(config, graph.num_features)[0])}

    def on_epoch(trainer: Trainer, record: object) -> None:
        if every and (trainer.epoch % every == 0 or trainer.finished):
            scores[trainer.epoch] = accuracy(trainer.encoder)

    encoder = trainer.run(on_epoch)
    if not every:
        scores[trainer.best_epoch] = accuracy(encoder) if trainer.best_epoch else scores[0]
    line = {
        "dataset": dataset,
        "nodes": graph.num_nodes,
        "variant": variant,
        "seed": seed,
        "every": every,
        "splits": splits,
        "settings": settings,
        "lr": config.lr,
        "clusters": trainer.clusters,
        "kept": trainer.best_epoch,
        "stopped": trainer.finished,
        "accuracy": scores,
        "index": [record.index for record in trainer.history],
        "churn": [round(record.churn, 5) for record in trainer.history],
        "rank": [round(record.rank, 3) for record in trainer.history],
        **harness.provenance(),
    }
    LINES.parent.mkdir(parents=True, exist_ok=True)
    with open(LINES, "a") as file:
        file.write(json.dumps(line) + "\n")
    gains = " ".join(f"{epoch}:{100 * (value - scores[0]):+.2f}" for epoch, value in scores.items())
    print(f"{dataset} {variant} seed {seed} {settings}: untrained {100 * scores[0]:.2f}, gains {gains}", flush=True)
    return line


def run_all(root: str) -> None:
    done = {(r["dataset"], r["variant"], r["seed"], r["every"], json.dumps(r["settings"])) for r in read()}
    for dataset, variant, seed, every, splits, settings in PLAN:
        if (dataset, variant, seed, every, json.dumps(settings)) not in done:
            run(root, dataset, variant, seed, every, splits, settings)


def end_table(lines: list[dict[str, Any]]) -> str:
    """Gains of the kept encoders, mean and least over the seeds."""
    table = ["| graph | variant | seeds | untrained | gain | least | epochs kept |", "|---|---|---|---|---|---|---|"]
    ends = [line for line in lines if not line["every"]]
    for dataset in dict.fromkeys(line["dataset"] for line in ends):
        for variant in VARIANTS:
            mine = [line for line in ends if line["dataset"] == dataset and line["variant"] == variant]
            if not mine:
                continue
            first = [100 * line["accuracy"]["0"] for line in mine]
            gains = [100 * line["accuracy"][str(line["kept"])] - start for line, start in zip(mine, first, strict=True)]
            kept = ", ".join(str(line["kept"]) for line in mine)
            table.append(
                f"| {dataset} | {variant} | {len(mine)} | {statistics.fmean(first):.2f} | {statistics.fmean(gains):+.2f} "
                f"| {min(gains):+.2f} | {kept} |"
            )
    return "\n".join(table)


def curve_table(lines: list[dict[str, Any]]) -> str:
    """A line a curve: gains at some epochs, rank and churn at the ends."""
    table = [
        "| graph | variant | settings | gain at epoch 4, 10, 20, last | index | rank of z | churn at 5, last |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in (line for line in lines if line["every"]):
        points = {int(epoch): 100 * (value - line["accuracy"]["0"]) for epoch, value in line["accuracy"].items()}
        chosen = [points[epoch] for epoch in (4, 10, 20, max(points)) if epoch in points]
        settings = " ".join(f"{name}={value}" for name, value in line["settings"].items()) or "defaults"
        table.append(
            f"| {line['dataset']} | {line['variant']} | {settings} | {' '.join(f'{gain:+.2f}' for gain in chosen)} "
            f"| {line['index'][0]:.3g} -> {line['index'][-1]:.3g} | {line['rank'][0]:.0f} -> {line['rank'][-1]:.1f} "
            f"| {line['churn'][4]:.2f}, {line['churn'][-1]:.3f} |"
        )
    return "\n".join(table)


def draw(lines: list[dict[str, Any]]) -> None:
    """Four panels over the epochs; colour is the graph, style the variant, grey the published kind of rate."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "carlg"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(12, 8), constrained_layout=True)
    colours = {"amazon-photos": "tab:blue", "cora": "tab:orange", "coauthor-cs": "tab:green"}
    styles = {"sim": "-", "sil": "--", "vrc": ":"}
    for line in (line for line in lines if line["every"]):
        high = bool(line["settings"])
        label = f"{line['dataset']} {line['variant']}" + (f", rate {line['lr']:g}" if high else "")
        style = {"label": label, "color": "0.6" if high else colours[line["dataset"]], "linestyle": styles[line["variant"]]}
        epochs = range(1, len(line["index"]) + 1)
        axes[0, 0].semilogy(epochs, [value / line["index"][0] for value in line["index"]], **style)
        axes[0, 1].semilogy(epochs[1:], [max(value, 1e-4) for value in line["churn"]][1:], **style)
        axes[1, 0].semilogy(epochs, line["rank"], **style)
        points = sorted((int(epoch), 100 * (value - line["accuracy"]["0"])) for epoch, value in line["accuracy"].items())
        axes[1, 1].plot(*zip(*points, strict=True), **style)
    titles = ("index / its first value", "churn", "effective rank of z", "accuracy over the untrained encoder (points)")
    for panel, title in zip(axes.flat, titles, strict=True):
        panel.set_title(title)
        panel.set_xlabel("epoch")
        panel.grid(alpha=0.3)
    axes[1, 1].axhline(0, color="black", linewidth=0.8)
    axes[1, 1].set_ylim(-4, 3.5)
    axes[0, 0].legend(fontsize=7, ncols=2)
    figure.savefig(FIGURE, metadata={"Date": None})


def write() -> None:
    lines = read()
    draw(lines)
    replace_block(PAGE, "study-end", end_table(lines))
    replace_block(PAGE, "study-curves", curve_table(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("all", "run", "write"))
    parser.add_argument("--root", default="data")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--variant", default="sim")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    if arguments.command == "run":
        settings = dict(item.split("=", 1) for item in arguments.set)
        run(arguments.root, arguments.dataset, arguments.variant, arguments.seed, arguments.every, arguments.splits, settings)
        return
    if arguments.command == "all":
        run_all(arguments.root)
    write()


if __name__ == "__main__":
    main()
