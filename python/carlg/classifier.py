"""L2-regularised one-vs-rest logistic regression, several penalties, all folds and all classes solved as one batched problem.

For every fold, penalty C and class, with y in {-1, 1} and a constant feature 1 (penalised, as liblinear does):

    min_w  |w|^2 / 2 + C sum_i log(1 + exp(-y_i w.x_i))

Newton's method with conjugate gradients. Dense features are first rotated into the eigenvectors of X^T X, where the diagonal
1 + C mean(p (1 - p)) lambda_j is a close preconditioner for all problems at once. Solved problems leave the batch, those whose direction
is found leave the conjugate gradients. The penalties go up in groups, each started on the line that the last two solutions draw over log C:
that is faster than the whole grid at once from zero, and large C need not be tried where they do not pay.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from carlg.graph import take_rows
from carlg.propagation import SparseMatrix, build_csr, multiply, short_columns, transpose
from carlg_kernels.ops.dense_product import dense_product

PENALTIES = tuple(2.0**k for k in range(-10, 11))
# Small C are solved in a step or two, so the first group is long.
_GROUPS = (PENALTIES[:5], *(PENALTIES[i : i + 2] for i in range(5, len(PENALTIES), 2)))
# So many C in a row with a score below the best end the search. Up to _SMALL none does: there the scores start as the share of the largest
# class, and fall before they rise.
_PATIENCE, _SMALL = 4, 1.0
# The last fit is one problem a class and decides alone, so it is solved further than the grid.
_FINAL = 0.1
# Share of the problems of a batch up to which those still at work are moved to a batch of their own.
_CROWDED = 0.7


class Design(Protocol):
    """Features of all folds: products with weights (folds, features, problems), and the squared column lengths (folds, features)."""

    squares: Tensor

    def product(self, weights: Tensor) -> Tensor: ...

    def adjoint(self, values: Tensor) -> Tensor: ...


class Rotated:
    """Dense features with a constant column, in the basis of the eigenvectors of X^T X over some rows; made once for all splits."""

    def __init__(self, x: Tensor, rows: Tensor) -> None:
        x = torch.cat([x, x.new_ones(x.shape[0], 1)], 1)
        taken = x[rows]
        if not bool(taken.isfinite().all()):
            raise ValueError("features must be finite to be classified, got NaN or infinite values")
        basis = torch.linalg.eigh(dense_product(taken.t(), taken).double())[1].to(x.dtype)
        self.x = dense_product(x, basis)


class DenseDesign:
    """Rows of every fold of rotated features."""

    def __init__(self, features: Rotated, rows: Tensor) -> None:
        self.every = features.x
        self.x = self.every[rows]
        self.transposed = self.x.mT.contiguous()
        self.squares = self.x.square().sum(1)

    def product(self, weights: Tensor) -> Tensor:
        return dense_product(self.x, weights)

    def adjoint(self, values: Tensor) -> Tensor:
        return dense_product(self.transposed, values)

    def decisions(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Of weights on other rows of every fold."""
        taken = self.every[rows]
        return lambda weights: dense_product(taken, weights)


class SparseDesign:
    """The same for sparse features, which stay sparse: the folds are the blocks of one block-diagonal matrix."""

    def __init__(self, x: Tensor, rows: Tensor) -> None:
        self.source = x
        self.shape = (rows.shape[0], x.shape[1] + 1)
        blocks = self._blocks(rows)
        self.matrix = SparseMatrix(blocks, transpose(blocks))
        squares = torch.zeros(blocks.shape[1]).index_add_(0, blocks.col_indices(), blocks.values().square())
        self.squares = squares.view(self.shape)

    def _blocks(self, rows: Tensor) -> Tensor:
        """Rows (folds, m), each with a constant behind its features; a fold has columns of its own."""
        folds, width = self.shape
        taken = take_rows(self.source, rows.flatten())
        lengths = taken.crow_indices().diff()
        fold = torch.arange(folds).repeat_interleave(rows.shape[1])
        row = torch.arange(rows.numel())
        place = torch.repeat_interleave(row, lengths)
        return build_csr(
            torch.cat([place, row]),
            torch.cat([taken.col_indices() + width * fold[place], width * (fold + 1) - 1]),
            torch.cat([taken.values(), torch.ones(rows.numel())]),
            (rows.numel(), folds * width),
        )

    def product(self, weights: Tensor) -> Tensor:
        return self.matrix.product(weights.flatten(0, 1), transposed=False).unflatten(0, (self.shape[0], -1))

    def adjoint(self, values: Tensor) -> Tensor:
        return self.matrix.product(values.flatten(0, 1), transposed=True).unflatten(0, self.shape)

    def decisions(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        """Of weights on other rows of every fold."""
        blocks = self._blocks(rows)
        columns = short_columns(blocks)
        return lambda weights: multiply(blocks, weights.flatten(0, 1), columns).unflatten(0, tuple(rows.shape))


def prepare(x: Tensor, rows: Tensor) -> Tensor | Rotated:
    """Features as :func:`design` reads them, ``rows`` those that take part: dense ones rotated, CSR as they are."""
    return x if x.layout == torch.sparse_csr else Rotated(x, rows)


def design(features: Tensor | Rotated, rows: Tensor) -> DenseDesign | SparseDesign:
    """The rows (folds, m) of :func:`prepare`'s features."""
    return DenseDesign(features, rows) if isinstance(features, Rotated) else SparseDesign(features, rows)


def solve(
    features: Design,
    positive: Tensor,
    penalties: Tensor,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_newton: int = 30,
) -> Tensor:
    """Weights (folds, features, problems) of the problems with targets ``positive`` (folds, m, problems) and a C each (problems,).

    ``tolerance``: length of the gradient relative to that at w = 0.
    """
    folds, width = features.squares.shape
    problems = positive.shape[2]
    weights = features.squares.new_zeros(folds, width, problems) if start is None else start.clone()
    margins = features.product(weights)
    goal = tolerance * (penalties * features.adjoint(0.5 - positive)).norm(dim=1)
    active = torch.arange(problems)
    w, u, y, c, limit = weights.clone(), margins, positive, penalties, goal
    for _ in range(max_newton):
        probability = torch.sigmoid(u)
        gradient = features.adjoint(probability - y).mul_(c).add_(w)
        slope = gradient.norm(dim=1)
        undone = (slope > limit).any(0)
        if not bool(undone.all()):
            weights[:, :, active] = w
            keep = undone.nonzero().flatten()
            if keep.numel() == 0:
                return weights
            active, c = active[keep], c[keep]
            w, u, y = w[:, :, keep], u[:, :, keep], y[:, :, keep]
            probability, gradient = probability[:, :, keep], gradient[:, :, keep]
            limit = limit[:, keep]
        curvature = probability.mul_(1 - probability)
        direction, moved = _newton_direction(features, gradient, curvature, c)
        step = _line_search(w, u, y, c, direction, moved, gradient)
        w, u = w + step * direction, u + step * moved
    weights[:, :, active] = w
    return weights


def _newton_direction(features: Design, gradient: Tensor, curvature: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """d and X d with (I + C X^T diag(curvature) X) d close to -gradient: a tenth of its length is left, in the preconditioner's norm."""
    condition = 1 / (1 + (c * curvature.mean(1))[:, None, :] * features.squares[:, :, None])
    bends = c * curvature
    residual = -gradient
    search = condition * residual
    whole = torch.zeros_like(gradient), torch.zeros_like(curvature)
    direction, moved = whole
    energy = (residual * search).sum(1, keepdim=True)
    enough = 0.01 * energy
    active = torch.arange(gradient.shape[2])
    for _ in range(40):
        forward = features.product(search)
        image = features.adjoint(bends * forward).add_(search)
        bend = (search * image).sum(1, keepdim=True)
        alpha = torch.where(bend > 0, energy / bend.clamp(min=1e-30), torch.zeros_like(bend))
        direction.addcmul_(alpha, search)
        moved.addcmul_(alpha, forward)
        residual.addcmul_(alpha, image, value=-1)
        preconditioned = condition * residual
        fresh = (residual * preconditioned).sum(1, keepdim=True)
        undone = (fresh > enough).any(0)[0]
        left = int(undone.count_nonzero())
        if left == 0:
            break
        search = torch.addcmul(preconditioned, fresh / energy.clamp(min=1e-30), search)
        energy = fresh
        if left <= _CROWDED * len(active):
            _put(whole, active, (direction, moved))
            keep = undone.nonzero().flatten()
            active = active[keep]
            direction, moved, bends, condition, residual, search, energy, enough = (
                t.index_select(2, keep) for t in (direction, moved, bends, condition, residual, search, energy, enough)
            )
    _put(whole, active, (direction, moved))
    return whole


def _put(whole: tuple[Tensor, Tensor], columns: Tensor, parts: tuple[Tensor, Tensor]) -> None:
    """Parts into their columns, unless they are the whole."""
    for target, part in zip(whole, parts, strict=True):
        if part is not target:
            target[:, :, columns] = part


def _line_search(w: Tensor, u: Tensor, y: Tensor, c: Tensor, direction: Tensor, moved: Tensor, gradient: Tensor) -> Tensor:
    """Largest of 1, 1/2, 1/4, ... that lowers every objective enough; X is not needed, the margins are linear in the step."""
    square, cross, second = ((a * b).sum(1) for a, b in ((w, w), (w, direction), (direction, direction)))
    descent = (gradient * direction).sum(1)

    def objective(step: Tensor) -> Tensor:
        at = torch.addcmul(u, step[:, None, :], moved)
        data = (torch.nn.functional.softplus(at) - y * at).sum(1)
        return 0.5 * (square + 2 * step * cross + step * step * second) + c * data

    base = objective(torch.zeros_like(square))
    step = torch.ones_like(square)
    for _ in range(12):
        bad = objective(step) > base + 1e-4 * step * descent + 1e-5 * base.abs()
        if not bool(bad.any()):
            break
        step = torch.where(bad, 0.5 * step, step)
    return step[:, None, :]


def one_hot(y: Tensor, classes: int) -> Tensor:
    return torch.nn.functional.one_hot(y, classes).to(torch.float32)


def climb(features: Design, hot: Tensor, tolerance: float = 1e-4) -> Iterator[tuple[float, Tensor]]:
    """Every C of :data:`PENALTIES` and its weights (folds, features, classes) for the targets ``hot`` (folds, m, classes)."""
    classes = hot.shape[2]
    known: list[Tensor] = []
    for group in _GROUPS:
        start = None
        if known:
            last, step = known[-1], known[-1] - known[-2]
            start = torch.cat([last + (i + 1) * step for i in range(len(group))], 2)
        penalties = torch.tensor(group).repeat_interleave(classes)
        known = list(solve(features, hot.repeat(1, 1, len(group)), penalties, start, tolerance).split(classes, 2))
        yield from zip(group, known, strict=True)


def fit_grid(x: Tensor | Rotated, y: Tensor, rows: Tensor, classes: int) -> tuple[DenseDesign | SparseDesign, Tensor]:
    """Weights (folds, features, penalties x classes) for every C of :data:`PENALTIES` on the rows (folds, m) of prepared features."""
    features = design(x, rows)
    return features, torch.cat([weights for _, weights in climb(features, one_hot(y[rows], classes))], 2)


def search(features: DenseDesign | SparseDesign, hot: Tensor, held: Tensor, held_hot: Tensor, tolerance: float) -> tuple[float, Tensor]:
    """The C with the best subset accuracy on the held-out rows (folds, m), ties to the smallest, and its weights.

    C rises until it no longer pays.
    """
    decide = features.decisions(held)
    best, score, worse = PENALTIES[0], -1.0, 0
    kept = hot.new_zeros(*features.squares.shape, hot.shape[2])
    for penalty, weights in climb(features, hot, tolerance):
        exact = ((decide(weights) > 0) == held_hot.bool()).all(2)
        found = float(exact.double().mean())
        worse = worse + 1 if penalty > _SMALL and found < score else 0
        if found > score:
            best, score, kept = penalty, found, weights
        if worse == _PATIENCE:
            break
    return best, kept


def draw_orders(size: int, generator: torch.Generator, folds: int = 5) -> Tensor:
    """Orders (folds, size) of the training nodes; the first half of each is fitted, the other scored."""
    return torch.stack([torch.randperm(size, generator=generator) for _ in range(folds)])


def search_bytes(x: Tensor, train: int, classes: int, folds: int = 5) -> int:
    """About what :func:`search_and_fit` takes at a time: the rows of its folds twice, and six tables of the first group's problems."""
    width = 2 * x.values().numel() // x.shape[0] if x.layout == torch.sparse_csr else x.shape[1]
    return 4 * folds * (train // 2) * (2 * width + 6 * len(_GROUPS[0]) * classes)


def search_and_fit(
    x: Tensor | Rotated, y: Tensor, train: Tensor, test: Tensor, classes: int, order: Tensor, tolerance: float = 1e-4
) -> tuple[Tensor, float]:
    """Predictions for ``test`` from prepared features, and the chosen C; the grid is scored by subset accuracy on halves of ``train``.

    ``order``: of the nodes of ``train``, as :func:`draw_orders` gives it. ``tolerance``: of the grid, as :func:`solve` takes it; the last
    fit is solved ten times further.
    """
    size = train.shape[0]
    half = size - (size + 1) // 2
    inner, outer = train[order[:, :half]], train[order[:, half:]]
    best, found = search(design(x, inner), one_hot(y[inner], classes), outer, one_hot(y[outer], classes), tolerance)
    final = design(x, train[None])
    start = found.mean(0, keepdim=True)
    fitted = solve(final, one_hot(y[train], classes)[None], torch.full((classes,), best), start, _FINAL * tolerance)
    return final.decisions(test[None])(fitted)[0].argmax(1), best
