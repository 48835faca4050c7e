import os
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import carlg_kernels as ck
from carlg_kernels.reference import silhouette as reference
from tests import definitions
from tests.helpers import TOLERANCE, assert_close, clustered, compare, dtypes, shapes, value_and_gradients

ops = torch.ops.carlg_kernels
METRICS = ["euclidean", "sqeuclidean", "cosine"]


def some_rows(z, labels, nearest, p, q, rows):
    """own, other and the gradient of sum_u p_u own_u + q_u other_u at some points, in float64 from the definition."""
    z, p, q, nearest = z.double(), p.double(), q.double(), nearest.long()
    scored = labels >= 0
    size = torch.bincount(labels[scored])
    d = torch.cdist(z[rows], z, compute_mode="donot_use_mm_for_euclid_dist")
    sums = d.new_zeros(len(rows), len(size)).index_add_(1, labels[scored], d[:, scored])
    mine = labels[rows].clamp(min=0)[:, None]
    own = sums.gather(1, mine)[:, 0] / (size[mine[:, 0]] - 1).clamp(min=1)
    other = (sums / size).masked_fill(size == 0, torch.inf).scatter(1, mine, torch.inf).min(1).values
    a = torch.where(scored & (size[labels] > 1), p / (size[labels] - 1).clamp(min=1), 0)
    b = torch.where(scored, q / size[nearest], 0)
    same = (labels[rows, None] == labels) & scored
    weight = same * (a[rows, None] + a) + (nearest[rows, None] == labels) * b[rows, None] + (labels[rows, None] == nearest) * b
    weight = torch.where((d > 0) & scored & scored[rows, None], weight / d.clamp(min=1e-300), 0)
    gradient = weight.sum(1, keepdim=True) * z[rows] - weight @ z
    keep = scored[rows]
    return own * keep, torch.where(keep, other, 0), gradient


@shapes
@dtypes
def test_value_and_gradient(shape, dtype):
    z, labels = clustered(*shape)
    compare("index", lambda x: definitions.silhouette(x, labels).sum(), lambda x: ck.silhouette(x, labels, reduction="sum"), dtype, z)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spread", [0.1, 0.7, 4.0])
def test_per_point_metrics_and_separation(metric, spread):
    z, labels = clustered(501, 11, 24, spread=spread)
    if metric == "cosine":
        z[17] = 0  # at distance 1 from everything
    for dtype in (torch.float32, torch.float64):
        compare(
            metric,
            lambda x: definitions.silhouette(x, labels, metric),
            lambda x: ck.silhouette(x, labels, metric, "none"),
            dtype,
            z,
        )


@pytest.mark.parametrize("shape", [(5_001, 2, 19), (4_003, 1_700, 6), (3_100, 3, 260)], ids=["two large", "many small", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_large_and_small_clusters(shape, dtype):
    """Clusters cut into several tasks, far more clusters than any tile, and d beyond one panel: against the reference in float64."""
    z, labels = clustered(*shape, dtype)
    p, q = torch.linspace(-1, 1, len(z), dtype=dtype), torch.linspace(0.3, 2, len(z), dtype=dtype)
    own, other, nearest = ops.silhouette(z, labels, shape[1])
    rows = torch.randperm(len(z))[:150].sort().values
    want_own, want_other, want = some_rows(z, labels, nearest, p, q, rows)
    assert_close("own", want_own, own[rows], TOLERANCE[dtype])
    assert_close("other", want_other, other[rows], TOLERANCE[dtype])
    dz = ops.silhouette_backward(p, q, z, labels, nearest, shape[1])
    assert_close("gradient", want, dz[rows], TOLERANCE[dtype])


def test_one_nearest_cluster_for_all():
    """A central cluster that is the rival of thousands of points is cut into row blocks."""
    z = torch.randn(7_000, 3)
    labels = torch.arange(7_000) % 45 + 1
    z += 30 * torch.nn.functional.normalize(torch.randn(46, 3), dim=1)[labels]
    z[:300], labels[:300] = torch.randn(300, 3), 0
    own, other, nearest = ops.silhouette(z, labels, 46)
    forced = torch.where(labels == 0, nearest, 0).int()
    p, q = torch.rand(7_000), torch.rand(7_000)
    rows = torch.cat((torch.arange(20), torch.randint(300, 7_000, (80,))))
    want_own, _, want = some_rows(z, labels, forced, p, q, rows)
    assert_close("own", want_own, own[rows], 2e-5)
    assert_close("gradient", want, ops.silhouette_backward(p, q, z, labels, forced, 46)[rows], 2e-5)


@pytest.mark.parametrize("case", ["offset", "tight", "duplicates", "nested"])
def test_digits_survive(case):
    """Tight clusters far from the origin, close pairs and coinciding points, against float64 of the same rounded input."""
    z, labels = torch.randn(400, 8), torch.arange(400) % 4
    if case == "offset":
        z = z * 1e-3 + 5
    elif case == "tight":
        z = torch.nn.functional.normalize(torch.randn(4, 8), dim=1)[labels] + 1e-5 * z
    elif case == "duplicates":
        z = z[torch.randint(0, 25, (400,))]
    else:
        z = torch.where(torch.rand(400, 1) < 0.5, 1e-4 * z, z)
    compare(
        "per point", lambda x: definitions.silhouette(x, labels), lambda x: ck.silhouette(x, labels, reduction="none"), torch.float32, z
    )


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(4, 120),
    st.integers(1, 9),
    st.sampled_from(["grid", "line", "scales", "copies", "far"]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_pruning_never_drops_the_winner(seed, n, d, kind, dtype):
    g = torch.Generator().manual_seed(seed)
    c = int(torch.randint(2, max(3, n // 2), (1,), generator=g))
    labels = torch.randint(-1, c, (n,), generator=g)
    labels[:2] = torch.tensor([0, 1])
    z = torch.randn(n, d, generator=g, dtype=dtype)
    if kind == "grid":
        z = torch.randint(-2, 3, (n, d), generator=g).to(dtype)
    elif kind == "line":
        z = z[:, :1].expand(n, d).clone()
    elif kind == "scales":
        z *= 10.0 ** torch.randint(-6, 7, (c + 1, 1), generator=g)[labels]
    elif kind == "copies":
        z = z[torch.randint(0, min(n, 5), (n,), generator=g)]
    elif kind == "far":
        z = z * 1e-3 + 100
    own, other, nearest = ops.silhouette(z, labels, c)
    want_own, want_other, want_nearest = reference.silhouette(z.double(), labels, c)
    ratio = 1e-11 if dtype == torch.float64 else 1e-5
    assert (own - want_own).abs().le(ratio * want_own + 1e-30).all()
    assert (other - want_other).abs().le(ratio * want_other + 1e-30).all()
    assert torch.equal(nearest < 0, want_nearest < 0)
    # where the indices differ, the two clusters tie to within the rounding that was just allowed
    differ = nearest != want_nearest
    if kind in ("grid", "copies") and dtype == torch.float64:
        assert differ.double().mean() < 0.5


def test_ties_go_to_the_lowest_index():
    z = torch.tensor([[0.0], [0.0], [1.0], [1.0], [-1.0], [-1.0], [5.0], [5.0]])
    nearest = ck.silhouette_parts(z, torch.tensor([5, 5, 4, 4, 2, 2, 9, 9])).nearest
    assert nearest[:2].tolist() == [2, 2]


def test_gaps_singletons_outliers_and_parts():
    z, labels = clustered(200, 6, 5, torch.float64)
    spread_out = torch.where(labels >= 0, labels * 1_000_003, -1)
    near, far = ck.silhouette_parts(z, labels), ck.silhouette_parts(z, spread_out)
    assert torch.equal(near.own, far.own) and torch.equal(near.other, far.other)
    assert torch.equal(torch.where(near.nearest >= 0, near.nearest * 1_000_003, -1), far.nearest)
    out, alone = labels < 0, labels == 5
    assert (near.own[out] == 0).all() and (near.other[out] == 0).all() and (near.nearest[out] == -1).all()
    assert alone.sum() == 1 and near.own[alone].item() == 0 and near.other[alone].item() > 0
    value, (grad,) = value_and_gradients(lambda x: ck.silhouette(x, labels, reduction="none"), z)
    assert value[out].item() == 0 and value[alone].item() == 0 and (grad[out] == 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_collapsed_points_have_zero_gradient(metric):
    z = torch.ones(8, 3, requires_grad=True)
    value = ck.silhouette(z, torch.arange(8) % 2, metric)
    value.backward()
    assert value.item() == 0 and (z.grad == 0).all()


def test_strides():
    z, labels = clustered(301, 7, 20)
    want, (want_grad,) = value_and_gradients(lambda x: ck.silhouette(x, labels), z)
    for view in (lambda x: x.T.contiguous().T, lambda x: torch.stack((x, x), 2)[..., 0], lambda x: x.repeat(1, 2)[:, :20]):
        leaf = view(z).detach().requires_grad_()
        value = ck.silhouette(leaf, labels.repeat_interleave(2)[::2])
        value.backward(torch.tensor(3.0))
        assert_close("value", want, value, 1e-6)
        assert_close("gradient", want_grad, leaf.grad, 1e-5)


@pytest.mark.parametrize("shape", [(3_007, 12, 40), (3_500, 2, 12), (800, 300, 7)], ids=["middle", "large", "small"])
@pytest.mark.parametrize("spread", [0.2, 5.0], ids=["separated", "overlapping"])
def test_same_bits_for_any_number_of_threads(shape, spread, threads):
    z, labels = clustered(*shape, spread=spread)
    results = []
    for count in (1, 2, 3):
        threads(count)
        results.append(value_and_gradients(lambda x: ck.silhouette(x, labels, reduction="none"), z))
    for value, (grad,) in results[1:]:
        assert torch.equal(value, results[0][0]) and torch.equal(grad, results[0][1][0])


def test_invariances():
    """Translation, rotation and scale leave the silhouette alone, so sum_u grad_u = 0 and sum_u z_u . grad_u = 0."""
    z, labels = clustered(300, 6, 9, torch.float64)
    value, (grad,) = value_and_gradients(lambda x: ck.silhouette(x, labels), z)
    q, _ = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64))
    assert ck.silhouette(3 * z @ q + 2, labels).item() == pytest.approx(value.item(), abs=1e-12)
    assert grad.sum(0).abs().max() < 1e-12 and abs((z * grad).sum()) < 1e-12


def test_pairs_are_pruned_and_used_once():
    if not hasattr(ops, "take_pairs_computed"):
        pytest.skip("the compiled kernels are not loaded")
    for spread, most in ((0.1, 0.2), (6.0, 0.51)):
        z, labels = clustered(4_000, 20, 64, spread=spread)
        ops.take_pairs_computed()
        ck.silhouette(z, labels)
        assert ops.take_pairs_computed() < most * len(z) ** 2
    leaf = z.requires_grad_()
    value = ck.silhouette(leaf, labels)
    ops.take_pairs_computed()
    value.backward()
    assert ops.take_pairs_computed() < 0.2 * len(z) ** 2


def test_progress_is_reported_and_its_errors_are_raised():
    z, labels = torch.randn(9_000, 128), torch.arange(9_000) % 2
    seen = []
    want = ck.silhouette(z, labels)
    assert torch.equal(ck.silhouette(z, labels, progress=seen.append), want)
    assert seen[-1] == 1.0 and seen == sorted(seen) and all(0 <= f <= 1 for f in seen)

    def stop(fraction):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        ck.silhouette(z, labels, progress=stop)
    assert torch.equal(ck.silhouette(z, labels), want)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_interruptible():
    program = (
        "import os, signal, threading, time, torch, carlg_kernels as ck\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a job started in the background inherits 'ignore'\n"
        "z, y = torch.randn(50_000, 256), torch.arange(50_000) % 2\n"
        f"threading.Timer(1.0, os.kill, (os.getpid(), {int(signal.SIGINT)})).start()\n"
        "start = time.monotonic()\n"
        "try:\n    ck.silhouette(z, y)\n"
        "except KeyboardInterrupt:\n    print('STOPPED', time.monotonic() - start)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "STOPPED" in done.stdout, done.stdout + done.stderr[-500:]
    assert float(done.stdout.split()[1]) < 10


def test_loss_module():
    z, labels = clustered(200, 4, 6)
    s = ck.silhouette(z, labels)
    assert ck.nn.SilhouetteLoss(target=0.9)(z, labels).item() == pytest.approx((0.9 - s).abs().item())
    assert ck.nn.SilhouetteLoss(target=None)(z, labels).item() == pytest.approx(-s.item())
    cosine = ck.nn.SilhouetteLoss(0.5, metric="cosine")(z, labels)
    assert cosine.item() == pytest.approx(abs(0.5 - ck.silhouette(z, labels, "cosine").item()))
    with pytest.raises(ValueError, match="1 clusters of 200 points"):
        ck.nn.SilhouetteLoss()(z, labels * 0)
    leaf = z.requires_grad_()
    zero = ck.nn.SilhouetteLoss(on_degenerate="zero")(leaf, labels * 0)
    zero.backward()
    assert zero.item() == 0 and (leaf.grad == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: ck.silhouette(z, y, metric="l1"), "metric must be one of 'euclidean'"),
        (lambda z, y: ck.silhouette(z, y, reduction="max"), "reduction must be one of"),
        (lambda z, y: ck.silhouette(z, y * 0), "labels must be .* got 1 clusters of 50 points"),
        (lambda z, y: ck.silhouette(z * float("nan"), y), "z must be finite, got 200 NaN"),
        (lambda z, y: ck.silhouette(z, y, approximate=1.5), r"approximate must be a number in \(0, 1\), got 1.5"),
        (lambda z, y: ck.silhouette(z, y, "cosine", approximate=0.1), "approximate must be None with metric 'cosine'"),
        (lambda z, y: ck.silhouette_parts(z, y[:-1]), r"labels must be int64 of shape \(50,\), got int64 \(49,\)"),
        (lambda z, y: ck.margin(z, torch.zeros(3, 4, dtype=torch.int64)), r"edge_index must be of shape \(2, edges\), got int64 \(3, 4\)"),
        (lambda z, y: ck.margin(z, torch.tensor([[0], [50]])), r"edge_index must be in \[0, 50\), the rows of z, got an index 50"),
        (lambda z, y: ck.mean_silhouette(z, torch.arange(50)), "labels must be .* got 50 clusters of 50 points"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(50, 4), torch.arange(50) % 3)
