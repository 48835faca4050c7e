"""Data sets by name. Raw files are read as they are and nothing is written beside them, so runs may start at the same time."""

import contextlib
import fcntl
import json
import os
import pathlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

import numpy as np
import scipy.sparse as sp
import torch

from carlg import synthetic
from carlg.config import ConfigError
from carlg.graph import Graph, as_features, as_tensor, choose_layout, make_graph, warn_unused
from carlg.scaling import Scaling

_BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/"
_PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data/"
_WIKI = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset/"
_CSR_PARTS = ("x_data", "x_indices", "x_indptr", "x_shape")
_PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


@dataclass(frozen=True)
class Source:
    """Where a data set lies under the root (torch_geometric's folders) and where it comes from."""

    folder: str
    files: tuple[str, ...]
    url: str
    about: str

    def find(self, root: pathlib.Path) -> pathlib.Path | None:
        """The folder that holds all raw files, or None."""
        family, name = self.folder.split("/")
        places = [root / family / name, root / name, root / name.lower(), root / family, root]
        for place in places:
            for folder in (place / "raw", place):
                if all((folder / file).is_file() for file in self.files):
                    return folder
        return None


def _planetoid(name: str, about: str) -> Source:
    files = tuple(f"ind.{name.lower()}.{part}" for part in _PLANETOID_PARTS)
    return Source(f"planetoid/{name}", files, _PLANETOID, about)


SOURCES = {
    "amazon-photos": Source("amazon/Photo", ("amazon_electronics_photo.npz",), _BENCHMARK, "7,650 goods, 8 classes"),
    "amazon-computers": Source("amazon/Computers", ("amazon_electronics_computers.npz",), _BENCHMARK, "13,752 goods, 10 classes"),
    "coauthor-cs": Source("coauthor/CS", ("ms_academic_cs.npz",), _BENCHMARK, "18,333 authors, 15 fields"),
    "coauthor-physics": Source("coauthor/Physics", ("ms_academic_phy.npz",), _BENCHMARK, "34,493 authors, 5 fields"),
    "wiki-cs": Source("wiki-cs/WikiCS", ("data.json",), _WIKI, "11,701 articles, 10 fields, 20 published splits"),
    "cora": _planetoid("Cora", "2,708 papers, 7 fields"),
    "citeseer": _planetoid("CiteSeer", "3,327 papers, 6 fields"),
    "pubmed": _planetoid("PubMed", "19,717 papers, 3 fields"),
}
BUILT_IN = {
    "digits": "1,797 handwritten digits, 10 classes, kNN graph (bundled with scikit-learn)",
    "sbm": "stochastic block model of --nodes nodes, 5 classes",
}


def load(name: str, root: str | os.PathLike = "data", nodes: int = 1000, features: str | Scaling = "auto", seed: int = 0) -> Graph:
    """A graph by name (see :data:`SOURCES`), or from the path of an .npz file; its features scaled as ``features`` says."""
    root = pathlib.Path(root)
    if name == "digits":
        return synthetic.digits().with_features(features)
    if name == "sbm":
        return synthetic.block_model(nodes, seed=seed).with_features(features)
    if name in SOURCES:
        folder = SOURCES[name].find(root) or _download(name, root)
        if name == "wiki-cs":
            return _read_wiki(folder, features)
        read = _read_planetoid if SOURCES[name].folder.startswith("planetoid") else _read_benchmark
        return read(name, folder).with_features(features)
    if name.endswith(".npz"):
        return read_npz(name).with_features(features)
    known = ", ".join([*BUILT_IN, *SOURCES])
    raise ConfigError(f"unknown data set {name!r}; known are {known}, or the path of an .npz file")


def available(root: str | os.PathLike) -> dict[str, str]:
    """Every data set and where it is: "built in", its folder, or "not found"."""
    places = {name: "built in" for name in BUILT_IN}
    for name, source in SOURCES.items():
        places[name] = str(source.find(pathlib.Path(root)) or "not found")
    return places


def read_npz(path: str | os.PathLike) -> Graph:
    """Your own graph: arrays ``edge_index`` (2, m), ``x`` (n, f) or its CSR parts x_data, x_indices, x_indptr, x_shape, perhaps ``y``.

    Classes in ``y`` are numbers, -1 where unlabelled, or names. The graph is undirected: an edge given in one direction counts in both.
    Self-loops and repeated edges are dropped. An array ``edge_weight`` is not used, which a warning says.
    """
    path = pathlib.Path(path)
    arrays = _read_arrays(path)
    x = as_features(arrays["x"], str(path)) if "x" in arrays else _join_csr(arrays, path)
    if "edge_weight" in arrays:
        warn_unused(f"{path}: edge_weight")
    edge_index = as_tensor(arrays["edge_index"], f"{path}: edge_index")
    return replace(make_graph(str(path), edge_index, x, arrays.get("y")), name=path.stem)


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of a graph's file; others in it are not read."""
    try:
        file = np.load(path, allow_pickle=False)
    except Exception as error:
        raise ConfigError(f"cannot read {path}: {_first_line(error)}") from None
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise ConfigError(f"{path} must be an .npz archive, got a single array of shape {file.shape}")
    with file:
        keys = set(file.files)
        if "edge_index" not in keys or not ("x" in keys or keys.issuperset(_CSR_PARTS)):
            held = ", ".join(file.files) or "nothing"
            raise ConfigError(f"{path} must hold edge_index and x (or {', '.join(_CSR_PARTS)}), got {held}")
        wanted = ("edge_index", "edge_weight", "y", *(("x",) if "x" in keys else _CSR_PARTS))
        return {key: _read_array(file, key, path) for key in wanted if key in keys}


def _read_array(file: Any, key: str, path: pathlib.Path) -> np.ndarray:
    try:
        array = file[key]
    except Exception as error:
        raise ConfigError(f"{path}: {key} cannot be read: {_first_line(error)}") from None
    if not isinstance(array, np.ndarray):
        raise ConfigError(f"{path}: {key} must be an array, got {type(array).__name__}")
    return array


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _join_csr(arrays: dict[str, np.ndarray], path: pathlib.Path) -> torch.Tensor:
    for key in _CSR_PARTS:
        kinds, what = ("biuf", "numbers") if key == "x_data" else ("iu", "integers")
        if arrays[key].ndim != 1 or arrays[key].dtype.kind not in kinds:
            raise ConfigError(f"{path}: {key} must be a vector of {what}, got {arrays[key].dtype} of shape {arrays[key].shape}")
    data, indices, indptr, shape = (arrays[key] for key in _CSR_PARTS)
    try:
        parts = (data.astype(np.float32), indices.astype(np.int64), indptr.astype(np.int64))
        matrix = sp.csr_matrix(parts, shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {', '.join(_CSR_PARTS)} are no CSR matrix: {_first_line(error)}") from None
    return choose_layout(matrix)


def _read_benchmark(name: str, folder: pathlib.Path) -> Graph:
    """Amazon and Coauthor: CSR parts of adjacency and attributes; attributes become 0 or 1, edges undirected."""
    with np.load(folder / SOURCES[name].files[0], allow_pickle=False) as file:
        x = sp.csr_matrix((file["attr_data"], file["attr_indices"], file["attr_indptr"]), shape=tuple(file["attr_shape"]))
        adjacency = sp.csr_matrix((file["adj_data"], file["adj_indices"], file["adj_indptr"]), shape=tuple(file["adj_shape"])).tocoo()
        y = torch.from_numpy(file["labels"].astype(np.int64))
    x.data = (x.data > 0).astype(np.float32)
    edges = torch.from_numpy(np.stack([adjacency.row, adjacency.col]).astype(np.int64))
    return make_graph(name, edges, choose_layout(x), y)


# What pickles of arrays, CSR matrices and dictionaries name, in old and new libraries. No module as a whole: numpy's hold functions that
# run any text given to them.
_EXPECTED: dict[str, tuple[str, ...]] = {
    "numpy": ("dtype", "ndarray"),
    **dict.fromkeys(("numpy.core.multiarray", "numpy._core.multiarray"), ("_reconstruct", "scalar")),
    **dict.fromkeys(("numpy.core.numeric", "numpy._core.numeric"), ("_frombuffer",)),
    **dict.fromkeys(("scipy.sparse", "scipy.sparse.csr", "scipy.sparse._csr"), ("csr_matrix",)),
    "collections": ("defaultdict",),
    "_codecs": ("encode",),
    **dict.fromkeys(("builtins", "__builtin__"), ("list", "object")),
    **dict.fromkeys(("copyreg", "copy_reg"), ("_reconstructor",)),
}


class _Array(np.ndarray):
    """An array that is filled by pickle, never made over memory that a file names."""

    def __new__(cls, *_: Any, **__: Any) -> "_Array":
        raise pickle.UnpicklingError("an array over raw memory is not expected in a planetoid file")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads the planetoid pickles: nothing that they name runs code. No sandbox for files made to break the interpreter."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _EXPECTED.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is not expected in a planetoid file")
        if name == "ndarray":
            return _Array
        # Old files name scipy's private modules.
        return super().find_class("scipy.sparse" if module.startswith("scipy.sparse") else module, name)


def _numbers(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise pickle.UnpicklingError(f"an array of {array.dtype} is not expected in a planetoid file")
    return np.asarray(array)


def _unpickle(path: pathlib.Path) -> Any:
    """The array, CSR matrix or dictionary in a planetoid file."""
    try:
        with open(path, "rb") as file:
            found = _ArrayUnpickler(file, encoding="latin1").load()
        if isinstance(found, sp.csr_matrix):
            found = sp.csr_matrix(tuple(_numbers(part) for part in (found.data, found.indices, found.indptr)), shape=found.shape)
            found.check_format(full_check=True)
            return found
        return found if isinstance(found, dict) else _numbers(found)
    except OSError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot read {path}: {_first_line(error)}") from None


def _read_planetoid(name: str, folder: pathlib.Path) -> Graph:
    parts: dict[str, Any] = {}
    for part, file in zip(_PLANETOID_PARTS, SOURCES[name].files, strict=True):
        if part == "test.index":
            parts[part] = np.loadtxt(folder / file, dtype=np.int64)
            continue
        parts[part] = _unpickle(folder / file)
    test = parts["test.index"]
    known = parts["allx"].shape[0]
    nodes = max(int(test.max()) + 1, known + len(test), len(parts["graph"]))
    # Row i of tx belongs to node test[i]; CiteSeer leaves gaps, which stay zero.
    tail = sp.coo_matrix(parts["tx"])
    body = sp.coo_matrix(parts["allx"])
    row, col = np.concatenate([body.row, test[tail.row]]), np.concatenate([body.col, tail.col])
    x = sp.csr_matrix((np.concatenate([body.data, tail.data]), (row, col)), shape=(nodes, body.shape[1]))
    onehot = np.zeros((nodes, parts["ally"].shape[1]), dtype=np.float32)
    onehot[:known] = parts["ally"]
    onehot[test] = parts["ty"]
    edges = [(u, v) for u, neighbors in parts["graph"].items() for v in neighbors]
    edge_index = torch.tensor(edges, dtype=torch.int64).t()
    train, val, hold = (torch.zeros(nodes, dtype=torch.bool) for _ in range(3))
    labelled = parts["y"].shape[0]
    train[:labelled], val[labelled : labelled + 500], hold[torch.from_numpy(test)] = True, True, True
    y = torch.from_numpy(onehot.argmax(1))
    return make_graph(name, edge_index, choose_layout(x), y, True, train[:, None], val[:, None], hold)


def _read_wiki(folder: pathlib.Path, features: str | Scaling) -> Graph:
    """WikiCS: shift by the global minimum, divide by the row sum, standardise the columns, unless told otherwise."""
    with open(folder / "data.json", encoding="utf-8") as file:
        raw = json.load(file)
    x = torch.tensor(raw["features"], dtype=torch.float32)
    links = [(u, v) for u, targets in enumerate(raw["links"]) for v in targets]
    edges = torch.tensor(links, dtype=torch.int64).reshape(-1, 2).t()
    masks = {
        "train_masks": torch.tensor(raw["train_masks"], dtype=torch.bool).t().contiguous(),
        "val_masks": torch.tensor(raw["val_masks"], dtype=torch.bool).t().contiguous(),
        "test_mask": torch.tensor(raw["test_mask"], dtype=torch.bool),
    }
    graph = make_graph("wiki-cs", edges, x, torch.tensor(raw["labels"]), True, **masks)
    return graph.with_features("row+column" if features == "auto" else features)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(name: str, root: pathlib.Path) -> pathlib.Path:
    """Fetch the raw files; one process at a time, each file complete or absent."""
    source = SOURCES[name]
    folder = root / source.folder / "raw"
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            for path in (folder / file for file in source.files):
                if not path.is_file():
                    _fetch(source.url + path.name, path)
    except (OSError, HTTPException) as error:
        raise ConfigError(f"data set {name}: {path} is missing and the download failed ({_first_line(error)})") from None
    return folder


def _fetch(url: str, path: pathlib.Path) -> None:
    """Download to a file beside ``path`` that takes its name when it is whole."""
    print(f"downloading {url}", file=sys.stderr)
    part = path.with_name(f".{path.name}.part")
    try:
        with urlopen(url, timeout=30) as answer, open(part, "wb") as file:
            file.write(answer.read())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
