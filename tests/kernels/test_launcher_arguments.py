"""Wrong arguments are refused by the launchers themselves, before a kernel could read out of bounds: nothing is launched here."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
from carlg_kernels._triton import (  # noqa: E402
    assign,
    centroid_update,
    common,
    davies_bouldin,
    lloyd,
    simplified_silhouette,
    variance_ratio,
)

Z = torch.zeros(10, 4)
LABELS = torch.zeros(10, dtype=torch.int64)
CENTROIDS = torch.zeros(3, 4)
WEIGHTS = torch.ones(10)
LAUNCHERS: dict[str, tuple[Callable[..., Any], dict[str, Tensor]]] = {
    "assign": (assign.assign, {"centroids": CENTROIDS}),
    "centroid_update": (lambda **k: centroid_update.centroid_update(**k, num_clusters=3), {"labels": LABELS, "weights": WEIGHTS}),
    "lloyd": (lloyd.lloyd_step, {"centroids": CENTROIDS, "weights": WEIGHTS}),
    "simplified_silhouette": (
        lambda **k: simplified_silhouette.simplified_silhouette(
            **k, num_clusters=3, reduction="mean", singleton_zero=True, save_sums=False
        ),
        {"labels": LABELS, "centroids": CENTROIDS},
    ),
    "variance_ratio": (
        lambda **k: variance_ratio.variance_ratio(**k, num_clusters=3, distance="sqeuclidean"),
        {"labels": LABELS, "centroids": CENTROIDS},
    ),
    "davies_bouldin": (lambda **k: davies_bouldin.davies_bouldin(**k, num_clusters=3), {"labels": LABELS}),
}
WRONG = {
    "labels": {
        "int32": (LABELS.int(), TypeError, r"labels must be int64 of shape \(10,\), got int32 \(10,\)"),
        "short": (LABELS[:9], ValueError, r"labels must be int64 of shape \(10,\), got int64 \(9,\)"),
        "elsewhere": (LABELS.to("meta"), ValueError, "labels must be on cpu like z, got meta"),
    },
    "weights": {
        "column": (WEIGHTS[:, None], ValueError, r"weights must be float32 of shape \(10,\), got float32 \(10, 1\)"),
        "half": (WEIGHTS.half(), TypeError, r"weights must be float32"),
    },
    "centroids": {
        "narrow": (CENTROIDS[:, :3], ValueError, r"centroids must be float32 of shape \(c, 4\), got float32 \(3, 3\)"),
        "vector": (CENTROIDS[0], ValueError, r"centroids must be float32 of shape \(c, 4\), got float32 \(4,\)"),
        "none": (CENTROIDS[:0], ValueError, r"centroids must be float32 of shape \(c, 4\), got float32 \(0, 4\)"),
        "half": (CENTROIDS.half(), TypeError, r"centroids must be float32 of shape \(c, 4\), got float16 \(3, 4\)"),
    },
}


@pytest.mark.parametrize("op", LAUNCHERS)
def test_wrong_arguments_are_named(op: str) -> None:
    call, arguments = LAUNCHERS[op]
    with mock.patch.object(common, "launch") as launched:
        for name in arguments:
            for wrong, kind, message in WRONG[name].values():
                with pytest.raises(kind, match=message):
                    call(z=Z, **(arguments | {name: wrong}))
        with pytest.raises(TypeError, match="z must be"):
            call(z=Z.long(), **arguments)
        with pytest.raises(ValueError, match="z must be"):
            call(z=Z[0], **arguments)
        launched.assert_not_called()
        call(z=Z, **arguments)
        launched.assert_called()


def test_half_points_need_float32_centroids() -> None:
    with mock.patch.object(common, "launch"):
        assign.assign(Z.half(), CENTROIDS)
        with pytest.raises(TypeError, match="centroids must be float32"):
            assign.assign(Z.half(), CENTROIDS.half())
        with pytest.raises(TypeError, match="centroids must be float64"):
            assign.assign(Z.double(), CENTROIDS)
