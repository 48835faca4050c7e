"""Run by test_interpreter.py in processes of its own, because TRITON_INTERPRET is read when a kernel is decorated.

``interpret.py I K`` makes every K-th check from the I-th on, and prints one JSON line a check.
"""

import functools
import json
import sys
import traceback
from collections.abc import Callable

import cases
import torch

import carlg_kernels as ck
from carlg_kernels import _dispatch

assert _dispatch.INTERPRET and _dispatch.BACKEND == "triton"


def report(name: str, check: Callable[[], None]) -> None:
    error = ""
    try:
        check()
    except Exception as failure:
        error = "".join(traceback.format_exception(failure))
    print(json.dumps({"name": name, "error": error}), flush=True)


def check_public(name: str) -> None:
    """A public function with its gradient, through schema, dispatch and autograd, against float64 autograd of the plain formula."""
    z, labels, _ = cases.points(60, 5, 11, torch.float32, "cpu")
    z.requires_grad_()
    value = getattr(ck, name)(z, labels=labels)
    value.backward()
    x = z.detach().double().requires_grad_()
    keep = labels >= 0
    present = [j for j in range(5) if (labels == j).any()]
    counts = torch.tensor([float((labels == j).sum()) for j in present], dtype=torch.float64)
    means = torch.stack([x[labels == j].mean(0) for j in present])
    table = torch.cdist(x[keep], means, compute_mode="donot_use_mm_for_euclid_dist")
    own = torch.stack([labels[keep] == j for j in present], 1)
    if name == "simplified_silhouette":
        a = table[own]
        b = table.masked_fill(own, float("inf")).amin(1)
        single = (own * counts).sum(1) == 1
        want = ((b - a) / torch.maximum(a, b)).masked_fill(single, 0).mean()
    elif name == "variance_ratio":
        between = (counts[:, None] * (means - x[keep].mean(0)).square()).sum()
        c, n = len(present), int(keep.sum())
        want = between / table[own].square().sum() * (n - c) / (c - 1)
    else:
        spread = (table * own).sum(0) / counts
        apart = torch.pdist(means)
        ratio = torch.zeros(len(present), len(present), dtype=torch.float64)
        rows, columns = torch.triu_indices(len(present), len(present), 1)
        ratio = ratio.index_put((rows, columns), (spread[rows] + spread[columns]) / apart)
        want = (ratio + ratio.t()).amax(1).mean()
    (gradient,) = torch.autograd.grad(want, x)
    cases.assert_close("value", value.detach(), want.detach())
    cases.assert_close("gradient", z.grad, gradient.nan_to_num(), units=256)


def main(first: int, step: int) -> None:
    checks: list[tuple[str, Callable[[], None]]] = []
    for case, dtype in cases.interpreted():
        checks.append((f"{case}-{dtype}", functools.partial(cases.run, case, getattr(torch, dtype))))
    for name in cases.PUBLIC:
        checks.append((f"public-{name}", functools.partial(check_public, name)))
    for name, check in checks[first::step]:
        report(name, check)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
