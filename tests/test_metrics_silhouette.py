"""silhouette_score and silhouette_samples against scikit-learn, whose own tests also run on our functions."""

import importlib

import numpy as np
import pytest
import torch

from carlg_kernels import metrics
from tests.definitions import pairwise
from tests.helpers import clustered

sklearn_metrics = pytest.importorskip("sklearn.metrics")
unsupervised = importlib.import_module("sklearn.metrics.cluster.tests.test_unsupervised")
NAMES = ["silhouette_score", "silhouette_samples", "calinski_harabasz_score", "davies_bouldin_score"]


@pytest.fixture
def ours_in_their_place(monkeypatch):
    for name in NAMES:
        monkeypatch.setattr(unsupervised, name, getattr(metrics, name))


def _cases(function):
    """The keyword arguments of every case of one of scikit-learn's parametrised tests."""
    cases = [{}]
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            assert "," not in names
            cases = [{**case, names: value} for case in cases for value in values]
    return cases


TESTS = [(name, case) for name in dir(unsupervised) if name.startswith("test_") for case in _cases(getattr(unsupervised, name))]


@pytest.mark.parametrize(("name", "arguments"), TESTS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(TESTS)])
def test_scikit_learn_tests_pass(name, arguments, ours_in_their_place):
    getattr(unsupervised, name)(**arguments)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean", "cosine", "manhattan", "chebyshev"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples(metric, dtype):
    z, labels = clustered(300, 9, 12, torch.float64)
    X, y = z.numpy().astype(dtype), labels.numpy()
    want = sklearn_metrics.silhouette_samples(X.astype(np.float64), y, metric=metric)
    got = metrics.silhouette_samples(X, y, metric=metric)
    assert isinstance(got, np.ndarray) and np.abs(got - want).max() < (1e-12 if dtype == np.float64 else 2e-5)
    if metric != "manhattan" and metric != "chebyshev":
        tensor = metrics.silhouette_samples(torch.from_numpy(X), labels, metric=metric)
        assert isinstance(tensor, torch.Tensor) and torch.equal(tensor, torch.from_numpy(got))


@pytest.mark.parametrize("metric", ["euclidean", "precomputed"])
def test_sampled_score_draws_the_same_points(metric):
    z, labels = clustered(200, 5, 6, torch.float64)
    X, y = (pairwise(z) if metric == "precomputed" else z), labels
    for state in (0, np.random.RandomState(3)):
        theirs = np.random.RandomState(3) if state else 0
        want = sklearn_metrics.silhouette_score(X.numpy(), y.numpy(), metric=metric, sample_size=90, random_state=theirs)
        got = metrics.silhouette_score(X, y, metric=metric, sample_size=90, random_state=state)
        assert isinstance(got, float) and got == pytest.approx(want, abs=1e-7)


def test_callables_and_arguments_of_metrics_go_to_scikit_learn():
    z, labels = clustered(60, 4, 3, torch.float64)
    X, y = z.numpy(), labels.numpy()
    want = sklearn_metrics.silhouette_score(X, y, metric="minkowski", p=3)
    assert metrics.silhouette_score(X, y, metric="minkowski", p=3) == want

    def by_hand(a, b):
        return np.abs(a - b).sum()

    assert metrics.silhouette_score(X, y, metric=by_hand) == sklearn_metrics.silhouette_score(X, y, metric=by_hand)


def test_bad_input():
    X = np.random.RandomState(0).randn(10, 2)
    with pytest.raises(ValueError, match="Number of labels is 1"):
        metrics.silhouette_score(X, [0] * 10)
    with pytest.raises(ValueError, match=r"distance matrix of shape \(10, 10\), got \(10, 2\)"):
        metrics.silhouette_samples(X, [0, 1] * 5, metric="precomputed")
    with pytest.raises(ValueError, match="X must be finite"):
        metrics.silhouette_score(X * np.nan, [0, 1] * 5)
    with pytest.raises(ValueError, match="sample_size must be an int of at least 1"):
        metrics.silhouette_score(X, [0, 1] * 5, sample_size=0)
