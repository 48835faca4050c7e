"""Argument checks. Every message names the argument, what was expected and what came.

Shapes and dtypes are checked always. Values (label range, degenerate clusterings, non-finite points) are read only where that costs
no device synchronisation: on CPU tensors outside torch.compile, or anywhere with CK_VALIDATE=1.
"""

import operator
import os
from typing import Any, NoReturn

import torch
from torch import Tensor

from carlg_kernels._typing import compute_dtype

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def describe(value: Any) -> str:
    """How a value is shown in a message: dtype and shape of a tensor, type or repr of anything else."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    return type(value).__name__


def _fail(kind: type[Exception], name: str, expected: str, got: Any) -> NoReturn:
    shown = got if isinstance(got, str) else describe(got)
    raise kind(f"{name} must be {expected}, got {shown}")


def may_read_values(*tensors: Tensor | None) -> bool:
    """Whether looking at the values is free of graph breaks and device synchronisation."""
    if torch.compiler.is_compiling():
        return False
    if os.environ.get("CK_VALIDATE", "") == "1":
        return True
    return all(t is None or t.device.type == "cpu" for t in tensors)


def check_points(z: Any, name: str = "z", least: int = 1) -> Tensor:
    if not isinstance(z, Tensor):
        _fail(TypeError, name, "a torch.Tensor of shape (n, d)", z)
    if z.dtype not in FLOATS:
        _fail(TypeError, name, "float16, bfloat16, float32 or float64 of shape (n, d)", z)
    if z.dim() != 2:
        _fail(ValueError, name, "of shape (n, d), two dimensions", z)
    if z.shape[0] < least or z.shape[1] < 1:
        rows = f"at least {least} row{'s' if least > 1 else ''}"
        _fail(ValueError, name, f"of shape (n, d) with {rows} and one column", z)
    if z.layout != torch.strided:
        _fail(TypeError, name, "a dense (strided) tensor", str(z.layout))
    return z


def check_finite(z: Tensor, name: str = "z") -> None:
    if may_read_values(z) and not bool(torch.isfinite(z.sum())) and not bool(z.isfinite().all()):
        count = int((~z.isfinite()).sum())
        _fail(ValueError, name, "finite", f"{count} NaN or infinite values in {describe(z)}")


def check_squares(z: Tensor, name: str = "z") -> None:
    """Finite, and small enough that no squared distance of two points overflows."""
    if not may_read_values(z):
        return
    dtype = compute_dtype(z.dtype)
    largest = max(abs(float(bound)) for bound in torch.aminmax(z))
    most = (torch.finfo(dtype).max / (4 * z.shape[1])) ** 0.5
    if not largest <= most:
        check_finite(z, name)
        kind = str(dtype).removeprefix("torch.")
        _fail(ValueError, name, f"small enough for squared distances in {kind}, at most {most:.3g} here", f"{largest:.3g}")


def check_centroids(centroids: Any, z: Tensor, least: int = 1, name: str = "centroids") -> Tensor:
    """The centroids in the dtype that ``z`` is computed in."""
    if not isinstance(centroids, Tensor):
        _fail(TypeError, name, f"a torch.Tensor of shape (c, {z.shape[1]})", centroids)
    if centroids.dtype not in FLOATS:
        _fail(TypeError, name, f"floating point of shape (c, {z.shape[1]})", centroids)
    if centroids.dim() != 2 or centroids.shape[1] != z.shape[1]:
        _fail(ValueError, name, f"of shape (c, {z.shape[1]}) to match z", centroids)
    if centroids.shape[0] < least:
        _fail(ValueError, name, f"at least {least} rows", centroids)
    if centroids.device != z.device:
        _fail(ValueError, name, f"on {z.device} like z", str(centroids.device))
    return centroids.to(compute_dtype(z.dtype))


def check_labels(labels: Any, z: Tensor, name: str = "labels") -> Tensor:
    """The labels as int64; any integer dtype is taken."""
    n = z.shape[0]
    if not isinstance(labels, Tensor):
        _fail(TypeError, name, f"an int64 torch.Tensor of shape ({n},)", labels)
    if labels.dtype not in INTEGERS:
        _fail(TypeError, name, f"int64 of shape ({n},)", labels)
    if labels.shape != (n,):
        _fail(ValueError, name, f"int64 of shape ({n},)", labels)
    if labels.device != z.device:
        _fail(ValueError, name, f"on {z.device} like z", str(labels.device))
    return labels.to(torch.int64)


def check_weights(weights: Any, z: Tensor, name: str = "weights") -> Tensor | None:
    n = z.shape[0]
    if weights is None:
        return None
    if not isinstance(weights, Tensor):
        _fail(TypeError, name, f"a torch.Tensor of shape ({n},)", weights)
    if weights.dtype not in FLOATS:
        _fail(TypeError, name, f"floating point of shape ({n},)", weights)
    if weights.shape != (n,):
        _fail(ValueError, name, f"of shape ({n},)", weights)
    if weights.device != z.device:
        _fail(ValueError, name, f"on {z.device} like z", str(weights.device))
    if may_read_values(weights):
        low = float(weights.detach().min())
        if not low >= 0 or not bool(weights.isfinite().all()):
            _fail(ValueError, name, "finite and not negative", f"a minimum of {low}")
    return weights.to(compute_dtype(z.dtype))


def check_edges(edge_index: Any, z: Tensor, name: str = "edge_index") -> Tensor:
    """The edges as int64; any integer dtype is taken."""
    if not isinstance(edge_index, Tensor):
        _fail(TypeError, name, "an int64 torch.Tensor of shape (2, edges)", edge_index)
    if edge_index.dtype not in INTEGERS:
        _fail(TypeError, name, "int64 of shape (2, edges)", edge_index)
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        _fail(ValueError, name, "of shape (2, edges)", edge_index)
    if edge_index.device != z.device:
        _fail(ValueError, name, f"on {z.device} like z", str(edge_index.device))
    if may_read_values(edge_index) and edge_index.numel():
        low, high = (int(v) for v in edge_index.aminmax())
        if low < 0 or high >= z.shape[0]:
            wrong = low if low < 0 else high
            _fail(ValueError, name, f"in [0, {z.shape[0]}), the rows of z", f"an index {wrong}")
    return edge_index.to(torch.int64)


def check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        _fail(ValueError, name, "one of " + ", ".join(map(repr, choices)), describe(value))


def check_count(value: Any, name: str, least: int = 1) -> int:
    """The value as an int; numpy's integers are taken too."""
    if not isinstance(value, (int, Tensor)) and hasattr(value, "__index__"):
        value = operator.index(value)
    if isinstance(value, bool) or not isinstance(value, int):
        _fail(TypeError, name, f"an int of at least {least}", describe(value))
    if value < least:
        _fail(ValueError, name, f"an int of at least {least}", value)
    return value


def _without_gaps(labels: Tensor, counts: Tensor) -> Tensor:
    """Labels renumbered in order, from the sizes of all clusters up to the largest label; outliers stay -1."""
    numbers = torch.nn.functional.pad((counts > 0).cumsum(0) - 1, (1, 0), value=-1)
    return numbers[labels + 1]


def resolve_clusters(labels: Tensor, num_clusters: int | None, *, clustered: bool = True, name: str = "labels") -> tuple[Tensor, int]:
    """Labels and the number of clusters, 0 where it is unknown inside torch.compile.

    Labels whose largest value is far above the number of clusters are renumbered, in order, so that nothing is spent on gaps; a given
    ``num_clusters`` is the number of clusters as it is.
    ``clustered`` asks for 2 <= (non-empty clusters) < (scored points), as every index here does.
    """
    if num_clusters is not None:
        num_clusters = check_count(num_clusters, "num_clusters")
    if not may_read_values(labels):
        if torch.compiler.is_compiling():
            return labels, num_clusters or 0
        return labels, num_clusters or int(labels.max()) + 1
    low, high = (int(v) for v in labels.aminmax())
    if low < -1:
        _fail(ValueError, name, "-1 (outlier) or at least 0", f"a minimum of {low}")
    if num_clusters is not None and high >= num_clusters:
        _fail(ValueError, name, f"below {num_clusters} (the number of clusters)", f"a maximum of {high}")
    if num_clusters is None and high >= 2 * labels.shape[0] + 1024:
        # Too large to count by value.
        keep = labels >= 0
        renumbered = torch.full_like(labels, -1)
        renumbered[keep] = labels[keep].unique(return_inverse=True)[1]
        labels, high = renumbered, int(renumbered.max())
    total = num_clusters if num_clusters is not None else max(high + 1, 1)
    if num_clusters is not None and not clustered:
        return labels, total
    counts = torch.bincount(labels + 1, minlength=total + 1)[1:]
    present, scored = int(torch.count_nonzero(counts)), int(counts.sum())
    if clustered and not 2 <= present < scored:
        _fail(
            ValueError,
            name,
            "a clustering with at least 2 clusters and fewer clusters than scored points",
            f"{present} clusters of {scored} points",
        )
    if num_clusters is None and total > 2 * present + 64:
        return _without_gaps(labels, counts), present
    return labels, total
