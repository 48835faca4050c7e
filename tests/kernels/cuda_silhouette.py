"""The host side of csrc/cuda/silhouette_{forward,backward}.cu in Python: the same kernels, arguments, grids and order, on compiled PTX.

The PTX of sm_80 that nvcc produced is executed by ``tests/ptxrun``. Launch geometry is read from ``silhouette_tile.cuh``.
"""

import hashlib
import importlib.util
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc" / "cuda"
ARCHITECTURES = ("80", "90", "100")
FILES = ("silhouette_forward", "silhouette_backward")
Array = NDArray[Any]

sys.path.insert(0, str(ROOT / "tests"))

# Mangled names of the element types.
MANGLED = {
    "float32": "f",
    "float64": "d",
    "float16": "6__half",
    "bfloat16": "13__nv_bfloat16",
    "int64": "l",
    "int32": "i",
}


def _geometry() -> dict[str, int]:
    text = "".join((SOURCES / name).read_text() for name in ("silhouette_tile.cuh", "grouping.cuh"))
    return {name: int(value) for name, value in re.findall(r"constexpr int (k\w+) = (\d+);", text)}


G = _geometry()


@dataclass(frozen=True)
class Compiled:
    ptx: str  # sm_80
    report: str  # ptxas -v, all architectures


def _compile(name: str) -> Compiled:
    """PTX and resource report of one file for every architecture, kept in a temporary folder by content."""
    torch_include = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "include"  # type: ignore[union-attr, arg-type]
    command = [
        "nvcc",
        "-std=c++20",
        "-O3",
        "-fatbin",
        "--keep",
        "-Xptxas=-v",
        "--expt-relaxed-constexpr",
    ]
    command += [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    command += ["-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020d000000000000", "-DUSE_CUDA"]
    command += ["-isystem", str(torch_include), f"-I{ROOT / 'csrc'}", str(SOURCES / f"{name}.cu")]
    texts = [
        p.read_text() for p in sorted(SOURCES.iterdir()) if p.suffix != ".cu" or p.stem == name
    ]
    key = hashlib.sha256("".join([*command, *texts]).encode()).hexdigest()[:24]
    kept = pathlib.Path(tempfile.gettempdir()) / "carlg_kernels_ptx" / key
    if not (kept / "report").exists():
        kept.parent.mkdir(exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(dir=kept.parent))
        done = subprocess.run(
            [*command, f"--keep-dir={work}", "-o", str(work / "out.fatbin")],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        ptx = next(p for p in work.glob("*.ptx") if ".target sm_80" in p.read_text())
        ptx.rename(work / "sm_80")
        for file in work.iterdir():
            if file.name != "sm_80":
                file.unlink()
        (work / "report").write_text(done.stderr)
        shutil.rmtree(kept, ignore_errors=True)
        work.rename(kept)
    return Compiled((kept / "sm_80").read_text(), (kept / "report").read_text())


@cache
def compiled() -> dict[str, Compiled]:
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(FILES, pool.map(_compile, FILES), strict=True))


@cache
def kernel(name: str, dtype: str | None) -> Any:
    """The kernel ``name``, of element type ``dtype`` where it is a template."""
    from ptxrun import Kernel

    wanted = re.compile(rf"\.entry (\w*\d{name}{'I' + MANGLED[dtype] + 'E' if dtype else ''}\w*)\(")
    for module in compiled().values():
        found = wanted.search(module.ptx)
        if found:
            return Kernel(module.ptx, found[1])
    raise LookupError(f"no kernel {name} of {dtype} in the PTX")


def kernels_of(dtype: str) -> list[tuple[str, str | None]]:
    """Every (name, type) that a run with points of ``dtype`` launches."""
    real = "float64" if dtype == "float64" else "float32"
    by_point = ["fwd_mean", "fwd_scatter", "fwd_bound", "fwd_pair", "bwd_pair"]
    by_real = ["fwd_ceiling", "fwd_list", "fwd_nearest", "bwd_weight"]
    return [
        *((f"silhouette_{k}_kernel", dtype) for k in by_point),
        *((f"silhouette_{k}_kernel", real) for k in by_real),
        ("silhouette_bwd_key_kernel", None),
        ("group_offsets_kernel", "int64"),
        ("group_offsets_kernel", "int32"),
    ]


def prepare(dtype: str) -> None:
    """Translates and compiles the kernels of a dtype, two at a time."""
    compiled()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda pair: kernel(*pair), kernels_of(dtype)))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass
class Device:
    """Launches kernels with one order of threads; ``launches`` names them and ``listed`` counts the pairs (point, cluster) kept."""

    thread_order: int = 0
    launches: list[str] = field(default_factory=list)
    listed: int = 0

    def launch(
        self, name: str, dtype: str | None, grid: tuple[int, ...], threads: int, *args: Any
    ) -> None:
        self.launches.append(name)
        kernel(name, dtype)(list(args), grid, threads, order=self.thread_order, inplace=True)


def empty(shape: tuple[int, ...], dtype: str) -> Array:
    """Uninitialised memory: NaN, or an index far outside."""
    return np.full(shape, np.nan if dtype.startswith("float") else -(1 << 30), dtype)


def group_points(device: Device, keys: Array, groups: int, step: int) -> tuple[Array, Array, Array]:
    order = np.argsort(keys, kind="stable").astype(np.int64)
    keys = keys[order]
    offsets = empty((groups + 1,), "int64")
    threads = G["kGroupingThreads"]
    grid = (ceil_div(groups + 1, threads),)
    device.launch(
        "group_offsets_kernel",
        str(keys.dtype),
        grid,
        threads,
        keys,
        len(keys),
        groups,
        step,
        offsets,
    )
    return keys, order, offsets


def points_per_pass(n: int, c: int) -> int:
    tile = G["kForwardTile"]
    return min(ceil_div(max(16 * n, 1 << 20) // c + 1, tile) * tile, n, 1 << 20)


def silhouette(
    device: Device,
    z: Array,
    dtype: str,
    strides: tuple[int, int],
    labels: Array,
    n: int,
    d: int,
    c: int,
    points: int | None = None,
    prune: bool = True,
) -> tuple[Array, Array, Array]:
    """own, other, nearest. ``z`` is the memory of the points; ``points`` overrides the points of a pass, without ``prune`` all
    clusters are listed."""
    real = "float64" if dtype == "float64" else "float32"
    keys, order, offsets = group_points(device, labels, c, 1)
    own, other, nearest = empty((n,), real), empty((n,), real), empty((n,), "int32")
    size = points or points_per_pass(n, c)
    means, scatter, errors = empty((c, d), real), empty((c,), real), empty((c,), real)
    ceilings, distances = empty((size,), real), empty((c * size,), real)
    members, member_counts = empty((c * size,), "int32"), empty((c,), "int32")
    tile, tile_threads, depth = G["kForwardTile"], G["kForwardThreads"], G["kDepth"]
    by_cluster, by_point = G["kClusterThreads"], G["kPointThreads"]
    matrix = (z, *strides, d)

    epsilon, sums = float(np.finfo(real).eps), n * float(np.finfo(np.float64).eps)
    slack, mean_slack = (d + 64) * epsilon + sums, 2 * (epsilon + sums)
    underflow = 2 * math.sqrt(d * float(np.finfo(real).tiny))
    if not prune:
        slack = 1e3

    device.launch(
        "silhouette_fwd_mean_kernel",
        dtype,
        (c, ceil_div(d, depth)),
        by_cluster,
        *matrix,
        order,
        offsets,
        means,
    )
    device.launch(
        "silhouette_fwd_scatter_kernel",
        dtype,
        (c,),
        by_cluster,
        *matrix,
        order,
        offsets,
        means,
        mean_slack,
        underflow,
        scatter,
        errors,
    )
    for first in range(0, n, size):
        count = min(size, n - first)
        tiles = ceil_div(count, tile)
        grid = (ceil_div(count, by_point),)
        device.launch(
            "silhouette_fwd_bound_kernel",
            dtype,
            (tiles, ceil_div(c, tile)),
            tile_threads,
            *matrix,
            order,
            means,
            c,
            first,
            count,
            distances,
        )
        bounds = (keys, offsets, c, first, count, slack)
        device.launch(
            "silhouette_fwd_ceiling_kernel",
            real,
            grid,
            by_point,
            distances,
            scatter,
            errors,
            *bounds,
            ceilings,
        )
        device.launch(
            "silhouette_fwd_list_kernel",
            real,
            (c,),
            by_cluster,
            ceilings,
            errors,
            *bounds,
            distances,
            members,
            member_counts,
        )
        device.listed += int(member_counts.sum())
        device.launch(
            "silhouette_fwd_pair_kernel",
            dtype,
            (c, tiles),
            tile_threads,
            *matrix,
            order,
            offsets,
            first,
            count,
            members,
            member_counts,
            distances,
        )
        device.launch(
            "silhouette_fwd_nearest_kernel",
            real,
            grid,
            by_point,
            distances,
            keys,
            order,
            c,
            first,
            count,
            own,
            other,
            nearest,
        )
    return own, other, nearest


def silhouette_backward(
    device: Device,
    grad_own: Array,
    grad_other: Array,
    z: Array,
    dtype: str,
    strides: tuple[int, int],
    labels: Array,
    nearest: Array,
    n: int,
    d: int,
    c: int,
) -> Array:
    real = "float64" if dtype == "float64" else "float32"
    by_point = G["kPointThreads"]
    grid = (ceil_div(n, by_point),)
    keys = empty((n,), "int64")
    device.launch("silhouette_bwd_key_kernel", None, grid, by_point, labels, nearest, n, c, keys)
    _, order, offsets = group_points(device, keys, c, c + 1)
    _, nearest_order, nearest_offsets = group_points(device, nearest, c, 1)
    own_weights, other_weights = empty((n,), real), empty((n,), real)
    device.launch(
        "silhouette_bwd_weight_kernel",
        real,
        grid,
        by_point,
        grad_own,
        grad_other,
        labels,
        nearest,
        offsets,
        n,
        c,
        own_weights,
        other_weights,
    )
    dz = np.full((n, d), np.nan, real) if dtype == real else np.full((n, d), 0x7FFF, z.dtype)
    device.launch(
        "silhouette_bwd_pair_kernel",
        dtype,
        (ceil_div(n, G["kBackwardRows"]), ceil_div(d, G["kBackwardSlice"])),
        G["kBackwardThreads"],
        *(
            z,
            *strides,
            n,
            d,
            c,
            labels,
            nearest,
            order,
            offsets,
            nearest_order,
            nearest_offsets,
            own_weights,
            other_weights,
            dz,
        ),
    )
    return dz
