"""Arrays as a caller gives them, looked at where they lie, without a view of them being made.

A view that Cython makes of an argument takes as long as to add up some rows; and asked for a buffer,
NumPy writes the dtype down as text, 0.1 to 0.2 µs for each array of each call. These functions read
NumPy's own record of an array. What they refuse is left to others, who say what is wrong with it.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from types cimport index_t

cdef extern from "scalars.h" nogil:
    void forget_sources "SC_FORGET_SOURCES"()

cdef extern from *:
    """
    #define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
    #include <numpy/arrayobject.h>
    #define SC_INTEGERS "ilq"
    """
    ctypedef struct PyArrayObject:
        pass
    ctypedef struct PyArray_Descr:
        char type
    int import_numpy "_import_array"() except -1
    bint PyArray_Check(object given)
    bint PyArray_ISCARRAY_RO(PyArrayObject* array)  # C-contiguous, aligned, in our byte order
    bint PyArray_ISWRITEABLE(PyArrayObject* array)
    void* PyArray_DATA(PyArrayObject* array)
    int PyArray_NDIM(PyArrayObject* array)
    Py_ssize_t PyArray_DIM(PyArrayObject* array, int axis)
    Py_ssize_t PyArray_ITEMSIZE(PyArrayObject* array)
    PyArray_Descr* PyArray_DESCR(PyArrayObject* array)
    int PyArray_TYPE(PyArrayObject* array)
    bint PyTypeNum_ISNUMBER(int type_number)
    object new_array "PyArray_EMPTY"(int ndim, Py_ssize_t* shape, int type_number, int fortran)
    int NPY_INT32
    int NPY_INT64
    const char* INTEGERS "SC_INTEGERS"  # the letters of NumPy for those that may be wanted

import_numpy()      # refuses a NumPy whose record of an array is not as it was compiled for


cdef struct Plain:              # an array, as it was when it was looked at
    void* start
    int ndim
    Py_ssize_t shape[2]         # of its first two axes
    Py_ssize_t size
    Py_ssize_t itemsize
    char letter                 # NumPy's `dtype.char`; 0 where that may be another library's


cdef inline bint found_plain(object given, bint writable, Plain* plain) noexcept:
    """Find where an array lies; return whether it is C-contiguous, aligned, and in our byte order.

    And, if that is asked for, writable. The caller holds the array.
    """
    cdef PyArrayObject* array = <PyArrayObject*><void*>given
    cdef int axis
    if not (PyArray_Check(given) and PyArray_ISCARRAY_RO(array)
            and (PyArray_ISWRITEABLE(array) or not writable)):
        return False
    plain.start, plain.ndim, plain.size = PyArray_DATA(array), PyArray_NDIM(array), 1
    plain.itemsize = PyArray_ITEMSIZE(array)
    plain.letter = PyArray_DESCR(array).type if PyTypeNum_ISNUMBER(PyArray_TYPE(array)) else 0
    for axis in range(plain.ndim):
        if axis < 2:
            plain.shape[axis] = PyArray_DIM(array, axis)
        plain.size *= PyArray_DIM(array, axis)
    return True


cdef inline object new_numbers(Py_ssize_t count, int type_number):
    """Return an array (count,) of any values, in memory of the heap."""
    return new_array(1, &count, type_number, False)


cdef inline void* memory_of(object array) noexcept:
    return PyArray_DATA(<PyArrayObject*><void*>array)


cdef inline bint holds(const Plain* plain, const char* letters, Py_ssize_t size) noexcept:
    """Return whether the elements are of one of these types, and of that size."""
    if plain.itemsize != size:
        return False
    while letters[0] != 0:
        if letters[0] == plain.letter:
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
