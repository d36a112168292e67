"""What a compiled call of an engine needs of its life."""

from shardcore.threads.lock cimport Caller, Mutex, ReadWriteLock

cdef class Life:
    cdef public bint closed
    cdef readonly bint closing
    cdef ReadWriteLock lock
    cdef Mutex one_at_a_time

    cdef bint has(self, Caller who) noexcept
    cdef int refuse_callback(self, Caller who, call) except -1
