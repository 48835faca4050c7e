"""k-means on the Triton step, under the interpreter, against the CPU kernels: labels, centroids, inertia and iterations."""

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import kmeans_runs  # noqa: E402


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Run -> fields of the result, of the Triton backend."""
    path = tmp_path_factory.mktemp("kmeans") / "outcomes.pt"
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "CK_BACKEND": "triton",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([sys.executable, str(HERE / "kmeans_runs.py"), str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(path)


@pytest.mark.parametrize("name", kmeans_runs.RUNS)
def test_ends_where_the_cpu_kernels_end(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    want, got = kmeans_runs.RUNS[name](), outcomes[name]
    assert want.keys() == got.keys(), (want, got)
    for field, value in want.items():
        if not isinstance(value, torch.Tensor):
            assert value == got[field], field
        elif value.is_floating_point():
            assert value.dtype == got[field].dtype
            # Zero distances are zero up to the rounding of a centroid, whose square is far below its size.
            torch.testing.assert_close(got[field], value, rtol=2e-5, atol=2e-5, msg=lambda m, field=field: f"{field}: {m}")
        else:
            assert torch.equal(got[field], value), field


def test_runs_end_where_they_are_meant_to(outcomes: dict[str, dict[str, Any]]) -> None:
    """After the first burst of eight steps, inside it, and cut off by ``max_iter`` on either side."""
    ends = {name: (outcomes[name]["n_iter"], outcomes[name]["converged"]) for name in outcomes if "ends" in name or "until" in name}
    assert ends["until no label changes"][0] > 9 and ends["until no label changes"][1]
    assert ends["until the tolerance"][0] < 8 and ends["until the tolerance"][1]
    assert ends["ends inside a burst"] == (3, False) and ends["ends after a burst"] == (9, False)
