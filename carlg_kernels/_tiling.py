"""Tile sizes of the Triton kernels: a pure function of dtype, sizes and target, so that results never depend on a tuning run.

Three shapes of work: ``score_tiles`` (rows x centroids x dimensions through the matrix unit), ``row_tiles`` (rows x dimensions,
memory bound) and ``cluster_tiles`` (one program a cluster that gathers the cluster's rows).
"""

from dataclasses import dataclass

import torch

# What the smallest GPU of a family gives one block: sm_86/89/120, gfx942, and Intel's shared local memory.
_SHARED_BYTES = {"cuda": 99 << 10, "hip": 64 << 10, "xpu": 64 << 10}
_ROW_TILE = 2048
_MANY_ROWS = 1 << 16
_MANY_CLUSTERS = 128
_MAX_PARTS = 4


@dataclass(frozen=True)
class ScoreTiles:
    block_n: int
    block_c: int
    block_d: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class RowTiles:
    block_n: int
    block_d: int
    num_warps: int = 4


@dataclass(frozen=True)
class ClusterTiles:
    """``parts`` programs share a cluster, each with ``span`` dimensions; a program lists members from ``block_l`` labels at a time."""

    block_l: int
    block_n: int
    block_d: int
    parts: int
    span: int
    num_warps: int = 4


def target() -> str:
    """The GPU family that this torch serves: "cuda", "hip" or "xpu"."""
    if torch.version.hip is not None:
        return "hip"
    return "xpu" if torch.version.cuda is None and torch.xpu.is_available() else "cuda"


def precision(dtype: torch.dtype) -> str:
    """``tl.dot`` mode that ranks like true float32: three TF32 products on NVIDIA, the native float32 matrix unit elsewhere."""
    return "tf32x3" if target() == "cuda" and dtype != torch.float64 else "ieee"


def power_of_two(value: int, low: int, high: int) -> int:
    """The smallest power of two that holds ``value``, between ``low`` and ``high``."""
    return min(max(1 << max(value - 1, 0).bit_length(), low), high)


def score_tiles(dtype: torch.dtype, n: int, c: int, d: int) -> ScoreTiles:
    if dtype == torch.float64:
        return ScoreTiles(32, power_of_two(c, 16, 32), 16, 4, 2)
    block_n = 128 if n >= _MANY_ROWS else 64
    block_c = power_of_two(c, 16, 64)
    # Deeper tiles spill registers on sm_80: three TF32 products keep both operands in two pieces.
    block_d = 16
    stages = 3 if target() == "cuda" else 1
    while stages > 1 and 4 * stages * (block_n + block_c) * block_d > _SHARED_BYTES[target()] // 2:
        stages -= 1
    return ScoreTiles(block_n, block_c, block_d, block_n // 16, stages)


def row_tiles(d: int) -> RowTiles:
    block_d = power_of_two(d, 16, 128)
    return RowTiles(_ROW_TILE // block_d, block_d)


def sum_tiles(d: int) -> RowTiles:
    """Row tiles of kernels that add up in float64: half the size, for twice the registers an element."""
    tile = row_tiles(d)
    return RowTiles(tile.block_n // 2, tile.block_d)


def cluster_tiles(c: int, d: int, whole_rows: bool = False) -> ClusterTiles:
    """``whole_rows``: a program needs all dimensions of a row (its norm), so the cluster is not shared."""
    tile = sum_tiles(d)
    blocks = -(-d // tile.block_d)
    parts = 1 if whole_rows or c >= _MANY_CLUSTERS else min(blocks, _MAX_PARTS)
    span = -(-blocks // parts) * tile.block_d
    return ClusterTiles(1024, tile.block_n, tile.block_d, -(-d // span), span)
