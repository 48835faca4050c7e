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
