"""Locks that no interrupt can split and no fork can leave behind.

Ctrl-C, and every other exception that a signal handler raises, can come between any two bytecodes
of the main thread. A lock that is taken and given back by Python code can therefore stay taken. Here
a lock is held around a call, ``lock.write(function, *arguments)``, and all that belongs to holding
it is compiled: no bytecode, so nothing comes in between. Only waiting can be interrupted, and then
nothing is held.

A fork copies one thread. Whatever changes rows does so between `begin_change` and `end_change`
(`shardcore.threads.work.uninterrupted` calls them), and a fork waits until nobody does, so the
child's tables are whole. A lock that another thread of the parent held, to read or to keep order,
nobody holds in the child: it is found free there.

In a change no lock is waited for that a thread may hold which waits to begin a change: the locks of
an engine come first, then the change, then the locks of a backend and its tables.

State is a few C numbers. They are read and changed without a Python object being made, so under the
GIL nothing comes in between either; without it a critical section of the lock sees to that.
"""

import operator
import os

cimport cython
from cpython.exc cimport PyErr_CheckSignals

__all__ = [
    "Mutex",
    "ReadWriteLock",
    "call_inside",
    "calling_thread",
    "is_inside",
    "read_all",
    "write_all",
]

cdef extern from "pythread.h" nogil:
    ctypedef int PyLockStatus
    ctypedef long long PY_TIMEOUT_T
    PyLockStatus PY_LOCK_ACQUIRED
    PyLockStatus PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock(PyThread_type_lock, int)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, PY_TIMEOUT_T, int)
    void PyThread_release_lock(PyThread_type_lock)
    unsigned long PyThread_get_thread_ident()

cdef extern from "Python.h":
    void* PyThreadState_GetDict()


# --- where a thread waits ------------------------------------------------------------------------

cdef int arm(Spot* spot) except -1:
    """Make the lock a thread waits on; it is held from now on."""
    spot.lock = PyThread_allocate_lock()
    if spot.lock == NULL:
        raise MemoryError("no room for a lock")
    PyThread_acquire_lock(spot.lock, 1)
    spot.queued = False
    return 0


cdef void disarm(Spot* spot) noexcept:
    if spot.lock != NULL:
        PyThread_free_lock(spot.lock)
        spot.lock = NULL


cdef void push(Spot** line, Spot* spot) noexcept:
    spot.next = line[0]
    spot.queued = True
    line[0] = spot


cdef void withdraw(Spot** line, Spot* spot) noexcept:
    """Take a spot out of a line, if it was not woken yet."""
    if spot.lock == NULL or not spot.queued:
        return
    while line[0] != spot:
        line = &line[0].next
    line[0] = spot.next
    spot.queued = False


cdef bint wake_one(Spot** line) noexcept:
    cdef Spot* spot = line[0]
    if spot == NULL:
        return False
    line[0] = spot.next
    spot.queued = False
    PyThread_release_lock(spot.lock)
    return True


cdef void wake_all(Spot** line) noexcept:
    while wake_one(line):
        pass


cdef int pause(Spot* spot, bint interruptible, int tries=0) except -1:
    """Wait to be woken; where that may be interrupted, raise what a signal handler raises.

    Before it sleeps it looks `tries` times, of some 20 ns each: waking takes longer than that.
    """
    cdef PyLockStatus status
    cdef int woken = 0
    if tries:
        with nogil:
            while not woken and tries:
                woken = PyThread_acquire_lock(spot.lock, 0)
                tries -= 1
        if woken:
            return 0
    while True:
        with nogil:
            status = PyThread_acquire_lock_timed(spot.lock, -1, interruptible)
        if status == PY_LOCK_ACQUIRED:
            return 0
        if status == PY_LOCK_INTR:
            PyErr_CheckSignals()


# --- what is known of a thread -------------------------------------------------------------------

cdef object _KEY = object()


cdef class Caller:
    """A thread as the locks know it.

    Attributes
    ----------
    thread : int
        The thread on whose behalf it works: its own, or that of the call it was handed.
    """


cdef Caller caller():
    """Return the record of the current thread."""
    cdef dict known = <dict>PyThreadState_GetDict()
    cdef object found = known.get(_KEY)
    cdef Caller who
    if found is not None:
        return <Caller>found
    who = Caller.__new__(Caller)
    who.thread = PyThread_get_thread_ident()
    who.inside = ()
    known[_KEY] = who
    return who


def calling_thread():
    """Return the identity of the thread on whose behalf the current one works.

    Examples
    --------
    >>> import threading
    >>> calling_thread() == threading.get_ident()
    True
    """
    return caller().thread


def call_inside(owner, function, *arguments):
    """Call ``function(*arguments)``, during which `is_inside` knows `owner`, and return its result.

    Parameters
    ----------
    owner : object
    function : callable

    Examples
    --------
    >>> call_inside("a", is_inside, "a"), is_inside("a")
    (True, False)
    """
    cdef Caller who = caller()
    cdef tuple before = who.inside
    who.inside = (owner, *before)
    try:
        return function(*arguments)
    finally:
        who.inside = before


def is_inside(owner):
    """Return whether this code runs in a call that `call_inside` makes for `owner`.

    It is so in the threads too that work on its behalf.
    """
    for one in caller().inside:
        if one is owner:
            return True
    return False


# --- changes and forks ---------------------------------------------------------------------------

cdef class _Gate:
    """The way by which changes and forks wait for each other."""

    cdef int changing           # threads that change something
    cdef int forking            # threads that fork, or wait to
    cdef unsigned long epoch    # how many forks this process came from
    cdef unsigned long locks    # how many there were, see `write_all`
    cdef Spot* waiting


cdef _Gate _gate = _Gate()


cdef int begin_change(Caller who) except -1:
    """Wait until no thread forks; none will, until the change ends. Changes of a thread nest."""
    cdef Spot spot
    cdef bint begun = False
    if who.changing:
        who.changing += 1
        return 0
    spot.lock = NULL
    try:
        while True:
            with cython.critical_section(_gate):
                if not _gate.forking:
                    _gate.changing += 1
                    begun = True
                elif spot.lock != NULL:
                    push(&_gate.waiting, &spot)
            if begun:
                who.changing = 1
                return 0
            if spot.lock == NULL:
                arm(&spot)
            else:
                pause(&spot, False)     # a fork takes milliseconds
    finally:
        disarm(&spot)


cdef void end_change(Caller who) noexcept:
    who.changing -= 1
    if who.changing:
        return
    with cython.critical_section(_gate):
        _gate.changing -= 1
        if not _gate.changing:
            wake_all(&_gate.waiting)


def _before_fork():
    """Wait until nobody changes anything, but for a change this thread is itself in."""
    cdef Caller who = caller()
    cdef int own = 1 if who.changing else 0
    cdef bint counted = False, ready = False
    cdef Spot spot
    spot.lock = NULL
    try:
        while True:
            with cython.critical_section(_gate):
                if not counted:
                    _gate.forking += 1
                    counted = True
                if _gate.changing == own:
                    ready = True
                elif spot.lock != NULL:
                    push(&_gate.waiting, &spot)
            if ready:
                return
            if spot.lock == NULL:
                arm(&spot)
            else:
                pause(&spot, False)     # what a hook of fork raises is lost, and the fork goes on
    finally:
        disarm(&spot)


def _after_fork_in_parent():
    with cython.critical_section(_gate):
        _gate.forking -= 1
        wake_all(&_gate.waiting)


def _after_fork_in_child():
    cdef Caller who = caller()
    _gate.epoch += 1
    _gate.forking = 0
    _gate.changing = 1 if who.changing else 0
    _gate.waiting = NULL                # they stand on stacks of threads that are not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


# --- locks ---------------------------------------------------------------------------------------

cdef class Mutex:
    """A lock that one thread has, around a call.

    The same thread, and those that work on its behalf, may take it again.

    Examples
    --------
    >>> mutex = Mutex()
    >>> mutex.run(max, 3, 5)
    5
    """

    def __reduce__(self):
        raise TypeError("a Mutex cannot be copied or pickled")

    def run(self, function, *arguments):
        """Call ``function(*arguments)`` while no other thread has the lock; return its result.

        Waiting can be interrupted; then nothing was called.
        """
        self._begin(caller())
        try:
            return function(*arguments)
        finally:
            self._end()

    cdef int _begin(self, Caller who) except -1:
        cdef Spot spot
        cdef bint begun = False
        spot.lock = NULL
        try:
            while True:
                with cython.critical_section(self):
                    if self.epoch != _gate.epoch:
                        self.epoch = _gate.epoch
                        self.depth = 0
                        self.waiting = NULL
                    if not self.depth or self.owner == who.thread:
                        self.owner = who.thread
                        self.depth += 1
                        begun = True
                    elif spot.lock != NULL:
                        push(&self.waiting, &spot)
                if begun:
                    return 0
                if spot.lock == NULL:
                    arm(&spot)
                else:
                    pause(&spot, not who.shielded)
        except:
            with cython.critical_section(self):
                withdraw(&self.waiting, &spot)
            raise
        finally:
            disarm(&spot)

    cdef void _end(self) noexcept:
        with cython.critical_section(self):
            # In the child of a fork that came from inside the call there is nothing to give back.
            if self.epoch == _gate.epoch and self.depth:
                self.depth -= 1
                if not self.depth:
                    wake_all(&self.waiting)


cdef class ReadWriteLock:
    """A lock that readers share and a writer has alone. A waiting writer goes before new readers.

    Not re-entrant. It lets a lookup see each row wholly before or wholly after an update.

    Examples
    --------
    >>> lock = ReadWriteLock()
    >>> lock.read(max, 3, 5), lock.write(max, 3, 5)
    (5, 5)
    """

    def __cinit__(self):
        with cython.critical_section(_gate):
            _gate.locks += 1
            self.number = _gate.locks

    def __reduce__(self):
        raise TypeError("a ReadWriteLock cannot be copied or pickled")

    def read(self, function, *arguments):
        """Call ``function(*arguments)`` while no writer has the lock; return its result.

        Waiting can be interrupted; then nothing was called.
        """
        self._begin_reading(caller())
        try:
            return function(*arguments)
        finally:
            self._end_reading()

    def write(self, function, *arguments):
        """Call ``function(*arguments)`` while no other thread has the lock; return its result.

        Waiting can be interrupted; then nothing was called.
        """
        self._begin_writing(caller())
        try:
            return function(*arguments)
        finally:
            self._end_writing()

    cdef void _forget_parent(self) noexcept:
        """Be free in the child of a fork, where no thread of the parent's goes on."""
        if self.epoch != _gate.epoch:
            self.epoch = _gate.epoch
            self.readers = self.writers_waiting = 0
            self.writing = False
            self.waiting = NULL

    cdef int _begin_reading(self, Caller who) except -1:
        cdef Spot spot
        cdef bint begun = False
        spot.lock = NULL
        try:
            while True:
                with cython.critical_section(self):
                    self._forget_parent()
                    if not self.writing and not self.writers_waiting:
                        self.readers += 1
                        begun = True
                    elif spot.lock != NULL:
                        push(&self.waiting, &spot)
                if begun:
                    return 0
                if spot.lock == NULL:
                    arm(&spot)
                else:
                    pause(&spot, not who.shielded)
        except:
            with cython.critical_section(self):
                withdraw(&self.waiting, &spot)
            raise
        finally:
            disarm(&spot)

    cdef void _end_reading(self) noexcept:
        with cython.critical_section(self):
            self._forget_parent()
            if self.readers:
                self.readers -= 1
                if not self.readers:
                    wake_all(&self.waiting)

    cdef int _begin_writing(self, Caller who) except -1:
        cdef Spot spot
        cdef bint begun = False, counted = False
        spot.lock = NULL
        try:
            while True:
                with cython.critical_section(self):
                    self._forget_parent()
                    if not self.writing and not self.readers:
                        self.writing = begun = True
                        self.writers_waiting -= counted
                    else:
                        if not counted:
                            self.writers_waiting += 1
                            counted = True
                        if spot.lock != NULL:
                            push(&self.waiting, &spot)
                if begun:
                    return 0
                if spot.lock == NULL:
                    arm(&spot)
                else:
                    pause(&spot, not who.shielded)
        except:
            with cython.critical_section(self):
                withdraw(&self.waiting, &spot)
                self.writers_waiting -= counted
                wake_all(&self.waiting)     # readers wait for the writer that gave up
            raise
        finally:
            disarm(&spot)

    cdef void _end_writing(self) noexcept:
        with cython.critical_section(self):
            self._forget_parent()
            self.writing = False
            wake_all(&self.waiting)


# --- several locks -------------------------------------------------------------------------------

cdef list in_order(locks):
    """Return the locks, each once, in the order in which they were made.

    Whoever waits for one has none that was made later: so no two wait for each other.
    """
    return sorted(set(locks), key=_number)


_number = operator.attrgetter("number")


def read_all(locks, function, *arguments):
    """Call ``function(*arguments)`` while no writer has any of the locks; return its result.

    Waiting can be interrupted; then nothing was called, and none is held.

    Parameters
    ----------
    locks : iterable of ReadWriteLock
    function : callable

    Examples
    --------
    >>> read_all([ReadWriteLock(), ReadWriteLock()], max, 3, 5)
    5
    """
    cdef list ordered = in_order(locks)
    cdef Py_ssize_t held = 0
    cdef Caller who = caller()
    try:
        while held < len(ordered):
            (<ReadWriteLock?>ordered[held])._begin_reading(who)
            held += 1
        return function(*arguments)
    finally:
        while held:
            held -= 1
            (<ReadWriteLock>ordered[held])._end_reading()


def write_all(locks, function, *arguments):
    """Call ``function(*arguments)`` while no other thread has any of the locks; return its result.

    Waiting can be interrupted; then nothing was called, and none is held.

    Parameters
    ----------
    locks : iterable of ReadWriteLock
    function : callable

    Examples
    --------
    >>> write_all([ReadWriteLock(), ReadWriteLock()], max, 3, 5)
    5
    """
    cdef list ordered = in_order(locks)
    cdef Py_ssize_t held = 0
    cdef Caller who = caller()
    try:
        while held < len(ordered):
            (<ReadWriteLock?>ordered[held])._begin_writing(who)
            held += 1
        return function(*arguments)
    finally:
        while held:
            held -= 1
            (<ReadWriteLock>ordered[held])._end_writing()
