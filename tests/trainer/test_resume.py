"""A run that is stopped in the middle and resumed ends as if it never was; labels change nothing unless they select."""

import dataclasses

import pytest
import torch

import carlg
from carlg import checkpoint, run
from carlg.config import ConfigError

LABEL_FREE = {"layers": (24, 12), "predictor": 16, "epochs": 7, "splits": 2, "stop_churn": 0.0, "checkpoint_every": 2}
SMALL = {**LABEL_FREE, "select": "last"}
CASES = {
    "cluster-batches": {"batch_nodes": 60},
    "neighbor-batches": {"batch_nodes": 60, "sampler": "neighbor", "fanout": 4},
    "minibatch": {"clustering": "minibatch", "cluster_batch": 64},
    "kmedoids": {"clustering": "kmedoids"},
    "kmedoids-hops": {"clustering": "kmedoids", "graph_weight": 0.5},
    "batch-norm": {"norm": "batch"},
    "validation": {"select": "validation", "patience": 7, "lr": 0.01},
    "label-free": {"select": "label-free"},
    "vrc": {"variant": "vrc"},
}


def _steps(result):
    """What was logged of every epoch, but for the time it took."""
    return [dataclasses.replace(record, seconds=0) for record in result.trainer.history]


class Stop(Exception):
    """Stands for a kill: the epoch is done, its checkpoint is not written."""


@pytest.fixture
def stopped(monkeypatch):
    """Trains until the fifth epoch has been made; the last checkpoint is of the fourth."""

    def train(graph, out, **settings):
        def stop(self, record):
            if record.epoch == 5:
                raise Stop

        with monkeypatch.context() as patch, pytest.raises(Stop):
            patch.setattr(run.Progress, "update", stop)
            carlg.train(graph, out, evaluate=False, report=False, **settings)
        assert checkpoint.load(out / "checkpoint.pt")["epoch"] == 4

    return train


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_resumed_run_ends_with_the_same_bits(tiny, tmp_path, stopped, settings):
    settings = {**SMALL, **settings}
    whole = carlg.train(tiny, tmp_path / "whole", evaluate=False, report=False, **settings)
    stopped(tiny, tmp_path / "stopped", **settings)
    resumed = carlg.train(tiny, tmp_path / "stopped", resume=True, evaluate=False, report=False)
    assert whole.trainer.epoch > 5 and resumed.trainer.config == whole.trainer.config
    assert _steps(whole) == _steps(resumed)
    assert torch.equal(whole.embeddings, resumed.embeddings)
    states = [checkpoint.load(tmp_path / name / "encoder.pt")["model"] for name in ("whole", "stopped")]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert (tmp_path / "whole" / "embeddings.npy").read_bytes() == (tmp_path / "stopped" / "embeddings.npy").read_bytes()
    for name in ("best_epoch", "epochs_run", "index", "churn", "effective_rank", "last_epoch", "stopped"):
        assert whole.metrics[name] == resumed.metrics[name]
    assert torch.equal(whole.trainer.kept_labels, resumed.trainer.kept_labels)


def test_resume_refuses_other_batches(tiny, tmp_path, stopped):
    stopped(tiny, tmp_path, **SMALL)
    with pytest.raises(ConfigError, match="it was trained on the whole graph, not on the batches of a loader"):
        carlg.train(tiny, tmp_path, resume=True, loader=[None])


def test_resume_refuses_another_graph_by_name(tiny, tmp_path, stopped):
    stopped(tiny, tmp_path, **SMALL)
    moved = dataclasses.replace(tiny, x=tiny.x.flip(0))
    fewer = dataclasses.replace(tiny, edge_index=tiny.edge_index[:, 2:])
    for graph, word in ((moved, "x differ"), (fewer, "edges")):
        with pytest.raises(ConfigError, match=word):
            carlg.train(graph, tmp_path, resume=True)
    with pytest.raises(ConfigError, match="lr differ"):
        carlg.train(tiny, tmp_path, resume=True, lr=0.5)


def test_resume_refuses_a_damaged_checkpoint(tiny, tmp_path, stopped):
    stopped(tiny, tmp_path, **SMALL)
    state = checkpoint.load(tmp_path / "checkpoint.pt")
    del state["predictor"]
    checkpoint.save(tmp_path / "checkpoint.pt", state)
    with pytest.raises(ConfigError, match="not of this version"):
        carlg.train(tiny, tmp_path, resume=True)


@pytest.mark.parametrize("settings", [{}, {"variant": "sil"}, {"variant": "vrc"}, {"batch_nodes": 60}], ids=str)
def test_labels_change_nothing_by_default(tiny, settings):
    shuffled = tiny.y[torch.randperm(tiny.num_nodes, generator=torch.Generator().manual_seed(0))]
    graphs = [dataclasses.replace(tiny, y=y) for y in (tiny.y, shuffled, None)]
    runs = [carlg.train(graph, evaluate=False, **LABEL_FREE, **settings) for graph in graphs]
    assert runs[0].trainer.config.select == "label-free" and runs[0].trainer.epoch > 1
    for other in runs[1:]:
        assert _steps(runs[0]) == _steps(other)
        assert torch.equal(runs[0].embeddings, other.embeddings)
        assert runs[0].trainer.finished == other.trainer.finished and runs[0].trainer.best_epoch == other.trainer.best_epoch


def test_labels_select_where_told_to(tiny):
    """The counterpart: with --select validation the labels reach the run, so the test above could fail."""
    shuffled = tiny.y[torch.randperm(tiny.num_nodes, generator=torch.Generator().manual_seed(0))]
    settings = {**SMALL, "select": "validation", "epochs": 12, "lr": 0.02, "patience": 12}
    runs = [carlg.train(dataclasses.replace(tiny, y=y), evaluate=False, **settings) for y in (tiny.y, shuffled)]
    assert not torch.equal(runs[0].embeddings, runs[1].embeddings)
