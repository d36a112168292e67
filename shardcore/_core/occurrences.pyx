"""The occurrences of rows in a batch, sorted by row: what makes one update per unique row possible.

A radix sort of (row, source) pairs, least digit first and stable, so that the occurrences of a row
keep the order in which they came: that order is the order in which its gradients are added.
Digits of 11 bits: 2,048 counters stay in the first-level cache. A digit in which all rows agree
costs no pass.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from types cimport index_t

cdef enum:
    DIGIT_BITS = 11
    BUCKETS = 1 << 11
    MAX_DIGITS = 6      # 6 * 11 >= 63

COUNTERS = BUCKETS      # what `sort_rows` counts in

ctypedef fused sort_key_t:
    uint32_t
    uint64_t


def sort_rows(const index_t[::1] rows__n, const int32_t[::1] sources__n,
              sort_key_t[:, ::1] key_space__2n, int32_t[:, ::1] source_space__2n,
              int64_t[::1] counters):
    """Sort `rows__n` (n,), none negative, together with `sources__n` (n,).

    The two spaces (2, n) are scratch; `counters` holds `COUNTERS`. Return which of the two
    planes holds the result. O(n) per digit of 11 bits in which the rows differ.
    """
    cdef int plane = 0
    cdef Py_ssize_t n = rows__n.shape[0]
    if n == 0:
        return 0
    with nogil:
        plane = _sort(&rows__n[0], &sources__n[0], n, &key_space__2n[0, 0], &key_space__2n[1, 0],
                      &source_space__2n[0, 0], &source_space__2n[1, 0], &counters[0])
    return plane


cdef int _sort(const index_t* rows__n, const int32_t* sources__n, Py_ssize_t n,
               sort_key_t* keys_a, sort_key_t* keys_b, int32_t* sources_a, int32_t* sources_b,
               int64_t* counters) noexcept nogil:
    cdef Py_ssize_t i
    cdef int digit, shift, done = 0
    cdef uint64_t key, differing = 0, first = <uint64_t>rows__n[0]
    cdef sort_key_t* keys_from
    cdef sort_key_t* keys_to
    cdef int32_t* sources_from
    cdef int32_t* sources_to
    for i in range(n):
        differing |= <uint64_t>rows__n[i] ^ first
    for digit in range(MAX_DIGITS):
        shift = digit * DIGIT_BITS
        if not (differing >> shift) & (BUCKETS - 1):
            continue
        if done == 0:           # the first pass reads the caller's arrays
            for i in range(BUCKETS):
                counters[i] = 0
            for i in range(n):
                counters[(<uint64_t>rows__n[i] >> shift) & (BUCKETS - 1)] += 1
            starts_from_counts(counters)
            place_from_input(rows__n, sources__n, n, shift, counters, keys_a, sources_a)
        else:
            keys_from = keys_a if done % 2 else keys_b
            keys_to = keys_b if done % 2 else keys_a
            sources_from = sources_a if done % 2 else sources_b
            sources_to = sources_b if done % 2 else sources_a
            for i in range(BUCKETS):
                counters[i] = 0
            for i in range(n):
                counters[(<uint64_t>keys_from[i] >> shift) & (BUCKETS - 1)] += 1
            starts_from_counts(counters)
            place(keys_from, sources_from, n, shift, counters, keys_to, sources_to)
        done += 1
    if done == 0:               # one row only: the order is the order of the input
        for i in range(n):
            keys_a[i] = <sort_key_t>rows__n[i]
            sources_a[i] = sources__n[i]
        return 0
    return (done + 1) % 2


cdef void starts_from_counts(int64_t* counters) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t total = 0, count
    for i in range(BUCKETS):
        count = counters[i]
        counters[i] = total
        total += count


cdef void place_from_input(const index_t* rows__n, const int32_t* sources__n, Py_ssize_t n,
                           int shift, int64_t* counters, sort_key_t* keys_to,
                           int32_t* sources_to) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t at
    cdef uint64_t bucket
    for i in range(n):
        bucket = (<uint64_t>rows__n[i] >> shift) & (BUCKETS - 1)
        at = counters[bucket]
        counters[bucket] = at + 1
        keys_to[at] = <sort_key_t>rows__n[i]
        sources_to[at] = sources__n[i]


cdef void place(const sort_key_t* keys_from, const int32_t* sources_from, Py_ssize_t n, int shift,
                int64_t* counters, sort_key_t* keys_to, int32_t* sources_to) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t at
    cdef uint64_t bucket
    for i in range(n):
        bucket = (<uint64_t>keys_from[i] >> shift) & (BUCKETS - 1)
        at = counters[bucket]
        counters[bucket] = at + 1
        keys_to[at] = keys_from[i]
        sources_to[at] = sources_from[i]


def unique_runs(const sort_key_t[::1] sorted__n, int64_t[::1] unique__u, int64_t[::1] run_splits):
    """Write each distinct value of `sorted__n` (n,) and where its run starts; return how many.

    `unique__u` has room for n, `run_splits` for n + 1. O(n).
    """
    cdef Py_ssize_t found = 0
    if sorted__n.shape[0] == 0:
        run_splits[0] = 0
        return 0
    with nogil:
        found = _unique_runs(&sorted__n[0], sorted__n.shape[0], &unique__u[0], &run_splits[0])
    return found


cdef Py_ssize_t _unique_runs(const sort_key_t* sorted__n, Py_ssize_t n, int64_t* unique__u,
                             int64_t* run_splits) noexcept nogil:
    cdef Py_ssize_t i, found = 0
    for i in range(n):
        if i == 0 or sorted__n[i] != sorted__n[i - 1]:
            unique__u[found] = <int64_t>sorted__n[i]
            run_splits[found] = i
            found += 1
    run_splits[found] = n
    return found
