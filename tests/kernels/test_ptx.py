"""The compiled sm_80 code of every kernel, executed on the CPU in several thread orders, against the reference in float64."""

import contextlib
import multiprocessing
import os
import pathlib
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest

pytest.importorskip("triton")
if shutil.which("g++") is None:
    pytest.skip("g++ is needed to execute PTX on the CPU", allow_module_level=True)
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases  # noqa: E402
import torch  # noqa: E402
from launches import every_kernel  # noqa: E402
from ptx import executed  # noqa: E402

ORDERS = (0, -1, 7)
RUNS = {
    "assign-plain": "float32",
    "assign-offset-3000": "float32",
    "centroid_update-weighted": "float32",
    "simplified_silhouette-singleton": "float32",
    "simplified_silhouette-offset-3000": "float32",
    "simplified_silhouette-centroids-none": "bfloat16",
    "simplified_silhouette-broken-labels-nan": "float32",
    "simplified_silhouette-broken-both-inf": "float32",
    "simplified_silhouette-scale-1e-18": "float32",
    "simplified_silhouette-scale-1e+17": "float32",
    "variance_ratio-labels-sqeuclidean": "float32",
    "variance_ratio-centroids-euclidean": "float16",
    "davies_bouldin-plain": "float32",
    "davies_bouldin-broken-nan": "float32",
    "lloyd-plain": "float32",
    "lloyd-offset-30": "float32",
}
CASES = {str(case): case for case in cases.CASES}
ran: set[str] = set()


def execute(name: str, order: int) -> set[str]:
    """The names of the kernels that ran."""
    with executed(order) as names:
        cases.run(CASES[name], getattr(torch, RUNS[name]))
    return names


def compile_only(name: str) -> None:
    """Fill the caches of Triton and ptxrun; what goes wrong here goes wrong again in the test."""
    with contextlib.suppress(Exception):
        execute(name, 0)


@pytest.fixture(scope="module", autouse=True)
def caches(request: pytest.FixtureRequest) -> None:
    """Kernels take seconds to compile, so all cores compile them first."""
    names = [name for name in RUNS if any(f"[{name}-" in item.name for item in request.session.items)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 4), mp_context=context) as pool:
        list(pool.map(compile_only, names))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RUNS)
def test_executed(name: str, order: int) -> None:
    ran.update(execute(name, order))


def test_no_kernel_is_forgotten(request: pytest.FixtureRequest) -> None:
    wanted = {item.name for item in request.session.items if item.name.startswith("test_executed")}
    if len(wanted) < len(RUNS) * len(ORDERS):
        pytest.skip("needs every test_executed of this file in the same run")
    assert ran == set(every_kernel())
