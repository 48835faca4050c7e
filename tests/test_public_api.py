"""What a stranger meets first: imports, doctests, the info command, backends and instruction sets."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import _dispatch

UTILITIES = {"metrics", "nn"}


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, env={**os.environ, **environment})


def public_modules():
    names = [m.name for m in pkgutil.iter_modules(ck.__path__) if not m.name.startswith("_") and m.name != "info"]
    return [f"carlg_kernels.{name}" for name in names]


@pytest.mark.parametrize("module", public_modules())
def test_doctests(module):
    found = importlib.import_module(module)
    result = doctest.testmod(found, extraglobs={"torch": torch, "ck": ck}, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", [n for n in ck.__all__ if n not in UTILITIES])
def test_every_public_name_is_documented(name):
    assert len(getattr(ck, name).__doc__ or "") > 40


def test_import_pulls_in_nothing_heavy():
    done = run("import sys, carlg_kernels; print([m for m in ('triton', 'torch_geometric', 'sklearn', 'scipy') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_without_the_compiled_object_there_is_one_warning_and_the_reference():
    code = """
import pathlib
exists = pathlib.Path.exists
pathlib.Path.exists = lambda self: self.name != "_C.so" and exists(self)
import torch, carlg_kernels as ck
print(ck.davies_bouldin(torch.randn(20, 3), torch.arange(20) % 3).item() > 0)
"""
    done = run(code)
    assert done.returncode == 0 and "True" in done.stdout, done.stderr
    assert done.stderr.count("slow plain-torch reference") == 1, done.stderr


def test_without_triton():
    hide = "import sys; sys.modules['triton'] = None\n"
    done = run(hide + "import torch, carlg_kernels as ck; print(ck.assign(torch.zeros(2, 2), torch.zeros(3, 2)).labels.tolist())")
    assert done.stdout.strip() == "[0, 0]", done.stderr


CALL = "import torch, carlg_kernels as ck; print(ck.variance_ratio(torch.arange(8.0)[:, None], torch.arange(8) // 4).item())"


@pytest.mark.parametrize("backend", ["auto", "reference", "cpp"])
def test_forced_backends_agree(backend):
    done = run(CALL, CK_BACKEND=backend)
    assert float(done.stdout) == pytest.approx(19.2), done.stderr


def test_backends_that_cannot_serve_say_why():
    assert "TRITON_INTERPRET=1" in run(CALL, CK_BACKEND="triton", TRITON_INTERPRET="0").stderr
    assert "CK_BACKEND must be one of auto, reference, cpp, triton, got 'fast'" in run(CALL, CK_BACKEND="fast").stderr


def test_info():
    done = subprocess.run([sys.executable, "-m", "carlg_kernels.info"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("torch", "instruction set", "CUDA kernels", "triton", "simplified_silhouette_backward"):
        assert word in done.stdout


def instruction_sets():
    return [] if _dispatch.load_error else [s for s in torch.ops.carlg_kernels.build_info().split(",") if s != "cuda"]


@pytest.mark.parametrize("isa", instruction_sets()[1:])
def test_the_operators_pass_with_every_other_instruction_set(isa):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/ops", "-k", "not hypothesis"],
        capture_output=True,
        text=True,
        env={**os.environ, "CK_CPU_ISA": isa},
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_an_instruction_set_that_the_cpu_lacks_is_refused():
    done = run(CALL, CK_CPU_ISA="avx1024")
    assert "CK_CPU_ISA must be generic, avx2 or avx512, got avx1024" in done.stderr
    if "avx512" not in instruction_sets():
        assert "cannot be served: this CPU has" in run(CALL, CK_CPU_ISA="avx512").stderr
