"""The linear-time losses, forward and backward, and assignment, against plain torch and against the machine's limit.

    python -m benchmarks.bench_losses              interleaved, writes results/losses.jsonl
    pytest benchmarks/bench_losses.py --benchmark-enable --benchmark-json=losses.json

Limit at n=34,493 c=100 d=256 in float32: 2ncd = 1.77 GF for assignment and the simplified silhouette, one read of z (35 MB) and one
write of its gradient; three passes over z and one write of the gradient for the variance ratio.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import pytest
import torch

import carlg_kernels as ck
from benchmarks import harness, providers

SHAPES = {"physics": (34_493, 100, 256), "photos": (7_650, 31, 256), "wide": (20_000, 64, 1024), "many": (100_000, 1_000, 64)}


def clustered(n: int, c: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(0, c, (n,), generator=g)
    z = torch.randn(c, d, generator=g)[labels] + 0.7 * torch.randn(n, d, generator=g)
    return torch.nn.functional.normalize(z, dim=1), labels


def functions(n: int, c: int, d: int) -> dict:
    """Every function of one row of the table, ours and the peers'; losses run forward and backward."""
    z, labels = clustered(n, c, d)
    centroids, _ = providers.means(z, labels, c)
    out = torch.empty_like(z)

    def both(loss):
        def run():
            loss(z.detach().requires_grad_()).backward()

        return run

    return {
        "product z @ centroids.T": lambda: z @ centroids.T,
        "copy of z": lambda: out.copy_(z),
        "assign": lambda: ck.assign(z, centroids),
        "assign, cdist + topk": lambda: providers.cdist_top_two(z, centroids),
        "simplified silhouette": both(lambda q: ck.simplified_silhouette(q, labels=labels)),
        "simplified silhouette, eager torch": both(lambda q: providers.eager_simplified_silhouette(q, labels, c)),
        "simplified silhouette, loop over clusters": both(lambda q: providers.loop_simplified_silhouette(q, labels, c)),
        "variance ratio": both(lambda q: ck.variance_ratio(q, labels)),
        "variance ratio, eager torch": both(lambda q: providers.eager_variance_ratio(q, labels, c)),
        "Davies-Bouldin": both(lambda q: ck.davies_bouldin(q, labels)),
        "Davies-Bouldin, eager torch": both(lambda q: providers.eager_davies_bouldin(q, labels, c)),
    }


def main() -> None:
    rows = []
    for name, (n, c, d) in SHAPES.items():
        times = harness.interleaved(functions(n, c, d))
        for function, seconds in times.items():
            rows.append({"shape": name, "n": n, "c": c, "d": d, "function": function, **harness.summary(seconds)})
            print(f"{name:<8} {function:<42} {rows[-1]['best_ms']:9.2f} ms")
    print(harness.record("losses", rows))


@pytest.mark.parametrize("shape", ["physics", "photos"])
@pytest.mark.parametrize("function", ["assign", "simplified silhouette", "variance ratio", "Davies-Bouldin"])
def test_losses(benchmark, shape, function):
    benchmark(functions(*SHAPES[shape])[function])


if __name__ == "__main__":
    main()
