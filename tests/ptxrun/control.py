"""Instructions that touch memory, jump, or wait for other threads: loads, stores, atomics, barriers, warp collectives, matrix products."""

# ruff: noqa: UP031 (the generated C++ is full of braces; the % operator leaves them alone)

import re

from .tables import BITS, FLOATS, Unsupported, ct


class Control:
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
            'fail("trap (or a failed device assert) in thread %%u of block %%u,%%u,%%u, PTX line %d",'
            "t->id,b.ctaid[0],b.ctaid[1],b.ctaid[2]);" % i.line
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
            "".join("case %d:%s" % (k, self.jump(label, i)) for k, label in enumerate(tab)),
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

        def half(r, k):
            return "(double)(float)as<f16>((u16)(%s>>%d))" % (self.src(r, "u32"), 16 * k)

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
        flush = (
            "{auto&q=b.cp[t->id];size_t k=0;for(auto&c:q){if(%s){"
            "memcpy(shp(b,c.dst,c.n,%d),c.sn?gp(b,t,c.src,c.sn,%d):b.sh,c.sn);memset(b.sh+c.dst+c.sn,0,c.n-c.sn);"
            "}else q[k++]=c;}q.resize(k);}"
        )
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
