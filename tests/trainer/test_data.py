"""Loaders: published layouts, own files, made graphs, features that stay sparse."""

import json
import multiprocessing

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from carlg import data, synthetic
from carlg.config import ConfigError
from carlg.graph import choose_layout, csr_tensor, from_data, make_graph, normalize_rows, standardize

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
    from carlg.evaluate import evaluate, resolve_protocol

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
    from carlg.evaluate import evaluate

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


def test_planetoid_pickles_run_no_code(tmp_path):
    import os
    import pickle

    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    with open(tmp_path / "evil", "wb") as file:
        pickle.dump(Evil(), file)
    with open(tmp_path / "evil", "rb") as file, pytest.raises(pickle.UnpicklingError):
        data._unpickle(file)


def test_normalisations_agree_between_layouts():
    x = sp.random(50, 11, density=0.2, format="csr", random_state=1, dtype=np.float32)
    x.data *= 4
    dense, sparse = torch.from_numpy(x.toarray()), csr_tensor(x)
    torch.testing.assert_close(normalize_rows(sparse).to_dense(), normalize_rows(dense))
    scaled, full = standardize(sparse).to_dense(), standardize(dense)
    torch.testing.assert_close(scaled - scaled.mean(0), full, rtol=1e-4, atol=1e-4)


def test_layout_follows_density():
    few, many = sp.random(40, 40, 0.01, random_state=0), sp.random(40, 40, 0.5, random_state=0)
    assert choose_layout(few).layout == torch.sparse_csr
    assert choose_layout(many).layout == torch.strided


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
