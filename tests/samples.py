"""Arguments for every operator, so that opcheck and the backend tests can enumerate them. A new op adds its samples here."""

import torch

from carlg_kernels.ops.binary_product import encode
from tests.helpers import clustered


def _forward(name, *args):
    return getattr(torch.ops.carlg_kernels, name)(*args)


def samples(dtype: torch.dtype = torch.float32) -> dict[str, list[tuple]]:
    """Argument tuples by op name. Tensors that may need a gradient ask for it."""
    z, labels = clustered(60, 5, 7, dtype)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    centroids = torch.randn(5, 7, dtype=real)
    weights = torch.rand(60, dtype=real) + 0.1
    leaf = z.clone().requires_grad_()
    free = centroids.clone().requires_grad_()
    scalar, per_point = torch.tensor(1.5, dtype=real), torch.rand(60, dtype=real)

    means, counts = _forward("centroid_update", z, labels, None, 5)
    wmeans, mass = _forward("centroid_update", z, labels, weights, 5)
    grad_means = torch.randn(5, 7, dtype=real)
    tied = {r: _forward("simplified_silhouette", z, labels, None, 5, r, True, r != "none")[1:] for r in ("mean", "none")}
    unknown = _forward("simplified_silhouette", z, labels, None, 0, "sum", False, False)[1:]
    given = _forward("simplified_silhouette", z, None, centroids, 5, "mean", True, True)[1:]
    ratio = {k: _forward("variance_ratio", z, labels, None, 5, k)[1:] for k in ("sqeuclidean", "euclidean")}
    ratio_given = _forward("variance_ratio", z, labels, centroids, 5, "sqeuclidean")[1:]
    bouldin = _forward("davies_bouldin", z, labels, 5)[1:]
    nearest = _forward("silhouette", z, labels, 5)[2]
    squared = _forward("squared_silhouette", z, labels, None, 5)[2]
    edges = torch.randint(0, 60, (2, 90))
    return {
        **_clustering_samples(z, leaf, centroids, weights, labels),
        **_layer_samples(real),
        "assign": [(z, centroids), (z, centroids[:1])],
        "centroid_update": [(leaf, labels, None, 5), (leaf, labels, weights.clone().requires_grad_(), 5)],
        "centroid_update_backward": [
            (grad_means, z, labels, None, means, counts, False),
            (grad_means, z, labels, weights, wmeans, mass, True),
        ],
        "simplified_silhouette": [
            (leaf, labels, None, 5, "mean", True, True),
            (leaf, labels, None, 5, "none", True, False),
            (leaf, labels, None, 0, "sum", False, False),
            (leaf, None, free, 5, "mean", True, True),
            (leaf, labels, free, 5, "none", True, False),
        ],
        "simplified_silhouette_backward": [
            (scalar, z, *tied["mean"], True, "mean", False),
            (per_point, z, *tied["none"], True, "none", False),
            (scalar, z, *unknown, True, "sum", False),
            (scalar, z, *given[:4], centroids, *given[5:], False, "mean", True),
        ],
        "variance_ratio": [
            (leaf, labels, None, 5, "sqeuclidean"),
            (leaf, labels, None, 0, "euclidean"),
            (leaf, labels, free, 5, "sqeuclidean"),
            (leaf, labels, free, 5, "euclidean"),
        ],
        "variance_ratio_backward": [
            (scalar, z, labels, *ratio["sqeuclidean"], True, "sqeuclidean", False),
            (scalar, z, labels, *ratio["euclidean"], True, "euclidean", False),
            (scalar, z, labels, centroids, *ratio_given[1:], False, "sqeuclidean", True),
        ],
        "davies_bouldin": [(leaf, labels, 5), (leaf, labels, 0)],
        "davies_bouldin_backward": [(scalar, z, labels, *bouldin)],
        "silhouette": [(leaf, labels, 5), (leaf, labels, 0)],
        "silhouette_backward": [(per_point, per_point - 0.5, z, labels, nearest, c) for c in (5, 0)],
        "squared_silhouette": [(leaf, labels, None, 5), (leaf, labels, weights, 0)],
        "squared_silhouette_backward": [(per_point, per_point - 0.5, z, labels, squared, 5)],
        "cluster_distances": [(leaf, labels, weights, 5), (leaf, labels, weights, 0)],
        "cluster_distances_backward": [(per_point, z, labels, weights, 5)],
        "edge_distances": [(leaf, edges)],
        "edge_distances_backward": [(torch.rand(90, dtype=real), z, edges)],
    }


def _clustering_samples(z, leaf, centroids, weights, labels) -> dict[str, list[tuple]]:
    n, real = z.shape[0], centroids.dtype
    origin, unknown, bounds = centroids.mean(0), torch.full((n,), -1), torch.zeros(3, n, dtype=real)
    uniforms = torch.rand(3, 4, dtype=torch.float64)
    closest = (z.to(real) - z[0].to(real)).square().sum(1)
    table = torch.cdist(z.to(real), z.to(real), compute_mode="donot_use_mm_for_euclid_dist")
    medoids, everyone = torch.arange(5), torch.arange(n)
    far, nearest = table[:, :5].topk(2, largest=False)
    nearest, far = nearest.T.contiguous(), far.T.contiguous()
    own, other = labels.clamp(min=0), (labels.clamp(min=0) + 1) % 5
    return {
        "assigned_silhouette": [(leaf, centroids, own, other, r) for r in ("mean", "none")],
        "carried_bounds": [(z, z.flip(0), centroids, origin, own, closest.sqrt())],
        "hop_distance": [(torch.randint(9, (2, 14)), 9)],
        "kmeans_plus_plus": [(z, w, origin, uniforms, closest) for w in (None, weights)],
        "kmedoids": [
            (z, weights, everyone, medoids, nearest, far, False, False, 0.0),
            (z, None, everyone, medoids, nearest, far.square(), False, True, 0.01),
            (table, None, everyone, medoids, nearest, far, True, False, 0.0),
        ],
        "lloyd": [(z, w, centroids, centroids, origin, unknown, bounds) for w in (None, weights)],
        "own_distance": [(z, centroids, labels)],
    }


def _layer_samples(dtype: torch.dtype) -> dict[str, list[tuple]]:
    x, grad = torch.randn(9, 6, dtype=dtype), torch.randn(9, 6, dtype=dtype)
    bias, gain, shift = torch.randn(3, 6, dtype=dtype)
    slope, leaf = torch.full((1,), 0.25, dtype=dtype), x.clone().requires_grad_()
    _, sums, moments = _forward("norm_prelu", x, bias, gain, shift, slope, 1e-5)
    _, none, zeros = _forward("norm_prelu", x, bias, None, None, slope, 1e-5)
    unit, inverse = _forward("unit_rows", x, bias, 1e-12)
    pointers, columns = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 8, 1, 2, 8], dtype=torch.int32)
    sparse = pointers, columns, torch.randn(5, dtype=dtype)
    return {
        "norm_prelu": [(leaf, bias, gain, shift, slope, 1e-5), (leaf, bias, None, None, slope, 1e-5)],
        "norm_prelu_backward": [
            (grad, x, bias, gain, shift, slope, sums, moments, 1e-5),
            (grad, x, bias, None, None, slope, none, zeros, 1e-5),
        ],
        "unit_rows": [(leaf, bias, 1e-12)],
        "unit_rows_backward": [(grad, unit, inverse)],
        "dense_product": [(leaf, torch.randn(6, 5, dtype=dtype)), (grad.t(), leaf), (grad, leaf.t()), (leaf[None], grad.t()[None])],
        "strassen_product": [(leaf, torch.randn(6, 5, dtype=dtype)), (grad.t(), leaf), (leaf[None], grad.t()[None])],
        "sparse_product": [(*sparse, x)],
        "binary_product": [(*encode(torch.rand(9, 9) < 0.4), *sparse, False, x), (*encode(torch.rand(4, 3) < 0.4), *sparse, True, x)],
    }
