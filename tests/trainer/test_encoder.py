"""The encoder against torch_geometric's modules, values and gradients; authors' parameter names."""

from dataclasses import replace

import pytest
import torch

from carlg import synthetic
from carlg.config import ConfigError
from carlg.encoder import Encoder, Predictor, from_published, to_published
from carlg.graph import csr_tensor, make_graph
from carlg.propagation import Inputs, PropagatedBits, PropagatedSparse, near_neighbours, normalized_adjacency, renumbered, split_binary
from carlg.slabs import embed_in_slabs

pyg = pytest.importorskip("torch_geometric.nn")


def test_products_with_the_adjacency_have_gradients_of_gradients():
    matrix = normalized_adjacency(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    x = torch.randn(3, 4, requires_grad=True)
    dense = matrix.forward.to_dense()
    (first,) = torch.autograd.grad((matrix @ x).pow(3).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad((dense @ x).pow(3).sum(), x, create_graph=True)
    torch.testing.assert_close(first, expected)
    for got, second in zip(torch.autograd.grad(first.sum(), x), torch.autograd.grad(expected.sum(), x), strict=True):
        torch.testing.assert_close(got, second)


def _randomize(encoder, generator):
    with torch.no_grad():
        for layer in encoder.layers:
            layer.bias.normal_(0, 0.3, generator=generator)
            layer.gain.normal_(1, 0.2, generator=generator)
            layer.shift.normal_(generator=generator)


def _usual(encoder, x, edge_index):
    """The same network out of torch_geometric's modules; its output and parameters."""
    modules = []
    h = x
    sizes = [encoder.features, *encoder.widths]
    for layer, (i, o) in zip(encoder.layers, zip(sizes, sizes[1:], strict=False), strict=True):
        batch = encoder.norm == "batch"
        conv, norm, act = pyg.GCNConv(i, o), pyg.BatchNorm(o, momentum=0.99) if batch else pyg.LayerNorm(o), torch.nn.PReLU()
        scale = norm.module if batch else norm
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight.t())
            conv.bias.copy_(layer.bias)
            scale.weight.copy_(layer.gain)
            scale.bias.copy_(layer.shift)
        h = act(norm(conv(h, edge_index)))
        modules.append((conv, norm, act))
    return h, modules


def _features(kind, shape, generator):
    """Dense, sparse, or one value a row beside zero: full, empty and negative rows among them."""
    x, set_ = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator)
    if kind == "dense":
        return x, x
    if kind == "sparse":
        x = x * (set_ < 0.1)
        return x, csr_tensor(x.numpy())
    bits = (set_ < 0.4).float()
    bits[0], bits[1] = 1, 0
    x = bits * x[:, :1]
    return x, x


@pytest.mark.parametrize("kind", ["dense", "sparse", "binary"])
def test_layers_equal_torch_geometric(kind):
    generator = torch.Generator().manual_seed(3)
    graph = synthetic.block_model(203, features=147, seed=1)
    x, stored = _features(kind, (203, 147), generator)
    graph = replace(graph, x=stored)
    encoder = Encoder(147, (48, 19), generator=generator)
    _randomize(encoder, generator)
    expected, modules = _usual(encoder, x, graph.edge_index)
    inputs = Inputs(graph)
    assert type(inputs.features) is {"dense": torch.Tensor, "sparse": PropagatedSparse, "binary": PropagatedBits}[kind]
    got = encoder(inputs)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(expected.shape, generator=generator)
    (expected * upstream).sum().backward()
    (got * upstream).sum().backward()
    for layer, (conv, norm, act) in zip(encoder.layers, modules, strict=True):
        pairs = (
            (layer.weight, conv.lin.weight.grad.t()),
            (layer.bias, conv.bias.grad),
            (layer.gain, norm.weight.grad),
            (layer.shift, norm.bias.grad),
            (layer.slope, act.weight.grad),
        )
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs, rtol=1e-4, atol=1e-4 * float(theirs.norm()))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_published_names_round_trip(norm):
    encoder = Encoder(11, (6, 4), norm, torch.Generator().manual_seed(0))
    state = to_published(encoder)
    if norm == "layer":
        assert set(state) == {
            f"model.module_{i}.{name}"
            for i, name in [
                (0, "bias"), (0, "lin.weight"), (1, "weight"), (1, "bias"), (2, "weight"),
                (3, "bias"), (3, "lin.weight"), (4, "weight"), (4, "bias"), (5, "weight"),
            ]
        }  # fmt: skip
    again = from_published({"model": state})
    for a, b in zip(encoder.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_published_files_may_skip_places():
    """Only the order of the convolutions matters: here a dropout stands between the layers."""
    encoder = Encoder(5, (4, 3), "layer", torch.Generator().manual_seed(0))
    _randomize(encoder, torch.Generator().manual_seed(1))
    later = {f"module_{i}.": f"module_{i + 1}." for i in (3, 4, 5)}
    state = {}
    for key, value in to_published(encoder).items():
        place = key.split(".")[1] + "."
        state[key.replace(place, later.get(place, place))] = value
    assert "model.module_4.lin.weight" in state
    for a, b in zip(encoder.state_dict().values(), from_published(state).state_dict().values(), strict=True):
        assert torch.equal(a, b)


def _without(key, **changes):
    state = to_published(Encoder(5, (4, 3), "layer"))
    state.pop(key)
    return {**state, **changes}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([1, 2], "must be a dictionary of tensors, got list"),
        ({"model": torch.ones(3)}, "must be a dictionary of tensors, got Tensor"),
        ({}, "no encoder in this file; its keys are none"),
        ({"conv1.weight": torch.ones(2, 2), 7: 1}, "no encoder in this file; its keys are conv1.weight, 7"),
        ({"lin.weight": torch.ones(2, 2)}, "no encoder in this file"),
        ({"head.module_a.lin.weight": torch.ones(2, 2)}, "no encoder in this file"),
        (
            {"model.module_0.lin.weight": torch.ones(2)},
            r"model.module_0.lin.weight must be a tensor of shape \(outputs, inputs\), got \(2,\)",
        ),
        ({"model.module_0.lin.weight": [1.0]}, "model.module_0.lin.weight must be a tensor .* got list"),
        (_without("model.module_4.weight"), r"model.module_4.weight must be a tensor of shape \(3,\), got nothing"),
        (
            _without("model.module_1.bias", **{"model.module_1.bias": torch.ones(1)}),
            r"module_1.bias must be a tensor of shape \(4,\), got \(1,\)",
        ),
        (
            _without("model.module_0.bias", **{"model.module_3.lin.weight": torch.ones(3, 9), "model.module_0.bias": torch.ones(4)}),
            r"module_3.lin.weight must be a tensor of shape \(3, 4\), got \(3, 9\)",
        ),
        (_without("model.module_0.bias", running_mean=torch.ones(4)), "module_0.bias must be a tensor"),
    ],
)
def test_foreign_files_are_refused(state, message):
    with pytest.raises(ConfigError, match=message):
        from_published(state)


def test_predictor_without_hidden_layer():
    h = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Predictor(3, 0)(h), torch.nn.functional.normalize(h))
    assert Predictor(3, 0)(h, normalize=False) is h


def test_batch_norm_equals_torch_geometric():
    """Values and gradients in training mode, the running statistics after two passes, values in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    graph = synthetic.block_model(120, features=8, seed=3)
    x = 2 * graph.x + 1
    other = Inputs(replace(graph, x=x))
    encoder = Encoder(8, (6, 5), "batch", generator)
    _randomize(encoder, generator)
    expected, modules = _usual(encoder, graph.x, graph.edge_index)
    torch.testing.assert_close(encoder(Inputs(graph)), expected, rtol=1e-5, atol=1e-5)

    def usual():
        h = x
        for conv, norm, act in modules:
            h = act(norm(conv(h, graph.edge_index)))
        return h

    got, expected = encoder(other), usual()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(got.shape, generator=generator)
    (got * upstream).sum().backward()
    (expected * upstream).sum().backward()
    for layer, (conv, norm, act) in zip(encoder.layers, modules, strict=True):
        norm = norm.module
        torch.testing.assert_close(layer.running_mean, norm.running_mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer.running_var, norm.running_var, rtol=1e-5, atol=1e-5)
        pairs = (
            (layer.weight, conv.lin.weight.grad.t()),
            (layer.gain, norm.weight.grad),
            (layer.shift, norm.bias.grad),
            (layer.slope, act.weight.grad),
        )
        for mine, theirs in pairs:
            torch.testing.assert_close(mine.grad, theirs, rtol=1e-4, atol=1e-4 * float(theirs.norm()))
    # Statistics of another graph, so that evaluation mode differs from training mode.
    for layer, (_, norm, _) in zip(encoder.layers, modules, strict=True):
        norm.eval()
        for mean in (layer.running_mean, norm.module.running_mean):
            mean += 0.5
        for variance in (layer.running_var, norm.module.running_var):
            variance *= 3
    torch.testing.assert_close(encoder.embed(other), usual().detach(), rtol=1e-5, atol=1e-5)
    assert encoder.training
    assert float((got - encoder.embed(other)).detach().abs().max()) > 0.1


@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("channels", [7, 64])
def test_slabs_of_channels_give_the_whole_embedding(norm, sparse, channels):
    generator = torch.Generator().manual_seed(5)
    graph = synthetic.block_model(151, features=23, seed=2)
    if sparse:
        graph = replace(graph, x=csr_tensor((graph.x * (graph.x > 0.5)).numpy()))
    encoder = Encoder(23, (40, 17, 9), norm, generator)
    _randomize(encoder, generator)
    inputs = Inputs(graph)
    encoder(inputs)
    expected = encoder.embed(inputs)
    got = embed_in_slabs(list(encoder.layers), inputs, channels)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert encoder.training


def test_large_graphs_are_embedded_by_slabs(monkeypatch, tiny):
    encoder, inputs = Encoder(12, (24, 12)), Inputs(tiny)
    expected = encoder.embed(inputs)
    sizes = []
    product = Inputs.first_product
    monkeypatch.setattr("carlg.encoder._LARGE_ACTIVATIONS", 1)
    monkeypatch.setattr("carlg.slabs._SLAB", 8)
    monkeypatch.setattr(Inputs, "first_product", lambda self, weight: sizes.append(weight.shape[1]) or product(self, weight))
    torch.testing.assert_close(encoder.embed(inputs), expected, rtol=1e-5, atol=1e-5)
    assert sizes == [8, 8, 8] * 2


@pytest.mark.parametrize("slabs", [False, True])
@pytest.mark.parametrize("kind", ["dense", "sparse", "binary"])
def test_embeddings_do_not_depend_on_the_order_of_the_work(monkeypatch, kind, slabs):
    generator = torch.Generator().manual_seed(3)
    graph = synthetic.block_model(203, features=147, seed=1)
    graph = replace(graph, x=_features(kind, (203, 147), generator)[1])
    encoder = Encoder(147, (48, 19), generator=generator)
    expected = encoder.embed(Inputs(graph))
    if slabs:
        monkeypatch.setattr("carlg.encoder._LARGE_ACTIVATIONS", 1)
    order = near_neighbours(graph)
    assert sorted(order.tolist()) == list(range(203)) and order.tolist() != list(range(203))
    inputs = Inputs(graph, order=order)
    torch.testing.assert_close(encoder.embed(inputs), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(encoder(inputs), expected[order], rtol=1e-5, atol=1e-5)
    assert torch.equal(inputs.restore(order), torch.arange(203))


def test_neighbours_come_near_one_another(monkeypatch):
    """A shuffled path: laid out again, every node is beside its neighbours."""
    shuffled = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    path = torch.stack([shuffled[:-1], shuffled[1:]])
    graph = make_graph("path", path, torch.randn(500, 3))
    edges = renumbered(graph.edge_index, near_neighbours(graph))
    assert int((edges[0] - edges[1]).abs().max()) == 1
    monkeypatch.setattr("carlg.propagation._MOST_RENUMBERED", 499)
    assert near_neighbours(graph) is None


def test_features_of_one_value_a_row_are_bits():
    x = torch.tensor([[0.5, 0.0, 0.5], [0.0, 0.0, 0.0], [0.25, 0.25, 0.25], [0.0, -2.0, -2.0]])
    bits, scale = split_binary(x)
    assert torch.equal(bits.float() * scale[:, None], x) and bits.dtype == torch.bool
    for other in ([0.5, 0.25, 0.0], [0.5, -0.5, 0.0], [-0.5, -0.25, 0.0]):
        assert split_binary(torch.cat([x, torch.tensor([other])])) is None


def test_few_features_are_propagated_beforehand():
    graph = synthetic.block_model(203, features=37, seed=1)
    inputs = Inputs(replace(graph, x=(graph.x > 0).float()))
    assert isinstance(inputs.features, torch.Tensor)
