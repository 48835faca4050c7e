"""What a run says about its own cost."""

import pathlib
import subprocess
import sys

import pytest
import torch

import carlg
from carlg.measure import gpu_peak_memory_mb, reset_gpu_peak

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


def test_peaks_of_host_and_gpu():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reset_gpu_peak(device)
    ballast = torch.ones(1 << 20, device=device)
    peak = gpu_peak_memory_mb(device)
    assert (peak is None) == (device.type == "cpu") and (peak is None or peak >= ballast.nbytes / 2**20)
    metrics = carlg.train(dataset="sbm", nodes=60, epochs=1, layers=(8, 4), predictor=0, evaluate=False, device=device.type).metrics
    assert metrics["peak_memory_mb"] > 50 and (metrics["gpu_peak_memory_mb"] is None) == (device.type == "cpu")
