"""Progress callbacks of kernels in several threads at once, within each other, and their exceptions."""

import threading

import pytest

from carlg_kernels import _progress


def kernel(steps: int = 3) -> str:
    """What a compiled kernel does: it tells how far it is, and fails where the answer is to stop."""
    for step in range(steps):
        if _progress._callback(step / steps):
            raise RuntimeError("stopped")
    return "done"


def test_two_threads_at_once():
    together = threading.Barrier(2, timeout=20)
    seen, outcome = {"first": [], "second": []}, {}

    def run(name, last):
        def report(fraction):
            seen[name].append(fraction)
            together.wait()
            if fraction == last:
                raise LookupError(name)

        try:
            with _progress.reporting(report):
                outcome[name] = _progress.call(kernel)
        except BaseException as error:
            outcome[name] = error

    workers = [threading.Thread(target=run, args=arguments) for arguments in (("first", 2 / 3), ("second", 2 / 3))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for name in seen:
        assert seen[name] == [0, 1 / 3, 2 / 3]
        assert isinstance(outcome[name], LookupError) and outcome[name].args == (name,)


def test_other_threads_do_not_hear_of_it():
    seen, outcome = [], []
    with _progress.reporting(seen.append):
        worker = threading.Thread(target=lambda: outcome.append(_progress.call(kernel)))
        worker.start()
        worker.join()
    assert outcome == ["done"] and seen == [1.0]


def test_a_listener_may_run_kernels_itself():
    seen = []

    def report(fraction):
        seen.append((fraction, _progress.call(kernel)))

    with _progress.reporting(report):
        assert _progress.call(kernel, 2) == "done"
    assert seen == [(0, "done"), (0.5, "done"), (1.0, "done")]


def test_exceptions_at_the_last_report_are_not_lost():
    def report(fraction):
        if fraction < 1:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"), _progress.reporting(report):
        _progress.call(lambda: _progress._callback(0.9))


def test_failures_of_the_kernel_itself_are_kept():
    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        _progress.call(fail)
