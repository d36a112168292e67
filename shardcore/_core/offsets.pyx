"""Row splits: b bags of n values are the ranges [row_splits[i], row_splits[i + 1])."""

from libc.stdint cimport uint64_t

include "plain_arrays.pxi"


def splits_from_lengths(const index_t[::1] lengths__b, int64_t[::1] row_splits):
    """Write the running sums of `lengths__b` (b,) to `row_splits` (b + 1,).

    Return -1, or the first position whose length is negative or makes the sum overflow.
    O(b), allocates nothing.
    """
    cdef Py_ssize_t bad
    with nogil:
        bad = _splits_from_lengths(&lengths__b[0] if lengths__b.shape[0] else NULL,
                                   lengths__b.shape[0], &row_splits[0])
    return bad


cdef Py_ssize_t _splits_from_lengths(const index_t* lengths__b, Py_ssize_t bags,
                                     int64_t* row_splits) noexcept nogil:
    cdef Py_ssize_t b
    cdef int64_t total = 0
    row_splits[0] = 0
    for b in range(bags):
        if lengths__b[b] < 0 or total > <int64_t>0x7fffffffffffffff - lengths__b[b]:
            return b
        total += lengths__b[b]
        row_splits[b + 1] = total
    return -1


def lengths_from_splits(const index_t[::1] row_splits, int64_t[::1] lengths__b):
    """Write the differences of `row_splits` (b + 1,) to `lengths__b` (b,). O(b)."""
    cdef Py_ssize_t b
    with nogil:
        for b in range(lengths__b.shape[0]):
            lengths__b[b] = <int64_t>row_splits[b + 1] - <int64_t>row_splits[b]


def take_splits(const index_t[::1] row_splits, int64_t values, int64_t[::1] own):
    """Copy the row splits to `own` (b + 1,), b >= 0, and check the copy. O(b).

    Return -1, or the first position that is not 0 at the start, less than its predecessor, or not
    `values` at the end.
    """
    cdef Py_ssize_t i, count = own.shape[0], bad = -1
    with nogil:
        if index_t is int64_t:
            memcpy(&own[0], &row_splits[0], count * sizeof(int64_t))
        else:
            for i in range(count):
                own[i] = row_splits[i]
        forget_sources()
        if own[0] != 0:
            bad = 0
        else:
            if not _rise(&own[0], count):
                bad = _first_descent(&own[0], count)
            if bad < 0 and own[count - 1] != values:
                bad = count - 1
    return bad


def take_offsets(offsets, Py_ssize_t values, bint include_last, row_splits):
    """Copy where bags begin to `row_splits`, and check the copy; return whether all is right. O(b).

    `offsets` are of int64 and plain, as `row_splits` are: (b,), to which `values` is added, or (b + 1,)
    with `include_last`. They are to be at least one, and to go from 0 to `values` without a step down.
    """
    cdef Plain given, own
    cdef int64_t* splits
    if not (found_plain(offsets, False, &given) and found_plain(row_splits, True, &own)
            and holds(&given, INTEGERS, 8) and holds(&own, INTEGERS, 8)
            and given.ndim == 1 and own.ndim == 1 and given.size > 0
            and own.size == given.size + (not include_last)):
        return False
    splits = <int64_t*>own.start
    copy_numbers(<const int64_t*>given.start, given.size, splits)
    if not include_last:
        splits[given.size] = values
    return splits[0] == 0 and _rise(splits, own.size) and splits[own.size - 1] == values


def first_descent(const index_t[::1] row_splits):
    """Return the first i with ``row_splits[i] < row_splits[i - 1]``, or -1. O(b)."""
    cdef Py_ssize_t bad
    with nogil:
        bad = _first_descent(&row_splits[0] if row_splits.shape[0] else NULL, row_splits.shape[0])
    return bad


cdef bint _rise(const int64_t* row_splits, Py_ssize_t count) noexcept nogil:
    """Return whether none is less than the one before, from the first on, which is 0.

    The sign bit of a number, or of a step, is set where that is not so: a loop without a branch or
    a comparison, for which every processor has vectors.
    """
    cdef uint64_t wrong = 0
    cdef Py_ssize_t i
    for i in range(1, count):
        wrong |= <uint64_t>row_splits[i]
        wrong |= <uint64_t>row_splits[i] - <uint64_t>row_splits[i - 1]
    return wrong >> 63 == 0


cdef Py_ssize_t _first_descent(const index_t* row_splits, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, count):
        if row_splits[i] < row_splits[i - 1]:
            return i
    return -1


def row_ids_from_splits(const index_t[::1] row_splits, int64_t[::1] row_ids__n):
    """Write each value's bag to `row_ids__n` (n,), n = row_splits[b]. O(n)."""
    cdef Py_ssize_t b, i
    with nogil:
        for b in range(row_splits.shape[0] - 1):
            for i in range(row_splits[b], row_splits[b + 1]):
                row_ids__n[i] = b


def splits_from_row_ids(const index_t[::1] row_ids__n, int64_t[::1] row_splits):
    """Write the row splits (b + 1,) of non-decreasing row ids (n,) in [0, b). O(n + b).

    Return -1, or the first position out of range or below its predecessor.
    """
    cdef Py_ssize_t bad
    with nogil:
        bad = _splits_from_row_ids(&row_ids__n[0] if row_ids__n.shape[0] else NULL,
                                   row_ids__n.shape[0], row_splits.shape[0] - 1, &row_splits[0])
    return bad


cdef Py_ssize_t _splits_from_row_ids(const index_t* row_ids__n, Py_ssize_t n, Py_ssize_t bags,
                                     int64_t* row_splits) noexcept nogil:
    cdef Py_ssize_t i, b = 0
    for i in range(n):
        if row_ids__n[i] < 0 or row_ids__n[i] >= bags or row_ids__n[i] < b - 1:
            return i
        while b <= row_ids__n[i]:
            row_splits[b] = i
            b += 1
    while b <= bags:
        row_splits[b] = n
        b += 1
    return -1
