"""Which shard holds each id, at which local row; the ids grouped by shard, and the way back.

Two strategies cover all layouts. "mod": shard = id mod s, local = id div s. "ranges": shard s holds
[offsets[s], offsets[s + 1]); a small table over the high bits of the id gives the first shard that
can hold it, so that no search and no division is needed (div is such a layout).
"""

from libc.stdint cimport int32_t, int64_t

from types cimport index_t

cdef enum:
    NEAR = 8        # shards in one cell of the table that are walked; beyond, they are bisected


cdef struct Ranges:
    const int64_t* offsets
    const int32_t* first    # first[cell]: the shard that holds row cell << shift
    int shift


cdef inline Py_ssize_t range_of(const Ranges* ranges, int64_t row) noexcept nogil:
    cdef int64_t cell = row >> ranges.shift
    cdef Py_ssize_t lo = ranges.first[cell], hi = ranges.first[cell + 1] + 1, middle
    if hi - lo <= NEAR:
        while ranges.offsets[lo + 1] <= row:
            lo += 1
        return lo
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if ranges.offsets[middle] <= row:
            lo = middle
        else:
            hi = middle
    return lo


cdef inline int64_t quotient(int64_t row, int64_t shards, double inverse) noexcept nogil:
    """Return row // shards through the reciprocal; exact for row < 2**53, mended by one step."""
    cdef int64_t q = <int64_t>(<double>row * inverse)
    cdef int64_t rest = row - q * shards
    if rest < 0:
        return q - 1
    if rest >= shards:
        return q + 1
    return q


def shard_table(const int64_t[::1] offsets, int shift, int32_t[::1] first):
    """Write, for every cell of 2**shift rows, the shard of its first row; the last repeats. O(s)."""
    cdef Py_ssize_t cell, shard = 0, last = offsets.shape[0] - 2
    with nogil:
        for cell in range(first.shape[0]):
            # offsets[shard + 1] <= cell << shift, without the shift that could overflow
            while shard < last and (offsets[shard + 1] - 1) >> shift < cell:
                shard += 1
            first[cell] = <int32_t>shard


def first_outside(const index_t[::1] ids__n, int64_t rows):
    """Return the first position of an id outside [0, rows), or -1. O(n)."""
    cdef Py_ssize_t bad
    with nogil:
        bad = _first_outside(&ids__n[0] if ids__n.shape[0] else NULL, ids__n.shape[0], rows)
    return bad


cdef Py_ssize_t _first_outside(const index_t* ids__n, Py_ssize_t n, int64_t rows) noexcept nogil:
    cdef Py_ssize_t i, j, stop, bad = 0
    i = 0
    while i < n:            # blocks without a branch inside, so that the compiler does many at once
        stop = i + 1024 if n - i > 1024 else n
        bad = 0
        for j in range(i, stop):
            bad |= (ids__n[j] < 0) | (ids__n[j] >= rows)
        if bad:
            for j in range(i, stop):
                if ids__n[j] < 0 or ids__n[j] >= rows:
                    return j
        i = stop
    return -1


def locate_ranges(const index_t[::1] ids__n, const int64_t[::1] offsets, const int32_t[::1] first,
                  int shift, int64_t[::1] shard__n, int64_t[::1] local__n):
    """Write shard and local row of each id. Return -1 or the first position out of range."""
    cdef Py_ssize_t bad, n = ids__n.shape[0]
    cdef Ranges ranges
    if n == 0:
        return -1
    ranges.offsets, ranges.first, ranges.shift = &offsets[0], &first[0], shift
    with nogil:
        bad = _locate_ranges(&ids__n[0], n, &ranges, offsets[offsets.shape[0] - 1], &shard__n[0],
                             &local__n[0])
    return bad


cdef Py_ssize_t _locate_ranges(const index_t* ids__n, Py_ssize_t n, const Ranges* ranges,
                               int64_t rows, int64_t* shard__n, int64_t* local__n) noexcept nogil:
    cdef Py_ssize_t i, shard
    for i in range(n):
        if ids__n[i] < 0 or ids__n[i] >= rows:
            return i
        shard = range_of(ranges, ids__n[i])
        shard__n[i] = shard
        local__n[i] = ids__n[i] - ranges.offsets[shard]
    return -1


def locate_mod(const index_t[::1] ids__n, int64_t rows, int64_t shards, int64_t[::1] shard__n,
               int64_t[::1] local__n):
    """Write shard and local row of each id. Return -1 or the first position out of range."""
    cdef Py_ssize_t bad, n = ids__n.shape[0]
    if n == 0:
        return -1
    with nogil:
        bad = _locate_mod(&ids__n[0], n, rows, shards, &shard__n[0], &local__n[0])
    return bad


cdef Py_ssize_t _locate_mod(const index_t* ids__n, Py_ssize_t n, int64_t rows, int64_t shards,
                            int64_t* shard__n, int64_t* local__n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        if ids__n[i] < 0 or ids__n[i] >= rows:
            return i
        local__n[i] = ids__n[i] // shards
        shard__n[i] = ids__n[i] - local__n[i] * shards
    return -1


def group_ranges(const index_t[::1] ids__n, const int64_t[::1] offsets, const int32_t[::1] first,
                 int shift, index_t[::1] local__n, int64_t[::1] row_splits,
                 int64_t[::1] inverse__n):
    """Group ids by shard, stably: local rows, the shards' ranges of them, and the way back.

    ``ids[i]`` sits at ``local__n[inverse__n[i]]``. Two passes over the ids, O(n + s).
    Return -1 or the first position out of range; the outputs are then unfinished.
    """
    cdef Py_ssize_t bad, n = ids__n.shape[0]
    cdef Ranges ranges
    ranges.offsets, ranges.first, ranges.shift = &offsets[0], &first[0], shift
    row_splits[:] = 0
    if n == 0:
        return -1
    with nogil:
        bad = _group_ranges(&ids__n[0], n, &ranges, offsets[offsets.shape[0] - 1], &local__n[0],
                            &row_splits[0], offsets.shape[0] - 1, &inverse__n[0])
    return bad


cdef Py_ssize_t _group_ranges(const index_t* ids__n, Py_ssize_t n, const Ranges* ranges,
                              int64_t rows, index_t* local__n, int64_t* row_splits,
                              Py_ssize_t shards, int64_t* inverse__n) noexcept nogil:
    cdef Py_ssize_t i, shard
    cdef int64_t place
    for i in range(n):
        if ids__n[i] < 0 or ids__n[i] >= rows:
            return i
        shard = range_of(ranges, ids__n[i])
        inverse__n[i] = shard           # held here until the second pass needs the place
        row_splits[shard + 1] += 1
    starts_from_counts(row_splits, shards)
    for i in range(n):
        shard = <Py_ssize_t>inverse__n[i]
        place = row_splits[shard]
        row_splits[shard] = place + 1
        local__n[place] = <index_t>(ids__n[i] - ranges.offsets[shard])
        inverse__n[i] = place
    splits_from_ends(row_splits, shards)
    return -1


def group_mod(const index_t[::1] ids__n, int64_t rows, int64_t shards, index_t[::1] local__n,
              int64_t[::1] row_splits, int64_t[::1] inverse__n):
    """Group ids by shard as `group_ranges` does, for the layout "mod"."""
    cdef Py_ssize_t bad, n = ids__n.shape[0]
    row_splits[:] = 0
    if n == 0:
        return -1
    with nogil:
        bad = _group_mod(&ids__n[0], n, rows, shards, &local__n[0], &row_splits[0], &inverse__n[0])
    return bad


cdef Py_ssize_t _group_mod(const index_t* ids__n, Py_ssize_t n, int64_t rows, int64_t shards,
                           index_t* local__n, int64_t* row_splits,
                           int64_t* inverse__n) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t place, shard, local
    cdef double inverse = 1.0 / <double>shards
    cdef bint small = rows < (<int64_t>1 << 53)
    for i in range(n):
        if ids__n[i] < 0 or ids__n[i] >= rows:
            return i
        local = quotient(ids__n[i], shards, inverse) if small else <int64_t>ids__n[i] // shards
        shard = ids__n[i] - local * shards
        inverse__n[i] = shard
        row_splits[shard + 1] += 1
    starts_from_counts(row_splits, shards)
    for i in range(n):
        shard = inverse__n[i]
        place = row_splits[shard]
        row_splits[shard] = place + 1
        local = quotient(ids__n[i], shards, inverse) if small else <int64_t>ids__n[i] // shards
        local__n[place] = <index_t>local
        inverse__n[i] = place
    splits_from_ends(row_splits, shards)
    return -1


cdef void starts_from_counts(int64_t* row_splits, Py_ssize_t shards) noexcept nogil:
    """Turn counts at [1, shards] into starts at [0, shards)."""
    cdef Py_ssize_t shard
    for shard in range(shards):
        row_splits[shard + 1] += row_splits[shard]


cdef void splits_from_ends(int64_t* row_splits, Py_ssize_t shards) noexcept nogil:
    """Undo the advance of the cursors: each stands at its shard's end, which is the next start."""
    cdef Py_ssize_t shard
    for shard in range(shards - 1, 0, -1):
        row_splits[shard] = row_splits[shard - 1]
    row_splits[0] = 0
