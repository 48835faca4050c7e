"""Progress reports of long CPU kernels, and Ctrl-C inside them.

A kernel calls back about ten times a second, on the thread that called the operator, with the fraction done. The callback runs Python code,
so pending signals are handled there; whatever it raises stops the kernel and is raised again by :func:`call`.
"""

import contextlib
import ctypes
import operator
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch

_INTERVAL = 0.1


def _ticks(errors: list[BaseException]) -> Generator[int, float, None]:
    """Answers every fraction sent with 0 (go on) or 1 (stop), and keeps the exception that stopped it.

    A generator and not a function: Python handles a pending signal as soon as the code is entered, and here that is inside the try.
    """
    answer = 0
    while True:
        try:
            fraction = yield answer
            answer = 0
            tell(fraction)
        except GeneratorExit:
            return
        except BaseException as error:
            errors.append(error)
            answer = 1


def _start(errors: list[BaseException]) -> Callable[[float], int]:
    ticks = _ticks(errors)
    next(ticks)
    return ticks.send


class _Thread(threading.local):
    """What a thread reports to, and the ticks of the kernel that it is in.

    Calling it calls the ticks, and no bytecode runs on the way in which a signal could be raised.
    """

    def __init__(self) -> None:
        self.report: Callable[[float], Any] | None = None
        self.send = _start([])

    __call__ = property(operator.attrgetter("send"))


_thread = _Thread()
_callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_double)(_thread)


def install() -> None:
    """Hand the callback to the compiled kernels, where they are loaded."""
    if hasattr(torch.ops.carlg_kernels, "set_tick"):
        torch.ops.carlg_kernels.set_tick(ctypes.cast(_callback, ctypes.c_void_p).value)


def call(op: Callable[..., Any], *args: Any) -> Any:
    """The operator's result. Where a callback raised, that exception."""
    if torch.compiler.is_compiling():
        return op(*args)
    errors: list[BaseException] = []
    before, _thread.send = _thread.send, _start(errors)
    try:
        result = op(*args)
    except RuntimeError:
        if not errors:
            raise
    finally:
        _thread.send = before
    if errors:
        raise errors[0]
    return result


def tell(fraction: float) -> None:
    """Reports the fraction to whoever listens on this thread. Kernels that the listener calls itself are not reported."""
    report = _thread.report
    if report is None:
        return
    _thread.report = None
    try:
        report(fraction)
    finally:
        _thread.report = report


def paced(steps: list[int]) -> Iterator[int]:
    """The steps one by one; the fraction done is reported about ten times a second."""
    last = time.monotonic()
    for done, step in enumerate(steps):
        now = time.monotonic()
        if now - last >= _INTERVAL:
            last = now
            tell(done / len(steps))
        yield step


@contextlib.contextmanager
def reporting(report: Callable[[float], Any] | None) -> Iterator[None]:
    """Within this context kernels report to ``report``; at the end it hears 1.0."""
    before = _thread.report
    _thread.report = report if report is not None else before
    try:
        yield
    finally:
        _thread.report = before
    if report is not None:
        report(1.0)
