"""||z_u - mu_own||,  second_u - ||z_u - before_u||  and  ||z_u - origin||^2, without the care for rounding of the kernel."""

import torch
from torch import Tensor

from carlg_kernels.reference.common import points
from carlg_kernels.reference.own_distance import own_distance


def carried_bounds(z: Tensor, before: Tensor, centroids: Tensor, origin: Tensor, labels: Tensor, second: Tensor) -> Tensor:
    everyone = torch.arange(z.shape[0], device=z.device)
    upper = own_distance(z, centroids, labels).sqrt()
    lower = second - own_distance(z, points(before), everyone).sqrt()
    return torch.stack([upper, lower, own_distance(z, origin[None], torch.zeros_like(labels))])
