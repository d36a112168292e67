"""Work that is handed to other threads, and waited for, whatever interrupts the one that hands it.

* `run_tasks` cuts a piece of work over the helper threads; the caller works too, and does not
  return or raise before the last of them has ended.
* `uninterrupted` makes a change that no signal handler splits. Handlers run in the main thread only,
  and between two bytecodes: so a change of compiled calls, `InTurn`, is made where it is asked for.
  Any other is made by another thread while the caller waits, which takes some 50 µs, and more where
  that thread has to read on another core what this one has just written.
* `Line` runs operations one after the other on a thread of its own.

Handing over and waiting are compiled: see `shardcore.threads.lock`. The threads are daemons, idle
between calls. A child made by fork has none of its parent's: it starts its own.

A thread is woken on the core where it fell asleep, and Linux looks for another only where cores
have had rest. So a helper that slept on the core of the caller, as it does after another library's
threads have worked, would wait for the caller's work to end. It is kept off that core until it runs.
"""

import collections
import contextvars
import functools
import os
import threading
import types
from _thread import start_new_thread as _start_new_thread

cimport cython

from shardcore.threads.lock cimport (
    Caller,
    Spot,
    arm,
    begin_change,
    caller,
    disarm,
    end_change,
    pause,
    push,
    wake_all,
    wake_one,
    withdraw,
)

__all__ = [
    "InTurn",
    "Line",
    "Ticket",
    "changed_here",
    "helper_threads",
    "helpers_kept_off",
    "run_tasks",
    "set_once",
    "uninterrupted",
]

cdef extern from "cores.h" nogil:
    ctypedef struct Cores "sc_cores":
        pass
    void no_cores "sc_no_cores"(Cores* cores)
    bint add_core "sc_add_core"(Cores* cores, int core)
    int own_core "sc_own_core"()
    long own_thread "sc_own_thread"()
    bint keep_off "sc_keep_off"(long thread, const Cores* cores, Cores* before)
    void allow "sc_allow"(const Cores* before)

cdef enum:
    TRIES = 4000    # before a caller sleeps for what others do: less than a tenth of a millisecond

cdef object _copy_context = contextvars.copy_context


cdef class _Work:
    """What a thread takes from a queue, on behalf of the thread that put it there."""

    cdef unsigned long thread
    cdef tuple inside
    cdef int changing

    cdef void come_from(self, Caller who):
        self.thread = who.thread
        self.inside = who.inside
        self.changing = 1 if who.changing else 0

    cdef void work(self, Caller who):
        """Do the work as the caller's thread would; raise nothing."""
        cdef unsigned long thread = who.thread
        cdef tuple inside = who.inside
        cdef int changing = who.changing
        who.thread, who.inside = self.thread, self.inside
        who.changing = changing + self.changing     # a fork waits for the caller's change already
        self.do(who)
        who.thread, who.inside, who.changing = thread, inside, changing

    cdef void do(self, Caller who):
        pass


cdef struct Seat:
    Spot spot           # first: a line of spots is one of seats
    long thread
    int core            # where the thread fell asleep
    bint kept_off       # whether it was kept off some cores since, and may use those of `before`
    Cores before


cdef class _Queue:
    """Work that waits, and threads that wait for work, each on its seat."""

    cdef object items
    cdef Py_ssize_t pending
    cdef Py_ssize_t kept_off        # how many threads were kept off cores that were taken
    cdef Spot* idle
    cdef str name
    cdef Py_ssize_t threads
    cdef Py_ssize_t outstanding     # errands handed over and not yet done

    def __cinit__(self, str name):
        self.items = collections.deque()
        self.name = name

    cdef int put(self, _Work work, Cores* taken) except -1:
        """Wake a thread for the work, on no core that is taken; its own is, from then on."""
        cdef Seat* seat
        self.items.append(work)
        with cython.critical_section(self):
            self.pending += 1
            seat = <Seat*>self.idle
            if seat != NULL and add_core(taken, seat.core):
                seat.kept_off = keep_off(seat.thread, taken, &seat.before)
                self.kept_off += seat.kept_off
            wake_one(&self.idle)
        return 0

    cdef _Work get(self, Seat* seat):
        cdef bint found = False
        while True:
            with cython.critical_section(self):
                if self.pending:
                    self.pending -= 1
                    found = True
                else:
                    seat.core = own_core()
                    push(&self.idle, &seat.spot)
            if found:
                return <_Work>self.items.popleft()
            pause(&seat.spot, False)
            if seat.kept_off:
                allow(&seat.before)
                seat.kept_off = False

    cdef bint grow(self, Py_ssize_t wanted):
        """Start threads until there are as many; return whether there are.

        They are started by one C function each: no bytecode of the caller's, so no interrupt.
        """
        cdef Py_ssize_t number = 0
        cdef bint enough
        while True:
            with cython.critical_section(self):
                enough = self.threads >= wanted
                if not enough:
                    number = self.threads
                    self.threads += 1
            if enough:
                return True
            try:
                _start_new_thread(_serve, (self, number))
            except (MemoryError, RuntimeError):  # the system, or an interpreter that ends, has none
                with cython.critical_section(self):
                    self.threads -= 1
                return False

    cdef void forget(self):
        """Be as new, in the child of a fork: what is here is the parent's."""
        self.items.clear()
        self.pending = self.threads = self.outstanding = 0
        self.idle = NULL


cdef _Queue _helpers = _Queue("shardcore")
cdef _Queue _shields = _Queue(None)     # each stands in for a thread that is known, and waits


def _serve(_Queue queue, Py_ssize_t number):
    """Do the work of a queue, for ever."""
    cdef Caller who = caller()
    cdef Seat seat
    cdef _Work work
    who.shielded = True
    seat.thread, seat.kept_off = own_thread(), False
    if queue.name is not None:
        threading.current_thread().name = f"{queue.name}-{number}"
    arm(&seat.spot)
    while True:
        work = queue.get(&seat)
        work.work(who)
        work = None     # a thread that waits keeps nothing alive


def _forget_threads():
    _helpers.forget()
    _shields.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


# --- tasks ---------------------------------------------------------------------------------------

cdef class _Tasks(_Work):
    """Numbered tasks that several threads take one by one."""

    cdef object task
    cdef Py_ssize_t count
    cdef Py_ssize_t taken
    cdef Py_ssize_t running
    cdef object error
    cdef Py_ssize_t error_at
    cdef Spot* waiting

    cdef void do(self, Caller who):
        cdef Py_ssize_t number
        cdef bint given
        while True:
            with cython.critical_section(self):
                number = self.taken
                given = number < self.count
                if given:
                    self.taken += 1
                    self.running += 1
            if not given:
                return
            try:
                self.task(number)
            except BaseException as error:  # the caller raises the first of them
                with cython.critical_section(self):
                    self.count = self.taken     # those not begun are not begun any more
                    if self.error is None or number < self.error_at:
                        self.error, self.error_at = error, number
            with cython.critical_section(self):
                self.running -= 1
                if not self.running and self.taken >= self.count:
                    wake_all(&self.waiting)

    cdef int wait(self, Spot* spot) except -1:
        """Wait for the tasks that other threads have begun."""
        cdef bint ended = False
        while True:
            with cython.critical_section(self):
                if not self.running:
                    ended = True
                else:
                    push(&self.waiting, spot)
            if ended:
                return 0
            pause(spot, False, TRIES)


def run_tasks(Py_ssize_t count, task, Py_ssize_t helpers):
    """Call ``task(i)`` for every i in [0, count), here and on up to `helpers` other threads.

    When it returns or raises, no task runs any more. If some raise, the error of the lowest number
    is raised here; tasks of higher numbers may not have run.

    Parameters
    ----------
    count : int
    task : callable
        Must not call `run_tasks` itself.
    helpers : int

    Examples
    --------
    >>> squares = [0] * 4
    >>> run_tasks(4, lambda i: squares.__setitem__(i, i * i), 1)
    >>> squares
    [0, 1, 4, 9]
    """
    cdef Caller who = caller()
    cdef _Tasks tasks = _Tasks.__new__(_Tasks)
    cdef Py_ssize_t helper
    cdef Cores taken
    cdef Spot spot
    tasks.come_from(who)
    tasks.task, tasks.count = task, count
    no_cores(&taken)
    add_core(&taken, own_core())
    arm(&spot)      # before others begin: from then on nothing may keep this from waiting
    try:
        _helpers.grow(helpers)
        try:
            for helper in range(min(helpers, _helpers.threads)):
                _helpers.put(tasks, &taken)
        except MemoryError:
            pass    # with fewer helpers than wanted, or none, the caller does more of it
        tasks.do(who)
        tasks.wait(&spot)
    finally:
        disarm(&spot)
    # A helper may find this in the queue much later, and see that nothing is left of it: until
    # then it must not keep the batch's arrays alive.
    tasks.task = None
    error, tasks.error = tasks.error, None
    if error is not None:
        try:
            raise error
        finally:
            error = None


def helper_threads():
    """Return how many threads `run_tasks` has started in this process."""
    return _helpers.threads


def helpers_kept_off():
    """Return how often a thread of `run_tasks` was woken elsewhere than where it fell asleep."""
    return _helpers.kept_off


# --- changes -------------------------------------------------------------------------------------

cdef class _Errand(_Work):
    """A call that a thread makes while another waits for it."""

    cdef object function
    cdef tuple arguments
    cdef object context
    cdef object result
    cdef object error
    cdef bint done
    cdef Spot* waiting

    cdef void do(self, Caller who):
        try:
            begin_change(who)
            try:
                self.result = self.context.run(self.function, *self.arguments)
            finally:
                end_change(who)
        except BaseException as error:
            self.error = error
        self.function = self.arguments = self.context = None
        with cython.critical_section(self):
            self.done = True
            wake_all(&self.waiting)

    cdef int wait(self, Spot* spot) except -1:
        cdef bint ended = False
        while True:
            with cython.critical_section(self):
                if self.done:
                    ended = True
                else:
                    push(&self.waiting, spot)
            if ended:
                return 0
            pause(spot, False, TRIES)


cdef class InTurn:
    """Calls without arguments, made one after the other.

    Parameters
    ----------
    calls : sequence of callable
        Compiled functions, `functools.partial` of them, others of this class; or any.

    Attributes
    ----------
    compiled : bool
        Whether they run no bytecode, so that no interrupt comes inside or between them. Of what a
        compiled function calls in its turn this knows its arguments only.

    Examples
    --------
    >>> from functools import partial
    >>> found = []
    >>> both = InTurn([partial(found.append, 3), partial(found.append, 5)])
    >>> both()
    >>> found, both.compiled, InTurn([lambda: found]).compiled
    ([3, 5], True, False)
    """

    cdef tuple calls
    cdef readonly bint compiled

    def __init__(self, calls):
        self.calls = tuple(calls)
        self.compiled = all_compiled(self.calls)

    def __call__(self):
        for call in self.calls:
            call()


def set_once(owner, str name, value):
    """Set an attribute that is empty, and leave any other as it is: no interrupt comes between.

    Parameters
    ----------
    owner : object
    name : str
    value : object

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> one = SimpleNamespace(ended="")
    >>> set_once(one, "ended", "applied"), set_once(one, "ended", "dropped"), one.ended
    (None, None, 'applied')
    """
    with cython.critical_section(owner):
        if not getattr(owner, name):
            setattr(owner, name, value)


cdef bint all_compiled(tuple given) except -1:
    """Return whether all of them that can be called run no bytecode then."""
    for one in given:
        kind = type(one)
        if kind is InTurn:
            if not (<InTurn>one).compiled:
                return False
        elif kind is functools.partial:
            if one.keywords or not all_compiled((one.func, *one.args)):
                return False
        elif kind is types.MethodType:
            if type(one.__func__) not in _COMPILED:
                return False
        elif callable(one) and kind not in _COMPILED:
            return False
    return True


def uninterrupted(function, *arguments):
    """Call ``function(*arguments)`` where no interrupt splits it, and return its result.

    It is called in another thread, with the context variables of this one, while this one waits: a
    signal handler that raises does so once the call has ended. A fork waits for it as well. Called
    from such a call it is a plain call; and so it is if it is an `InTurn` of compiled calls.

    Parameters
    ----------
    function : callable

    Examples
    --------
    >>> uninterrupted(max, 3, 5)
    5
    """
    cdef Caller who = caller()
    cdef _Errand errand
    cdef Spot spot
    cdef Py_ssize_t outstanding
    cdef Cores taken
    if who.shielded:
        return _change(who, function, arguments)
    if type(function) is InTurn and (<InTurn>function).compiled:
        return changed_here(function, *arguments)
    errand = _Errand.__new__(_Errand)
    errand.come_from(who)
    errand.function, errand.arguments = function, arguments
    errand.context = _copy_context()
    arm(&spot)
    try:
        with cython.critical_section(_shields):
            _shields.outstanding += 1
            outstanding = _shields.outstanding
        try:
            if not _shields.grow(outstanding) and not _shields.threads:
                # An interpreter that ends starts no threads; nor does it go on after an interrupt.
                return _change(who, function, arguments)
            no_cores(&taken)    # the caller sleeps: its core is as good as any
            _shields.put(errand, &taken)
            errand.wait(&spot)
        finally:
            with cython.critical_section(_shields):
                if _shields.outstanding:
                    _shields.outstanding -= 1
    finally:
        disarm(&spot)
    result, error = errand.result, errand.error
    errand.result = errand.error = None
    if error is None:
        return result
    try:
        raise error
    finally:
        error = None    # or it and its traceback would keep each other


def changed_here(function, *arguments):
    """Call ``function(*arguments)`` in this thread as a change that forks wait for.

    For what must not be called from another thread. An interrupt may split it, as any call.

    Examples
    --------
    >>> changed_here(max, 3, 5)
    5
    """
    cdef Caller who = caller()
    cdef bint shielded = who.shielded
    who.shielded = True     # changes inside it are made here too
    try:
        return _change(who, function, arguments)
    finally:
        who.shielded = shielded


cdef object _change(Caller who, object function, tuple arguments):
    begin_change(who)
    try:
        return function(*arguments)
    finally:
        end_change(who)


# Their types: of C, and of this module.
cdef tuple _COMPILED = (type(len), type(uninterrupted))


# --- operations in line --------------------------------------------------------------------------

cdef class Ticket:
    """The claim to the result of an operation.

    Attributes
    ----------
    done : bool
        Whether it has ended without an error.
    value : object
        What it returned.
    """

    cdef public bint done
    cdef public object value


cdef class Line:
    """Operations that one thread runs, in the order in which they were put.

    When one fails, those behind it do not run; the failure stays until it is taken.

    Attributes
    ----------
    failure : (str, BaseException) or None
        The operation that failed, and its error.

    Examples
    --------
    >>> import threading
    >>> line = Line()
    >>> threading.Thread(target=line.serve, daemon=True).start()
    >>> ticket = line.put("a sum", lambda: 1 + 1)
    >>> line.wait(ticket)
    >>> ticket.value
    2
    >>> line.end()
    """

    cdef object items
    cdef Py_ssize_t pending
    cdef Py_ssize_t submitted
    cdef Py_ssize_t finished
    cdef bint ending
    cdef Caller server
    cdef readonly object failure
    cdef Spot* idle
    cdef Spot* waiting

    def __cinit__(self):
        self.items = collections.deque()

    def put(self, operation, work):
        """Let the thread call ``work()`` after all that was put before; return its ticket."""
        cdef Ticket ticket = Ticket.__new__(Ticket)
        self._put((ticket, operation, work, caller().inside))
        return ticket

    def is_served_here(self):
        """Return whether the current thread is the one that runs the operations."""
        return caller() is self.server

    def end(self):
        """End the thread once it has run what was put before; may be called again."""
        cdef bint first
        with cython.critical_section(self):
            first = not self.ending
            self.ending = True
        if first:
            self._put(None)

    cdef int _put(self, item) except -1:
        self.items.append(item)
        with cython.critical_section(self):
            self.submitted += 1
            self.pending += 1
            wake_one(&self.idle)
        return 0

    def serve(self):
        """Run operations until the end; at once the end for any thread but the first."""
        cdef Caller who = caller()
        cdef Spot spot
        cdef Ticket ticket
        cdef bint first, found
        with cython.critical_section(self):
            first = self.server is None
            if first:
                self.server = who
        if not first:
            return
        who.shielded = True
        arm(&spot)
        try:
            while True:
                found = False
                with cython.critical_section(self):
                    if self.pending:
                        self.pending -= 1
                        found = True
                    else:
                        push(&self.idle, &spot)
                if not found:
                    pause(&spot, False)
                    continue
                item = self.items.popleft()
                value, failure = None, self.failure
                if item is not None and failure is None:
                    who.inside = item[3]
                    try:
                        value = item[2]()
                    except BaseException as error:  # the caller's next call raises it
                        failure = (item[1], error)
                    who.inside = ()
                if item is not None:
                    ticket = <Ticket>item[0]
                    ticket.value, ticket.done = value, failure is None
                    self.failure = failure
                with cython.critical_section(self):
                    self.finished += 1
                    wake_all(&self.waiting)
                if item is None:
                    return
                item = ticket = value = failure = None  # keep nothing alive while waiting
        finally:
            disarm(&spot)

    def wait(self, Ticket ticket=None):
        """Wait until an operation has ended, or one has failed; without one, for all put so far.

        Waiting can be interrupted.
        """
        cdef Spot spot
        cdef bint ended = False
        cdef Caller who = caller()
        cdef Py_ssize_t target = self.submitted
        spot.lock = NULL
        try:
            while True:
                with cython.critical_section(self):
                    if self.finished >= target if ticket is None else (
                        ticket.done or self.failure is not None
                    ):
                        ended = True
                    elif spot.lock != NULL:
                        push(&self.waiting, &spot)
                if ended:
                    return
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

    def take_failure(self):
        """Return the failure, after which operations run again; None if there is none."""
        failure, self.failure = self.failure, None
        return failure
