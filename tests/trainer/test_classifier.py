"""The batched logistic regression against scikit-learn's liblinear."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from carlg.classifier import PENALTIES, design, draw_orders, fit_grid, one_hot, prepare, search_and_fit, solve, take_rows
from carlg.graph import csr_tensor

linear_model = pytest.importorskip("sklearn.linear_model")


def _points(n=300, d=12, classes=4, seed=0, noise=0.8):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, d, generator=generator)
    x = centres[y] + noise * torch.randn(n, d, generator=generator)
    return torch.nn.functional.normalize(x), y


def _liblinear(x, y, c, tol=1e-6):
    return linear_model.LogisticRegression(solver="liblinear", C=c, tol=tol, max_iter=1000).fit(x, y)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("c", [2.0**-10, 1.0, 2.0**10])
def test_same_decisions_as_liblinear(sparse, c):
    x, y = _points()
    if sparse:
        x = x * (x.abs() > 0.2)
    rows = torch.arange(200)[None]
    features = design(prepare(csr_tensor(x.numpy()) if sparse else x, rows[0]), rows)
    weights = solve(features, one_hot(y[rows], 4), torch.full((4,), c), tolerance=1e-5)
    got = features.decisions(torch.arange(200, 300)[None])(weights)[0]
    for k in range(4):
        fit = _liblinear(x[:200].numpy(), (y[:200] == k).numpy(), c)
        expected = fit.decision_function(x[200:].numpy())
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(got[:, k].numpy(), expected, atol=5e-3 * scale)


def test_folds_and_penalties_are_independent():
    x, y = _points(seed=1)
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(300, generator=generator)[:120] for _ in range(3)])
    x = prepare(x, torch.arange(300))
    features, weights = fit_grid(x, y, rows, 4)
    together = features.decisions(rows)(weights).unflatten(2, (len(PENALTIES), 4))
    alone, single = fit_grid(x, y, rows[1:2], 4)
    apart = alone.decisions(rows[1:2])(single).unflatten(2, (len(PENALTIES), 4))
    agree = (together[1].argmax(2) == apart[0].argmax(2)).float().mean()
    assert agree > 0.998


def test_absent_class_and_constant_feature():
    x, y = _points(seed=2)
    x[:, 0] = 0
    y[:100] = y[:100] % 3
    rows = torch.arange(100)
    predicted, c = search_and_fit(prepare(x, rows), y, rows, torch.arange(100, 300), 4, draw_orders(100, torch.Generator().manual_seed(0)))
    assert predicted.shape == (200,) and c in PENALTIES
    assert bool((predicted < 3).all())


def test_take_rows():
    matrix = sp.random(20, 7, density=0.3, format="csr", random_state=0, dtype=np.float32)
    rows = torch.tensor([3, 3, 0, 19])
    got = take_rows(csr_tensor(matrix), rows).to_dense().numpy()
    np.testing.assert_array_equal(got, matrix[rows.numpy()].toarray())


@pytest.mark.parametrize("sparse", [False, True])
def test_grid_search_on_the_same_folds(sparse):
    """The chosen C is the best one of scikit-learn's grid search on the same folds, and the predictions are liblinear's at that C."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier

    x, y = _points(n=1600, d=48, classes=6, seed=3, noise=3.0)
    if sparse:
        x = x * (x.abs() > 0.1)
    given = prepare(csr_tensor(x.numpy()) if sparse else x, torch.arange(1600))
    train, test = torch.arange(320), torch.arange(320, 1600)
    orders = draw_orders(320, torch.Generator().manual_seed(7), folds=3)
    predicted, chosen = search_and_fit(given, y, train, test, 6, orders, tolerance=1e-5)
    grid = GridSearchCV(
        OneVsRestClassifier(linear_model.LogisticRegression(solver="liblinear", tol=1e-6, max_iter=1000)),
        {"estimator__C": PENALTIES},
        cv=[(order[:160], order[160:]) for order in orders.numpy()],
        refit=False,
    ).fit(x[train].numpy(), one_hot(y[train], 6).bool().numpy())
    scores = grid.cv_results_["mean_test_score"]
    # Some values of C are clearly worse; a held-out row on the boundary of a class may fall on either side.
    assert scores[PENALTIES.index(chosen)] >= scores.max() - 1 / 480
    assert scores.max() - np.sort(scores)[-6] > 2 / 480
    fits = [_liblinear(x[train].numpy(), (y[train] == k).numpy(), chosen) for k in range(6)]
    assert 0.3 < (predicted == y[test]).float().mean() < 0.95
    expected = np.stack([fit.decision_function(x[test].numpy()) for fit in fits], 1).argmax(1)
    assert (predicted.numpy() != expected).mean() <= 0.001


def test_rows_that_take_no_part_do_not_matter():
    x, y = _points(seed=5)
    rows, test = torch.arange(200), torch.arange(200, 280)
    orders = draw_orders(200, torch.Generator().manual_seed(0))
    expected = search_and_fit(prepare(x, rows), y, rows, test, 4, orders)
    x[280:] = float("nan")
    got = search_and_fit(prepare(x, rows), y, rows, test, 4, orders)
    assert torch.equal(got[0], expected[0]) and got[1] == expected[1]
    with pytest.raises(ValueError, match="must be finite"):
        prepare(x, torch.arange(281))


def _scores(x, y, train, classes, orders):
    """Subset accuracy of every C, each solved from zero, on the folds of ``orders``."""
    half = len(train) // 2
    inner, outer = train[orders[:, :half]], train[orders[:, half:]]
    features = design(x, inner)
    right = one_hot(y[outer], classes).bool()
    solved = (solve(features, one_hot(y[inner], classes), torch.full((classes,), c)) for c in PENALTIES)
    return [float(((features.decisions(outer)(w) > 0) == right).all(2).double().mean()) for w in solved]


def test_scores_that_fall_before_they_rise_do_not_end_the_search():
    """At small C the largest class alone is found; its share is lost before the others are told apart."""
    generator = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 540 + [1] * 276 + [2] * 184)[torch.randperm(1000, generator=generator)]
    words = torch.rand(3, 200, generator=generator) < 0.1
    x = (torch.rand(1000, 200, generator=generator) < 0.05 + 0.15 * words[y]).float()
    x = prepare(csr_tensor(torch.nn.functional.normalize(x).numpy()), torch.arange(1000))
    train = torch.arange(400)
    orders = draw_orders(400, torch.Generator().manual_seed(3))
    scores = _scores(x, y, train, 3, orders)
    fallen = [c for c in range(21) if scores[c] < max(scores[:c], default=0) and c < scores.index(max(scores))]
    assert len(fallen) >= 4
    _, chosen = search_and_fit(x, y, train, torch.arange(400, 1000), 3, orders)
    # a held-out row on the boundary of a class may fall on either side
    assert scores[PENALTIES.index(chosen)] >= max(scores) - 2 / 1000


def test_larger_penalties_are_not_tried_once_they_do_not_pay(monkeypatch):
    x, y = _points(n=800, d=60, noise=4.0, seed=4)
    x, train = prepare(x, torch.arange(800)), torch.arange(400)
    orders = draw_orders(400, torch.Generator().manual_seed(5))
    scores = _scores(x, y, train, 4, orders)
    tried = []

    def watched(features, positive, penalties, *rest):
        tried.extend(penalties.tolist())
        return solve(features, positive, penalties, *rest)

    monkeypatch.setattr("carlg.classifier.solve", watched)
    _, chosen = search_and_fit(x, y, train, torch.arange(400, 800), 4, orders)
    assert chosen == PENALTIES[scores.index(max(scores))] == 2.0**3
    assert max(tried) < PENALTIES[-1]
