"""What a run says about its own cost."""

import pathlib
import subprocess
import sys

import pytest

PARENT = """
import subprocess, sys
import numpy as np
ballast = np.ones(1 << 27)
subprocess.run([sys.executable, "-c", "from carlg.measure import peak_memory_mb; print(peak_memory_mb())"], check=True)
"""


@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="the peak of one program is read from /proc")
def test_peak_memory_is_not_that_of_the_parent():
    """The parent holds a gigabyte when it starts the program, which needs some hundred megabytes to import torch."""
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    assert 50 < float(done.stdout) < 900
