"""Figures that were found before: an evaluation depends on nothing but the rows, the labels, the protocol and the code, so it is kept.

All runs on a graph share the figures of its raw features, all runs of a seed those of the untrained encoder, and on wide sparse
features these cost more than training. Each task is kept as soon as it is done, so an evaluation that was killed goes on where it was.

$CARLG_CACHE names the folder (~/.cache/carlg without it); where it is empty, nothing is kept.
"""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
from typing import Any

from torch import Tensor

import carlg_kernels
from carlg import checkpoint, classifier, graph, measure, propagation, sparse_kmeans, tasks
from carlg.graph import Graph, parts

_CODE = (classifier, graph, propagation, sparse_kmeans, tasks)


def recall(x: Tensor, graph: Graph, protocol: str, splits: int) -> tuple[dict[str, Any], bool]:
    """The figures of all tasks as :func:`carlg.evaluate` finds them, and whether all of them were known."""
    figures: dict[str, Any] = {}
    all_known = True
    content = _content(x, graph)
    for task in tasks.TASKS:
        place = _place(f"{content} {task} {protocol} {splits if task == 'class' else ''}")
        found = _read(place)
        if found is None:
            all_known = False
            found = tasks.evaluate(x, graph, protocol, splits, (task,))
            _write(place, found)
        figures |= found
    return figures, all_known


def folder() -> pathlib.Path | None:
    """Where figures are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = os.environ.get("CARLG_CACHE", f"{cache}/carlg")
    return pathlib.Path(chosen).expanduser() if chosen else None


def _content(x: Tensor, graph: Graph) -> str:
    masks = (graph.train_masks, graph.val_masks, graph.test_mask)
    return f"{tuple(x.shape)} {checkpoint.digest([*parts(x), *(t for t in (graph.y, *masks) if t is not None)])}"


def _place(key: str) -> pathlib.Path | None:
    kept = folder()
    if kept is None:
        return None
    name = hashlib.sha256(f"{_version()} {key}".encode()).hexdigest()[:32]
    return kept / "figures" / f"{name}.json"


def _version() -> str:
    """Of the code that evaluates: its text, the kernels, and the libraries under them."""
    return f"{_digest()} {json.dumps(measure.versions(), sort_keys=True)}"


@functools.cache
def _digest() -> str:
    kernels = pathlib.Path(carlg_kernels.__file__).parent
    files = [pathlib.Path(str(module.__file__)) for module in _CODE] + sorted([*kernels.rglob("*.py"), *kernels.glob("*.so")])
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _read(place: pathlib.Path | None) -> dict[str, Any] | None:
    try:
        found = json.loads(place.read_bytes()) if place is not None else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(place: pathlib.Path | None, figures: dict[str, Any]) -> None:
    if place is not None:
        with contextlib.suppress(OSError):
            checkpoint.write_json(place, figures)
