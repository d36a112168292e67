"""Arrays as a caller gives them, looked at without a view of them being made.

A view that Cython makes of an argument takes as long as to add up some rows. These functions ask
for the buffer itself; what they refuse is left to others, who say what is wrong with it.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from types cimport index_t

cdef extern from "scalars.h" nogil:
    void forget_sources "SC_FORGET_SOURCES"()

cdef extern from *:
    """
    #define SC_INTEGERS "ilq"
    """
    const char* INTEGERS "SC_INTEGERS"  # the letters of NumPy for those that may be wanted


cdef bint exported(object given, bint writable, Py_buffer* view) noexcept:
    """Let an object show its memory; return whether it does, C-contiguous."""
    try:
        PyObject_GetBuffer(
            given, view, PyBUF_ND | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0)
        )
    except Exception:
        return False
    return True


cdef inline bint holds(const Py_buffer* view, const char* letters, Py_ssize_t size) noexcept:
    """Return whether the elements are of one of these types, of that size and aligned to it."""
    if view.itemsize != size or <size_t>view.buf % <size_t>size or view.format == NULL:
        return False
    if view.format[0] == 0 or view.format[1] != 0:      # another byte order has a sign before it
        return False
    while letters[0] != 0:
        if letters[0] == view.format[0]:
            return True
        letters += 1
    return False


cdef inline void copy_numbers(const index_t* given__n, Py_ssize_t n,
                              int64_t* own__n) noexcept nogil:
    cdef Py_ssize_t i
    if index_t is int64_t:
        memcpy(own__n, given__n, n * sizeof(int64_t))
    else:
        for i in range(n):
            own__n[i] = given__n[i]
    forget_sources()


cdef inline bint are_splits(const int64_t* splits, Py_ssize_t bags,
                            Py_ssize_t n) noexcept nogil:
    """Return whether row splits go from 0 to n without a step down."""
    cdef Py_ssize_t b
    cdef bint wrong = splits[0] != 0 or splits[bags] != n
    for b in range(bags):
        wrong |= splits[b + 1] < splits[b]
    return not wrong
