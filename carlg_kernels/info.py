"""``python -m carlg_kernels.info``: versions, backends, the instruction set in use, and why anything is unavailable."""

import platform
import sys
from importlib import metadata, util

import torch

import carlg_kernels
from carlg_kernels import _dispatch
from carlg_kernels._library import OPS


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _compiled() -> tuple[str, list[str]]:
    """The state of _C.so and what it was built with."""
    if _dispatch.load_error:
        return f"unavailable: {_dispatch.load_error}", []
    build = torch.ops.carlg_kernels.build_info().split(",")
    return f"loaded from {_dispatch.LIBRARY_PATH}", build


def _triton() -> str:
    if not _dispatch.triton_importable():
        return "unavailable: triton is not installed"
    if _dispatch.BACKEND not in ("auto", "triton"):
        return f"not registered, CK_BACKEND={_dispatch.BACKEND}"
    if _dispatch.INTERPRET and _dispatch.BACKEND == "triton":
        return "interpreter, on cpu tensors (TRITON_INTERPRET=1)"
    gpu = torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available())
    return "ready" if gpu else "registered for cuda and xpu tensors; this machine has no such device"


def describe() -> str:
    state, build = _compiled()
    sets = [name for name in build if name != "cuda"]
    cuda = "built" if "cuda" in build else "not built (CK_CUDA=0, or no nvcc at build time)"
    rows = [
        ("carlg_kernels", carlg_kernels.__version__),
        ("python", f"{sys.version.split()[0]} on {platform.machine()} {platform.system()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        *((name, _version(name)) for name in ("triton", "scikit-learn", "torch-geometric", "numpy")),
        ("CK_BACKEND", _dispatch.BACKEND),
        ("cpp", state),
        ("  instruction set", f"{sets[0]} in use; this CPU has {', '.join(sorted(sets))}" if sets else "none"),
        ("  CUDA kernels", cuda if build else "none"),
        ("triton", _triton()),
        ("reference", "plain torch, any device"),
        ("cuda device", torch.cuda.get_device_name() if torch.cuda.is_available() else "none"),
        ("trainer", "installed" if util.find_spec("carlg") and util.find_spec("torch_geometric") else "pip install carlg-kernels[trainer]"),
    ]
    lines = [f"{name:<18} {value}" for name, value in rows]
    lines.append("operators")
    for name, op in sorted(OPS.items()):
        served = "; ".join(f"{backend} on {', '.join(devices)}" for backend, devices in op.backends.items())
        lines.append(f"  {name:<32} {served}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(describe())
