"""Loaders: published layouts, own files, made graphs, features that stay sparse."""

import collections
import json
import multiprocessing
import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from carlg import data, synthetic
from carlg.config import ConfigError
from carlg.graph import choose_layout, csr_tensor, from_data, make_graph
from carlg.scaling import fit_scaling

COUNTS = {
    "amazon-photos": (7650, 238162, 745, 8, False),
    "amazon-computers": (13752, 491722, 767, 10, False),
    "coauthor-cs": (18333, 163788, 6805, 15, True),
    "coauthor-physics": (34493, 495924, 8415, 5, True),
    "cora": (2708, 10556, 1433, 7, True),
    "citeseer": (3327, 9104, 3703, 6, True),
    "pubmed": (19717, 88648, 500, 3, False),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_published_graphs(name, datasets):
    graph = data.load(name, datasets)
    found = (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes, graph.is_sparse)
    assert found == COUNTS[name]
    values = graph.x.values() if graph.is_sparse else graph.x
    assert bool(values.isfinite().all()) and float(values.min()) >= 0


@pytest.mark.parametrize(("name", "family", "key"), [("amazon-photos", "Amazon", "Photo"), ("citeseer", "Planetoid", "CiteSeer")])
def test_same_as_torch_geometric(name, family, key, datasets, tmp_path):
    import shutil

    sets = pytest.importorskip("torch_geometric.datasets")
    transforms = pytest.importorskip("torch_geometric.transforms")
    folder = data.SOURCES[name].folder.split("/")[0]
    shutil.copytree(datasets / folder / key, tmp_path / key, copy_function=shutil.copyfile)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o755)
    theirs = getattr(sets, family)(str(tmp_path), key, transform=transforms.NormalizeFeatures())[0]
    mine = data.load(name, datasets)
    x = mine.x.to_dense() if mine.is_sparse else mine.x
    torch.testing.assert_close(x, theirs.x, rtol=1e-6, atol=1e-7)
    order = torch.argsort(theirs.edge_index[0] * mine.num_nodes + theirs.edge_index[1])
    assert torch.equal(mine.edge_index, theirs.edge_index[:, order])
    assert torch.equal(mine.y, theirs.y)


def _wiki_file(path, nodes=40):
    generator = np.random.default_rng(0)
    content = {
        "features": generator.normal(size=(nodes, 5)).tolist(),
        "labels": generator.integers(3, size=nodes).tolist(),
        "links": [[(i + 1) % nodes, (i + 7) % nodes] for i in range(nodes)],
        "train_masks": (generator.random((20, nodes)) < 0.3).tolist(),
        "val_masks": (generator.random((20, nodes)) < 0.3).tolist(),
        "stopping_masks": (generator.random((20, nodes)) < 0.1).tolist(),
        "test_mask": (generator.random(nodes) < 0.4).tolist(),
    }
    path.mkdir(parents=True)
    (path / "data.json").write_text(json.dumps(content))
    return content


@pytest.mark.parametrize("folder", ["raw", "wiki-cs/raw", "wiki-cs"])
def test_wiki_cs_from_a_made_file(tmp_path, folder):
    content = _wiki_file(tmp_path / folder)
    graph = data.load("wiki-cs", tmp_path)
    assert graph.num_nodes == 40 and graph.num_edges == 160
    assert graph.train_masks.shape == (40, 20) and graph.test_mask.shape == (40,)
    assert graph.test_mask.tolist() == content["test_mask"]
    x = torch.tensor(content["features"])
    x = x - x.min()
    x = x / x.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(graph.x, (x - x.mean(0)) / x.std(0, correction=0), rtol=1e-4, atol=1e-5)


def test_wiki_cs_is_evaluated_on_its_masks(tmp_path):
    from carlg.tasks import evaluate, resolve_protocol

    _wiki_file(tmp_path / "raw")
    graph = data.load("wiki-cs", tmp_path)
    assert resolve_protocol("auto", graph) == "masks"
    assert len(evaluate(graph.x, graph, tasks=("class",))["accuracies"]) == 20


@pytest.mark.parametrize("sparse", [False, True])
def test_own_graph_from_npz(tmp_path, sparse):
    x = sp.random(30, 9, density=0.08 if sparse else 0.6, format="csr", random_state=0)
    edges = np.array([[0, 1, 2, 2, 5], [1, 2, 2, 0, 5]])
    arrays = {"edge_index": edges, "y": np.arange(30) % 3 + 7}
    if sparse:
        arrays |= {"x_data": x.data, "x_indices": x.indices, "x_indptr": x.indptr, "x_shape": x.shape}
    else:
        arrays["x"] = x.toarray()
    np.savez(tmp_path / "mine.npz", **arrays)
    graph = data.load(str(tmp_path / "mine.npz"), features="none")
    assert graph.name == "mine" and graph.is_sparse == sparse
    assert graph.edge_index.tolist() == [[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]]
    assert graph.num_classes == 3
    got = graph.x.to_dense() if sparse else graph.x
    np.testing.assert_allclose(got.numpy(), x.toarray(), rtol=1e-6)


def test_bad_files_and_graphs(tmp_path):
    with pytest.raises(ConfigError, match="unknown data set 'nope'"):
        data.load("nope")
    with pytest.raises(ConfigError, match="cannot read"):
        data.load(str(tmp_path / "absent.npz"))
    np.savez(tmp_path / "bad.npz", x=np.zeros((4, 2)))
    with pytest.raises(ConfigError, match="must hold edge_index"):
        data.load(str(tmp_path / "bad.npz"))
    edges = torch.tensor([[0, 9], [1, 2]])
    with pytest.raises(ConfigError, match=r"edge_index must be in \[0, 4\)"):
        make_graph("g", edges, torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="finite"):
        make_graph("g", edges, torch.full((10, 2), float("nan")))
    with pytest.raises(ConfigError, match="y must be"):
        make_graph("g", edges, torch.zeros(10, 2), torch.zeros(3))


_EDGES = np.array([[0, 1, 2], [1, 2, 3]])
_CSR = {
    "x_data": np.ones(4),
    "x_indices": np.array([0, 1, 2, 0]),
    "x_indptr": np.array([0, 1, 2, 3, 4]),
    "x_shape": np.array([4, 3]),
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"edge_index": _EDGES.astype(float), "x": np.ones((4, 2))}, "edge_index must hold integers, got torch.float64"),
        ({"edge_index": _EDGES > 1, "x": np.ones((4, 2))}, "edge_index must hold integers, got torch.bool"),
        ({"edge_index": _EDGES.astype(str), "x": np.ones((4, 2))}, "edge_index must hold real numbers, got <U21"),
        ({"edge_index": _EDGES.T, "x": np.ones((4, 2))}, r"edge_index must be .* of shape \(2, m\), got .*\(3, 2\)"),
        ({"edge_index": _EDGES - 1, "x": np.ones((4, 2))}, r"edge_index must be in \[0, 4\), got -1..2"),
        ({"edge_index": _EDGES, "x": np.ones(4)}, r"x must be of shape \(n, f\), got \(4,\)"),
        ({"edge_index": _EDGES, "x": np.ones((4, 2), dtype=complex)}, "x must hold real numbers, got complex128"),
        ({"edge_index": _EDGES, "x": np.array([["a"]] * 4)}, "x must hold real numbers, got <U1"),
        ({"edge_index": _EDGES, "x": np.array([[None]] * 4)}, "x cannot be read: Object arrays"),
        ({"edge_index": _EDGES, "x": np.ones((4, 2)), "y": np.array([None] * 4)}, "y cannot be read: Object arrays"),
        ({"edge_index": _EDGES, "x": np.ones((4, 2)), "y": np.array([0, 1, 2, np.nan])}, "y must hold whole numbers .* got nan"),
        ({"edge_index": _EDGES, "x": np.ones((4, 2)), "y": np.zeros(3)}, r"y must be of shape \(4,\), got \(3,\)"),
        ({"edge_index": _EDGES, **_CSR, "x_indices": np.array([0, 1, 3, 0])}, "x_data, .* are no CSR matrix: .*< 3"),
        ({"edge_index": _EDGES, **_CSR, "x_indices": np.array([0, -1, 2, 0])}, "are no CSR matrix: .*>= 0"),
        ({"edge_index": _EDGES, **_CSR, "x_indices": np.array([0, 1.5, 2, 0])}, "x_indices must be a vector of integers, got float64"),
        ({"edge_index": _EDGES, **_CSR, "x_indptr": np.array([0, 3, 2, 3, 4])}, "are no CSR matrix"),
        ({"edge_index": _EDGES, **_CSR, "x_indptr": np.array([0, 1, 4])}, "are no CSR matrix"),
        ({"edge_index": _EDGES, **_CSR, "x_shape": np.array([4])}, "are no CSR matrix"),
        ({"edge_index": _EDGES, **_CSR, "x_data": np.ones((2, 2))}, r"x_data must be a vector of numbers, got float64 of shape \(2, 2\)"),
        ({"edge_index": _EDGES, **_CSR, "x_data": np.array(["a"] * 4)}, "x_data must be a vector of numbers, got <U1"),
    ],
)
def test_bad_arrays_are_named(tmp_path, arrays, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(ConfigError, match=message) as caught:
        data.read_npz(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_no_archives(tmp_path):
    np.savez(tmp_path / "whole.npz", edge_index=_EDGES, x=np.random.default_rng(0).random((4, 200)))
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ConfigError, match=r"cannot read .*cut.npz: File is not a zip file$"):
        data.read_npz(tmp_path / "cut.npz")
    at = len(content) // 2
    (tmp_path / "flipped.npz").write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    with pytest.raises(ConfigError, match=r"flipped.npz: x cannot be read: Bad CRC-32"):
        data.read_npz(tmp_path / "flipped.npz")
    with open(tmp_path / "single.npz", "wb") as file:
        np.save(file, np.zeros((4, 2)))
    with pytest.raises(ConfigError, match=r"single.npz must be an .npz archive, got a single array of shape \(4, 2\)"):
        data.read_npz(tmp_path / "single.npz")
    (tmp_path / "text.npz").write_text("edge_index")
    with pytest.raises(ConfigError, match="cannot read .*text.npz"):
        data.read_npz(tmp_path / "text.npz")


def test_class_names_and_arrays_that_are_not_read(tmp_path):
    names = np.array(["tree", "bird", "tree", "cat"])
    np.savez(tmp_path / "mine.npz", edge_index=_EDGES, x=np.ones((4, 2)), y=names, notes=np.array([None, {}]))
    graph = data.read_npz(tmp_path / "mine.npz")
    assert graph.y.tolist() == [2, 0, 2, 1] and graph.num_classes == 3
    empty = np.zeros((2, 0))
    np.savez(tmp_path / "edgeless.npz", edge_index=empty, x=np.ones((4, 2), dtype=">f4"), y=names.astype("S"))
    graph = data.read_npz(tmp_path / "edgeless.npz")
    assert graph.num_edges == 0 and graph.y.tolist() == [2, 0, 2, 1]


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["dense", "coo", "csr", "csc", "numpy", "scipy"])
def test_features_of_any_kind(kind, layout):
    pyg = pytest.importorskip("torch_geometric.data")
    x = torch.tensor([[1, 0, 3], [0, 2, 0], [0, 1, 1], [4, 0, 0]]).to(kind)
    expected = x.to(torch.float32)
    if kind == torch.bfloat16 and layout in ("numpy", "scipy") or kind == torch.float16 and layout == "scipy":
        pytest.skip(f"{layout} has no {kind}")
    convert = {
        "dense": lambda: x,
        "coo": x.to_sparse,
        "csr": x.to_sparse_csr,
        "csc": x.to_sparse_csc,
        "numpy": lambda: x.numpy(),
        "scipy": lambda: sp.coo_matrix(x.numpy()),
    }
    graph = from_data(pyg.Data(x=convert[layout](), edge_index=torch.from_numpy(_EDGES)))
    assert graph.x.dtype == torch.float32 and torch.equal(graph.x, expected)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (None, "got Data without x"),
        (torch.ones(4), r"x must be of shape \(n, f\), got \(4,\)"),
        (torch.ones(4).to_sparse(), r"x must be of shape \(n, f\), got \(4,\)"),
        (torch.ones(4, 2, 2), r"got \(4, 2, 2\)"),
        (torch.ones(4, 0), r"x must be of shape \(n >= 3, f >= 1\), got \(4, 0\)"),
        (torch.ones(4, 2, dtype=torch.complex64), "x must hold real numbers, got torch.complex64"),
        (sp.csr_matrix(np.ones((4, 2), dtype=complex)), "x must hold real numbers, got complex128"),
        (torch.full((4, 2), 1e300, dtype=torch.float64), "x must be finite"),
        ([["a", "b"]] * 4, "x must hold real numbers, got <U1 from list"),
        ([[1.0], [1.0, 2.0], [3.0], [4.0]], "x must be an array of numbers, got list"),
    ],
)
def test_features_that_cannot_be_used(x, message):
    pyg = pytest.importorskip("torch_geometric.data")
    with pytest.raises(ConfigError, match=message):
        from_data(pyg.Data(x=x, edge_index=torch.from_numpy(_EDGES)))


def test_given_matrices_are_not_written_to():
    x = sp.csr_matrix((np.ones(5, dtype=np.float32), np.array([2, 2, 0, 1, 0]), np.array([0, 3, 5, 5, 5])), shape=(4, 3))
    before = x.toarray()
    torch.testing.assert_close(choose_layout(x), torch.from_numpy(before))
    assert x.data.tolist() == [1] * 5 and x.indices.tolist() == [2, 2, 0, 1, 0] and np.array_equal(x.toarray(), before)


@pytest.mark.parametrize(
    ("key", "shape", "warns"), [("edge_weight", (3,), True), ("edge_attr", (3, 1), True), ("edge_attr", (3, 4), False)]
)
def test_edge_weights_are_not_used(key, shape, warns):
    pyg = pytest.importorskip("torch_geometric.data")
    content = pyg.Data(x=torch.ones(4, 2), edge_index=torch.from_numpy(_EDGES), **{key: torch.rand(shape)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_data(content, "mine")
    found = [str(w.message) for w in caught if w.category is UserWarning and "beta" not in str(w.message)]
    assert found == ([f"mine: {key} is not used, all edges count the same"] if warns else [])


def test_edge_weights_of_a_file_are_not_used(tmp_path):
    np.savez(tmp_path / "mine.npz", edge_index=_EDGES, x=np.ones((4, 2)), edge_weight=np.ones(3))
    with pytest.warns(UserWarning, match="edge_weight is not used"):
        data.read_npz(tmp_path / "mine.npz")


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.float32, torch.float64])
def test_unlabelled_nodes_are_no_class(kind):
    y = torch.tensor([7, -1, 3, 7, -1, 9], dtype=kind)
    mask = torch.tensor([True, True, False, False, True, False])
    graph = make_graph("g", torch.tensor([[0], [1]]), torch.rand(6, 2), y, True, mask[:, None], ~mask[:, None], mask)
    assert graph.y.tolist() == [1, -1, 0, 1, -1, 2] and graph.num_classes == 3
    assert graph.labelled.tolist() == [0, 2, 3, 5]
    assert graph.train_masks[:, 0].nonzero().flatten().tolist() == [0] == graph.test_mask.nonzero().flatten().tolist()
    assert graph.val_masks[:, 0].nonzero().flatten().tolist() == [2, 3, 5]


@pytest.mark.parametrize("y", [[-1] * 4, [5] * 4, [-1, 2, 2, -1], [0, 0, -1, 0]])
def test_fewer_than_two_classes_are_no_labels(y):
    from carlg.tasks import evaluate

    graph = make_graph("g", torch.tensor([[0], [1]]), torch.rand(4, 2), torch.tensor(y))
    assert graph.y is None and graph.num_classes == 0 and len(graph.labelled) == 0
    assert evaluate(graph.x, graph) == {}


@pytest.mark.parametrize(
    ("y", "got"),
    [
        (torch.tensor([0.0, 1.0, float("nan")]), "nan"),
        (torch.tensor([0.0, 1.5, 1.0]), "1.5"),
        (torch.tensor([0.0, 1.0, float("inf")]), "inf"),
        (torch.tensor([0, 1, -2]), "-2"),
        (torch.tensor([0, 1, 1j]), "complex64"),
        (np.array([b"a", 1, 2.5], dtype=object), "object"),
        (torch.tensor([[0, 1], [1, 0], [1, 0]]), r"\(3, 2\)"),
        (torch.tensor([0, 1]), r"\(2,\)"),
        (np.array([None, 1, 2]), "object"),
    ],
)
def test_labels_that_are_no_classes(y, got):
    with pytest.raises(ConfigError, match=f"^g: y must .*, got .*{got}"):
        make_graph("g", torch.tensor([[0], [1]]), torch.rand(3, 2), y)


def test_masks_of_another_graph():
    mask = torch.ones(4, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match=r"g: train_masks must have 3 rows, got shape \(4, 1\)"):
        make_graph("g", torch.tensor([[0], [1]]), torch.rand(3, 2), torch.arange(3), True, mask)
    with pytest.raises(ConfigError, match=r"val_masks must be of shape \(4, 1\)"):
        make_graph("g", torch.tensor([[0], [1]]), torch.rand(4, 2), torch.arange(4), True, mask, mask.repeat(1, 2))


@pytest.mark.parametrize("call", ["os system", "numpy.testing measure", "numpy.testing runstring", "builtins eval", "numpy load"])
def test_planetoid_pickles_run_no_code(call, tmp_path):
    module, name = call.split()
    text = f"open({str(tmp_path / 'ran')!r}, 'w')"
    (tmp_path / "attack").write_bytes(f"c{module}\n{name}\n(V{text}\ntR.".encode())
    with pytest.raises(ConfigError, match=rf"cannot read .*attack: {module}\.{name} is not expected"):
        data._unpickle(tmp_path / "attack")
    assert not (tmp_path / "ran").exists()


class _Called:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "content",
    [
        _Called(np.ndarray, ((1,), np.dtype("O"), b"A" * 8)),
        np.array([None, 1]),
        np.zeros(2, dtype=[("a", np.int32)]),
        [1, 2],
        sp.csr_matrix((np.ones(1), np.array([7]), np.array([0, 1])), shape=(1, 8)).tocsc(),
    ],
    ids=["raw memory", "objects", "records", "list", "csc"],
)
def test_planetoid_pickles_hold_numbers(content, tmp_path):
    (tmp_path / "file").write_bytes(pickle.dumps(content))
    with pytest.raises(ConfigError, match="cannot read .*file: "):
        data._unpickle(tmp_path / "file")


def test_planetoid_pickles_that_are_damaged(tmp_path):
    whole = pickle.dumps(sp.csr_matrix(np.eye(3)))
    beyond = sp.csr_matrix(np.eye(3))
    beyond.indices[1] = 9
    for content in (b"", whole[:40], b"not a pickle", pickle.dumps(beyond)):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ConfigError, match="cannot read .*file: "):
            data._unpickle(tmp_path / "file")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_planetoid_pickles_of_any_age_are_read(protocol, tmp_path):
    matrix = sp.csr_matrix(np.eye(3, dtype=np.float32))
    graph = collections.defaultdict(list, {0: [1]})
    for content in (matrix, graph, np.eye(2, dtype=np.int32)):
        (tmp_path / "file").write_bytes(pickle.dumps(content, protocol))
        found = data._unpickle(tmp_path / "file")
        assert type(found) is type(content)
        assert found == content if isinstance(content, dict) else not (found != content).sum()


def test_normalisations_agree_between_layouts():
    x = sp.random(50, 11, density=0.2, format="csr", random_state=1, dtype=np.float32)
    x.data *= 4
    dense, sparse = torch.from_numpy(x.toarray()), csr_tensor(x)
    scaled, full = (fit_scaling(x, "row").apply(x) for x in (sparse, dense))
    torch.testing.assert_close(scaled.to_dense(), full)
    scaled, full = (fit_scaling(x, "column").apply(x).to_dense() for x in (sparse, dense))
    torch.testing.assert_close(scaled - scaled.mean(0), full, rtol=1e-4, atol=1e-4)


def test_layout_follows_density():
    few, many = sp.random(40, 40, 0.01, random_state=0), sp.random(40, 40, 0.5, random_state=0)
    assert choose_layout(few).layout == torch.sparse_csr
    assert choose_layout(many).layout == torch.strided


def _rare_features(nodes=160, columns=60, share=0.05):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(nodes, columns, generator=generator) * (torch.rand(nodes, columns, generator=generator) < share)
    x[:, :3] += torch.nn.functional.one_hot(torch.arange(nodes) % 3) * (torch.rand(nodes, 1, generator=generator) < 0.5)
    return x


def test_rare_dense_features_become_sparse(tmp_path, tiny):
    pyg = pytest.importorskip("torch_geometric.data")
    x = _rare_features()
    np.savez(tmp_path / "mine.npz", edge_index=tiny.edge_index.numpy(), x=x.double().numpy(), y=tiny.y.numpy())
    for graph in (from_data(pyg.Data(x=x, edge_index=tiny.edge_index)), data.read_npz(tmp_path / "mine.npz")):
        assert graph.is_sparse and graph.x.col_indices().dtype == torch.int64
        assert torch.equal(graph.x.to_dense(), x)
        assert torch.equal(graph.x.crow_indices().diff(), (x > 0).sum(1))


def test_signed_and_full_dense_features_stay_dense(tiny):
    pyg = pytest.importorskip("torch_geometric.data")
    for x in (-_rare_features(), torch.rand(160, 20)):
        assert not from_data(pyg.Data(x=x, edge_index=tiny.edge_index)).is_sparse


def test_sparse_features_give_the_results_of_dense_ones(tiny):
    from carlg.estimator import CARLG
    from carlg.tasks import evaluate

    pyg = pytest.importorskip("torch_geometric.data")
    x = _rare_features()
    dense = replace(tiny, x=x).with_features("auto")
    content = pyg.Data(x=x, edge_index=tiny.edge_index, y=tiny.y)
    sparse = from_data(content).with_features("auto")
    torch.testing.assert_close(sparse.x.to_dense(), dense.x)
    settings = {"epochs": 3, "layers": (24, 12), "predictor": 16}
    torch.testing.assert_close(CARLG(**settings).fit_transform(content), CARLG(**settings).fit_transform(dense), rtol=1e-3, atol=1e-3)
    found, expected = (evaluate(g.x, g, splits=2, tasks=("class", "similar")) for g in (sparse, dense))
    for key in ("accuracy_mean", "validation_mean"):
        assert found[key] == pytest.approx(expected[key], abs=0.01)
    assert found["hits10"] == pytest.approx(expected["hits10"], abs=0.02)


def test_from_data_takes_masks_and_labels():
    pyg = pytest.importorskip("torch_geometric.data")
    mask = torch.tensor([True, False, True, False])
    content = pyg.Data(
        x=torch.rand(4, 3), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1, 1, 0]),
        train_mask=mask, val_mask=~mask, test_mask=mask,
    )  # fmt: skip
    graph = from_data(content)
    assert graph.num_edges == 2 and graph.train_masks.shape == (4, 1)
    with pytest.raises(ConfigError, match="x and edge_index"):
        from_data(pyg.Data())


def test_digits_and_block_model():
    digits = synthetic.digits()
    assert (digits.num_nodes, digits.num_features, digits.num_classes) == (1797, 64, 10)
    graph, again = (synthetic.block_model(500, seed=3) for _ in range(2))
    assert torch.equal(graph.edge_index, again.edge_index) and torch.equal(graph.x, again.x)
    same = (graph.y[graph.edge_index[0]] == graph.y[graph.edge_index[1]]).float().mean()
    assert 0.5 < float(same) < 0.95


def _count(root):
    return data.load("cora", root).num_edges


def test_many_readers_of_a_fresh_root(datasets):
    """Nothing is written beside the raw files, so readers cannot disturb each other."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_count, [str(datasets)] * 2) == [10556] * 2
    assert not list(datasets.rglob("processed"))
