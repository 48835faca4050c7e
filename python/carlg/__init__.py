"""CARL-G: node embeddings without labels, trained with cluster validity indices (https://arxiv.org/abs/2306.06936)."""

import importlib
import os
import sys
import types
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


class _Package(types.ModuleType):
    """Names of ``__all__`` stay what they are: importing the submodule ``carlg.evaluate`` does not put it in the function's place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _NAMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
