"""What the locks and the jobs share: a place to wait at, and what is known of a thread."""

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock

cdef struct Spot:
    PyThread_type_lock lock     # held but while its thread is woken; NULL: not made yet
    Spot* next
    bint queued

cdef int arm(Spot* spot) except -1
cdef void disarm(Spot* spot) noexcept
cdef void push(Spot** line, Spot* spot) noexcept
cdef void withdraw(Spot** line, Spot* spot) noexcept
cdef bint wake_one(Spot** line) noexcept
cdef void wake_all(Spot** line) noexcept
cdef int pause(Spot* spot, bint interruptible, int tries=*) except -1

cdef class Caller:
    cdef readonly unsigned long thread
    cdef bint shielded
    cdef int changing
    cdef tuple inside

cdef Caller caller()
cdef int begin_change(Caller who) except -1
cdef void end_change(Caller who) noexcept

cdef class Mutex:
    cdef unsigned long owner
    cdef int depth
    cdef unsigned long epoch
    cdef Spot* waiting

    cdef int _begin(self, Caller who) except -1
    cdef void _end(self) noexcept

cdef class ReadWriteLock:
    cdef readonly unsigned long number     # of all those of the process, as they were made
    cdef int readers
    cdef readonly int writers_waiting
    cdef bint writing
    cdef unsigned long epoch
    cdef Spot* waiting

    cdef void _forget_parent(self) noexcept
    cdef int _begin_reading(self, Caller who) except -1
    cdef void _end_reading(self) noexcept
    cdef int _begin_writing(self, Caller who) except -1
    cdef void _end_writing(self) noexcept
