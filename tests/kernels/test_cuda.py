"""The kernels on a real GPU: results, no host synchronisation, CUDA graphs."""

import pathlib
import sys

import pytest
import torch

pytest.importorskip("triton")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases  # noqa: E402

import carlg_kernels as ck  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False"),
]
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_matches_reference(case: cases.Case, dtype: torch.dtype) -> None:
    cases.run(case, dtype, "cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(34493, 100, 256), (70001, 1001, 64)], ids=str)
def test_large(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, c, d = sizes
    z, labels, centers = cases.points(n, c, d, dtype, "cuda")
    got = ck.assign(z, centers)
    table = torch.cdist(z.double(), centers.double())
    want = table.topk(2, largest=False).values.sort().values
    torch.testing.assert_close(got.distances.double(), want[:, 0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.second_distances.double(), want[:, 1], rtol=1e-5, atol=1e-5)


def step(z: torch.Tensor, labels: torch.Tensor, clusters: int) -> torch.Tensor:
    """Every index with labels, and its gradient."""
    value = ck.simplified_silhouette(z, labels=labels, num_clusters=clusters)
    value = value + ck.variance_ratio(z, labels, num_clusters=clusters)
    value = value + ck.davies_bouldin(z, labels, num_clusters=clusters)
    return torch.autograd.grad(value, z)[0]


def test_no_synchronisation() -> None:
    z, labels, centers = cases.points(3001, 17, 64, torch.float32, "cuda")
    z.requires_grad_()
    # The first call compiles and loads the kernels.
    step(z, labels, 17)
    ck.assign(z, centers)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(z, labels, 17)
        ck.assign(z, centers)
        cases.launcher("lloyd").lloyd_step(z.detach(), centers)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_cuda_graph() -> None:
    z, labels, _ = cases.points(3001, 17, 64, torch.float32, "cuda")
    z.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(z, labels, 17)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = step(z, labels, 17)
    for _ in range(2):
        with torch.no_grad():
            z.add_(torch.randn_like(z))
        graph.replay()
        assert torch.equal(gradient, step(z, labels, 17))


def test_same_bits_every_time() -> None:
    z, labels, _ = cases.points(34493, 100, 256, torch.float32, "cuda")
    z.requires_grad_()
    first = step(z, labels, 100)
    assert all(torch.equal(first, step(z, labels, 100)) for _ in range(3))


@pytest.mark.parametrize("name", ["simplified_silhouette", "variance_ratio", "davies_bouldin"])
def test_two_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two kernels start in a forward and two in a backward."""
    # Filling fresh tensors with NaN, as the tests do, is a launch of its own.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    z, labels, _ = cases.points(3001, 17, 64, torch.float32, "cuda")
    z.requires_grad_()
    index = getattr(ck, name)
    index(z, labels=labels, num_clusters=17).backward()
    torch.cuda.synchronize()
    for backward in (False, True):
        value = index(z, labels=labels, num_clusters=17)
        gradient = torch.ones_like(value)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            if backward:
                torch.autograd.grad(value, z, gradient)
            else:
                index(z, labels=labels, num_clusters=17)
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.name.endswith("_kernel") or "elementwise" in event.name]
        assert 1 <= len(kernels) <= 2, [event.name for event in kernels]
