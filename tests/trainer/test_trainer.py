"""The loop: losses fall, seeds fix the bits, collapse is caught, mini-batches agree with the full batch."""

import dataclasses
import math

import pytest
import torch

from carlg import synthetic
from carlg.config import recipe
from carlg.estimator import CARLG
from carlg.losses import effective_rank, is_degenerate, participation
from carlg.minibatch import BatchTrainer
from carlg.sampling import Sampler
from carlg.trainer import CollapseWarning, Trainer, build_models, default_clusters, learning_rate

SMALL = {"layers": (24, 12), "predictor": 16}


def _config(**settings):
    return recipe(**{**SMALL, "epochs": 8, "select": "last", **settings})


@pytest.mark.parametrize("variant", ["sim", "sil", "vrc", "mean", "margin"])
def test_index_improves(tiny, variant):
    trainer = Trainer(tiny, _config(variant=variant, lr=2e-3, epochs=15))
    trainer.run()
    first, last = trainer.history[1], trainer.history[-1]
    assert last.loss < first.loss
    assert all(math.isfinite(record.loss) for record in trainer.history)


@pytest.mark.parametrize("clustering", ["kmeans", "minibatch", "kmedoids"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_seed_fixes_every_bit(tiny, clustering, norm):
    config = _config(clustering=clustering, norm=norm, epochs=3, cluster_batch=64)
    runs = [Trainer(tiny, config) for _ in range(2)]
    embeddings = [trainer.embed(trainer.run()) for trainer in runs]
    assert torch.equal(*embeddings)
    other = Trainer(tiny, config.replace(seed=1))
    assert not torch.equal(embeddings[0], other.embed(other.run()))


def test_graph_augmented_medoids(tiny):
    trainer = Trainer(tiny, _config(clustering="kmedoids", graph_weight=0.5, epochs=2))
    trainer.run()
    assert trainer.history[-1].clusters > 1


def test_schedules():
    cosine = recipe(lr=1.0, epochs=45, warmup=25)
    assert [learning_rate(cosine, t) for t in (0, 5, 25)] == [0, 0.2, 1]
    assert learning_rate(cosine, 35) == pytest.approx(0.5)
    assert learning_rate(cosine, 45) == pytest.approx(0)
    assert learning_rate(recipe(lr=0.1, schedule="constant"), 17) == 0.1


def test_state_continues_to_the_same_bits(tiny):
    config = _config(clustering="minibatch", cluster_batch=64)
    whole = Trainer(tiny, config)
    whole.run()
    half = Trainer(tiny, config)
    for _ in range(3):
        half.history.append(half.train_epoch())
    resumed = Trainer(tiny, config)
    resumed.load_state(half.state())
    resumed.run()
    assert torch.equal(whole.embed(whole.encoder), resumed.embed(resumed.encoder))
    assert torch.equal(whole.labels, resumed.labels)
    steps = [[dataclasses.replace(r, seconds=0) for r in t.history] for t in (whole, resumed)]
    assert steps[0] == steps[1]


def test_churn_stops_a_settled_run(tiny):
    trainer = Trainer(tiny, recipe(**SMALL, epochs=60, stop_churn=0.05, lr=1e-5))
    trainer.run()
    assert trainer.epoch < 60 and "changed cluster" in trainer.finished
    assert trainer.history[-1].churn < 0.05


def test_collapse_is_named_and_the_last_sound_encoder_kept(tiny):
    trainer = Trainer(tiny, recipe(**SMALL, variant="vrc", lr=0.3, epochs=60, schedule="constant", stop_churn=0.0, target="none"))
    with pytest.warns(CollapseWarning, match="collapse"):
        trainer.run()
    assert "collapse" in trainer.finished and trainer.best_epoch < trainer.epoch
    assert bool(trainer.embed(trainer.encoder).isfinite().all())


def test_solved_block_models_keep_the_untrained_encoder():
    """Clean communities are read off the untrained embedding: the index could only merge them. Without the guard they are trained."""
    graph = synthetic.block_model(200, classes=2, features=16, mixing=0.0, noise=0.05, seed=3)
    settings = {"layers": (32, 128), "predictor": 32, "epochs": 6, "warmup": 1}
    plain = Trainer(graph, recipe(variant="sim", **settings))
    encoder = plain.run()
    assert plain.best_epoch == 0 and "untrained encoder is kept" in plain.finished
    untrained, _ = build_models(plain.config, graph.num_features)
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), untrained.parameters(), strict=True))
    unguarded = Trainer(graph, recipe(variant="vrc", **settings))
    unguarded.guard = None
    unguarded.run()
    assert unguarded.best_epoch > 0 and "untrained" not in unguarded.finished


def test_hard_block_models_are_left_alone_where_no_barrier_guards_them():
    """Untrained 98 % right: without a barrier training loses as often as it gains there, behind one it gains."""
    graph = synthetic.block_model(1000, mixing=0.4, noise=3.0, seed=0).with_features("auto")
    kept = {}
    for variant in ("sim", "sil", "vrc"):
        trainer = Trainer(graph, recipe(variant=variant, epochs=2, warmup=1))
        trainer.run()
        kept[variant] = trainer.best_epoch
    assert kept == {"sim": 0, "sil": 0, "vrc": 2}


@pytest.mark.parametrize("variant", ["sim", "vrc"])
def test_solved_graphs_keep_the_untrained_encoder(variant):
    """Images and their neighbours: the untrained embedding has few dimensions to lose."""
    for neighbours in (1, 3, 10):
        trainer = Trainer(synthetic.digits(neighbours), recipe(variant=variant, epochs=2, warmup=1))
        trainer.run()
        assert trainer.best_epoch == 0 and "dimensions" in trainer.finished


def _stuck(trainer, epochs):
    """All points in one cluster in the given epochs."""

    class Stuck(type(trainer.clusterer)):
        def __call__(self, z):
            labels = super().__call__(z)
            return torch.zeros_like(labels) if trainer.epoch in epochs else labels

    trainer.clusterer.__class__ = Stuck


@pytest.mark.parametrize("select", ["label-free", "last"])
def test_one_cluster_left_is_skipped_and_seeded_anew(tiny, select):
    trainer = Trainer(tiny, _config(epochs=8, select=select, warmup=1, stop_churn=0.0))
    trainer.guard = None
    _stuck(trainer, {5})
    with pytest.warns(CollapseWarning, match="one cluster is left: the step is skipped"):
        trainer.run()
    assert trainer.finished == "all 8 epochs" and trainer.best_epoch == 8
    assert trainer.history[5].clusters == 1 and trainer.history[6].clusters > 1
    assert math.isfinite(trainer.history[5].loss)


@pytest.mark.parametrize("first", [0, 2])
def test_one_cluster_left_for_good_is_a_collapse(tiny, first):
    trainer = Trainer(tiny, _config(epochs=20, select="label-free", stop_churn=0.0))
    _stuck(trainer, range(first, 20))
    with pytest.warns(CollapseWarning, match="in a row"):
        trainer.run()
    assert trainer.epoch == first + 3 and trainer.finished.startswith("collapse: one cluster is left")


@pytest.mark.parametrize("select", ["last", "validation"])
def test_a_collapse_is_named_whatever_selects(tiny, select):
    trainer = Trainer(
        tiny, _config(variant="vrc", lr=0.3, epochs=12, patience=12, schedule="constant", relative_lr=False, barrier=0.0, select=select)
    )
    with pytest.warns(CollapseWarning, match=f"collapse in epoch .* selection {select} goes on"):
        trainer.run(validate=None if select == "last" else lambda h: -float(h.shape[0] + trainer.epoch))
    assert trainer.epoch == 12 and len([w for w in trainer.warnings if "goes on" in w]) == 1
    if select == "last":
        ranks = [record.rank for record in trainer.history]
        assert trainer.best_epoch < 12 and ranks[trainer.best_epoch] >= min(2.0, 0.5 * ranks[0])
    else:
        assert trainer.best_epoch == 1


def test_the_last_step_is_judged_too(tiny):
    trainer = Trainer(tiny, _config(epochs=3, warmup=0))
    step = trainer.optimizer.step

    def ruin():
        step()
        if trainer.epoch == 2:
            with torch.no_grad():
                trainer.encoder.layers[0].weight.fill_(float("nan"))

    trainer.optimizer.step = ruin
    with pytest.warns(CollapseWarning, match="not finite after the last step"):
        trainer.run()
    assert trainer.best_epoch == 2 and bool(trainer.embed(trainer.encoder).isfinite().all())


def test_an_embedding_that_is_not_finite_is_not_validated(tiny):
    trainer = Trainer(tiny, _config(epochs=3, select="validation", warmup=0))
    step = trainer.optimizer.step

    def ruin():
        step()
        with torch.no_grad():
            trainer.encoder.layers[0].weight.fill_(float("nan"))

    trainer.optimizer.step = ruin
    with pytest.warns(CollapseWarning, match="the embedding is not finite"):
        trainer.run(validate=lambda h: pytest.fail("validated"))
    assert trainer.epoch == 1 and bool(trainer.embed(trainer.encoder).isfinite().all())


def test_kept_labels_belong_to_the_kept_encoder(tiny):
    config = _config(epochs=12, select="label-free", lr=0.05, schedule="constant", warmup=0, stop_churn=0.05)
    trainer = Trainer(tiny, config)
    seen = {}
    trainer.guard = None
    trainer.run(on_epoch=lambda t, record: seen.update({record.epoch: t.labels.clone()}))
    assert 0 < trainer.best_epoch < trainer.epoch and not torch.equal(trainer.kept_labels, trainer.labels)
    assert torch.equal(trainer.kept_labels, seen[trainer.best_epoch + 1])
    again = Trainer(tiny, config)
    again.load_state(trainer.state())
    assert torch.equal(again.kept_labels, trainer.kept_labels)


def test_graph_without_edges_and_constant_features():
    graph = synthetic.block_model(40, features=5)
    lonely = dataclasses.replace(graph, edge_index=torch.zeros(2, 0, dtype=torch.int64))
    Trainer(lonely, _config(epochs=2)).run()
    constant = dataclasses.replace(graph, x=torch.ones(40, 5), edge_index=torch.zeros(2, 0, dtype=torch.int64))
    trainer = Trainer(constant, _config(epochs=2))
    with pytest.warns(CollapseWarning):
        trainer.run()
    assert bool(trainer.embed(trainer.encoder).isfinite().all())


def test_rank_and_participation():
    generator = torch.Generator().manual_seed(0)
    round_ = torch.randn(4000, 8, generator=generator)
    assert effective_rank(round_) == pytest.approx(8, rel=0.02)
    line = torch.randn(100, 1, generator=generator) * torch.ones(8)
    assert effective_rank(line) == pytest.approx(1, abs=1e-3)
    assert float(participation(round_)) == pytest.approx(8, rel=0.03)
    assert effective_rank(torch.ones(10, 3)) == 1
    assert is_degenerate(torch.zeros(5).long()) and is_degenerate(torch.arange(5))
    z = torch.randn(30, 6, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(2))
    assert torch.autograd.gradcheck(participation, z)
    centred = z - z.mean(0)
    covariance = centred.t() @ centred
    torch.testing.assert_close(participation(z), covariance.trace() ** 2 / covariance.square().sum())
    constant = torch.ones(5, 3, requires_grad=True)
    participation(constant).backward()
    assert torch.equal(constant.grad, torch.zeros(5, 3))


def test_one_batch_of_all_nodes_is_the_full_batch(tiny, monkeypatch):
    """The parts are the whole graph: the same clusters, losses and weights, up to the order of the nodes in the sums."""
    monkeypatch.setattr(Trainer, "renumbers", False)  # k-means draws its starts by number
    config = _config(epochs=6, batch_nodes=tiny.num_nodes, schedule="constant", lr=2e-3)
    full, batched = Trainer(tiny, config), BatchTrainer(tiny, config)
    batched.sampler.order = torch.arange(tiny.num_nodes)
    # An epoch of batches draws their order first; one draw for one batch, after which both use the same numbers.
    torch.randperm(1, generator=full.generator)
    trained = [trainer.embed(trainer.run()) for trainer in (full, batched)]
    for a, b in zip(full.history, batched.history, strict=True):
        assert b.index == pytest.approx(a.index, rel=1e-4) and b.rank == pytest.approx(a.rank, rel=1e-3)
        assert b.churn == pytest.approx(a.churn, abs=0.02)
    assert float((full.labels != batched.labels).float().mean()) < 0.02
    torch.testing.assert_close(*trained, rtol=1e-2, atol=1e-3)
    untrained = full.embed(build_models(config, tiny.num_features)[0])
    assert float((trained[0] - untrained).norm() / untrained.norm()) > 0.05


def test_several_batches_come_near_the_full_batch():
    """Centroids carried over three batches: nearly the same clusters and index as with all nodes at once."""
    graph = synthetic.block_model(300, classes=4, features=24, noise=0.3, seed=1)
    settings = {"variant": "sim", "epochs": 15, "schedule": "constant", "lr": 1e-3, "clusters": 4}
    full = Trainer(graph, _config(**settings))
    batched = BatchTrainer(graph, _config(**settings, batch_nodes=100, sampler="neighbor", fanout=40))
    for trainer in (full, batched):
        trainer.run()
    from sklearn.metrics import adjusted_rand_score

    assert adjusted_rand_score(full.labels, batched.labels) > 0.9
    assert batched.history[-1].index == pytest.approx(full.history[-1].index, abs=0.1)
    assert batched.history[-1].churn < 0.1


def test_default_clusters_fit_a_batch():
    assert default_clusters(10_000) == 50
    assert default_clusters(10_000, 60) == 30
    assert default_clusters(10_000, 3) == 2


def test_an_epoch_stopped_at_its_first_batch_repeats_the_last_record(tiny):
    config = recipe(**SMALL, batch_nodes=60, epochs=30, warmup=1, stop_churn=0.9, lr=1e-6, schedule="constant")
    trainer = BatchTrainer(tiny, config)
    trainer.run()
    assert "changed cluster" in trainer.finished
    last, before = trainer.history[-1], trainer.history[-2]
    assert (last.loss, last.index, last.churn) == (before.loss, before.index, before.churn)


@pytest.mark.parametrize("sampler", ["cluster", "neighbor"])
def test_batches_cover_the_graph_and_train(tiny, sampler):
    config = _config(batch_nodes=50, sampler=sampler, fanout=5, epochs=5, lr=2e-3)
    trainer = BatchTrainer(tiny, config)
    batches = list(trainer.sampler)
    seeds = torch.cat([batch.nodes[: batch.seeds] for batch in batches])
    assert torch.equal(seeds.sort().values, torch.arange(tiny.num_nodes))
    for batch in batches:
        source, target = batch.nodes[batch.graph.edge_index]
        known = set(zip(*tiny.edge_index.tolist(), strict=True))
        assert set(zip(source.tolist(), target.tolist(), strict=True)) <= known
        assert torch.equal(batch.graph.x, tiny.x[batch.nodes])
    trainer.run()
    assert trainer.history[-1].index > trainer.history[0].index


def _loader(graph, parts=4, **more):
    pyg = pytest.importorskip("torch_geometric.data")
    from torch_geometric.loader import RandomNodeLoader

    return RandomNodeLoader(pyg.Data(edge_index=graph.edge_index, num_nodes=graph.num_nodes, **more), parts, shuffle=True)


def test_batches_of_a_torch_geometric_loader(tiny):
    """A seed fixes them, they cover the graph, their edges are the graph's, and training reads features by node."""
    loader = _loader(tiny, n_id=torch.arange(tiny.num_nodes))
    config = _config(epochs=5, lr=2e-3)
    trainers = [BatchTrainer(tiny, config, loader) for _ in range(2)]
    state = torch.get_rng_state()
    first, again = (list(trainer.sampler) for trainer in trainers)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(torch.cat([batch.nodes for batch in first]).sort().values, torch.arange(tiny.num_nodes))
    known = set(zip(*tiny.edge_index.tolist(), strict=True))
    for batch, other in zip(first, again, strict=True):
        assert torch.equal(batch.nodes, other.nodes) and batch.seeds == len(batch.nodes) == 40
        assert set(zip(*batch.nodes[batch.graph.edge_index].tolist(), strict=True)) <= known and batch.graph.num_edges > 0
        assert torch.equal(batch.graph.x, tiny.x[batch.nodes])
    embeddings = [trainer.embed(trainer.run()) for trainer in trainers]
    assert torch.equal(*embeddings) and trainers[0].history[-1].index > trainers[0].history[0].index


def test_one_batch_of_a_loader_is_the_full_batch(tiny, monkeypatch):
    monkeypatch.setattr(Trainer, "renumbers", False)  # k-means draws its starts by number
    config = _config(epochs=4, lr=2e-3, cluster_iterations=2)
    full = Trainer(tiny, config)
    batched = BatchTrainer(tiny, config, [_Whole(tiny.edge_index, torch.arange(tiny.num_nodes))])
    # the clusterings of both start from the same numbers
    batched.sampler.generator = torch.Generator().manual_seed(0)
    ends = [trainer.embed(trainer.run()) for trainer in (full, batched)]
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


class _Whole:
    """A batch of a loader: the seeds first, here all nodes."""

    def __init__(self, edge_index, nodes):
        self.edge_index, self.n_id, self.batch_size = edge_index, nodes, len(nodes)


def test_loaders_that_do_not_fit_are_refused(tiny):
    config = _config(epochs=1)
    with pytest.raises(ValueError, match="n_id"):
        BatchTrainer(tiny, config, _loader(tiny)).run()
    with pytest.raises(ValueError, match="loader must be of the graph of 160 nodes, got nodes .* to 160"):
        BatchTrainer(tiny, config, _loader(tiny, n_id=torch.arange(1, 161))).run()
    with pytest.raises(ValueError, match="loader must be of the graph of 160 nodes, got nodes -1 to"):
        BatchTrainer(tiny, config, _loader(tiny, n_id=torch.arange(-1, 159))).run()
    with pytest.raises(ValueError, match="loader must be a torch_geometric loader with batches, got int"):
        CARLG(epochs=1, **SMALL).fit(tiny, loader=3)
    with pytest.raises(ValueError, match="got an empty one"):
        BatchTrainer(tiny, config, [])
    with pytest.raises(ValueError, match="m > 0"):
        BatchTrainer(tiny, config, [_Whole(tiny.edge_index, torch.arange(0))]).run()
    with pytest.raises(ValueError, match="kmedoids"):
        BatchTrainer(tiny, config.replace(clustering="kmedoids"), [_Whole(tiny.edge_index, torch.arange(160))])
    with pytest.raises(ValueError, match="clusters must be fewer than the nodes of a batch, got 50 and 40"):
        BatchTrainer(tiny, config.replace(clusters=50), _loader(tiny, n_id=torch.arange(160)))


def test_a_loader_leaves_the_random_numbers_of_others_alone(tiny):
    trainer = BatchTrainer(tiny, _config(epochs=1), _loader(tiny, n_id=torch.arange(160)))
    state = torch.get_rng_state()
    drawn = iter(trainer.sampler)
    next(drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loader_of_some_nodes_trains_on_the_graph_as_it_is(tiny):
    """Its own edges do not matter, the induced ones count; churn is the share of the nodes that it visits."""
    some = torch.arange(60)
    trainer = BatchTrainer(tiny, _config(epochs=6, lr=2e-3, clusters=4), [_Whole(tiny.edge_index[:, :0], some)])
    (batch,) = trainer.sampler
    assert batch.graph.num_edges == int((tiny.edge_index < 60).all(0).sum()) > 0
    before = []
    for _ in range(4):
        labels = trainer.labels.clone()
        trainer.history.append(trainer.train_epoch())
        before.append(float((labels[some] != trainer.labels[some]).float().mean()))
    assert [record.churn for record in trainer.history] == pytest.approx(before) and bool((trainer.labels[60:] == -1).all())


def test_batches_that_are_too_small_are_counted_in_one_warning(tiny):
    parts = [_Whole(tiny.edge_index, nodes) for nodes in (torch.arange(100), torch.arange(100, 103), torch.arange(103, 106))]
    trainer = BatchTrainer(tiny, _config(epochs=1, clusters=5), parts)
    with pytest.warns(CollapseWarning, match="2 of 3 batches have one cluster or too few nodes"):
        trainer.run()
    assert len(trainer.warnings) == 1


def test_induced_graph_holds_all_inner_edges(tiny):
    sampler = Sampler(tiny, 50, "cluster", 5, 2, torch.Generator().manual_seed(0))
    nodes = torch.arange(0, 160, 2)
    inner = ((tiny.edge_index % 2) == 0).all(0).sum()
    assert sampler.induced(nodes, 80).graph.num_edges == int(inner)


def test_estimator_on_torch_geometric_data(tiny):
    pyg = pytest.importorskip("torch_geometric.data")
    content = pyg.Data(x=tiny.x, edge_index=tiny.edge_index)
    model = CARLG(epochs=3, **SMALL)
    z = model.fit(content).transform(content)
    assert z.shape == (160, 12) and model.labels_.shape == (160,)
    assert torch.equal(z, CARLG(epochs=3, **SMALL).fit_transform(content))
    assert model.get_params()["epochs"] == 3 and model.set_params(epochs=2).config.epochs == 2


def test_divergence_is_a_collapse_not_a_crash(tiny):
    trainer = Trainer(tiny, recipe(**SMALL, epochs=10, schedule="constant", stop_churn=0.0))
    trainer.history.append(trainer.train_epoch())
    with torch.no_grad():
        trainer.encoder.layers[1].weight[0, 0] = float("nan")
    with pytest.warns(CollapseWarning, match="not finite"):
        trainer.run()
    assert trainer.epoch == 2 and bool(trainer.embed(trainer.encoder).isfinite().all())
