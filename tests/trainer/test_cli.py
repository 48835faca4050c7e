"""The command line: files of a run, messages, resuming after a kill, the other commands."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from carlg.checkpoint import load, load_encoder, only_run, save, write_bytes
from carlg.cli import build_parser, main
from carlg.config import FIELDS, ConfigError

SMALL = ["--dataset", "sbm", "--nodes", "160", "--layers", "24,12", "--predictor", "16", "--splits", "2"]
KEYS = {
    "dataset", "variant", "protocol", "selection", "seed", "epochs_run", "best_epoch", "seconds_per_epoch", "peak_memory_mb",
    "accuracy_mean", "accuracy_std", "nmi", "homogeneity", "hits5", "hits10", "random_init", "raw_features", "versions",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    assert main(["train", *SMALL, "--epochs", "4", "--out", str(out), "--quiet"]) == 0
    return out


def test_files_of_a_run(run):
    names = {path.name for path in run.iterdir()}
    assert {"metrics.json", "config.toml", "encoder.pt", "embeddings.npy", "report.html", "events"} <= names
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics.keys() >= KEYS
    for part in (metrics, metrics["random_init"], metrics["raw_features"]):
        assert 0 <= part["accuracy_mean"] <= 1 and 0 <= part["hits10"] <= 1
    assert metrics["protocol"] == "20/40/40" and metrics["selection"] == "label-free"
    assert np.load(run / "embeddings.npy").shape == (160, 12)
    assert load_encoder(run / "encoder.pt").widths == (24, 12)


def test_report_is_self_contained(run):
    page = (run / "report.html").read_text()
    for word in ("<svg", "Effective rank", "Points in every cluster", "t-SNE", "Untrained encoder", "Hits@5"):
        assert word in page
    assert "http://" not in page and "https://" not in page and "@DATA@" not in page
    points = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert set(points["maps"]) == {"PCA", "t-SNE"} and set(points["colors"]) == {"class", "cluster"}


def test_events_hold_every_epoch(run):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "events")).Reload()
    metrics = json.loads((run / "metrics.json").read_text())
    assert [event.step for event in events.Scalars("churn")] == list(range(1, metrics["epochs_run"] + 1))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["train", "--dataset", "nope"], "nope"),
        (["train", "--variant", "x"], "variant"),
        (["train", "--epochs", "-1"], "epochs"),
        (["train", "--epochs", "many"], "epochs"),
        (["train", "--config", "absent.toml"], "absent.toml"),
        (["train", "--config", "published", "--dataset", "cora"], "published"),
        (["train", "--dataset", "absent.npz"], "absent.npz"),
        (["train", "--protocol", "masks"], "masks"),
        (["train", "--unknown", "1"], "unrecognized"),
        (["evaluate", "nowhere"], "nowhere"),
        (["embed", "nowhere.pt", "--dataset", "digits"], "nowhere.pt"),
        (["reproduce", "--root", "nowhere"], "nowhere"),
        ([], "required"),
    ],
)
def test_bad_arguments_give_one_line_and_code_two(arguments, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    message = capsys.readouterr().err.strip()
    assert code == 2 and word in message and message.count("\n") == 0 and "Traceback" not in message


def test_help_explains_every_setting(capsys):
    with pytest.raises(SystemExit) as done:
        build_parser().parse_args(["train", "--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0
    for name in FIELDS:
        assert "--" + name.replace("_", "-") in text
    assert text.count("default:") >= len(FIELDS)


def test_evaluate_and_embed(run, tmp_path, capsys):
    assert main(["evaluate", str(run), "--protocol", "10/10/80", "--splits", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["protocol"] == "10/10/80"
    assert (run / "evaluation-10-10-80.json").exists()
    out = tmp_path / "again.npy"
    assert main(["embed", str(run), "--out", str(out)]) == 0
    np.testing.assert_allclose(np.load(out), np.load(run / "embeddings.npy"), rtol=1e-5, atol=1e-6)


def test_datasets_and_info(capsys):
    assert main(["datasets"]) == 0 and "digits" in capsys.readouterr().out
    assert main(["info"]) == 0 and "torch" in capsys.readouterr().out


def _command(out: pathlib.Path, *more: str) -> list[str]:
    settings = [*SMALL, "--epochs", "30", "--stop-churn", "0", "--checkpoint-every", "1", "--no-report", "--quiet"]
    return [sys.executable, "-m", "carlg", "train", *settings, "--out", str(out), *more]


def test_killed_and_resumed_is_bit_identical(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(_command(tmp_path / "whole"), check=True, env=environment)
    process = subprocess.Popen(_command(tmp_path / "killed"), env=environment)
    deadline = time.monotonic() + 60
    while not (tmp_path / "killed" / "checkpoint.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    subprocess.run(_command(tmp_path / "killed", "--resume"), check=True, env=environment)
    whole, killed = (tmp_path / name / "embeddings.npy" for name in ("whole", "killed"))
    assert whole.read_bytes() == killed.read_bytes()
    for name in ("accuracy_mean", "nmi", "epochs_run", "best_epoch"):
        results = [json.loads((path.parent / "metrics.json").read_text())[name] for path in (whole, killed)]
        assert results[0] == results[1]


def test_resume_refuses_other_settings(run, capsys):
    assert main(["train", *SMALL, "--epochs", "4", "--lr", "0.5", "--out", str(run), "--resume", "--quiet"]) == 2
    assert "lr differ" in capsys.readouterr().err


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with only_run(tmp_path), pytest.raises(ConfigError, match="another run"), only_run(tmp_path):
        pass


def test_write_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_checkpoints_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ConfigError, match="not a checkpoint"):
        load(tmp_path / "evil.pt")
    save(tmp_path / "good.pt", {"x": torch.ones(2)})
    assert torch.equal(load(tmp_path / "good.pt")["x"], torch.ones(2))
    (tmp_path / "cut.pt").write_bytes((tmp_path / "good.pt").read_bytes()[:50])
    with pytest.raises(ConfigError, match="not a checkpoint"):
        load(tmp_path / "cut.pt")


def test_graph_without_labels(tmp_path):
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=generator.normal(size=(60, 4)), edge_index=generator.integers(60, size=(2, 200)))
    out = tmp_path / "out"
    code = main(["train", "--dataset", str(tmp_path / "mine.npz"), "--layers", "8,4", "--predictor", "8", "--epochs", "3",
                 "--out", str(out), "--quiet"])  # fmt: skip
    assert code == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["accuracy_mean"] is None and "no labels" in (out / "report.html").read_text()


def test_validation_selects_with_labels(tmp_path):
    out = tmp_path / "out"
    arguments = [*SMALL, "--epochs", "6", "--select", "validation", "--patience", "2", "--out", str(out), "--quiet"]
    assert main(["train", *arguments]) == 0
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["selection"] == "validation" and metrics["best_epoch"] >= 1


def test_reproduce_writes_tables_and_continues(tmp_path, monkeypatch, capsys, tiny):
    from carlg import data, reproduce

    monkeypatch.setattr(data, "load", lambda name, root: tiny)
    arguments = ["reproduce", "--datasets", "amazon-photos", "--variants", "sim", "--settings", "defaults", "--seeds", "0,1",
                 "--results", str(tmp_path / "rows.json"), "--out", str(tmp_path / "TABLES.md")]  # fmt: skip
    small = reproduce.recipe(layers=(24, 12), predictor=16, epochs=2, splits=2)
    monkeypatch.setattr(reproduce, "_config", lambda name, variant, settings, seed: small.replace(seed=seed))
    assert main([*arguments, "--rows", "1"]) == 0
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 1
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["seed"] for row in rows] == [0, 1]
    text = (tmp_path / "TABLES.md").read_text()
    assert "93.37 ± 0.37" in text and "| sim | defaults | label-free | 2 |" in text
