"""Input that rounding, overflow or NaN could spoil: the result is right to a few digits less than the dtype, or NaN, never silently wrong."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import reference
from carlg_kernels.ops.unit_rows import unit_rows
from carlg_kernels.reference import davies_bouldin, simplified_silhouette, variance_ratio  # noqa: F401
from tests.helpers import assert_close, value_and_gradients

N, C, D = 1200, 6, 9


def _data(n=N, d=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=g)
    centres = 2 * torch.randn(C, d, generator=g)
    return centres[labels] + torch.randn(n, d, generator=g), labels, centres


def _op(name, *arguments):
    """The compiled operator and the reference, as functions of z with a gradient in z."""

    def compiled(z):
        return getattr(torch.ops.carlg_kernels, name)(z, *arguments)[0]

    class Reference(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            value, *saved = getattr(getattr(reference, name), name)(z, *arguments)
            ctx.z, ctx.saved = z.detach(), saved
            return value

        @staticmethod
        def backward(ctx, grad):
            backward = getattr(getattr(reference, name), f"{name}_backward")
            if name == "davies_bouldin":
                return backward(grad, ctx.z, arguments[0], *ctx.saved)
            if name == "variance_ratio":
                labels, centroids, _, distance = arguments
                means, *rest = ctx.saved
                tied = centroids is None
                return backward(grad, ctx.z, labels, means if tied else centroids, *rest, tied, distance, False)[0]
            *saved, means, counts, sums = ctx.saved
            centroids = arguments[1]
            tied = centroids is None
            return backward(grad, ctx.z, *saved, means if tied else centroids, counts, sums, tied, arguments[3], False)[0]

    return {"compiled": compiled, "reference": Reference.apply}


def _cases(labels, centroids):
    c = len(centroids)
    return {
        "silhouette by labels": _op("simplified_silhouette", labels, None, c, "mean", True, True),
        "silhouette by centroids": _op("simplified_silhouette", None, centroids, c, "mean", True, True),
        "silhouette by both": _op("simplified_silhouette", labels, centroids, c, "sum", True, True),
        "variance ratio": _op("variance_ratio", labels, None, c, "sqeuclidean"),
        "variance ratio, unsquared": _op("variance_ratio", labels, None, c, "euclidean"),
        "variance ratio by centroids": _op("variance_ratio", labels, centroids, c, "sqeuclidean"),
        "davies-bouldin": _op("davies_bouldin", labels, c),
    }


CASES = list(_cases(torch.zeros(3).long(), torch.zeros(2, 2)))
backends = pytest.mark.parametrize("backend", ["compiled", "reference"])
cases = pytest.mark.parametrize("case", CASES)


@backends
@cases
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("n", [60, 12000])
def test_one_bad_entry_makes_the_index_nan(case, backend, bad, n):
    z, labels, centroids = _data(n)
    z[7, 2] = bad
    value, (grad,) = value_and_gradients(_cases(labels, centroids)[case][backend], z)
    assert value.isnan() and grad[7].isnan().all()


@backends
@cases
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_all_bad(case, backend, bad):
    z, labels, centroids = _data(60)
    value, (grad,) = value_and_gradients(_cases(labels, centroids)[case][backend], torch.full_like(z, bad))
    assert value.isnan() and grad.isnan().all()


@pytest.mark.parametrize("clusters", [2, 5])
def test_a_bad_row_spoils_itself_where_centroids_are_given(clusters):
    z, _, centroids = _data(200)
    bad = z.clone()
    bad[7, 2] = torch.nan
    want, (want_grad,) = value_and_gradients(lambda x: ck.simplified_silhouette(x, centroids[:clusters], reduction="none"), z)
    got, (grad,) = value_and_gradients(lambda x: ck.simplified_silhouette(x, centroids[:clusters], reduction="none"), bad)
    others = torch.arange(200) != 7
    assert got[7].isnan() and grad[7].isnan().all()
    assert torch.equal(got[others], want[others]) and torch.equal(grad[others], want_grad[others])


def test_a_singleton_that_is_nan_is_not_zero():
    z, labels, _ = _data(60)
    labels[7] = C
    z[7] = torch.nan
    assert ck.simplified_silhouette(z, labels=labels, reduction="none")[7].isnan()


def test_bad_outliers_are_left_out():
    z, labels, _ = _data(60)
    labels[7] = -1
    bad = z.clone()
    bad[7] = torch.nan
    for function in (ck.davies_bouldin, ck.variance_ratio, lambda x, y: ck.simplified_silhouette(x, labels=y)):
        want, (want_grad,) = value_and_gradients(lambda x, f=function: f(x, labels), z)
        got, (grad,) = value_and_gradients(lambda x, f=function: f(x, labels), bad)
        assert torch.equal(got, want) and torch.equal(grad, want_grad)


def test_means_of_bad_rows():
    z, labels, _ = _data(60)
    z[7, 2] = torch.nan
    means, _ = ck.update_centroids(z, labels, C)
    assert means.isnan().nonzero().tolist() == [[int(labels[7]), 2]]


@backends
@cases
@pytest.mark.parametrize("exponent", [-18, -15, -12, -8, 8, 13, 15, 17])
def test_any_scale(case, backend, exponent):
    z, labels, centroids = _data(60)
    z, centroids = z * 10.0**exponent, centroids * 10.0**exponent
    want, (want_grad,) = value_and_gradients(_cases(labels, centroids.double())[case]["reference"], z.double())
    got, (grad,) = value_and_gradients(_cases(labels, centroids)[case][backend], z)
    assert_close("value", want, got, 2e-6)
    # assert_close compares with numbers above 1e-30
    assert_close("gradient", want_grad * 10.0**exponent, grad.double() * 10.0**exponent, 2e-6)


@pytest.mark.parametrize("exponent", [-18, -15, 8, 15, 17])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine"])
def test_any_scale_of_the_exact_silhouette(metric, exponent):
    z, labels, _ = _data(200)
    z = z * 10.0**exponent
    want, (want_grad,) = value_and_gradients(lambda x: ck.silhouette(x, labels, metric), z.double())
    got, (grad,) = value_and_gradients(lambda x: ck.silhouette(x, labels, metric), z)
    assert_close("value", want, got, 2e-6)
    assert_close("gradient", want_grad * 10.0**exponent, grad.double() * 10.0**exponent, 5e-6)


@pytest.mark.parametrize("exponent", [-10, 0, 8, 15, 17])
def test_any_scale_of_unit_rows(exponent):
    z, _, _ = _data(60)
    bias, upstream = torch.ones(D) * 10.0**exponent, torch.randn(60, D)
    z = z * 10.0**exponent
    want, (want_grad,) = value_and_gradients(lambda x: (unit_rows(x, bias.double()) * upstream).sum(), z.double())
    got, (grad,) = value_and_gradients(lambda x: (unit_rows(x, bias) * upstream).sum(), z)
    assert_close("value", want, got, 2e-6)
    assert_close("gradient", want_grad * 10.0**exponent, grad.double() * 10.0**exponent, 2e-6)


def test_scatter_too_large_for_float32():
    z, labels, _ = _data(20000)
    z = z * 1e17
    want, (want_grad,) = value_and_gradients(lambda x: ck.variance_ratio(x, labels), z.double())
    got, (grad,) = value_and_gradients(lambda x: ck.variance_ratio(x, labels), z)
    assert_close("value", want, got, 2e-6)
    assert_close("gradient", want_grad * 1e17, grad.double() * 1e17, 2e-6)


@backends
@pytest.mark.parametrize("case", [case for case in CASES if "silhouette" not in case])
@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_far_from_the_origin(case, backend, offset):
    z, labels, centroids = _data(20000)
    z, centroids = z + offset, centroids + offset
    want, (want_grad,) = value_and_gradients(_cases(labels, centroids.double())[case]["reference"], z.double())
    got, (grad,) = value_and_gradients(_cases(labels, centroids)[case][backend], z)
    assert_close("value", want, got, 2e-6)
    assert_close("gradient", want_grad, grad, 2e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_means_far_from_the_origin_are_rounded_once(weighted):
    z, labels, _ = _data(20000)
    z = z + 1e4
    z[labels == 0] *= -1
    z[0] = 3e6
    weights = torch.rand(20000) if weighted else None
    got, _ = ck.update_centroids(z, labels, C, weights)
    want, _ = ck.update_centroids(z.double(), labels, C, None if weights is None else weights.double())
    ulp = want.abs() * 2.0**-23
    assert ((got - want).abs() <= ulp).all()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"init": "random"}, {"init": "k-means||"}, {"init": torch.ones(3, 8)}, {"batch_size": 30}, {"weights": torch.ones(60)}],
)
def test_kmeans_says_that_squared_distances_overflow(arguments):
    z, _, _ = _data(60)
    with pytest.raises(ValueError, match="z must be small enough for squared distances in float32, at most .* got "):
        ck.kmeans(z * 1e20, 3, **arguments)
    with pytest.raises(ValueError, match="distances_or_z must be small enough"):
        ck.kmedoids(z * 1e20, 3)
    wide = ck.kmeans(z.double() * 1e20, 3, generator=torch.Generator().manual_seed(1))
    near = ck.kmeans(z.double(), 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(wide.labels, near.labels)
