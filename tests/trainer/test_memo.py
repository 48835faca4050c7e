"""Figures are recalled for the same bits, protocol and code, and for nothing else."""

from dataclasses import replace

import pytest
import torch

import carlg
from carlg import memo, tasks
from carlg.graph import choose_layout


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CARLG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def calls(monkeypatch):
    """The tasks that were evaluated and not recalled."""
    done = []
    evaluate = tasks.evaluate

    def counted(x, graph, protocol, splits, which=tasks.TASKS):
        done.extend(which)
        return evaluate(x, graph, protocol, splits, which)

    monkeypatch.setattr(tasks, "evaluate", counted)
    return done


def test_the_second_time_is_recalled_and_equal(tiny, cache, calls):
    first, known = memo.recall(tiny.x, tiny, "20/40/40", 2)
    assert not known and first == carlg.evaluate(tiny.x, tiny, "20/40/40", 2)
    calls.clear()
    assert memo.recall(tiny.x.clone(), tiny, "20/40/40", 2) == (first, True)
    assert calls == []


@pytest.mark.parametrize("change", ["bit", "label", "protocol", "splits", "transposed", "layout", "code"])
def test_anything_else_is_evaluated(tiny, cache, calls, monkeypatch, change):
    memo.recall(tiny.x, tiny, "20/40/40", 2)
    calls.clear()
    x, graph, protocol, splits, expected = tiny.x.clone(), tiny, "20/40/40", 2, list(tasks.TASKS)
    if change == "bit":
        x[3, 2] = torch.nextafter(x[3, 2], torch.tensor(torch.inf))
    if change == "label":
        labels = tiny.y.clone()
        labels[0] = (labels[0] + 1) % 3
        graph = replace(tiny, y=labels)
    if change == "protocol":
        protocol = "10/10/80"
    if change == "splits":
        splits, expected = 3, ["class"]
    if change == "transposed":
        x = x.t().reshape(tiny.x.shape)
    if change == "layout":
        x = choose_layout((x.abs() * (x > 1.8)).contiguous())
        assert x.layout == torch.sparse_csr
    if change == "code":
        monkeypatch.setattr(memo.measure, "versions", lambda: {"torch": "another"})
    found, known = memo.recall(x, graph, protocol, splits)
    assert not known and calls == expected
    assert found == carlg.evaluate(x, graph, protocol, splits)


def test_a_killed_evaluation_goes_on_with_the_next_task(tiny, cache, calls, monkeypatch):
    search = tasks.similarity_search

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "similarity_search", killed)
    with pytest.raises(KeyboardInterrupt):
        memo.recall(tiny.x, tiny, "20/40/40", 2)
    monkeypatch.setattr(tasks, "similarity_search", search)
    calls.clear()
    memo.recall(tiny.x, tiny, "20/40/40", 2)
    assert calls == ["similar"]


@pytest.mark.parametrize("damage", ["", "{", "[1]"])
def test_damaged_files_are_evaluated_again(tiny, cache, damage):
    first, _ = memo.recall(tiny.x, tiny, "20/40/40", 2)
    for file in (cache / "figures").iterdir():
        file.write_text(damage)
    assert memo.recall(tiny.x, tiny, "20/40/40", 2) == (first, False)
    assert memo.recall(tiny.x, tiny, "20/40/40", 2) == (first, True)


def test_a_folder_that_cannot_be_written_is_no_error(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CARLG_CACHE", str(tmp_path / "file"))
    assert memo.recall(tiny.x, tiny, "20/40/40", 2) == (carlg.evaluate(tiny.x, tiny, "20/40/40", 2), False)


def test_where_figures_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CARLG_CACHE", "")
    assert memo.folder() is None
    monkeypatch.delenv("CARLG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert memo.folder() == tmp_path / "carlg"


def test_a_second_run_recalls_the_baselines_and_says_so(cache, small_settings):
    first = carlg.train(seed=0, **small_settings).metrics
    second = carlg.train(seed=0, **{**small_settings, "variant": "vrc", "select": "last"}).metrics
    assert first["evaluations_recalled"] in ([], ["random_init"])
    assert {"random_init", "raw_features"} <= set(second["evaluations_recalled"])
    assert second["random_init"] == first["random_init"] and second["raw_features"] == first["raw_features"]
