"""The extension modules and how they are compiled; everything declarative is in pyproject.toml.

SHARDCORE_DEBUG=1 compiles the same kernels with bounds checks on every view. SHARDCORE_SANITIZE=1
adds the address and undefined-behaviour sanitizers, which also watch what the kernels do through
pointers; such a build runs with the compiler's libasan preloaded (see .ci/run).
SHARDCORE_QUICK=1 compiles them for the baseline only and optimises nothing: slow kernels, soon
built, of the same bits. Of sums of rows the baseline of x86-64 has few bodies, and all with the
sanitizers: see SC_BODIES_FOR_WAYS in columns.h.

Every ordinary build leaves the tree that it was made from importable, for in a clone Python finds
the clone's own modules first, whatever is installed: see `shardcore/_core/source_tree.py`.
"""

import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import Cython
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import PlatformError

# From where setuptools keeps them, and so after it.
from distutils.ccompiler import new_compiler  # isort: skip
from distutils.sysconfig import customize_compiler, get_python_inc  # isort: skip

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
KERNELS = ["bag_max", "constants", "cpu", "hashing", "occurrences", "offsets", "partition"]
KERNELS += ["random", "routing", "slices", "taken_bags", "triples"]
STORE = ["steps"]  # of few bags in many tables
THREADS = ["companion", "lock", "tally", "work"]  # what no interrupt may split
ENGINE = ["given_lookups", "given_steps", "life"]  # what every call of an engine comes through

THREADING = [f"shardcore/threads/{name}.h" for name in ("companion", "cores")]

# One body (a .pxi) compiled for several instruction sets; the best that runs here is picked when
# the store is imported. Floating contraction is off in all of them, so they agree bit for bit.
BODIES = {
    f"{CORE}.rows": "shardcore/_core/rows",
    "shardcore_optimizers._update": "plugins/shardcore_optimizers/_update",
}
FOLDERS = (".", "plugins")  # of packages with compiled modules
HYPER = ["plugins/shardcore_optimizers/_hyper.pxd"]  # what compiled and pure forms agree on
SHARED = ["shardcore/_core/partition.pxd"] + [
    f"shardcore/_core/{name}.pxi"
    for name in (
        *("counter", "divided", "divisor", "given_bags", "finite", "lookups", "plain_arrays"),
        *("row_sums", "shares", "sharing", "stored_rows", "updates"),
    )
]
SHARED += HYPER
INSTRUCTION_SETS = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64") and not QUICK:
    INSTRUCTION_SETS["v3"] = ["-march=x86-64-v3"]
    INSTRUCTION_SETS["v4"] = ["-march=x86-64-v4", "-mprefer-vector-width=512"]

# Lines are named in profiles, no more: whole debugging information takes a fifth of the time.
UNIX_FLAGS = ["-O3", "-g1", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
# Sums of the shortest rows take up to a third longer where their loop goes on in another line of
# instructions, and without alignment whatever is compiled before it decides whether it does.
ALIGNED = ["-falign-functions=64", "-falign-loops=64", "-falign-jumps=64"]
SANITIZERS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-DSC_EVERY_BODY",  # those too that the baseline leaves out
    "-O1",  # the last -O counts; watched code compiles slowly at -O3 and runs no truer
]


# What a compiler is tried on: the second with its assembler too, which may be older than it is.
ANYTHING = "#include <Python.h>\n"
VECTORS = "void probe(float *x) { for (int i = 0; i < 512; i++) x[i] = x[i] * 2 + 1; }\n"


def refusal(compiler: list[str], code: str, flags: list[str]) -> str | None:
    """Return what a compiler says of a C program that it does not compile, None where it does."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(code, encoding="ascii")
        command = [*compiler, *flags, "-c", str(source), "-o", str(source.with_suffix(".o"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
    told = [line for line in done.stderr.splitlines() if "error" in line] or ["it does not say why"]
    return told[0] if done.returncode else None


def require_compiler() -> None:
    """Raise in one sentence what would else be found after pages of output, and told in more.

    Raises
    ------
    PlatformError
        If there is no compiler, or none that finds the headers of this Python.
    """
    found = new_compiler()
    customize_compiler(found)
    if found.compiler_type != "unix":
        return
    program = found.compiler_so[0]
    if shutil.which(program) is None:
        raise PlatformError(
            f"shardcore is compiled where it is installed, and there is no C compiler: {program} "
            "was not found; install gcc or clang, or name yours in CC"
        )
    include = {f"-I{get_python_inc(plat_specific=specific)}" for specific in (False, True)}
    reason = refusal(found.compiler_so, ANYTHING, [*sorted(include), *UNIX_FLAGS])
    if reason is not None:
        version = platform.python_version()
        raise PlatformError(
            f"shardcore is compiled where it is installed, and {program} cannot compile for Python "
            f"{version}, whose headers it needs (python3-dev or python3-devel): {reason}"
        )


class Build(build):
    """Build, if there is a compiler."""

    def run(self) -> None:
        """Ask first for the compiler: it is needed last."""
        require_compiler()
        super().run()


class EditableWheel(editable_wheel):
    """Install editable, if there is a compiler."""

    def run(self) -> None:
        """Ask first for the compiler: what fails in here is told with a traceback."""
        require_compiler()
        super().run()


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
        require_compiler()
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
            self.leave_out_what_the_compiler_does_not_know()
            for extension in self.extensions:
                name = extension.name.rsplit("_", 1)[-1]
                extension.extra_compile_args = UNIX_FLAGS + INSTRUCTION_SETS.get(name, [])
                if extension.name.startswith(f"{CORE}.rows_"):
                    extension.extra_compile_args += ALIGNED
                if QUICK:
                    extension.extra_compile_args += ["-O0"]  # the last -O counts
                if SANITIZE:
                    extension.extra_compile_args += SANITIZERS
                    extension.extra_link_args += SANITIZERS[:1]
        super().build_extensions()

    def leave_out_what_the_compiler_does_not_know(self) -> None:
        """Compile for the instruction sets that the compiler takes, the baseline among them."""
        for name, flags in INSTRUCTION_SETS.items():
            reason = refusal(self.compiler.compiler_so, VECTORS, UNIX_FLAGS + flags)
            if reason is None:
                continue
            print(f"not compiled for {name}, which the compiler does not take: {reason}")
            for left_out in [one for one in self.extensions if one.name.endswith(f"_{name}")]:
                self.extensions.remove(left_out)
                # Another compiler may have left one, of other sources.
                path = self.get_ext_filename(left_out.name)
                for folder in (self.build_lib, *FOLDERS):
                    Path(folder, path).unlink(missing_ok=True)


def kernel(name: str, source: str, *pxi: str) -> Extension:
    """Return one extension module of the distribution."""
    headers = [f"shardcore/_core/{name}.h" for name in ("columns", "scalars", "share", "sum_rows")]
    headers.append(f"{UPDATE}/shardcore_update.h")
    depends = ["setup.py", *headers, *pxi]
    include = ["shardcore/_core", UPDATE, numpy.get_include()]
    return Extension(name, [source], include_dirs=include, depends=depends)


def source_in_c(extension: Extension) -> Extension:
    """Return an extension whose C source is made already."""
    (source,) = extension.sources
    return kernel(extension.name, str(Path(source).with_suffix(".c")), *extension.depends)


extensions = [kernel(UTILITY, "shardcore/_core/_cyutility.c")]
extensions += [kernel(f"{CORE}.{name}", f"shardcore/_core/{name}.pyx") for name in KERNELS]
extensions += [
    kernel(f"shardcore.threads.{name}", f"shardcore/threads/{name}.pyx", *THREADING)
    for name in THREADS
]
extensions += [kernel(f"shardcore.store.{name}", f"shardcore/store/{name}.pyx") for name in STORE]
extensions += [
    kernel(f"shardcore.engine.{name}", f"shardcore/engine/{name}.pyx") for name in ENGINE
]
extensions += [  # what TensorFlow calls
    kernel("shardcore.tf.operation", "shardcore/tf/operation.pyx", "shardcore/tf/operation.h")
]
extensions += [
    kernel("shardcore_optimizers._hyper", "plugins/shardcore_optimizers/_hyper.pyx", *HYPER)
]
extensions += [
    kernel(f"{module}_{name}", f"{path}_{name}.pyx", f"{path}.pxi", *SHARED)
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
    cmdclass={
        "build": Build,
        "build_ext": BuildExt,
        "build_py": BuildPy,
        "editable_wheel": EditableWheel,
    },
    options={"build": {"build_base": BUILD}},
    ext_modules=modules,
)
