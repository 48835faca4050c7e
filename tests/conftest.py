"""Every test starts from seed 0, and reads of uninitialised memory show: torch fills fresh tensors with NaN in deterministic mode.

No test reads figures that an earlier evaluation kept, and none has a deadline: the machine may be busy. Workers that share the cores get
a thread each, or they would wait for one another; tests of threads ask for theirs.
"""

import os

# Read when torch is imported, here and in the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CARLG_CACHE"] = ""

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

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
