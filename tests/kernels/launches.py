"""The launches of every launcher in every mode, recorded on tensors without memory, for ahead-of-time compilation."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch
from compiled import Launch, recorded
from triton.runtime.jit import JITFunction

import carlg_kernels._triton
from carlg_kernels._triton import (
    assign,
    centroid_update,
    davies_bouldin,
    lloyd,
    simplified_silhouette,
    variance_ratio,
)
from carlg_kernels._typing import compute_dtype


def every_kernel() -> dict[str, Any]:
    """Every jitted function of ``carlg_kernels._triton`` whose name says that it is launched."""
    found = {}
    for module in pkgutil.iter_modules(carlg_kernels._triton.__path__):
        members = vars(importlib.import_module(f"carlg_kernels._triton.{module.name}"))
        found |= {k: v for k, v in members.items() if isinstance(v, JITFunction) and k.endswith("_kernel")}
    return found


def _call_all(dtype: torch.dtype, n: int, c: int, d: int, columns: bool) -> None:
    real = compute_dtype(dtype)
    device = torch.device("meta")
    z = torch.empty((d, n), dtype=dtype, device=device).t() if columns else torch.empty((n, d), dtype=dtype, device=device)
    labels = torch.empty(n, dtype=torch.int64, device=device)
    weights = torch.empty(n, dtype=real, device=device)
    centroids = torch.empty((c, d), dtype=real, device=device)
    scalar = torch.empty((), dtype=real, device=device)

    assign.assign(z, centroids)
    for given in (None, weights):
        state = centroid_update.centroid_update(z, labels, given, c)
        centroid_update.centroid_update_backward(centroids, z, labels, given, *state, given is not None)
        lloyd.lloyd_step(z, centroids, given, 0.0, torch.empty((), dtype=torch.int32, device=device))
    for own, given in ((labels, None), (None, centroids), (labels, centroids)):
        for reduction, grad in (("mean", scalar), ("none", weights)):
            state = simplified_silhouette.simplified_silhouette(z, own, given, c, reduction, True, False)[1:]
            centers = state[4] if given is None else given
            state = (*state[:4], centers, *state[5:])
            for need in {False, given is not None}:
                simplified_silhouette.simplified_silhouette_backward(grad, z, *state, given is None, reduction, need)
    for given in (None, centroids):
        for distance in ("sqeuclidean", "euclidean"):
            state = variance_ratio.variance_ratio(z, labels, given, c, distance)[1:]
            centers = state[0] if given is None else given
            variance_ratio.variance_ratio_backward(scalar, z, labels, centers, *state[1:], given is None, distance, given is not None)
    state = davies_bouldin.davies_bouldin(z, labels, c)[1:]
    davies_bouldin.davies_bouldin_backward(scalar, z, labels, *state)


def every_launch(target: str, dtype: torch.dtype, n: int, c: int, d: int, columns: bool = False) -> Iterator[Launch]:
    """Each distinct launch once. ``columns``: z is the transpose of a contiguous tensor."""
    with recorded(target) as launches:
        _call_all(dtype, n, c, d, columns)
    yield from dict.fromkeys(launches)
