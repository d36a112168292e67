"""Pairs of a key and a source, and how a bucket of them is sorted: digit by digit, stable.

Where many go to places that counters tell, they go two at a time: both counters are read before one is
written. A counter that was just written is slow to read, and where pairs often share one, processors
take as long for every pair as if they all did.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

cdef enum:
    FEW = 24        # pairs that are sorted by insertion

cdef struct narrow_t:
    uint32_t key
    int32_t source

cdef struct wide_t:     # for tables of more than 2**32 rows
    uint64_t key
    int64_t source

ctypedef fused pair_t:
    narrow_t
    wide_t


cdef void count(const pair_t* pairs, Py_ssize_t n, int digits, int bits,
                uint32_t* counters) noexcept nogil:
    """Count the values of all digits, in one pass."""
    cdef Py_ssize_t i
    cdef int digit
    cdef uint64_t key, mask = (<uint64_t>1 << bits) - 1
    for i in range(digits << bits):
        counters[i] = 0
    for i in range(n):
        key = pairs[i].key
        for digit in range(digits):
            counters[(<uint64_t>digit << bits) + ((key >> (digit * bits)) & mask)] += 1


cdef void insert(pair_t* pairs, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, at
    cdef pair_t pair
    for i in range(1, n):
        pair = pairs[i]
        at = i
        while at > 0 and pairs[at - 1].key > pair.key:
            pairs[at] = pairs[at - 1]
            at -= 1
        pairs[at] = pair


cdef int place(const pair_t* pairs, Py_ssize_t n, int shift, int bits, uint32_t* counters,
               pair_t* to) noexcept nogil:
    """Sort by one digit into `to`, and return 1; or 0, where all agree in it and nothing moved."""
    cdef Py_ssize_t i, values = <Py_ssize_t>1 << bits
    cdef uint64_t value, next_value, mask = values - 1
    cdef uint32_t total = 0, found, next_found
    if counters[(<uint64_t>pairs[0].key >> shift) & mask] == n:
        return 0
    for i in range(values):
        found = counters[i]
        counters[i] = total
        total += found
    i = 0
    while i + 2 <= n:
        value = (<uint64_t>pairs[i].key >> shift) & mask
        next_value = (<uint64_t>pairs[i + 1].key >> shift) & mask
        found, next_found = counters[value], counters[next_value] + (next_value == value)
        counters[value] = found + 1
        counters[next_value] = next_found + 1
        to[found] = pairs[i]
        to[next_found] = pairs[i + 1]
        i += 2
    if i < n:
        to[counters[(<uint64_t>pairs[i].key >> shift) & mask]] = pairs[i]
    return 1


cdef pair_t* sorted_pairs(pair_t* pairs, pair_t* spare, Py_ssize_t n, int bits_left, int digit_bits,
                          uint32_t* counters) noexcept nogil:
    """Sort by the lowest bits, in digits of at most `digit_bits`; return where the pairs lie then.

    That is one of the two. `counters` has room for 2**digit_bits numbers a digit.
    """
    cdef int digits = (bits_left + digit_bits - 1) // digit_bits, done = 0, digit, bits
    if n <= FEW:
        insert(pairs, n)
    elif digits:
        bits = (bits_left + digits - 1) // digits   # of equal width: 14 bits are two digits of 7
        count(pairs, n, digits, bits, counters)
        for digit in range(digits):
            if done % 2 == 0:
                done += place(pairs, n, digit * bits, bits, counters + (digit << bits), spare)
            else:
                done += place(spare, n, digit * bits, bits, counters + (digit << bits), pairs)
    return spare if done % 2 else pairs
