"""What an epoch of training costs: ours against the usual way and against its necessary products; peak memory of the training.

    python -m benchmarks.training_epoch --root DATA [--datasets amazon-photos,...] [--rounds 2]    writes results/training_epoch.jsonl

The usual way is GCNConv on dense features, scikit-learn's mini-batch k-means from the last centroids, and a loop over the clusters for the
simplified silhouette, with the published number of clusters and learning rate; it gets huge pages, with which it is faster, and the best of four epochs.
Every variant of ours runs in a process of its own, 14 epochs, without them, as the command does; the figure is the median after the tenth.
The limit is the flops of `Inputs.flops` at the rate of a matrix product. All of them take turns for some rounds; the fastest of each and the
highest peak count.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import torch

RESULTS = pathlib.Path(__file__).parent / "results" / "training_epoch.jsonl"
DATASETS = ("amazon-photos", "amazon-computers", "coauthor-cs", "coauthor-physics")
EPOCHS = 14


def ours(name: str, root: str, variant: str) -> dict[str, float]:
    """Run in a process of its own, so that the peak is that of this run."""
    from carlg import data, measure
    from carlg.config import recipe
    from carlg.trainer import Trainer

    trainer = Trainer(data.load(name, root), recipe(dataset=name, variant=variant, select="last"))
    for _ in range(EPOCHS):
        trainer.history.append(trainer.train_epoch())
    peak = measure.peak_memory_mb()
    flops = trainer.inputs.flops(trainer.config.layers, trainer.config.predictor)
    rate = max(measure.product_rate(trainer.device, rows) for rows in (4096, 8192))
    return {
        "seconds": statistics.median(record.seconds for record in trainer.history[10:]),
        "peak_mb": peak,
        "limit_seconds": flops / rate,
        "gflop": flops / 1e9,
        "clusters": trainer.clusters,
    }


def usual(name: str, root: str, clusters: int, epochs: int = 3) -> dict[str, float]:
    """The best of a few epochs after the first, dense features."""
    from sklearn.cluster import MiniBatchKMeans
    from torch import nn
    from torch_geometric.nn import GCNConv, LayerNorm

    from benchmarks.providers import loop_simplified_silhouette
    from carlg import data, measure
    from carlg.config import published

    graph = data.load(name, root)
    x = graph.x.to_dense()
    torch.manual_seed(0)
    layers = nn.ModuleList()
    for fan_in, fan_out in ((x.shape[1], 512), (512, 256)):
        layers.extend((GCNConv(fan_in, fan_out), LayerNorm(fan_out), nn.PReLU()))
    predictor = nn.Sequential(nn.Linear(256, 512), nn.PReLU(), nn.Linear(512, 256))
    optimizer = torch.optim.AdamW([*layers.parameters(), *predictor.parameters()], lr=published("sim", name)["lr"])
    start, best = "random", float("inf")
    for _ in range(epochs + 1):
        begin = time.perf_counter()
        h = x
        for conv, norm, act in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            h = act(norm(conv(h, graph.edge_index)))
        z = nn.functional.normalize(predictor(h), dim=1)
        found = MiniBatchKMeans(clusters, init=start, n_init=1, batch_size=2048).fit(z.detach().numpy())
        start, labels = found.cluster_centers_, torch.from_numpy(found.labels_).long()
        loss = 0.9 - loop_simplified_silhouette(z, labels, clusters)
        optimizer.zero_grad()
        loss.abs().backward()
        optimizer.step()
        best = min(best, time.perf_counter() - begin)
    return {"seconds": best, "peak_mb": measure.peak_memory_mb(), "clusters": clusters}


def table(lines: list[dict]) -> str:
    rows = [
        "| graph | usual way | sim | times faster | products alone | sim / products | sil | vrc | peak memory sim | usual way |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        usual, sim, sil, vrc = (line[kind] for kind in ("usual", "sim", "sil", "vrc"))
        rows.append(
            f"| {line['dataset']} | {usual['seconds']:.2f} s | **{sim['seconds']:.3f} s** | {line['times_faster']:.1f}x "
            f"| {sim['limit_seconds']:.3f} s | {line['over_products']:.2f} | {sil['seconds']:.3f} s ({line['sil_over_sim']:.2f} sim) "
            f"| {vrc['seconds']:.3f} s | {sim['peak_mb']:.0f} MB | {usual['peak_mb']:.0f} MB |"
        )
    first = lines[0]
    return "\n".join(
        [
            *rows,
            "",
            f"{first['threads']} threads, {first['cpu']} ({first['isa']}), median of epochs 11 to {EPOCHS}, fastest of {first['rounds']} round(s).",
        ]
    )


def apart(*arguments: str) -> dict[str, float]:
    huge_pages = "1" if arguments[-1].startswith("usual") else "0"
    command = [sys.executable, "-m", "benchmarks.training_epoch", *arguments]
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": huge_pages}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="data")
    parser.add_argument("--datasets", default=",".join(DATASETS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        variant, clusters = arguments.one.split(",")
        root, name = arguments.root, arguments.datasets
        figures = usual(name, root, int(clusters)) if variant == "usual" else ours(name, root, variant)
        print(json.dumps(figures))
        return
    import carlg_kernels  # noqa: F401  (its build is part of the provenance)
    from benchmarks.harness import provenance
    from benchmarks.tables import replace_block
    from carlg.config import published

    lines = []
    for name in arguments.datasets.split(","):
        line = {"dataset": name, "usual": {}, "sim": {}, "sil": {}, "vrc": {}}
        clusters = published("sim", name)["clusters"]
        for _ in range(arguments.rounds):
            for variant in ("usual", "sim", "sil", "vrc"):
                figures = apart("--root", arguments.root, "--datasets", name, "--one", f"{variant},{clusters}")
                line[variant] = {
                    key: (max if key == "peak_mb" else min)(value, line[variant].get(key, value)) for key, value in figures.items()
                }
        sim, limit = line["sim"]["seconds"], min(line[variant]["limit_seconds"] for variant in ("sim", "sil", "vrc"))
        line["sim"]["limit_seconds"] = limit
        line["times_faster"] = line["usual"]["seconds"] / sim
        line["over_products"] = sim / limit
        line["sil_over_sim"] = line["sil"]["seconds"] / sim
        print(json.dumps(line), flush=True)
        lines.append({**line, "rounds": arguments.rounds, **provenance()})
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    replace_block(pathlib.Path(__file__).parents[1] / "docs" / "COST.md", "epoch", table(lines))


if __name__ == "__main__":
    main()
