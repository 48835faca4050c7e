"""Independent jobs side by side, one core each.

Small products gain little from several threads, jobs that need not wait for each other gain all of them. What a job computes does not
depend on how many run at a time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")
# Jobs at a time, and the memory that they may take together.
_MOST, _MEMORY = 8, 2 << 30


def side_by_side(jobs: Sequence[Callable[[], Result]], bytes_each: int = 0) -> list[Result]:
    """Results in the order of the jobs, fewer at a time where each takes many bytes.

    Threads that torch starts meanwhile work alone. After an exception the jobs that wait are dropped, those that run are waited for.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [job() for job in jobs]
    workers = min(threads, len(jobs), _MOST, max(1, _MEMORY // max(1, bytes_each)))
    torch.set_num_threads(1)
    try:
        if workers < 2:
            return [job() for job in jobs]
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda job: job(), jobs))
    finally:
        torch.set_num_threads(threads)
