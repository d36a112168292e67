"""How a kernel lets another thread do one of two parts of its work: see ``share.h``."""

from cpython.pycapsule cimport PyCapsule_GetPointer

cdef extern from "share.h" nogil:
    ctypedef bint (*Sharing "sc_sharing")(void (*part)(void* work, int part), void* work)
    const char* SHARING_NAME "SC_SHARING"
