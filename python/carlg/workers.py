"""Independent jobs side by side, one core each.

Small products gain little from several threads, jobs that need not wait for each other gain all of them. What a job computes does not
depend on how many run at a time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")
# Each job has matrices of its own.
_MOST = 8


def side_by_side(jobs: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results in the order of the jobs. Threads that torch starts meanwhile work alone; an exception ends the jobs that wait."""
    threads = torch.get_num_threads()
    workers = min(threads, len(jobs), _MOST)
    torch.set_num_threads(1)
    try:
        if workers < 2:
            return [job() for job in jobs]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda job: job(), jobs))
    finally:
        torch.set_num_threads(threads)
