"""Types, registers and modifiers of PTX, their C++ counterparts, and the two errors."""

# ruff: noqa: UP031 (the generated C++ is full of braces; the % operator leaves them alone)

import pathlib

HERE = str(pathlib.Path(__file__).parent.resolve())


class PtxError(RuntimeError):
    pass


class Unsupported(PtxError):
    pass


BITS = {
    "pred": 8,
    "b8": 8,
    "u8": 8,
    "s8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "bf16": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "tf32": 32,
    "f16x2": 32,
    "bf16x2": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
    "b128": 128,
}
CT = {"pred": "bool", "b8": "u8", "b16": "u16", "b32": "u32", "b64": "u64", "tf32": "f32", "f16x2": "u32", "bf16x2": "u32", "b128": "u128"}
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64", "s64": "s128", "u64": "u128"}
FLOATS = ("f16", "bf16", "f32", "f64")
STATE = {"global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry", "param::func"}
RND = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
SREG = {
    "laneid": "(t->id&31)",
    "warpid": "(t->id>>5)",
    "nwarpid": "((g_ntid[0]*g_ntid[1]*g_ntid[2]+31)/32)",
    "clock": "(u32)g_count",
    "clock64": "g_count",
    "clock_hi": "0u",
    "globaltimer": "g_count",
    "globaltimer_lo": "(u32)g_count",
    "smid": "0u",
    "nsmid": "1u",
    "gridid": "0ull",
    "dynamic_smem_size": "g_dynsm",
    "total_smem_size": "(u32)b.shn",
    "lanemask_eq": "(1u<<(t->id&31))",
    "lanemask_lt": "((1u<<(t->id&31))-1)",
    "lanemask_le": "((2u<<(t->id&31))-1)",
    "lanemask_gt": "~((2u<<(t->id&31))-1)",
    "lanemask_ge": "~((1u<<(t->id&31))-1)",
    "cluster_ctarank": "0u",
    "cluster_nctarank": "1u",
}
for _i, _c in enumerate("xyz"):
    SREG.update(
        {
            "tid." + _c: "t->tid[%d]" % _i,
            "ntid." + _c: "g_ntid[%d]" % _i,
            "ctaid." + _c: "b.ctaid[%d]" % _i,
            "nctaid." + _c: "g_nctaid[%d]" % _i,
            "cluster_ctaid." + _c: "0u",
            "cluster_nctaid." + _c: "1u",
            "clusterid." + _c: "b.ctaid[%d]" % _i,
            "nclusterid." + _c: "g_nctaid[%d]" % _i,
        }
    )


def ct(t):
    return CT.get(t, t)


def split_top(s, sep=","):
    out, depth, cur = [], 0, ""
    for ch in s:
        depth += (ch in "[{(<") - (ch in "]})>")
        if ch == sep and depth == 0:
            out.append(cur.strip())
            cur = ""
        else:
            cur += ch
    if cur.strip():
        out.append(cur.strip())
    return out
