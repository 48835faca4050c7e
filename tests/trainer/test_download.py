"""Downloads from a server of this machine: complete files or none, each fetched once."""

import http.server
import multiprocessing
import os
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from carlg import data
from carlg.config import ConfigError

_NAME = "amazon-photos"
_FILE = data.SOURCES[_NAME].files[0]
_FOLDER = data.SOURCES[_NAME].folder


@pytest.fixture
def content(tmp_path):
    """Bytes of a small graph in the layout of the published file."""
    x = sp.random(20, 8, density=0.5, format="csr", random_state=0)
    adjacency = sp.csr_matrix((np.ones(3), ([0, 1, 2], [1, 2, 3])), shape=(20, 20))
    parts = {}
    for key, matrix in (("attr", x), ("adj", adjacency)):
        parts |= {f"{key}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "source.npz", **parts, labels=np.arange(20) % 3)
    return (tmp_path / "source.npz").read_bytes()


@pytest.fixture
def server(content, monkeypatch):
    """Serves the graph; ``cut`` bytes of it where set, and announces all of them. ``asked`` holds the paths."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            time.sleep(self.server.delay)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: self.server.cut])

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked, server.cut, server.delay = [], None, 0.0
        server.url = f"http://127.0.0.1:{server.server_port}/"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _take_from(url):
    data.SOURCES[_NAME] = replace(data.SOURCES[_NAME], url=url)


@pytest.fixture
def source(server, monkeypatch):
    monkeypatch.setitem(data.SOURCES, _NAME, data.SOURCES[_NAME])
    _take_from(server.url)


def _load(root, url, barrier, edges):
    _take_from(url)
    barrier.wait(120)
    edges.put(data.load(_NAME, root).num_edges)


def test_two_processes_download_once(server, content, tmp_path):
    server.delay = 1.0
    spawn = multiprocessing.get_context("spawn")
    barrier, edges = spawn.Barrier(2), spawn.Queue()
    root = tmp_path / "fresh"
    processes = [spawn.Process(target=_load, args=(str(root), server.url, barrier, edges)) for _ in range(2)]
    for process in processes:
        process.start()
    assert [edges.get(timeout=120) for _ in processes] == [6, 6]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert server.asked == [f"/{_FILE}"]
    assert (root / _FOLDER / "raw" / _FILE).read_bytes() == content


@pytest.mark.usefixtures("source")
def test_a_cut_download_leaves_nothing(server, content, tmp_path):
    server.cut = len(content) // 2
    folder = tmp_path / _FOLDER / "raw"
    with pytest.raises(ConfigError, match=rf"{_NAME}: .*{_FILE} is missing and the download failed \(IncompleteRead") as caught:
        data.load(_NAME, tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in folder.iterdir()] == [".lock"]
    server.cut = None
    assert data.load(_NAME, tmp_path).num_edges == 6
    assert sorted(path.name for path in folder.iterdir()) == [".lock", _FILE]


@pytest.mark.usefixtures("source")
def test_a_file_that_cannot_be_written_leaves_nothing(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        data.load(_NAME, tmp_path)
    assert [path.name for path in (tmp_path / _FOLDER / "raw").iterdir()] == [".lock"]


def test_no_server(monkeypatch, tmp_path):
    monkeypatch.setitem(data.SOURCES, _NAME, replace(data.SOURCES[_NAME], url=f"file://{tmp_path}/absent/"))
    with pytest.raises(ConfigError, match=f"{_FILE} is missing and the download failed"):
        data.load(_NAME, tmp_path)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(("mask", "mode"), [(0o027, 0o640), (0o022, 0o644)])
def test_the_mode_follows_the_umask(mask, mode, tmp_path):
    before = os.umask(mask)
    try:
        data.load(_NAME, tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / _FOLDER / "raw" / _FILE).stat().st_mode & 0o777 == mode
