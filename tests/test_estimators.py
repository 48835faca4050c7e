"""The scikit-learn estimators: scikit-learn's own checks, parity with its classes, torch and numpy in."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import sklearn.cluster
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import carlg_kernels as ck
from carlg_kernels import _minibatch, clustering
from tests.helpers import clustered

ESTIMATORS = (ck.KMeans(), ck.MiniBatchKMeans(), ck.KMedoids())
# scikit-learn excuses its own k-means from these: repeated points and weights draw other random starts.
EXCUSED = {"check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.filterwarnings("ignore")
def test_check_estimator(estimator):
    for checked, check in estimator_checks_generator(estimator):
        if check.func.__name__ not in EXCUSED:
            try:
                check(checked)
            except Exception as error:
                if type(error).__name__ != "SkipTest":
                    raise


def data(dtype=torch.float32):
    return clustered(500, 7, 9, dtype)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parity_with_scikit_learn(dtype):
    X = data().numpy().astype(dtype)
    init = X[:7].copy()
    ours = ck.KMeans(7, init=init, tol=0).fit(X)
    theirs = sklearn.cluster.KMeans(7, init=init, n_init=1, tol=0).fit(X)
    assert np.array_equal(ours.labels_, theirs.labels_)
    assert ours.cluster_centers_.dtype == dtype and ours.transform(X).dtype == dtype
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(ours.score(X), theirs.score(X), rtol=1e-5)
    assert np.array_equal(ours.predict(X), ours.labels_)
    assert ours.n_iter_ == theirs.n_iter_


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_torch_numpy_clone_and_pickle(estimator):
    z = data()
    model = clone(estimator).set_params(n_clusters=5, random_state=0)
    by_tensor = clone(model).fit(z.clone().requires_grad_())
    by_array = clone(model).fit(z.numpy())
    again = pickle.loads(pickle.dumps(by_tensor))
    assert np.array_equal(by_tensor.labels_, by_array.labels_)
    for other in (by_array, again):
        assert np.array_equal(by_tensor.predict(z), other.predict(z.numpy()))
        assert np.array_equal(by_tensor.transform(z), other.transform(z.numpy()))
    assert by_tensor.transform(z).shape == (500, 5)
    assert clone(model).fit(z.bfloat16()).cluster_centers_.dtype == np.float32
    assert np.array_equal(clone(model).fit_predict(z), by_tensor.labels_)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_feature_names_set_output_and_pipelines(estimator):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data().numpy(), columns=[f"f{i}" for i in range(9)])
    model = clone(estimator).set_params(n_clusters=3, random_state=0).set_output(transform="pandas").fit(frame)
    name = type(estimator).__name__.lower()
    assert list(model.transform(frame).columns) == [f"{name}{i}" for i in range(3)]
    assert list(model.feature_names_in_) == list(frame.columns)
    assert make_pipeline(StandardScaler(), clone(estimator).set_params(n_clusters=3)).fit_predict(frame).shape == (500,)


def test_partial_fit_follows_the_stream():
    z = data(torch.float64)
    model = ck.MiniBatchKMeans(7, random_state=0, init=z[:7])
    for part in z.split(100):
        model.partial_fit(part, sample_weight=np.ones(len(part)))
    assert model.n_steps_ == 5 and model.cluster_centers_.shape == (7, 9)
    again = pickle.loads(pickle.dumps(model)).partial_fit(z)
    assert np.array_equal(again.cluster_centers_, model.partial_fit(z).cluster_centers_)
    full = sklearn.cluster.KMeans(7, n_init=5, random_state=0).fit(z.numpy())
    assert -model.score(z) < 1.6 * full.inertia_


def test_weights_reach_the_fit():
    X = np.array([[0.0], [1.0], [10.0]])
    model = ck.KMeans(1).fit(X, sample_weight=[1, 1, 0])
    assert model.cluster_centers_.item() == pytest.approx(0.5)
    with pytest.raises(ValueError, match="Negative values in data passed to `sample_weight`"):
        ck.KMeans(1).fit(X, sample_weight=[1, 1, -1])


def test_precomputed_medoids():
    z = data(torch.float64)
    table = torch.cdist(z, z).numpy()
    model = ck.KMedoids(6, metric="precomputed", random_state=0).fit(table)
    direct = ck.KMedoids(6, random_state=0).fit(z)
    assert model.inertia_ == pytest.approx(direct.inertia_, rel=0.02)
    assert np.array_equal(model.predict(table), model.labels_) and model.cluster_centers_ is None
    assert model.score(table) == pytest.approx(-model.inertia_)


def test_the_package_imports_without_scikit_learn():
    code = """
import sys
sys.modules["sklearn"] = None
import carlg_kernels as ck
try:
    ck.KMeans
except ImportError as error:
    assert "needs scikit-learn" in str(error), error
else:
    raise SystemExit("no error")
assert not hasattr(ck, "NoSuchName")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_grids_over_numpy_integers():
    X = data().numpy()
    for estimator in ESTIMATORS:
        grid = GridSearchCV(clone(estimator).set_params(random_state=0), {"n_clusters": np.arange(2, 5)}, cv=2).fit(X)
        assert grid.best_params_["n_clusters"] == 4
        with pytest.raises(TypeError, match="n_clusters must be an int of at least 1, got True"):
            clone(estimator).set_params(n_clusters=True).fit(X)


@pytest.mark.parametrize("estimator", [ck.KMeans, ck.MiniBatchKMeans])
def test_automatic_number_of_starts(estimator, monkeypatch):
    theirs = {ck.KMeans: sklearn.cluster.KMeans(), ck.MiniBatchKMeans: sklearn.cluster.MiniBatchKMeans()}[estimator]
    X = data().numpy()
    starts = []
    labelled = clustering._labelled
    monkeypatch.setattr(clustering, "_labelled", lambda *args: starts.append(1) or labelled(*args))
    for init in ("k-means++", "random", X[:4]):
        theirs.set_params(n_clusters=4, init=init, n_init="auto")
        starts.clear()
        estimator(4, init=init, n_init="auto", random_state=0).fit(X)
        assert len(starts) == theirs.fit(X)._n_init
    with pytest.raises(TypeError, match="n_init must be an int of at least 1, got 'many'"):
        estimator(4, n_init="many").fit(X)


@pytest.mark.parametrize("patience", [None, 2])
def test_steps_are_counted(patience, monkeypatch):
    steps = []
    step = _minibatch.MiniBatch.step
    monkeypatch.setattr(_minibatch.MiniBatch, "step", lambda *args: steps.append(1) or step(*args))
    model = ck.MiniBatchKMeans(4, batch_size=150, max_iter=7, max_no_improvement=patience, random_state=0).fit(data())
    assert model.n_steps_ == len(steps) and model.n_iter_ == -(-len(steps) * 150 // 500)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_numbers_of_features_are_refused(estimator, device):
    model = clone(estimator).set_params(n_clusters=3).fit(data())
    for call in (model.predict, model.transform, model.score):
        with pytest.raises(ValueError, match=f"X has 5 features, but {type(estimator).__name__} is expecting 9 features as input"):
            call(torch.zeros(8, 5, device=device))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_half_precision_points_leave_the_centres_alone(estimator, monkeypatch):
    z = data()
    model = clone(estimator).set_params(n_clusters=3, random_state=0).fit(z)
    want = model.transform(z.half().float())
    # As on a GPU, where half precision points stay what they are.
    monkeypatch.setattr(type(model), "_points", lambda self, X, reset: X)
    assert np.array_equal(model.transform(z.half()), want)
    assert np.array_equal(model.predict(z.half()), want.argmin(1))
    assert clone(model).fit(z.bfloat16()).cluster_centers_.dtype == np.float32
    if isinstance(model, ck.MiniBatchKMeans):
        assert clone(model).partial_fit(z.bfloat16()).cluster_centers_.dtype == np.float32
