"""Numbers that several threads add to, each time in one call: nothing comes between."""

cimport cython
from libc.stdint cimport int64_t

__all__ = ["Tally"]

cdef enum:
    MOST = 8


cdef class Tally:
    """A few numbers, zeros at first.

    Parameters
    ----------
    size : int, in [1, 8]
        How many.

    Examples
    --------
    >>> tally = Tally(2)
    >>> tally.add(1, 5)
    >>> tally.add(1, 2)
    >>> tally.read()
    (2, 7)
    """

    cdef int64_t counts[MOST]
    cdef Py_ssize_t size

    def __cinit__(self, Py_ssize_t size):
        if not 1 <= size <= MOST:
            raise ValueError(f"size must be in [1, {MOST}], got {size}")
        self.size = size

    def __reduce__(self):
        raise TypeError("a Tally cannot be copied or pickled")

    def add(self, *amounts):
        """Add to every number; all of them at once, to other threads."""
        cdef int64_t added[MOST]
        cdef Py_ssize_t at
        if len(amounts) != self.size:
            raise TypeError(f"amounts must be {self.size} numbers, got {len(amounts)}")
        for at in range(self.size):
            added[at] = amounts[at]
        with cython.critical_section(self):
            for at in range(self.size):
                self.counts[at] += added[at]

    def read(self):
        """Return the numbers, as they were at one time."""
        cdef int64_t found[MOST]
        cdef Py_ssize_t at
        with cython.critical_section(self):
            for at in range(self.size):
                found[at] = self.counts[at]
        return tuple([found[at] for at in range(self.size)])
