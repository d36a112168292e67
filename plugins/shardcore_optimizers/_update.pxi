# The updates of all first-party optimizers, written once for both working types and compiled once
# per instruction set (_update_baseline, _update_v3, _update_v4).
#
# Signature and duties: shardcore/optimizer.py. The order of operations is that of the pure NumPy
# form of each optimizer, without contraction to fused multiply-add, so that results agree to the
# last bit. `value` is the working type; hyper-parameters are rounded to it first, as NumPy does.

from cpython.pycapsule cimport PyCapsule_New
from libc.math cimport sqrt, sqrtf
from libc.stdint cimport int64_t

ctypedef fused value:
    float
    double


cdef inline value _square_root(value x) noexcept nogil:
    if value is float:
        return sqrtf(x)
    else:
        return sqrt(x)


cdef void _sgd(
    int64_t count, int64_t dim, value **rows, value ***slots, const value *gradients,
    const int64_t *row_ids, const double *hyper, int64_t step,
) noexcept nogil:
    """w = w - rate * g."""
    cdef value rate = <value> hyper[0]
    cdef int64_t row, column
    cdef const value *g
    cdef value *w
    for row in range(count):
        w = rows[row]
        g = gradients + row * dim
        for column in range(dim):
            w[column] = w[column] - rate * g[column]


cdef void _adagrad(
    int64_t count, int64_t dim, value **rows, value ***slots, const value *gradients,
    const int64_t *row_ids, const double *hyper, int64_t step,
) noexcept nogil:
    """a = a + g * g; w = w - (rate * g) / sqrt(a), and w stays where a is 0."""
    cdef value rate = <value> hyper[0]
    cdef int64_t row, column
    cdef const value *g
    cdef value *w
    cdef value *a
    cdef value squares, moved
    for row in range(count):
        w = rows[row]
        a = slots[0][row]
        g = gradients + row * dim
        for column in range(dim):
            squares = a[column] + g[column] * g[column]
            moved = (rate * g[column]) / _square_root(squares)
            a[column] = squares
            w[column] = w[column] - (moved if squares != 0 else 0)


cdef dict _capsules(void *of_float32, void *of_float64):
    """Return the capsules of one formula by the name of the working dtype."""
    return {
        "float32": PyCapsule_New(of_float32, "shardcore.update_rows.float32", NULL),
        "float64": PyCapsule_New(of_float64, "shardcore.update_rows.float64", NULL),
    }


sgd = _capsules(<void *> _sgd[float], <void *> _sgd[double])
adagrad = _capsules(<void *> _adagrad[float], <void *> _adagrad[double])
