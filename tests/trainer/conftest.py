"""Shared by the trainer's tests: small graphs, and the real ones where they lie beside the project."""

import pathlib

import pytest

from carlg import synthetic

SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared" / "datasets"


@pytest.fixture(scope="session")
def datasets():
    """Folder with the published graphs; the test is skipped where it is absent."""
    if not SHARED.is_dir():
        pytest.skip(f"no data sets at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def tiny():
    """A block model that trains in a moment."""
    return synthetic.block_model(160, classes=3, features=12, seed=4)


@pytest.fixture
def small_settings():
    """Settings that make a run of a second."""
    return {"dataset": "sbm", "nodes": 160, "epochs": 4, "layers": (24, 12), "predictor": 16, "splits": 2}
