"""Builds ``carlg_kernels/_C.so`` on the LibTorch stable ABI; everything else is in pyproject.toml.

Environment:
  CK_CUDA=auto|0|1   CUDA kernels: when nvcc is found (default), never, or required (an error where impossible)
  CK_NVCC=PATH       the nvcc to call; otherwise the one on PATH or under CUDA_HOME
  CXX                the C++ compiler
  MAX_JOBS           parallel compilations

Every file in csrc/cpu is compiled once per instruction set, each time into a namespace of that name; the generic compilation also
registers the operators. Generic objects are linked first, so that code shared between them (std templates) is baseline code.
"""

import functools
import os
import pathlib
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

from setuptools import Command, Distribution, setup
from setuptools.command.build import build

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).parent.resolve()
TARGET = ROOT / "carlg_kernels" / "_C.so"
CXX_FLAGS = [
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
]
STABLE_ABI = ["-DTORCH_STABLE_ONLY", "-DTORCH_TARGET_VERSION=0x020d000000000000"]
INSTRUCTION_SETS = {
    "generic": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c", "-mtune=haswell"],
    "avx512": [
        *("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mfma", "-mf16c"),
        *("-mprefer-vector-width=512", "-mtune=skylake-avx512"),
    ],
}
CUDA_ARCHITECTURES = ("80", "90", "100")


def torch_paths() -> tuple[list[str], str]:
    """Include flags and library folder of the installed torch, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "carlg_kernels needs torch to build: pip install -c constraints.txt torch, then pip install --no-build-isolation ."
        )
    folder = pathlib.Path(spec.origin).parent
    include = folder / "include"
    return ["-isystem", str(include), f"-I{ROOT / 'csrc'}"], str(folder / "lib")


def find_nvcc() -> str | None:
    asked = os.environ.get("CK_NVCC")
    if asked and not shutil.which(asked):
        raise SystemExit(f"CK_NVCC={asked} cannot be executed")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [asked, shutil.which("nvcc"), home and f"{home}/bin/nvcc"]
    return next((c for c in candidates if c and shutil.which(c)), None)


@functools.cache
def wanted_nvcc() -> str | None:
    """The nvcc to use, None for a build without CUDA."""
    mode = os.environ.get("CK_CUDA", "auto")
    if mode not in ("auto", "0", "1"):
        raise SystemExit(f"CK_CUDA must be auto, 0 or 1, got {mode!r}")
    if mode == "0":
        return None
    nvcc = find_nvcc()
    if nvcc is None:
        reason = "no nvcc is on PATH, in CUDA_HOME or in CK_NVCC"
    else:
        known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True).stdout.split()
        missing = [a for a in CUDA_ARCHITECTURES if f"sm_{a}" not in known]
        if not missing:
            return nvcc
        reason = f"{nvcc} cannot compile for sm_{missing[0]}"
    if mode == "1":
        raise SystemExit(f"CK_CUDA=1 cannot be served: {reason}")
    print(f"no CUDA kernels: {reason}", flush=True)
    return None


def gencode() -> list[str]:
    flags = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in CUDA_ARCHITECTURES]
    newest = CUDA_ARCHITECTURES[-1]
    return [*flags, f"-gencode=arch=compute_{newest},code=compute_{newest}"]


def is_fresh(obj: pathlib.Path, depends: pathlib.Path) -> bool:
    """Whether an object is newer than every file that the compiler read for it."""
    if not (obj.exists() and depends.exists()):
        return False
    files = depends.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    built = obj.stat().st_mtime
    return all(os.path.exists(f) and os.path.getmtime(f) < built for f in files)


class BuildKernels(Command):
    """Compile csrc/ into carlg_kernels/_C.so, only what is older than its sources."""

    description = "build carlg_kernels/_C.so"
    user_options: list = [("inplace", "i", "ignored: the object is always built in place")]

    def initialize_options(self) -> None:
        self.inplace = True

    def finalize_options(self) -> None:
        pass

    def get_source_files(self) -> list[str]:
        return [str(p.relative_to(ROOT)) for p in sorted((ROOT / "csrc").rglob("*")) if p.is_file()]

    def get_outputs(self) -> list[str]:
        return [str(TARGET)]

    def jobs(self) -> list[tuple[pathlib.Path, pathlib.Path, list[str]]]:
        """(source, object, command) of every compilation, generic ones first."""
        include, _ = torch_paths()
        cxx = os.environ.get("CXX", "c++")
        base = [cxx, *CXX_FLAGS, *STABLE_ABI, *include, "-c"]
        folder = ROOT / "build" / "kernels"
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        sets = INSTRUCTION_SETS if x86 else {"generic": []}
        nvcc = wanted_nvcc()
        cuda_sources = sorted((ROOT / "csrc" / "cuda").glob("*.cu")) if nvcc else []
        jobs = []

        def add(source: pathlib.Path, name: str, command: list[str]) -> None:
            obj = folder / f"{source.stem}.{name}.o"
            jobs.append((source, obj, [*command, str(source), "-o", str(obj)]))

        built = ["-DCK_X86"] if x86 else []
        if cuda_sources:
            built.append("-DCK_CUDA")
        for name, flags in sets.items():
            for source in sorted((ROOT / "csrc" / "cpu").glob("*.cpp")):
                register = ["-DCK_REGISTER"] if name == "generic" else []
                add(source, name, [*base, *flags, f"-DCK_ISA={name}", *register, *built])
        add(ROOT / "csrc" / "library.cpp", "common", [*base, *built])
        for source in cuda_sources:
            command = [str(nvcc), "-std=c++20", "-O3", "-Xcompiler=-fPIC,-fvisibility=hidden"]
            command += ["--expt-relaxed-constexpr", *gencode(), *STABLE_ABI, "-DUSE_CUDA"]
            add(source, "cuda", [*command, *include, "-c"])
        return jobs

    def run(self) -> None:
        jobs = self.jobs()

        def compile_one(job: tuple[pathlib.Path, pathlib.Path, list[str]]) -> None:
            source, obj, command = job
            stamp, depends = obj.with_suffix(".command"), obj.with_suffix(".d")
            line = " ".join(command)
            if is_fresh(obj, depends) and stamp.exists() and stamp.read_text() == line:
                return
            obj.parent.mkdir(parents=True, exist_ok=True)
            print(f"compiling {source.relative_to(ROOT)} -> {obj.name}", flush=True)
            subprocess.run([*command, "-MMD", "-MF", str(depends)], check=True)
            stamp.write_text(line)

        workers = int(os.environ.get("MAX_JOBS", os.cpu_count() or 1))
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(compile_one, jobs))
        _, library_folder = torch_paths()
        objects = [str(obj) for _, obj, _ in jobs]
        link = [os.environ.get("CXX", "c++"), "-shared", *objects, f"-L{library_folder}"]
        link += ["-ltorch_cpu", "-Wl,--as-needed"]
        if any(obj.endswith(".cuda.o") for obj in objects):
            link += [*self.cuda_library(), "-lcudart_static", "-lpthread", "-ldl", "-lrt"]
        partial = TARGET.with_suffix(".so.partial")
        subprocess.run([*link, "-o", str(partial)], check=True)
        partial.replace(TARGET)

    def cuda_library(self) -> list[str]:
        """Where libcudart_static lies, asked of nvcc itself."""
        dry = subprocess.run([str(wanted_nvcc()), "--dryrun", "-o", "x", "x.o"], capture_output=True, text=True).stderr
        folders = [word.strip('"') for word in dry.split() if word.strip('"').startswith("-L")]
        return folders


class Build(build):
    sub_commands = [("build_ext", None), *build.sub_commands]


class PlatformWheel(bdist_wheel):
    """The object has no Python C-API in it: one wheel per platform serves every Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=BinaryDistribution,
    cmdclass={"build_ext": BuildKernels, "build": Build, "bdist_wheel": PlatformWheel},
)
