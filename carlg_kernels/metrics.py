"""scikit-learn's names and signatures, numpy or torch in, a Python float out, no gradient."""

from typing import Any

import torch
from torch import Tensor

from carlg_kernels import functional
from carlg_kernels._validation import FLOATS, INTEGERS


def as_points(X: Any, name: str = "X") -> Tensor:
    """An array-like as a floating-point tensor; integers become float64."""
    tensor = X.detach() if isinstance(X, Tensor) else torch.as_tensor(_array(X))
    if tensor.dim() != 2:
        raise ValueError(f"{name} must be of shape (n_samples, n_features), got {tuple(tensor.shape)}")
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

    Examples
    --------
    >>> round(ck.metrics.davies_bouldin_score([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1]), 4)
    0.1
    """
    z = as_points(X)
    return float(functional.davies_bouldin(z, as_labels(labels, z.shape[0], z.device)))
