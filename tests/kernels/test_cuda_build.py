"""setup.py and CUDA: refusals, and a library that needs nothing of libtorch_cuda."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "carlg_kernels" / "_C.so"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"CK_CUDA": "yes"}, "CK_CUDA must be auto, 0 or 1, got 'yes'"),
        ({"CK_CUDA": "1", "CK_NVCC": "/no/such/nvcc"}, "CK_NVCC=/no/such/nvcc cannot be executed"),
        ({"CK_CUDA": "1", "PATH": "/nowhere"}, "CK_CUDA=1 cannot be served: no nvcc"),
        (
            {"CK_CUDA": "1", "CK_NVCC": "true"},
            "CK_CUDA=1 cannot be served: true cannot compile for sm_80",
        ),
    ],
    ids=["mode", "nvcc", "none", "old"],
)
def test_refusals(environment: dict[str, str], message: str) -> None:
    inherited = {k: v for k, v in os.environ.items() if k not in ("CUDA_HOME", "CUDA_PATH", "CK_NVCC")}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext"],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.skipif(not LIBRARY.exists(), reason="carlg_kernels/_C.so is not built")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not on PATH")
def test_needs_nothing_of_libtorch_cuda() -> None:
    def names(*arguments: str) -> set[str]:
        listing = subprocess.run(["nm", "-D", *arguments], capture_output=True, text=True, check=True)
        return {line.split()[-1].split("@")[0] for line in listing.stdout.splitlines()}

    needed = names("--undefined-only", str(LIBRARY))
    assert not {name for name in needed if name.startswith(("cuda", "__cuda", "cuL", "cuM", "cuS"))}
    served = names("--defined-only", str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    torch_names = {name for name in needed if name.startswith(("torch_", "aoti_", "_ZN2at", "_ZN3c10", "_ZN5torch"))}
    assert torch_names and torch_names <= served
