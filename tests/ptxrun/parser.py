"""PTX text to functions, variables and statements."""

import re

from .tables import BITS, PtxError, split_top


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


def parse_list(text):
    return [parse_var(p) for p in split_top((text or "").replace(".param", " "))]


def parse_module(text):
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group(0))

    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"(?m)^\s*\.(loc|file)\b[^\n]*$", "", text)
    text = re.sub(r"\.section\s+\S+\s*\{.*?\}", blank, text, flags=re.S)
    funcs, gvars, pos = {}, [], 0
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
            funcs[m.group(4)] = Func(
                m.group(4),
                m.group(1) == "entry",
                parse_list(m.group(3)),
                parse_list(m.group(6)),
                text[brace + 1 : e - 1],
                text.count("\n", 0, brace) + 1,
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
