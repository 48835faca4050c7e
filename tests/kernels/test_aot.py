"""Every kernel compiled for every GPU family without a GPU, with the launchers' own tiles: zero spills, by ptxas and by the AMD metadata.

Sizes are those of the largest graph of the paper. The variants of a kernel (None or not, flags) are many; each (GPU, dtype) takes the one
with the most arguments, and sm_80 in float32 takes all of them. Half types hardly differ in their registers: sm_80 takes both, the others
one each. benchmarks/aot_report.py has the whole table.
"""

import multiprocessing
import os
import pathlib
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch  # noqa: E402
from compiled import Launch, resources  # noqa: E402
from launches import every_kernel, every_launch  # noqa: E402

SIZES = (34493, 100, 256)
DTYPES = {
    "sm_80": ("float32", "float16", "bfloat16"),
    "sm_90": ("float32", "bfloat16"),
    "sm_100": ("float32", "float16"),
    "gfx942": ("float32", "bfloat16"),
}
KERNELS = sorted(every_kernel())
JOBS = [(target, dtype) for target, dtypes in DTYPES.items() for dtype in dtypes]


def chosen(launches: list[Launch], every_variant: bool) -> list[Launch]:
    if every_variant:
        return launches
    fullest: dict[str, Launch] = {}
    for launch in launches:
        best = fullest.get(launch.name)
        if best is None or len(launch.constants) < len(best.constants):
            fullest[launch.name] = launch
    return list(fullest.values())


def measure(job: tuple[str, str]) -> list[tuple[str, str, dict[str, int]]]:
    """(kernel, constants, resources) of a GPU family and dtype; runs in a worker process."""
    target, dtype = job
    launches = list(every_launch(target, getattr(torch, dtype), *SIZES))
    picked = chosen(launches, every_variant=job == ("sm_80", "float32"))
    # Other tiles of the ranking kernels: many rows, few clusters, and z stored by columns.
    if dtype == "float32":
        for sizes in ((100_000, 1000, 64), (2000, 5, 20)):
            picked += [x for x in every_launch(target, torch.float32, *sizes, columns=True) if x.name == "assign_kernel"][:1]
    return [(x.name, str(dict(x.constants)), resources(x, target)) for x in picked]


@pytest.fixture(scope="module")
def measured() -> dict[tuple[str, str], list[tuple[str, str, dict[str, int]]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4), mp_context=context) as pool:
        return dict(zip(JOBS, pool.map(measure, JOBS), strict=True))


@pytest.mark.parametrize(("target", "dtype"), JOBS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_spills(measured, kernel: str, target: str, dtype: str) -> None:
    rows = [row for row in measured[target, dtype] if row[0] == kernel]
    assert rows, f"no launcher starts {kernel}"
    for _, constants, found in rows:
        assert found["spills"] == 0, f"{constants}: {found}"
        assert found["shared"] <= (65536 if target == "gfx942" else 101376), f"{constants}: {found}"


def test_every_kernel_is_named() -> None:
    assert len(KERNELS) >= 12
