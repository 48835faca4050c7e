"""Features are scaled once, and by the numbers of the graph that was trained on."""

import dataclasses

import pytest
import torch

import carlg
from carlg import checkpoint
from carlg.cli import main
from carlg.config import ConfigError
from carlg.graph import csr_tensor
from carlg.propagation import Inputs, near_neighbours
from carlg.scaling import Scaling, fit_scaling

SMALL = {"layers": (24, 12), "predictor": 16, "epochs": 2}


@pytest.mark.parametrize("mode", ["row", "column", "row+column"])
@pytest.mark.parametrize("sparse", [False, True])
def test_scaling_of_one_graph_is_applied_to_another(mode, sparse):
    generator = torch.Generator().manual_seed(0)
    x, other = (torch.rand(40, 6, generator=generator) * scale + 0.25 for scale in (1, 5))
    if sparse:
        x, other = (m * (torch.rand(40, 6, generator=generator) < 0.4) for m in (x, other))
    given = [csr_tensor(m.numpy()) if sparse else m for m in (x, other)]
    scaling = fit_scaling(given[0], mode)
    got = scaling.apply(given[1]).to_dense()
    if "row" in mode:
        shift = 0 if sparse else x.min()
        x, other = (m - shift for m in (x, other))
        x, other = (m / m.sum(1, keepdim=True).clamp(min=1) for m in (x, other))
    if "column" in mode:
        other = (other - (0 if sparse else x.mean(0))) / x.std(0, correction=0)
    torch.testing.assert_close(got, other)
    assert scaling.same(Scaling(**scaling.state())) and not scaling.same(fit_scaling(given[1], "none"))


def test_centred_features_of_a_sparse_graph_become_dense(tiny):
    scaling = fit_scaling(tiny.x, "column")
    sparse = dataclasses.replace(tiny, x=csr_tensor(tiny.x.numpy()))
    torch.testing.assert_close(sparse.with_features(scaling).x, tiny.with_features(scaling).x)


def test_features_are_scaled_once(tiny):
    scaled = tiny.with_features("column")
    assert scaled.with_features("auto") is scaled and scaled.with_features("column") is scaled
    with pytest.raises(ConfigError, match="scaled already"):
        scaled.with_features("row")
    other = dataclasses.replace(tiny, x=3 * tiny.x).with_features("column")
    with pytest.raises(ConfigError, match="scaled already"):
        scaled.with_features(other.scaling)
    with pytest.raises(ConfigError, match="features must be"):
        tiny.with_features("rows")
    narrow = dataclasses.replace(tiny, x=tiny.x[:, :5])
    with pytest.raises(ConfigError, match="12 features"):
        narrow.with_features(scaled.scaling)


def test_data_and_graph_are_scaled_alike(tiny):
    pyg = pytest.importorskip("torch_geometric.data")
    content = pyg.Data(x=tiny.x, edge_index=tiny.edge_index)
    runs = [carlg.train(graph, **SMALL).embeddings for graph in (content, carlg.from_data(content), tiny.with_features("auto"))]
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], carlg.train(content, features="none", **SMALL).embeddings)


def test_transform_scales_by_the_numbers_of_fit(tiny):
    model = carlg.CARLG(**SMALL).fit(tiny)
    z = model.transform(tiny)
    part = dataclasses.replace(tiny, x=torch.cat([tiny.x[:80], 7 + tiny.x[80:]]))
    expected = model.transform(dataclasses.replace(part, x=model.scaling_.apply(part.x), scaling=model.scaling_))
    assert torch.equal(model.transform(part), expected)
    assert torch.equal(z, model.transform(tiny.with_features("column")))
    with pytest.raises(ConfigError, match="scaled already"):
        model.transform(part.with_features("column"))


def test_embed_scales_by_the_numbers_of_training(tmp_path, capsys):
    small = ["--dataset", "sbm", "--nodes", "160", "--layers", "24,12", "--predictor", "16", "--splits", "2", "--epochs", "2"]
    assert main(["train", *small, "--out", str(tmp_path / "run"), "--quiet", "--no-report", "--no-evaluate"]) == 0
    encoder, scaling, _ = checkpoint.load_model(tmp_path / "run" / "encoder.pt")
    assert scaling.mode == "column" and scaling.mean.shape == (64,)
    other = ["--dataset", "sbm", "--nodes", "150", "--seed", "3"]
    graph = carlg.load("sbm", nodes=150, seed=3, features="none")
    for more, expected in ([], graph.with_features(scaling)), (["--features", "column"], graph.with_features("column")):
        out = tmp_path / "embeddings.npy"
        assert main(["embed", str(tmp_path / "run"), *other, *more, "--out", str(out)]) == 0
        z = encoder.embed(Inputs(expected, order=near_neighbours(expected)))
        assert torch.equal(torch.from_numpy(checkpoint.load_array(out)), z)


def test_files_without_scaling_follow_the_flag(tmp_path, tiny):
    encoder = carlg.Encoder(12, (8,))
    checkpoint.save(tmp_path / "authors.pt", {"model": checkpoint.to_published(encoder)})
    assert checkpoint.load_model(tmp_path / "authors.pt")[1:] == (None, None)
