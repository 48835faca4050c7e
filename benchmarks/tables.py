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
    """One line a size: our time and the peers' times over ours."""
    lines = ["| n, c, d, iterations | ours | scikit-learn | faiss |", "|---|---|---|---|"]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        chosen = [row for row in rows if row["shape"] == shape]
        best = {row["function"]: row["best_ms"] for row in chosen}
        row = chosen[0]
        if "ours" in best:
            ours, sklearn, faiss = best["ours"], best["sklearn"], best["faiss"]
            name = f"{row['n']:,}, {row['c']:,}, {row['d']}, {row['iterations']}"
            lines.append(
                f"| {name} | **{ours:.0f} ms** | {sklearn:.0f} ms ({sklearn / ours:.1f}x) | {faiss:.0f} ms ({faiss / ours:.1f}x) |"
            )
        else:
            ours, sklearn = best["ours, k-means++ and one iteration"], best["sklearn, k-means++"]
            name = f"{row['n']:,}, {row['c']:,}, {row['d']}, k-means++ start"
            lines.append(f"| {name} | **{ours:.0f} ms** | {sklearn:.0f} ms ({sklearn / ours:.1f}x) | |")
    return "\n".join(lines) if len(lines) > 2 else "(no results)"


def silhouette(rows: Rows) -> str:
    """One line a kind of data: our values and our loss with gradient, the peers' times over ours, and the pairs computed."""
    lines = [
        "| exact silhouette | values of all points | scikit-learn | loss and gradient | usual loop | pairs computed |",
        "|---|---|---|---|---|---|",
    ]
    for kind in ("separated", "overlapping"):
        chosen = {row["function"]: row for row in rows if row["sweep"] == kind}
        if not chosen:
            continue
        forward = chosen["forward"]
        both = chosen["ours, loss and gradient"]["best_ms"]
        sklearn = chosen["scikit-learn, values"]["best_ms"]
        loop = chosen["loop over pairs of clusters, loss and gradient"]["best_ms"]
        f = chosen["ours, values"]["best_ms"]
        name = f"{kind}, n = {forward['n']:,}, c = {forward['c']}, d = {forward['d']}"
        lines.append(
            f"| {name} | **{f:.0f} ms** | {sklearn:.0f} ms ({sklearn / f:.0f}x) | **{both:.0f} ms** "
            f"| {loop:.0f} ms ({loop / both:.0f}x) | {100 * forward['pairs']:.1f} % of n² |"
        )
    return "\n".join(lines) if len(lines) > 2 else "(no results)"


TABLES = {"losses": losses, "kmeans": kmeans, "silhouette": silhouette}


def replace_block(path: pathlib.Path, name: str, content: str) -> None:
    """Put ``content`` between the marks of table ``name``; a page without them stays as it is."""
    block = f"<!-- table:{name} -->\n{content}\n<!-- end -->"
    text = path.read_text()
    path.write_text(re.sub(rf"<!-- table:{name} -->\n.*?<!-- end -->", lambda _: block, text, flags=re.S))


def rewrite(path: pathlib.Path, load: Callable[[str], Rows]) -> None:
    for name, table in TABLES.items():
        replace_block(path, name, table(load(name)))
