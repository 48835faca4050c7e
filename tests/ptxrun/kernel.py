"""Compile a translated kernel with g++ and launch it on numpy arrays."""

# ruff: noqa: UP031 (the generated C++ is full of braces; the % operator leaves them alone)

import ctypes
import hashlib
import os
import pathlib
import struct
import subprocess
import tempfile

import numpy as np

from .tables import HERE, PtxError
from .translator import Translator

CACHE = os.environ.get("PTX_INTERP_CACHE", os.path.join(tempfile.gettempdir(), "ptx_interp_cache"))
CXX = ["g++", "-std=c++17", "-Og", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
_loaded = {}


class Kernel:
    """A translated kernel; call it as k(args, grid, block, smem)."""

    def __init__(self, ptx_text, kernel):
        g = Translator(ptx_text, kernel)
        src = g.generate()
        self.name, self.params, self.psize, self.warnings, self.source = kernel, g.param_layout, g.param_size, sorted(g.warn), src
        rt = "".join(pathlib.Path(HERE, f).read_text() for f in ("ptx_rt.h", "ptx_sched.h"))
        key = hashlib.sha256((src + rt + " ".join(CXX)).encode()).hexdigest()[:24]
        so = os.path.join(CACHE, key + ".so")
        if not os.path.exists(so):
            os.makedirs(CACHE, exist_ok=True)
            cpp = os.path.join(CACHE, key + ".cpp")
            with open(cpp, "w") as f:
                f.write(src)
            tmp = "%s.%d" % (so, os.getpid())
            r = subprocess.run([*CXX, f"-I{HERE}", cpp, "-o", tmp], capture_output=True, text=True)
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
        for a, (off, ty, size) in zip(args, self.params, strict=False):
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

        def d3(v):
            return (ctypes.c_uint32 * 3)(*((list(v) if hasattr(v, "__len__") else [v]) + [1, 1])[:3])

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
