"""Which backend serves a call, and why another one cannot.

Backends: ``cpp`` (``_C.so``: CPU kernels, CUDA kernels where built), ``triton`` (CUDA, XPU, or CPU tensors under the
interpreter) and ``reference`` (plain torch, any device). ``CK_BACKEND`` forces one; without it the fastest that serves the
tensor's device is taken.
"""

import importlib.util
import os
import pathlib
import warnings

import torch

_NAMES = ("auto", "reference", "cpp", "triton")
BACKEND = os.environ.get("CK_BACKEND", "auto") or "auto"
if BACKEND not in _NAMES:
    raise ValueError(f"CK_BACKEND must be one of {', '.join(_NAMES)}, got {BACKEND!r}")

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
LIBRARY_PATH = pathlib.Path(__file__).with_name("_C.so")

load_error: str | None = None


def triton_importable() -> bool:
    return importlib.util.find_spec("triton") is not None


def triton_serves(device: str) -> bool:
    """Whether ops with a Triton kernel run it on tensors of this device type."""
    if BACKEND not in ("auto", "triton") or not triton_importable():
        return False
    return device in ("cuda", "xpu") or (device == "cpu" and INTERPRET and BACKEND == "triton")


def load_compiled() -> None:
    """Load ``_C.so``. A missing or broken one leaves the reference in charge, with one warning that says so."""
    global load_error
    if BACKEND in ("reference", "triton"):
        load_error = f"not loaded, CK_BACKEND={BACKEND}"
        return
    if not LIBRARY_PATH.exists():
        load_error = f"{LIBRARY_PATH} does not exist: the extension was not built"
    else:
        try:
            torch.ops.load_library(str(LIBRARY_PATH))
        except OSError as error:
            load_error = str(error)
    if load_error and BACKEND == "auto":
        warnings.warn(
            f"carlg_kernels runs its slow plain-torch reference: {load_error}. Build with "
            "`pip install --no-build-isolation .`, or set CK_BACKEND=reference to silence this.",
            RuntimeWarning,
            stacklevel=3,
        )


def refusal(op: str, backend: str, devices: list[str]) -> str:
    """The sentence a user reads when a forced backend cannot serve a call."""
    where = " and ".join(devices) or "cpu"
    if backend == "cpp":
        reason = load_error or f"_C.so has no kernel of this op for {where} tensors"
    elif not triton_importable():
        reason = "triton is not installed"
    elif devices == ["cpu"]:
        reason = "triton serves cuda and xpu tensors; set TRITON_INTERPRET=1 to run its interpreter on cpu tensors"
    else:
        reason = f"there is no triton kernel of this op for {where} tensors"
    return f"CK_BACKEND={backend} cannot serve {op}: {reason}"
