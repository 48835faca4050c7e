"""The exact silhouette against scikit-learn, the usual loop and the machine's matrix product; time and memory against n, c and separation.

    python -m benchmarks.bench_silhouette          interleaved, writes results/silhouette.jsonl and results/silhouette*.svg
    pytest benchmarks/bench_silhouette.py --benchmark-enable --benchmark-json=silhouette.json

Necessary work: of the forward, 2d flops a pair of an own block (each once) and of a point with its nearest other cluster; of the backward,
6d flops a pair (the distance again, and one product for either side). "pairs" is what was computed, as a share of n^2; "rate" the
flops of those pairs over the flops of a large torch.mm in the same run.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import subprocess
import sys

import pytest
import torch

import carlg_kernels as ck
from benchmarks import harness, providers

SEPARATED, OVERLAPPING = 0.35, 6.0
HEADLINES = {"separated": (7_650, 31, 256, SEPARATED), "overlapping": (7_650, 31, 256, OVERLAPPING)}
SWEEPS = {
    "n": [(n, round((n / 100) ** 0.5 * 10), 64, 0.3) for n in (2_500, 5_000, 10_000, 20_000, 40_000)],
    "c": [(10_000, c, 64, 0.3) for c in (4, 16, 64, 256, 1_024)],
    "separation": [(7_650, 31, 256, s) for s in (0.1, 0.35, 0.7, 1.4, 3.0, 6.0)],
}
ops = torch.ops.carlg_kernels


def blobs(n: int, c: int, d: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(c, d, generator=g)
    labels = torch.randint(0, c, (n,), generator=g)
    return torch.nn.functional.normalize(centres[labels] + spread * torch.randn(n, d, generator=g), dim=1), labels


def counted(function) -> int:
    """Pairs of points that a call computes."""
    ops.take_pairs_computed()
    function()
    return ops.take_pairs_computed()


def ours(n: int, c: int, d: int, spread: float) -> dict:
    """Forward and backward of our op on one data set, as separate calls."""
    z, labels = blobs(n, c, d, spread)
    nearest = ops.silhouette(z, labels, c)[2]
    p, q = torch.full((n,), -1.0 / n), torch.full((n,), 0.5 / n)
    return {
        "forward": lambda: ops.silhouette(z, labels, c),
        "backward": lambda: ops.silhouette_backward(p, q, z, labels, nearest, c),
    }


def peers(n: int, c: int, d: int, spread: float) -> dict:
    from sklearn.metrics import silhouette_samples

    z, labels = blobs(n, c, d, spread)

    def both(loss):
        def run():
            loss(z.detach().requires_grad_()).backward()

        return run

    return {
        "ours, loss and gradient": both(lambda q: ck.silhouette(q, labels)),
        "simplified silhouette, loss and gradient": both(lambda q: ck.simplified_silhouette(q, labels=labels)),
        "loop over pairs of clusters, loss and gradient": both(lambda q: providers.loop_silhouette(q, labels)),
        "ours, values": lambda: ck.metrics.silhouette_samples(z.numpy(), labels.numpy()),
        "scikit-learn, values": lambda: silhouette_samples(z.numpy(), labels.numpy()),
        "squared distances, loss and gradient": both(lambda q: ck.silhouette(q, labels, metric="sqeuclidean")),
    }


def product_rate() -> float:
    """Flops a second of a large matrix product, the best of several."""
    a, b = torch.randn(2_048, 1_024), torch.randn(1_024, 1_024)
    best = min(harness.interleaved({"mm": lambda: a @ b}, rounds=15)["mm"])
    return 2 * 2_048 * 1_024 * 1_024 / best


# The resident size is sampled: the high-water mark of the process was set by its imports and would hide the call.
MEMORY = """
import resource, threading, time, torch, carlg_kernels as ck
from benchmarks.bench_silhouette import blobs
z, y = blobs({n}, {c}, {d}, {spread})
q = z[:500].clone().requires_grad_(); ck.silhouette(q, y[:500]).backward()
def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20
before, peak, done = resident(), 0.0, False
def watch():
    global peak
    while not done:
        peak = max(peak, resident())
        time.sleep(0.0005)
thread = threading.Thread(target=watch); thread.start()
z.requires_grad_(); ck.silhouette(z, y).backward()
done = True; thread.join()
print("PEAK", peak - before)
"""


def extra_megabytes(n: int, c: int, d: int, spread: float) -> float:
    """Peak resident memory that loss and gradient add."""
    code = MEMORY.format(n=n, c=c, d=d, spread=spread)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split("PEAK")[1])


def measure(name: str, shape: tuple[int, int, int, float], product: float, memory: bool) -> list[dict]:
    n, c, d, spread = shape
    rows = []
    functions = ours(*shape)
    times = harness.interleaved(functions, rounds=5, budget=15)
    for part, flops in (("forward", 2 * d), ("backward", 6 * d)):
        pairs = counted(functions[part])
        work = flops * pairs + (2 * n * c * d if part == "forward" else 0)
        row = {"sweep": name, "n": n, "c": c, "d": d, "spread": spread, "function": part, **harness.summary(times[part])}
        rows.append({**row, "pairs": pairs / n**2, "rate": work / min(times[part]) / product})
    if memory:
        rows[-1]["extra_mb"] = round(extra_megabytes(*shape), 1)
    return rows


def plot(rows: list[dict]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = {"n": "points n (c = root of n)", "c": "clusters c (n = 10,000)", "separation": "spread of the clusters (n = 7,650, c = 31)"}
    keys = {"n": "n", "c": "c", "separation": "spread"}
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), constrained_layout=True)
    for column, sweep in enumerate(SWEEPS):
        for part in ("forward", "backward"):
            chosen = [row for row in rows if row["sweep"] == sweep and row["function"] == part]
            x = [row[keys[sweep]] for row in chosen]
            axes[0, column].loglog(x, [row["best_ms"] for row in chosen], "o-", label=part)
            axes[1, column].loglog(x, [100 * row["pairs"] for row in chosen], "o-", label=f"pairs, {part}")
        axes[0, column].set(ylabel="ms", title=f"time against {sweep}")
        axes[1, column].set(xlabel=labels[sweep], ylabel="% of n²")
        axes[0, column].legend()
        axes[1, column].legend()
    harness.RESULTS.mkdir(exist_ok=True)
    figure.savefig(harness.RESULTS / "silhouette.svg")
    measured = [row for row in rows if "extra_mb" in row and row["sweep"] in SWEEPS]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3), constrained_layout=True)
    for axis, sweep in zip(axes, SWEEPS, strict=True):
        chosen = [row for row in measured if row["sweep"] == sweep]
        axis.semilogx([row[keys[sweep]] for row in chosen], [row["extra_mb"] for row in chosen], "o-")
        axis.set(xlabel=labels[sweep], ylabel="MB beyond the input", title=f"memory against {sweep}", ylim=(0, None))
    figure.savefig(harness.RESULTS / "silhouette_memory.svg")


def main() -> None:
    product = product_rate()
    rows = [{"sweep": "machine", "function": "product", "gflops": round(product / 1e9, 1)}]
    for name, shape in HEADLINES.items():
        rows += measure(name, shape, product, memory=True)
        times = harness.interleaved(peers(*shape), rounds=3, budget=20)
        rows += [{"sweep": name, "function": f, **harness.summary(t)} for f, t in times.items()]
    for name, shapes in SWEEPS.items():
        for shape in shapes:
            rows += measure(name, shape, product, memory=True)
    rows += measure("memory", (40_000, 50, 32, 0.3), product, memory=True)
    for row in rows:
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    plot(rows)
    print(harness.record("silhouette", rows))


@pytest.mark.parametrize("name", HEADLINES)
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_benchmark(benchmark, name, part):
    benchmark(ours(*HEADLINES[name])[part])


if __name__ == "__main__":
    main()
