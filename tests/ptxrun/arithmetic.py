"""Instructions that compute: arithmetic, logic, comparison, conversion."""

# ruff: noqa: UP031 (the generated C++ is full of braces; the % operator leaves them alone)

from .tables import BITS, FLOATS, RND, WIDE, Unsupported, ct


class Arithmetic:
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
        return out + "".join(self.dst(x, "pred", v) for x, v in zip(d, vals, strict=False)) + "}"

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
