"""What a run cost: time of an epoch against its necessary products, memory, versions."""

import platform
import resource
import statistics
import time
from typing import Any

import torch

from carlg.trainer import Trainer


def peak_memory_mb() -> float:
    """Largest resident memory of this process so far. Where Linux tells it, that of this program alone: getrusage also counts the process
    that started it, up to the moment of starting."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_gpu_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def gpu_peak_memory_mb(device: torch.device) -> float | None:
    """Largest memory of tensors on the device since :func:`reset_gpu_peak`; None where it is not a GPU."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def seconds_per_epoch(trainer: Trainer) -> float:
    """Median of the training epochs without the first (k-means from scratch) and the last (stopped before its step)."""
    times = [record.seconds for record in trainer.history]
    if len(times) > 3:
        times = times[1:-1]
    return statistics.median(times)


def product_rate(device: torch.device, rows: int = 4096, width: int = 512) -> float:
    """Flops a second of a large float32 product on this machine, the best of several."""
    a, b = torch.randn(rows, width, device=device), torch.randn(width, width, device=device)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2.0 * rows * width * width / best


def cost(trainer: Trainer) -> dict[str, float]:
    """Figures of metrics.json: epoch, its necessary flops, and how far from the product rate it ran."""
    seconds = seconds_per_epoch(trainer)
    flops = trainer.inputs.flops(trainer.config.layers, trainer.config.predictor)
    rate = product_rate(trainer.device)
    return {
        "seconds_per_epoch": seconds,
        "epoch_gflop": flops / 1e9,
        "product_gflops": rate / 1e9,
        "epoch_over_products": seconds * rate / flops,
    }


def versions() -> dict[str, Any]:
    import importlib.metadata as metadata

    def of(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "not installed"

    packages = ("torch", "carlg-kernels", "torch-geometric", "scikit-learn", "scipy", "numpy")
    return {
        "python": platform.python_version(),
        **{package: of(package) for package in packages},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
