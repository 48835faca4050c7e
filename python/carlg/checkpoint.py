"""Files that are complete or absent, and checkpoints that load without running code."""

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carlg.config import ConfigError
from carlg.encoder import Encoder, from_published, to_published
from carlg.graph import Graph, parts
from carlg.scaling import Scaling


def write_bytes(path: pathlib.Path, content: bytes) -> None:
    """Write beside the target, flush to disk, rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_text(path: pathlib.Path, content: str) -> None:
    write_bytes(path, content.encode())


def write_json(path: pathlib.Path, value: Any) -> None:
    """JSON proper: numbers that are not finite become null."""
    write_text(path, json.dumps(_finite(value), indent=2, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


def first_line(error: Exception) -> str:
    """What an error says, or its kind where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def save(path: pathlib.Path, state: dict[str, Any]) -> None:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_bytes(path, buffer.getvalue())


def load(path: str | os.PathLike) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except Exception as error:
        raise ConfigError(f"{path} is not a checkpoint: {first_line(error)}") from None
    if not isinstance(state, dict):
        raise ConfigError(f"{path} must hold a dictionary, got {type(state).__name__}")
    return state


def load_array(path: pathlib.Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path} is not an array: {first_line(error)}") from None
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{path} must hold one array, got {type(array).__name__}")
    return array


def fingerprint(graph: Graph) -> dict[str, Any]:
    """Sizes and hashes by which a graph is known again."""
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "edge_index": digest([graph.edge_index]),
        "x": digest(parts(graph.x)),
    }


def digest(tensors: list[Tensor]) -> str:
    """Hash of the numbers of some tensors."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.cpu().contiguous().numpy())
    return content.hexdigest()[:32]


def same_graph(graph: Graph, known: dict[str, Any] | None, what: str) -> None:
    """ConfigError names what differs between a graph and the fingerprint of the one trained on; files without one pass."""
    if known is None:
        return
    found = fingerprint(graph)
    sizes = [f"{key} ({found[key]}, not {known[key]})" for key in ("nodes", "edges", "features") if found[key] != known[key]]
    contents = [key for key in ("edge_index", "x") if found[key] != known[key]]
    if sizes or contents:
        raise ConfigError(f"{what}: {graph.name} is not the graph it was trained on; {', '.join(sizes or contents)} differ")


def save_encoder(path: pathlib.Path, encoder: Encoder, graph: Graph) -> None:
    """The encoder under the authors' parameter names, so that either code reads the other's files; beside it what it was trained on."""
    scaling = graph.scaling or Scaling("none")
    about = {"features": graph.num_features, "scaling": scaling.state(), "graph": fingerprint(graph)}
    save(path, {"model": to_published(encoder), **about})


def load_encoder(path: str | os.PathLike) -> Encoder:
    return load_model(path)[0]


def load_model(path: str | os.PathLike) -> tuple[Encoder, Scaling | None, dict[str, Any] | None]:
    """An encoder, the scaling of its features and its graph's fingerprint; both are absent in the authors' files."""
    state = load(path)
    try:
        scaling = Scaling(**state["scaling"]) if "scaling" in state else None
        return from_published(state), scaling, state.get("graph")
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def copy_state(module: torch.nn.Module, into: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """A detached copy of a module's state, written over ``into`` where given."""
    state = module.state_dict()
    if into is None:
        return {key: value.detach().clone() for key, value in state.items()}
    for key, value in state.items():
        into[key].copy_(value)
    return into


@contextlib.contextmanager
def only_run(folder: pathlib.Path) -> Iterator[None]:
    """Refuse a second run that writes to the same folder at the same time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(f"out must be a folder to write to, got {folder}: {error.strerror or error}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run is writing to {folder}") from None
        yield


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    """Wait until no other process holds the lock beside ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
