"""Jobs side by side: their order, their failures, and that nothing depends on how many run at a time."""

import threading
import time

import pytest
import torch

from carlg.tasks import classify
from carlg.workers import side_by_side


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order_and_the_threads_are_restored(threads, count):
    threads(count)
    pauses = [0.02, 0.0, 0.01, 0.0]
    seen = []

    def job(i):
        time.sleep(pauses[i])
        seen.append((torch.get_num_threads(), threading.current_thread().name))
        return i * i

    assert side_by_side([lambda i=i: job(i) for i in range(4)]) == [0, 1, 4, 9]
    assert {alone for alone, _ in seen} == {1}
    assert (threading.current_thread().name in {name for _, name in seen}) == (count == 1)
    assert torch.get_num_threads() == count
    assert side_by_side([]) == []


def test_a_failure_ends_the_jobs_that_wait(threads):
    threads(2)
    done = []

    def fail():
        raise ValueError("no such split")

    with pytest.raises(ValueError, match="no such split"):
        side_by_side([fail, *(lambda i=i: (time.sleep(0.05), done.append(i)) for i in range(40))])
    assert len(done) < 40 and torch.get_num_threads() == 2


def test_accuracies_do_not_depend_on_the_threads(threads, tiny):
    x = torch.randn(tiny.num_nodes, 24, generator=torch.Generator().manual_seed(0)) + tiny.y[:, None]
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(torch.stack(classify(x, tiny, splits=5)))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert 0.2 < float(found[0].mean()) < 1


def test_sums_do_not_depend_on_the_threads(threads):
    """Torch cuts sums of this length by its threads, so their last bits tell how many there were."""
    x = torch.randn(1_000_003)
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(torch.stack(side_by_side([lambda i=i: x[i:].sum() for i in range(6)])))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_calls_at_the_same_time_leave_the_threads(threads):
    threads(2)
    calls = [threading.Thread(target=side_by_side, args=([lambda: time.sleep(0.05)] * 4,)) for _ in range(3)]
    for i, call in enumerate(calls):
        call.start()
        time.sleep(0.02 * i)
    for call in calls:
        call.join()
    seen = []
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [2]


@pytest.mark.parametrize(("bytes_each", "most"), [(0, 3), (1 << 30, 2), (3 << 30, 1)])
def test_large_jobs_run_fewer_at_a_time(threads, bytes_each, most):
    threads(3)
    together, running, highest = threading.Barrier(most), [], []

    def job():
        running.append(1)
        highest.append(len(running))
        together.wait(60)
        running.pop()

    side_by_side([job] * 6, bytes_each)
    assert max(highest) <= most
