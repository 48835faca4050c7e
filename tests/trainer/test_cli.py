"""The command line: files of a run, messages, resuming after a kill, the other commands."""

import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch

import carlg
from carlg import cli
from carlg.checkpoint import load, load_encoder, only_run, save, write_bytes, write_json
from carlg.cli import build_parser, main
from carlg.comparison import MOST_NODES, untrained_encoder
from carlg.config import FIELDS, ConfigError
from carlg.minibatch import BatchTrainer
from carlg.trainer import Trainer

SMALL = ["--dataset", "sbm", "--nodes", "160", "--layers", "24,12", "--predictor", "16", "--splits", "2"]
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
KEYS = {
    "dataset", "variant", "protocol", "selection", "seed", "epochs_run", "best_epoch", "seconds_per_epoch", "peak_memory_mb",
    "accuracy_mean", "accuracy_std", "nmi", "homogeneity", "hits5", "hits10", "random_init", "raw_features", "versions",
}  # fmt: skip


def _metrics(folder):
    """metrics.json by a reader that takes no NaN."""

    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads((folder / "metrics.json").read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    assert main(["train", *SMALL, "--epochs", "4", "--out", str(out), "--quiet"]) == 0
    return out


def test_files_of_a_run(run):
    names = {path.name for path in run.iterdir()}
    assert {"metrics.json", "config.toml", "encoder.pt", "embeddings.npy", "report.html", "events"} <= names
    metrics = _metrics(run)
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
        (["train", "--device", "foo"], "device must be one of auto, cpu"),
        (["train", "--device", "meta"], "device must be one of auto, cpu"),
        pytest.param(["train", "--device", "cuda"], "device must be one of auto, cpu", marks=NO_CUDA),
        (["train", "--dataset", "given"], "--dataset"),
        (["train", *SMALL, "--evaluate-nodes", "-1"], "evaluate_nodes"),
        (["evaluate", "nowhere", "--evaluate-nodes", "7"], "evaluate_nodes"),
        (["train", *SMALL, "--out", "text.json"], "text.json"),
        (["train", *SMALL, "--out", "text.json/inside"], "text.json"),
        (["embed", "text.json"], "text.json"),
        (["embed", "tensor.pt"], "tensor.pt"),
        (["embed", "foreign.pt"], "foreign.pt"),
        (["reproduce", "--root", "nowhere"], "nowhere"),
        (["reproduce", "--tables-only", "--results", "text.json"], "text.json"),
        (["reproduce", "--tables-only", "--results", "number.json"], "number.json"),
        (["reproduce", "--datasets", "digits", "--settings", "defaults", "--seeds", "0,-1"], "seed"),
        (["reproduce", "--datasets", "cora"], "published"),
        ([], "required"),
    ],
)
def test_bad_arguments_give_one_line_and_code_two(arguments, word, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("text.json").write_text("no { json")
    pathlib.Path("number.json").write_text("7")
    torch.save(torch.ones(2), "tensor.pt")
    torch.save({"weights": torch.ones(2)}, "foreign.pt")
    _refused(arguments, word, capsys)


def _refused(arguments, word, capsys):
    try:
        code = main(arguments)
    except SystemExit as error:
        code = error.code
    message = capsys.readouterr().err.strip()
    assert code == 2 and word in message and message.count("\n") == 0 and "Traceback" not in message


@pytest.mark.parametrize("command", ["evaluate", "embed"])
@pytest.mark.parametrize("name", ["encoder.pt", "embeddings.npy", "config.toml"])
@pytest.mark.parametrize("damage", ["absent", "cut", "empty"])
def test_damaged_runs_are_named(run, tmp_path, capsys, monkeypatch, command, name, damage):
    if (command, name) == ("embed", "embeddings.npy") or (name, damage) == ("config.toml", "empty"):
        pytest.skip("not read, or an empty file is a right one")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "damaged")
    path = pathlib.Path("damaged", name)
    content = path.read_bytes()
    path.unlink()
    if damage != "absent":
        path.write_bytes(content[:-3] if damage == "cut" else b"")
    _refused([command, "damaged"], "damaged", capsys)


def test_a_full_disk_is_one_line(tmp_path, capsys, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    _refused(["train", *SMALL, "--epochs", "2", "--quiet", "--out", str(tmp_path)], "No space left", capsys)


@pytest.mark.parametrize("size", [10**18, 10**24])
@pytest.mark.parametrize("setting", ["nodes", "threads", "predictor", "layers"])
def test_sizes_beyond_the_machine_are_one_line(setting, size, tmp_path, capsys):
    _refused(["train", *SMALL, f"--{setting}", str(size), "--out", str(tmp_path), "--quiet"], "", capsys)


def test_not_evaluated(run, tmp_path, capsys):
    assert main(["train", *SMALL, "--epochs", "4", "--out", str(tmp_path), "--no-evaluate"]) == 0
    assert "not evaluated" in capsys.readouterr().out
    metrics = _metrics(tmp_path)
    assert metrics.keys() >= KEYS and metrics["evaluated_nodes"] == 0
    for part in (metrics, metrics["random_init"], metrics["raw_features"]):
        assert all(part[key] is None for key in ("accuracy_mean", "accuracy_std", "nmi", "homogeneity", "hits5", "hits10"))
    assert "--no-evaluate" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "embeddings.npy").read_bytes() == (run / "embeddings.npy").read_bytes()


def test_large_graphs_are_evaluated_on_a_sample(run, tmp_path, capsys):
    assert build_parser().parse_args(["train"]).evaluate_nodes == MOST_NODES
    assert main(["train", *SMALL, "--epochs", "4", "--out", str(tmp_path), "--quiet", "--evaluate-nodes", "90"]) == 0
    metrics = _metrics(tmp_path)
    assert metrics["evaluated_nodes"] == 90 and 0 <= metrics["accuracy_mean"] <= 1
    assert metrics["hits5"] != _metrics(run)["hits5"] and "On 90 of 160 labelled nodes" in (tmp_path / "report.html").read_text()
    assert main(["evaluate", str(tmp_path), "--evaluate-nodes", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["hits5"] == _metrics(run)["hits5"]


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
    assert main(["evaluate", str(run)]) == 0
    result, metrics = json.loads(capsys.readouterr().out), _metrics(run)
    for part in ("random_init", "raw_features"):
        metrics[part].pop("accuracies")
        assert result[part] == metrics[part] and result[part]["accuracy_mean"] is not None
    assert all(result[key] == metrics[key] for key in ("accuracy_mean", "nmi", "hits10"))
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


def test_resume_takes_the_flags_of_the_run_again(tmp_path, capsys):
    """Flags that only make sense with the variant of the folder."""
    flags = [*SMALL, "--variant", "sim", "--target", "0.8", "--epochs", "2", "--quiet", "--no-report", "--no-evaluate"]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--target", "0.8", "--quiet", "--no-report"]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(tmp_path / "typo")]) == 2
    assert "there is no run in it" in capsys.readouterr().err and not (tmp_path / "typo").exists()
    assert main(["train", "--resume", *flags, "--out", str(tmp_path / "new")]) == 0


@pytest.mark.parametrize("flags", [["--layers", "16,1"], ["--batch-nodes", "4", "--variant", "sim"], ["--batch-nodes", "100"]])
def test_odd_sizes_end_with_a_report(tmp_path, flags):
    assert main(["train", *SMALL, "--epochs", "2", "--quiet", *flags, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists() and _metrics(tmp_path)["epochs_run"] == 2


@pytest.mark.parametrize("flags", [["--batch-nodes", "1"], ["--batch-nodes", "100", "--clusters", "90"]])
def test_batches_that_are_too_small_are_one_line(tmp_path, capsys, flags):
    assert main(["train", *SMALL, "--epochs", "2", *flags, "--out", str(tmp_path)]) == 2
    assert "batch" in capsys.readouterr().err


def test_features_that_say_nothing_end_with_a_report(tmp_path):
    """All rows of the embedding are equal."""
    edges = torch.randint(120, (2, 300), generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "graph.npz", x=np.ones((120, 1)), edge_index=edges.numpy())
    command = [sys.executable, "-m", "carlg", "train", "--dataset", tmp_path / "graph.npz", *SMALL[4:], "--epochs", "2", "--quiet"]
    done = subprocess.run([*map(str, command), "--out", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "metrics.json").exists()


def test_features_too_large_to_be_scaled_are_one_line(tmp_path, capsys):
    x = np.full((60, 8), 5e37) * np.random.default_rng(0).uniform(size=(60, 8))
    np.savez(tmp_path / "graph.npz", x=x, edge_index=np.random.default_rng(1).integers(60, size=(2, 200)))
    assert main(["train", "--dataset", str(tmp_path / "graph.npz"), *SMALL[4:], "--epochs", "2", "--out", str(tmp_path / "run")]) == 2
    assert "x must be at most 1e+17 in size" in capsys.readouterr().err


def test_resume_needs_no_flag_but_the_folder(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--quiet", "--no-report"]) == 0
    assert (tmp_path / "run" / "embeddings.npy").read_bytes() == (run / "embeddings.npy").read_bytes()
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--quiet", "--epochs", "9", "--threads", "1"]) == 2
    assert "epochs differ" in capsys.readouterr().err


def test_a_given_graph_is_not_mistaken_for_a_data_set(tiny, tmp_path, capsys):
    out, same, other = tmp_path / "run", tmp_path / "same.npz", tmp_path / "other.npz"
    carlg.train(tiny, out, layers=(24, 12), predictor=16, splits=2, epochs=2, report=False)
    np.savez(same, x=tiny.x, edge_index=tiny.edge_index, y=tiny.y)
    np.savez(other, x=tiny.x.flip(0), edge_index=tiny.edge_index, y=tiny.y)
    assert 'dataset = "given"' in (out / "config.toml").read_text()
    for command in ("evaluate", "embed"):
        _refused([command, str(out)], "--dataset", capsys)
    _refused(["evaluate", str(out), "--dataset", str(other)], "x differ", capsys)
    _refused(["evaluate", str(out), "--dataset", "digits"], "12 features", capsys)
    assert main(["evaluate", str(out), "--dataset", str(same)]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy_mean"] == _metrics(out)["accuracy_mean"]
    assert main(["embed", str(out), "--dataset", str(same), "--out", str(tmp_path / "again.npy")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "again.npy"), np.load(out / "embeddings.npy"), rtol=1e-5, atol=1e-6)


def test_figures_and_clusters_are_of_the_kept_encoder(tiny, tmp_path, monkeypatch):
    """The untrained encoder is kept, so what is said of the embedding is what was measured in the first epoch."""
    monkeypatch.setattr(Trainer, "_nothing_to_gain", lambda *_: "told so")
    settings = {"layers": (24, 12), "predictor": 16, "splits": 2, "epochs": 8, "lr": 0.02, "warmup": 1, "stop_churn": 0.0}
    seen = []
    trainer = Trainer(tiny.with_features("auto"), carlg.recipe(**settings))
    trainer.run(lambda trainer, _: seen.append(trainer.labels.clone()))
    assert not torch.equal(seen[0], seen[-1])
    done = carlg.train(tiny, tmp_path, **settings)
    first, last = done.trainer.history[0], done.trainer.history[-1]
    metrics = _metrics(tmp_path)
    assert metrics["best_epoch"] == metrics["measured_epoch"] == 0 < metrics["epochs_run"]
    assert (metrics["index"], metrics["effective_rank"]) == (first.index, first.rank)
    assert metrics["last_epoch"] == {"index": last.index, "churn": last.churn, "effective_rank": last.rank}
    points = json.loads((tmp_path / "report.html").read_text().split('type="application/json">')[1].split("</script>")[0])
    assert points["colors"]["cluster"] == seen[0].tolist()
    assert torch.equal(carlg.CARLG(**settings).fit(tiny).labels_, seen[0])


def test_report_without_clusters_of_the_kept_encoder(tiny, tmp_path, monkeypatch):
    """A mini-batch run that keeps the untrained encoder has not clustered it."""
    monkeypatch.setattr(BatchTrainer, "_nothing_to_gain", lambda *_: "told so")
    done = carlg.train(tiny, tmp_path, layers=(24, 12), predictor=16, epochs=2, batch_nodes=60, evaluate=False)
    assert done.metrics["best_epoch"] == 0 and "Points in every cluster" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_untrained_encoder_is_that_of_epoch_zero(tiny, monkeypatch, norm):
    monkeypatch.setattr(Trainer, "_nothing_to_gain", lambda *_: "told so")
    done = carlg.train(tiny, layers=(24, 12), predictor=16, splits=2, epochs=3, norm=norm)
    assert done.metrics["best_epoch"] == 0
    untrained = untrained_encoder(done.trainer.config, done.trainer.inputs)
    assert torch.equal(untrained.embed(done.trainer.inputs), done.embeddings)
    assert all(done.metrics[key] == value for key, value in done.metrics["random_init"].items())


def test_numbers_that_are_not_finite_become_null(tmp_path):
    write_json(tmp_path / "metrics.json", {"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": (-float("inf"), 2, "NaN")}})
    assert _metrics(tmp_path) == {"a": None, "b": [1.5, None], "c": {"d": [None, 2, "NaN"]}}


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


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and re.fullmatch(r"carlg \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_warnings_are_one_line_without_the_place_in_the_code(monkeypatch):
    """While a command runs; a library that is imported keeps Python's own."""
    before, seen = warnings.formatwarning, []
    monkeypatch.setitem(cli._COMMANDS, "info", lambda _: seen.append(warnings.formatwarning("two\nlines", UserWarning, "f.py", 7)))
    assert main(["info"]) == 0
    assert seen == ["carlg info: warning: two lines\n"] and warnings.formatwarning is before
