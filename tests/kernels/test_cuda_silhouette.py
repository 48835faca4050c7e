"""The CUDA kernels of the exact silhouette: compiled without spills, and executed, as PTX on the CPU and on a GPU where there is one."""

import pathlib
import re
import shutil
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from cuda_silhouette import ARCHITECTURES, FILES, Device, compiled, prepare  # noqa: E402

import carlg_kernels  # noqa: E402, F401

Array = NDArray[Any]

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

ORDERS = (0, -1, 7)
# Rounding of dz to the type of the points.
ROUNDING = {"float16": 2**-11, "bfloat16": 2**-8}


def blobs(n: int, c: int, d: int, spread: float, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, c, n)
    return rng.standard_normal((c, d))[labels] + spread * rng.standard_normal((n, d)), labels


def case(name: str) -> tuple[Array, Array, int]:
    """Points in float64, labels, number of clusters."""
    if name == "overlapping":
        return *blobs(203, 7, 37, 1.0), 7
    if name == "separated":
        return *blobs(331, 11, 70, 0.05), 11
    if name == "wide":  # more coordinates than a backward block keeps, more clusters than a tile has columns
        return *blobs(150, 70, 301, 0.3), 70
    if name == "far":  # tight clusters far from the origin
        z, labels = blobs(130, 5, 20, 0.01)
        return 1000 + 0.1 * z, labels, 5
    if name == "duplicates":
        z, labels = blobs(140, 4, 3, 0.5)
        return z[np.arange(140) // 3], labels, 4
    if name == "outliers":  # outliers, a singleton (5), empty clusters (0 and 6)
        z, labels = blobs(131, 4, 9, 0.7)
        labels = labels + 1
        labels[::7] = -1
        labels[3] = 5
        return z, labels, 7
    assert name == "ties"  # clusters 1 and 3 mirror each other about cluster 2; all distances are exact
    z = np.array([[0, 0], [0, 0], [3, 4], [-3, -4], [3, 4], [-3, -4], [40, 0], [40, 0]], float)
    return z, np.array([2, 2, 1, 3, 1, 3, 0, 0]), 4


CASES = ("overlapping", "separated", "wide", "far", "duplicates", "outliers", "ties")


def mean_distances(z: Array, labels: Array, c: int) -> tuple[Array, Array, Array]:
    """D_uv, the mean distance to (the other points of) every cluster, and the counts, in float64; empty clusters are infinitely far."""
    distances = np.stack([np.sqrt(((z - row) ** 2).sum(1)) for row in z])
    counts = np.bincount(labels[labels >= 0], minlength=c)
    sums = np.stack([distances[:, labels == j].sum(1) for j in range(c)], 1)
    partners = np.repeat(counts[None], len(z), 0)
    inside = labels >= 0
    partners[inside, labels[inside]] -= 1
    means = np.where(counts > 0, sums / np.maximum(partners, 1), np.inf)
    return distances, means, counts


def check_forward(z: Array, labels: Array, c: int, result: tuple[Array, Array, Array], rtol: float) -> None:
    own, other, nearest = result
    _, means, _ = mean_distances(z, labels, c)
    inside = labels >= 0
    rows = np.flatnonzero(inside)
    np.testing.assert_allclose(own[inside], means[rows, labels[inside]], rtol=rtol, atol=0)
    means[rows, labels[inside]] = np.inf
    np.testing.assert_allclose(other[inside], means[rows].min(1), rtol=rtol, atol=0)
    np.testing.assert_allclose(means[rows, nearest[inside]], means[rows].min(1), rtol=rtol, atol=0)
    assert (own[~inside] == 0).all() and (other[~inside] == 0).all() and (nearest[~inside] == -1).all()


def check_backward(
    z: Array,
    labels: Array,
    c: int,
    nearest: Array,
    grads: Array,
    dz: Array,
    atol: float,
    rtol: float,
) -> None:
    """``atol`` is relative to sum_v |W_uv| D_uv, the length of the gradient if nothing cancelled."""
    distances, _, counts = mean_distances(z, labels, c)
    inside = np.flatnonzero(labels >= 0)
    coefficients = np.zeros((len(z), c + 1))  # the last column serves outliers
    many = inside[counts[labels[inside]] > 1]
    coefficients[many, labels[many]] = grads[0, many] / (counts[labels[many]] - 1)
    coefficients[inside, nearest[inside]] = grads[1, inside] / counts[nearest[inside]]
    pairs = coefficients[:, labels] + coefficients[:, labels].T
    weights = np.divide(pairs, distances, out=np.zeros_like(pairs), where=distances > 0)
    expected = sum(weights[:, [v]] * (z - z[v]) for v in range(len(z)))
    scale = (np.abs(weights) * distances).sum(1).max()
    np.testing.assert_allclose(dz, expected, rtol=rtol, atol=atol * scale)


def inputs(name: str, dtype: str) -> tuple[torch.Tensor, torch.Tensor, int, torch.Tensor, torch.Tensor]:
    """z, labels, number of clusters, grad_own, grad_other."""
    z, labels, c = case(name)
    real = torch.float64 if dtype == "float64" else torch.float32
    grads = torch.randn(2, len(z), dtype=real, generator=torch.Generator().manual_seed(5))
    return torch.from_numpy(z).to(getattr(torch, dtype)), torch.from_numpy(labels), c, *grads


def same_bits(a: tuple[torch.Tensor, ...], b: tuple[torch.Tensor, ...]) -> bool:
    return all(x.dtype == y.dtype and x.shape == y.shape and x.equal(y) for x, y in zip(a, b, strict=True))


@needs_nvcc
@pytest.mark.parametrize("file", FILES)
def test_no_spills(file: str) -> None:
    report = compiled()[file].report
    for architecture in ARCHITECTURES:
        kernels = re.findall(rf"Compiling entry function '(\w+)' for 'sm_{architecture}'", report)
        assert any("_pair_kernel" in k for k in kernels), f"no kernels for sm_{architecture}"
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert spills and all(s == ("0", "0") for s in spills)


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in CASES),
        *((name, dtype) for dtype in ("float64", "float16", "bfloat16") for name in ("overlapping", "outliers")),
    ],
)
def test_ptx(name: str, dtype: str) -> None:
    prepare(dtype)
    z, labels, c, *grads = inputs(name, dtype)
    runs = []
    for order in ORDERS:
        device = Device(order)
        result = device.silhouette(z, labels, c)
        runs.append((*result, device.silhouette_backward(*grads, z, labels, result[2], c)))
    assert same_bits(runs[0], runs[1]) and same_bits(runs[0], runs[2]), "thread order changes the bits"
    check(z, labels, c, grads, runs[0], 1e-13 if dtype == "float64" else 2e-6)
    if name == "ties":
        assert runs[0][2].tolist() == [1, 1, 2, 2, 2, 2, 1, 1]


def check(
    z: torch.Tensor,
    labels: torch.Tensor,
    c: int,
    grads: list[torch.Tensor],
    run: tuple[torch.Tensor, ...],
    precision: float,
) -> None:
    own, other, nearest, dz = (t.numpy() if t.dtype != torch.bfloat16 else t.double().numpy() for t in run)
    exact, y = z.double().numpy(), labels.numpy()
    check_forward(exact, y, c, (own, other, nearest), precision)
    rounding = ROUNDING.get(str(z.dtype).removeprefix("torch."), 0.0)
    check_backward(exact, y, c, nearest, torch.stack(grads).numpy(), dz, precision, rounding)


@needs_nvcc
@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e17])
@pytest.mark.parametrize("name", CASES)
def test_pruned_equals_unpruned(name: str, scale: float) -> None:
    """Bit by bit, also where squares of distances underflow or come near the largest number."""
    prepare("float32")
    z, labels, c = case(name)
    points, y = torch.from_numpy(z * scale).float(), torch.from_numpy(labels)
    device, full = Device(), Device(prune=False)
    assert same_bits(device.silhouette(points, y, c), full.silhouette(points, y, c))
    inside = labels[labels >= 0]
    assert full.candidates == len(inside) * len(np.unique(inside))
    if name == "separated" and scale == 1:
        assert device.candidates < 0.3 * full.candidates


@needs_nvcc
def test_unknown_number_of_clusters_and_strides() -> None:
    prepare("float32")
    z, labels, c, *grads = inputs("outliers", "float32")
    expected = Device().silhouette(z, labels, c)
    dz = Device().silhouette_backward(*grads, z, labels, expected[2], c)
    wide = torch.full((2 * len(z), 2 * z.shape[1]), torch.nan)
    wide[::2, ::2] = z
    slow = torch.stack([labels, labels], 1)[:, 0]
    spread = [g.repeat_interleave(2)[::2] for g in grads]
    for points in (wide[::2, ::2], z.T.contiguous().T):
        got = Device().silhouette(points, slow, 0)
        again = Device().silhouette_backward(*spread, points, slow, got[2], 0)
        assert same_bits((*got, again), (*expected, dz))


@needs_nvcc
def test_several_passes() -> None:
    prepare("float32")
    z, labels = blobs(1801, 600, 2, 0.1)
    points, y = torch.from_numpy(z).float(), torch.from_numpy(labels)
    device = Device()
    result = device.silhouette(points, y, 600)
    assert device.launches.count("silhouette_fwd_pair_kernel") == 2
    own, other, nearest = (t.numpy() for t in result)
    check_forward(points.double().numpy(), labels, 600, (own, other, nearest), 2e-6)


@needs_nvcc
@pytest.mark.parametrize("labels", [[-1, -1, -1], [1, 1, 1], [-1, 0, -1]], ids=str)
def test_no_other_cluster(labels: list[int]) -> None:
    prepare("float32")
    z, y = torch.arange(6.0).reshape(3, 2), torch.tensor(labels)
    own, other, nearest = Device().silhouette(z, y, 0)
    # Points on a line, 2 sqrt(2) apart.
    expected = torch.tensor([3.0, 2.0, 3.0]) * 2**0.5 if labels[0] == 1 else torch.zeros(3)
    torch.testing.assert_close(own, expected)
    assert other.tolist() == [0, 0, 0] and nearest.tolist() == [-1, -1, -1]
    ones = torch.ones(3)
    dz = Device().silhouette_backward(ones, ones, z, y, nearest, 0)
    assert dz.isfinite().all() and (labels[0] == 1 or (dz == 0).all())


@needs_nvcc
def test_wrong_arguments() -> None:
    z, labels, c, *grads = inputs("ties", "float32")
    nearest = torch.zeros(len(z), dtype=torch.int32)
    with pytest.raises(RuntimeError, match="labels has the wrong dtype"):
        Device().silhouette(z, labels.int(), c)
    with pytest.raises(RuntimeError, match="at least one column"):
        Device().silhouette(z[:, :0], labels, c)
    with pytest.raises(RuntimeError, match=r"grad_other must be of shape \(8,\)"):
        Device().silhouette_backward(grads[0], grads[1][:3], z, labels, nearest, c)
    assert all(len(t) == 0 for t in Device().silhouette(z[:0], labels[:0], c))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*CASES, "large"])
def test_gpu(name: str, dtype: str) -> None:
    z, labels, c, *grads = inputs(name, dtype)
    points, y = z.cuda(), labels.cuda()
    upstream = [g.cuda() for g in grads]
    ops = torch.ops.carlg_kernels
    runs = []
    for num_clusters in (0, c, c):
        # The first run loads the kernels and reads the number of clusters; the others must not wait for the device.
        torch.cuda.set_sync_debug_mode("error" if num_clusters else "default")
        try:
            result = ops.silhouette(points, y, num_clusters)
            dz = ops.silhouette_backward(*upstream, points, y, result[2], num_clusters)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        runs.append(tuple(t.cpu() for t in (*result, dz)))
    assert same_bits(runs[0], runs[1]) and same_bits(runs[0], runs[2])
    check(z, labels, c, grads, runs[0], 1e-13 if dtype == "float64" else 4e-6)
