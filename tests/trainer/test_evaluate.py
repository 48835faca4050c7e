"""Downstream tasks against plain definitions."""

import numpy as np
import pytest
import torch

from carlg.config import ConfigError
from carlg.evaluate import classify, evaluate, random_splits, resolve_protocol, similarity_search, unit_length
from carlg.graph import csr_tensor


@pytest.mark.parametrize(
    ("protocol", "sizes"),
    [("20/40/40", (200, 400, 400)), ("10/10/80", (100, 100, 800)), ("80/10/10", (800, 100, 100))],
)
def test_split_sizes(protocol, sizes):
    splits = random_splits(1000, protocol, 3)
    assert [tuple(len(part) for part in split) for split in splits] == [sizes] * 3
    for split in splits:
        assert torch.equal(torch.cat(split).sort().values, torch.arange(1000))
    longer = random_splits(1000, protocol, 5)
    assert all(torch.equal(a, b) for s, t in zip(splits, longer, strict=False) for a, b in zip(s, t, strict=True))


@pytest.mark.parametrize("sparse", [False, True])
def test_similarity_search_by_brute_force(sparse):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 6, generator=generator) - 0.5
    if sparse:
        x = x * (x > 0)
    y = torch.randint(3, (70,), generator=generator)
    cosine = unit_length(x) @ unit_length(x).t()
    cosine.fill_diagonal_(-9)
    order = cosine.argsort(1, descending=True)
    expected = [float((y[order[:, :k]] == y[:, None]).float().mean()) for k in (5, 10)]
    got = similarity_search(csr_tensor(x.numpy()) if sparse else x, y, chunk=32)
    np.testing.assert_allclose(got, expected, atol=5e-3 if sparse else 1e-6)


def test_perfect_and_useless_embeddings(tiny):
    perfect = torch.nn.functional.one_hot(tiny.y).float() + 0.01
    result = evaluate(perfect, tiny, "20/40/40", splits=2)
    assert result["accuracy_mean"] == 1 and result["hits5"] == 1
    assert result["nmi"] == pytest.approx(1) and result["homogeneity"] == pytest.approx(1)
    noise = torch.randn(tiny.num_nodes, 4, generator=torch.Generator().manual_seed(0))
    assert evaluate(noise, tiny, "20/40/40", splits=2)["accuracy_mean"] < 0.6


def test_evaluation_is_repeatable_and_leaves_global_generators_alone(tiny):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    state = np.random.get_state()[1].copy()
    first = evaluate(tiny.x, tiny, "20/40/40", splits=2)
    assert evaluate(tiny.x, tiny, "20/40/40", splits=2) == first
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])


def test_protocols(tiny):
    assert resolve_protocol("auto", tiny) == "20/40/40"
    with pytest.raises(ConfigError, match="masks"):
        resolve_protocol("masks", tiny)
    val, test = classify(tiny.x, tiny, "80/10/10", 2)
    assert val.shape == test.shape == (2,)
