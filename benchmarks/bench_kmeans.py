"""k-means against scikit-learn, faiss and the bare product from the same start, and k-means++ against scikit-learn's, in one run.

    python -m benchmarks.bench_kmeans              interleaved, writes results/kmeans.jsonl
    pytest benchmarks/bench_kmeans.py --benchmark-enable --benchmark-json=kmeans.json

Limit: an iteration of plain Lloyd is 2ncd flops (one bare product) and one read of z; exact bounds skip most of the products.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import pytest
import torch

import carlg_kernels as ck
from benchmarks import harness

SIZES = {"physics": (34_493, 100, 256, 10), "photos": (7_650, 31, 256, 10), "many": (100_000, 1_000, 64, 5)}
STARTS = {"start": (50_000, 100, 64), "start, photos": (7_650, 31, 256)}


def blobs(n: int, c: int, d: int, spread: float = 0.7) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around c centres, and c of them to start from."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(c, d, generator=g)
    z = centres[torch.randint(0, c, (n,), generator=g)] + spread * torch.randn(n, d, generator=g)
    z = torch.nn.functional.normalize(z, dim=1)
    return z, z[torch.randperm(n, generator=g)[:c]].clone()


def lloyd(n: int, c: int, d: int, iterations: int) -> dict:
    import faiss
    from sklearn.cluster import KMeans

    z, init = blobs(n, c, d)
    points, start = z.numpy(), init.numpy()

    def by_faiss():
        model = faiss.Kmeans(d, c, niter=iterations, max_points_per_centroid=10**9)
        model.train(points, init_centroids=start)
        model.index.search(points, 1)

    return {
        "ours": lambda: ck.kmeans(z, c, init=init, max_iter=iterations, tol=0.0),
        "sklearn": lambda: KMeans(c, init=start, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(points),
        "faiss": by_faiss,
        "product z @ centroids.T": lambda: z @ init.T,
    }


def starts(n: int, c: int, d: int) -> dict:
    from sklearn.cluster import kmeans_plusplus

    z, _ = blobs(n, c, d)
    return {
        "ours, k-means++ and one iteration": lambda: ck.kmeans(z, c, max_iter=1, tol=0.0),
        "sklearn, k-means++": lambda: kmeans_plusplus(z.numpy(), c, random_state=0),
    }


def main() -> None:
    rows = []
    for cases, make in ((SIZES, lloyd), (STARTS, starts)):
        for name, shape in cases.items():
            for function, seconds in harness.interleaved(make(*shape), rounds=5).items():
                n, c, d = shape[:3]
                iterations = shape[3] if len(shape) > 3 else 1
                rows.append(
                    {"shape": name, "n": n, "c": c, "d": d, "iterations": iterations, "function": function, **harness.summary(seconds)}
                )
                print(f"{name:<14} {function:<36} {rows[-1]['best_ms']:9.2f} ms")
    print(harness.record("kmeans", rows))


@pytest.mark.parametrize("shape", ["physics", "photos"])
def test_kmeans(benchmark, shape):
    benchmark(lloyd(*SIZES[shape])["ours"])


if __name__ == "__main__":
    main()
