"""Ids in bags, taken: copied and checked by one call. See `take` in ``partition.pyx``.

Another thread may write into memory that is the caller's, between a check and its use. So nothing
looks at it twice: it is copied first, and only the copy is checked and used.
"""

from libc.stdint cimport uint64_t

include "plain_arrays.pxi"


def take_bags(values, row_splits, int64_t rows, own__n, own_splits):
    """Copy ids to `own__n` and their row splits to `own_splits`; return whether they are right.

    `values` (n,) are of int32 or int64, and so is `own__n`; `row_splits` (b + 1,) and `own_splits`
    of int64. False: they are anything else, an id is outside [0, rows), or the row splits do not go
    from 0 to n without a step down; the copies then hold nothing of use. O(n + b).
    """
    cdef Py_buffer given[2]
    cdef Py_buffer own[2]
    cdef bint right = False
    if not exported(values, False, &given[0]):
        return False
    if exported(row_splits, False, &given[1]):
        if exported(own__n, True, &own[0]):
            if exported(own_splits, True, &own[1]):
                right = taken(given, rows, own)
                PyBuffer_Release(&own[1])
            PyBuffer_Release(&own[0])
        PyBuffer_Release(&given[1])
    PyBuffer_Release(&given[0])
    return right


cdef bint taken(const Py_buffer* given, int64_t rows, const Py_buffer* own) noexcept:
    cdef Py_ssize_t n, splits, array
    for array in range(2):
        if given[array].ndim != 1 or own[array].ndim != 1:
            return False
        if given[array].shape[0] != own[array].shape[0]:
            return False
    n, splits = given[0].shape[0], given[1].shape[0]
    if not splits or not holds(&given[1], INTEGERS, 8) or not holds(&own[1], INTEGERS, 8):
        return False
    copy_numbers(<const int64_t*>given[1].buf, splits, <int64_t*>own[1].buf)
    if not are_splits(<const int64_t*>own[1].buf, splits - 1, n):
        return False
    if holds(&given[0], INTEGERS, 8) and holds(&own[0], INTEGERS, 8):
        return copied(<const int64_t*>given[0].buf, n, rows, <int64_t*>own[0].buf)
    if holds(&given[0], INTEGERS, 4) and holds(&own[0], INTEGERS, 4):
        return copied(<const int32_t*>given[0].buf, n, rows, <int32_t*>own[0].buf)
    return False


cdef inline bint copied(const index_t* ids__n, Py_ssize_t n, int64_t rows,
                        index_t* own__n) noexcept:
    """Copy ids; return whether the copies are in range."""
    cdef Py_ssize_t i
    cdef bint outside = False
    memcpy(own__n, ids__n, n * sizeof(index_t))
    forget_sources()
    for i in range(n):
        outside |= <uint64_t><int64_t>own__n[i] >= <uint64_t>rows
    return not outside
