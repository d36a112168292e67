"""Which shard holds each id, at which local row; the ids grouped by shard, and the way back.

Two strategies cover all layouts. "mod": shard = id mod s, local = id div s. "ranges": shard s holds
[offsets[s], offsets[s + 1]). Where these are blocks of one size the shard is id div size; elsewhere
a small table over the high bits of the id gives the first shard that can hold it.

An id's shard is found twice, once to count and once to place: that is cheaper than to keep n shards
in memory. What is kept, in the place of the way back, is the ids themselves: they are the caller's,
and another thread may write to them. Those below 2**31 are kept as int32, in the second half of that
place, where the way back overwrites none that is still to be read. Of ids that are cut into parts,
one for each thread, every part keeps its own in its own part of the way back. The loops are written
once, for any `Way`; each call names a constant one, so that the compiler makes a loop for each,
without a branch for the way inside.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memset

from types cimport index_t

include "taken_ids.pxi"

cdef extern from *:
    """
    /* What makes a loop for each way is inlining: GCC has left some to one loop with a branch. */
    #if defined(__GNUC__) || defined(__clang__)
    #undef CYTHON_INLINE
    #define CYTHON_INLINE inline __attribute__((always_inline))
    #endif
    """

cdef extern from "scalars.h" nogil:
    void prefetch_write "SC_PREFETCH_WRITE"(const void* address)

cdef enum:
    NEAR = 8            # shards in one cell of the table that are walked; beyond, they are bisected
    FEW = 512           # shards that are counted in LANES histograms
    LANES = 4           # ids that follow each other often share a shard: each waits for no other
    BYTES_AHEAD = 256   # between asking for a place among a shard's local rows and writing it
    SMALL = 0x7fffffff  # ids up to this one, and divisors up to the next, fit a Divisor

cdef struct Spot:
    int64_t shard
    int64_t local


cdef class Placement:
    """How a layout places rows over shards: as ranges with these offsets, or as "mod".

    Made once for a layout; holds on to the arrays that its rule points into, which must never change.
    """

    @staticmethod
    def ranges(offsets, Py_ssize_t cells, int shift, int64_t size):
        """Return that of ranges; `size` is that of all but the last, or 0 where they differ.

        `first` is the shard of the first row of every cell of 2**shift rows, O(s), and `reach` how
        many shards, at most, lie between one cell's and the next's.
        """
        cdef Placement placement = Placement.__new__(Placement)
        cdef const int64_t[::1] borders = offsets
        cdef int32_t* first
        placement.first = PyBytes_FromStringAndSize(NULL, cells * sizeof(int32_t))
        first = <int32_t*>PyBytes_AS_STRING(placement.first)
        placement.offsets, placement.shift, placement.size = offsets, shift, size
        placement.reach = fill_cells(first, cells, shift, borders)
        placement.rule.offsets, placement.rule.first = &borders[0], first
        placement.rule.shards = borders.shape[0] - 1
        placement.rule.rows = borders[placement.rule.shards]
        placement.rule.shift = shift
        if 0 < size and placement.rule.rows - 1 <= SMALL:
            placement.rule.way = BLOCKS
            placement.rule.size = size
            placement.rule.divisor = divisor_of(size)
        else:
            placement.rule.way = COMPARE if placement.reach <= 1 else SEARCH
        return placement

    @staticmethod
    def mod(int64_t rows, int64_t shards):
        cdef Placement placement = Placement.__new__(Placement)
        placement.rule.rows, placement.rule.shards = rows, shards
        if rows - 1 <= SMALL and shards - 1 <= SMALL:
            placement.rule.way = MOD
            placement.rule.divisor = divisor_of(shards)
        elif rows < <int64_t>1 << 53:
            placement.rule.way = MOD_RECIPROCAL
            placement.rule.inverse = 1.0 / <double>shards
        else:
            placement.rule.way = MOD_DIVIDE
        return placement


cdef Py_ssize_t fill_cells(int32_t* first, Py_ssize_t cells, int shift,
                           const int64_t[::1] offsets) noexcept nogil:
    """Write the shard of each cell's first row, the last one again at the end; return the reach."""
    cdef Py_ssize_t cell, shard = 0, before, reach = 0, last = offsets.shape[0] - 2
    for cell in range(cells):
        before = shard
        # offsets[shard + 1] <= cell << shift, without the shift that could overflow
        while shard < last and (offsets[shard + 1] - 1) >> shift < cell:
            shard += 1
        first[cell] = <int32_t>shard
        if cell > 0 and shard - before > reach:
            reach = shard - before
    return reach


# --- one id ------------------------------------------------------------------------------------


cdef inline int64_t range_of(const int64_t* offsets, int64_t lo, int64_t hi,
                             int64_t row) noexcept nogil:
    """Return the shard of [lo, hi) that holds `row`."""
    cdef int64_t middle
    if hi - lo <= NEAR:
        while offsets[lo + 1] <= row:
            lo += 1
        return lo
    while hi - lo > 1:
        middle = (lo + hi) // 2
        if offsets[middle] <= row:
            lo = middle
        else:
            hi = middle
    return lo


cdef inline int64_t reciprocal(int64_t row, int64_t shards, double inverse) noexcept nogil:
    """Return row // shards; the product is off by one step at most for row < 2**53."""
    cdef int64_t q = <int64_t>(<double>row * inverse)
    cdef int64_t rest = row - q * shards
    if rest < 0:
        return q - 1
    if rest >= shards:
        return q + 1
    return q


cdef inline Spot spot_of(Way way, int64_t row, Rule rule) noexcept nogil:
    cdef Spot spot
    cdef int64_t cell
    if way == BLOCKS:
        spot.shard = quotient(row, rule.divisor)
        spot.local = row - spot.shard * rule.size
    elif way == COMPARE or way == SEARCH:
        cell = row >> rule.shift
        spot.shard = rule.first[cell]
        if way == COMPARE:
            spot.shard += rule.offsets[spot.shard + 1] <= row
        else:
            spot.shard = range_of(rule.offsets, spot.shard, rule.first[cell + 1] + 1, row)
        spot.local = row - rule.offsets[spot.shard]
    else:
        if way == MOD:
            spot.local = quotient(row, rule.divisor)
        elif way == MOD_RECIPROCAL:
            spot.local = reciprocal(row, rule.shards, rule.inverse)
        else:
            spot.local = row // rule.shards
        spot.shard = row - spot.local * rule.shards
    return spot


# --- all ids -----------------------------------------------------------------------------------


cdef inline Py_ssize_t locate_by(Way way, const index_t* ids__n, Py_ssize_t n, Rule rule,
                                 int64_t* shard__n, int64_t* local__n) noexcept nogil:
    cdef Py_ssize_t i
    cdef Spot spot
    cdef int64_t row
    for i in range(n):
        if not take_one(ids__n + i, rule.rows, &row):
            local__n[i] = row
            return i
        spot = spot_of(way, row, rule)
        shard__n[i] = spot.shard
        local__n[i] = spot.local
    return -1


cdef Py_ssize_t locate_all(const index_t* ids__n, Py_ssize_t n, Rule rule,
                       int64_t* shard__n, int64_t* local__n) noexcept nogil:
    if rule.way == BLOCKS:
        return locate_by(BLOCKS, ids__n, n, rule, shard__n, local__n)
    if rule.way == COMPARE:
        return locate_by(COMPARE, ids__n, n, rule, shard__n, local__n)
    if rule.way == SEARCH:
        return locate_by(SEARCH, ids__n, n, rule, shard__n, local__n)
    if rule.way == MOD:
        return locate_by(MOD, ids__n, n, rule, shard__n, local__n)
    if rule.way == MOD_RECIPROCAL:
        return locate_by(MOD_RECIPROCAL, ids__n, n, rule, shard__n, local__n)
    return locate_by(MOD_DIVIDE, ids__n, n, rule, shard__n, local__n)


cdef inline void count_block(Way way, const own_t* ids__m, Py_ssize_t m, Rule rule,
                             int64_t* counts, Py_ssize_t lane) noexcept nogil:
    """Count into LANES histograms that lie `lane` apart; 0 makes them one."""
    cdef Py_ssize_t i = 0
    while i + LANES <= m:
        counts[spot_of(way, ids__m[i], rule).shard] += 1
        counts[lane + spot_of(way, ids__m[i + 1], rule).shard] += 1
        counts[2 * lane + spot_of(way, ids__m[i + 2], rule).shard] += 1
        counts[3 * lane + spot_of(way, ids__m[i + 3], rule).shard] += 1
        i += LANES
    while i < m:
        counts[spot_of(way, ids__m[i], rule).shard] += 1
        i += 1


cdef inline Py_ssize_t count_by(Way way, const index_t* ids__n, Py_ssize_t n, Rule rule,
                                own_t* own__n, int64_t* counts__s,
                                int64_t* inverse__n) noexcept nogil:
    """Do what `count` does; `own__n` lies in `inverse__n`, at its end."""
    cdef int64_t[LANES * FEW] counts
    cdef int64_t* histograms = counts__s
    cdef Py_ssize_t block, first, m, bad, lane = 0, shard, shards = rule.shards
    cdef int64_t bad_id = 0
    memset(counts__s, 0, shards * sizeof(int64_t))
    if shards <= FEW and n >= LANES * shards:       # few ids are not worth more histograms
        lane = shards
        histograms = counts
        memset(counts, 0, LANES * shards * sizeof(int64_t))
    for block in range((n + BLOCK - 1) // BLOCK):
        first, m = block * BLOCK, length_of(block, n)
        bad = take_block(ids__n + first, m, rule.rows, own__n + first, &bad_id)
        if bad >= 0:
            inverse__n[first + bad] = bad_id
            return first + bad
        count_block(way, own__n + first, m, rule, histograms, lane)
    for shard in range(lane):
        counts__s[shard] = (counts[shard] + counts[lane + shard] + counts[2 * lane + shard]
                            + counts[3 * lane + shard])
    return -1


cdef inline void place_by(Way way, Py_ssize_t n, Rule rule, const own_t* own__n, int64_t* places__s,
                          index_t* local__n, int64_t* inverse__n) noexcept nogil:
    """Do what `place` does; `own__n` lies in `inverse__n`, at its end.

    Two at a time, as pairs are in pairs.pxi, and for the same reason.
    """
    cdef Py_ssize_t i = 0
    cdef int64_t place, next_place
    cdef Spot spot, next_spot
    while i + 2 <= n:
        spot, next_spot = spot_of(way, own__n[i], rule), spot_of(way, own__n[i + 1], rule)
        place = places__s[spot.shard]
        next_place = places__s[next_spot.shard] + (next_spot.shard == spot.shard)
        places__s[spot.shard] = place + 1
        places__s[next_spot.shard] = next_place + 1
        put_id(local__n, place, spot.local, inverse__n + i)
        put_id(local__n, next_place, next_spot.local, inverse__n + i + 1)
        i += 2
    if i < n:
        spot = spot_of(way, own__n[i], rule)
        place = places__s[spot.shard]
        places__s[spot.shard] = place + 1
        put_id(local__n, place, spot.local, inverse__n + i)


cdef inline void put_id(index_t* local, int64_t place, int64_t row,
                        int64_t* way_back) noexcept nogil:
    # As a number: a pointer must not leave its array, an address to ask for may.
    prefetch_write(<const void*>(<size_t>&local[place] + BYTES_AHEAD))
    local[place] = <index_t>row
    way_back[0] = place


cdef inline Py_ssize_t address_by(Way way, const index_t* ids__n, Py_ssize_t n, Rule rule,
                                  const int64_t* bases__s, int64_t stride,
                                  int64_t* addresses__n) noexcept nogil:
    cdef Py_ssize_t i
    cdef Spot spot
    cdef int64_t row
    for i in range(n):
        if not take_one(ids__n + i, rule.rows, &row):
            addresses__n[i] = row
            return i
        spot = spot_of(way, row, rule)
        addresses__n[i] = bases__s[spot.shard] + spot.local * stride
    return -1


cdef Py_ssize_t address_all(const index_t* ids__n, Py_ssize_t n, Rule rule, const int64_t* bases__s,
                            int64_t stride, int64_t* addresses__n) noexcept nogil:
    if rule.way == BLOCKS:
        return address_by(BLOCKS, ids__n, n, rule, bases__s, stride, addresses__n)
    if rule.way == COMPARE:
        return address_by(COMPARE, ids__n, n, rule, bases__s, stride, addresses__n)
    if rule.way == SEARCH:
        return address_by(SEARCH, ids__n, n, rule, bases__s, stride, addresses__n)
    if rule.way == MOD:
        return address_by(MOD, ids__n, n, rule, bases__s, stride, addresses__n)
    if rule.way == MOD_RECIPROCAL:
        return address_by(MOD_RECIPROCAL, ids__n, n, rule, bases__s, stride, addresses__n)
    return address_by(MOD_DIVIDE, ids__n, n, rule, bases__s, stride, addresses__n)


cdef Py_ssize_t addresses_of(const Rule* rule, const index_t* ids__n, Py_ssize_t n,
                             const int64_t* bases__s, int64_t stride,
                             int64_t* addresses__n) noexcept nogil:
    """Do what `addresses` does."""
    return address_all(ids__n, n, rule[0], bases__s, stride, addresses__n)


cdef inline int32_t* narrow_in(int64_t* inverse__n, Py_ssize_t n) noexcept nogil:
    """Return where ids below 2**31 are kept until they are placed."""
    return <int32_t*>inverse__n + n


cdef Py_ssize_t count_all(const index_t* ids__n, Py_ssize_t n, Rule rule, int64_t* counts__s,
                          int64_t* inverse__n) noexcept nogil:
    cdef int32_t* narrow__n = narrow_in(inverse__n, n)
    if rule.way == BLOCKS:
        return count_by(BLOCKS, ids__n, n, rule, narrow__n, counts__s, inverse__n)
    if rule.way == MOD:
        return count_by(MOD, ids__n, n, rule, narrow__n, counts__s, inverse__n)
    if index_t is int32_t:
        return count_wide(ids__n, n, rule, narrow__n, counts__s, inverse__n)
    else:
        return count_wide(ids__n, n, rule, inverse__n, counts__s, inverse__n)


cdef inline Py_ssize_t count_wide(const index_t* ids__n, Py_ssize_t n, Rule rule, index_t* own__n,
                                  int64_t* counts__s, int64_t* inverse__n) noexcept nogil:
    """Do so in layouts whose ids may not fit int32."""
    if rule.way == COMPARE:
        return count_by(COMPARE, ids__n, n, rule, own__n, counts__s, inverse__n)
    if rule.way == SEARCH:
        return count_by(SEARCH, ids__n, n, rule, own__n, counts__s, inverse__n)
    if rule.way == MOD_RECIPROCAL:
        return count_by(MOD_RECIPROCAL, ids__n, n, rule, own__n, counts__s, inverse__n)
    return count_by(MOD_DIVIDE, ids__n, n, rule, own__n, counts__s, inverse__n)


cdef void place_all(Py_ssize_t n, Rule rule, int64_t* places__s, index_t* local__n,
                    int64_t* inverse__n) noexcept nogil:
    cdef const int32_t* narrow__n = narrow_in(inverse__n, n)
    if rule.way == BLOCKS:
        place_by(BLOCKS, n, rule, narrow__n, places__s, local__n, inverse__n)
    elif rule.way == MOD:
        place_by(MOD, n, rule, narrow__n, places__s, local__n, inverse__n)
    elif index_t is int32_t:
        place_wide(n, rule, narrow__n, places__s, local__n, inverse__n)
    else:
        place_wide(n, rule, <const index_t*>inverse__n, places__s, local__n, inverse__n)


cdef inline void place_wide(Py_ssize_t n, Rule rule, const index_t* own__n, int64_t* places__s,
                            index_t* local__n, int64_t* inverse__n) noexcept nogil:
    """Do so in layouts whose ids may not fit int32."""
    if rule.way == COMPARE:
        place_by(COMPARE, n, rule, own__n, places__s, local__n, inverse__n)
    elif rule.way == SEARCH:
        place_by(SEARCH, n, rule, own__n, places__s, local__n, inverse__n)
    elif rule.way == MOD_RECIPROCAL:
        place_by(MOD_RECIPROCAL, n, rule, own__n, places__s, local__n, inverse__n)
    else:
        place_by(MOD_DIVIDE, n, rule, own__n, places__s, local__n, inverse__n)


cdef Py_ssize_t group_all(const index_t* ids__n, Py_ssize_t n, Rule rule, index_t* local__n,
                          int64_t* row_splits, int64_t* inverse__n) noexcept nogil:
    cdef Py_ssize_t shard, shards = rule.shards
    cdef Py_ssize_t bad = count_all(ids__n, n, rule, row_splits + 1, inverse__n)
    if bad >= 0:
        return bad
    row_splits[0] = 0
    for shard in range(shards):
        row_splits[shard + 1] += row_splits[shard]
    # row_splits[s] is where shard s starts; as its ids are placed it moves on to where it ends.
    place_all(n, rule, row_splits, local__n, inverse__n)
    for shard in range(shards - 1, 0, -1):      # the end of one shard is the start of the next
        row_splits[shard] = row_splits[shard - 1]
    row_splits[0] = 0
    return -1


# --- what Python calls -------------------------------------------------------------------------


def first_outside(const index_t[::1] ids__n, int64_t rows):
    """Return the first position of an id outside [0, rows), or -1. O(n)."""
    cdef Py_ssize_t block, i, m, n = ids__n.shape[0], bad = -1
    with nogil:
        for block in range((n + BLOCK - 1) // BLOCK):
            i, m = block * BLOCK, length_of(block, n)
            bad = outside(&ids__n[i], m, rows)
            if bad >= 0:
                bad += i
                break
    return bad


cdef int check_room(Py_ssize_t given, Py_ssize_t own) except -1:
    """Raise if ids have become more or fewer: another thread can change an array's shape or dtype."""
    if given != own:
        raise ValueError(f"ids must be as many as their copies, {own}, got {given}")
    return 0


def take_ids(const index_t[::1] ids__n, int64_t rows, index_t[::1] own__n):
    """Copy the ids to `own__n` (n,) and check the copies. O(n).

    Return the first position of one outside [0, rows), or -1. What the caller's memory holds
    afterwards does not matter; beyond the block of that position nothing is copied.
    """
    cdef Py_ssize_t bad = -1, n = own__n.shape[0]
    check_room(ids__n.shape[0], n)
    if n:
        with nogil:
            bad = take(&ids__n[0], n, rows, &own__n[0])
    return bad


def locate(Placement placement not None, const index_t[::1] ids__n, int64_t[::1] shard__n,
           int64_t[::1] local__n):
    """Write shard and local row of each id. Return -1 or the first position out of range.

    Each id is read once: at that position `local__n` holds it.
    """
    cdef Py_ssize_t bad = -1, n = local__n.shape[0]
    if n > 0:
        with nogil:
            bad = locate_all(&ids__n[0], n, placement.rule, &shard__n[0], &local__n[0])
    return bad


def addresses(Placement placement not None, const index_t[::1] ids__n, const int64_t[::1] bases__s,
              int64_t stride, int64_t[::1] addresses__n):
    """Write where the row of each id lies: its local row, `stride` bytes apart, in its shard.

    `bases__s` (s,) are the addresses of the shards' first rows. Return -1 or the first position out
    of range, where `addresses__n` then holds the id.
    """
    cdef Py_ssize_t bad = -1, n = addresses__n.shape[0]
    if n > 0:
        with nogil:
            bad = address_all(&ids__n[0], n, placement.rule, &bases__s[0], stride, &addresses__n[0])
    return bad


def group(Placement placement not None, const index_t[::1] ids__n, index_t[::1] local__n,
          int64_t[::1] row_splits, int64_t[::1] inverse__n):
    """Group ids by shard, stably: local rows, the shards' ranges of them, and the way back.

    ``ids[i]`` sits at ``local__n[inverse__n[i]]``. Two passes, of which the first reads the ids, each
    once, O(n + s). Return -1 or the first position out of range, where `inverse__n` then holds the
    id; the outputs are unfinished. The passes are `count` and `place`, too, with which the ids can be
    cut into parts.
    """
    cdef Py_ssize_t bad = -1, n = inverse__n.shape[0]
    if n == 0:
        row_splits[:] = 0
    else:
        with nogil:
            bad = group_all(&ids__n[0], n, placement.rule, &local__n[0], &row_splits[0],
                            &inverse__n[0])
    return bad


def count(Placement placement not None, const index_t[::1] ids__n, int64_t[::1] counts__s,
          int64_t[::1] inverse__n):
    """Count how many ids each shard has; keep them in `inverse__n`, for `place`. O(n + s).

    Return -1 or the first position out of range, where `inverse__n` then holds the id.
    """
    cdef Py_ssize_t bad = -1, n = inverse__n.shape[0]
    check_room(ids__n.shape[0], n)
    if n == 0:
        counts__s[:] = 0
    else:
        with nogil:
            bad = count_all(&ids__n[0], n, placement.rule, &counts__s[0], &inverse__n[0])
    return bad


def place(Placement placement not None, int64_t[::1] places__s, index_t[::1] local,
          int64_t[::1] inverse__n):
    """Write the local row of each id that `count` has kept, and in its stead the place. O(n).

    The ids of shard s are placed from ``places__s[s]`` on, which moves on to where they end. `local`
    is of the ids' dtype and has room for those of all parts.
    """
    cdef Py_ssize_t n = inverse__n.shape[0]
    if n > 0:
        with nogil:
            place_all(n, placement.rule, &places__s[0], &local[0], &inverse__n[0])
