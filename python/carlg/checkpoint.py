"""Files that are complete or absent, and checkpoints that load without running code."""

import contextlib
import fcntl
import io
import json
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
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


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
        raise ConfigError(f"{path} is not a checkpoint: {str(error).splitlines()[0]}") from None
    if not isinstance(state, dict):
        raise ConfigError(f"{path} must hold a dictionary, got {type(state).__name__}")
    return state


def save_encoder(path: pathlib.Path, encoder: Encoder, **about: Any) -> None:
    """The encoder under the authors' parameter names, so that either code reads the other's files."""
    save(path, {"model": to_published(encoder), **about})


def load_encoder(path: str | os.PathLike) -> Encoder:
    return from_published(load(path))


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
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run is writing to {folder}") from None
        yield
