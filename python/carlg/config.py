"""Settings of a run: one dataclass is the source of the flags, their help, their checks and the TOML files."""

import dataclasses
import math
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIANTS = ("sim", "sil", "vrc", "mean", "margin")
PROTOCOLS = ("auto", "20/40/40", "10/10/80", "80/10/10", "masks")
# The trainer uses seed and seed + 1; torch's generators take what fits 64 bits.
_LARGEST_SEED = 2**63 - 2
CONFIGS = pathlib.Path(__file__).parent / "configs"


class ConfigError(ValueError):
    """A setting that cannot be used; the command line shows it as one line and leaves with code 2."""


def _option(default: Any, help: str, choices: tuple[str, ...] | None = None, least: float | None = None) -> Any:
    metadata = {"help": help, "choices": choices, "least": least}
    if isinstance(default, tuple):
        return dataclasses.field(default_factory=lambda: default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Config:
    """Everything that determines a run. The defaults look at no label; :func:`recipe` fills what depends on the variant."""

    dataset: str = _option("digits", "data set name (see `carlg datasets`) or path of an .npz graph")
    root: str = _option("data", "folder with the data sets in torch_geometric's layout")
    variant: str = _option(
        "vrc", "index to train: simplified silhouette, exact silhouette, variance ratio, mean silhouette, margin", VARIANTS
    )
    seed: int = _option(0, "seed of weights and clustering, and of the graph of sbm", least=0)
    epochs: int = _option(30, "epochs at most (the cosine schedule ends there)", least=1)
    lr: float = _option(8e-4, "learning rate of AdamW", least=0)
    relative_lr: bool = _option(True, "scale the rate of every weight matrix with its initial size (root mean square over 0.04)")
    weight_decay: float = _option(1e-5, "decoupled weight decay", least=0)
    schedule: str = _option("cosine", "learning rate over the epochs", ("cosine", "constant"))
    warmup: int = _option(5, "epochs of linear warm-up of the cosine schedule", least=0)
    target: float | None = _option(
        None, "target of a silhouette: loss |target - index|; none: -index, -log(index) for vrc with --log-index"
    )
    log_index: bool = _option(True, "train the logarithm of the index (vrc only, with --target none)")
    barrier: float = _option(1.0, "weight of the barrier against a falling rank of z", least=0)
    barrier_rank: float = _option(0.0, "participation ratio below which the barrier acts; 0: half the clusters, at least 16", least=0)
    clusters: int = _option(0, "number of clusters, at least 2; 0: sqrt(nodes)/2, at most half of a mini-batch", least=0)
    clustering: str = _option("kmeans", "clustering of every epoch", ("kmeans", "minibatch", "kmedoids"))
    cluster_iterations: int = _option(3, "Lloyd iterations (k-medoids: passes) an epoch, from the carried centroids", least=1)
    cluster_batch: int = _option(2048, "batch of the mini-batch k-means", least=1)
    restarts: int = _option(5, "k-means++ starts in the first epoch", least=1)
    graph_weight: float = _option(1.0, "lambda of the k-medoids distance lambda*L2 + (1-lambda)*hops, in [0, 1]; kmedoids only", least=0)
    layers: tuple[int, ...] = _option((512, 256), "widths of the encoder's layers")
    norm: str = _option("layer", "normalisation: graph LayerNorm or BatchNorm(momentum 0.99)", ("layer", "batch"))
    predictor: int = _option(512, "hidden width of the predictor; 0: none", least=0)
    normalize: bool = _option(True, "cluster and score rows of length one")
    features: str = _option(
        "auto",
        "input features: divide by the row sum, standardise the columns, or as they are; auto: row where no value is negative, else column",
        ("auto", "row", "column", "none"),
    )
    select: str = _option(
        "label-free",
        "encoder to keep: by churn, rank, communities and feature groups; by validation accuracy (needs labels); the last sound one",
        ("label-free", "validation", "last"),
    )
    stop_churn: float = _option(0.001, "label-free: stop once fewer points than this share change cluster", least=0)
    patience: int = _option(10, "validation: epochs without a better accuracy before stopping", least=1)
    batch_nodes: int = _option(0, "nodes in a mini-batch; 0: full batch", least=0)
    sampler: str = _option("cluster", "mini-batches: parts of the graph, or seeds with sampled neighbours", ("cluster", "neighbor"))
    fanout: int = _option(10, "neighbours drawn per node and layer by the neighbor sampler", least=1)
    protocol: str = _option(
        "auto",
        "train/validation/test shares of the classification; auto: the data set's own masks where it is "
        "published with several, else 20/40/40",
        PROTOCOLS,
    )
    splits: int = _option(20, "random splits of the classification", least=1)
    nodes: int = _option(1000, "sbm: number of nodes", least=10)
    device: str = _option("auto", "auto, cpu, cuda, ...")
    threads: int = _option(0, "threads of torch; 0: torch's choice", least=0)
    checkpoint_every: int = _option(10, "epochs between two checkpoints", least=1)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        _check_together(self)

    def replace(self, **changes: Any) -> "Config":
        return dataclasses.replace(self, **changes)

    def to_toml(self) -> str:
        lines = ["# carlg settings: `carlg train --config THIS_FILE` runs them again"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                lines.append(f"{field.name} = {_toml(value)}")
            else:
                lines.append(f'{field.name} = "none"')
        return "\n".join(lines) + "\n"


FIELDS = {field.name: field for field in dataclasses.fields(Config)}

# What differs between the variants where no label is looked at; docs/TRAINING.md has the study behind it.
RECIPES: dict[str, dict[str, Any]] = {
    "sim": {"epochs": 20, "lr": 1e-3, "target": 0.9, "log_index": False, "barrier": 0.0},
    "sil": {"epochs": 20, "lr": 5e-4, "target": 0.9, "log_index": False, "barrier": 0.0},
    "vrc": {},
    "mean": {"epochs": 20, "lr": 1e-3, "log_index": False, "barrier": 0.0},
    "margin": {"epochs": 20, "lr": 1e-3, "log_index": False, "barrier": 0.0},
}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def _check(field: dataclasses.Field, value: Any) -> None:
    choices, least = field.metadata["choices"], field.metadata["least"]
    if choices and value not in choices:
        raise ConfigError(f"{field.name} must be one of {', '.join(choices)}, got {value!r}")
    if field.name == "layers":
        if not value or any(not isinstance(w, int) or w < 1 for w in value):
            raise ConfigError(f"layers must be positive widths such as 512,256, got {value!r}")
        return
    if field.name == "target":
        if value is not None and (not isinstance(value, (int, float)) or not math.isfinite(value)):
            raise ConfigError(f"target must be a finite number or none, got {value!r}")
        return
    kind = {"int": int, "float": (int, float), "bool": bool, "str": str}[_kind(field)]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{field.name} must be {_kind(field)}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{field.name} must be finite, got {value}")
    if least is not None and not value >= least:
        raise ConfigError(f"{field.name} must be at least {least:g}, got {value}")


def _check_together(config: Config) -> None:
    """Settings that are known one by one but would be ignored or turned against their meaning together."""
    if config.seed > _LARGEST_SEED:
        raise ConfigError(f"seed must be at most {_LARGEST_SEED}, got {config.seed}")
    if config.clusters == 1:
        raise ConfigError("clusters must be 0 (sqrt(nodes)/2) or at least 2, got 1")
    if config.target is not None and config.variant in ("vrc", "mean", "margin"):
        raise ConfigError(f"target must be none for variant {config.variant}, whose index has no best value, got {config.target}")
    if config.log_index and config.variant != "vrc":
        raise ConfigError(f"log_index is for variant vrc, whose index is positive, got variant {config.variant}")
    if 0 < config.barrier_rank < 1:
        raise ConfigError(f"barrier_rank must be 0 (half the clusters, at least 16) or at least 1, got {config.barrier_rank}")
    if config.graph_weight > 1:
        raise ConfigError(f"graph_weight must be in [0, 1], got {config.graph_weight}")
    if config.graph_weight != 1 and config.clustering != "kmedoids":
        raise ConfigError(f"graph_weight needs clustering kmedoids, got clustering {config.clustering}")
    if config.batch_nodes and config.clustering == "kmedoids":
        raise ConfigError("batch_nodes must be 0 with clustering kmedoids: medoids of one batch are not in the next")
    if 0 < config.batch_nodes < 4:
        raise ConfigError(f"batch_nodes must be 0 (the whole graph) or at least 4, got {config.batch_nodes}")
    if config.batch_nodes and config.clusters >= config.batch_nodes:
        raise ConfigError(f"clusters must be fewer than batch_nodes, got {config.clusters} and {config.batch_nodes}")


def _kind(field: dataclasses.Field) -> str:
    kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "str")
    return kind


def convert(name: str, value: Any) -> Any:
    """A value from a file or the command line in the type of its setting."""
    if name not in FIELDS:
        raise ConfigError(f"unknown setting {name!r}; known are {', '.join(FIELDS)}")
    if name == "layers":
        try:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(int(part) for part in parts)
        except (TypeError, ValueError):
            raise ConfigError(f"layers must be widths such as 512,256, got {value!r}") from None
    if name == "target":
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return _number(name, value, float)
    kind = _kind(FIELDS[name])
    if kind in ("int", "float"):
        return _number(name, value, int if kind == "int" else float)
    if kind == "bool" and isinstance(value, str):
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, got {value!r}")
        return value.lower() == "true"
    return value


def _number(name: str, value: Any, kind: type) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be {kind.__name__}, got {value!r}") from None
    if isinstance(value, float) and kind is int and number != value:
        raise ConfigError(f"{name} must be int, got {value!r}")
    return number


def published(variant: str, dataset: str) -> dict[str, Any]:
    """The authors' settings of a (variant, data set); ConfigError where there are none."""
    path = CONFIGS / f"{variant}_{dataset}.toml"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in CONFIGS.glob("*.toml")))
        raise ConfigError(f"no published settings for {variant} on {dataset}; there are {known}")
    return read_toml(path)


def read_toml(path: str | pathlib.Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            values = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: {error}") from None
    return {name: convert(name, value) for name, value in values.items()}


def recipe(config: str | None = None, **settings: Any) -> Config:
    """Settings in order of weight: ``settings``, the file (or "published"), the variant's recipe, the defaults."""
    given = {name: convert(name, value) for name, value in settings.items()}
    base: Mapping[str, Any] = {}
    if config == "published":
        variant, dataset = given.get("variant", Config.variant), given.get("dataset", Config.dataset)
        base = published(variant, dataset)
    elif config is not None:
        base = read_toml(config)
    if given.get("variant", base.get("variant", Config.variant)) != base.get("variant", Config.variant):
        base = _without_recipe(base)
    merged = {**base, **given}
    variant = merged.get("variant", Config.variant)
    return Config(**{**RECIPES.get(variant, {}), **merged})


def _without_recipe(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a file sets beyond the recipe of its own variant: the rest belongs to the variant and goes with it."""
    own = vars(recipe(variant=settings.get("variant", Config.variant)))
    owned = {name for values in RECIPES.values() for name in values}
    return {name: value for name, value in settings.items() if name not in owned or value != own[name]}
