"""The tables of README.md, made from the result files: text between `<!-- table:NAME -->` and `<!-- end -->` is replaced."""

import pathlib
import re
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]


def losses(rows: Rows) -> str:
    """One line a function at the first size: our time, the peers' times over ours, and the limit."""
    first = [row for row in rows if row["shape"] == "physics"]
    best = {row["function"]: row["best_ms"] for row in first}
    if not best:
        return "(no results)"
    product, copy = best["product z @ centroids.T"], best["copy of z"]
    lines = ["| forward + backward | ours | eager torch | loop over clusters | limit |", "|---|---|---|---|---|"]
    for name, limit, label in (
        ("simplified silhouette", product + copy, "product + copy"),
        ("variance ratio", 3 * copy, "three copies of z"),
        ("Davies-Bouldin", 3 * copy, "three copies of z"),
    ):
        ours = best[name]
        eager = best[f"{name}, eager torch"]
        loop = best.get(f"{name}, loop over clusters")
        shown = f"{loop:.0f} ms ({loop / ours:.1f}x)" if loop else ""
        lines.append(f"| {name} | **{ours:.1f} ms** | {eager:.0f} ms ({eager / ours:.1f}x) | {shown} | {limit:.1f} ms ({label}) |")
    ours, peer = best["assign"], best["assign, cdist + topk"]
    lines.append(
        f"| assign (forward, two nearest) | **{ours:.1f} ms** | {peer:.0f} ms ({peer / ours:.1f}x) | | {product:.1f} ms (bare product) |"
    )
    row = first[0]
    lines += [
        "",
        f"n = {row['n']:,}, c = {row['c']}, d = {row['d']}, float32, {row['threads']} threads, {row['cpu']} ({row['isa']}); best of interleaved runs.",
    ]
    return "\n".join(lines)


def kmeans(rows: Rows) -> str:
    """One line a size: our time, the peers' times over ours, and what an iteration costs in bare products."""
    sizes = dict.fromkeys((row["n"], row["c"], row["d"]) for row in rows if {"n", "c", "d", "function"} <= row.keys())
    lines = ["| n, c, d | ours | scikit-learn | faiss |", "|---|---|---|---|"]
    for n, c, d in sizes:
        best = {row["function"]: row["best_ms"] for row in rows if (row.get("n"), row.get("c"), row.get("d")) == (n, c, d)}
        if not {"ours", "sklearn", "faiss"} <= best.keys():
            continue
        ours = best["ours"]
        lines.append(
            f"| {n:,}, {c:,}, {d} | **{ours:.0f} ms** | {best['sklearn']:.0f} ms ({best['sklearn'] / ours:.1f}x) | {best['faiss']:.0f} ms ({best['faiss'] / ours:.1f}x) |"
        )
    return "\n".join(lines) if len(lines) > 2 else "(no results)"


def silhouette(rows: Rows) -> str:
    """One line a kind of data: our forward and forward + backward, and the peers' times over ours."""
    lines = ["| n = 7,650, c = 31, d = 256 | forward | scikit-learn | forward + backward | usual loop |", "|---|---|---|---|---|"]
    for kind in ("separated", "overlapping"):
        best = {row["function"]: row["best_ms"] for row in rows if row.get("kind") == kind and row.get("n") == 7650}
        if not {"forward", "forward+backward", "sklearn", "loop"} <= best.keys():
            continue
        f, fb = best["forward"], best["forward+backward"]
        lines.append(
            f"| {kind} | **{f:.0f} ms** | {best['sklearn']:.0f} ms ({best['sklearn'] / f:.0f}x) | **{fb:.0f} ms** | {best['loop']:.0f} ms ({best['loop'] / fb:.0f}x) |"
        )
    return "\n".join(lines) if len(lines) > 2 else "(no results)"


TABLES = {"losses": losses, "kmeans": kmeans, "silhouette": silhouette}


def rewrite(path: pathlib.Path, load: Callable[[str], Rows]) -> None:
    text = path.read_text()
    for name, table in TABLES.items():
        block = f"<!-- table:{name} -->\n{table(load(name))}\n<!-- end -->"
        text = re.sub(rf"<!-- table:{name} -->\n.*?<!-- end -->", lambda _, block=block: block, text, flags=re.S)
    path.write_text(text)
