"""Every launcher under Triton's interpreter, forward and backward, against the reference in float64."""

import json
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("triton")
HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

NAMES = [f"{case}-{dtype}" for case, dtype in cases.interpreted()] + [f"public-{name}" for name in cases.PUBLIC]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Name -> error text, empty where the check passed."""
    root = HERE.parents[1]
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "CK_BACKEND": "triton",
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
    }
    workers = min(os.cpu_count() or 1, 4)

    def work(index: int) -> list[str]:
        command = [sys.executable, str(HERE / "interpret.py"), str(index), str(workers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    with ThreadPoolExecutor(workers) as pool:
        lines = [json.loads(line) for part in pool.map(work, range(workers)) for line in part if line.startswith("{")]
    return {line["name"]: line["error"] for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(outcomes: dict[str, str], name: str) -> None:
    assert not outcomes[name], outcomes[name]
