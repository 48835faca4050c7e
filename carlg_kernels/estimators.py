"""scikit-learn estimators over :func:`carlg_kernels.kmeans` and :func:`carlg_kernels.kmedoids`.

numpy arrays or torch tensors in, numpy arrays out; float32 stays float32. Needs scikit-learn (``pip install carlg-kernels[sklearn]``).
"""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_n_features, _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from carlg_kernels import _minibatch, ops
from carlg_kernels._init import initial_rows
from carlg_kernels._lloyd import Run
from carlg_kernels._sums import fixed_sum, mean_variance
from carlg_kernels._typing import KMeansResult, compute_dtype
from carlg_kernels._validation import check_count
from carlg_kernels.clustering import best_of, check_init, kmeans, kmedoids

Array = Any


def _as_tensor(array: Array) -> Tensor:
    """A tensor on the memory of the array; read-only memory is copied, since torch has no such tensors."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _new_generator(random_state: Any) -> torch.Generator:
    """A private generator; None takes its seed from the operating system, never from numpy's global state."""
    generator = torch.Generator()
    if random_state is None:
        generator.seed()
    else:
        seed = check_random_state(random_state).randint(np.iinfo(np.int32).max)
        generator.manual_seed(int(seed))
    return generator


class _Clusterer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """What the estimators share: arrays to tensors, prediction and distances to the centres."""

    cluster_centers_: Array
    labels_: Array

    def _points(self, X: Array, *, reset: bool) -> Tensor:
        """X as a tensor; a torch tensor stays on its device."""
        if isinstance(X, Tensor) and X.dim() == 2 and X.is_floating_point() and X.device.type != "cpu":
            _check_n_features(self, X, reset=reset)
            return X.detach()
        if isinstance(X, Tensor):
            X = X.detach().to(compute_dtype(X.dtype)).numpy()
        X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], order="C", accept_large_sparse=False)
        return _as_tensor(X)

    def _clusters(self, n: int) -> int:
        """The number of clusters, checked against that of samples."""
        clusters = check_count(self.n_clusters, "n_clusters")
        if n < clusters:
            raise ValueError(f"n_samples={n} should be >= n_clusters={clusters}.")
        return clusters

    def _init(self, z: Tensor) -> str | Tensor:
        if isinstance(self.init, str):
            return self.init
        given = self.init if isinstance(self.init, Tensor) else torch.as_tensor(np.asarray(self.init))
        return given.to(z.device, compute_dtype(z.dtype))

    def _centers(self, z: Tensor) -> Tensor:
        """The centres where ``z`` is, in the dtype that it is computed in."""
        return torch.as_tensor(self.cluster_centers_).to(z.device, compute_dtype(z.dtype))

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])

    def predict(self, X: Array) -> Array:
        """The nearest centre of every row."""
        check_is_fitted(self)
        z = self._points(X, reset=False)
        return ops.assign.assign(z, self._centers(z))[0].cpu().numpy()

    def transform(self, X: Array) -> Array:
        """Distances of every row to every centre, shape (n_samples, n_clusters)."""
        check_is_fitted(self)
        z = self._points(X, reset=False)
        centers = self._centers(z)
        return torch.cdist(z.to(centers.dtype), centers, compute_mode="donot_use_mm_for_euclid_dist").cpu().numpy()


class _Means(_Clusterer):
    """What the estimators with sample weights share."""

    _automatic_starts: int

    def _starts(self) -> int:
        """``n_init``; "auto" is one start that is spread or given, and several random ones, as in scikit-learn."""
        if isinstance(self.n_init, str) and self.n_init == "auto":
            return self._automatic_starts if isinstance(self.init, str) and self.init == "random" else 1
        return check_count(self.n_init, "n_init")

    def _weights(self, sample_weight: Array, X: Array, z: Tensor) -> Tensor | None:
        if sample_weight is None:
            return None
        if isinstance(sample_weight, Tensor):
            return sample_weight.detach().to(z.device, compute_dtype(z.dtype))
        dtype = np.float64 if z.dtype == torch.float64 else np.float32
        weights = _check_sample_weight(sample_weight, X, dtype=dtype, ensure_non_negative=True)
        return _as_tensor(weights).to(z.device)

    def fit_predict(self, X: Array, y: Any = None, sample_weight: Array = None) -> Array:
        return self.fit(X, sample_weight=sample_weight).labels_

    def fit_transform(self, X: Array, y: Any = None, sample_weight: Array = None) -> Array:
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def score(self, X: Array, y: Any = None, sample_weight: Array = None) -> float:
        """Minus the inertia of X under the fitted centres."""
        check_is_fitted(self)
        z = self._points(X, reset=False)
        square = ops.assign.assign(z, self._centers(z))[1].double().square()
        weights = self._weights(sample_weight, X, z)
        return -fixed_sum(square if weights is None else square * weights)

    def _take(self, result: KMeansResult) -> None:
        self.cluster_centers_ = result.centroids.cpu().numpy()
        self.labels_ = result.labels.cpu().numpy()
        self.inertia_ = float(result.inertia)
        self.n_iter_ = result.n_iter


class KMeans(_Means):
    """k-means; parameters and attributes as in scikit-learn, the work as in :func:`carlg_kernels.kmeans`.

    Parameters
    ----------
    n_clusters : int, default=8
    init : {"k-means++", "k-means||", "random"} or array of shape (n_clusters, n_features)
    n_init : int or "auto", default=1
        "auto" is 10 with random starts, otherwise 1.
    max_iter, tol, empty, spherical : as in :func:`carlg_kernels.kmeans`
    random_state : int, RandomState or None
        None draws a seed from the operating system.

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, n_iter_, n_features_in_, feature_names_in_

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ck.KMeans(2, random_state=0).fit(z).inertia_
    1.0
    """

    _automatic_starts = 10

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: str | Array = "k-means++",
        n_init: int | str = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        empty: str = "farthest",
        spherical: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.empty = empty
        self.spherical = spherical
        self.random_state = random_state

    def fit(self, X: Array, y: Any = None, sample_weight: Array = None) -> Self:
        z = self._points(X, reset=True)
        result = kmeans(
            z,
            self._clusters(z.shape[0]),
            init=self._init(z),
            n_init=self._starts(),
            max_iter=self.max_iter,
            tol=self.tol,
            weights=self._weights(sample_weight, X, z),
            empty=self.empty,  # type: ignore[arg-type]
            generator=_new_generator(self.random_state),
            spherical=self.spherical,
        )
        self._take(result)
        return self


class MiniBatchKMeans(_Means):
    """Mini-batch k-means; parameters and attributes as in scikit-learn.

    Parameters
    ----------
    n_clusters : int, default=8
    init, n_init : as in :class:`KMeans`, with 3 random starts for "auto"
    batch_size : int, default=1024
    max_iter : int
        Passes over as many random points as the data has.
    tol : float
        Stop on a squared move of the centres in one step of at most ``tol`` times the mean variance; 0 turns this off.
    max_no_improvement : int or None
        Steps without a lower smoothed batch inertia before it stops.
    reassignment_ratio : float
        Centres given less than this share of what the busiest one was given are re-seeded; 0 turns this off.
    random_state : int, RandomState or None

    Attributes
    ----------
    cluster_centers_, labels_, inertia_, n_iter_, n_steps_, n_features_in_, feature_names_in_
    """

    _automatic_starts = 3

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: str | Array = "k-means++",
        n_init: int | str = 1,
        batch_size: int = 1024,
        max_iter: int = 100,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        reassignment_ratio: float = 0.01,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.n_init = n_init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.max_no_improvement = max_no_improvement
        self.reassignment_ratio = reassignment_ratio
        self.random_state = random_state

    def fit(self, X: Array, y: Any = None, sample_weight: Array = None) -> Self:
        z = self._points(X, reset=True)
        n = z.shape[0]
        clusters = self._clusters(n)
        batch = min(check_count(self.batch_size, "batch_size"), n)
        generator = _new_generator(self.random_state)
        weights = self._weights(sample_weight, X, z)
        tolerance = self.tol * mean_variance(z) if self.tol > 0 else 0.0

        def iterate(start: Tensor) -> Run:
            return _minibatch.iterate(
                z,
                start,
                weights,
                batch,
                check_count(self.max_iter, "max_iter"),
                tolerance,
                False,
                generator,
                patience=self.max_no_improvement,
                starved_share=self.reassignment_ratio,
            )

        init = check_init(self._init(z), z, clusters)
        result, run = best_of(z, clusters, init, self._starts(), weights, batch, generator, iterate)
        self._take(result)
        self.n_steps_ = run.n_steps
        return self

    def partial_fit(self, X: Array, y: Any = None, sample_weight: Array = None) -> Self:
        """One step with X as the batch; the first call also chooses the starting centres from it."""
        first = not hasattr(self, "cluster_centers_")
        z = self._points(X, reset=first)
        weights = self._weights(sample_weight, X, z)
        if first or not hasattr(self, "_given"):
            self._given = np.zeros(self.n_clusters)
            self._seen_since_reseed = 0
            self._seeds = check_random_state(self.random_state)
            if self.random_state is None:
                self._seeds = np.random.RandomState()
            self.n_steps_ = 0
        generator = _new_generator(self._seeds)
        if first:
            clusters = self._clusters(z.shape[0])
            start = check_init(self._init(z), z, clusters)
            if not isinstance(start, Tensor):
                start = z[initial_rows(z, clusters, start, weights, generator)].to(compute_dtype(z.dtype))
            self.cluster_centers_ = start.cpu().numpy()
        run = _minibatch.MiniBatch(self._centers(z), generator, starved_share=self.reassignment_ratio)
        run.given += torch.from_numpy(self._given)
        run.seen_since_reseed = self._seen_since_reseed
        self.inertia_, _ = run.step(z, weights)
        self._given, self._seen_since_reseed = run.given.numpy(), run.seen_since_reseed
        self.cluster_centers_ = run.centroids.cpu().numpy()
        self.labels_ = ops.assign.assign(z, run.centroids)[0].cpu().numpy()
        self.n_steps_ += 1
        self.n_iter_ = self.n_steps_
        return self


class KMedoids(_Clusterer):
    """k-medoids by FasterPAM, the work as in :func:`carlg_kernels.kmedoids`.

    Parameters
    ----------
    n_clusters : int, default=8
    metric : {"euclidean", "precomputed"}
        "precomputed" takes a square matrix of distances; ``predict`` and ``transform`` then take distances to the training points.
    init : {"k-means++", "build", "random"} or array of n_clusters row numbers
    max_iter : int
    random_state : int, RandomState or None

    Attributes
    ----------
    medoid_indices_, cluster_centers_ (None where precomputed), labels_, inertia_, n_iter_, n_features_in_, feature_names_in_
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        metric: str = "euclidean",
        init: str | Array = "k-means++",
        max_iter: int = 300,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.metric = metric
        self.init = init
        self.max_iter = max_iter
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.metric == "precomputed"
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.medoid_indices_.shape[0])

    def fit(self, X: Array, y: Any = None) -> Self:
        z = self._points(X, reset=True)
        init = self.init if isinstance(self.init, str) else torch.as_tensor(np.asarray(self.init))
        result = kmedoids(
            z,
            self._clusters(z.shape[0]),
            init=init,
            max_iter=self.max_iter,
            metric=self.metric,
            generator=_new_generator(self.random_state),
        )
        self.medoid_indices_ = result.medoids.cpu().numpy()
        pairwise = self.metric == "precomputed"
        self.cluster_centers_ = None if pairwise else z[result.medoids].to(compute_dtype(z.dtype)).cpu().numpy()
        self.labels_ = result.labels.cpu().numpy()
        self.inertia_ = float(result.inertia)
        self.n_iter_ = result.n_iter
        return self

    def fit_predict(self, X: Array, y: Any = None) -> Array:
        return self.fit(X).labels_

    def fit_transform(self, X: Array, y: Any = None) -> Array:
        return self.fit(X).transform(X)

    def predict(self, X: Array) -> Array:
        """The nearest medoid of every row."""
        if self.metric != "precomputed":
            return super().predict(X)
        return self.transform(X).argmin(1)

    def transform(self, X: Array) -> Array:
        """Distances of every row to every medoid, shape (n_samples, n_clusters)."""
        if self.metric != "precomputed":
            return super().transform(X)
        check_is_fitted(self)
        return self._points(X, reset=False).cpu().numpy()[:, self.medoid_indices_]

    def score(self, X: Array, y: Any = None) -> float:
        """Minus the sum of distances of X to their nearest medoid."""
        return -float(self.transform(X).min(1).sum(dtype=np.float64))
