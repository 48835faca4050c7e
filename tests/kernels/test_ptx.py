"""The compiled sm_80 code of every kernel, executed on the CPU in several thread orders, against the reference in float64."""

import pathlib
import shutil
import sys

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
    "centroid_update-weighted": "float32",
    "simplified_silhouette-labels-mean": "float32",
    "simplified_silhouette-centroids-none": "bfloat16",
    "variance_ratio-labels-sqeuclidean": "float32",
    "variance_ratio-centroids-euclidean": "float16",
    "davies_bouldin-plain": "float32",
    "lloyd-plain": "float32",
}
CASES = {str(case): case for case in cases.CASES}
ran: set[str] = set()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", RUNS)
def test_executed(name: str, order: int) -> None:
    with executed(order) as names:
        cases.run(CASES[name], getattr(torch, RUNS[name]))
    ran.update(names)


def test_no_kernel_is_forgotten(request: pytest.FixtureRequest) -> None:
    wanted = {item.name for item in request.session.items if item.name.startswith("test_executed")}
    if len(wanted) < len(RUNS) * len(ORDERS):
        pytest.skip("needs every test_executed of this file in the same run")
    assert ran == set(every_kernel())
