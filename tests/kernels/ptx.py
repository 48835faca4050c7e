"""Launchers on CPU tensors through the compiled sm_80 code: every launch runs its PTX on the CPU with ``tests/ptxrun``."""

import contextlib
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from compiled import Launch, compiled, specialise
from torch import Tensor

from carlg_kernels import _tiling
from carlg_kernels._triton import common

sys.path.append(str(pathlib.Path(__file__).parents[1]))
from ptxrun import Kernel  # noqa: E402

TARGET = "sm_80"


@functools.cache
def translated(launch: Launch) -> Kernel:
    return Kernel(compiled(launch, TARGET).asm["ptx"], launch.name)


def buffer(tensor: Tensor) -> np.ndarray:
    """The memory of a tensor from its first element to the end of its storage, whatever its strides."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    flat = tensor.detach().as_strided((size,), (1,))
    return (flat.view(torch.int16) if tensor.dtype == torch.bfloat16 else flat).numpy()


@contextlib.contextmanager
def executed(order: int) -> Iterator[set[str]]:
    """Run launches in the thread order ``order`` (0 ascending, -1 descending, a seed); yields the names of the kernels that ran."""
    names: set[str] = set()

    def run(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        launch = specialise(kernel, args, options)
        constants = dict(launch.constants)
        values = [
            buffer(v) if isinstance(v, Tensor) else v for (name, _), v in zip(launch.signature, args, strict=False) if name not in constants
        ]
        shared = compiled(launch, TARGET).metadata.shared
        translated(launch)(values, grid, 32 * launch.num_warps, shared, order=order, resident=3, inplace=True, timeout=120)
        names.add(launch.name)

    with mock.patch.object(common, "launch", run), mock.patch.object(_tiling, "target", lambda: "cuda"):
        yield names
