"""What the authors' own encoder files say: their accuracy by our evaluation, and the schedule that they were trained with.

    python -m benchmarks.published_encoders FOLDER --root DATA      FOLDER: the authors' `weights`; writes results/published_encoders.jsonl

Biases start at 0 and gains at 1, and Adam moves them by at most about the rate of a step. So their moves tell the rates: a constant one moves
all of them by as much in the first step, a warm-up lets them grow apart slowly. The moves of our own runs with the published settings of sim
stand beside those of the files.
"""

import argparse
import pathlib
from typing import Any

from benchmarks import harness
from benchmarks.tables import replace_block

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "reproduction_remarks.md"
# Epochs of ours that are shown.
SHOWN = {"cosine": (9, 10, 11, 12), "constant": (1, 2, 3)}


def moves(encoder: Any) -> list[dict[str, float]]:
    """Largest move and deviation of the moves of every layer's biases and gains."""
    found = []
    for layer in encoder.layers:
        line = {}
        for name, moved in (("bias", layer.bias.detach()), ("gain", layer.gain.detach() - 1)):
            line |= {f"{name}_most": round(float(moved.abs().max()), 5), f"{name}_deviation": round(float(moved.std(correction=0)), 5)}
        found.append(line)
    return found


def measure(path: pathlib.Path, root: str) -> list[dict[str, Any]]:
    import torch

    import carlg
    from carlg.checkpoint import load_encoder
    from carlg.config import recipe
    from carlg.propagation import Inputs
    from carlg.run import make_trainer
    from carlg.tasks import classify

    name = path.stem.removeprefix("class_")
    graph = carlg.load(name, root)
    encoder = load_encoder(path)
    _, test = classify(encoder.embed(Inputs(graph, torch.device("cpu"))), graph)
    rows: list[dict[str, Any]] = [
        {"dataset": name, "encoder": "authors' file", "accuracy": round(float(test.mean()), 5), "moves": moves(encoder)}
    ]
    for schedule, epochs in SHOWN.items():
        trainer = make_trainer(graph, recipe("published", dataset=name, variant="sim", schedule=schedule, select="last"))
        for epoch in range(1, max(epochs) + 1):
            trainer.history.append(trainer.train_epoch())
            if epoch in epochs:
                rows.append({"dataset": name, "encoder": f"ours, {schedule}, epoch {epoch}", "moves": moves(trainer.encoder)})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | encoder | accuracy | biases of layer 1: most, deviation | gains of layer 1 | biases of layer 2 | gains of layer 2 |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [f"{layer[f'{name}_most']:.4f}, {layer[f'{name}_deviation']:.4f}" for layer in row["moves"] for name in ("bias", "gain")]
        accuracy = f"{100 * row['accuracy']:.2f}" if "accuracy" in row else ""
        lines.append(f"| {row['dataset']} | {row['encoder']} | {accuracy} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--root", default="data")
    parser.add_argument("--datasets", default="amazon-photos,amazon-computers")
    arguments = parser.parse_args()
    rows = [row for name in arguments.datasets.split(",") for row in measure(arguments.folder / f"class_{name}.pt", arguments.root)]
    harness.record("published_encoders", rows)
    replace_block(PAGE, "published-encoders", table(rows))


if __name__ == "__main__":
    main()
