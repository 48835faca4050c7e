"""One Lloyd step:  label_u = argmin_j ||z_u - mu_j||,  then  mu_j = sum_{u in j} w_u z_u / m_j,  m_j = sum_{u in j} w_u.

The step keeps per-point state between the iterations of a call and updates it in place, so that points whose label cannot have changed
are not looked at again:

    bounds[0]_u >= ||z_u - previous_{label_u}||      bounds[1]_u <= min_{j != label_u} ||z_u - previous_j||
    bounds[2]_u  = ||z_u - origin||^2

When the centroids move from ``previous`` to ``centroids`` the first bound grows by the move of the own centroid and the second shrinks by
the moves of the others. Label -1 means that nothing is known of a point, which is how a run begins. Label -2 - j is a guess j from before
the points moved: the bounds hold, but the means of the clusters do not, so that the point counts as changed. Backends without bounds leave
``bounds`` alone. ``progress`` holds the squared move of all centroids, the number of changed labels and the number of empty clusters.
Empty clusters keep their centroid.
"""

import torch
from torch import Tensor

from carlg_kernels._library import register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import lloyd as reference

Outputs = tuple[Tensor, Tensor, Tensor]


def _fake(
    z: Tensor,
    weights: Tensor | None,
    centroids: Tensor,
    previous: Tensor,
    origin: Tensor,
    labels: Tensor,
    bounds: Tensor,
) -> Outputs:
    wide = torch.float32 if z.device.type == "mps" else torch.float64
    mass = centroids.new_empty(centroids.shape[0], dtype=wide)
    return centroids.new_empty(centroids.shape), mass, mass.new_empty(3)


register(
    "lloyd",
    "(Tensor z, Tensor? weights, Tensor centroids, Tensor previous, Tensor origin, Tensor(a!) labels, Tensor(b!) bounds)"
    " -> (Tensor means, Tensor mass, Tensor progress)",
    reference=reference.lloyd,
    fake=_fake,
)


def new_state(z: Tensor) -> tuple[Tensor, Tensor]:
    """Labels and bounds before the first step."""
    labels = torch.full((z.shape[0],), -1, dtype=torch.int64, device=z.device)
    return labels, torch.empty((3, z.shape[0]), dtype=compute_dtype(z.dtype), device=z.device)


def lloyd(
    z: Tensor,
    weights: Tensor | None,
    centroids: Tensor,
    previous: Tensor,
    origin: Tensor,
    labels: Tensor,
    bounds: Tensor,
) -> Outputs:
    return torch.ops.carlg_kernels.lloyd(  # type: ignore[no-any-return]
        z, weights, centroids, previous, origin, labels, bounds
    )
