"""Timing and provenance. Every figure is a ratio inside one run: functions are interleaved, so that noise hits all of them alike."""

import gc
import json
import os
import pathlib
import platform
import subprocess
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

RESULTS = pathlib.Path(__file__).with_name("results")


def interleaved(
    functions: dict[str, Callable[[], Any]],
    rounds: int = 9,
    budget: float = 30.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every call, round by round, after one call to warm up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    start = time.perf_counter()
    for _ in range(rounds):
        for name, function in functions.items():
            gc.disable()
            before = clock()
            function()
            times[name].append(clock() - before)
            gc.enable()
        if time.perf_counter() - start > budget:
            break
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Best, p20, p50 and p80 in milliseconds."""
    ordered = sorted(times)

    def at(share: float) -> float:
        return round(1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)], 4)

    return {"best_ms": round(1e3 * ordered[0], 4), "p20_ms": at(0.2), "p50_ms": at(0.5), "p80_ms": at(0.8)}


def provenance() -> dict[str, Any]:
    """What a reader needs to trust or repeat a figure."""
    commit = _git("rev-parse", "--short", "HEAD")
    if _git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results", ":!docs", ":!README.md"):
        commit += "-changed"
    model = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), platform.processor())
    build = torch.ops.carlg_kernels.build_info().split(",")[0] if hasattr(torch.ops.carlg_kernels, "build_info") else "none"
    versions = {name: _version(name) for name in ("torch", "scikit-learn", "faiss-cpu", "numpy")}
    return {
        "commit": commit,
        "cpu": model,
        "isa": build,
        "threads": torch.get_num_threads(),
        "huge_pages": os.environ.get("THP_MEM_ALLOC_ENABLE") == "1",
        **versions,
    }


def _git(*arguments: str) -> str:
    folder = pathlib.Path(__file__).parent.parent
    return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder).stdout.strip()


def _cpu_lines() -> list[str]:
    path = pathlib.Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def record(name: str, rows: list[dict[str, Any]]) -> pathlib.Path:
    """Write rows, each with its provenance, to results/<name>.jsonl in place of what was there. Rows that were loaded keep their own."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    facts = provenance()
    path.write_text("".join(json.dumps(row if "commit" in row else {**row, **facts}) + "\n" for row in rows))
    return path


def load(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
