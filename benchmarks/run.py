"""Runs every benchmark and rewrites the tables of README.md from the result files.

    python -m benchmarks.run             everything
    python -m benchmarks.run losses      one of them
    python -m benchmarks.run --tables    only the tables, from the committed results

No figure without its tests: the operators' tests run first, and a red one stops the benchmarks.
"""

import argparse
import importlib
import pathlib
import subprocess
import sys

from benchmarks import harness, tables

ROOT = pathlib.Path(__file__).parent.parent


def available() -> list[str]:
    return sorted(p.stem.removeprefix("bench_") for p in pathlib.Path(__file__).parent.glob("bench_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"which of {', '.join(available())} (default: all)")
    parser.add_argument("--tables", action="store_true", help="only rewrite the tables")
    parser.add_argument("--untested", action="store_true", help="skip the tests; nothing is written to README.md")
    args = parser.parse_args()
    unknown = set(args.names) - set(available())
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(available())}")
    if not args.tables:
        if not args.untested and subprocess.run([sys.executable, "-m", "pytest", "-q", "tests/ops"], cwd=ROOT).returncode:
            print("the tests of the operators are red: no figures")
            return 1
        for name in args.names or available():
            importlib.import_module(f"benchmarks.bench_{name}").main()
    if not args.untested:
        tables.rewrite(ROOT / "README.md", harness.load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
