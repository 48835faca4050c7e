"""CARL-G: node embeddings without labels, trained with cluster validity indices (https://arxiv.org/abs/2306.06936)."""

import importlib
import os
from typing import Any

# Read once, when torch is imported. Threads that spin long while they wait slow a shared machine down, threads that sleep at once cost
# small parallel regions more than their work: spin for some ten microseconds.
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

_NAMES = {
    "CARLG": "estimator",
    "Config": "config",
    "ConfigError": "config",
    "Encoder": "encoder",
    "Graph": "graph",
    "Trainer": "trainer",
    "evaluate": "tasks",
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
