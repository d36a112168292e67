"""The life of an engine: which calls may come when, and which of them its end waits for.

Compiled, since every call of an engine comes through here: a call of training takes its locks in one
step, not in seven calls of Python functions.
"""

from shardcore.errors import ShardcoreRuntimeError
from shardcore.threads.lock import call_inside

from shardcore.threads.lock cimport Caller, Mutex, ReadWriteLock, caller

__all__ = ["Life"]


cdef class Life:
    """Open, then closed.

    Attributes
    ----------
    closed : bool
        Whether the tables were given back.
    closing : bool
        Whether they were, or are about to be: no call begins any more.

    Examples
    --------
    >>> life = Life()
    >>> life.using("a sum", max, 3, 5)
    5
    """

    def __cinit__(self):
        self.lock = ReadWriteLock()     # calls that use the tables read, the end writes
        self.one_at_a_time = Mutex()

    def __reduce__(self):
        raise TypeError("a Life cannot be copied or pickled")

    def using(self, call, function, *arguments):
        """Call ``function(*arguments)`` while the engine is open; `close` waits for it."""
        return self.viewing(call, self._while_open, call, function, arguments)

    def _while_open(self, call, function, arguments):
        self.check_open(call)
        return function(*arguments)

    def viewing(self, call, function, *arguments):
        """Call ``function(*arguments)``, which says itself that the engine was closed."""
        cdef Caller who = caller()
        self.refuse_callback(who, call)
        self.lock._begin_reading(who)
        try:
            return function(*arguments)
        finally:
            self.lock._end_reading()

    def alone(self, call, function, *arguments):
        """Call ``function(*arguments)`` as `using` and `inside` do, one such call at a time."""
        cdef Caller who = caller()
        self.refuse_callback(who, call)
        self.lock._begin_reading(who)
        try:
            if self.closing:
                self.check_open(call)
            self.one_at_a_time._begin(who)
            try:
                return call_inside(self, function, *arguments)
            finally:
                self.one_at_a_time._end()
        finally:
            self.lock._end_reading()

    def between(self, function, *arguments):
        """Call ``function(*arguments)`` while none is made that comes `alone`."""
        self.one_at_a_time._begin(caller())
        try:
            return function(*arguments)
        finally:
            self.one_at_a_time._end()

    def inside(self, function, *arguments):
        """Call ``function(*arguments)``, which may call back; `is_inside` is true meanwhile."""
        return call_inside(self, function, *arguments)

    def is_inside(self):
        """Return whether this code was called back from a call of the engine."""
        return self.has(caller())

    cdef bint has(self, Caller who) noexcept:
        cdef object one
        if who.inside:
            for one in who.inside:
                if one is self:
                    return True
        return False

    def check_open(self, call):
        """Raise if the engine is closed, or about to be."""
        if self.closing:
            raise ShardcoreRuntimeError(f"{call} came after close: the tables are gone")

    def check_callback(self, call):
        """Raise where a call of the engine has called back."""
        self.refuse_callback(caller(), call)

    cdef int refuse_callback(self, Caller who, call) except -1:
        if self.has(who):
            raise ShardcoreRuntimeError(
                f"{call} came from inside another call of this engine: an optimizer, a learning "
                "rate or an initializer must not call the engine it works for"
            )
        return 0

    def end(self, stop, change, give_back):
        """Call ``change(give_back)`` once no other call uses the tables; None if that was done.

        No new call begins from now on. If cut short, it can be done again.

        Parameters
        ----------
        stop : callable
            Waits for what goes on in the background.
        change : callable
            `Backend.change`.
        give_back : callable
            Sets `closed`.
        """
        self.check_callback("close")
        if self.closed:
            return None
        self.closing = True
        stop()
        return self.lock.write(change, self._once, give_back)

    def _once(self, give_back):
        return None if self.closed else give_back()  # another thread has closed it meanwhile
