"""scikit-learn's names and signatures, numpy or torch in, a Python float out, no gradient."""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels import functional, silhouettes
from carlg_kernels._typing import SilhouetteMetric
from carlg_kernels._validation import FLOATS, INTEGERS
from carlg_kernels.reference.common import row_blocks


def as_points(X: Any, name: str = "X") -> Tensor:
    """An array-like as a floating-point tensor; integers become float64."""
    tensor = X.detach() if isinstance(X, Tensor) else torch.as_tensor(_array(X))
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be of shape (n_samples, n_features), got {tuple(tensor.shape)}")
    if 0 in tensor.shape:
        raise ValueError(f"{name} must have at least one sample and one feature, got shape {tuple(tensor.shape)}")
    if tensor.dtype not in FLOATS:
        tensor = tensor.to(torch.float64)
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return tensor


def as_labels(labels: Any, n: int, device: torch.device, name: str = "labels") -> Tensor:
    """Labels of any kind (numbers, strings) as 0..k-1. Unlike the losses, -1 is a cluster like any other, as in scikit-learn."""
    if isinstance(labels, Tensor) and labels.dtype in INTEGERS:
        codes: Tensor = labels.detach().unique(return_inverse=True)[1]
    else:
        import numpy as np

        array = np.asarray(labels)
        if array.ndim != 1:
            raise ValueError(f"{name} must be of shape ({n},), got {array.shape}")
        codes = torch.from_numpy(np.unique(array, return_inverse=True)[1])
    if codes.shape != (n,):
        raise ValueError(f"{name} must be of shape ({n},), got {tuple(codes.shape)}")
    clusters = int(codes.max()) + 1
    if not 1 < clusters < n:
        raise ValueError(f"Number of labels is {clusters}. Valid values are 2 to n_samples - 1 (inclusive)")
    return codes.to(device)


def _array(X: Any) -> Any:
    import numpy as np

    return np.array(X, copy=True) if not hasattr(X, "__array_interface__") else _writable(X)


def _writable(X: Any) -> Any:
    return X if X.flags.writeable and all(s >= 0 for s in X.strides) else X.copy()


_EXACT: dict[str, SilhouetteMetric] = {"euclidean": "euclidean", "l2": "euclidean", "sqeuclidean": "sqeuclidean", "cosine": "cosine"}
# Sparse input is made dense up to this many values; larger input goes to scikit-learn.
_DENSE_VALUES = 1 << 28


def silhouette_samples(X: Any, labels: Any, *, metric: Any = "euclidean", **kwds: Any) -> Any:
    """Silhouette of every point; with a torch tensor in, a tensor out, otherwise a numpy array.

    ``metric`` "euclidean", "sqeuclidean", "cosine" and "precomputed" are computed here, in float64 for float64 input and in float32 for
    float32 and half; any other metric, a callable, or further arguments for one are passed on to scikit-learn.

    Examples
    --------
    >>> ck.metrics.silhouette_samples([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1]).round(3)
    array([0.905, 0.895, 0.895, 0.905])
    """
    sparse = hasattr(X, "toarray")
    too_large = sparse and X.shape[0] * X.shape[1] > _DENSE_VALUES
    if kwds or too_large or not isinstance(metric, str) or metric not in (*_EXACT, "precomputed"):
        return _scikit_learn("silhouette_samples", metric)(X, labels, metric=metric, **kwds)
    z = as_points(X.toarray() if sparse else X)
    codes = as_labels(labels, z.shape[0], z.device)
    if metric == "precomputed":
        values = _precomputed(z, codes, integral=_is_integral(X))
    else:
        values = silhouettes.silhouette(z, codes, metric=_EXACT[metric], reduction="none")
    return values if isinstance(X, Tensor) else values.numpy()


def silhouette_score(
    X: Any,
    labels: Any,
    *,
    metric: Any = "euclidean",
    sample_size: int | None = None,
    random_state: Any = None,
    **kwds: Any,
) -> float:
    """Mean silhouette, of ``sample_size`` random points where that is given; see :func:`silhouette_samples` for the metrics.

    Examples
    --------
    >>> round(ck.metrics.silhouette_score([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1]), 4)
    0.8997
    """
    if sample_size is not None:
        X, labels = _sample(X, labels, metric, sample_size, random_state)
    return float(silhouette_samples(X, labels, metric=metric, **kwds).mean())


def _sample(X: Any, labels: Any, metric: Any, size: int, random_state: Any) -> tuple[Any, Any]:
    """The rows (and columns of a distance matrix) that scikit-learn would draw with the same random state."""
    import numpy as np

    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ValueError(f"sample_size must be an int of at least 1 or None, got {size!r}")
    if isinstance(random_state, np.random.RandomState):
        source = random_state
    else:
        source = np.random.mtrand._rand if random_state is None else np.random.RandomState(random_state)
    if hasattr(X, "toarray"):
        X = X.tocsr()
    elif not isinstance(X, Tensor):
        X = np.asarray(X)
    rows = source.permutation(X.shape[0])[:size]
    on_device = torch.from_numpy(rows)
    X = X[on_device.to(X.device)] if isinstance(X, Tensor) else X[rows]
    if isinstance(metric, str) and metric == "precomputed":
        X = X[:, on_device.to(X.device)] if isinstance(X, Tensor) else X[:, rows]
    if isinstance(labels, Tensor):
        return X, labels[on_device.to(labels.device)]
    return X, np.asarray(labels)[rows]


def _is_integral(X: Any) -> bool:
    import numpy as np

    if isinstance(X, Tensor):
        return not X.is_floating_point()
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X).dtype.kind in "iub"


def _precomputed(distances: Tensor, codes: Tensor, integral: bool) -> Tensor:
    """Silhouettes from a distance matrix, a block of rows at a time."""
    n = codes.shape[0]
    if distances.shape != (n, n):
        raise ValueError(f"X must be a distance matrix of shape ({n}, {n}), got {tuple(distances.shape)}")
    largest = float(distances.diagonal().abs().max())
    if largest > (0 if integral else 100 * torch.finfo(distances.dtype).eps):
        raise ValueError("The precomputed distance matrix contains non-zero elements on the diagonal. Use np.fill_diagonal(X, 0).")
    counts = torch.bincount(codes)
    value = distances.new_empty(n)
    for block in row_blocks(n, 2 * n):
        mine = codes[block, None]
        sums = distances.new_zeros(mine.shape[0], counts.shape[0]).index_add_(1, codes, distances[block])
        own = sums.gather(1, mine)[:, 0] / (counts[mine[:, 0]] - 1).clamp(min=1)
        other = (sums / counts).scatter(1, mine, torch.inf).min(1).values
        top = torch.maximum(own, other)
        lone = (counts[mine[:, 0]] == 1) | (top == 0)
        value[block] = ((other - own) / top.masked_fill(top == 0, 1)).masked_fill(lone, 0)
    return value


def _scikit_learn(name: str, metric: Any) -> Any:
    try:
        import sklearn.metrics.cluster._unsupervised as unsupervised
    except ImportError as error:
        raise ValueError(
            f"metric must be one of {', '.join(_EXACT)} or precomputed where scikit-learn is not installed, got {metric!r}"
        ) from error
    return getattr(unsupervised, name)


def calinski_harabasz_score(X: Any, labels: Any) -> float:
    """Variance ratio criterion; 1.0 where every point sits on its centroid, as in scikit-learn.

    Examples
    --------
    >>> ck.metrics.calinski_harabasz_score([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1])
    200.0
    """
    z = as_points(X)
    codes = as_labels(labels, z.shape[0], z.device)
    if _within_is_zero(z, codes):
        return 1.0
    return float(functional.variance_ratio(z, codes))


def _within_is_zero(z: Tensor, codes: Tensor) -> bool:
    centroids, _ = functional.update_centroids(z, codes, int(codes.max()) + 1)
    return bool((z.to(centroids.dtype) == centroids[codes]).all())


def davies_bouldin_score(X: Any, labels: Any) -> float:
    """Davies-Bouldin index, lower is better.

    The index does not depend on the scale of X. scikit-learn returns 0 where all centroid distances, or all spreads, are below 1e-8
    (``numpy.allclose``), so it gives 0 for data of that scale, say in units of 1e-9, where the index of the same data in other units is
    returned here.

    Examples
    --------
    >>> round(ck.metrics.davies_bouldin_score([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1]), 4)
    0.1
    """
    z = as_points(X)
    return float(functional.davies_bouldin(z, as_labels(labels, z.shape[0], z.device)))
