"""calinski_harabasz_score and davies_bouldin_score against scikit-learn."""

import numpy as np
import pytest
import torch

from carlg_kernels import metrics
from tests.helpers import clustered

sklearn_metrics = pytest.importorskip("sklearn.metrics")
NAMES = ["calinski_harabasz_score", "davies_bouldin_score"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(500, 9, 12), (300, 2, 1), (100, 80, 5)])
def test_values(name, dtype, shape):
    z, labels = clustered(*shape, torch.float64)
    X, y = z.numpy().astype(dtype), labels.numpy()
    want = getattr(sklearn_metrics, name)(X.astype(np.float64), y)
    for got in (getattr(metrics, name)(X, y), getattr(metrics, name)(torch.from_numpy(X), labels)):
        # scikit-learn expands the square in the distances of centroids, which costs it half of the digits of close ones
        assert isinstance(got, float) and got == pytest.approx(want, rel=1e-7 if dtype == np.float64 else 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_any_labels_and_array_likes(name):
    X = [[0, 1], [1, 1], [10, 2], [12, 3], [0, 2]]
    want = getattr(sklearn_metrics, name)(X, ["a", "a", "b", "b", "a"])
    assert getattr(metrics, name)(X, ["a", "a", "b", "b", "a"]) == pytest.approx(want)
    readonly = np.array(X, dtype=np.float64)[::-1]
    readonly.flags.writeable = False
    assert getattr(metrics, name)(readonly, ["a", "b", "b", "a", "a"]) == pytest.approx(want)


@pytest.mark.parametrize("name", NAMES)
def test_degenerate_cases(name):
    ours, theirs = getattr(metrics, name), getattr(sklearn_metrics, name)
    on_centroids = [[0.0], [0.0], [1.0], [1.0]]
    assert ours(on_centroids, [0, 0, 1, 1]) == theirs(on_centroids, [0, 0, 1, 1])
    same = np.ones((10, 2))
    assert ours(same, [0] * 5 + [1] * 5) == theirs(same, [0] * 5 + [1] * 5)
    for labels in ([0] * 10, list(range(10))):
        with pytest.raises(ValueError, match="Number of labels is"):
            ours(same, labels)
    with pytest.raises(ValueError, match="X must be finite"):
        ours([[float("nan")], [1.0], [2.0]], [0, 0, 1])
    with pytest.raises(ValueError, match="labels must be of shape"):
        ours(same, [0, 1])
