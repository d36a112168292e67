"""Sums of bags, divided as their combiners have it by what is read where it lies: counts, or weights."""

from libc.math cimport sqrt, sqrtf

from types cimport float64_t, value_t

cdef enum:
    SUM, MEAN, SQRTN
    BY_GIVEN            # by divisors that others made, or by none

DIVIDED = {"sum": SUM, "mean": MEAN, "sqrtn": SQRTN}
"""Combiner -> its number for those that divide by what they read."""

GIVEN_DIVISORS = BY_GIVEN
"""What stands for divisors that are given, or none, in place of such a number."""


cdef inline bint divide(value_t* out__d, Py_ssize_t dim, const value_t* weights__n, Py_ssize_t lo,
                        Py_ssize_t hi, int divided) noexcept nogil:
    """Divide the sum of the bag [lo, hi) as its combiner has it; return whether that is finite.

    `weights__n` may be NULL: all are 1. An infinite weight, or NaN, leaves neither a finite divisor
    nor, where there is none, a finite sum in any column: so the weights are not looked at.
    """
    cdef value_t divisor = <value_t>(hi - lo)
    if divided == SUM:
        return weights__n == NULL or is_finite(out__d[0])
    if weights__n != NULL:
        divisor = total_of(weights__n, lo, hi, divided == SQRTN)
        if not is_finite(divisor):
            return False
    if divided == SQRTN:
        if value_t is float64_t:
            divisor = sqrt(divisor)
        else:
            divisor = sqrtf(divisor)
    divide_by(divisor, out__d, dim)
    return True


cdef inline void divide_by(value_t divisor, value_t* out__d, Py_ssize_t dim) noexcept nogil:
    """Divide a row; a divisor of 0 gives zeros."""
    cdef Py_ssize_t c
    if divisor == 0:
        for c in range(dim):
            out__d[c] = 0
    else:
        for c in range(dim):
            out__d[c] = out__d[c] / divisor


cdef inline value_t total_of(const value_t* values__n, Py_ssize_t lo, Py_ssize_t hi,
                             bint squared) noexcept nogil:
    """Return the sum of a bag's values, or of their squares, in occurrence order."""
    cdef value_t total = 0
    cdef Py_ssize_t i
    for i in range(lo, hi):
        total += values__n[i] * values__n[i] if squared else values__n[i]
    return total


cdef inline bint is_finite(value_t value) noexcept nogil:
    return value - value == 0
