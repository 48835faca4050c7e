"""Command line: ``carlg train | evaluate | embed | reproduce | datasets | info``."""

import argparse
import json
import os
import pathlib
import sys
from typing import Any, NoReturn

from carlg.config import CONFIGS, FIELDS, RECIPES, ConfigError, recipe


class _Parser(argparse.ArgumentParser):
    """Errors are one line on stderr and code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _add_settings(parser: argparse.ArgumentParser, names: list[str]) -> None:
    for name in names:
        field = FIELDS[name]
        flag = "--" + name.replace("_", "-")
        default = getattr(recipe(), name)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{field.metadata['help']} (default: {str(shown).lower() if default is None else shown}"
        special = [f"{variant}: {values[name]}" for variant, values in RECIPES.items() if name in values]
        text += f"; {', '.join(special)})" if special else ")"
        text = text.replace("%", "%%")
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        else:
            choices = field.metadata["choices"]
            metavar = "|".join(choices) if choices else type(default).__name__.upper()
            parser.add_argument(flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="carlg", description="Node embeddings without labels: CARL-G on carlg_kernels.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)

    train = commands.add_parser("train", allow_abbrev=False, help="train on a graph, evaluate, write a report")
    _add_settings(train, list(FIELDS))
    train.add_argument("--out", default=None, metavar="DIR", help="folder of the run's files (default: runs/DATASET-VARIANT-SEED)")
    train.add_argument(
        "--config",
        default=None,
        metavar="FILE",
        help="settings from a TOML file, or `published`: the authors' settings "
        "for this variant and data set (default: none, the label-free recipe)",
    )
    train.add_argument("--resume", action="store_true", help="continue from the checkpoint in --out")
    train.add_argument("--no-report", action="store_true", help="do not write report.html")
    train.add_argument("--quiet", action="store_true", help="no progress and no summary")

    evaluate = commands.add_parser("evaluate", allow_abbrev=False, help="evaluate a saved run, perhaps by another protocol")
    evaluate.add_argument("run", help="folder written by `carlg train`")
    _add_settings(evaluate, ["root", "protocol", "splits"])

    embed = commands.add_parser("embed", allow_abbrev=False, help="apply a trained encoder to a graph")
    embed.add_argument("encoder", help="folder of a run, or an encoder.pt (the authors' files too)")
    _add_settings(embed, ["dataset", "root", "features", "nodes", "seed"])
    embed.add_argument("--out", default="embeddings.npy", metavar="FILE", help="array to write (default: embeddings.npy)")

    reproduce = commands.add_parser("reproduce", allow_abbrev=False, help="the paper's tables on the data found under --root, row by row")
    _add_settings(reproduce, ["root"])
    reproduce.add_argument(
        "--results",
        default="docs/reproduction.json",
        metavar="FILE",
        help="rows done so far; kept and continued (default: docs/reproduction.json)",
    )
    reproduce.add_argument("--out", default="docs/REPRODUCTION.md", metavar="FILE", help="tables to write (default: docs/REPRODUCTION.md)")
    reproduce.add_argument("--datasets", default="", metavar="A,B", help="only these data sets (default: all that are found)")
    reproduce.add_argument("--variants", default="sim,sil,vrc", metavar="A,B", help="variants (default: sim,sil,vrc)")
    reproduce.add_argument("--settings", default="defaults,published", metavar="A,B", help="defaults, published (default: both)")
    reproduce.add_argument("--seeds", default="0,1,2", metavar="A,B", help="seeds (default: 0,1,2)")
    reproduce.add_argument("--rows", type=int, default=0, metavar="N", help="stop after N new rows; 0: all (default: 0)")
    reproduce.add_argument("--tables-only", action="store_true", help="write the tables from the results, train nothing")

    datasets = commands.add_parser("datasets", allow_abbrev=False, help="what data sets are known and found")
    _add_settings(datasets, ["root"])
    commands.add_parser("info", allow_abbrev=False, help="versions, backends, settings shipped")
    return parser


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(arguments).items() if name in FIELDS}


def _train(arguments: argparse.Namespace) -> None:
    from carlg.run import train

    config = recipe(arguments.config, **_settings(arguments))
    name = pathlib.Path(config.dataset).stem
    out = arguments.out or f"runs/{name}-{config.variant}-{config.seed}"
    train(out=out, config=config, resume=arguments.resume, report=not arguments.no_report, quiet=arguments.quiet)


def _evaluate(arguments: argparse.Namespace) -> None:
    import torch

    from carlg import checkpoint, data
    from carlg.evaluate import evaluate, resolve_protocol
    from carlg.run import load_run

    config, _, embeddings = load_run(arguments.run)
    config = recipe(config=str(pathlib.Path(arguments.run) / "config.toml"), **_settings(arguments))
    graph = data.load(config.dataset, config.root, config.nodes, config.features, config.seed)
    if graph.num_nodes != embeddings.shape[0]:
        raise ConfigError(f"{arguments.run} embeds {embeddings.shape[0]} nodes, {graph.name} has {graph.num_nodes}")
    if graph.y is None:
        raise ConfigError(f"{graph.name} has no labels to evaluate with")
    protocol = resolve_protocol(config.protocol, graph)
    result = {
        "dataset": graph.name,
        "variant": config.variant,
        "protocol": protocol,
        "selection": config.select,
        "seed": config.seed,
        **evaluate(torch.from_numpy(embeddings), graph, protocol, config.splits),
    }
    name = protocol.replace("/", "-")
    checkpoint.write_json(pathlib.Path(arguments.run) / f"evaluation-{name}.json", result)
    print(json.dumps({key: value for key, value in result.items() if key != "accuracies"}, indent=2))


def _embed(arguments: argparse.Namespace) -> None:
    from carlg import checkpoint, data
    from carlg.propagation import Inputs

    path = pathlib.Path(arguments.encoder)
    base = path / "config.toml" if path.is_dir() else None
    config = recipe(str(base) if base is not None else None, **_settings(arguments))
    encoder = checkpoint.load_encoder(path / "encoder.pt" if path.is_dir() else path)
    graph = data.load(config.dataset, config.root, config.nodes, config.features, config.seed)
    embeddings = encoder.embed(Inputs(graph))
    checkpoint.write_array(pathlib.Path(arguments.out), embeddings.numpy())
    print(f"{arguments.out}: {embeddings.shape[0]} nodes, {embeddings.shape[1]} dimensions")


def _reproduce(arguments: argparse.Namespace) -> None:
    from carlg.reproduce import reproduce

    reproduce(arguments)


def _datasets(arguments: argparse.Namespace) -> None:
    from carlg.data import BUILT_IN, SOURCES, available

    about = {**BUILT_IN, **{name: source.about for name, source in SOURCES.items()}}
    root = recipe(**_settings(arguments)).root
    for name, place in available(root).items():
        print(f"{name:<17} {place:<40} {about[name]}")


def _info(arguments: argparse.Namespace) -> None:
    import torch

    import carlg_kernels
    from carlg.measure import product_rate, versions

    for name, value in versions().items():
        print(f"{name:<16} {value}")
    print(f"{'carlg_kernels':<16} {pathlib.Path(carlg_kernels.__file__).parent}")
    print(f"{'products':<16} {product_rate(torch.device('cpu')) / 1e9:.0f} GF/s in float32")
    print(f"{'published':<16} {', '.join(sorted(path.stem for path in CONFIGS.glob('*.toml')))}")


_COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "embed": _embed,
    "reproduce": _reproduce,
    "datasets": _datasets,
    "info": _info,
}


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    # Read when torch is imported, which the commands do. Memory is kept between epochs (carlg.memory); huge pages would only cost.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "0"
    try:
        _COMMANDS[arguments.command](arguments)
    except (ConfigError, FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError) as error:
        print(f"carlg {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"carlg {arguments.command}: interrupted; --resume continues", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    return 0
