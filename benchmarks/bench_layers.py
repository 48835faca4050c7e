"""The ops of the trainer's layers, forward and backward, against plain torch and against the memory they must touch.

    python -m benchmarks.bench_layers              interleaved, writes results/layers.jsonl and the table of docs/COST.md
    pytest benchmarks/bench_layers.py --benchmark-enable

Limits in copies of a matrix (a read and a write, so half a copy each): graph LayerNorm and PReLU read x twice and write y, then read x and
dy twice and write dx, 8 transfers or 4 copies; a bias and PReLU read x, write y, read x and dy, write dx, 2.5 copies; unit rows the same. The
sparse product gathers a row an entry from the caches, so it is shown against torch alone. The dense product is the three products of a layer
of 256 outputs (forward, by inputs, by weights), against the BLAS inside torch, and so is the Strassen product, its rate in flops of the
dense one. The binary product is the first layer's, forward and by
weights, of features of which a third is set: bits spread over the graph against torch's dense products with the features spread
beforehand. Memory is kept between calls, as the trainer does.
"""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "0")

import pathlib

import pytest
import torch
import torch.nn.functional as F

from benchmarks import harness
from benchmarks.tables import replace_block
from carlg.memory import keep_freed_memory
from carlg_kernels.ops.binary_product import binary_product, encode
from carlg_kernels.ops.dense_product import dense_product
from carlg_kernels.ops.norm_prelu import norm_prelu
from carlg_kernels.ops.sparse_product import sparse_product
from carlg_kernels.ops.strassen_product import strassen_product
from carlg_kernels.ops.unit_rows import unit_rows

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "COST.md"
SHAPES = {"computers": (13_752, 512), "co-cs": (18_333, 512), "physics": (34_493, 256)}
COPIES = {"norm + PReLU": 4.0, "bias + PReLU": 2.5, "unit rows": 2.5}
ENTRIES = 36
OUTPUTS = 256
FEATURES = 767
# of a product, by rows and width; for bits those of the dense product that they stand for
FLOPS = {"dense product": 6 * OUTPUTS, "Strassen product": 6 * OUTPUTS, "binary product": 4 * FEATURES}
PRODUCTS = ("dense product", "Strassen product", "binary product", "sparse product")
PEERS = {"Strassen product": "dense product, torch"}


def eager_norm_prelu(x, bias, gain, shift, slope):
    t = x + bias
    t = (t - t.mean()) / (t.std(correction=0) + 1e-5)
    return F.prelu(t * gain + shift, slope)


def functions(n: int, d: int) -> dict:
    g = torch.Generator().manual_seed(0)
    x, upstream = torch.randn(n, d, generator=g), torch.randn(n, d, generator=g)
    bias, gain, shift = (torch.randn(d, generator=g) for _ in range(3))
    slope, out = torch.tensor([0.25]), torch.empty_like(x)
    columns = torch.randint(n, (n * ENTRIES,), generator=g, dtype=torch.int32)
    pointers, values = torch.arange(0, n * ENTRIES + 1, ENTRIES), torch.rand(n * ENTRIES, generator=g)
    matrix = torch.sparse_csr_tensor(pointers, columns.long(), values, size=(n, n), check_invariants=False)

    weight, of_output = torch.randn(d, OUTPUTS, generator=g), torch.randn(n, OUTPUTS, generator=g)

    bits = torch.rand(n, FEATURES, generator=g) < 0.35
    spread, first_weight = bits.float(), torch.randn(FEATURES, d, generator=g)
    codes, codes_t, sparse = encode(bits), encode(bits.t()), (pointers, columns, values)

    def three(product):
        return lambda: (product(x, weight), product(of_output, weight.t()), product(x.t(), of_output))

    def both(layer):
        def run():
            q = x.detach().requires_grad_()
            layer(q).backward(upstream)

        return run

    return {
        "copy": lambda: out.copy_(x),
        "norm + PReLU": both(lambda q: norm_prelu(q, bias, gain, shift, slope)),
        "norm + PReLU, torch": both(lambda q: eager_norm_prelu(q, bias, gain, shift, slope)),
        "bias + PReLU": both(lambda q: norm_prelu(q, bias, None, None, slope)),
        "bias + PReLU, torch": both(lambda q: F.prelu(q + bias, slope)),
        "unit rows": both(lambda q: unit_rows(q, bias)),
        "unit rows, torch": both(lambda q: F.normalize(q + bias, dim=1)),
        "dense product": three(dense_product),
        "Strassen product": three(strassen_product),
        "dense product, torch": three(torch.mm),
        "binary product": lambda: (
            binary_product(*codes, *sparse, False, first_weight),
            binary_product(*codes_t, *sparse, True, upstream),
        ),
        "binary product, torch": lambda: (spread @ first_weight, spread.t() @ upstream),
        "sparse product": lambda: sparse_product(pointers, columns, values, x),
        "sparse product, torch": lambda: torch.sparse.mm(matrix, x),
    }


def table(rows: list[dict]) -> str:
    lines = ["| n, width | op | ours | torch | limit, or rate |", "|---|---|---|---|---|"]
    for shape in SHAPES:
        best = {row["function"]: row["best_ms"] for row in rows if row["shape"] == shape}
        n, d = SHAPES[shape]
        for name in (*COPIES, *PRODUCTS):
            ours, peer = best[name], best[PEERS.get(name, f"{name}, torch")]
            limit = f"{COPIES[name] * best['copy']:.1f} ms ({COPIES[name]} copies)" if name in COPIES else ""
            if name in FLOPS:
                work = 1e-6 * FLOPS[name] * n * d
                limit = f"{work / ours:.0f} GF/s, torch {work / peer:.0f}"
            lines.append(f"| {n:,}, {d} | {name} | **{ours:.1f} ms** | {peer:.1f} ms ({peer / ours:.1f}x) | {limit} |")
    return "\n".join(lines)


def main() -> None:
    keep_freed_memory()
    rows = []
    for name, (n, d) in SHAPES.items():
        for function, seconds in harness.interleaved(functions(n, d), rounds=15).items():
            rows.append({"shape": name, "n": n, "d": d, "function": function, **harness.summary(seconds)})
            print(f"{name:<10} {function:<24} {rows[-1]['best_ms']:9.2f} ms")
    print(harness.record("layers", rows))
    replace_block(PAGE, "layers", table(rows))


@pytest.mark.parametrize("function", [*COPIES, *PRODUCTS])
def test_layers(benchmark, function):
    benchmark(functions(*SHAPES["computers"])[function])


if __name__ == "__main__":
    main()
