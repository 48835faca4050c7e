"""The CUDA kernels of the exact silhouette: compiled without spills, and executed, without a GPU on PTX and with one where there is one."""

import importlib.util
import re
import shutil

import numpy as np
import pytest
import torch
from cuda_silhouette import (
    ARCHITECTURES,
    FILES,
    SOURCES,
    Array,
    Device,
    compiled,
    prepare,
    silhouette,
    silhouette_backward,
)

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
needs_ptxrun = pytest.mark.skipif(
    importlib.util.find_spec("ptxrun") is None, reason="tests/ptxrun is not in this tree"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

ORDERS = (0, -1, 7)
EPSILON = {"float16": 2**-11, "bfloat16": 2**-8}


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
    if (
        name == "wide"
    ):  # more coordinates than a backward block keeps, more clusters than a tile has columns
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
    assert (
        name == "ties"
    )  # clusters 1 and 3 mirror each other about cluster 2; all distances are exact
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


def check_forward(
    z: Array, labels: Array, c: int, result: tuple[Array, Array, Array], rtol: float
) -> None:
    own, other, nearest = result
    _, means, _ = mean_distances(z, labels, c)
    inside = labels >= 0
    rows = np.flatnonzero(inside)
    np.testing.assert_allclose(own[inside], means[rows, labels[inside]], rtol=rtol, atol=0)
    means[rows, labels[inside]] = np.inf
    np.testing.assert_allclose(other[inside], means[rows].min(1), rtol=rtol, atol=0)
    np.testing.assert_allclose(means[rows, nearest[inside]], means[rows].min(1), rtol=rtol, atol=0)
    assert (
        (own[~inside] == 0).all() and (other[~inside] == 0).all() and (nearest[~inside] == -1).all()
    )


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


def rounded(z: Array, dtype: str) -> tuple[Array, Array]:
    """The points as stored (bfloat16 as its bits), and their values in float64."""
    if dtype == "bfloat16":
        stored = torch.from_numpy(z).to(torch.bfloat16)
        return stored.view(torch.int16).numpy(), stored.double().numpy()
    stored = z.astype(dtype)
    return stored, stored.astype(float)


def values(dz: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        return torch.from_numpy(dz).view(torch.bfloat16).double().numpy()
    return dz.astype(float)


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
@needs_ptxrun
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in CASES),
        *(
            (name, dtype)
            for dtype in ("float64", "float16", "bfloat16")
            for name in ("overlapping", "outliers")
        ),
    ],
)
def test_ptx(name: str, dtype: str) -> None:
    prepare(dtype)
    z, labels, c = case(name)
    stored, exact = rounded(z, dtype)
    n, d = z.shape
    grads = (
        np.random.default_rng(5)
        .standard_normal((2, n))
        .astype("float64" if dtype == "float64" else "float32")
    )
    first = None
    for order in ORDERS:
        device = Device(order)
        result = silhouette(device, stored, dtype, (d, 1), labels, n, d, c)
        dz = silhouette_backward(device, *grads, stored, dtype, (d, 1), labels, result[2], n, d, c)
        if first is None:
            first = (*result, dz)
            precision = 1e-13 if dtype == "float64" else 2e-6
            check_forward(exact, labels, c, result, precision)
            check_backward(
                exact,
                labels,
                c,
                result[2],
                grads,
                values(dz, dtype),
                precision,
                EPSILON.get(dtype, 0.0),
            )
        for a, b in zip(first, (*result, dz), strict=True):
            assert a.tobytes() == b.tobytes(), f"thread order {order} changes the bits"
    if name == "ties":
        assert first is not None and first[2].tolist() == [1, 1, 2, 2, 2, 2, 1, 1]


@needs_nvcc
@needs_ptxrun
@pytest.mark.parametrize("scale", [1.0, 1e-19, 1e17])
@pytest.mark.parametrize("name", CASES)
def test_pruned_equals_unpruned(name: str, scale: float) -> None:
    """Bit by bit, also where squares of distances underflow or come near the largest number."""
    prepare("float32")
    z, labels, c = case(name)
    z = z * scale
    stored, n, d = z.astype("float32"), *z.shape
    device, full = Device(), Device()
    pruned = silhouette(device, stored, "float32", (d, 1), labels, n, d, c)
    unpruned = silhouette(full, stored, "float32", (d, 1), labels, n, d, c, prune=False)
    for a, b in zip(pruned, unpruned, strict=True):
        assert a.tobytes() == b.tobytes()
    assert full.listed == (labels >= 0).sum() * len(np.unique(labels[labels >= 0]))
    if name == "separated" and scale == 1:
        assert device.listed < 0.3 * full.listed


@needs_nvcc
@needs_ptxrun
def test_several_passes_and_strides() -> None:
    prepare("float32")
    z, labels, c = case("outliers")
    stored, n, d = z.astype("float32"), *z.shape
    whole = silhouette(Device(), stored, "float32", (d, 1), labels, n, d, c)
    grads = np.ones((2, n), np.float32)
    dz = silhouette_backward(Device(), *grads, stored, "float32", (d, 1), labels, whole[2], n, d, c)
    transposed = np.ascontiguousarray(stored.T)
    passes = silhouette(Device(-1), transposed, "float32", (1, n), labels, n, d, c, points=50)
    again = silhouette_backward(
        Device(), *grads, transposed, "float32", (1, n), labels, passes[2], n, d, c
    )
    for a, b in zip((*whole, dz), (*passes, again), strict=True):
        assert a.tobytes() == b.tobytes()


@needs_nvcc
@needs_ptxrun
def test_driver_launches_what_the_host_launches() -> None:
    prepare("float32")
    z, labels, c = case("duplicates")
    stored, n, d = z.astype("float32"), *z.shape
    forward, backward = Device(), Device()
    nearest = silhouette(forward, stored, "float32", (d, 1), labels, n, d, c)[2]
    ones = np.ones(n, np.float32)
    silhouette_backward(backward, ones, ones, stored, "float32", (d, 1), labels, nearest, n, d, c)
    for device, file in ((forward, "silhouette_forward"), (backward, "silhouette_backward")):
        launched = [k for k in device.launches if k != "group_offsets_kernel"]
        source = (SOURCES / f"{file}.cu").read_text()
        # Definition order in the file is calling order backwards: inner functions come first.
        assert sorted(re.findall(r"device\.launch\((\w+)", source)) == sorted(launched)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*CASES, "large"])
def test_gpu(name: str, dtype: str) -> None:
    z, labels, c = (*blobs(3001, 31, 256, 0.5), 31) if name == "large" else case(name)
    points = torch.from_numpy(z).to(getattr(torch, dtype)).cuda()
    y = torch.from_numpy(labels).cuda()
    exact = points.double().cpu().numpy()
    real = torch.float64 if dtype == "float64" else torch.float32
    grads = torch.randn(2, len(z), dtype=real)
    ops = torch.ops.carlg_kernels
    runs = []
    ops.silhouette(points, y, c)
    for num_clusters in (c, c, 0):
        torch.cuda.set_sync_debug_mode("error" if num_clusters else "default")
        try:
            result = ops.silhouette(points, y, num_clusters)
            dz = ops.silhouette_backward(
                grads[0].cuda(), grads[1].cuda(), points, y, result[2], num_clusters
            )
        finally:
            torch.cuda.set_sync_debug_mode("default")
        runs.append([t.cpu() for t in (*result, dz)])
    for a, b, unknown in zip(*runs, strict=True):
        assert torch.equal(a, b) and torch.equal(a, unknown)
    own, other, nearest, dz = runs[0]
    precision = 1e-13 if dtype == "float64" else 4e-6
    check_forward(exact, labels, c, (own.numpy(), other.numpy(), nearest.numpy()), precision)
    check_backward(
        exact,
        labels,
        c,
        nearest.numpy(),
        grads.numpy(),
        dz.double().numpy(),
        precision,
        EPSILON.get(dtype, 0.0),
    )
