"""Every test starts from seed 0, and reads of uninitialised memory show: torch fills fresh tensors with NaN in deterministic mode.

No test reads figures that an earlier evaluation kept, and none has a deadline: the machine may be busy.
"""

import os

import hypothesis
import pytest
import torch

os.environ["CARLG_CACHE"] = ""
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


@pytest.fixture(autouse=True)
def _seeded_and_poisoned():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def threads():
    """Sets the number of threads and restores it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
