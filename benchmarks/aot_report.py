"""Registers, spills and shared memory of every Triton kernel on every GPU family, compiled here without a GPU.

    python benchmarks/aot_report.py [--targets sm_80 gfx942] [--dtypes float32] [--sizes 34493 100 256]

Rows of the asked targets and dtypes replace those in results/aot.jsonl; the whole file is then printed as a table. Every launch that the
launchers make in any mode is a row; "spills" are bytes by ptxas -v, or registers by the metadata of the AMD code object.
"""

import argparse
import json
import pathlib
import sys

import torch

from benchmarks import harness

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "aot.jsonl"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "kernels")]
from compiled import TARGETS, Launch, resources  # noqa: E402
from launches import every_launch  # noqa: E402


def variant(launch: Launch) -> str:
    """What tells this launch from others of its kernel: flags, absent arguments and tiles."""
    kept = {k: v for k, v in launch.constants if not k.startswith("stride") and k != "PRECISION"}
    parts = [f"no {k.removesuffix('_ptr')}" if v is None else f"{k}={v}" for k, v in kept.items()]
    return ", ".join([*parts, f"{launch.num_warps} warps"])


def rows(target: str, dtype: str, sizes: list[int]) -> list[dict[str, object]]:
    found, facts = [], harness.provenance()
    for launch in every_launch(target, getattr(torch, dtype), *sizes):
        head = {"target": target, "dtype": dtype, "sizes": sizes, "kernel": launch.name, "variant": variant(launch)}
        found.append(head | resources(launch, target) | facts)
    return found


def table(records: list[dict[str, object]]) -> str:
    columns = ("target", "dtype", "kernel", "registers", "spills", "shared", "variant")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(record[name]) for name in columns) + " |" for record in records]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float16", "bfloat16"])
    parser.add_argument("--sizes", nargs=3, type=int, default=[34493, 100, 256], metavar=("N", "C", "D"))
    options = parser.parse_args()
    records = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    for target in options.targets:
        for dtype in options.dtypes:
            records = [r for r in records if (r["target"], r["dtype"]) != (target, dtype)]
            records += rows(target, dtype, options.sizes)
    records.sort(key=lambda r: (list(TARGETS).index(r["target"]), r["dtype"], r["kernel"], r["variant"]))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records))
    print(table(records))
    print(f"\n{len(records)} kernels, {sum(int(r['spills']) > 0 for r in records)} with spills")


if __name__ == "__main__":
    main()
