"""Distances along edges:  D_e = ||z_{u_e} - z_{v_e}||.  Gradient:  dz_u = sum_{e: u_e=u} g_e x_e - sum_{e: v_e=u} g_e x_e  with x_e the
unit vector of z_{u_e} - z_{v_e}, 0 where D_e = 0. Edges in blocks, so that no |E| x d table is stored."""

from typing import Any

from torch import Tensor

from carlg_kernels._library import call, register
from carlg_kernels._typing import compute_dtype
from carlg_kernels.reference import edge_distances as reference


def _fake(z: Tensor, edge_index: Tensor) -> Tensor:
    return z.new_empty((edge_index.shape[1],), dtype=compute_dtype(z.dtype))


def _backward_fake(grad: Tensor, z: Tensor, edge_index: Tensor) -> Tensor:
    return z.new_empty(z.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return call("edge_distances_backward", grad, *ctx.saved_tensors), None


register(
    "edge_distances",
    "(Tensor z, Tensor edge_index) -> Tensor",
    reference=reference.edge_distances,
    fake=_fake,
    cpp=(),
    triton=False,
    setup_context=_setup_context,
    backward=_backward,
)
register(
    "edge_distances_backward",
    "(Tensor grad, Tensor z, Tensor edge_index) -> Tensor",
    reference=reference.edge_distances_backward,
    fake=_backward_fake,
    cpp=(),
    triton=False,
)


def edge_distances(z: Tensor, edge_index: Tensor) -> Tensor:
    return call("edge_distances", z, edge_index)  # type: ignore[no-any-return]
