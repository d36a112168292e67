"""The same update in C, compiled on first use where there is a compiler."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from shardcore import UpdateFunction
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.optimizer import update_prototype

SOURCE = """
#include <stdint.h>

#define UPDATE(NAME, V)                                                                          \\
    void NAME(int64_t count, int64_t dim, V *const *rows, V *const *const *slots,                \\
              const V *gradients, const int64_t *row_ids, const double *hyper, int64_t step) {   \\
        V rate = (V)hyper[0], momentum = (V)hyper[1];                                            \\
        for (int64_t row = 0; row < count; row++) {                                              \\
            V *w = rows[row], *m = slots[0][row];                                                \\
            const V *g = gradients + row * dim;                                                  \\
            for (int64_t c = 0; c < dim; c++) {                                                  \\
                m[c] = momentum * m[c] + g[c];                                                   \\
                w[c] = w[c] - rate * (g[c] + momentum * m[c]);                                   \\
            }                                                                                    \\
        }                                                                                        \\
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
    folder = Path(tempfile.mkdtemp(prefix="acme_optimizer_"))
    try:
        (folder / "update.c").write_text(SOURCE)
        built = folder / "update.so"
        # Without contraction to fused multiply-add the numbers are NumPy's to the last bit.
        flags = ["-O3", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", built, folder / "update.c"], check=True)
        return ctypes.CDLL(str(built))
    finally:
        shutil.rmtree(folder)


@functools.cache
def update_function(dtype):
    """Return the compiled update for tables of `dtype`, or None."""
    found = library()
    if found is None:
        return None
    name = working_dtype(as_dtype(dtype)).name
    function = found[f"update_{name}"]
    prototype = update_prototype(name)
    function.argtypes, function.restype = prototype._argtypes_, None
    return UpdateFunction.from_ctypes(function)
