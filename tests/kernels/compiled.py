"""Ahead-of-time compilation of whatever the launchers start, for any GPU, without one.

``common.launch`` is replaced by a recorder (:func:`recorded`) or by an executor of the compiled PTX (``ptx.py``), so the kernels are always
compiled with the launchers' own tiles, constants and argument types.
"""

import contextlib
import functools
import inspect
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from carlg_kernels import _tiling
from carlg_kernels._triton import common

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_ALIGNED = [["tt.divisibility", 16]]
_PTXAS = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Launch:
    """One call of ``common.launch``, specialised as the run-time would: hashable, so that equal launches compile once."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[int, ...]
    num_warps: int
    num_stages: int | None

    @property
    def name(self) -> str:
        return str(self.kernel.__name__)


def specialise(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Launch:
    names = list(inspect.signature(kernel.fn).parameters)
    values = dict(zip(names, args, strict=False)) | {k: v for k, v in options.items() if k in names}
    fixed = {p.name for p in kernel.params if p.do_not_specialize}
    signature, constants, aligned = [], [], []
    for position, name in enumerate(names):
        value = values[name]
        if isinstance(value, Tensor):
            kind = _POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0:
                aligned.append(position)
        elif isinstance(value, float):
            kind = "fp32"
        elif type(value) is not int or kernel.params[position].is_constexpr or (value == 1 and name not in fixed):
            kind = "constexpr"
            constants.append((name, value))
        else:
            kind = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and name not in fixed:
                aligned.append(position)
        signature.append((name, kind))
    return Launch(kernel, tuple(signature), tuple(constants), tuple(aligned), options["num_warps"], options.get("num_stages"))


@contextlib.contextmanager
def recorded(target: str) -> Iterator[list[Launch]]:
    """The launches made inside, for a GPU family; nothing runs."""
    launches: list[Launch] = []

    def record(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        assert len(grid) <= 2 and all(size >= 1 for size in grid)
        launches.append(specialise(kernel, args, options))

    family = TARGETS[target].backend
    with mock.patch.object(common, "launch", record), mock.patch.object(_tiling, "target", lambda: family):
        yield launches


@functools.cache
def compiled(launch: Launch, target: str) -> Any:
    source = ASTSource(
        fn=launch.kernel,
        signature=dict(launch.signature),
        constexprs=dict(launch.constants),
        attrs={(position,): _ALIGNED for position in launch.aligned},
    )
    options = {"num_warps": launch.num_warps, "enable_fp_fusion": True}
    if launch.num_stages is not None:
        options["num_stages"] = launch.num_stages
    return triton.compile(source, target=TARGETS[target], options=options)


@functools.cache
def resources(launch: Launch, target: str) -> dict[str, int]:
    """Registers, spilled bytes (NVIDIA) or registers (AMD), and shared memory of a compiled launch."""
    binary = compiled(launch, target)
    shared = int(binary.metadata.shared)
    if TARGETS[target].backend == "hip":
        text = binary.asm["amdgcn"]
        spills = re.findall(r"\.[vs]gpr_spill_count:\s+(\d+)", text)
        registers = re.search(r"\.vgpr_count:\s+(\d+)", text)
        assert registers is not None and len(spills) == 2
        return {"registers": int(registers[1]), "spills": sum(map(int, spills)), "shared": shared}
    arch = TARGETS[target].arch
    ptxas = _PTXAS / ("ptxas-blackwell" if arch >= 90 and (_PTXAS / "ptxas-blackwell").exists() else "ptxas")
    found = re.search(r"\.target\s+(\w+)", binary.asm["ptx"])
    assert found is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(binary.asm["ptx"])
        file.flush()
        report = subprocess.run(
            [str(ptxas), "-v", f"--gpu-name={found[1]}", file.name, "-o", "/dev/null"],
            check=True, capture_output=True, text=True,
        ).stderr  # fmt: skip
    registers = re.search(r"Used (\d+) registers", report)
    stores = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers is not None and stores is not None, report
    return {"registers": int(registers[1]), "spills": int(stores[1]) + int(stores[2]), "shared": shared}
