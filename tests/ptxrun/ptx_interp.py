"""Execute PTX kernels on the CPU, to check CUDA C++ and Triton kernels without a GPU.

    from ptx_interp import run
    outs = run(ptx_text, "kernel", [x, y, n, 2.5], grid, block, smem)   # -> the array arguments after the run

How it works: the PTX text is parsed here and translated to one C++ state machine per kernel, compiled
with g++ (cached by content), and called through ctypes.  Every GPU thread is run on its own until it
reaches a block barrier or a warp collective (shfl, vote, mma, ldmatrix ...), which is the least
synchronised execution the programming model allows: a missing __syncthreads/__syncwarp or a missing
cp.async wait shows up as a wrong result.  `order` permutes the schedule (0 ascending,
-1 warps, lanes and blocks descending, k > 0 seeded shuffle of warps and lanes).  Global, shared and generic accesses are checked for bounds and alignment; shared
memory starts as 0xff bytes (NaN).  Device functions are inlined.  Anything not supported raises
Unsupported, with all the offending instructions named, before anything is run.
"""

import ctypes, hashlib, os, re, struct, subprocess, sys, tempfile
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("PTX_INTERP_CACHE", os.path.join(tempfile.gettempdir(), "ptx_interp_cache"))
CXX = ["g++", "-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]


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


# ---------------------------------------------------------------- parser
class Func:
    def __init__(self, name, entry, rets, params, body, line):
        self.name, self.entry, self.rets, self.params, self.body, self.line = name, entry, rets, params, body, line


def parse_var(decl):
    """'.align 4 .b8 name[16] = {...}' -> (name, elem type, bytes or None when unsized, align, init text)"""
    decl, _, init = decl.partition("=")
    m = re.search(r"\.align\s+(\d+)", decl)
    align = int(m.group(1)) if m else 0
    decl = re.sub(r"\.align\s+\d+|\.ptr(\s+\.(global|shared|const|local))?|\.attribute\([^)]*\)", "", decl)
    ty = [x for x in re.findall(r"\.(\w+)", decl.split("[")[0]) if x in BITS]
    vec = re.search(r"\.v([248])\b", decl)
    name = re.findall(r"([\w$%]+)\s*(?:\[|$)", re.sub(r"\.\w+", "", decl).strip())[0]
    n, dims = 1, re.findall(r"\[\s*(\d*)\s*\]", decl)
    for d in dims:
        n *= int(d) if d else 0
    if vec:
        n *= int(vec.group(1))
    size = BITS[ty[0]] // 8
    return name, ty[0], n * size if n or not dims else None, align or size * (int(vec.group(1)) if vec else 1), init.strip()


def parse_module(text):
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"(?m)^\s*\.(loc|file)\b[^\n]*$", "", text)
    text = re.sub(r"\.section\s+\S+\s*\{.*?\}", blank, text, flags=re.S)
    funcs, gvars, pos = {}, [], 0
    line = lambda p: text.count("\n", 0, p) + 1
    while True:
        m = re.compile(r"\s*").match(text, pos)
        pos = m.end()
        if pos >= len(text):
            return funcs, gvars
        m = re.compile(r"\.(version|target|address_size)[^\n]*").match(text, pos)
        if m:
            pos = m.end()
            continue
        brace, semi = text.find("{", pos), text.find(";", pos)
        head = text[pos : brace if brace >= 0 else len(text)]
        if re.match(r"(\.(visible|weak|extern|common)\s+)*\.(entry|func)\b", head) and (semi < 0 or brace < semi) and brace >= 0:
            depth, e = 0, brace
            while True:
                depth += {"{": 1, "}": -1}.get(text[e], 0)
                e += 1
                if depth == 0:
                    break
            m = re.match(r".*?\.(entry|func)\b(?:\s+\.noreturn)?\s*(\((.*?)\))?\s*([\w$]+)\s*(\((.*?)\))?", head, re.S)
            mk = lambda s: [parse_var(p) for p in split_top((s or "").replace(".param", " "))]
            funcs[m.group(4)] = Func(
                m.group(4), m.group(1) == "entry", mk(m.group(3)), mk(m.group(6)), text[brace + 1 : e - 1], line(brace)
            )
            pos = e
            continue
        st = text[pos:semi]
        pos = semi + 1
        m = re.match(r"(?:\.(?:visible|weak|extern|common)\s+)*\.(global|const|shared)\b(.*)", st.strip(), re.S)
        if m:
            gvars += [(m.group(1),) + parse_var(m.group(2))]
        elif not re.match(r"(\.\w+\s+)*\.(func|pragma|alias)|\Z", st.strip()):
            raise PtxError("cannot parse module statement: " + st.strip()[:120])


def statements(body, line0):
    """Yield (kind, text, line): kind is '{', '}', 'label' or 'stmt'."""
    pos, n, ln = 0, len(body), line0
    ws, lab = re.compile(r"\s*"), re.compile(r"([\w$]+)\s*:(?!:)")
    while True:
        e = ws.match(body, pos).end()
        ln += body.count("\n", pos, e)
        pos = e
        if pos >= n:
            return
        if body[pos] in "{}":
            yield body[pos], "", ln
            pos += 1
            continue
        m = lab.match(body, pos)
        if m:
            yield "label", m.group(1), ln
            pos = m.end()
            continue
        e = body.index(";", pos)
        yield "stmt", " ".join(body[pos:e].split()), ln
        ln += body.count("\n", pos, e)
        pos = e + 1


# ---------------------------------------------------------------- translation to C++
class Inst:
    def __init__(self, guard, op, args, line, env):
        self.guard, self.op, self.args, self.line, self.env = guard, op, args, line, env
        self.root, self.mods = op.split(".")[0], op.split(".")[1:]


class Gen:
    def __init__(self, text, kernel):
        self.funcs, gv = parse_module(text)
        ents = [f for f in self.funcs.values() if f.entry]
        if kernel not in self.funcs:
            raise PtxError("no kernel %r; the module has %s" % (kernel, [f.name for f in ents]))
        self.f = self.funcs[kernel]
        self.regs, self.fields, self.glob, self.shoff, self.dynsh = {}, [], {}, 0, []
        self.code, self.colls, self.bad, self.npc, self.nuid = [], [], {}, 1, 0
        self.ginit = []
        for space, name, ty, size, align, init in gv:
            self.add_var(self.glob, space, name, ty, size, align, init)
        self.flat = []
        self.param_layout = []
        env, off = {"vars": [dict(self.glob)], "regs": [{}], "labels": {}, "tag": "", "ret": None}, 0
        for name, ty, size, align, _ in self.f.params:
            off = (off + align - 1) // align * align
            self.param_layout.append((off, ty, size))
            env["vars"][0][name] = ("kparam", off)
            off += size
        self.param_size = off
        self.flatten(self.f, env, 0)
        self.static = (self.shoff + 127) // 128 * 128 if self.dynsh else self.shoff

    def uid(self):
        self.nuid += 1
        return self.nuid

    def add_var(self, scope, space, name, ty, size, align, init=""):
        if space == "shared":
            if size is None:
                scope[name] = ("dynshared",)
                self.dynsh.append(name)
            else:
                self.shoff = (self.shoff + align - 1) // align * align
                scope[name] = ("shared", self.shoff)
                self.shoff += size
        elif space in ("local", "param"):
            c = "M%d_%s" % (self.uid(), re.sub(r"\W", "_", name))
            self.fields.append("alignas(16) u8 %s[%d];" % (c, max(size or 1, 1)))
            scope[name] = ("tmem", c)
        else:
            c = "G%d_%s" % (self.uid(), re.sub(r"\W", "_", name))
            size = size or 16
            data = b"".join(self.init_bytes(x, ty) for x in split_top(init.strip("{} ").replace("{", "").replace("}", ""))) if init else b""
            self.ginit.append((c, size, max(align, 16), data))
            scope[name] = ("global", c)

    @staticmethod
    def init_bytes(x, ty):
        n = BITS[ty] // 8
        if re.match(r"0[fF][0-9a-fA-F]{8}$", x):
            return struct.pack("<I", int(x[2:], 16))
        if re.match(r"0[dD][0-9a-fA-F]{16}$", x):
            return struct.pack("<Q", int(x[2:], 16))
        if ty in ("f32", "f64"):
            return struct.pack("<f" if ty == "f32" else "<d", float(x))
        try:
            return (int(x.rstrip("U"), 0) & ((1 << 8 * n) - 1)).to_bytes(n, "little")
        except ValueError:
            raise Unsupported("symbol in an initialiser: " + x)

    # -- flatten: resolve scopes, inline calls
    def flatten(self, f, env, depth):
        if depth > 40:
            raise Unsupported("recursive device function " + f.name)
        tables = {}
        pending = None
        for kind, s, ln in statements(f.body, f.line):
            if kind == "{":
                env["vars"].append({})
                env["regs"].append({})
                continue
            if kind == "}":
                env["vars"].pop()
                env["regs"].pop()
                continue
            if kind == "label":
                self.flat.append(("label", env["tag"] + s))
                pending = s
                continue
            if s.startswith(".branchtargets"):
                tables[pending] = [env["tag"] + x for x in split_top(s.split(None, 1)[1])]
                env["labels"].update(tables)
                continue
            if s.startswith(".reg"):
                ty = re.findall(r"\.(\w+)", s)[1]
                for d in split_top(re.sub(r"^\.reg\s+\.\w+\s*", "", s)):
                    m = re.match(r"(.+?)<(\d+)>$", d)
                    tag = env["tag"] + ("s%d_" % self.uid() if len(env["regs"]) > 1 else "")
                    env["regs"][-1][(m.group(1) if m else d), bool(m)] = (ty, tag)
                continue
            m = re.match(r"\.(shared|local|param|global|const)\b(.*)", s)
            if m:
                self.add_var(env["vars"][-1], m.group(1), *parse_var(m.group(2)))
                continue
            if s.startswith((".pragma", ".callprototype")):
                continue
            m = re.match(r"(?:@(!?)([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)$", s)
            if not m:
                raise PtxError("line %d: cannot parse %r" % (ln, s))
            guard = (m.group(1), self.reg(m.group(2), env)) if m.group(2) else None
            op, rest = m.group(3), m.group(4)
            if op.startswith("call"):
                self.call(rest, guard, ln, env, depth)
                continue
            if op.startswith("ret") and env["ret"]:
                self.flat.append(("inst", Inst(guard, "bra", ["@" + env["ret"]], ln, env)))
                continue
            ins = Inst(guard, op, [], ln, env)
            ins.args = (
                [self.operand(a, env) for a in split_top(rest)]
                if ins.root not in ("bra", "brx")
                else [env["tag"] + a if i == 0 and ins.root == "bra" else a for i, a in enumerate(split_top(rest))]
            )
            if ins.root == "brx":
                ins.args = [self.operand(ins.args[0], env), env["labels"].get(ins.args[1])]
                if ins.args[1] is None:
                    ins.args[1] = (env, split_top(rest)[1])
            self.flat.append(("inst", ins))

    def call(self, rest, guard, ln, env, depth):
        parts = split_top(rest)
        rets = split_top(parts.pop(0)[1:-1]) if parts[0].startswith("(") else []
        name = parts[0]
        args = split_top(parts[1][1:-1]) if len(parts) > 1 and parts[1].startswith("(") else []
        if name in ("vprintf", "__assertfail"):
            self.flat.append(("inst", Inst(guard, "trap" if name == "__assertfail" else "nop", [], ln, env)))
            return
        g = self.funcs.get(name)
        if g is None or guard:
            self.bad.setdefault("call " + name, ln)
            return
        u = self.uid()
        tag = "i%d_" % u
        end = tag + "end"
        sub = {"vars": [dict(self.glob)], "regs": [{}], "labels": {}, "tag": tag, "ret": end}
        for formal, actual in list(zip(g.rets, rets)) + list(zip(g.params, args)):
            v = self.var(actual, env)
            if v is None:
                raise Unsupported("line %d: register-passed call argument" % ln)
            sub["vars"][0][formal[0]] = v
        self.flatten(g, sub, depth + 1)
        self.flat.append(("label", end))

    def var(self, name, env):
        for sc in reversed(env["vars"]):
            if name in sc:
                return sc[name]
        return None

    def reg(self, name, env):
        for sc in reversed(env["regs"]):
            for key in ((name, False), (re.sub(r"\d+$", "", name), True)):
                if key in sc:
                    ty, tag = sc[key]
                    c = "v_" + tag + re.sub(r"\W", "_", name)
                    self.regs[c] = ty
                    return c
        return None

    def operand(self, a, env):
        a = a.strip()
        if a == "_":
            return ("sink",)
        if a.startswith("["):
            inner = split_top(a[1:-1])
            if len(inner) > 1:
                return ("other", a)
            m = re.match(r"(.+?)\s*(?:\+\s*(-?\w+)|(-\s*\d+))?$", inner[0])
            off = (m.group(2) or m.group(3) or "0").replace(" ", "")
            return ("addr", self.operand(m.group(1), env), int(off, 0))
        if a.startswith("{"):
            return ("vec", [self.operand(x, env) for x in split_top(a[1:-1])])
        if "|" in a:
            x, y = a.split("|")
            return ("pair", self.operand(x, env), self.operand(y, env))
        if a.startswith("!"):
            return ("not", self.operand(a[1:], env))
        r = self.reg(a, env)
        if r:
            return ("reg", r)
        if a.startswith("%") and a[1:] in SREG:
            return ("sreg", SREG[a[1:]])
        if a == "WARP_SZ":
            return ("imm", "32")
        if re.match(r"[-+]?(0[fFdDxXbB])?[0-9.]", a) or re.match(r"-?0[fFdD][0-9a-fA-F]+$", a):
            return ("imm", a)
        m = re.match(r"(?:generic\()?([\w$]+)\)?\s*(?:\+\s*(\d+))?$", a)
        v = self.var(m.group(1), env) if m else None
        if v:
            return ("sym", v, int(m.group(2) or 0))
        return ("other", a)

    # -- operand expressions
    def imm(self, s, ty):
        m = re.match(r"(-?)0([fFdD])([0-9a-fA-F]+)$", s)
        if m:
            n = int(m.group(3), 16)
            e = "as<f32>((u32)0x%xu)" % n if m.group(2) in "fF" else "as<f64>((u64)0x%xull)" % n
            return (
                "(%s)%s(%s)" % (ct(ty), m.group(1), e) if ty in FLOATS else ("((u%d)0x%x)" % ((32, n) if m.group(2) in "fF" else (64, n)))
            )
        if ty in FLOATS:
            if re.match(r"-?0[xX]", s) or re.match(r"-?\d+$", s) and ty in ("f16", "bf16"):
                return "as<%s>((u%d)%s)" % (ty, BITS[ty], s)
            return "((%s)%s)" % (ty, s)
        s = s.rstrip("U")
        if ty == "pred":
            return "(%s!=0)" % s
        v = int(s, 0) if not re.match(r"-?0\d", s) else int(s, 8)
        return "((%s)0x%xull)" % (ct(ty), v & (2**64 - 1))

    def sym(self, v, off):
        e = {
            "shared": lambda: "%du" % v[1] if v[0] == "shared" else "",
            "dynshared": lambda: "(u32)STATIC_SHARED",
            "global": lambda: "(u64)%s" % v[1],
            "tmem": lambda: "(u64)t->%s" % v[1],
            "kparam": lambda: "((u64)g_param+%d)" % v[1],
        }[v[0]]()
        return "(%s+%d)" % (e, off) if off else "(%s)" % e

    def src(self, o, ty):
        k = o[0]
        if k == "reg":
            rt = self.regs[o[1]]
            if rt == "pred":
                return "t->" + o[1]
            return "t->" + o[1] if "u%d" % BITS[rt] == ct(ty) else "as<%s>(t->%s)" % (ct(ty), o[1])
        if k == "imm":
            return self.imm(o[1], ty)
        if k == "sreg":
            return "(%s)%s" % (ct(ty), o[1]) if ty not in FLOATS else "as<%s>(%s)" % (ty, o[1])
        if k == "sym":
            return "(%s)%s" % (ct(ty), self.sym(o[1], o[2]))
        if k == "not":
            return "(!%s)" % self.src(o[1], ty)
        if k == "vec":
            w = BITS[ty] // len(o[1])
            return "(%s)(%s)" % (ct(ty), "|".join("((u%d)%s<<%d)" % (BITS[ty], self.src(x, "b%d" % w), i * w) for i, x in enumerate(o[1])))
        raise Unsupported("operand %r" % (o,))

    def dst(self, o, ty, e):
        k = o[0]
        if k == "sink":
            return "(void)(%s);" % e
        if k == "reg":
            return "t->%s=(%s);" % (o[1], e) if self.regs[o[1]] == "pred" else "put<%s>(t->%s,%s);" % (ct(ty), o[1], e)
        if k == "vec":
            w = BITS[ty] // len(o[1])
            return "{u%d q_=%s;%s}" % (
                BITS[ty],
                e,
                "".join(self.dst(x, "b%d" % w, "(u%d)(q_>>%d)" % (w, i * w)) for i, x in enumerate(o[1])),
            )
        raise Unsupported("destination %r" % (o,))

    def addr(self, o, space, n, ln):
        """C++ pointer expression for an n-byte access"""
        _, base, off = o
        if base[0] == "sym":
            v = base[1]
            if v[0] == "kparam":
                return "(g_param+%d)" % (v[1] + base[2] + off)
            if v[0] == "tmem":
                return "(t->%s+%d)" % (v[1], base[2] + off)
            a = "%s+%d" % (self.sym(v, base[2]), off)
            return "shp(b,%s,%d,%d)" % (a, n, ln) if v[0] in ("shared", "dynshared") else "gp(b,t,%s,%d,%d)" % (a, n, ln)
        wide = "u64" if not (base[0] == "reg" and BITS[self.regs[base[1]]] == 32) else "u32"
        a = "(%s)(%s%s)" % (wide, self.src(base, "b64" if wide == "u64" else "b32"), "%+d" % off if off else "")
        return "shp(b,%s,%d,%d)" % (a, n, ln) if space == "shared" else "gp(b,t,%s,%d,%d)" % (a, n, ln)

    # -- instructions
    def emit(self, i):
        fn = getattr(self, "op_" + i.root, None)
        if fn is None:
            raise Unsupported(i.op)
        return fn(i)

    def ty(self, i):
        for m in reversed(i.mods):
            if m in BITS:
                return m
        raise Unsupported(i.op + " (no type)")

    def space(self, i):
        for m in i.mods:
            if m in STATE:
                return m.split("::")[0]
        return "generic"

    def x2(self, i, k):
        """packed half arithmetic: apply the scalar form to both halves"""
        ty = self.ty(i)
        h = ty[:-2]
        a = [self.src(x, "b32") for x in i.args[1:]]
        body = "".join("%s %s_=as<%s>((u16)(%s>>s_));" % (h, "xyz"[j], h, e) for j, e in enumerate(a))
        return "{u32 r_=0;for(int s_=0;s_<32;s_+=16){%s r_|=(u32)as<u16>((%s)(%s))<<s_;}%s}" % (
            body,
            h,
            k("x_", "y_", "z_")[0],
            self.dst(i.args[0], "b32", "r_"),
        )

    def arith(self, i, expr, key=None):
        """expr(a,b,c) -> C expression; handles ftz/sat/directed rounding/x2"""
        ty = self.ty(i)
        if ty.endswith("x2"):
            return self.x2(i, lambda a, b, c: (expr(a, b, c),))
        a = [self.src(x, ty) for x in i.args[1:]] + ["0", "0"]
        c = ct(ty)
        if ty in FLOATS:
            if "ftz" in i.mods:
                a = ["fz(%s)" % x for x in a[:-2]] + ["0", "0"]
            r = [m for m in i.mods if m in RND]
            e = "rop<%s>(%s,'%s',%s,%s,%s)" % (c, RND[r[0]], key, a[0], a[1], a[2]) if r and key else expr(*a[:3])
            if "sat" in i.mods:
                e = "sat<%s>(%s)" % (c, e)
            if "ftz" in i.mods:
                e = "fz((%s)(%s))" % (c, e)
        else:
            e = expr(*a[:3])
        return self.dst(i.args[0], ty, "(%s)(%s)" % (c, e))

    def addsub(self, i, o):
        ty = self.ty(i)
        if ty in FLOATS or ty.endswith("x2"):
            return self.arith(i, lambda a, b, c: "%s%s%s" % (a, o, b), o)
        w = BITS[ty]
        u = "u%d" % w
        a, b = self.src(i.args[1], "b%d" % w), self.src(i.args[2], "b%d" % w)
        if "cc" in i.mods:
            W = "u%d" % (2 * w)
            return "{%s q_=(%s)%s%s(%s)%s;t->cc=(q_>>%d)&1;%s}" % (W, W, a, o, W, b, w, self.dst(i.args[0], u, "(%s)q_" % u))
        if "sat" in i.mods:
            return "{s64 q_=(s64)(s32)%s%s(s64)(s32)%s;q_=q_>2147483647?2147483647:q_<-2147483648ll?-2147483648ll:q_;%s}" % (
                a,
                o,
                b,
                self.dst(i.args[0], "u32", "(u32)q_"),
            )
        return self.dst(i.args[0], u, "(%s)(%s%s%s)" % (u, a, o, b))

    def op_add(self, i):
        return self.addsub(i, "+")

    def op_sub(self, i):
        return self.addsub(i, "-")

    def carry(self, i, o):
        w = BITS[self.ty(i)]
        W, u = "u%d" % (2 * w), "u%d" % w
        a, b = self.src(i.args[1], u), self.src(i.args[2], u)
        return (
            "{%s q_=(%s)%s%s(%s)%s%st->cc;%st->cc=(q_>>%d)&1;}" % (W, W, a, o, W, b, o, self.dst(i.args[0], u, "(%s)q_" % u), w)
            if "cc" in i.mods
            else self.dst(i.args[0], u, "(%s)(%s%s%s%st->cc)" % (u, a, o, b, o))
        )

    def op_addc(self, i):
        return self.carry(i, "+")

    def op_subc(self, i):
        return self.carry(i, "-")

    def op_mul(self, i, add=None):
        ty = self.ty(i)
        if ty in FLOATS or ty.endswith("x2"):
            return self.arith(i, lambda a, b, c: "%s*%s" % (a, b), "*")
        a, b = self.src(i.args[1], ty), self.src(i.args[2], ty)
        c = self.src(i.args[3], WIDE[ty] if "wide" in i.mods else ty) if add else None
        if "wide" in i.mods:
            W = WIDE[ty]
            U = W.replace("s", "u")
            e = "(%s)((%s)%s*(%s)%s)" % (U, W, a, W, b)
            return self.dst(i.args[0], U, "(%s)(%s+(%s)%s)" % (U, e, U, c) if c else e)
        u = ty.replace("s", "u")
        U = "u%d" % (2 * BITS[ty])
        e = (
            "(%s)mulhi<%s>(%s,%s)" % (u, ty, a, b)
            if "hi" in i.mods
            else "(%s)((%s)%s*(%s)%s)" % (u, "u32" if BITS[ty] == 16 else u, a, "u32" if BITS[ty] == 16 else u, b)
        )
        if not c:
            return self.dst(i.args[0], u, e)
        if "cc" in i.mods or i.root == "madc":
            return "{%s q_=(%s)%s+(%s)(%s)%s%s;%s%s}" % (
                U,
                U,
                e,
                U,
                u,
                c,
                "+t->cc" if i.root == "madc" else "",
                self.dst(i.args[0], u, "(%s)q_" % u),
                "t->cc=(q_>>%d)&1;" % BITS[ty] if "cc" in i.mods else "",
            )
        return self.dst(i.args[0], u, "(%s)(%s+(%s)%s)" % (u, e, u, c))

    def op_mad(self, i):
        return self.op_fma(i) if self.ty(i) in FLOATS else self.op_mul(i, add=True)

    def op_madc(self, i):
        return self.op_mul(i, add=True)

    def op_mul24(self, i):
        return self.dst(
            i.args[0], "u32", "(u32)((%s<<8>>8)*(%s<<8>>8))" % (self.src(i.args[1], self.ty(i)), self.src(i.args[2], self.ty(i)))
        )

    def op_fma(self, i):
        relu = "relu" in i.mods

        def k(a, b, c):
            e = (
                "std::fma((double)%s,(double)%s,(double)%s)" % (a, b, c)
                if self.ty(i)[0] in "b" or "16" in self.ty(i)
                else "std::fma(%s,%s,%s)" % (a, b, c)
            )
            return "(float)(%s)" % e if "16" in self.ty(i) else e

        return self.arith(i, (lambda a, b, c: "fmx<f32>(0.f,%s,true)" % k(a, b, c)) if relu else k, "f")

    def op_div(self, i):
        ty = self.ty(i)
        return (
            self.arith(i, lambda a, b, c: "%s/%s" % (a, b), "/")
            if ty in FLOATS
            else self.dst(i.args[0], ty, "idiv<%s>(%s,%s)" % (ty, self.src(i.args[1], ty), self.src(i.args[2], ty)))
        )

    def op_rem(self, i):
        ty = self.ty(i)
        return self.dst(i.args[0], ty, "irem<%s>(%s,%s)" % (ty, self.src(i.args[1], ty), self.src(i.args[2], ty)))

    def minmax(self, i, f, o):
        ty = self.ty(i)
        nan = "true" if "NaN" in i.mods else "false"
        if ty in FLOATS or ty in ("f16x2", "bf16x2"):
            h = ty[:-2] if ty.endswith("x2") else ty
            e3 = len(i.args) == 4
            return self.arith(
                i, lambda a, b, c: "%s<%s>(%s,%s,%s)" % (f, h, "%s<%s>(%s,%s,%s)" % (f, h, a, b, nan) if e3 else a, c if e3 else b, nan)
            )
        return self.arith(i, lambda a, b, c: "%s%s%s?%s:%s" % (a, o, b, a, b))

    def op_min(self, i):
        return self.minmax(i, "fmn", "<")

    def op_max(self, i):
        return self.minmax(i, "fmx", ">")

    def op_abs(self, i):
        return self.arith(
            i,
            lambda a, b, c: (
                "std::fabs(%s)" % a
                if self.ty(i) in ("f32", "f64")
                else "fabsf((float)%s)" % a
                if "16" in self.ty(i) and "f" in self.ty(i)
                else "%s<0?0-%s:%s" % (a, a, a)
            ),
        )

    def op_neg(self, i):
        return self.arith(i, lambda a, b, c: "-%s" % a if "f" in self.ty(i) else "0-(u%d)%s" % (BITS[self.ty(i)], a))

    def op_sqrt(self, i):
        return self.arith(i, lambda a, b, c: "std::sqrt(%s)" % a, "q")

    def op_rsqrt(self, i):
        return self.arith(i, lambda a, b, c: "1/std::sqrt((double)%s)" % a)

    def op_rcp(self, i):
        return self.arith(i, lambda a, b, c: "(%s)1/%s" % (ct(self.ty(i)), a))

    def op_ex2(self, i):
        return self.arith(i, lambda a, b, c: "exp2f(%s)" % a)

    def op_lg2(self, i):
        return self.arith(i, lambda a, b, c: "log2f(%s)" % a)

    def op_sin(self, i):
        return self.arith(i, lambda a, b, c: "sinf(%s)" % a)

    def op_cos(self, i):
        return self.arith(i, lambda a, b, c: "cosf(%s)" % a)

    def op_tanh(self, i):
        return self.arith(i, lambda a, b, c: "tanhf(%s)" % a)

    def op_copysign(self, i):
        return self.arith(i, lambda a, b, c: "std::copysign(%s,%s)" % (b, a))

    def op_sad(self, i):
        return self.arith(i, lambda a, b, c: "%s+(%s<%s?%s-%s:%s-%s)" % (c, a, b, b, a, a, b))

    def logic(self, i, o):
        return self.arith(i, lambda a, b, c: "%s%s%s" % (a, o, b))

    def op_and(self, i):
        return self.logic(i, "&")

    def op_or(self, i):
        return self.logic(i, "|")

    def op_xor(self, i):
        return self.logic(i, "^")

    def op_not(self, i):
        return self.arith(i, lambda a, b, c: "!%s" % a if self.ty(i) == "pred" else "~%s" % a)

    def op_cnot(self, i):
        return self.arith(i, lambda a, b, c: "%s==0" % a)

    def shift(self, i, f):
        return self.dst(
            i.args[0], self.ty(i), "%s<%s>(%s,%s)" % (f, ct(self.ty(i)), self.src(i.args[1], self.ty(i)), self.src(i.args[2], "u32"))
        )

    def op_shl(self, i):
        return self.shift(i, "shl_")

    def op_shr(self, i):
        return self.shift(i, "shr_")

    def op_shf(self, i):
        return self.dst(
            i.args[0], "u32", "shf_(%s,%s,%s,%d,%d)" % (*[self.src(x, "u32") for x in i.args[1:4]], i.mods[0] == "l", "wrap" in i.mods)
        )

    def op_lop3(self, i):
        if len(i.args) != 5:
            raise Unsupported(i.op)
        return self.dst(i.args[0], "u32", "lop3_(%s,%s,%s,%s)" % tuple(self.src(x, "u32") for x in i.args[1:5]))

    def op_prmt(self, i):
        mode = ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].index(i.mods[1] if len(i.mods) > 1 else "")
        return self.dst(i.args[0], "u32", "prmt_(%s,%s,%s,%d)" % (*[self.src(x, "u32") for x in i.args[1:4]], mode))

    def op_bfe(self, i):
        return self.dst(
            i.args[0],
            self.ty(i),
            "bfe_<%s>(%s,%s,%s)"
            % (ct(self.ty(i)), self.src(i.args[1], self.ty(i)), self.src(i.args[2], "u32"), self.src(i.args[3], "u32")),
        )

    def op_bfi(self, i):
        t = self.ty(i)
        return self.dst(
            i.args[0],
            t,
            "bfi_<%s>(%s,%s,%s,%s)"
            % (ct(t), self.src(i.args[1], t), self.src(i.args[2], t), self.src(i.args[3], "u32"), self.src(i.args[4], "u32")),
        )

    def op_popc(self, i):
        return self.dst(i.args[0], "u32", "(u32)__builtin_popcountll(%s)" % self.src(i.args[1], self.ty(i)))

    def op_brev(self, i):
        return self.dst(i.args[0], self.ty(i), "brev_(%s)" % self.src(i.args[1], self.ty(i)))

    def op_clz(self, i):
        w = BITS[self.ty(i)]
        return "{u64 q_=%s;%s}" % (
            self.src(i.args[1], "b%d" % w),
            self.dst(i.args[0], "u32", "q_?(u32)__builtin_clzll(q_)-%d:%du" % (64 - w, w)),
        )

    def op_bfind(self, i):
        ty = self.ty(i)
        w = BITS[ty]
        s = "if((s64)(%s)%s<0) q_=(u%d)~q_;" % ("s%d" % w, "q_", w) if ty[0] == "s" else ""
        return "{u64 q_=(u%d)%s;%s%s}" % (
            w,
            self.src(i.args[1], ty),
            s,
            self.dst(
                i.args[0],
                "u32",
                "q_?%s:~0u" % (("%d-(63-(u32)__builtin_clzll(q_))" % (w - 1)) if "shiftamt" in i.mods else "63-(u32)__builtin_clzll(q_)"),
            ),
        )

    def op_dp4a(self, i):
        a, b = [m for m in i.mods if m in BITS]
        return "{u32 x_=%s,y_=%s,q_=%s;for(int k=0;k<4;k++)q_+=(u32)((s32)(%s)(x_>>8*k)*(s32)(%s)(y_>>8*k));%s}" % (
            *[self.src(x, "u32") for x in i.args[1:4]],
            a[0] + "8",
            b[0] + "8",
            self.dst(i.args[0], "u32", "q_"),
        )

    CMP = {
        "eq": "%s==%s",
        "ne": "%s!=%s",
        "lt": "%s<%s",
        "le": "%s<=%s",
        "gt": "%s>%s",
        "ge": "%s>=%s",
        "lo": "%s<%s",
        "ls": "%s<=%s",
        "hi": "%s>%s",
        "hs": "%s>=%s",
    }

    def cmp(self, i, ty, a, b):
        c = i.mods[0]
        x, y = self.src(a, ty), self.src(b, ty)
        if "ftz" in i.mods and ty == "f32":
            x, y = "fz(%s)" % x, "fz(%s)" % y
        if ty in FLOATS:
            x, y = ("(%s)" % x, "(%s)" % y)
            un = "(%s!=%s||%s!=%s)" % (x, x, y, y)
            if c == "num":
                return "!" + un
            if c == "nan":
                return un
            if c.endswith("u") and c[:2] in self.CMP:
                return "(%s||%s)" % (un, self.CMP[c[:2]] % (x, y))
            if c == "ne":
                return "(!%s&&%s!=%s)" % (un, x, y)
        return "(" + self.CMP[c] % (x, y) + ")"

    def op_setp(self, i):
        ty = self.ty(i)
        bop = [m for m in i.mods[1:] if m in ("and", "or", "xor")]
        d = i.args[0][1:] if i.args[0][0] == "pair" else (i.args[0],)
        e = [self.cmp(i, ty, i.args[1], i.args[2]), "!q_"]
        out = "{bool q_=%s;%s" % (e[0], "bool c_=%s;" % self.src(i.args[3], "pred") if bop else "")
        vals = ["q_", "!q_"]
        if bop:
            o = {"and": "&", "or": "|", "xor": "^"}[bop[0]]
            vals = ["(q_%sc_)" % o, "((!q_)%sc_)" % o]
        return out + "".join(self.dst(x, "pred", v) for x, v in zip(d, vals)) + "}"

    def op_set(self, i):
        tys = [m for m in i.mods if m in BITS]
        if len(i.args) != 3:
            raise Unsupported(i.op)
        return self.dst(
            i.args[0],
            tys[0],
            "(%s)(%s?%s:0)" % (ct(tys[0]), self.cmp(i, tys[1], i.args[1], i.args[2]), "1.0f" if tys[0] == "f32" else "~0u"),
        )

    def op_selp(self, i):
        t = "b%d" % BITS[self.ty(i)] if i.args[1][0] != "imm" and i.args[2][0] != "imm" else self.ty(i)
        return self.dst(i.args[0], t, "%s?%s:%s" % (self.src(i.args[3], "pred"), self.src(i.args[1], t), self.src(i.args[2], t)))

    def op_slct(self, i):
        t, c = [m for m in i.mods if m in BITS]
        return self.dst(i.args[0], t, "%s>=0?%s:%s" % (self.src(i.args[3], c), self.src(i.args[1], t), self.src(i.args[2], t)))

    def op_testp(self, i):
        f = {
            "finite": "std::isfinite",
            "infinite": "std::isinf",
            "number": "!std::isnan",
            "notanumber": "std::isnan",
            "normal": "std::isnormal",
        }
        return self.dst(i.args[0], "pred", "%s(%s)" % (f[i.mods[0]], self.src(i.args[1], self.ty(i))))

    def op_mov(self, i):
        t = self.ty(i)
        return self.dst(i.args[0], t, self.src(i.args[1], t))

    def op_cvt(self, i):
        d, s = [m for m in i.mods if m in BITS][:2]
        if i.mods[-1] not in (s,):
            raise Unsupported(i.op)
        if d in ("f16x2", "bf16x2"):
            h, z = d[:-2], "fmx<f32>(0.f,%s,true)" if "relu" in i.mods else "%s"
            if "rz" in i.mods:
                raise Unsupported(i.op)
            return self.dst(
                i.args[0],
                "b32",
                "(u32)as<u16>(%s(%s))<<16|as<u16>(%s(%s))" % (h, z % self.src(i.args[1], "f32"), h, z % self.src(i.args[2], "f32")),
            )
        a = self.src(i.args[1], s)
        if d == "tf32":
            return self.dst(i.args[0], "b32", "tf32_(%s)" % a)
        rnd = [m for m in i.mods if m in RND]
        rint = [m for m in i.mods if m in ("rni", "rzi", "rmi", "rpi")]
        if s in FLOATS and d not in FLOATS:
            f = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[rint[0] if rint else "rzi"]
            return self.dst(i.args[0], d, "f2i<%s>(%s((double)%s))" % (d, f, "fz((float)%s)" % a if "ftz" in i.mods and s == "f32" else a))
        if s not in FLOATS and d not in FLOATS:
            if "sat" in i.mods:
                lo, hi = (0, 2 ** BITS[d] - 1) if d[0] == "u" else (-(2 ** (BITS[d] - 1)), 2 ** (BITS[d] - 1) - 1)
                return "{s128 q_=%s;s128 lo_=(s128)%dll,hi_=(s128)0x%xull;%s}" % (
                    a,
                    lo + 1,
                    hi,
                    self.dst(i.args[0], d, "(%s)(q_<lo_-1?lo_-1:q_>hi_?hi_:q_)" % d),
                )
            return self.dst(i.args[0], d, "(%s)%s" % (d, a))
        if rint:
            f = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}[rint[0]]
            e = "(%s)%s((double)%s)" % (d, f, a)
        elif rnd and BITS[d] >= 32:
            e = "rcvt<%s>(%s,(double)%s)" % (d, RND[rnd[0]], a)
        elif rnd:
            raise Unsupported(i.op)
        else:
            e = "(%s)(%s)" % (d, "(float)" + a if d in ("f16", "bf16") else a)
        if "sat" in i.mods:
            e = "sat<%s>(%s)" % (d, e)
        if "ftz" in i.mods and d == "f32":
            e = "fz(%s)" % e
        return self.dst(i.args[0], d, e)

    def op_cvta(self, i):
        sp, to = self.space(i), "to" in i.mods
        a = self.src(i.args[1], "b64")
        if sp == "shared":
            a = "(%s-(u64)b.sh)" % a if to else "(%s+(u64)b.sh)" % a
        return self.dst(i.args[0], "b64", a)

    def op_isspacep(self, i):
        a, sp = self.src(i.args[1], "b64"), self.space(i)
        sh, lo = "(%s>=(u64)b.sh&&%s<(u64)b.sh+b.shn)" % (a, a), "(%s>=(u64)t&&%s<(u64)(t+1))" % (a, a)
        return self.dst(
            i.args[0], "pred", {"shared": sh, "local": lo, "global": "!(%s||%s)" % (sh, lo), "const": "false", "param": "false"}[sp]
        )

    def vecn(self, i):
        return next((int(m[1:]) for m in i.mods if m in ("v2", "v4", "v8")), 1)

    def op_ld(self, i):
        ty, n, sp = self.ty(i), self.vecn(i), self.space(i)
        w = BITS[ty] // 8
        p = self.addr(i.args[1], sp, w * n, i.line)
        t = "b%d" % BITS[ty] if ty in FLOATS else ty
        if n == 1:
            return self.dst(i.args[0], t, "ldm<%s>(%s)" % (ct(t), p))
        return "{u8* p_=%s;%s}" % (p, "".join(self.dst(x, t, "ldm<%s>(p_+%d)" % (ct(t), k * w)) for k, x in enumerate(i.args[0][1])))

    op_ldu = op_ld

    def op_st(self, i):
        ty, n, sp = self.ty(i), self.vecn(i), self.space(i)
        w = BITS[ty] // 8
        p = self.addr(i.args[0], sp, w * n, i.line)
        xs = i.args[1][1] if n > 1 else [i.args[1]]
        return "{u8* p_=%s;%s}" % (p, "".join("stm<%s>(p_+%d,%s);" % (ct(ty), k * w, self.src(x, ty)) for k, x in enumerate(xs)))

    def op_atom(self, i, d=None, a=None):
        ty, sp = self.ty(i), self.space(i)
        if self.vecn(i) > 1:
            raise Unsupported(i.op)
        ops = [m for m in i.mods if m in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")]
        d, a = (i.args[0], i.args[1:]) if i.root == "atom" else (("sink",), i.args)
        if not ops:
            raise Unsupported(i.op)
        o, c, w = ops[0], ct(ty), BITS[ty] // 8
        x = self.src(a[1], ty)
        if ty.endswith("x2"):
            h = ty[:-2]
            if o != "add":
                raise Unsupported(i.op)
            new = (
                "(u32)as<u16>((%s)(as<%s>((u16)old_)+as<%s>((u16)x_)))|(u32)as<u16>((%s)(as<%s>((u16)(old_>>16))+as<%s>((u16)(x_>>16))))<<16"
                % ((h,) * 6)
            )
        else:
            fl = ty in FLOATS
            new = {
                "add": "old_+x_",
                "min": "fmn<%s>(old_,x_,false)" % c if fl else "old_<x_?old_:x_",
                "max": "fmx<%s>(old_,x_,false)" % c if fl else "old_>x_?old_:x_",
                "and": "old_&x_",
                "or": "old_|x_",
                "xor": "old_^x_",
                "exch": "x_",
                "cas": "old_==x_?y_:old_",
                "inc": "old_>=x_?0:old_+1",
                "dec": "old_==0||old_>x_?x_:old_-1",
            }[o]
        y = "%s y_=%s;" % (c, self.src(a[2], ty)) if o == "cas" else ""
        return "{u8* p_=%s;%s x_=%s;%s%s old_=ldm<%s>(p_);stm<%s>(p_,(%s)(%s));%s}" % (
            self.addr(a[0], sp, w, i.line),
            c,
            x,
            y,
            c,
            c,
            c,
            c,
            new,
            self.dst(d, ty, "old_"),
        )

    op_red = op_atom

    def nop(self, i):
        return ";"

    op_membar = op_fence = op_prefetch = op_prefetchu = op_nop = op_discard = op_applypriority = op_griddepcontrol = op_pmevent = (
        op_brkpt
    ) = op_setmaxnreg = nop

    def op_createpolicy(self, i):
        return self.dst(i.args[0], "b64", "0ull")

    def op_trap(self, i):
        return (
            'fail("trap (or a failed device assert) in thread %%u of block %%u,%%u,%%u, PTX line %d",t->id,b.ctaid[0],b.ctaid[1],b.ctaid[2]);'
            % i.line
        )

    def op_nanosleep(self, i):
        return self.suspend("RUN", i, "")

    def op_exit(self, i):
        return "return EXIT;"

    op_ret = op_exit

    def op_bra(self, i):
        lab = i.args[0].lstrip("@")
        return self.jump(lab, i)

    def jump(self, lab, i):
        if lab not in self.labpos:
            raise Unsupported("label " + lab)
        n = self.labpos[lab]
        return "{if(--fuel<0){t->pc=%d;t->line=%d;return RUN;}goto L%d;}" % (n, i.line, n) if lab in self.seen else "goto L%d;" % n

    def op_brx(self, i):
        tab = i.args[1]
        if isinstance(tab, tuple):
            tab = tab[0]["labels"].get(tab[1])
        if tab is None:
            raise Unsupported(i.op)
        return 'switch(%s){%sdefault: fail("brx out of range");}' % (
            self.src(i.args[0], "u32"),
            "".join("case %d:%s" % (k, self.jump(l, i)) for k, l in enumerate(tab)),
        )

    # -- suspension points
    def suspend(self, st, i, pre, post=""):
        self.npc += 1
        n = self.npc
        self.resume.append(n)
        return "{%st->pc=%d;t->line=%d;return %s;L%d:;%s}" % (pre, n, i.line, st, n, post)

    def op_bar(self, i):
        a = [x for x in i.args]
        if "warp" in i.mods:
            return self.coll(i, self.src(a[0], "u32"), "")
        if "arrive" in i.mods:
            return "b.barred[%s&15]++;" % self.src(a[0], "u32")
        dst, pre, post = None, "", ""
        if "red" in i.mods:
            dst = a.pop(0)
            p = a.pop()
            pre = "t->barp=%s;" % self.src(p, "pred")
            post = self.dst(
                dst,
                "u32" if "popc" in i.mods else "pred",
                "t->barcnt" if "popc" in i.mods else "t->barall" if "and" in i.mods else "(t->barcnt!=0)",
            )
        return self.suspend(
            "BAR",
            i,
            pre + "t->barid=%s&15;t->barn=%s;" % (self.src(a[0], "u32") if a else "0", self.src(a[1], "u32") if len(a) > 1 else "0"),
            post,
        )

    op_barrier = op_bar

    def coll(self, i, mask, body):
        """body: C++ run once for the group (Thread** w, lane mask m) when every named lane has arrived"""
        k = len(self.colls)
        self.colls.append((i, body))
        return self.suspend("COLL", i, "t->cmask=%s;t->coll=%d;" % (mask, k))

    LOOP = "LANES(m){Thread*t=w[l];%s}"

    def op_shfl(self, i):
        d, p = i.args[0][1:] if i.args[0][0] == "pair" else (i.args[0], ("sink",))
        mode = {"up": 0, "down": 1, "bfly": 2, "idx": 3}[i.mods[1]]
        a, b, c = [self.src(x, "u32") for x in i.args[1:4]]
        body = "u32 A[32],B[32],C[32];" + self.LOOP % "A[l]=%s;B[l]=%s;C[l]=%s;" % (a, b, c)
        body += (
            self.LOOP
            % "bool p_;int j=shfl_src(%d,l,B[l],C[l],p_);u32 v=(m>>j&1)?A[j]:0x7fffdeadu;%s%s"
            % (mode, self.dst(d, "u32", "v"), self.dst(p, "pred", "p_"))
        )
        return self.coll(i, self.src(i.args[4], "u32"), body)

    def op_vote(self, i):
        x = self.src(i.args[1], "pred")
        body = "u32 q=0;" + self.LOOP % "if(%s)q|=1u<<l;" % x
        e = {"ballot": "q", "any": "(q!=0)", "all": "(q==m)", "uni": "(q==m||q==0)"}[i.mods[1]]
        return self.coll(
            i, self.src(i.args[2], "u32"), body + self.LOOP % self.dst(i.args[0], "u32" if i.mods[1] == "ballot" else "pred", e)
        )

    def op_activemask(self, i):
        self.warn.add("activemask: only the own lane is reported (threads run one at a time)")
        return self.dst(i.args[0], "u32", "(1u<<(t->id&31))")

    def op_match(self, i):
        d, p = i.args[0][1:] if i.args[0][0] == "pair" else (i.args[0], ("sink",))
        w = self.ty(i)
        body = "u64 A[32];" + self.LOOP % "A[l]=%s;" % self.src(i.args[1], w)
        body += self.LOOP % (
            "u32 q=0;for(int j=0;j<32;j++)if((m>>j&1)&&A[j]==A[l])q|=1u<<j;"
            + (self.dst(d, "u32", "q==m?m:0") + self.dst(p, "pred", "(q==m)") if "all" in i.mods else self.dst(d, "u32", "q"))
        )
        return self.coll(i, self.src(i.args[2], "u32"), body)

    def op_redux(self, i):
        ty = self.ty(i)
        c = ct(ty)
        o = i.mods[1]
        e = {"add": "q+x", "min": "x<q?x:q", "max": "x>q?x:q", "and": "q&x", "or": "q|x", "xor": "q^x"}[o]
        body = "bool f=true;%s q=0;" % c + self.LOOP % "%s x=%s;q=f?x:(%s)(%s);f=false;" % (c, self.src(i.args[1], ty), c, e)
        return self.coll(i, self.src(i.args[2], "u32"), body + self.LOOP % self.dst(i.args[0], ty, "q"))

    def op_elect(self, i):
        d, p = i.args[0][1:]
        return self.coll(
            i,
            self.src(i.args[1], "u32"),
            "u32 q=__builtin_ctz(m);" + self.LOOP % (self.dst(d, "u32", "q") + self.dst(p, "pred", "((u32)l==q)")),
        )

    def matrix(self, i, regs, addr, load):
        x = {"x1": 1, "x2": 2, "x4": 4}[next(m for m in i.mods if m in ("x1", "x2", "x4"))]
        if "m8n8" not in i.mods or "b16" not in i.mods:
            raise Unsupported(i.op)
        tr = "trans" in i.mods
        regs = regs[1] if regs[0] == "vec" else [regs]
        body = 'if(m!=~0u)fail("%s with lanes missing");u16* P[32];' % i.root + self.LOOP % "if(l<%d)P[l]=(u16*)%s;" % (
            8 * x,
            self.addr(addr, "shared", 16, i.line),
        )
        lo, hi = ("P[8*%d+2*(l&3)][l>>2]", "P[8*%d+2*(l&3)+1][l>>2]") if tr else ("P[8*%d+(l>>2)][2*(l&3)]", "P[8*%d+(l>>2)][2*(l&3)+1]")
        if load:
            k = "".join(self.dst(r, "u32", "(u32)%s|(u32)%s<<16" % (lo % j, hi % j)) for j, r in enumerate(regs))
        else:
            k = "".join("{u32 v=%s;%s=(u16)v;%s=(u16)(v>>16);}" % (self.src(r, "u32"), lo % j, hi % j) for j, r in enumerate(regs))
        return self.coll(i, "~0u", body + self.LOOP % k)

    def op_ldmatrix(self, i):
        return self.matrix(i, i.args[0], i.args[1], True)

    def op_stmatrix(self, i):
        return self.matrix(i, i.args[1], i.args[0], False)

    def op_mma(self, i):
        shape = next(m for m in i.mods if re.match(r"m\d+n\d+k\d+$", m))
        td, ta, tb, tc = [m for m in i.mods if m in BITS or m in ("s4", "u4", "b1", "e4m3", "e5m2")][-4:]
        if not shape.startswith("m16n8k") or ta not in ("tf32", "f16", "bf16", "s8", "u8") or "row" not in i.mods or "sp" in i.mods:
            raise Unsupported(i.op)
        K = int(shape.split("k")[1])
        E = 32 // (32 if ta == "tf32" else BITS[ta])
        dec = {
            "tf32": "(double)as<f32>(v&0xffffe000u)",
            "f16": "(double)(float)as<f16>((u16)(v>>16*e))",
            "bf16": "(double)(float)as<bf16>((u16)(v>>16*e))",
            "s8": "(double)(s8)(v>>8*e)",
            "u8": "(double)(u8)(v>>8*e)",
        }
        elem = "[](u32 v,int e,int ab)->double{return ab?%s:%s;}" % (dec[tb], dec[ta])
        D, A, B, C = [x[1] if x[0] == "vec" else [x] for x in i.args[:4]]
        body = 'if(m!=~0u)fail("mma with lanes missing");u32 a[32][4],bb[32][2];double c[32][4];'
        half = lambda r, k: "(double)(float)as<f16>((u16)(%s>>%d))" % (self.src(r, "u32"), 16 * k)
        cs = "".join("c[l][%d]=%s;" % (k, half(C[k // 2], k & 1) if tc == "f16" else "(double)" + self.src(C[k], tc)) for k in range(4))
        body += self.LOOP % (
            "".join("a[l][%d]=%s;" % (k, self.src(r, "u32")) for k, r in enumerate(A))
            + "".join("bb[l][%d]=%s;" % (k, self.src(r, "u32")) for k, r in enumerate(B))
            + cs
        )
        body += "mma_16n8(%d,%d,a,bb,c,%s);" % (K, E, elem)
        if td == "f16":
            st = "".join(
                self.dst(D[k], "u32", "(u32)as<u16>(f16((float)c[l][%d]))|(u32)as<u16>(f16((float)c[l][%d]))<<16" % (2 * k, 2 * k + 1))
                for k in range(2)
            )
        else:
            st = "".join(self.dst(D[k], td, "(%s)%sc[l][%d]" % (td, "(s64)" if td == "s32" else "", k)) for k in range(4))
        return self.coll(i, "~0u", body + self.LOOP % st)

    # cp.async completes as late as allowed: at the wait that covers it
    def op_cp(self, i):
        if i.mods[0] != "async" or "bulk" in i.mods or "mbarrier" in i.mods:
            raise Unsupported(i.op)
        if "commit_group" in i.mods:
            return "t->cpgrp++;"
        flush = "{auto&q=b.cp[t->id];size_t k=0;for(auto&c:q){if(%s){memcpy(shp(b,c.dst,c.n,%d),gp(b,t,c.src,c.n,%d),c.sn);memset(b.sh+c.dst+c.sn,0,c.n-c.sn);}else q[k++]=c;}q.resize(k);}"
        flush = flush.replace("gp(b,t,c.src,c.n,%d),c.sn)", "c.sn?gp(b,t,c.src,c.sn,%d):b.sh,c.sn)")
        if "wait_all" in i.mods:
            return flush % ("true", i.line, i.line)
        if "wait_group" in i.mods:
            return flush % ("c.grp+%s<t->cpgrp" % self.src(i.args[0], "u32"), i.line, i.line)
        n = self.src(i.args[2], "u32")
        rest = (
            [a for a in i.args[3:] if not (a[0] == "reg" and self.regs[a[1]] == "b64") and "cache_hint" not in i.mods] or i.args[3:4]
            if "L2::cache_hint" not in i.op
            else i.args[3:-1]
        )
        sn = "%s" % n
        if rest:
            sn = (
                "(%s?0u:%s)" % (self.src(rest[0], "pred"), n)
                if rest[0][0] == "reg" and self.regs[rest[0][1]] == "pred"
                else self.src(rest[0], "u32")
            )
        d = self.addr(i.args[0], "shared", int(i.args[2][1], 0), i.line)
        _, base, off = i.args[1]
        return "{u64 d_=%s-b.sh;b.cp[t->id].push_back({d_,(u64)(%s%+d),%s,%s,t->cpgrp});}" % (d, self.src(base, "b64"), off, n, sn)

    # -- whole kernel
    def generate(self):
        self.labpos, self.seen, self.resume, self.warn = {}, set(), [], set()
        for k, x in self.flat:
            if k == "label":
                self.npc += 1
                self.labpos[x] = self.npc
        out, block = [], []

        def flush():
            if block:
                out.append("g_count+=%d;" % len(block))
                out.extend(block)
                block.clear()

        for k, x in self.flat:
            if k == "label":
                flush()
                self.seen.add(x)
                out.append("L%d:;" % self.labpos[x])
                continue
            try:
                c = self.emit(x)
            except (Unsupported, KeyError, IndexError, StopIteration, ValueError, TypeError) as e:
                self.bad.setdefault(x.op if not isinstance(e, Unsupported) or str(e) == x.op else "%s: %s" % (x.op, e), x.line)
                continue
            if x.guard:
                c = "if(%st->%s)%s" % (x.guard[0], x.guard[1], c if c.startswith("{") else "{" + c + "}")
            block.append(c + "//%d" % x.line)
            if x.root in ("bra", "brx", "ret", "exit") or "return" in c:
                flush()
        flush()
        if self.bad:
            raise Unsupported("unsupported PTX: " + "; ".join("%s (line %d)" % kv for kv in self.bad.items()))
        pcs = sorted(set(self.labpos.values()) | set(self.resume))
        regs = "".join("%s %s;" % ("bool" if t == "pred" else "u%d" % BITS[t], r) for r, t in self.regs.items())
        g = "".join(
            "alignas(%d) static u8 %s[%d];static const u8 %s_i[]={%s};" % (a, c, s, c, ",".join(map(str, d)) or "0")
            for c, s, a, d in self.ginit
        )
        gi = "".join(
            "memset(%s,0,%d);memcpy(%s,%s_i,%d);g_rng.push_back({(u64)%s,(u64)%s+%d});" % (c, s, c, c, len(d), c, c, s)
            for c, s, a, d in self.ginit
        )
        colls = "".join("static void coll_%d(Block& b,Thread** w,u32 m){%s}\n" % (k, body) for k, (i, body) in enumerate(self.colls))
        return "\n".join(
            [
                '#include "%s/ptx_rt.h"' % HERE,
                "static const u64 STATIC_SHARED=%d;" % self.static,
                g,
                "static void init_globals(){%s}" % gi,
                "struct Thread{u32 id,tid[3],pc,st,cmask,coll,line,barid,barn,barp,barcnt,cpgrp,cc;bool barall;%s%s};"
                % (regs, "".join(self.fields)),
                'static int run_thread(Block& b,Thread* __restrict t){int fuel=100000;switch(t->pc){case 0:break;%s default:fail("bad pc");}'
                % "".join("case %d:goto L%d;" % (p, p) for p in pcs),
                "\n".join(out),
                "return EXIT;}",
                colls,
                "static void run_coll(Block& b,Thread** w,u32 m,u32 k){switch(k){%s}}"
                % "".join("case %d:coll_%d(b,w,m);break;" % (k, k) for k in range(len(self.colls))),
                '#include "%s/ptx_sched.h"' % HERE,
            ]
        )


# ---------------------------------------------------------------- compile and launch
_loaded = {}


class Kernel:
    """A translated kernel; call it as k(args, grid, block, smem)."""

    def __init__(self, ptx_text, kernel):
        g = Gen(ptx_text, kernel)
        src = g.generate()
        self.name, self.params, self.psize, self.warnings, self.source = kernel, g.param_layout, g.param_size, sorted(g.warn), src
        rt = "".join(open(os.path.join(HERE, f)).read() for f in ("ptx_rt.h", "ptx_sched.h"))
        key = hashlib.sha256((src + rt + " ".join(CXX)).encode()).hexdigest()[:24]
        so = os.path.join(CACHE, key + ".so")
        if not os.path.exists(so):
            os.makedirs(CACHE, exist_ok=True)
            cpp = os.path.join(CACHE, key + ".cpp")
            with open(cpp, "w") as f:
                f.write(src)
            tmp = "%s.%d" % (so, os.getpid())
            r = subprocess.run(CXX + [cpp, "-o", tmp], capture_output=True, text=True)
            if r.returncode:
                raise PtxError("g++ failed on %s:\n%s" % (cpp, r.stderr[:3000]))
            os.replace(tmp, so)
        self.lib = _loaded.setdefault(so, None) or ctypes.CDLL(so)
        _loaded[so] = self.lib
        self.instructions = 0

    def __call__(self, args, grid, block, smem=0, order=0, resident=1, timeout=600.0, inplace=False):
        if len(args) > len(self.params):
            raise PtxError("%s takes %d parameters, %d given" % (self.name, len(self.params), len(args)))
        pb = bytearray(max(self.psize, 8) + 8)
        bufs, ranges = [], []
        for a, (off, ty, size) in zip(args, self.params):
            if isinstance(a, np.ndarray):
                raw = np.full(a.nbytes + 512, 0xFF, np.uint8)
                s = -raw.ctypes.data % 256
                raw[s : s + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
                p = raw.ctypes.data + s
                bufs.append((a, raw, s))
                ranges += [p, p + a.nbytes]
                v = struct.pack("<Q", p)
            elif isinstance(a, (bytes, bytearray)):
                v = bytes(a)
            elif a is None:
                v = b"\0" * size
            elif isinstance(a, (float, np.floating)):
                v = struct.pack("<d" if size == 8 else "<f" if size == 4 else "<e", float(a))
            else:
                v = (
                    struct.pack("<f" if ty == "f32" else "<d", a)
                    if ty in ("f32", "f64")
                    else (int(a) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
                )
            if len(v) != size:
                raise PtxError("parameter at offset %d has %d bytes, argument has %d" % (off, size, len(v)))
            pb[off : off + size] = v
        pbuf = (ctypes.c_uint8 * (len(pb) + 64)).from_buffer_copy(bytes(pb) + b"\0" * 64)
        d3 = lambda v: (ctypes.c_uint32 * 3)(*((list(v) if hasattr(v, "__len__") else [v]) + [1, 1])[:3])
        cnt, err = ctypes.c_uint64(), ctypes.create_string_buffer(1024)
        rg = (ctypes.c_uint64 * max(len(ranges), 1))(*ranges)
        rc = self.lib.ptx_launch(
            pbuf,
            ctypes.c_uint64(self.psize),
            d3(grid),
            d3(block),
            ctypes.c_uint64(smem),
            rg,
            len(ranges) // 2,
            order,
            ctypes.c_uint32(resident),
            ctypes.c_double(timeout),
            ctypes.byref(cnt),
            err,
        )
        self.instructions = cnt.value
        if rc:
            raise PtxError("%s: %s" % (self.name, err.value.decode(errors="replace")))
        outs = []
        for a, raw, s in bufs:
            o = raw[s : s + a.nbytes].view(a.dtype).reshape(a.shape)
            if inplace:
                a[...] = o
            outs.append(o.copy())
        return outs


def run(ptx_text, kernel, args, grid, block, smem=0, **kw):
    """Execute `kernel` of the PTX text; returns the numpy array arguments as they are after the run."""
    return Kernel(ptx_text, kernel)(args, grid, block, smem, **kw)
