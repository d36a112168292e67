"""The same update in C, compiled on first use where there is a compiler."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import UpdateFunction, get_include

SOURCE = """
#include "shardcore_update.h"

#define UPDATE(NAME, V)                                       \\
    void NAME(SHARDCORE_UPDATE_PARAMETERS(V)) {               \\
        V rate = (V)hyper[0], momentum = (V)hyper[1];         \\
        for (int64_t row = 0; row < count; row++) {           \\
            V *w = rows[row], *m = slots[0][row];             \\
            const V *g = gradients + row * dim;               \\
            for (int64_t c = 0; c < dim; c++) {               \\
                m[c] = momentum * m[c] + g[c];                \\
                w[c] = w[c] - rate * (g[c] + momentum * m[c]); \\
            }                                                 \\
        }                                                     \\
    }

UPDATE(update_float32, float)
UPDATE(update_float64, double)
"""


@functools.cache
def library():
    """Return the compiled library, or None where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="acme_optimizer_") as folder:
        source, built = Path(folder, "update.c"), Path(folder, "update.so")
        source.write_text(SOURCE)
        # Without contraction to fused multiply-add the numbers are NumPy's to the last bit.
        flags = ["-O3", "-ffp-contract=off", "-shared", "-fPIC", "-I", get_include()]
        subprocess.run([compiler, *flags, "-o", built, source], check=True)
        return ctypes.CDLL(str(built))


@functools.cache
def update_function(dtype):
    """Return the compiled update for tables of `dtype`, or None."""
    found, name = library(), working_dtype(as_dtype(dtype)).name
    return found and UpdateFunction.from_ctypes(found[f"update_{name}"], dtype=name)
