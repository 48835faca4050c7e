"""csrc/cuda on the CPU: the host code as compiled by nvcc, on CPU tensors, its kernels executed as PTX of sm_80 by ``tests/ptxrun``.

``fake_cuda.cpp`` stands in for the CUDA runtime. The operators are then ``torch.ops.carlg_kernels_ptx.silhouette`` and
``silhouette_backward``; every launch runs through :class:`Device`, which also checks all accesses against the tensors' bounds.
"""

import ctypes
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "csrc" / "cuda"
ARCHITECTURES = ("80", "90", "100")
FILES = ("silhouette_forward", "silhouette_backward")

sys.path.insert(0, str(HERE.parent))
from ptxrun import Kernel  # noqa: E402


@dataclass(frozen=True)
class Compiled:
    ptx: str  # of sm_80
    report: str  # of ptxas -v, all architectures
    object: pathlib.Path


def _torch_folder() -> pathlib.Path:
    return pathlib.Path(torch.__file__).parent


def _kept(key: list[str], work_file: str) -> tuple[pathlib.Path, bool]:
    """A folder for results of ``key`` that survives the run, and whether ``work_file`` is in it already."""
    name = hashlib.sha256("\0".join(key).encode()).hexdigest()[:24]
    folder = pathlib.Path(tempfile.gettempdir()) / "carlg_kernels_ptx" / name
    return folder, (folder / work_file).exists()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(" ".join(command) + "\n" + done.stderr)
    return done.stderr


def _compile(name: str) -> Compiled:
    command = ["nvcc", "-std=c++20", "-O3", "-c", "--keep", "-Xptxas=-v", "-Xcompiler=-fPIC"]
    command += ["--expt-relaxed-constexpr", "-DTORCH_STABLE_ONLY", "-DUSE_CUDA"]
    command += ["-DTORCH_TARGET_VERSION=0x020d000000000000"]
    command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    command += ["-isystem", str(_torch_folder() / "include"), f"-I{ROOT / 'csrc'}"]
    command += [str(SOURCES / f"{name}.cu")]
    texts = [p.read_text() for p in sorted(SOURCES.iterdir()) if p.suffix != ".cu" or p.stem == name]
    folder, done = _kept([*command, *texts], "report")
    if not done:
        folder.parent.mkdir(exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(dir=folder.parent))
        report = _run([*command, f"--keep-dir={work}", "-o", str(work / "object.o")])
        next(p for p in work.glob("*.ptx") if ".target sm_80" in p.read_text()).rename(work / "sm_80")
        for file in work.iterdir():
            if file.name not in ("sm_80", "object.o"):
                file.unlink()
        (work / "report").write_text(report)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    return Compiled((folder / "sm_80").read_text(), (folder / "report").read_text(), folder / "object.o")


@cache
def compiled() -> dict[str, Compiled]:
    """Every file for every architecture, kept in a temporary folder by content."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FILES, pool.map(_compile, FILES), strict=True))


@cache
def runtime() -> ctypes.CDLL:
    """The host code linked with the fake runtime; defines and registers the operators."""
    objects = [str(module.object) for module in compiled().values()]
    source = HERE / "fake_cuda.cpp"
    folder, done = _kept([*objects, source.read_text()], "host.so")
    if not done:
        folder.mkdir(exist_ok=True)
        link = [
            "c++",
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            "-Wl,-Bsymbolic",
            str(source),
            *objects,
        ]
        link += [
            f"-L{_torch_folder() / 'lib'}",
            "-ltorch_cpu",
            "-ldl",
            "-o",
            str(folder / "partial"),
        ]
        _run(link)
        (folder / "partial").rename(folder / "host.so")
    from carlg_kernels._library import OPS

    for name in ("silhouette", "silhouette_backward"):
        torch.library.define(f"carlg_kernels_ptx::{name}", OPS[name].schema.removeprefix(name))
    torch.ops.load_library(str(folder / "host.so"))
    library = ctypes.CDLL(str(folder / "host.so"))
    library.fake_cuda_size.restype = ctypes.c_int64
    library.fake_cuda_size.argtypes = [ctypes.c_uint64]
    return library


@cache
def kernel(name: str) -> Kernel:
    """By mangled name."""
    return Kernel(next(m.ptx for m in compiled().values() if f".entry {name}(" in m.ptx), name)


def prepare(dtype: str) -> None:
    """Translates and compiles the kernels that points of a dtype need, two at a time."""
    element = {"float32": "f", "float64": "d", "float16": "6__half", "bfloat16": "13__nv_bfloat16"}[dtype]
    real = "d" if dtype == "float64" else "f"
    wanted = re.compile(rf"silhouette_\w+_kernelI({element}|{real})E|silhouette_bwd_key_kernel|group_offsets_kernelI")
    every = {e for m in compiled().values() for e in re.findall(r"\.entry (\w+)\(", m.ptx)}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kernel, sorted(e for e in every if wanted.search(e))))


LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint32 * 3),
    ctypes.POINTER(ctypes.c_uint32 * 3),
    ctypes.POINTER(ctypes.c_void_p),
)


@dataclass
class Device:
    """Executes launches in one order of threads. ``prune`` = False opens the bounds so far that every cluster is a candidate."""

    thread_order: int = 0
    prune: bool = True
    launches: list[str] = field(default_factory=list)
    candidates: int = 0  # (point, cluster) pairs whose mean distance is computed
    error: Exception | None = None

    def launch(self, mangled: bytes, grid: Any, block: Any, arguments: Any) -> int:
        try:
            self._execute(mangled.decode(), list(grid.contents), list(block.contents), arguments)
        except Exception as error:
            self.error = error
            return 1
        return 0

    def _execute(self, mangled: str, grid: list[int], block: list[int], arguments: Any) -> None:
        assert max(grid[1:]) <= 65535 and min(grid) >= 1, f"no GPU launches a grid of {grid}"
        code = kernel(mangled)
        name = re.search(r"\d((?:silhouette|group)_\w+?_kernel)", mangled)[1]  # type: ignore[index]
        self.launches.append(name)
        values: list[Any] = []
        for i, (_, kind, size) in enumerate(code.params):
            raw = ctypes.string_at(arguments[i], size)
            reach = runtime().fake_cuda_size(int.from_bytes(raw, "little")) if size == 8 else -1
            if reach >= 0:
                memory = (ctypes.c_uint8 * reach).from_address(int.from_bytes(raw, "little"))
                values.append(np.frombuffer(memory, np.uint8))
            elif kind in ("f32", "f64") and not self.prune and name.endswith(("ceiling_kernel", "list_kernel")):
                values.append(1e3)
            else:
                values.append(raw)
        code(values, grid, block, order=self.thread_order, inplace=True)
        if name.endswith("list_kernel"):
            self.candidates += int(values[-1].view(np.int32).sum())

    @contextmanager
    def _active(self) -> Iterator[Any]:
        """The operators, with uninitialised memory full of NaN."""
        function = LAUNCH(self.launch)
        runtime().fake_cuda_start(function)
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            yield torch.ops.carlg_kernels_ptx
        except RuntimeError as error:
            raise self.error or error from None
        finally:
            torch.use_deterministic_algorithms(before)

    def silhouette(self, *args: Any) -> tuple[torch.Tensor, ...]:
        with self._active() as ops:
            return ops.silhouette(*args)  # type: ignore[no-any-return]

    def silhouette_backward(self, *args: Any) -> torch.Tensor:
        with self._active() as ops:
            return ops.silhouette_backward(*args)  # type: ignore[no-any-return]
