"""Sampled silhouettes keep within the error that they promise."""

import pytest
import torch

import carlg_kernels as ck
from carlg_kernels import _progress, _sampling


def _data(kind: str):
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (4_000,), generator=g)
    z = 2 * torch.randn(3, 4, generator=g)[labels] + torch.randn(4_000, 4, generator=g)
    if kind == "outlying":  # a few points carry much of the distance: uniform draws would miss them
        z[::300] *= 60
    return z, labels


@pytest.mark.parametrize("kind", ["blobs", "outlying"])
def test_every_value_keeps_within_the_bound(kind):
    z, labels = _data(kind)
    exact = ck.silhouette(z, labels, reduction="none")
    failed = 0.0
    for seed in range(5):
        got = ck.silhouette(z, labels, reduction="none", approximate=0.6, generator=torch.Generator().manual_seed(seed))
        assert not torch.equal(got, exact), "nothing was sampled"
        failed += ((got - exact).abs() > 0.6).double().mean().item() / 5
    assert failed <= _sampling.FAILURE


@pytest.mark.parametrize("kind", ["blobs", "outlying"])
def test_mean_keeps_within_the_bound(kind):
    z, labels = _data(kind)
    exact = ck.silhouette(z, labels)
    errors = [
        (ck.silhouette(z, labels, approximate=0.25, generator=torch.Generator().manual_seed(seed)) - exact).abs().item()
        for seed in range(10)
    ]
    assert max(errors) < 0.25 and max(errors) > 0


@pytest.mark.parametrize("kind", ["blobs", "outlying"])
def test_estimates_are_unbiased_and_their_error_shrinks(kind, monkeypatch):
    z, labels = _data(kind)
    exact = ck.silhouette(z, labels, reduction="none")
    spread = {}
    for size in (50, 800):
        monkeypatch.setattr(_sampling, "draws", lambda *_, size=size: size)
        runs = torch.stack(
            [
                ck.silhouette(z, labels, reduction="none", approximate=0.5, generator=torch.Generator().manual_seed(seed))
                for seed in range(8)
            ]
        )
        spread[size] = (runs - exact).square().mean().sqrt().item()
        assert (runs.mean(0) - exact).abs().mean() < 0.7 * spread[size]
    assert spread[800] < 0.4 * spread[50]


def test_small_clusters_are_exact():
    z, labels = _data("blobs")
    exact = ck.silhouette(z[:500], labels[:500], reduction="none")
    got = ck.silhouette(z[:500], labels[:500], reduction="none", approximate=0.05)
    assert (got - exact).abs().max() < 1e-5


def test_the_same_call_gives_the_same_result_and_leaves_the_global_generator_alone():
    z, labels = _data("blobs")
    before = torch.get_rng_state()
    calls = [ck.silhouette(z, labels, reduction="none", approximate=0.6) for _ in range(2)]
    assert torch.equal(*calls) and torch.equal(torch.get_rng_state(), before)
    mean = ck.silhouette(z, labels, approximate=0.2)
    assert torch.equal(mean, ck.silhouette(z, labels, approximate=0.2)) and torch.equal(torch.get_rng_state(), before)
    with pytest.raises(TypeError, match="generator must be a torch.Generator or None, got 7"):
        ck.silhouette(z, labels, approximate=0.2, generator=7)


def test_progress(monkeypatch):
    z, labels = _data("blobs")
    monkeypatch.setattr(_progress, "_INTERVAL", 0)
    seen = []
    ck.silhouette(z, labels, approximate=0.5, progress=seen.append)
    assert seen == [0, 1 / 3, 2 / 3, 1]

    def stop(fraction):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        ck.silhouette(z, labels, approximate=0.5, progress=stop)


def test_random_numbers_are_drawn_where_the_generator_is(monkeypatch):
    z, labels = _data("blobs")
    drawn = []
    monkeypatch.setattr(_sampling, "uniform", lambda g, *shape: drawn.append(g.device.type) or torch.rand(shape, generator=g))
    ck.silhouette(z, labels, approximate=0.6, reduction="none", generator=torch.Generator())
    assert drawn == ["cpu"] * 3


def test_seeds_outliers_and_sums():
    z, labels = _data("blobs")
    labels[:100] = -1
    calls = [ck.silhouette(z, labels, approximate=0.3, generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*calls)
    total = ck.silhouette(z, labels, reduction="sum", approximate=0.3, generator=torch.Generator().manual_seed(5))
    assert total.item() == pytest.approx(3_900 * calls[0].item())
    values = ck.silhouette(z, labels, reduction="none", approximate=0.5, generator=torch.Generator().manual_seed(5))
    assert (values[:100] == 0).all() and values.shape == (4_000,)
