"""`carlg reproduce`: rows are kept, merged and shown."""

import argparse
import json
import threading

import pytest

from carlg import data, reproduce
from carlg.cli import main


@pytest.fixture
def arguments(tmp_path, monkeypatch, tiny):
    """Command line of a reproduction on a small graph with small settings."""
    small = {"layers": (24, 12), "predictor": 16, "epochs": 2, "splits": 2}
    monkeypatch.setattr(data, "load", lambda name, root: tiny)
    monkeypatch.setattr(reproduce, "_config", lambda name, variant, settings, seed: reproduce.recipe(variant=variant, seed=seed, **small))
    files = ["--results", str(tmp_path / "rows.json"), "--out", str(tmp_path / "TABLES.md")]
    return lambda *more: ["reproduce", "--settings", "defaults", "--seeds", "0,1", "--variants", "sim", *files, *more]


def test_writes_tables_and_continues(tmp_path, arguments):
    photos = arguments("--datasets", "amazon-photos")
    assert main([*photos, "--rows", "1"]) == 0
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 1
    assert main(photos) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["seed"] for row in rows] == [0, 1]
    text = (tmp_path / "TABLES.md").read_text()
    assert "93.37 ± 0.37" in text and "| sim | defaults | label-free | 2 |" in text


def test_what_the_paper_has_not_is_shown_too(tmp_path, arguments):
    assert main(arguments("--datasets", "cora", "--seeds", "0", "--variants", "sim,margin")) == 0
    text = (tmp_path / "TABLES.md").read_text()
    assert "## cora: accuracy" in text and "| cora | margin | defaults |" in text and "| margin | defaults |" in text


def test_rows_of_earlier_versions_are_shown_and_done_again(tmp_path, arguments):
    photos = arguments("--datasets", "amazon-photos", "--seeds", "0")
    assert main(photos) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    partial = {key: value for key, value in row.items() if key not in ("nmi", "homogeneity", "hits5", "hits10")}
    (tmp_path / "rows.json").write_text(json.dumps([{**partial, "best_epoch": -7}]))
    assert main([*photos, "--tables-only"]) == 0
    text = (tmp_path / "TABLES.md").read_text()
    assert "| -7 |" in text and "Node clustering" not in text
    assert main(photos) == 0
    (again,) = json.loads((tmp_path / "rows.json").read_text())
    assert again["nmi"] == row["nmi"] and again["best_epoch"] == row["best_epoch"]
    (tmp_path / "rows.json").write_text(json.dumps([{"dataset": "cora", "variant": "sim", "settings": "defaults", "seed": 0}]))
    assert main([*photos, "--tables-only"]) == 2


def test_two_at_once_lose_no_row(tmp_path, arguments, monkeypatch):
    """Another process adds its row while ours is trained."""
    train, results = reproduce._run, tmp_path / "rows.json"

    def slow(task, *rest):
        row = train(task, *rest)
        reproduce.add_row(results, tmp_path / "TABLES.md", {**row, "variant": "vrc"})
        reproduce.add_row(results, tmp_path / "TABLES.md", {**row, "best_epoch": -1})
        return row

    monkeypatch.setattr(reproduce, "_run", slow)
    assert main(arguments("--datasets", "amazon-photos")) == 0
    rows = json.loads(results.read_text())
    assert [(row["variant"], row["seed"]) for row in rows] == [("vrc", 0), ("sim", 0), ("vrc", 1), ("sim", 1)]
    assert all(row["best_epoch"] == -1 for row in rows if row["variant"] == "sim")


def test_rows_are_added_under_a_lock(tmp_path):
    figures = {"accuracy_mean": 0.5, "accuracy_std": 0.0, "nmi": 0.1, "homogeneity": 0.1, "hits5": 0.1, "hits10": 0.1}
    row = {"dataset": "cora", "variant": "sim", "settings": "defaults", "protocol": "20/40/40", "selection": "last", "best_epoch": 1}
    row |= {**figures, "random_init": figures}
    results = tmp_path / "rows.json"
    add = [threading.Thread(target=reproduce.add_row, args=(results, tmp_path / "T.md", {**row, "seed": seed})) for seed in range(12)]
    for thread in add:
        thread.start()
    for thread in add:
        thread.join()
    assert sorted(row["seed"] for row in reproduce.read_rows(results)) == list(range(12))


def test_schedule_of_the_authors_encoders_where_theirs_is_another():
    """A row of its own only where the published schedule is not the cosine already."""
    arguments = argparse.Namespace(datasets="amazon-photos,amazon-computers", variants="sim,sil", settings="published-cosine", seeds="0")
    plan = reproduce._plan(arguments, "nowhere")
    assert plan == [("amazon-computers", "sim", "published-cosine", 0), ("amazon-photos", "sil", "published-cosine", 0)]
    for name, variant, settings, seed in plan:
        given, published = (reproduce._config(name, variant, s, seed) for s in (settings, "published"))
        assert published.schedule == "constant" and given == published.replace(schedule="cosine")


def test_unknown_settings_are_refused(capsys, arguments):
    assert main([*arguments("--datasets", "cora"), "--settings", "tuned"]) == 2
    assert "published-cosine" in capsys.readouterr().err


def test_best_seed_is_that_of_the_highest_validation_accuracy():
    rows = [
        {"selection": "validation", "validation_mean": validation, "accuracy_mean": accuracy}
        for validation, accuracy in ((0.91, 0.95), (0.93, 0.92), (0.92, 0.97))
    ]
    assert reproduce._best(rows) == "92.00"
    assert reproduce._best([{**rows[0], "selection": "label-free"}]) == ""
