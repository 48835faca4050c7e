"""Progress reports of long CPU kernels, and Ctrl-C inside them.

A kernel calls back about ten times a second, on the thread that called the operator, with the fraction done. The callback runs Python code,
so pending signals are handled there; whatever it raises stops the kernel and is raised again by :func:`call`.
"""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

_state = threading.local()


def _ticks() -> Generator[int, float, None]:
    """Answers every fraction sent with 0 (go on) or 1 (stop).

    A generator and not a function: Python handles a pending signal as soon as the code is entered, and here that is inside the try.
    """
    answer = 0
    while True:
        try:
            fraction = yield answer
            answer = 0
            report = getattr(_state, "report", None)
            if report is not None:
                report(fraction)
        except GeneratorExit:
            return
        except BaseException as error:
            _state.error = error
            answer = 1


_generator = _ticks()
next(_generator)
_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double)(_generator.send)


def install() -> None:
    """Hand the callback to the compiled kernels, where they are loaded."""
    if hasattr(torch.ops.carlg_kernels, "set_tick"):
        torch.ops.carlg_kernels.set_tick(ctypes.cast(_callback, ctypes.c_void_p).value)


def call(op: Callable[..., Any], *args: Any) -> Any:
    """The operator's result. Where a callback stopped it, the exception that did so."""
    if torch.compiler.is_compiling():
        return op(*args)
    _state.error = None
    try:
        return op(*args)
    except RuntimeError:
        error, _state.error = _state.error, None
        if error is not None:
            raise error from None
        raise


@contextlib.contextmanager
def reporting(report: Callable[[float], Any] | None) -> Iterator[None]:
    """Within this context kernels report to ``report``; at the end it hears 1.0."""
    before = getattr(_state, "report", None)
    _state.report = report if report is not None else before
    try:
        yield
    finally:
        _state.report = before
    if report is not None:
        report(1.0)
