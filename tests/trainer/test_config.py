"""Settings: published files, precedence, messages."""

import pytest

from carlg.config import CONFIGS, Config, ConfigError, published, recipe
from carlg.losses import default_barrier_rank


def test_fifteen_published_settings():
    assert len(list(CONFIGS.glob("*.toml"))) == 15
    photos = recipe("published", variant="sim", dataset="amazon-photos")
    assert (photos.clusters, photos.lr, photos.seed) == (31, 0.007873976088691479, 1088482595)
    assert (photos.clustering, photos.cluster_batch, photos.select) == ("minibatch", 6628, "validation")
    assert recipe("published", variant="vrc", dataset="wiki-cs").target is None
    assert recipe("published", variant="vrc", dataset="wiki-cs").barrier == 0
    assert recipe(variant="vrc").barrier > 0
    assert published("sim", "amazon-computers")["patience"] == 5
    with pytest.raises(ConfigError, match="no published settings"):
        recipe("published", variant="sim", dataset="cora")


def test_precedence_and_round_trip(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('variant = "vrc"\nlr = 0.5\nlayers = [8, 4]\ntarget = "none"\n')
    config = recipe(str(path), lr="0.25", epochs="7")
    assert (config.variant, config.lr, config.epochs, config.layers, config.target) == ("vrc", 0.25, 7, (8, 4), None)
    path.write_text(config.to_toml())
    assert recipe(str(path)) == config


def test_another_variant_than_the_files_brings_its_own_recipe(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(recipe(variant="sim", epochs=7, lr=0.02).to_toml())
    config = recipe(str(path), variant="vrc")
    own = recipe(variant="vrc")
    assert (config.target, config.log_index, config.barrier, config.barrier_rank) == (None, True, own.barrier, own.barrier_rank)
    assert (config.epochs, config.lr) == (7, 0.02)
    path.write_text(recipe(variant="vrc").to_toml())
    assert recipe(str(path), variant="sim") == recipe(variant="sim")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs must be at least 1"),
        ({"epochs": "x"}, "epochs must be int"),
        ({"epochs": 2.5}, "epochs must be int"),
        ({"variant": "x"}, "variant must be one of"),
        ({"lr": float("nan")}, "lr must be finite"),
        ({"lr": "inf"}, "lr must be finite"),
        ({"target": "inf"}, "target must be a finite number"),
        ({"seed": 2**63}, "seed must be at most"),
        ({"clusters": 1}, "clusters must be 0 .* or at least 2"),
        ({"variant": "vrc", "target": 0.9}, "target must be none for variant vrc"),
        ({"variant": "margin", "target": 0.9}, "target must be none for variant margin"),
        ({"variant": "sim", "target": "none", "log_index": True}, "log_index is for variant vrc"),
        ({"graph_weight": 0.5}, "graph_weight needs clustering kmedoids"),
        ({"graph_weight": 1.5, "clustering": "kmedoids"}, r"graph_weight must be in \[0, 1\]"),
        ({"batch_nodes": 50, "clustering": "kmedoids"}, "batch_nodes must be 0 with clustering kmedoids"),
        ({"batch_nodes": 50, "clusters": 50}, "clusters must be fewer than batch_nodes"),
        ({"layers": "512,x"}, "layers must be widths"),
        ({"layers": "0"}, "layers must be positive"),
        ({"target": "high"}, "target must be float"),
        ({"normalize": "maybe"}, "normalize must be true or false"),
        ({"colour": 1}, "unknown setting 'colour'"),
    ],
)
def test_messages_name_the_setting(settings, message):
    with pytest.raises(ConfigError, match=message):
        recipe(**settings)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        recipe(str(tmp_path / "absent.toml"))
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(ConfigError, match="bad.toml"):
        recipe(str(tmp_path / "bad.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\x80\x02}\xff")
    with pytest.raises(ConfigError, match="binary.toml"):
        recipe(str(tmp_path / "binary.toml"))
    (tmp_path / "typo.toml").write_text("epoch = 3")
    with pytest.raises(ConfigError, match="unknown setting 'epoch'"):
        recipe(str(tmp_path / "typo.toml"))


def test_checks_hold_for_direct_use():
    with pytest.raises(ConfigError, match="seed must be int"):
        Config(seed=True)


def test_the_barrier_follows_the_clusters():
    assert recipe(variant="vrc").barrier_rank == 0
    assert [default_barrier_rank(clusters) for clusters in (2, 32, 59)] == [16, 16, 29.5]
    with pytest.raises(ConfigError, match="barrier_rank must be 0"):
        recipe(barrier_rank=0.5)
