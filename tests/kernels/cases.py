"""Every launcher of ``carlg_kernels._triton`` in every mode, compared with the reference in float64.

``run(case, dtype, device)`` calls a launcher, forward and backward, on whatever executes ``common.launch``: the interpreter, compiled
PTX on the CPU, or a real GPU. Half-precision points are compared with the reference on the same (already rounded) points.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from carlg_kernels._typing import compute_dtype

EPSILON = {
    torch.float16: 2**-11,
    torch.bfloat16: 2**-8,
    torch.float32: 2**-23,
    torch.float64: 2**-52,
}


@dataclass(frozen=True)
class Case:
    op: str
    name: str
    check: Callable[..., None]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"


def launcher(op: str) -> ModuleType:
    return importlib.import_module(f"carlg_kernels._triton.{op}")


def reference(op: str) -> ModuleType:
    return importlib.import_module(f"carlg_kernels.reference.{op}")


def wide(*values: Any) -> tuple[Any, ...]:
    """The arguments with their floating tensors in float64."""
    return tuple(v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)


def assert_close(name: str, got: Tensor, want: Tensor, units: float = 64) -> None:
    """Integers equal; floats within ``units`` roundings of the type of ``got``, relative to the largest value."""
    assert got.shape == want.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if not got.is_floating_point():
        torch.testing.assert_close(got.to(want.dtype), want, msg=lambda m: f"{name}: {m}")
        return
    finite = want[want.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 1.0
    # The arithmetic is float32 at best for half types, so their own rounding comes on top of its error.
    unit = EPSILON[got.dtype] * (1 if got.dtype in (torch.float16, torch.bfloat16) else units)
    torch.testing.assert_close(got.double(), want.double(), rtol=2 * unit, atol=unit * size, msg=lambda m: f"{name}: {m}")


def compare(names: str, got: Any, want: Any, units: float = 64) -> None:
    got = got if isinstance(got, tuple) else (got,)
    want = want if isinstance(want, tuple) else (want,)
    for name, g, w in zip(names.split(), got, want, strict=True):
        assert_close(name, g, w, units)


def call(op: str, *args: Any, backward: bool = False) -> Any:
    """The launcher's outputs, which must look as the op's fake implementation says: shape, dtype, strides."""
    got = getattr(launcher(op), f"{op}_backward" if backward else op)(*args)
    fake = getattr(importlib.import_module(f"carlg_kernels.ops.{op}"), "_backward_fake" if backward else "_fake")(*args)
    pairs = zip(got, fake, strict=True) if isinstance(got, tuple) else [(got, fake)]
    for g, f in pairs:
        assert (g.shape, g.dtype, g.stride(), g.device) == (f.shape, f.dtype, f.stride(), f.device)
    return got


def points(
    n: int, c: int, d: int, dtype: torch.dtype, device: str, layout: str = "rows", offset: float = 0.0, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """z in ``dtype``, labels with outliers, an empty cluster and a singleton, and centroids; all of it ``offset`` away from 0."""
    generator = torch.Generator().manual_seed(n * 10007 + c * 101 + d)
    centers = offset + 2 * torch.randn(c, d, generator=generator)
    # Clusters 0..c-2 are used; c - 2 holds one point only.
    labels = torch.randint(0, max(c - 2, 1), (n,), generator=generator)
    z = centers[labels] + torch.randn(n, d, generator=generator)
    if c > 3:
        labels[n // 2] = c - 2
        labels[::17] = -1
    if n > 8:
        z[5] = z[7]
    z, centers = (scale * z).to(dtype), scale * centers
    if layout == "columns":
        z = z.t().contiguous().t()
    elif layout == "strided":
        z = torch.stack((z, z), 2)[..., 0]
    centers = centers.to(compute_dtype(dtype))
    return z.to(device), labels.to(device), centers.to(device)


def check_assign(dtype: torch.dtype, device: str, n=131, c=37, d=50, layout="rows", ties=False, offset=0.0) -> None:
    z, _, centers = points(n, c, d, dtype, device, layout, offset)
    if ties:
        # The same column of the next tile: numpy's product, which the interpreter takes, rounds columns of a tile differently.
        centers[66] = centers[2]
        z[3] = centers[2].to(dtype)
    got = call("assign", z, centers)
    compare("labels distances second second_distances", got, reference("assign").assign(*wide(z, centers)))


def check_centroid_update(dtype: torch.dtype, device: str, n=203, c=7, d=70, weighted=False, layout="rows") -> None:
    z, labels, _ = points(n, c, d, dtype, device, layout)
    generator = torch.Generator().manual_seed(3)
    real = compute_dtype(dtype)
    weights = None
    if weighted:
        weights = torch.rand(2 * n, generator=generator).to(device, real)[::2]
        weights[labels == 1] = 0
    truth = reference("centroid_update")
    got = call("centroid_update", z, labels, weights, c)
    compare("means mass", got, truth.centroid_update(*wide(z, labels, weights, c)))
    grad = torch.randn(d, c, generator=generator).to(device, real).t()
    for need in {False, weighted}:
        args = (grad, z, labels, weights, *got, need)
        want = truth.centroid_update_backward(*wide(*args))
        compare("dz dweights", call("centroid_update", *args, backward=True), want)


def check_silhouette(
    dtype: torch.dtype, device: str, n=150, c=9, d=37, mode="labels", reduction="mean",
    singleton_zero=True, save_sums=False, layout="rows", offset=0.0, scale=1.0,
) -> None:  # fmt: skip
    z, labels, centers = points(n, c, d, dtype, device, layout, offset, scale)
    if mode == "transposed":
        centers = centers.t().contiguous().t()
    given = None if mode in ("labels", "unknown") else centers
    own = None if mode == "centroids" else labels
    clusters = 0 if mode == "unknown" else c
    truth = reference("simplified_silhouette")
    args = (z, own, given, clusters, reduction, singleton_zero, save_sums)
    got = call("simplified_silhouette", *args)
    want = truth.simplified_silhouette(*wide(*args))
    compare("value own_labels other_labels own other means counts sums", got, want, units=256)

    real = compute_dtype(dtype)
    grad = torch.tensor(-1.7 / scale**0.5, dtype=real, device=device)
    if reduction == "none":
        grad = torch.randn(n, generator=torch.Generator().manual_seed(5)).to(device, real)
    tied = given is None
    state = (*got[1:5], got[5] if tied else given, *got[6:])
    for need in {False, not tied}:
        args = (grad, z, *state, tied, reduction, need)
        want = truth.simplified_silhouette_backward(*wide(*args))
        compare("dz dcentroids", call("simplified_silhouette", *args, backward=True), want, units=256)


def check_variance_ratio(dtype: torch.dtype, device: str, n=150, c=9, d=37, distance="sqeuclidean", mode="labels", layout="rows") -> None:
    z, labels, centers = points(n, c, d, dtype, device, layout)
    given = None if mode in ("labels", "unknown") else centers
    clusters = 0 if mode == "unknown" else c
    truth = reference("variance_ratio")
    got = call("variance_ratio", z, labels, given, clusters, distance)
    want = truth.variance_ratio(*wide(z, labels, given, clusters, distance))
    compare("value means counts grand_mean scatter directions", got, want)
    grad = torch.tensor(0.6, dtype=compute_dtype(dtype), device=device)
    tied = given is None
    for need in {False, not tied}:
        args = (grad, z, labels, got[1] if tied else given, *got[2:], tied, distance, need)
        want = truth.variance_ratio_backward(*wide(*args))
        compare("dz dcentroids", call("variance_ratio", *args, backward=True), want, units=256)


def check_davies_bouldin(dtype: torch.dtype, device: str, n=150, c=9, d=37, unknown=False, scale=1.0) -> None:
    z, labels, _ = points(n, c, d, dtype, device, scale=scale)
    clusters = 0 if unknown else c
    truth = reference("davies_bouldin")
    got = call("davies_bouldin", z, labels, clusters)
    want = truth.davies_bouldin(*wide(z, labels, clusters))
    compare("value means counts dispersion rivals directions", got, want)
    grad = torch.tensor(0.6 / scale**0.5, dtype=compute_dtype(dtype), device=device)
    args = (grad, z, labels, *got[1:])
    want = truth.davies_bouldin_backward(*wide(*args))
    compare("dz", call("davies_bouldin", *args, backward=True), want, units=256)


def check_broken_row(dtype: torch.dtype, device: str, entry=float("nan"), mode="labels", n=70, c=5, d=11) -> None:
    """Of one entry that is not finite, or too large to be squared, nothing is hidden; an outlier's entries do not matter."""
    z, labels, centers = points(n, c, d, dtype, device)
    given, own = (None, labels) if mode == "labels" else (centers, labels if mode == "both" else None)
    tied = given is None
    bad, outlier = 20, 17
    assert labels[bad] >= 0 and labels[outlier] == -1
    z[bad, 3] = entry
    if own is not None:
        z[outlier] = entry
    for reduction in ("none", "sum", "mean"):
        value, *state = call("simplified_silhouette", z, own, given, c, reduction, True, False)
        grad = torch.full_like(value, 0.5)
        state = (*state[:4], centers if given is not None else state[4], *state[5:])
        dz, _ = call("simplified_silhouette", grad, z, *state, tied, reduction, False, backward=True)
        assert dz[bad].isnan().all()
        assert own is None or not dz[outlier].any()
        if reduction != "none":
            assert value.isnan()
            continue
        assert value[bad].isnan()
        if tied:
            continue
        # Centroids of their own are finite, so that the other rows are as if this one were not there.
        rest = torch.arange(n, device=device) != bad
        rest &= labels >= 0 if own is not None else rest
        x = z[rest].double().requires_grad_()
        table = (x[:, None] - centers.double()).square().sum(2).sqrt()
        index = labels[rest] if own is not None else table.argmin(1)
        a = table.gather(1, index[:, None])[:, 0]
        b = table.scatter(1, index[:, None], float("inf")).amin(1)
        want = (b - a) / torch.maximum(a, b)
        assert_close("value", value[rest], want.detach())
        assert_close("dz", dz[rest], torch.autograd.grad(0.5 * want.sum(), x)[0], units=256)


def check_broken_cluster(dtype: torch.dtype, device: str, entry=float("nan"), n=70, c=5, d=11) -> None:
    """As :func:`check_broken_row`, for the Davies-Bouldin index: every cluster has the broken one as its rival."""
    z, labels, _ = points(n, c, d, dtype, device)
    z[17] = entry
    assert labels[17] == -1
    for bad in (17, 20):
        z[bad, 3] = entry
        value, *state = call("davies_bouldin", z, labels, c)
        dz = call("davies_bouldin", torch.full_like(value, 0.5), z, labels, *state, backward=True)
        assert not dz[labels < 0].any()
        assert value.isnan() == (bad == 20)
        assert bool((dz[labels >= 0].isnan() if bad == 20 else dz[labels >= 0].isfinite()).all())


def check_one_cluster(dtype: torch.dtype, device: str) -> None:
    """Without another cluster there is no score and no gradient, and nothing is broken."""
    z, _, centers = points(40, 5, 11, dtype, device)
    labels = torch.full((40,), 2, device=device)
    for own, given in ((labels, None), (None, centers[:1])):
        value, *state = call("simplified_silhouette", z, own, given, 5 if given is None else 1, "none", True, False)
        state = (*state[:4], state[4] if given is None else given, *state[5:])
        dz, _ = call("simplified_silhouette", torch.ones_like(value), z, *state, given is None, "none", False, backward=True)
        assert not value.any() and not dz.any()


def check_lloyd(dtype: torch.dtype, device: str, n=203, c=7, d=70, weighted=False, frozen=False, settled=False, offset=0.0) -> None:
    z, _, centers = points(n, c, d, dtype, device, offset=offset)
    centers[c - 1] += 1000
    weights = None
    if weighted:
        weights = torch.rand(n, generator=torch.Generator().manual_seed(3)).to(device, centers.dtype)
    done = torch.tensor(int(frozen), dtype=torch.int32, device=device)
    tolerance = 1e9 if settled else 0.0
    got = launcher("lloyd").lloyd_step(z, centers, weights, tolerance, done)
    assignment = reference("assign").assign(*wide(z, centers))
    means, mass = reference("centroid_update").centroid_update(*wide(z, assignment[0], weights, c))
    new = torch.where((mass == 0)[:, None], centers.double(), means)
    if frozen:
        new = centers.double()
    # Far from 0 the centroids are rounded more than the shift may be wrong.
    shift = (got.centroids.double() - centers.double()).square().sum()
    flag = torch.tensor(int(frozen or settled), dtype=torch.int32, device=device)
    assert bool((mass == 0).any())
    names = "centroids mass labels distances second second_distances shift done"
    compare(names, tuple(got), (new, mass, *assignment, shift, flag))


def _cases() -> list[Case]:
    cases = [
        Case("assign", "plain", check_assign),
        Case("assign", "one-centroid", check_assign, {"c": 1, "d": 5}),
        Case("assign", "two-tiles-ties", check_assign, {"n": 70, "c": 75, "d": 33, "ties": True}),
        Case("assign", "one-dimension", check_assign, {"n": 65, "c": 5, "d": 1}),
        Case("assign", "columns", check_assign, {"layout": "columns"}),
        Case("assign", "strided", check_assign, {"layout": "strided"}),
        Case("centroid_update", "plain", check_centroid_update),
        Case("centroid_update", "weighted", check_centroid_update, {"weighted": True}),
        Case("centroid_update", "wide", check_centroid_update, {"n": 40, "d": 300, "layout": "columns"}),
        Case("davies_bouldin", "plain", check_davies_bouldin),
        Case("davies_bouldin", "unknown", check_davies_bouldin, {"unknown": True}),
        Case("lloyd", "plain", check_lloyd),
        Case("lloyd", "weighted-settled", check_lloyd, {"weighted": True, "settled": True}),
        Case("lloyd", "frozen", check_lloyd, {"frozen": True}),
    ]
    for offset in (30, 3000):
        cases += [
            Case("assign", f"offset-{offset}", check_assign, {"n": 128, "c": 8, "d": 32, "offset": offset}),
            Case("lloyd", f"offset-{offset}", check_lloyd, {"offset": offset}),
            Case("simplified_silhouette", f"offset-{offset}", check_silhouette, {"offset": offset}),
            Case("simplified_silhouette", f"centroids-offset-{offset}", check_silhouette, {"mode": "centroids", "offset": offset}),
        ]
    for scale in (1e-18, 1e-15, 1e15, 1e17):
        cases += [
            Case("simplified_silhouette", f"scale-{scale}", check_silhouette, {"scale": scale, "d": 5}),
            Case("davies_bouldin", f"scale-{scale}", check_davies_bouldin, {"scale": scale, "d": 5}),
        ]
    for entry in (float("nan"), float("inf"), 1e30):
        cases.append(Case("davies_bouldin", f"broken-{entry}", check_broken_cluster, {"entry": entry}))
        for mode in ("labels", "centroids", "both"):
            options = {"entry": entry, "mode": mode}
            cases.append(Case("simplified_silhouette", f"broken-{mode}-{entry}", check_broken_row, options))
    cases.append(Case("simplified_silhouette", "one-cluster", check_one_cluster))
    for mode in ("labels", "unknown", "centroids", "both"):
        for reduction in ("mean", "sum", "none"):
            save = reduction != "none" and mode != "unknown"
            options = {"mode": mode, "reduction": reduction, "save_sums": save}
            cases.append(Case("simplified_silhouette", f"{mode}-{reduction}", check_silhouette, options))
    cases += [
        Case("simplified_silhouette", "singleton", check_silhouette, {"singleton_zero": False}),
        Case("simplified_silhouette", "transposed", check_silhouette,
             {"mode": "transposed", "layout": "columns", "d": 140, "n": 70}),
    ]  # fmt: skip
    for mode in ("labels", "unknown", "centroids"):
        for distance in ("sqeuclidean", "euclidean"):
            options = {"mode": mode, "distance": distance}
            cases.append(Case("variance_ratio", f"{mode}-{distance}", check_variance_ratio, options))
    wide_rows = {"n": 60, "d": 300, "layout": "strided"}
    cases.append(Case("variance_ratio", "wide", check_variance_ratio, wide_rows))
    return cases


CASES = _cases()


def run(case: Case, dtype: torch.dtype, device: str = "cpu") -> None:
    case.check(dtype, device, **case.options)


PUBLIC = ("simplified_silhouette", "variance_ratio", "davies_bouldin")
_PLAIN = {
    "assign-plain",
    "centroid_update-weighted",
    "simplified_silhouette-labels-none",
    "simplified_silhouette-both-mean",
    "variance_ratio-labels-sqeuclidean",
    "variance_ratio-centroids-euclidean",
    "davies_bouldin-plain",
    "lloyd-weighted-settled",
}


def interpreted() -> list[tuple[Case, str]]:
    """What the interpreter runs: every case in float32, one or two of every op in the other types."""
    pairs = [(case, "float32") for case in CASES]
    for dtype in ("float16", "bfloat16", "float64"):
        pairs += [(case, dtype) for case in CASES if str(case) in _PLAIN]
    return pairs
