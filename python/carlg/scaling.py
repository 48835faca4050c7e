"""How features become what the encoder reads. The statistics are the model's: another graph is scaled by those of the graph trained on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from carlg.config import ConfigError

_MODES = ("none", "row", "column", "row+column")


@dataclass(frozen=True)
class Scaling:
    """Subtract ``shift`` and divide by the row sum (mode "row"), standardise the columns ("column"), both ("row+column"), or "none"."""

    mode: str
    shift: float = 0.0
    mean: Tensor | None = None  # (f,); None: not centred, as sparse features are
    deviation: Tensor | None = None  # (f,)

    def apply(self, x: Tensor) -> Tensor:
        """The features scaled. CSR stays CSR where nothing is subtracted."""
        if "row" in self.mode:
            x = _divide_rows(_subtract(x, self.shift) if self.shift else x)
        if self.deviation is not None:
            x = _divide_columns(x if self.mean is None else _subtract(x, self.mean), self.deviation)
        return x

    def same(self, other: "Scaling | None") -> bool:
        """Whether both scale every graph alike."""
        if other is None or (self.mode, self.shift) != (other.mode, other.shift):
            return False
        pairs = ((self.mean, other.mean), (self.deviation, other.deviation))
        return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)

    def state(self) -> dict[str, Any]:
        return vars(self).copy()


def fit_scaling(x: Tensor, mode: str) -> Scaling:
    """The scaling of these features by ``mode``; "auto" is "row" where no value is negative, else "column"."""
    if mode == "auto":
        values = x.values() if x.layout == torch.sparse_csr else x
        mode = "row" if values.numel() == 0 or float(values.min()) >= 0 else "column"
    if mode not in _MODES:
        raise ConfigError(f"features must be auto or one of {', '.join(_MODES)}, got {mode!r}")
    if mode == "none":
        return Scaling("none")
    dense = x.layout == torch.strided
    shift = float(x.min()) if "row" in mode and dense else 0.0
    if "column" not in mode:
        return Scaling(mode, shift)
    if "row" in mode:
        x = Scaling("row", shift).apply(x)
    if dense:
        return Scaling(mode, shift, x.mean(0), x.std(0, correction=0))
    return Scaling(mode, shift, None, _sparse_deviation(x))


def _sparse_deviation(x: Tensor) -> Tensor:
    """Population deviation of every column, zeros counted."""
    nodes, features = x.shape
    values = x.values().double()
    mean, square = (torch.zeros(features, dtype=torch.float64).index_add_(0, x.col_indices(), v) / nodes for v in (values, values.square()))
    return (square - mean.square()).clamp(min=0).sqrt().float()


def _subtract(x: Tensor, level: Tensor | float) -> Tensor:
    return (x.to_dense() if x.layout == torch.sparse_csr else x) - level


def _divide_rows(x: Tensor) -> Tensor:
    """Every row divided by its sum, where that is above 1 (torch_geometric's NormalizeFeatures)."""
    if x.layout != torch.sparse_csr:
        return x / x.sum(1, keepdim=True).clamp(min=1.0)
    rows = torch.repeat_interleave(torch.arange(x.shape[0]), x.crow_indices().diff())
    sums = torch.zeros(x.shape[0]).index_add_(0, rows, x.values()).clamp_(min=1.0)
    return _with_values(x, x.values() / sums[rows])


def _divide_columns(x: Tensor, deviation: Tensor) -> Tensor:
    """Constant columns are left as they are."""
    divisor = torch.where(deviation > 0, deviation, torch.ones(()))
    if x.layout != torch.sparse_csr:
        return x / divisor
    return _with_values(x, x.values() / divisor[x.col_indices()])


def _with_values(x: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, size=x.shape, check_invariants=False)
