"""One PTX kernel to one C++ state machine: scopes, operands, and the whole; the instructions are in arithmetic.py and control.py."""

# ruff: noqa: UP031 (the generated C++ is full of braces; the % operator leaves them alone)

import re
import struct

from .arithmetic import Arithmetic
from .control import Control
from .parser import parse_module, parse_var, statements
from .tables import BITS, FLOATS, RND, SREG, STATE, PtxError, Unsupported, ct, split_top


class Inst:
    def __init__(self, guard, op, args, line, env):
        self.guard, self.op, self.args, self.line, self.env = guard, op, args, line, env
        self.root, self.mods = op.split(".")[0], op.split(".")[1:]


class Translator(Arithmetic, Control):
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
        except ValueError as error:
            raise Unsupported("symbol in an initialiser: " + x) from error

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
        for formal, actual in list(zip(g.rets, rets, strict=False)) + list(zip(g.params, args, strict=False)):
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
                '#include "ptx_rt.h"',
                "static const u64 STATIC_SHARED=%d;" % self.static,
                g,
                "static void init_globals(){%s}" % gi,
                "struct Thread{u32 id,tid[3],pc,st,cmask,coll,line,barid,barn,barp,barcnt,cpgrp,cc;bool barall;%s%s};"
                % (regs, "".join(self.fields)),
                "static int run_thread(Block& b,Thread* __restrict t){int fuel=100000;"
                'switch(t->pc){case 0:break;%s default:fail("bad pc");}' % "".join("case %d:goto L%d;" % (p, p) for p in pcs),
                "\n".join(out),
                "return EXIT;}",
                colls,
                "static void run_coll(Block& b,Thread** w,u32 m,u32 k){switch(k){%s}}"
                % "".join("case %d:coll_%d(b,w,m);break;" % (k, k) for k in range(len(self.colls))),
                '#include "ptx_sched.h"',
            ]
        )
