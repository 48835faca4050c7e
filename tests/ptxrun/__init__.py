"""Execute PTX kernels on the CPU, to check CUDA C++ and Triton kernels without a GPU.

    from ptxrun import run
    outs = run(ptx_text, "kernel", [x, y, n, 2.5], grid, block, smem)   # -> the array arguments after the run

The PTX text is parsed and translated to one C++ state machine per kernel, compiled with g++ (cached by content), and called through
ctypes. Every GPU thread runs on its own until it reaches a block barrier or a warp collective (shfl, vote, mma, ldmatrix ...), which is
the least synchronised execution the programming model allows: a missing __syncthreads/__syncwarp or a missing cp.async wait shows up as
a wrong result. ``order`` permutes the schedule (0 ascending, -1 warps, lanes and blocks descending, k > 0 seeded shuffle of warps and
lanes). Global, shared and generic accesses are checked for bounds and alignment; shared memory starts as 0xff bytes (NaN). Device
functions are inlined. Anything not supported raises Unsupported, with all the offending instructions named, before anything is run.
"""

from .kernel import Kernel, run
from .tables import PtxError, Unsupported

__all__ = ["Kernel", "PtxError", "Unsupported", "run"]
