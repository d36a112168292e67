"""The C boundary: what is compiled against shardcore_update.h and .pxd runs, with its context."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer import Optimizer, UpdateFunction, get_include, update_prototype
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.update import update_rows

# The assignments are what the compiler checks: a macro, a type and a declaration that agree.
SOURCE = """
#include "shardcore_update.h"

#define SUBTRACT(NAME, V)                                              \\
    void NAME(SHARDCORE_UPDATE_PARAMETERS(V)) {                        \\
        const double *scale = (const double *)context;                 \\
        (void)slots; (void)row_ids; (void)step;                        \\
        for (int64_t row = 0; row < count; row++)                      \\
            for (int64_t c = 0; c < dim; c++)                          \\
                rows[row][c] -= (V)(hyper[0] * (scale ? *scale : 1))   \\
                                * gradients[row * dim + c];            \\
    }

#ifdef __cplusplus
extern "C" {
#endif
SUBTRACT(update_float32, float)
SUBTRACT(update_float64, double)
shardcore_update_float32 first = update_float32;
shardcore_update_float64 second = update_float64;
const char *names[] = {SHARDCORE_UPDATE_FLOAT32, SHARDCORE_UPDATE_FLOAT64};
int version = SHARDCORE_UPDATE_VERSION;
#ifdef __cplusplus
}
#endif
"""
LANGUAGES = {"c": ("cc", "-std=c99"), "cpp": ("c++", "-std=c++11")}


def needs(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        pytest.skip(f"needs a compiler called {command}")
    return found


@pytest.fixture(scope="module", params=LANGUAGES)
def library(request, tmp_path_factory) -> ctypes.CDLL:
    """Return SOURCE as a library, compiled as each language without a warning."""
    command, standard = LANGUAGES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    source, built = folder / f"update.{request.param}", folder / "update.so"
    source.write_text(SOURCE)
    flags = [standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    compiler = [needs(command), *flags, "-I", get_include()]
    subprocess.run([*compiler, "-o", str(built), str(source)], check=True)
    return ctypes.CDLL(str(built))


class Subtract(Optimizer):
    function: Any
    learning_rate: float = 0.5

    def update(self, grad, rows, slots, hyper, step, row_ids):
        raise AssertionError("the compiled form runs")

    def compiled(self, dtype):
        return self.function


def applied(function: UpdateFunction, dtype: str) -> list[float]:
    """Return two rows of ones after an update by ones, in blocks of a table and alone."""
    rows = np.ones((4, 1), dtype)
    batch = sort_occurrences(np.array([1, 3]), np.zeros(2, np.int32), None, 4)
    optimizer = Subtract(function)
    gradients = np.ones((1, 1), dtype)
    update = RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1)
    update_rows(rows, {}, update)
    alone = np.ones((2, 1), dtype)
    function.run(np.ones((2, 1), dtype), alone, [], optimizer.hyper(), 1, batch.rows)
    assert alone.tobytes() == rows[[1, 3]].tobytes()
    assert (rows[[0, 2]] == 1).all()
    return rows[:, 0].tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_library_compiled_against_the_header_runs(library, dtype):
    function = UpdateFunction.from_ctypes(library[f"update_{dtype}"], dtype=dtype)
    assert (function.dtype, function.context) == (np.dtype(dtype), 0)
    assert applied(function, dtype) == [1.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_context_is_handed_to_every_call(library, dtype):
    scale = ctypes.c_double(0.5)
    library.scale = scale  # what keeps the context alive is the owner's business
    where = ctypes.addressof(scale)
    raw = library[f"update_{dtype}"]
    function = UpdateFunction.from_ctypes(raw, dtype, context=where)
    assert applied(function, dtype) == [1.0, 0.75, 1.0, 0.75]
    bare = UpdateFunction.from_address(function.address, raw, context=where)
    assert applied(bare, dtype) == [1.0, 0.75, 1.0, 0.75]
    assert bare == function != UpdateFunction.from_ctypes(raw, dtype)


def made_capsule(name: bytes, address: int, context: int | None) -> Any:
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )
    put = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
        ("PyCapsule_SetContext", ctypes.pythonapi)
    )
    capsule = make(address, name, None)
    if context is not None:
        put(capsule, context)
    return capsule


def test_a_capsule_has_the_names_of_the_header_and_its_context(library):
    assert ctypes.c_int.in_dll(library, "version").value == 1
    names = (ctypes.c_char_p * 2).in_dll(library, "names")
    scale = ctypes.c_double(0.5)
    for dtype, name in zip(("float32", "float64"), names, strict=True):
        assert name == f"shardcore.update_rows.v1.{dtype}".encode()
        address = UpdateFunction.from_ctypes(library[f"update_{dtype}"]).address
        with_context = made_capsule(name, address, ctypes.addressof(scale))
        function = UpdateFunction.from_capsule(with_context)
        assert (function.owner, function.dtype) == (with_context, np.dtype(dtype))
        assert applied(function, dtype) == [1.0, 0.75, 1.0, 0.75]
        without = UpdateFunction.from_capsule(made_capsule(name, address, None))
        assert without.context == 0
        assert applied(without, dtype) == [1.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize(
    "name", ["shardcore.update_rows.float32", "shardcore.update_rows.v2.float64"]
)
def test_a_capsule_of_another_version_is_refused_with_what_to_do(name):
    text = (
        "capsule must be named 'shardcore.update_rows.v1.float32' or "
        f"'shardcore.update_rows.v1.float64', got {name!r}, a function for another version of "
        "shardcore_update.h than 1: compile it against the one in shardcore.optimizer.get_include()"
    )
    kept = name.encode()
    with pytest.raises(ShardcoreValueError, match="^" + re.escape(text) + "$"):
        UpdateFunction.from_capsule(made_capsule(kept, 64, None))


def test_the_wheel_and_the_sdist_carry_all_that_is_included():
    root = Path(get_include()).parents[2]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("shardcore is installed, not a clone")
    files = {path.name for path in Path(get_include()).iterdir() if path.is_file()}
    assert files == {"shardcore_update.h", "shardcore_update.pxd"}
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"]["shardcore"]
    manifest = (root / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    (of_shardcore,) = [line.split()[2:] for line in manifest if "-include shardcore " in line]
    for name in files:
        assert any(fnmatch(f"optimizer/include/{name}", pattern) for pattern in patterns)
        assert any(fnmatch(name, pattern) for pattern in of_shardcore)


@pytest.mark.parametrize("context", [-1, True, 1.0, None])
def test_context_messages(context):
    text = f"context of a compiled update must be an integer >= 0, got {context!r}"
    with pytest.raises(ShardcoreValueError, match="^" + re.escape(text) + "$"):
        UpdateFunction.from_address(64, None, context=context)


def test_dtype_of_a_ctypes_function_is_that_of_its_prototype():
    callback = update_prototype("float32")(lambda *arguments: None)
    assert UpdateFunction.from_ctypes(callback, dtype="float32").dtype == np.float32
    text = "dtype must be float32, for which the function is declared, got float64"
    with pytest.raises(ShardcoreTypeError, match="^" + re.escape(text) + "$"):
        UpdateFunction.from_ctypes(callback, dtype="float64")
    text = "dtype of a compiled update must be float32 or float64, got 'float16'"
    with pytest.raises(ShardcoreTypeError, match="^" + re.escape(text) + "$"):
        UpdateFunction.from_ctypes(ctypes.pythonapi.PyCapsule_New, dtype="float16")


CYTHON = """
from cpython.pycapsule cimport PyCapsule_New, PyCapsule_SetContext
from libc.stdint cimport int64_t
from shardcore_update cimport SHARDCORE_UPDATE_FLOAT32, shardcore_update_float32

cdef double scale = 0.5

cdef void update(
    int64_t count, int64_t dim, float *const *rows, float *const *const *slots,
    const float *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
    void *context,
) noexcept nogil:
    cdef int64_t row, c
    for row in range(count):
        for c in range(dim):
            rows[row][c] -= <float>(hyper[0] * (<double*>context)[0]) * gradients[row * dim + c]

cdef shardcore_update_float32 checked = update
capsule = PyCapsule_New(<void*>checked, SHARDCORE_UPDATE_FLOAT32, NULL)
PyCapsule_SetContext(capsule, &scale)
"""


@pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="needs Cython")
def test_a_cython_module_compiled_against_the_pxd_runs(tmp_path):
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        pytest.skip("needs the headers of Python")
    source = tmp_path / "update_for_test.pyx"
    source.write_text(CYTHON)
    cython = [sys.executable, "-m", "cython", "-3", "-I", get_include(), str(source)]
    subprocess.run(cython, check=True)
    built = tmp_path / f"update_for_test{sysconfig.get_config_var('EXT_SUFFIX')}"
    folders = [f"-I{folder}" for folder in (get_include(), header.parent)]
    command = [needs("cc"), "-shared", "-fPIC", "-Werror=incompatible-pointer-types", *folders]
    subprocess.run([*command, "-o", str(built), str(source.with_suffix(".c"))], check=True)
    spec = importlib.util.spec_from_file_location("update_for_test", built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = UpdateFunction.from_capsule(module.capsule)
    assert applied(function, "float32") == [1.0, 0.75, 1.0, 0.75]
