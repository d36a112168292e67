"""Everything that reads or writes rows: gather, combine, accumulate, scatter. Parts of it
that work on many tables at once, updates and lookups, lie beside it: ``updates.pxi``, ``lookups.pxi``;
so does what combines bags as they are given, by one call: ``given_bags.pxi``.

This body is included by one tiny module per instruction set. It holds no floating contraction and
no reordered sum, so every one of those modules computes the same bits.

Axes: n occurrences, b bags, r rows of the table, u unique rows, d columns (dim).

Sums over rows are those of ``row_sums.pxi``. Other rows are asked for `FAR` occurrences before they
are used.

A table comes as its bytes, (r, row bytes), with its `kind`: the fused types of Cython cannot choose
between views of two one-field structs, so each `def` makes that choice once, by hand.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from shardcore_update cimport shardcore_update_float32, shardcore_update_float64
from types cimport (
    BFLOAT, BY_LINES, FLOAT32, FLOAT64, HALF, INT32, INT64, INTO_FIRST, float32_t, float64_t,
    index_t, value_t,
)

include "counter.pxi"
include "plain_arrays.pxi"
include "row_sums.pxi"
include "divided.pxi"

cdef extern from "scalars.h" nogil:
    float sc_from_half(half_t value)
    half_t sc_to_half(float value)
    half_t sc_double_to_half(double value)
    float sc_from_bfloat(bfloat_t value)
    bfloat_t sc_to_bfloat(float value)
    void sc_widen_halves(const half_t* source, int64_t count, float* to)
    void sc_narrow_halves(const float* source, int64_t count, half_t* to)
    void sc_widen_bfloats(const bfloat_t* source, int64_t count, float* to)
    void sc_narrow_halves_stochastic(const float* source, int64_t count, uint64_t start,
                                     uint64_t step, half_t* to)
    void sc_narrow_bfloats_stochastic(const float* source, int64_t count, uint64_t start,
                                      uint64_t step, bfloat_t* to)

cdef enum:
    WIDE = 64           # columns of a sum that goes on that are added at a time
    NARROW = 16
    UNKNOWN = -1
    SECOND = 1 << 20    # bytes of a table that the second cache holds
    CACHED = 1 << 25    # bytes of a table that stays in some cache
    NEAR_ROW = 256      # bytes of its rows that are asked for near
    BAGS = 32           # that are summed by one call, see `combine_bags`
    STRETCHES = 8       # of consecutive occurrences, see `come_back`
    STRETCH = 256
    OFTEN = 8           # times that each row, or line, of a small table is read by a lookup, from which
                        # on others find it in a cache
    FEW = 1 << 13       # rows of which the second cache may have most
    UNSAMPLED = 1 << 14     # occurrences that a sample of them costs too much
    SEEN_BITS = 15
    SEEN_WORDS = 1 << (SEEN_BITS - 6)   # of 64 bits
    RUN_BLOCK = 4096    # occurrences of one row that are summed in one go
    LANES = 8           # partial sums of a dot product
    UPDATE_ROWS = 32    # most rows handed to an optimizer's function at a time, see `update_room`
    FIRST_BYTES = 1 << 14   # of the first cache, for rows asked for ahead, their slots and gradients
    LONG_RUN = 64       # occurrences of one row from which on `sum_long_runs` has its gradient
    TILE = 1 << 19      # bytes of gradients that stay in the cache while long runs are summed
    TOGETHER = 512      # long runs whose sums stay there beside them
    SKIPPED = 32        # runs that are passed at once where they are too short together to hold one

ctypedef fused scatter_t:       # what a scatter can work on
    float32_t
    float64_t
    half_t
    bfloat_t
    int32_t
    int64_t


# --- one element -------------------------------------------------------------------------------

cdef inline value_t load(const row_t* cell, value_t like) noexcept nogil:
    if row_t is half_t:
        return sc_from_half(cell[0])
    elif row_t is bfloat_t:
        return sc_from_bfloat(cell[0])
    else:
        return <value_t>cell[0]


cdef inline void store(row_t* cell, value_t value) noexcept nogil:
    if row_t is half_t:
        if value_t is float64_t:
            cell[0] = sc_double_to_half(value)
        else:
            cell[0] = sc_to_half(value)
    elif row_t is bfloat_t:
        cell[0] = sc_to_bfloat(<float>value)    # ml_dtypes too rounds a double twice
    else:
        cell[0] = <row_t>value


# --- rows of short elements --------------------------------------------------------------------

cdef inline void widen(const row_t* row, Py_ssize_t count, value_t* out) noexcept nogil:
    """Convert elements of a row to the working type."""
    cdef Py_ssize_t c
    if row_t is half_t and value_t is float32_t:
        sc_widen_halves(row, count, out)
    elif row_t is bfloat_t and value_t is float32_t:
        sc_widen_bfloats(row, count, out)
    else:
        for c in range(count):
            out[c] = load(row + c, out[0])


cdef inline void narrow(const value_t* values, Py_ssize_t count, row_t* row) noexcept nogil:
    """Round values to the nearest that a row can hold."""
    cdef Py_ssize_t c
    if row_t is half_t and value_t is float32_t:
        sc_narrow_halves(values, count, row)
    else:
        for c in range(count):
            store(row + c, values[c])


cdef inline void narrow_stochastic(const value_t* values, Py_ssize_t count, uint64_t start,
                                   uint64_t stride, row_t* row) noexcept nogil:
    """Round values to one of two neighbours, by the random bits of the row's columns."""
    if row_t is half_t and value_t is float32_t:
        sc_narrow_halves_stochastic(values, count, start, stride, row)
    elif row_t is bfloat_t and value_t is float32_t:
        sc_narrow_bfloats_stochastic(values, count, start, stride, row)
    else:
        narrow(values, count, row)      # of other types there is nothing to round by chance


# --- prefetch ----------------------------------------------------------------------------------

cdef inline int rows_to_ask_for(const index_t* ids__n, Py_ssize_t n, Py_ssize_t of,
                                Py_ssize_t row_bytes, Py_ssize_t item_bytes, bint parts,
                                Py_ssize_t table_bytes, int asking) noexcept nogil:
    """Return how sums of `n` rows ask for those that come: bits as in ``columns.h``, or none.

    They are a share of a lookup of `of` rows. `asking`: as suits the processor. Into the first cache:
    all rows, of few half as far ahead. By lines and by pairs: see `ask_by_lines` and `ask_by_pairs`.
    By lines, rows of a small table are in a cache where the lookup has OFTEN ids for each, or for each
    line of narrow ones: see `come_unasked`. By pairs, they always are: they are asked for for the first
    cache at once, wider ones near only. Where they are in the second, those of whole lines are not asked
    for at all: to ask for a line takes as long as to read it, and as long as to add it up, but of short
    floats. Of few rows no sample is taken, as it would take longer than it saves, nor of those that are
    wide: even if ids come back, lines of many come from memory. Ids come back where a tenth of a sample
    has, or, by pairs, a third: between the two, most rows come from memory there.
    """
    cdef bint stays
    cdef Py_ssize_t small
    if asking == INTO_FIRST:
        return ASK_FIRST | ASK_SOON if n <= FEW else ASK_FIRST
    if asking == BY_LINES:
        stays = 0 <= OFTEN * table_bytes <= of * max(row_bytes, <Py_ssize_t>LINE)
        if stays and come_unasked(row_bytes, item_bytes, table_bytes):
            return 0
        small = SMALL_TABLE if row_bytes <= NARROW_ROW else NEAR_BYTES
        return ask_by_lines(row_bytes, parts, stays and table_bytes <= small,
                            not parts and row_bytes > NARROW_ROW
                            and (stays and table_bytes <= THIRD
                                 or row_bytes < WIDE_ROW and n > UNSAMPLED
                                 and come_back(ids__n, n, 10)))
    if n > STRETCH and 0 <= table_bytes <= SECOND and item_bytes >= 4 and row_bytes > LINE:
        return 0 if row_bytes % LINE == 0 else ASK_NEAR
    if n > STRETCH and 0 <= table_bytes <= CACHED:
        return ASK_FIRST if row_bytes < NEAR_ROW else ASK_NEAR
    return ask_by_pairs(row_bytes, item_bytes, row_bytes <= WIDE_ROW and n > UNSAMPLED
                        and come_back(ids__n, n, 3))


cdef bint come_back(const index_t* ids__n, Py_ssize_t n, Py_ssize_t part) noexcept nogil:
    """Return whether one `part` of a sample of the ids, a tenth or a third, came before in it.

    Ids are known by SEEN_BITS bits of their hash: a few are taken for others.
    """
    cdef uint64_t seen[SEEN_WORDS]
    cdef uint64_t key, bit
    cdef Py_ssize_t length = n // STRETCHES if n // STRETCHES < STRETCH else STRETCH
    cdef Py_ssize_t stretch, i, again = 0
    memset(seen, 0, sizeof(seen))
    for stretch in range(STRETCHES):
        for i in range(n // STRETCHES * stretch, n // STRETCHES * stretch + length):
            key = <uint64_t>ids__n[i] * <uint64_t>0x9E3779B97F4A7C15 >> (64 - SEEN_BITS)
            bit = <uint64_t>1 << (key & 63)
            again += seen[key >> 6] & bit != 0
            seen[key >> 6] |= bit
    return part * again > STRETCHES * length


# --- sums of rows ------------------------------------------------------------------------------

def segment_reduce(const uint8_t[:, ::1] table__rd, int kind, const index_t[::1] ids__n,
                   const int64_t[::1] row_splits, const value_t[::1] weights__n,
                   const value_t[::1] divisors__b, int divided, value_t[:, ::1] out__bd,
                   int asking):
    """Combine, per bag, the rows that its ids name: Σ w·row, divided by the bag's divisor.

    Sums run in occurrence order. `weights__n` and `divisors__b` may be None; a divisor of 0 gives
    a row of 0. If `divided` is not BY_GIVEN, divisors are made here: see ``divided.pxi``. Bags are
    [row_splits[b], row_splits[b + 1]) of `ids__n`, which need not begin at 0. `out__bd` overlaps
    nothing. `asking` as in `rows_to_ask_for`. Return whether all ids lie in [0, r), there are as
    many as the bags have, and divisors made here are finite, or weighted sums that have none; else
    `out__bd` holds nothing of use. Each id is read once: they may be a caller's, and weights too, to
    which another thread writes. O(n·d).
    """
    cdef const void* table = &table__rd[0, 0] if table__rd.shape[0] and table__rd.shape[1] else NULL
    cdef Py_ssize_t of = row_splits[row_splits.shape[0] - 1] - row_splits[0]
    cdef bint right = row_splits[row_splits.shape[0] - 1] <= ids__n.shape[0]
    if not right or out__bd.shape[0] == 0 or out__bd.shape[1] == 0:
        return right
    cdef const index_t* ids = &ids__n[0] if ids__n.shape[0] else NULL
    cdef const value_t* weights = start_of(weights__n)
    cdef const value_t* divisors = start_of(divisors__b)
    with nogil:
        right = reduce_rows(table, table__rd.shape[0] * table__rd.shape[1], table__rd.shape[1], kind,
                            ids, <uint64_t>table__rd.shape[0], &row_splits[0], out__bd.shape[0],
                            of, out__bd.shape[1], weights, divisors, divided, &out__bd[0, 0],
                            asking)
    return right


def segment_reduce_at(const int64_t[::1] addresses__n, int kind, const int64_t[::1] row_splits,
                      const value_t[::1] weights__n, const value_t[::1] divisors__b,
                      value_t[:, ::1] out__bd, int asking):
    """Combine, as `segment_reduce` does, rows that lie anywhere: each is given by its address.

    The caller sees to it that a row of d elements of `kind` lies at each, and stays there.
    """
    if out__bd.shape[0] == 0 or out__bd.shape[1] == 0:
        return
    cdef const int64_t* addresses = &addresses__n[0] if addresses__n.shape[0] else NULL
    cdef const value_t* weights = start_of(weights__n)
    cdef const value_t* divisors = start_of(divisors__b)
    with nogil:
        reduce_rows(NULL, UNKNOWN, 1, kind, addresses, ANY, &row_splits[0], out__bd.shape[0],
                    UNKNOWN, out__bd.shape[1], weights, divisors, BY_GIVEN, &out__bd[0, 0], asking)


cdef inline const value_t* start_of(const value_t[::1] values__n):
    """Return where values begin; NULL for None and for none."""
    cdef const value_t* start = NULL
    if values__n is not None and values__n.shape[0]:
        start = &values__n[0]
    return start


cdef inline bint reduce_rows(const void* table, Py_ssize_t table_bytes, Py_ssize_t stride, int kind,
                             const index_t* ids__n, uint64_t limit, const int64_t* row_splits,
                             Py_ssize_t bags, Py_ssize_t of, Py_ssize_t dim, const value_t* weights,
                             const value_t* divisors, int divided, value_t* out__bd,
                             int asking) noexcept nogil:
    """Choose the body for the type of the rows; the bags are a share of a lookup of `of` ids."""
    if value_t is float64_t:
        return _segment_reduce(<const float64_t*>table, table_bytes, stride, dim, ids__n, limit,
                               row_splits, bags, of, weights, divisors, divided, out__bd, asking)
    elif kind == HALF:
        return _segment_reduce(<const half_t*>table, table_bytes, stride, dim, ids__n, limit,
                               row_splits, bags, of, weights, divisors, divided, out__bd, asking)
    elif kind == BFLOAT:
        return _segment_reduce(<const bfloat_t*>table, table_bytes, stride, dim, ids__n, limit,
                               row_splits, bags, of, weights, divisors, divided, out__bd, asking)
    else:
        return _segment_reduce(<const float32_t*>table, table_bytes, stride, dim, ids__n, limit,
                               row_splits, bags, of, weights, divisors, divided, out__bd, asking)


cdef bint _segment_reduce(const row_t* table, Py_ssize_t table_bytes, Py_ssize_t stride,
                          Py_ssize_t dim, const index_t* ids__n, uint64_t limit,
                          const int64_t* row_splits, Py_ssize_t bags, Py_ssize_t of,
                          const value_t* weights__n, const value_t* divisors__b, int divided,
                          value_t* out__bd, int asking) noexcept nogil:
    cdef Py_ssize_t first = row_splits[0], last = row_splits[bags]
    cdef int ask = rows_to_ask_for(ids__n + first, last - first, of, dim * sizeof(row_t),
                                   sizeof(row_t), in_parts(dim, sizeof(value_t)), table_bytes, asking)
    return combine_bags(table, stride, dim, ids__n, limit, row_splits, bags, ask, weights__n,
                        divisors__b, divided, out__bd)


cdef inline bint combine_bags(const row_t* table, Py_ssize_t stride, Py_ssize_t dim,
                              const index_t* ids__n, uint64_t limit, const int64_t* row_splits,
                              Py_ssize_t bags, int ask, const value_t* weights__n,
                              const value_t* divisors__b, int divided,
                              value_t* out__bd) noexcept nogil:
    """Sum the rows of each bag and divide the sum; return whether ids and divisors are right.

    BAGS at a time, whose body is chosen once, and whose sums are still in the first cache when they
    are divided.
    """
    cdef Py_ssize_t last = row_splits[bags], first = 0, end, b
    cdef int ways = begin_asking(table, stride, dim, ids__n, row_splits[0], last, ask)
    while first < bags:
        end = first + BAGS if bags - first > BAGS else bags
        if not sum_bags(table, stride, dim, ids__n, limit, row_splits + first, end - first, last,
                        ways, weights__n, out__bd + first * dim):
            return False
        for b in range(first, end):
            if divided == BY_GIVEN:
                if divisors__b != NULL:
                    divide_by(divisors__b[b], out__bd + b * dim, dim)
            elif not divide(out__bd + b * dim, dim, weights__n, row_splits[b], row_splits[b + 1],
                            divided):
                return False
        first = end
    return True


def sum_values(const value_t[::1] values__n, const int64_t[::1] row_splits, bint squared,
               value_t[::1] out__b):
    """Write the sum of each bag's values, or of their squares, in occurrence order. O(n)."""
    cdef Py_ssize_t b, bags = out__b.shape[0]
    cdef const value_t* values = &values__n[0] if values__n.shape[0] else NULL
    with nogil:
        for b in range(bags):
            out__b[b] = total_of(values, row_splits[b], row_splits[b + 1], squared)


cdef inline void sum_run(const value_t* gradients__gd, Py_ssize_t dim, const int32_t* sources__n,
                         Py_ssize_t lo, Py_ssize_t hi, Py_ssize_t last, const value_t* gains__n,
                         value_t* block, value_t* out) noexcept nogil:
    """Sum one row's gradients: blocks of RUN_BLOCK occurrences from the first, blocks in order.

    `block` (dim,) is scratch. The order is part of the contract: it does not depend on threads.
    Gradients are asked for ahead up to position `last`.
    """
    cdef Py_ssize_t at = lo, stop, c
    cdef const value_t* gradient
    if hi - lo == 1 and gains__n == NULL:   # most rows, and a sum too: it makes 0 of -0
        gradient = gradients__gd + <Py_ssize_t>sources__n[lo] * dim
        at = 0
        while at + WIDE <= dim:
            for c in range(WIDE):
                out[at + c] = 0 + gradient[at + c]
            at += WIDE
        for c in range(at, dim):
            out[c] = 0 + gradient[c]
        return
    stop = lo + RUN_BLOCK if hi - lo > RUN_BLOCK else hi
    sum_rows(gradients__gd, dim * sizeof(value_t), dim, sources__n, ANY, lo, stop, last, ASK_FAR,
             gains__n, out)
    at = stop
    while at < hi:
        stop = at + RUN_BLOCK if hi - at > RUN_BLOCK else hi
        sum_rows(gradients__gd, dim * sizeof(value_t), dim, sources__n, ANY, at, stop, last, ASK_FAR,
                 gains__n, block)
        for c in range(dim):
            out[c] += block[c]
        at = stop


def accumulate(const value_t[:, ::1] gradients__gd, const int32_t[::1] sources__n,
               const value_t[::1] gains__n, const int64_t[::1] run_splits, value_t[::1] block__d,
               value_t[:, ::1] out__ud):
    """Sum, per unique row, the gradients its occurrences name: Σ gain·gradients[source].

    Run u is [run_splits[u], run_splits[u + 1]) of `sources__n`; runs longer than 4,096 are summed
    in blocks of 4,096 counted from the first, blocks added in order. `gains__n` may be None.
    `block__d` is scratch of d values. O(n·d).
    """
    cdef const value_t* gains = NULL
    cdef const int32_t* sources = NULL
    cdef const value_t* gradients = NULL
    cdef Py_ssize_t rows = out__ud.shape[0], dim = out__ud.shape[1], u
    if rows == 0 or dim == 0:
        return
    if gains__n is not None and gains__n.shape[0]:
        gains = &gains__n[0]
    if sources__n.shape[0] and gradients__gd.shape[0]:
        sources, gradients = &sources__n[0], &gradients__gd[0, 0]
    with nogil:
        for u in range(rows):
            sum_run(gradients, dim, sources, run_splits[u], run_splits[u + 1],
                    run_splits[rows], gains, &block__d[0], &out__ud[u, 0])


# --- sums of long runs -------------------------------------------------------------------------

# The gradients of a batch outgrow the second-level cache, and every run of a hot row goes through
# most of them. So all long runs are summed side by side, as far as their sources lie in one tile of
# the gradients, then as far as the next: each sum goes on where it was, in the order of the contract.

LONG_RUN_LENGTH = LONG_RUN
RUNS_TOGETHER = TOGETHER


def long_runs(const int64_t[::1] run_splits, int64_t[::1] long__h):
    """Write which runs have LONG_RUN occurrences and more, ascending; return how many, O(u).

    `long__h` has room for as many as ``n // LONG_RUN``.
    """
    cdef Py_ssize_t rows = run_splits.shape[0] - 1, u = 0, stop, found = 0
    with nogil:
        while u < rows:
            stop = u + SKIPPED if rows - u > SKIPPED else rows
            if run_splits[stop] - run_splits[u] >= LONG_RUN:
                for u in range(u, stop):
                    if run_splits[u + 1] - run_splits[u] >= LONG_RUN:
                        long__h[found] = u
                        found += 1
            u = stop
    return found


def sum_long_runs(const value_t[:, ::1] gradients__gd, const int32_t[::1] sources__n,
                  const value_t[::1] gains__n, const int64_t[::1] run_splits,
                  const int64_t[::1] long__h, value_t[:, ::1] scratch__td, int64_t[::1] scratch__t,
                  value_t[:, ::1] out__hd):
    """Sum the runs `long__h` (h,), none of them empty, as `accumulate` does, a tile at a time.

    `scratch__td` and `scratch__t` have room for t = min(h, TOGETHER) runs. O(n·d).
    """
    cdef Py_ssize_t count = long__h.shape[0], dim = out__hd.shape[1], first = 0, size
    cdef const value_t* gains = NULL
    if count == 0 or dim == 0:
        return
    if gains__n is not None and gains__n.shape[0]:
        gains = &gains__n[0]
    with nogil:
        while first < count:
            size = TOGETHER if count - first > TOGETHER else count - first
            _sum_long_runs(&gradients__gd[0, 0], gradients__gd.shape[0], dim, &sources__n[0], gains,
                           &run_splits[0], &long__h[first], size, &scratch__td[0, 0],
                           &scratch__t[0], &out__hd[first, 0])
            first += size


cdef void _sum_long_runs(const value_t* gradients__gd, Py_ssize_t count, Py_ssize_t dim,
                         const int32_t* sources__n, const value_t* gains__n,
                         const int64_t* run_splits, const int64_t* long__t, Py_ssize_t runs,
                         value_t* blocks__td, int64_t* places__t, value_t* out__td) noexcept nogil:
    """Sum up to TOGETHER runs: whole blocks of each in `out__td`, the block begun in `blocks__td`."""
    cdef Py_ssize_t length = TILE // <Py_ssize_t>(dim * sizeof(value_t)), tile = 0, tile_end
    cdef Py_ssize_t t, c, lo, hi, at, begin, end, stop
    cdef value_t* total
    length = length if length > 0 else 1
    for t in range(runs):
        places__t[t] = run_splits[long__t[t]]
    while tile < count:
        tile_end = tile + length if count - tile > length else count
        ask_for_row(gradients__gd + tile * dim, (tile_end - tile) * dim * sizeof(value_t))
        for t in range(runs):
            lo, hi, at = run_splits[long__t[t]], run_splits[long__t[t] + 1], places__t[t]
            # What an order of its own leaves for a tile that has passed is added in the next one.
            while at < hi and sources__n[at] < tile_end:
                begin = at - (at - lo) % RUN_BLOCK
                end = begin + RUN_BLOCK if hi - begin > RUN_BLOCK else hi
                stop = at + 1
                while stop < end and sources__n[stop] < tile_end:
                    stop += 1
                total = (out__td if begin == lo else blocks__td) + t * dim
                add_run(gradients__gd, dim, sources__n, at, stop, gains__n, at == begin, total)
                if stop == end and begin > lo:
                    for c in range(dim):
                        out__td[t * dim + c] += blocks__td[t * dim + c]
                at = stop
            places__t[t] = at
        tile = tile_end


cdef inline void add_run(const value_t* gradients__gd, Py_ssize_t dim, const int32_t* sources__n,
                         Py_ssize_t lo, Py_ssize_t hi, const value_t* gains__n, bint fresh,
                         value_t* total) noexcept nogil:
    """Add occurrences [lo, hi) to a sum, which, `fresh`, begins with them."""
    cdef Py_ssize_t column = 0, c
    if fresh:
        for c in range(dim):
            total[c] = 0
    while column + WIDE <= dim:
        add_columns(gradients__gd, dim, sources__n, lo, hi, gains__n, column, WIDE, total)
        column += WIDE
    while column + NARROW <= dim:
        add_columns(gradients__gd, dim, sources__n, lo, hi, gains__n, column, NARROW, total)
        column += NARROW
    if column < dim:
        add_columns(gradients__gd, dim, sources__n, lo, hi, gains__n, column, dim - column,
                    total)


cdef inline void add_columns(const value_t* gradients__gd, Py_ssize_t dim, const int32_t* sources__n,
                             Py_ssize_t lo, Py_ssize_t hi, const value_t* gains__n,
                             Py_ssize_t column, Py_ssize_t width, value_t* total) noexcept nogil:
    cdef value_t sums[WIDE]
    cdef value_t gain
    cdef Py_ssize_t i, c
    cdef const value_t* gradient
    for c in range(width):
        sums[c] = total[column + c]
    for i in range(lo, hi):
        gradient = gradients__gd + <Py_ssize_t>sources__n[i] * dim + column
        if gains__n == NULL:
            for c in range(width):
                sums[c] += gradient[c]
        else:
            gain = gains__n[i]
            for c in range(width):
                sums[c] += gain * gradient[c]
    for c in range(width):
        total[column + c] = sums[c]


# --- gather and gradients of weights -----------------------------------------------------------

def gather(const uint8_t[:, ::1] table__rd, const index_t[::1] ids__n, uint8_t[:, ::1] out__nd):
    """Copy rows `ids__n` (n,), each in [0, r), to `out__nd` (n, row bytes). O(n·d)."""
    cdef Py_ssize_t n = ids__n.shape[0], size = out__nd.shape[1], i
    if n == 0 or size == 0:
        return
    cdef const uint8_t* table = &table__rd[0, 0]
    cdef uint8_t* out = &out__nd[0, 0]
    with nogil:
        for i in range(n):
            if i + FAR < n:
                ask_for_row(table + <Py_ssize_t>ids__n[i + FAR] * size, size)
            memcpy(out + i * size, table + <Py_ssize_t>ids__n[i] * size, size)


def put(uint8_t[:, ::1] table__rd, const index_t[::1] ids__n, const uint8_t[:, ::1] values__nd):
    """Copy `values__nd` (n, row bytes) to rows `ids__n` (n,), in order: the last one wins."""
    cdef Py_ssize_t n = ids__n.shape[0], size = table__rd.shape[1], i
    if n == 0 or size == 0:
        return
    cdef uint8_t* table = &table__rd[0, 0]
    cdef const uint8_t* values = &values__nd[0, 0]
    with nogil:
        for i in range(n):
            if i + FAR < n:
                ask_for_update(table + <Py_ssize_t>ids__n[i + FAR] * size, size)
            memcpy(table + <Py_ssize_t>ids__n[i] * size, values + i * size, size)


def row_dots(const uint8_t[:, ::1] table__rd, int kind, const index_t[::1] ids__n,
             const int64_t[::1] row_splits, const value_t[:, ::1] gradients__bd,
             value_t[::1] out__n):
    """Write, for each occurrence, the dot product of its row with its bag's gradient.

    Column c is added to lane c mod 8, lanes are added in order: a defined order that the compiler
    can do eight at a time. Bags as in `segment_reduce`. O(n·d).
    """
    cdef Py_ssize_t bags = gradients__bd.shape[0], dim = gradients__bd.shape[1]
    if bags == 0 or ids__n.shape[0] == 0:
        return
    cdef const void* table = &table__rd[0, 0] if dim else NULL
    cdef const value_t* gradients = &gradients__bd[0, 0] if dim else NULL
    with nogil:
        if value_t is float64_t:
            _row_dots(<const float64_t*>table, dim, &ids__n[0], &row_splits[0], bags, gradients,
                      &out__n[0])
        elif kind == HALF:
            _row_dots(<const half_t*>table, dim, &ids__n[0], &row_splits[0], bags, gradients,
                      &out__n[0])
        elif kind == BFLOAT:
            _row_dots(<const bfloat_t*>table, dim, &ids__n[0], &row_splits[0], bags, gradients,
                      &out__n[0])
        else:
            _row_dots(<const float32_t*>table, dim, &ids__n[0], &row_splits[0], bags, gradients,
                      &out__n[0])


cdef void _row_dots(const row_t* table, Py_ssize_t dim, const index_t* ids__n,
                    const int64_t* row_splits, Py_ssize_t bags, const value_t* gradients__bd,
                    value_t* out__n) noexcept nogil:
    cdef Py_ssize_t b, i, c, lane
    cdef value_t lanes[LANES]
    cdef value_t total
    cdef const row_t* row
    cdef const value_t* gradient
    for b in range(bags):
        gradient = gradients__bd + b * dim
        for i in range(row_splits[b], row_splits[b + 1]):
            if i + FAR < row_splits[bags]:
                ask_for_row(table + <Py_ssize_t>ids__n[i + FAR] * dim, dim * sizeof(row_t))
            row = table + <Py_ssize_t>ids__n[i] * dim
            for lane in range(LANES):
                lanes[lane] = 0
            c = 0
            while c + LANES <= dim:
                for lane in range(LANES):
                    lanes[lane] += load(row + c + lane, lanes[lane]) * gradient[c + lane]
                c += LANES
            for lane in range(dim - c):
                lanes[lane] += load(row + c + lane, lanes[lane]) * gradient[c + lane]
            total = 0
            for lane in range(LANES):
                total += lanes[lane]
            out__n[i] = total


# --- scatter -----------------------------------------------------------------------------------

cdef enum Operation:
    ADD, SUB, MUL, DIV, MIN, MAX

OPERATIONS = {"add": ADD, "sub": SUB, "mul": MUL, "div": DIV, "min": MIN, "max": MAX}


cdef inline value_t operate(value_t old, value_t new, int operation) noexcept nogil:
    """Return what NumPy's ufunc of that name gives; minimum and maximum let NaN through."""
    if operation == ADD:
        return old + new
    if operation == SUB:
        return old - new
    if operation == MUL:
        return old * new
    if operation == DIV:
        return old / new
    if operation == MIN:
        return old if old < new or old != old else new
    return old if old > new or old != old else new


cdef inline int64_t operate_integer(int64_t old, int64_t new, int operation) noexcept nogil:
    """The same for integers, wrapping as NumPy's do; there is no integer division here."""
    if operation == ADD:
        return <int64_t>(<uint64_t>old + <uint64_t>new)
    if operation == SUB:
        return <int64_t>(<uint64_t>old - <uint64_t>new)
    if operation == MUL:
        return <int64_t>(<uint64_t>old * <uint64_t>new)
    if operation == MIN:
        return old if old < new else new
    return old if old > new else new


def scatter(uint8_t[:, ::1] table__rd, int kind, Py_ssize_t dim, const index_t[::1] ids__n,
            const uint8_t[:, ::1] values__nd, int operation):
    """Apply every occurrence, in order: ``table[ids[i]] = table[ids[i]] (op) values[i]``.

    Short floats are computed in float32 and rounded after every step, as NumPy does. O(n·d).
    """
    cdef Py_ssize_t n = ids__n.shape[0]
    if n == 0 or dim == 0:
        return
    cdef void* table = &table__rd[0, 0]
    cdef const void* values = &values__nd[0, 0]
    with nogil:
        if kind == FLOAT32:
            _scatter(<float32_t*>table, dim, &ids__n[0], n, <const float32_t*>values, operation)
        elif kind == FLOAT64:
            _scatter(<float64_t*>table, dim, &ids__n[0], n, <const float64_t*>values, operation)
        elif kind == HALF:
            _scatter(<half_t*>table, dim, &ids__n[0], n, <const half_t*>values, operation)
        elif kind == BFLOAT:
            _scatter(<bfloat_t*>table, dim, &ids__n[0], n, <const bfloat_t*>values, operation)
        elif kind == INT32:
            _scatter(<int32_t*>table, dim, &ids__n[0], n, <const int32_t*>values, operation)
        else:
            _scatter(<int64_t*>table, dim, &ids__n[0], n, <const int64_t*>values, operation)


cdef void _scatter(scatter_t* table, Py_ssize_t dim, const index_t* ids__n, Py_ssize_t n,
                   const scatter_t* values__nd, int operation) noexcept nogil:
    cdef Py_ssize_t i, c
    cdef scatter_t* row
    cdef const scatter_t* value
    for i in range(n):
        if i + FAR < n:
            ask_for_update(table + <Py_ssize_t>ids__n[i + FAR] * dim, dim * sizeof(scatter_t))
        row = table + <Py_ssize_t>ids__n[i] * dim
        value = values__nd + i * dim
        for c in range(dim):
            if scatter_t is half_t:
                row[c] = sc_to_half(operate[float32_t](sc_from_half(row[c]), sc_from_half(value[c]),
                                                       operation))
            elif scatter_t is bfloat_t:
                row[c] = sc_to_bfloat(operate[float32_t](sc_from_bfloat(row[c]),
                                                         sc_from_bfloat(value[c]), operation))
            elif scatter_t is int32_t or scatter_t is int64_t:
                row[c] = <scatter_t>operate_integer(row[c], value[c], operation)
            else:
                row[c] = operate(row[c], value[c], operation)


include "shares.pxi"
include "sharing.pxi"
include "stored_rows.pxi"
include "finite.pxi"
include "lookups.pxi"
include "given_bags.pxi"
include "updates.pxi"
