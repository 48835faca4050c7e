"""Checks of ptxrun itself: CUDA C++ through nvcc, executed on the CPU; what must fail, fails."""

import functools
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent))
from ptxrun import Kernel, PtxError, Unsupported  # noqa: E402

if shutil.which("g++") is None:
    pytest.skip("g++ is needed to execute PTX on the CPU", allow_module_level=True)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")


@functools.cache
def compiled(source: str) -> str:
    command = ["nvcc", "-ptx", "-arch=sm_80", "-o", "-", str(HERE / "programs" / source)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@needs_nvcc
def test_saxpy() -> None:
    n = 1000
    x, y = np.random.default_rng(0).standard_normal((2, n), dtype=np.float32)
    out = Kernel(compiled("saxpy.cu"), "saxpy")([n, 2.5, x, y], (n + 127) // 128, 128)
    assert abs(out[1] - (np.float32(2.5) * x + y)).max() < 2e-6


@needs_nvcc
@pytest.mark.parametrize("order", [0, -1, 7])
def test_pairwise_row_sums(order: int) -> None:
    """Shared memory, barriers, shuffles, atomics, square roots."""
    n, d = 300, 70
    blocks = (n + 31) // 32
    x = np.random.default_rng(1).standard_normal((n, d), dtype=np.float32)
    arguments = [x, np.zeros(n, np.float32), np.zeros(1, np.float32), n, d]
    out = Kernel(compiled("pair.cu"), "pair_rowsum")(arguments, (blocks, blocks), (32, 8), order=order)
    want = np.sqrt(((x[:, None].astype(float) - x[None]) ** 2).sum(-1)).sum(1)
    assert abs(out[1] / want - 1).max() < 1e-6


@needs_nvcc
def test_missing_barrier_gives_a_wrong_result() -> None:
    out = Kernel(compiled("ops.cu"), "nosync")([np.zeros(128, np.float32)], 1, 128)
    assert not np.array_equal(out[0], 127 - np.arange(128.0))


@needs_nvcc
def test_missing_wait_gives_a_wrong_result() -> None:
    x = np.random.default_rng(2).standard_normal(512).astype(np.float32)
    kernel = Kernel(compiled("ops.cu"), "cpa")
    right = [np.array_equal(kernel([x, np.zeros(128, np.float32), wait], 1, 128)[1], x[::-1][:128]) for wait in (1, 0)]
    assert right == [True, False]


@needs_nvcc
def test_out_of_bounds_names_the_line() -> None:
    with pytest.raises(PtxError, match="out-of-bounds .* PTX line"):
        Kernel(compiled("ops.cu"), "oob")([np.zeros(100, np.float32), 0], 1, 128)


@needs_nvcc
def test_deadlock_is_found() -> None:
    with pytest.raises(PtxError, match="deadlock"):
        Kernel(compiled("ops.cu"), "dl")([np.zeros(1, np.float32)], 1, 32)


def test_unsupported_is_named() -> None:
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nwgmma.fence.sync.aligned;\nret;\n}\n"
    with pytest.raises(Unsupported, match="wgmma"):
        Kernel(text, "k")
