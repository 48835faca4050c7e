"""What do bounds that are carried from one epoch's k-means to the next save? And would a fused update be faster?

    python -m benchmarks.warm_bounds --root DATA                     every run of RUNS, appended to results/warm_bounds.jsonl
    python -m benchmarks.warm_bounds --root DATA --only photos       the runs whose name contains a word
    python -m benchmarks.warm_bounds --table                         the tables, from the result file

CARL-G is trained for real, z of every epoch is kept, and the epochs' k-means calls are replayed on it, warm-started as the trainer does.
A point of epoch t may skip the search where, with the centroids mu that are carried over, its move m = ||z_t - z_{t-1}|| and rounding e,

    moved:   ||z_{t-1} - mu_own|| + m  <  ||z_{t-1} - mu_second|| - m - e       needs m, the moves' pass
    tight:   ||z_t - mu_own||          <  ||z_{t-1} - mu_second|| - m - e       needs m and one distance a point
    half:    ||z_t - mu_own||          <  min_j ||mu_own - mu_j|| / 2 - e       needs one distance a point, nothing of z_{t-1}

e is that of csrc/cpu/lloyd.cpp. What can be gained is at most share * (assignment pass) - (passes the test needs); copying z comes on top
where the caller may write to it. ``ck.kmeans(z, c, init=last, init_points=before)`` is the second test, where a sample says that it pays;
the call is timed with and without. Everything is timed in one interleaved run, best of several: CPU time of one thread, which a job beside
it disturbs least, or wall-clock time of more.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch
from torch import Tensor

import carlg
import carlg_kernels as ck
from benchmarks import harness
from carlg.config import recipe
from carlg.trainer import Trainer
from carlg_kernels import ops
from carlg_kernels._sums import origin_of
from carlg_kernels._typing import KMeansResult

# Name: data set and the settings that differ from the defaults.
RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "photos": ("amazon-photos", {}),
    "computers": ("amazon-computers", {}),
    "cs": ("coauthor-cs", {}),
    "photos, c=300": ("amazon-photos", {"clusters": "300"}),
    "photos, c=1000": ("amazon-photos", {"clusters": "1000"}),
    "photos, lr/10": ("amazon-photos", {"lr": "1e-4"}),
    "photos, c=1000, lr/10": ("amazon-photos", {"clusters": "1000", "lr": "1e-4"}),
}
OPTIONS = {"max_iter": 3, "tol": 0.0}
ROUNDS = 15


def clock() -> Callable[[], float]:
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def embeddings(dataset: str, root: str, settings: dict[str, str]) -> tuple[list[Tensor], int]:
    """z of every epoch of a real run, and its number of clusters."""
    config = recipe(dataset=dataset, variant="sim", seed=0, select="last", root=root, **settings)
    trainer = Trainer(carlg.load(dataset, root), config)
    clusterer, kept = trainer.clusterer, []

    class Recorder(type(clusterer)):  # type: ignore[misc]
        def __call__(self, z: Tensor) -> Tensor:
            kept.append(z.clone())
            return super().__call__(z)

    clusterer.__class__ = Recorder
    trainer.run()
    return kept, trainer.clusters


def rounding(z: Tensor, centroids: Tensor) -> Tensor:
    """What the kernel asks the squares of two bounds to differ by: four times the error of a score."""
    origin = origin_of(z).double()
    m = centroids.double() - origin
    longest = m.norm(dim=1).max()
    bias = (m.square().sum(1) + 2 * m @ origin).abs().max()
    radius = (z.double() - origin).norm(dim=1)
    scale = (z.shape[1] + 8) * torch.finfo(z.dtype).eps
    return 4 * scale * (bias + 2 * longest * origin.norm() + 2 * longest * radius + radius.square())


def shares(before: Tensor, z: Tensor, last: KMeansResult) -> dict[str, float]:
    """Shares of the points whose label the tests prove, and of those whose label is in fact the same."""
    mu = last.centroids.double()
    move = (z.double() - before.double()).norm(dim=1)
    own = (z.double() - mu[last.labels]).norm(dim=1)
    apart = torch.cdist(mu, mu).fill_diagonal_(torch.inf).amin(1)[last.labels]
    slack = rounding(z, last.centroids)

    def settled(upper: Tensor, lower: Tensor) -> Tensor:
        return (lower > upper) & ((lower - upper) * (lower + upper) > slack)

    carried = last.second_distances.double() - move
    proofs = {
        "moved": settled(last.distances.double() + move, carried),
        "tight": settled(own, carried),
        "half": settled(own, apart - own),
    }
    proofs["either"] = proofs["tight"] | proofs["half"]
    same = ck.assign(z, last.centroids).labels == last.labels
    assert bool((same | ~proofs["either"]).all()), "a proof was wrong"
    proofs["same"] = same
    return {name: round(float(proof.double().mean()), 4) for name, proof in proofs.items()}


def passes(before: Tensor, z: Tensor, last: KMeansResult) -> dict[str, float]:
    """Milliseconds of the passes that the tests need and of those that they would save."""
    c, rows = last.centroids.shape[0], torch.arange(z.shape[0])
    times = harness.interleaved(
        {
            "move": lambda: ops.own_distance.own_distance(z, before, rows),
            "own": lambda: ops.own_distance.own_distance(z, last.centroids, last.labels),
            "copy": lambda: before.copy_(before),
            "assign": lambda: ops.assign.assign(z, last.centroids),
            "kmeans": lambda: ck.kmeans(z, c, init=last.centroids, **OPTIONS),
            "carried": lambda: ck.kmeans(z, c, init=last, init_points=before, **OPTIONS),
        },
        ROUNDS,
        clock=clock(),
    )
    return {f"{name}_ms": harness.summary(seconds)["best_ms"] for name, seconds in times.items()}


def epochs(zs: list[Tensor], c: int) -> Iterator[dict[str, Any]]:
    """One row an epoch from the second on."""
    last = ck.kmeans(zs[0], c, max_iter=10, tol=0.0)
    for epoch, (before, z) in enumerate(zip(zs, zs[1:], strict=False), start=2):
        row = {"kind": "epoch", "epoch": epoch, **shares(before, z, last), **passes(before, z, last)}
        gains = {
            "moved": row["moved"] * row["assign_ms"] - row["move_ms"],
            "tight": row["tight"] * row["assign_ms"] - row["move_ms"] - row["own_ms"],
            "half": row["half"] * row["assign_ms"] - row["own_ms"],
            "either": row["either"] * row["assign_ms"] - row["move_ms"] - row["own_ms"],
        }
        yield {**row, "gain_ms": {name: round(gain, 3) for name, gain in gains.items()}}
        carried = ck.kmeans(z, c, init=last, init_points=before, **OPTIONS)
        last = ck.kmeans(z, c, init=last.centroids, **OPTIONS)
        assert torch.equal(last.labels, carried.labels) and torch.equal(last.centroids, carried.centroids), "not plain Lloyd's result"


def iterations(z: Tensor, c: int, at: tuple[int, ...] = (1, 2, 3, 10)) -> Iterator[dict[str, Any]]:
    """Lloyd steps of a cold start from random points: the step as it is, and what a step with fused sums cannot beat.

    A fused pass searches all centroids for all points (its sums ride along, so their reads are free): the assignment alone is its bound.
    The step as it is searches where bounds do not settle the label, then reads the rows of the clusters that changed.
    """
    labels, bounds = ops.lloyd.new_state(z)
    origin = origin_of(z)
    generator = torch.Generator().manual_seed(0)
    centroids = previous = z[torch.randperm(z.shape[0], generator=generator)[:c]].clone()
    for iteration in range(1, max(at) + 1):
        state = (labels.clone(), bounds.clone())

        def step(centroids: Tensor = centroids, previous: Tensor = previous, state: tuple[Tensor, Tensor] = state) -> Any:
            labels.copy_(state[0])
            bounds.copy_(state[1])
            return ops.lloyd.lloyd(z, None, centroids, previous, origin, labels, bounds)

        means, _, progress = step()
        if iteration in at:
            found = labels.clone()
            touched = torch.zeros(c, dtype=torch.bool)
            changed = found != state[0]
            touched[found[changed]] = True
            touched[state[0][changed].clamp(min=0)] = True
            times = harness.interleaved(
                {
                    "step": step,
                    "assign": lambda centroids=centroids: ops.assign.assign(z, centroids),
                    "update": lambda found=found: ops.centroid_update.centroid_update(z, found, None, c),
                },
                ROUNDS,
                clock=clock(),
            )
            yield {
                "kind": "iteration",
                "iteration": iteration,
                "changed": round(float(progress[1]) / z.shape[0], 4),
                "summed": round(float(touched[found].double().mean()), 4),
                **{f"{name}_ms": harness.summary(seconds)["best_ms"] for name, seconds in times.items()},
            }
        previous, centroids = centroids, means


def measure(name: str, root: str) -> list[dict[str, Any]]:
    dataset, settings = RUNS[name]
    zs, c = embeddings(dataset, root, settings)
    n, d = zs[0].shape
    facts = {"run": name, "n": n, "c": c, "d": d, "settings": settings, "clock": clock().__name__}
    rows = [{**facts, **row} for row in epochs(zs, c)]
    return rows + [{**facts, **row} for row in iterations(zs[len(zs) // 2], c)]


def table(rows: list[dict[str, Any]]) -> str:
    head = "| run | epoch | same label | moved | tight | half | assignment | moves | gain at most | call | call, carried |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|---|---|"]
    for name in dict.fromkeys(row["run"] for row in rows):
        chosen = [row for row in rows if row["run"] == name and row["kind"] == "epoch"]
        for row in chosen:
            if row["epoch"] in (2, 3, 5, 10, 15, 18, 20):
                parts = [f"{100 * row[test]:.0f} %" for test in ("same", "moved", "tight", "half")]
                parts += [f"{row['assign_ms']:.2f}", f"{row['move_ms']:.2f}", f"{row['gain_ms']['tight']:+.2f}"]
                lines.append(
                    f"| {_label(row)} | {row['epoch']} | {' | '.join(parts)} "
                    f"| {row['kmeans_ms']:.2f} | {row['carried_ms']:.2f} ({row['kmeans_ms'] / row['carried_ms']:.2f}x) |"
                )
        plain, carried = (sum(row[f"{call}_ms"] for row in chosen) for call in ("kmeans", "carried"))
        lines.append(f"| {_label(chosen[0])} | all | | | | | | | | {plain:.1f} | {carried:.1f} ({plain / carried:.2f}x) |")
    lines += [
        "",
        "| run | iteration | labels changed | rows summed | step | assignment alone | update alone |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["kind"] == "iteration":
            parts = [f"{100 * row[name]:.0f} %" for name in ("changed", "summed")]
            parts += [f"{row[f'{name}_ms']:.2f}" for name in ("step", "assign", "update")]
            lines.append(f"| {_label(row)} | {row['iteration']} | {' | '.join(parts)} |")
    return "\n".join(lines)


def digest(rows: list[dict[str, Any]]) -> str:
    """The tables of docs/CLUSTERING.md: one line a run."""
    names, at = dict.fromkeys(row["run"] for row in rows), (2, 3, 10, 15, 18, 20)
    lines = [
        f"| settled points; call, plain / carried | {' | '.join(f'epoch {e}' for e in at)} | all epochs, ms |",
        "|---" * (len(at) + 2) + "|",
    ]
    for name in names:
        chosen = {row["epoch"]: row for row in rows if row["run"] == name and row["kind"] == "epoch"}
        cells = [f"{100 * chosen[e]['tight']:.0f} %; {chosen[e]['kmeans_ms'] / chosen[e]['carried_ms']:.2f}x" for e in at]
        plain, carried = (sum(row[f"{call}_ms"] for row in chosen.values()) for call in ("kmeans", "carried"))
        lines.append(f"| {_label(chosen[2])} | {' | '.join(cells)} | {plain:.0f} / {carried:.0f} = {plain / carried:.2f}x |")
    lines += ["", "| step / assignment alone / update alone, ms | iteration 1 | 2 | 3 | 10 |", "|---|---|---|---|---|"]
    for name in names:
        chosen = [row for row in rows if row["run"] == name and row["kind"] == "iteration"]
        cells = [f"{row['step_ms']:.1f} / {row['assign_ms']:.1f} / {row['update_ms']:.1f}" for row in chosen]
        lines.append(f"| {_label(chosen[0])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _label(row: dict[str, Any]) -> str:
    return f"{row['run']} (n={row['n']:,}, c={row['c']})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data", help="folder with the data sets")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--threads", type=int, default=1, help="1: CPU time; more: wall-clock time")
    parser.add_argument("--table", action="store_true", help="print the tables of the result file")
    arguments = parser.parse_args()
    if arguments.table:
        rows = harness.load("warm_bounds")
        print(table(rows), digest(rows), sep="\n\n")
        return
    torch.set_num_threads(arguments.threads)
    for name in RUNS:
        if arguments.only in name:
            rows = measure(name, arguments.root)
            print(table(rows), flush=True)
            facts = harness.provenance()
            kept = [row for row in harness.load("warm_bounds") if (row["run"], row["threads"]) != (name, facts["threads"])]
            path = harness.RESULTS / "warm_bounds.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in [*kept, *({**row, **facts} for row in rows)]))


if __name__ == "__main__":
    main()
