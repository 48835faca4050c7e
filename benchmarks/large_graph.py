"""Mini-batch training on a generated graph that is too large for a full batch: time of an epoch and peak memory, by sampler.

    python -m benchmarks.large_graph [--nodes 1000000] [--batch-nodes 20000] [--epochs 3] [--sampler cluster]

appends a line to results/large_graph.jsonl and writes the table of docs/COST.md. The peak is that of the process, sampled after loading, after training and after embedding
all nodes. Accuracy: one fifth of 20,000 random nodes trains the classifier, the rest of them is scored.
"""

import argparse
import json
import pathlib
import time

import torch

from benchmarks import harness
from benchmarks.tables import replace_block
from carlg import measure, synthetic
from carlg.config import recipe
from carlg.graph import Graph
from carlg.minibatch import BatchTrainer
from carlg.tasks import classify
from carlg.trainer import build_models

RESULTS = pathlib.Path(__file__).parent / "results" / "large_graph.jsonl"
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "COST.md"


def accuracy(h: torch.Tensor, graph: Graph, nodes: torch.Tensor) -> float:
    assert graph.y is not None
    part = Graph(graph.name, torch.empty(2, 0, dtype=torch.int64), h[nodes], graph.y[nodes])
    return float(classify(h[nodes], part, splits=1)[1].mean())


def table() -> str:
    rows = [
        "| nodes | edges | sampler | batch | epoch | peak memory: loaded | training | embedding | accuracy | untrained |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in map(json.loads, RESULTS.read_text().splitlines()):
        rows.append(
            f"| {line['nodes']:,} | {line['edges']:,} | {line['sampler']} | {line['batch_nodes']:,} | {line['seconds_per_epoch'][-1]:.0f} s "
            f"| {line['peak_mb_loaded']} MB | {line['peak_mb_training']} MB | {line['peak_mb_embedding']} MB "
            f"| {100 * line['accuracy']:.2f} % | {100 * line['accuracy_untrained']:.2f} % |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--batch-nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sampler", default="cluster", choices=("cluster", "neighbor"))
    parser.add_argument("--clusters", type=int, default=100)
    arguments = parser.parse_args()
    start = time.perf_counter()
    graph = synthetic.block_model(arguments.nodes)
    config = recipe(
        dataset="sbm", nodes=arguments.nodes, batch_nodes=arguments.batch_nodes, epochs=arguments.epochs, warmup=1, select="last"
    )
    config = config.replace(sampler=arguments.sampler, clusters=arguments.clusters)
    trainer = BatchTrainer(graph, config)
    line = {**vars(arguments), "edges": graph.num_edges, **harness.provenance()}
    line["seconds_to_load"] = round(time.perf_counter() - start, 1)
    line["peak_mb_loaded"] = round(measure.peak_memory_mb())
    trainer.run(lambda _, record: print(f"epoch {record.epoch}: loss {record.loss:.4f}, {record.seconds:.1f} s", flush=True))
    line["seconds_per_epoch"] = [round(record.seconds, 1) for record in trainer.history]
    line["peak_mb_training"] = round(measure.peak_memory_mb())
    nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:20_000]
    line["accuracy"] = round(accuracy(trainer.embed(trainer.encoder), graph, nodes), 4)
    line["peak_mb_embedding"] = round(measure.peak_memory_mb())
    untrained = build_models(config, graph.num_features)[0]
    line["accuracy_untrained"] = round(accuracy(trainer.embed(untrained), graph, nodes), 4)
    print(json.dumps(line))
    with open(RESULTS, "a") as file:
        file.write(json.dumps(line) + "\n")
    replace_block(PAGE, "large", table())


if __name__ == "__main__":
    main()
