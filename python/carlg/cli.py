"""Command line: ``carlg train | evaluate | embed | reproduce | datasets | info``."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

from carlg.config import CONFIGS, FIELDS, RECIPES, ConfigError, recipe


class _Parser(argparse.ArgumentParser):
    """Errors are one line on stderr and code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Looked up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"carlg {version('carlg-kernels')}")
        except PackageNotFoundError:
            print("carlg, not installed as a package")
        parser.exit()


def _add_settings(parser: argparse.ArgumentParser, names: list[str], otherwise: str = "") -> None:
    """Flags of some settings; ``otherwise`` says what holds without the flag where that is not the default of a run."""
    for name in names:
        field = FIELDS[name]
        flag = "--" + name.replace("_", "-")
        default = getattr(recipe(), name)
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{field.metadata['help']} (default: {str(shown).lower() if default is None else shown}"
        special = [f"{variant}: {values[name]}" for variant, values in RECIPES.items() if name in values]
        text += f"; {', '.join(special)})" if special else ")"
        text = f"{field.metadata['help']} (default: {otherwise})" if otherwise else text
        text = text.replace("%", "%%")
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=text)
        else:
            choices = field.metadata["choices"]
            metavar = "|".join(choices) if choices else ("float" if default is None else type(default).__name__).upper()
            parser.add_argument(flag, default=argparse.SUPPRESS, metavar=metavar, help=text)


def _add_evaluate_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--evaluate-nodes",
        type=int,
        default=50_000,
        metavar="INT",
        help="labelled nodes to evaluate at most, drawn at random; 0: all; published masks are used whole (default: 50000)",
    )


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="carlg", description="Node embeddings without labels: CARL-G on carlg_kernels.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
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
    train.add_argument(
        "--resume",
        action="store_true",
        help="continue from the checkpoint in --out, with the settings of its config.toml; flags that differ from them are refused",
    )
    train.add_argument("--no-report", action="store_true", help="do not write report.html")
    train.add_argument(
        "--no-evaluate", action="store_true", help="do not evaluate, though there are labels; `carlg evaluate` does it later"
    )
    _add_evaluate_nodes(train)
    train.add_argument("--quiet", action="store_true", help="no progress and no summary")

    evaluate = commands.add_parser("evaluate", allow_abbrev=False, help="evaluate a saved run, perhaps by another protocol")
    evaluate.add_argument("run", help="folder written by `carlg train`")
    _add_settings(evaluate, ["dataset", "root", "protocol", "splits"], "that of the run")
    _add_evaluate_nodes(evaluate)

    embed = commands.add_parser(
        "embed",
        allow_abbrev=False,
        help="apply a trained encoder to a graph",
        description="Apply a trained encoder to a graph. Settings not given are those of the run's folder; features are scaled by the numbers "
        "saved with the encoder, unless --features is given or the file (the authors') has none.",
    )
    embed.add_argument("encoder", help="folder of a run, or an encoder.pt (the authors' files too)")
    _add_settings(embed, ["dataset", "root", "features", "nodes", "seed"], "that of the run; without a run, of a new one")
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
    reproduce.add_argument(
        "--settings",
        default="defaults,published,published-cosine",
        metavar="A,B",
        help="of defaults, published, published-cosine (default: all)",
    )
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

    settings = _settings(arguments)
    out = arguments.out
    if out is None:
        config = recipe(arguments.config, **settings)
        out = f"runs/{pathlib.Path(config.dataset).stem}-{config.variant}-{config.seed}"
    train(
        out=out,
        config=arguments.config,
        resume=arguments.resume,
        report=not arguments.no_report,
        quiet=arguments.quiet,
        evaluate=not arguments.no_evaluate,
        evaluate_nodes=arguments.evaluate_nodes,
        **settings,
    )


def _evaluate(arguments: argparse.Namespace) -> None:
    import torch

    from carlg import checkpoint
    from carlg.comparison import check_most, compare
    from carlg.propagation import Inputs, near_neighbours
    from carlg.run import load_graph, load_run
    from carlg.tasks import resolve_protocol

    folder, most = pathlib.Path(arguments.run), check_most(arguments.evaluate_nodes)
    run = load_run(folder)
    config = recipe(str(folder / "config.toml"), **_settings(arguments))
    graph = load_graph(config, run.scaling)
    checkpoint.same_graph(graph, run.graph, f"cannot evaluate {folder}")
    if graph.num_nodes != run.embeddings.shape[0]:
        raise ConfigError(f"{folder} embeds {run.embeddings.shape[0]} nodes, {graph.name} has {graph.num_nodes}")
    if graph.y is None:
        raise ConfigError(f"{graph.name} has no labels to evaluate with")
    protocol = resolve_protocol(config.protocol, graph)
    result = {
        "dataset": graph.name,
        "variant": config.variant,
        "protocol": protocol,
        "selection": config.select,
        "seed": config.seed,
        **compare(
            torch.from_numpy(run.embeddings), graph, config, Inputs(graph, order=near_neighbours(graph)), protocol, most, quiet=False
        ),
    }
    name = protocol.replace("/", "-")
    checkpoint.write_json(folder / f"evaluation-{name}.json", result)
    print(json.dumps(_without_splits(result), indent=2))


def _without_splits(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures without the accuracy of every split, at any depth."""
    kept = {key: value for key, value in figures.items() if key != "accuracies"}
    return {key: _without_splits(value) if isinstance(value, dict) else value for key, value in kept.items()}


def _embed(arguments: argparse.Namespace) -> None:
    from carlg import checkpoint
    from carlg.propagation import Inputs, near_neighbours
    from carlg.run import load_graph

    path = pathlib.Path(arguments.encoder)
    settings = _settings(arguments)
    config = recipe(str(path / "config.toml") if path.is_dir() else None, **settings)
    encoder, scaling, _ = checkpoint.load_model(path / "encoder.pt" if path.is_dir() else path)
    graph = load_graph(config, None if "features" in settings else scaling)
    embeddings = encoder.embed(Inputs(graph, order=near_neighbours(graph)))
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


# What torch says, in errors of several kinds, where a setting asks for more memory or a larger number than there is.
_TOO_LARGE = re.compile("allocate|overflow", re.IGNORECASE)
_COMMANDS = {
    "train": _train,
    "evaluate": _evaluate,
    "embed": _embed,
    "reproduce": _reproduce,
    "datasets": _datasets,
    "info": _info,
}


@contextlib.contextmanager
def _plain_warnings(command: str) -> Iterator[None]:
    """Warnings as one line each, without the place in the code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"carlg {command}: warning: {' '.join(str(message).split())}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    # Read when torch is imported, which the commands do. Memory is kept between epochs (carlg.memory); huge pages would only cost.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "0"
    try:
        with _plain_warnings(arguments.command):
            _COMMANDS[arguments.command](arguments)
    except BrokenPipeError:
        return 0
    except (ConfigError, OSError) as error:
        return _refuse(arguments.command, str(error))
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        if not isinstance(error, (MemoryError, OverflowError)) and not _TOO_LARGE.search(reason):
            raise
        return _refuse(arguments.command, f"a number is too large for this machine: {reason}")
    except KeyboardInterrupt:
        hint = {"train": "; --resume continues", "reproduce": "; the same command continues"}.get(arguments.command, "")
        print(f"carlg {arguments.command}: interrupted{hint}", file=sys.stderr)
        return 130
    return 0


def _refuse(command: str, message: str) -> int:
    """One line on stderr, and the code of bad arguments."""
    print(f"carlg {command}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
