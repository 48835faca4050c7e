"""A training step with the usual loop over clusters, and the same step with our loss: one line changes, value and gradient do not.

python python/examples/swap_the_loss.py
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import time

import torch

import carlg_kernels as ck


def usual_loss(z: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The simplified silhouette as it is usually written: a Python loop over clusters, autograd keeps every table."""
    present = labels.unique()
    centroids = torch.stack([z[labels == j].mean(0) for j in present])
    scores = []
    for i, j in enumerate(present):
        table = torch.cdist(z[labels == j], centroids, compute_mode="donot_use_mm_for_euclid_dist")
        own = table[:, i]
        other = table[:, torch.arange(len(present)) != i].min(1).values
        scores.append((other - own) / torch.maximum(own, other))
    return (0.9 - torch.cat(scores).mean()).abs()


our_loss = ck.nn.SimplifiedSilhouetteLoss(target=0.9)


def train(loss, steps: int = 5) -> tuple[float, list[float], torch.Tensor]:
    """Seconds of the best step, the losses, and the gradient of the first layer at the first step."""
    torch.manual_seed(0)
    x = torch.randn(20_000, 64)
    labels = torch.randint(0, 50, (20_000,))
    x += 2 * torch.randn(50, 64)[labels]
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.PReLU(), torch.nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    best, values, first = float("inf"), [], None
    for _ in range(steps):
        z = torch.nn.functional.normalize(net(x), dim=1)
        start = time.perf_counter()
        value = loss(z, labels=labels)
        (grad,) = torch.autograd.grad(value, z)
        best = min(best, time.perf_counter() - start)
        optimizer.zero_grad()
        z.backward(grad)
        first = net[0].weight.grad.clone() if first is None else first
        optimizer.step()
        values.append(value.item())
    return best, values, first


if __name__ == "__main__":
    before = train(usual_loss)
    after = train(our_loss)
    print(f"loss      {before[1][0]:.6f} with the loop, {after[1][0]:.6f} with ours")
    print(f"gradient  largest difference {(before[2] - after[2]).abs().max() / before[2].abs().max():.1e} of its maximum")
    print(f"time      {1e3 * before[0]:.1f} ms with the loop, {1e3 * after[0]:.1f} ms with ours: {before[0] / after[0]:.1f}x")
