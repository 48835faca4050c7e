"""CARL-G: node embeddings without labels, trained with cluster validity indices (https://arxiv.org/abs/2306.06936)."""

import importlib
import os
from typing import Any

# Both are read once, when torch is imported. Fresh memory costs as much as arithmetic: huge pages. Threads that spin while they wait
# make a run dozens of times slower on a machine that others use too: sleep instead.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_NAMES = {
    "CARLG": "estimator",
    "Config": "config",
    "ConfigError": "config",
    "Encoder": "encoder",
    "Graph": "graph",
    "Trainer": "trainer",
    "evaluate": "evaluate",
    "from_data": "graph",
    "load": "data",
    "load_encoder": "checkpoint",
    "recipe": "config",
    "train": "run",
}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'carlg' has no attribute {name!r}")
    return getattr(importlib.import_module(f"carlg.{_NAMES[name]}"), name)
