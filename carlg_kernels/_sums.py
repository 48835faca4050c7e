"""Sums with the same bits for any number of threads."""

from torch import Tensor

from carlg_kernels import ops

_SAMPLE_ROWS = 1024


def fixed_sum(values: Tensor) -> float:
    """The sum of a vector, in float64 where the device has it."""
    if values.device.type == "cpu":
        return float(values.double().numpy().sum())
    wide = values if values.device.type == "mps" else values.double()
    return float(wide.sum())


def mean_of_rows(z: Tensor) -> Tensor:
    """The mean of z, shape (d,)."""
    labels = z.new_zeros(z.shape[0]).long()
    return ops.centroid_update.centroid_update(z, labels, None, 1)[0][0]


def origin_of(z: Tensor) -> Tensor:
    """A point amid z that distances are expanded around: the mean of some rows."""
    step = max(1, z.shape[0] // _SAMPLE_ROWS)
    return mean_of_rows(z[::step])


def mean_variance(z: Tensor) -> float:
    """The mean over the features of their variance."""
    distances = ops.assign.assign(z, mean_of_rows(z)[None])[1]
    return fixed_sum(distances.double().square()) / z.numel()
