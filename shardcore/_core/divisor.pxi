"""Division of numbers below 2**31 by one that is fixed: a product and a shift."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef struct Divisor:    # see divisor_of
    uint32_t factor
    int shift


cdef inline Divisor divisor_of(int64_t divisor) noexcept nogil:
    """Return what divides ids below 2**31 by 1 <= divisor <= 2**31.

    With l = ceil(log2(divisor)) and factor = ceil(2**(31 + l) / divisor) < 2**32, the quotient is
    id * factor >> 31 + l (Granlund and Montgomery, "Division by Invariant Integers using
    Multiplication", 1994, theorem 4.2).
    """
    cdef Divisor found
    cdef int log = 0
    while <int64_t>1 << log < divisor:
        log += 1
    found.shift = 31 + log
    found.factor = <uint32_t>(
        ((<uint64_t>1 << found.shift) + <uint64_t>divisor - 1) // <uint64_t>divisor
    )
    return found


cdef inline int64_t quotient(int64_t row, Divisor divisor) noexcept nogil:
    return <int64_t>(<uint64_t><uint32_t>row * <uint64_t>divisor.factor >> divisor.shift)
