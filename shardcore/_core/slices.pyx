"""A slice over the rows of consecutive shards, cut into one local slice per shard it touches.

Element k of the slice is row start + k * step. Shard s holds rows [offsets[s], offsets[s + 1]);
shards may be empty. Work and memory are proportional to the shards touched: the next one is found
by bisection from the last, never by walking.
"""

from cpython.slice cimport PySlice_GetIndicesEx
from libc.stdint cimport int64_t

cdef enum:
    KEPT = 4            # slices that are kept to be used again


cdef struct Piece:
    Py_ssize_t shard
    int64_t start       # local row of the first element
    int64_t count       # elements in this shard, >= 1


cdef Py_ssize_t shard_of(const int64_t* offsets, Py_ssize_t lo, Py_ssize_t hi,
                         int64_t row) noexcept nogil:
    """Return the shard of [lo, hi) that holds `row`: the last whose offset is <= row."""
    cdef Py_ssize_t middle
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if offsets[middle] <= row:
            lo = middle
        else:
            hi = middle
    return lo


cdef Py_ssize_t next_shard(const int64_t* offsets, Py_ssize_t shards, Py_ssize_t shard,
                           int64_t row, bint forward) noexcept nogil:
    """Return the shard of `row`, known to lie after (or before) `shard`; near ones come first."""
    cdef Py_ssize_t reach = 1, edge
    if forward:
        while shard + reach < shards and offsets[shard + reach] <= row:
            reach *= 2
        edge = shard + reach
        return shard_of(offsets, shard + reach // 2, edge if edge < shards else shards, row)
    while shard - reach > 0 and offsets[shard - reach] > row:
        reach *= 2
    edge = shard - reach
    return shard_of(offsets, edge if edge > 0 else 0, shard - reach // 2, row)


cdef int64_t stop_of(Piece piece, int64_t step) noexcept nogil:
    """Return the local row one step past the last element, at most 2**63 - 1; < 0 below row 0."""
    cdef int64_t last = piece.start + (piece.count - 1) * step
    if step > 0 and last > <int64_t>0x7fffffffffffffff - step:
        return 0x7fffffffffffffff
    return last + step


cdef Piece piece_at(const int64_t* offsets, Py_ssize_t shard, int64_t row, int64_t step,
                    int64_t left) noexcept nogil:
    """Return the piece of `shard` that begins at global `row`, with `left` elements to go."""
    cdef Piece piece
    cdef int64_t room
    if step > 0:
        room = (offsets[shard + 1] - 1 - row) // step + 1
    else:
        room = (row - offsets[shard]) // -step + 1
    piece.shard = shard
    piece.start = row - offsets[shard]
    piece.count = room if room < left else left
    return piece


def decompose(const int64_t[::1] offsets, slice rows not None):
    """Return ``[(shard, local slice)]`` for the rows of a slice, in its order.

    Raise what Python raises if a part of the slice is no integer, or the step is 0. Where shards
    are of one size the local slices repeat, with a period that divides the step; equal ones of the
    last few are one object, which is most of the work saved.
    """
    cdef const int64_t* first = &offsets[0]
    cdef Py_ssize_t shards = offsets.shape[0] - 1, shard, next_kept = 0, k
    cdef Py_ssize_t start = 0, end = 0, step = 0, count = 0
    cdef int64_t row, stop
    cdef Piece piece
    cdef int64_t[KEPT] starts
    cdef int64_t[KEPT] stops
    cdef list kept = [None] * KEPT, pieces = []
    cdef object boxed_step, local
    PySlice_GetIndicesEx(rows, first[shards], &start, &end, &step, &count)
    if count == 0:
        return pieces
    if count == 1:      # the step leads nowhere, and may lead out of int64
        step = 1 if step > 0 else -1
    boxed_step = step
    row = start
    shard = shard_of(first, 0, shards, row)
    for k in range(KEPT):
        starts[k] = stops[k] = -2
    while True:
        piece = piece_at(first, shard, row, step, count)
        stop = stop_of(piece, step)
        # A local slice that runs down through row 0 ends at None: -1 would mean the last row.
        if stop < 0:
            stop = -1
        for k in range(KEPT):
            if starts[k] == piece.start and stops[k] == stop:
                local = kept[k]
                break
        else:
            local = slice(piece.start, None if stop < 0 else stop, boxed_step)
            kept[next_kept] = local
            starts[next_kept], stops[next_kept] = piece.start, stop
            next_kept = (next_kept + 1) % KEPT
        pieces.append((piece.shard, local))
        count -= piece.count
        if count <= 0:
            return pieces
        row += (piece.count - 1) * step
        row += step
        shard = next_shard(first, shards, shard, row, step > 0)
