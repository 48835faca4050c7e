"""The operator library: schemas are defined here in Python, so the package imports without its compiled object.

``register`` is called once per op by the modules in ``carlg_kernels.ops``. It defines the schema, the fake implementation,
the autograd formula, and one implementation per backend; :mod:`carlg_kernels._dispatch` decides which backends take part.
"""

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from carlg_kernels import _dispatch, _progress

NAMESPACE = "carlg_kernels"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


@dataclass(frozen=True)
class Op:
    """One registered operator and the backends that implement it."""

    name: str
    schema: str
    backends: dict[str, tuple[str, ...]] = field(default_factory=dict)


OPS: dict[str, Op] = {}
_FUNCTIONS: dict[str, type[torch.autograd.Function]] = {}
_REPORTING: set[str] = set()


def full_precision() -> AbstractContextManager[Any]:
    """Autocast off, on every device."""
    return torch._C._DisableAutocast()


def _in_full_precision(body: Callable[..., Any]) -> Callable[..., Any]:
    """The body of an op as it runs outside autocast: ops have no autocast rule, so the products inside would be cast."""

    @functools.wraps(body)
    def run(*args: Any) -> Any:
        with full_precision():
            return body(*args)

    return run


def _lazy(module: str, function: str) -> Callable[..., Any]:
    """A launcher that imports its module on the first call, so that triton is never imported needlessly."""

    def launch(*args: Any) -> Any:
        return getattr(importlib.import_module(module), function)(*args)

    launch.__name__ = function
    return launch


def _refuse(name: str, backend: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        devices = sorted({a.device.type for a in args if isinstance(a, torch.Tensor)})
        raise RuntimeError(_dispatch.refusal(name, backend, devices))

    return refuse


def _refuse_second_derivative(name: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{name.removesuffix('_backward')} can be differentiated once: its gradient has no gradient")

    return refuse


def _refuse_gradient(name: str, instead: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{name} has no gradient of its own: {instead}")

    return refuse


def _save_nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


def _mark_constant(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.arguments = len(inputs)
    ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


def _no_gradient(ctx: Any, *grads: Any) -> tuple[None, ...]:
    return tuple(None for _ in range(ctx.arguments))


def register(
    name: str,
    arguments: str,
    *,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    cpp: tuple[str, ...] = ("cpu",),
    triton: bool = True,
    reports: bool = False,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    constant: str = "",
) -> None:
    """Define ``carlg_kernels::name`` with its schema, fake, autograd formula and backends.

    ``cpp`` names the devices that ``_C.so`` serves for this op; ``triton`` says that ``carlg_kernels._triton`` has a launcher
    of the same name in the module of the op's file; ``reports``, that a kernel reports progress and can be stopped; ``constant``, that
    the op refuses to be differentiated, and what to do instead.
    """
    schema = f"{name}{arguments}"
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    qualified = f"{NAMESPACE}::{name}"
    backends: dict[str, tuple[str, ...]] = {"reference": ("any",)}
    if cpp:
        backends["cpp"] = cpp
    if triton:
        backends["triton"] = ("cuda", "xpu")
    OPS[name] = Op(name, schema, backends)

    chosen = _dispatch.BACKEND
    fallback = reference if chosen in ("auto", "reference") else _refuse(name, chosen)
    _LIBRARY.impl(name, _in_full_precision(fallback), "CompositeExplicitAutograd")
    if triton and chosen in ("auto", "triton"):
        module = f"{NAMESPACE}._triton.{name.removesuffix('_backward')}"
        launcher = _in_full_precision(_lazy(module, name))
        keys = ["CPU"] if _dispatch.INTERPRET and chosen == "triton" else []
        if _dispatch.triton_importable():
            keys += ["CUDA", "XPU"]
        for key in keys:
            _LIBRARY.impl(name, launcher, key)
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if name.endswith("_backward"):
        backward, setup_context = _refuse_second_derivative(name), _save_nothing
    if constant:
        backward, setup_context = _refuse_gradient(name, constant), _save_nothing
    if backward is not None and setup_context is not None:
        torch.library.register_autograd(qualified, backward, setup_context=setup_context, lib=_LIBRARY)
    op = getattr(getattr(torch.ops, NAMESPACE), name)
    members = {
        "forward": staticmethod(functools.partial(_progress.call, op) if reports else op),
        "setup_context": staticmethod(setup_context or _mark_constant),
        "backward": staticmethod(backward or _no_gradient),
    }
    _FUNCTIONS[name] = type(f"{name}_function", (torch.autograd.Function,), members)
    if reports:
        _REPORTING.add(name)


def call(name: str, *args: Any) -> Any:
    """Call an operator. torch.func transforms do not see formulas of torch.library, so they get the same formula as a Function."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _FUNCTIONS[name].apply(*args)
    op = getattr(getattr(torch.ops, NAMESPACE), name)
    return _progress.call(op, *args) if name in _REPORTING else op(*args)
