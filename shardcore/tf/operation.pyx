"""The operation ``ShardcoreCall``, by which a graph of TensorFlow calls a function of arrays.

``tf.numpy_function`` does the same, and takes 0.1 ms more than adding a number does, most of it for
what each call makes anew; this one takes 0.02 ms. It is an operation as any library of operations
adds it, through TensorFlow's interface in C.

A graph holds an operation's number, and `calls` what the number stands for. Numbers begin anywhere,
so that a graph that another process has saved finds nothing, rather than another function.
"""

import traceback

import numpy as np

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uintptr_t

from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF

from shardcore.errors import UnavailableError

__all__ = ["NAME", "calls", "register"]

cdef extern from "operation.h" nogil:
    ctypedef struct sc_kept:
        pass
    ctypedef void (*sc_deallocate)(void* data, size_t length, void* kept) noexcept
    const char* sc_find(const char* path)
    void sc_leave(void* data, size_t length, void* kept) noexcept
    void sc_stay_known()

    void* TF_NewStatus()
    void TF_DeleteStatus(void*)
    void TF_SetStatus(void*, int, const char*)
    int TF_GetCode(const void*)
    const char* TF_Message(const void*)
    void* TF_NewOpDefinitionBuilder(const char*)
    void TF_OpDefinitionBuilderAddAttr(void*, const char*)
    void TF_OpDefinitionBuilderAddInput(void*, const char*)
    void TF_OpDefinitionBuilderAddOutput(void*, const char*)
    void TF_OpDefinitionBuilderSetIsStateful(void*, bint)
    void TF_OpDefinitionBuilderSetShapeInferenceFunction(
        void*, void (*)(void* context, void* status) noexcept
    )
    void TF_ShapeInferenceContextSetUnknownShape(void*, void*)
    void TF_RegisterOpDefinition(void*, void*)
    void* TF_NewKernelBuilder(
        const char*,
        const char*,
        void* (*)(void* construction) noexcept,
        void (*)(void* kernel, void* context) noexcept,
        void (*)(void* kernel) noexcept,
    )
    void TF_RegisterKernelBuilder(const char*, void*, void*)
    void TF_OpKernelConstruction_GetAttrInt64(void*, const char*, int64_t*, void*)
    void TF_OpKernelConstruction_Failure(void*, void*)
    void TF_OpKernelContext_Failure(void*, void*)
    void TF_GetInput(void*, int, void**, void*)
    void TF_SetOutput(void*, int, const void*, void*)
    void* TF_NewTensor(int, const int64_t*, int, void*, size_t, sc_deallocate, void*)
    void TF_DeleteTensor(void*)
    int TF_NumDims(const void*)
    int64_t TF_Dim(const void*, int)
    void* TF_TensorData(const void*)

cdef extern from "operation.h":
    sc_kept* sc_keep(object array)
    void sc_release()

cdef extern from *:
    """
    #define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
    #include <numpy/arrayobject.h>
    """
    ctypedef struct PyArrayObject:
        pass
    ctypedef struct PyArray_Descr:
        pass
    ctypedef struct PyTypeObject:
        pass
    PyTypeObject PyArray_Type
    int READ_ONLY "0"
    int import_numpy "_import_array"() except -1
    void* PyArray_DATA(PyArrayObject* array)
    int PyArray_NDIM(PyArrayObject* array)
    Py_ssize_t PyArray_DIM(PyArrayObject* array, int axis)
    Py_ssize_t PyArray_NBYTES(PyArrayObject* array)
    bint PyArray_Check(object given)
    bint PyArray_ISCARRAY_RO(PyArrayObject* array)  # C-contiguous, aligned, in our byte order
    object PyArray_NewFromDescr(
        PyTypeObject*, PyArray_Descr* dtype, int, Py_ssize_t*, Py_ssize_t*, void*, int, void*
    )
    int PyArray_SetBaseObject(PyArrayObject* array, PyObject* base) except -1

import_numpy()      # refuses a NumPy whose record of an array is not as it was compiled for

cdef enum:
    MOST_AXES = 64  # of an array of NumPy

cdef enum:
    OK = 0  # TensorFlow's codes of errors
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12

cdef dict CODES = {  # as ``tf.numpy_function`` has them, for the first class that fits
    ValueError: INVALID_ARGUMENT,
    TypeError: INVALID_ARGUMENT,
    MemoryError: RESOURCE_EXHAUSTED,
    NotImplementedError: UNIMPLEMENTED,
    KeyboardInterrupt: CANCELLED,
}

NAME = "ShardcoreCall"

calls = {}
"""What the numbers stand for: number -> (function, dtypes that it is given, and those of what it
returns with TensorFlow's numbers of them)."""

cdef bint registered = False


def register(path):
    """Tell TensorFlow of the operation, once in a process; return whether this call did.

    Parameters
    ----------
    path : bytes
        Of TensorFlow's library, which is loaded.

    Raises
    ------
    UnavailableError
        If the library has not all that is used of it, or does not take the operation.
    """
    global registered
    cdef const char* missing
    cdef const char* name
    cdef bytes encoded = NAME.encode()
    cdef void* operation
    cdef void* status
    if registered:
        return False
    missing = sc_find(path)
    if missing != NULL:
        raise UnavailableError(
            f"shardcore.tf needs TensorFlow's functions in C: {missing.decode()} was not found in "
            f"{path.decode()}"
        )
    name = encoded
    status = TF_NewStatus()
    operation = TF_NewOpDefinitionBuilder(name)
    TF_OpDefinitionBuilderAddAttr(operation, b"number: int")
    TF_OpDefinitionBuilderAddAttr(operation, b"Tin: list(type) >= 0")
    TF_OpDefinitionBuilderAddAttr(operation, b"Tout: list(type) >= 1")
    TF_OpDefinitionBuilderAddInput(operation, b"given: Tin")
    TF_OpDefinitionBuilderAddOutput(operation, b"found: Tout")
    TF_OpDefinitionBuilderSetIsStateful(operation, True)  # each time, in the graph's order
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, infer)
    TF_RegisterOpDefinition(operation, status)
    if TF_GetCode(status) == OK:
        TF_RegisterKernelBuilder(
            name, TF_NewKernelBuilder(name, b"CPU", create, compute, delete), status
        )
    told = None if TF_GetCode(status) == OK else TF_Message(status).decode()
    TF_DeleteStatus(status)
    if told is not None:
        raise UnavailableError(f"TensorFlow does not take the operation {NAME}: {told}")
    registered = True
    return True


# --- what TensorFlow calls, in its own threads ---------------------------------------------------

cdef void infer(void* context, void* status) noexcept nogil:
    TF_ShapeInferenceContextSetUnknownShape(context, status)


cdef void* create(void* construction) noexcept nogil:
    """Return a kernel: the number of its call."""
    cdef int64_t number = 0
    cdef void* status = TF_NewStatus()
    TF_OpKernelConstruction_GetAttrInt64(construction, b"number", &number, status)
    if TF_GetCode(status) != OK:
        TF_OpKernelConstruction_Failure(construction, status)
    TF_DeleteStatus(status)
    return <void*><uintptr_t>number


cdef void delete(void* kernel) noexcept nogil:
    pass


cdef void compute(void* kernel, void* context) noexcept nogil:
    sc_stay_known()
    with gil:
        answer(<uintptr_t>kernel, context)


cdef void answer(uintptr_t number, void* context) noexcept:
    """Make a call of arrays, and give TensorFlow what it returns, or an error."""
    cdef void* status = TF_NewStatus()
    cdef int at
    try:
        sc_release()
        call = calls.get(number)
        if call is None:
            TF_SetStatus(
                status,
                FAILED_PRECONDITION,
                b"a call of an engine must be made in the process of its tables, and this one was "
                b"made in another process: make the model here, and load its weights",
            )
        else:
            function, dtypes, results = call
            given = [read(context, at, dtype, status) for at, dtype in enumerate(dtypes)]
            found = zip(function(*given), results, strict=True)
            for at, (array, (dtype, kind)) in enumerate(found):
                write(context, at, array, dtype, kind, status)
    except BaseException as error:
        code = next((CODES[one] for one in type(error).__mro__ if one in CODES), UNKNOWN)
        told = f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"
        encoded = told.encode("utf-8", "replace")
        TF_SetStatus(status, code, encoded)
    if TF_GetCode(status) != OK:
        TF_OpKernelContext_Failure(context, status)
    TF_DeleteStatus(status)


cdef class Held:
    """A tensor, as long as an array has its memory."""

    cdef void* tensor

    def __dealloc__(self):
        if self.tensor != NULL:
            TF_DeleteTensor(self.tensor)


cdef object read(void* context, int at, dtype, void* status):
    """Return an input as an array that is not to be written."""
    cdef Held held = Held.__new__(Held)
    cdef Py_ssize_t shape[MOST_AXES]
    cdef int axis, ndim
    TF_GetInput(context, at, &held.tensor, status)
    if TF_GetCode(status) != OK:
        raise RuntimeError(TF_Message(status).decode())
    ndim = TF_NumDims(held.tensor)
    if ndim > MOST_AXES:
        raise ValueError(f"arrays have at most {MOST_AXES} axes, got {ndim}")
    for axis in range(ndim):
        shape[axis] = TF_Dim(held.tensor, axis)
    Py_INCREF(dtype)  # which the next call takes, and the one after it the tensor
    found = PyArray_NewFromDescr(
        &PyArray_Type, <PyArray_Descr*>dtype, ndim, shape, NULL,
        TF_TensorData(held.tensor), READ_ONLY, NULL,
    )
    Py_INCREF(held)
    PyArray_SetBaseObject(<PyArrayObject*><void*>found, <PyObject*>held)
    return found


cdef int write(void* context, int at, found, dtype, int kind, void* status) except -1:
    """Give TensorFlow an array as an output, without a copy where its memory is aligned."""
    cdef PyArrayObject* array
    cdef int64_t shape[MOST_AXES]
    cdef int axis
    cdef void* tensor
    cdef sc_kept* kept
    if not (PyArray_Check(found) and found.dtype is dtype
            and PyArray_ISCARRAY_RO(<PyArrayObject*><void*>found)):
        found = np.asarray(found, dtype, order="C")
    array = <PyArrayObject*><void*>found
    kept = sc_keep(found)
    if kept == NULL:
        raise MemoryError("no room for a result")
    for axis in range(PyArray_NDIM(array)):
        shape[axis] = PyArray_DIM(array, axis)
    tensor = TF_NewTensor(
        kind, shape, PyArray_NDIM(array), PyArray_DATA(array), PyArray_NBYTES(array), sc_leave, kept
    )
    TF_SetOutput(context, at, tensor, status)
    TF_DeleteTensor(tensor)
    if TF_GetCode(status) != OK:
        raise RuntimeError(TF_Message(status).decode())
    return 0
