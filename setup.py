"""The extension modules and how they are compiled; everything declarative is in pyproject.toml.

SHARDCORE_DEBUG=1 compiles the same kernels with bounds checks on every view. SHARDCORE_SANITIZE=1
adds the address and undefined-behaviour sanitizers, which also watch what the kernels do through
pointers; such a build runs with the compiler's libasan preloaded (see .ci/run).
SHARDCORE_QUICK=1 compiles them for the baseline only and optimises nothing: slow kernels, soon
built, of the same bits.

Every ordinary build leaves the tree that it was made from importable, for in a clone Python finds
the clone's own modules first, whatever is installed: see `shardcore/_core/source_tree.py`.
"""

import os
import platform
import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

DEBUG = os.environ.get("SHARDCORE_DEBUG", "0") != "0"
SANITIZE = os.environ.get("SHARDCORE_SANITIZE", "0") != "0"
QUICK = os.environ.get("SHARDCORE_QUICK", "0") != "0"
BUILD = "build/watched" if DEBUG or SANITIZE else "build"

ROOT = Path(__file__).resolve().parent
TREE = runpy.run_path(str(ROOT / "shardcore" / "_core" / "source_tree.py"))
SOURCES = TREE["checksum"](ROOT)

CORE = "shardcore._core"
UPDATE = (
    "shardcore/optimizer/include"  # the C boundary of optimizers, for others to compile against
)
UTILITY = f"{CORE}._cyutility"  # memoryview support code, compiled once for all kernels
KERNELS = ["constants", "cpu", "offsets", "slices", "partition", "occurrences", "random"]
STORE = ["lock", "work"]  # what no interrupt may split

# One body (a .pxi) compiled for several instruction sets; the best that runs here is picked when
# the store is imported. Floating contraction is off in all of them, so they agree bit for bit.
BODIES = {
    f"{CORE}.rows": "shardcore/_core/rows",
    "shardcore_optimizers._update": "plugins/shardcore_optimizers/_update",
}
HYPER = ["plugins/shardcore_optimizers/_hyper.pxd"]  # what compiled and pure forms agree on
INSTRUCTION_SETS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64") and not QUICK:
    INSTRUCTION_SETS["v3"] = ["-march=x86-64-v3"]
    INSTRUCTION_SETS["v4"] = ["-march=x86-64-v4", "-mprefer-vector-width=512"]

UNIX_FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g1",
    "-O1",  # the last -O counts; watched code compiles slowly at -O3 and runs no truer
]


class BuildPy(build_py):
    """Copy the Python sources, and nothing that an earlier build copied."""

    def run(self) -> None:
        """Empty the folder of what is not compiled: a module that has moved would be installed."""
        folder = Path(self.build_lib)
        if folder.parts[0] == "build":  # ours, and not one that was asked for
            for path in folder.rglob("*"):
                if path.is_file() and path.relative_to(folder).as_posix() not in COMPILED:
                    path.unlink()
        super().run()


class BuildExt(build_ext):
    """Compile on all cores, with flags added once the compiler is known."""

    def finalize_options(self) -> None:
        """Use all the cores unless a number was asked for, and what is compiled already."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()
        if self.editable_mode and self.get_finalized_command("editable_wheel").mode != "strict":
            tag = f"{self.plat_name}-{sys.implementation.cache_tag}"  # else a folder for once
            self.build_lib, self.build_temp = f"{BUILD}/lib.{tag}", f"{BUILD}/temp.{tag}"

    def run(self) -> None:
        """Leave the compiled modules in the source tree too, with a record of their sources."""
        super().run()  # which does, when asked to build in place
        if not self.inplace:
            if DEBUG or SANITIZE:
                return  # such a build is for where it is installed
            self.copy_extensions_to_source()
        TREE["record"](ROOT).write_text(SOURCES, encoding="ascii")

    def copy_extensions_to_source(self) -> None:
        """Copy them also over newer ones, which may be those of another kind of build."""
        force, self.force = self.force, True
        super().copy_extensions_to_source()
        self.force = force

    def build_extensions(self) -> None:
        """Give every extension the flags of its instruction set, where the compiler takes them."""
        if self.compiler.compiler_type == "unix":
            for extension in self.extensions:
                name = extension.name.rsplit("_", 1)[-1]
                extension.extra_compile_args = UNIX_FLAGS + INSTRUCTION_SETS.get(name, [])
                if QUICK:
                    extension.extra_compile_args += ["-O0"]  # the last -O counts
                if SANITIZE:
                    extension.extra_compile_args += SANITIZERS
                    extension.extra_link_args += SANITIZERS[:1]
        super().build_extensions()


def kernel(name: str, source: str, *pxi: str) -> Extension:
    """Return one extension module of the distribution."""
    headers = ["shardcore/_core/scalars.h", f"{UPDATE}/shardcore_update.h"]
    depends = ["setup.py", *headers, *pxi]
    return Extension(name, [source], include_dirs=["shardcore/_core", UPDATE], depends=depends)


def source_in_c(extension: Extension) -> Extension:
    """Return an extension whose C source is made already."""
    (source,) = extension.sources
    return kernel(extension.name, str(Path(source).with_suffix(".c")), *extension.depends)


extensions = [kernel(UTILITY, "shardcore/_core/_cyutility.c")]
extensions += [kernel(f"{CORE}.{name}", f"shardcore/_core/{name}.pyx") for name in KERNELS]
extensions += [kernel(f"shardcore.store.{name}", f"shardcore/store/{name}.pyx") for name in STORE]
extensions += [
    kernel("shardcore_optimizers._hyper", "plugins/shardcore_optimizers/_hyper.pyx", *HYPER)
]
extensions += [
    kernel(f"{module}_{name}", f"{path}_{name}.pyx", f"{path}.pxi", *HYPER)
    for module, path in BODIES.items()
    for name in INSTRUCTION_SETS
]

COMPILED = {one.name.replace(".", "/") + EXTENSION_SUFFIXES[0] for one in extensions}

# What Cython makes is kept with a record of what it was made from, and by which. Dates will not do:
# Cython's own files count as sources, and are always new where pip builds in isolation.
MADE = ROOT / "shardcore" / "_core" / "cython.built"
BY = f"Cython {Cython.__version__}, {'checked' if DEBUG else 'unchecked'}"
made = MADE.read_text(encoding="ascii").splitlines() if MADE.exists() else []
in_c = [source_in_c(one) for one in extensions]
if made == [SOURCES, BY] and all(Path(one.sources[0]).exists() for one in in_c):
    modules = in_c
else:
    by_another = made[1:] != [BY]
    MADE.write_text("by several\n" if by_another else f"unfinished\n{BY}\n", encoding="ascii")
    modules = cythonize(
        extensions,
        force=by_another,
        shared_utility_qualified_name=UTILITY,
        include_path=[".", "shardcore/_core", UPDATE, "plugins/shardcore_optimizers"],
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "initializedcheck": DEBUG,
            "wraparound": False,
            "cdivision": True,  # C division: the faces refuse zero divisors
            "embedsignature": True,
            "freethreading_compatible": True,
        },
    )
    MADE.write_text(f"{SOURCES}\n{BY}\n", encoding="ascii")

setup(
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
    options={"build": {"build_base": BUILD}},
    ext_modules=modules,
)
