"""k-means against scikit-learn, faiss and the bare product, and the starts against scikit-learn's, from the same data in one run.

    python benchmarks/bench_kmeans.py [--rounds 5] [--output benchmarks/results/kmeans.jsonl]

Times are the best of interleaved rounds; peers run with their own defaults on the same threads. One JSON line a size.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import time

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch
from sklearn.cluster import KMeans, kmeans_plusplus

import carlg_kernels as ck

SIZES = [(34493, 100, 256, 10), (7650, 31, 256, 10), (100000, 1000, 64, 5), (13752, 47, 256, 10)]
STARTS = [(50000, 100, 64), (7650, 31, 256)]


def blobs(n: int, c: int, d: int, spread: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around c centres, and c of them to start from."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(c, d, generator=g)
    z = centres[torch.randint(0, c, (n,), generator=g)] + spread * torch.randn(n, d, generator=g)
    z = torch.nn.functional.normalize(z, dim=1)
    return z, z[torch.randperm(n, generator=g)[:c]].clone()


def best_times(functions: dict, rounds: int) -> dict[str, float]:
    best = dict.fromkeys(functions, float("inf"))
    for f in functions.values():
        f()
    for _ in range(rounds):
        for name, f in functions.items():
            start = time.perf_counter()
            f()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: round(seconds * 1e3, 3) for name, seconds in best.items()}


def faiss_run(z, init, c, iterations):
    import faiss

    def run() -> None:
        model = faiss.Kmeans(z.shape[1], c, niter=iterations, max_points_per_centroid=10**9)
        model.train(z, init_centroids=init)
        model.index.search(z, 1)

    return run


def lloyd_lines(rounds: int):
    for n, c, d, iterations in SIZES:
        z, init = blobs(n, c, d)
        zn, init_n = z.numpy(), init.numpy()
        sklearn = KMeans(c, init=init_n, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd")
        functions = {
            "carlg_kernels": lambda: ck.kmeans(z, c, init=init, max_iter=iterations, tol=0.0),  # noqa: B023
            "sklearn": lambda: sklearn.fit(zn),  # noqa: B023
            "product": lambda: z @ init.T,  # noqa: B023
        }
        try:
            functions["faiss"] = faiss_run(zn, init_n, c, iterations)
        except ImportError:
            print("faiss is not installed: left out")
        times = best_times(functions, rounds)
        peer = min(times[name] for name in ("sklearn", "faiss") if name in times)
        yield {
            "op": "kmeans",
            "n": n,
            "c": c,
            "d": d,
            "iterations": iterations,
            "ms": times,
            "over_the_faster_peer": round(peer / times["carlg_kernels"], 2),
            "products_an_iteration": round(times["carlg_kernels"] / (iterations + 1) / times["product"], 2),
        }


def start_lines(rounds: int):
    for n, c, d in STARTS:
        z, _ = blobs(n, c, d)
        times = best_times(
            {
                "carlg_kernels": lambda: ck.kmeans(z, c, max_iter=1, tol=0.0),  # noqa: B023
                "sklearn": lambda: kmeans_plusplus(z.numpy(), c, random_state=0),  # noqa: B023
            },
            rounds,
        )
        ratio = round(times["sklearn"] / times["carlg_kernels"], 2)
        yield {"op": "k-means++ and one iteration", "n": n, "c": c, "d": d, "ms": times, "over_the_faster_peer": ratio}


def provenance() -> dict[str, object]:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    return {
        "commit": git.stdout.strip(),
        "cpu": model,
        "build": torch.ops.carlg_kernels.build_info(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "huge_pages": os.environ["THP_MEM_ALLOC_ENABLE"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    about = provenance()
    lines = []
    for make in (lloyd_lines, start_lines):
        for line in make(options.rounds):
            print(line)
            lines.append(json.dumps({**line, **about}))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
