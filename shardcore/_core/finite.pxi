"""Tests of arrays: whether all of their numbers are finite.

A part of ``rows.pxi``. Those of all gradients of a step are shared out: see ``shares.pxi``.
"""

cdef enum:
    MOST_NUMBERS = 1 << 18      # of a part: one share does all of it

cdef int64_t no_values[2]       # the splits of a part of one segment, whose work is its cost

cdef struct Numbers:            # an array, or a piece of one, in plain memory
    const void* values
    Py_ssize_t count
    bint wide                   # whether they are of float64


cdef class FiniteTests(Shares):
    """Tests of arrays: added one by one, cut into shares, made by any number of threads."""

    cdef Numbers* numbers

    def __dealloc__(self):
        PyMem_Free(self.numbers)

    def add(self, values):
        """Add an array of float32 or float64, C-contiguous, of any shape."""
        cdef Plain plain
        cdef Numbers numbers
        cdef const char* start
        cdef Py_ssize_t left
        if not (found_plain(values, False, &plain) and (
                holds(&plain, b"d", sizeof(float64_t)) or holds(&plain, b"f", sizeof(float32_t)))):
            raise TypeError("a test must have an array of float32 or float64, C-contiguous")
        numbers.wide = plain.itemsize == sizeof(float64_t)
        self.held.append(values)
        start, left = <const char*>plain.start, plain.size
        while left > 0:
            numbers.values, numbers.count = start, min(left, MOST_NUMBERS)
            self.numbers = <Numbers*>with_room(self.numbers, self.count, sizeof(Numbers))
            self.numbers[self.count] = numbers
            self.append(no_values, 1, numbers.count, True)
            start += numbers.count * plain.itemsize
            left -= numbers.count

    def make(self, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many; return whether all is finite there.

        O(n).
        """
        cdef bint finite
        with nogil:
            finite = self.make_shares(most)
        return finite

    def make_alone(self, Py_ssize_t most):
        """Do what `make` does for all at once, if that is at most so much work. None: it is more."""
        return self.make() if self.is_alone(most) else None

    cdef bint make_shares(self, Py_ssize_t most) noexcept nogil:
        cdef Py_ssize_t share, at
        cdef bint finite = True
        while most > 0:
            share = self.next_share()
            if share == self.shares:
                break
            for at in range(self.borders[share].part, self.part_after(share)):
                if self.numbers[at].wide:
                    finite &= are_finite(<const float64_t*>self.numbers[at].values,
                                         self.numbers[at].count)
                else:
                    finite &= are_finite(<const float32_t*>self.numbers[at].values,
                                         self.numbers[at].count)
            most -= 1
        return finite


cdef inline bint are_finite(const value_t* values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint32_t found = 0
    cdef uint64_t wide_found = 0
    # An exponent of ones and one more carry into the sign: no branch, many at once.
    for i in range(count):
        if value_t is float64_t:
            wide_found |= ((<const uint64_t*>values)[i] & <uint64_t>0x7ff0000000000000) + (
                <uint64_t>1 << 52)
        else:
            found |= ((<const uint32_t*>values)[i] & 0x7f800000) + (<uint32_t>1 << 23)
    return not (found >> 31 or wide_found >> 63)
