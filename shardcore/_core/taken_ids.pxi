"""Ids of the caller's, taken: each is read once, and what was read is checked and used.

Another thread may write into memory that is the caller's, between a check and its use. So nothing
here looks at it twice: a block of ids is copied first, or one id, and only the copy is checked and
used.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from types cimport index_t

cdef extern from "scalars.h" nogil:
    void forget_sources "SC_FORGET_SOURCES"()

cdef enum:
    BLOCK = 512         # ids that are checked at once, without a branch, before they are used

ctypedef fused own_t:   # what ids are copied to
    int32_t
    int64_t


cdef inline Py_ssize_t length_of(Py_ssize_t block, Py_ssize_t n) noexcept nogil:
    return BLOCK if n - block * BLOCK > BLOCK else n - block * BLOCK


cdef inline bint any_outside(const index_t* ids__m, Py_ssize_t m, int64_t rows) noexcept nogil:
    """Return whether an id is outside [0, rows): the sign bit of id or of rows - 1 - id is set."""
    cdef uint64_t wide = 0, last = <uint64_t>(rows - 1)
    cdef uint32_t narrow = 0, narrow_last
    cdef Py_ssize_t i
    if index_t is int32_t:
        narrow_last = <uint32_t>(rows - 1 if rows - 1 < INT32_MAX else INT32_MAX)
        for i in range(m):
            narrow |= <uint32_t>ids__m[i] | (narrow_last - <uint32_t>ids__m[i])
        return narrow >> 31
    else:
        for i in range(m):
            wide |= <uint64_t>ids__m[i] | (last - <uint64_t>ids__m[i])
        return wide >> 63


cdef inline Py_ssize_t outside(const index_t* ids__m, Py_ssize_t m, int64_t rows) noexcept nogil:
    """Return the first position of an id outside [0, rows), or -1."""
    cdef Py_ssize_t i
    if any_outside(ids__m, m, rows):
        for i in range(m):
            if ids__m[i] < 0 or ids__m[i] >= rows:
                return i
    return -1


cdef inline bint take_one(const index_t* id, int64_t rows, int64_t* own) noexcept nogil:
    """Copy an id, which the compiler must not read again; return whether it lies in [0, rows)."""
    own[0] = (<const volatile index_t*>id)[0]
    return <uint64_t>own[0] < <uint64_t>rows


cdef inline void copy_block(const index_t* ids__m, Py_ssize_t m, own_t* own__m) noexcept nogil:
    cdef Py_ssize_t i
    if index_t is own_t:
        memcpy(own__m, ids__m, m * sizeof(own_t))
    else:
        for i in range(m):
            own__m[i] = <own_t>ids__m[i]
    forget_sources()


cdef inline Py_ssize_t take_block(const index_t* ids__m, Py_ssize_t m, int64_t rows,
                                  own_t* own__m, int64_t* bad_id) noexcept nogil:
    """Copy a block of ids; return the first position outside [0, rows), whose id is told, or -1.

    Copies of 32 bits can hold all rows.
    """
    cdef index_t copied[BLOCK]      # what does not fit the copies is found before it is cut
    cdef Py_ssize_t i, bad
    if index_t is own_t:
        copy_block(ids__m, m, own__m)
        bad = outside(own__m, m, rows)
        if bad >= 0:
            bad_id[0] = own__m[bad]
    else:
        copy_block(ids__m, m, copied)
        bad = outside(copied, m, rows)
        if bad >= 0:
            bad_id[0] = copied[bad]
        else:
            for i in range(m):
                own__m[i] = <own_t>copied[i]
    return bad


cdef inline Py_ssize_t take(const index_t* ids__n, Py_ssize_t n, int64_t rows,
                            own_t* own__n) noexcept nogil:
    """Copy ids up to the block of the first one outside [0, rows); return its position, or -1."""
    cdef Py_ssize_t block, first, bad
    cdef int64_t bad_id
    for block in range((n + BLOCK - 1) // BLOCK):
        first = block * BLOCK
        bad = take_block(ids__n + first, length_of(block, n), rows, own__n + first, &bad_id)
        if bad >= 0:
            return first + bad
    return -1
