"""Sums of rows of every type, for ids of each of the two types: those of ``columns.h``, which keeps
their totals in vector registers, under one name.
"""

from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t

from types cimport float32_t, float64_t, index_t, value_t

cdef extern from "scalars.h" nogil:
    ctypedef struct half_t "sc_half":
        uint16_t bits
    ctypedef struct bfloat_t "sc_bfloat":
        uint16_t bits
    void prefetch_read "SC_PREFETCH_READ"(const void* address)

cdef extern from "columns.h" nogil:
    enum:
        ASK_FAR "SC_ASK_FAR"
        ASK_NEAR "SC_ASK_NEAR"
        ASK_FIRST "SC_ASK_FIRST"
        ASK_SOON "SC_ASK_SOON"
        ASK_END "SC_ASK_END"
        ASK_HALF "SC_ASK_HALF"
        ASK_AGAIN "SC_ASK_AGAIN"
        ASK_PARTS "SC_ASK_PARTS"
        ASK_CACHED "SC_ASK_CACHED"
        NEAR_BYTES "SC_NEAR_BYTES"
        FAR "SC_FAR"
    void ask_for_row "sc_ask_for_row"(const void* row, Py_ssize_t size)
    void ask_for_row_near "sc_ask_for_row_near"(const void* row, Py_ssize_t size)
    void ask_for_update "sc_ask_for_update"(const void* row, Py_ssize_t size)
    bint in_parts "SC_IN_PARTS"(Py_ssize_t dim, Py_ssize_t number_bytes)
    # occurrences between asking for a row and using it
    Py_ssize_t rows_ahead "SC_AHEAD"(int ask, Py_ssize_t row_bytes)
    const uint64_t ANY "UINT64_MAX"     # the limit of ids that are checked, and of addresses
    void sc_sum_few_floats(const float* rows, Py_ssize_t dim, const int32_t* ids, Py_ssize_t count,
                           float* out)
    bint sc_sum_floats_int64(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int64_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_floats_int32(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int32_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_halves_int64(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int64_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_halves_int32(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int32_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_bfloats_int64(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int64_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_bfloats_int32(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int32_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const float* weights, float* out)
    bint sc_sum_doubles_int64(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int64_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const double* weights, double* out)
    bint sc_sum_doubles_int32(
        const void* table, Py_ssize_t stride, Py_ssize_t dim, const int32_t* ids, uint64_t limit,
        const int64_t* splits, Py_ssize_t bags, Py_ssize_t last, bint all_come, int ask,
        const double* weights, double* out)

cdef enum:
    LINE = 64           # bytes in a cache line
    NARROW_ROW = 128    # bytes
    WIDE_ROW = 512
    NEARER_TABLE = 1 << 16  # bytes of a table, half of which the first cache holds
    NEAR_TABLE = 1 << 18    # bytes of a table that the second cache holds, whatever else there is
    FEW_ROWS = 1 << 9       # wide rows, of a table that is small, too
    SMALL_TABLE = 1 << 20   # bytes of a table of which the second cache holds most, or half
    THIRD = 1 << 24     # bytes of a table of which the third cache holds most

ctypedef fused row_t:           # what a table can hold
    float32_t
    float64_t
    half_t
    bfloat_t


cdef inline const row_t* row_at(const row_t* table, Py_ssize_t stride, index_t id) noexcept nogil:
    """Return a row: bytes `stride` apart from `table` on; or, from NULL on, one byte apart, any row."""
    return <const row_t*>(<size_t>table + <size_t>id * <size_t>stride)


cdef inline bint sum_rows(const row_t* table, Py_ssize_t stride, Py_ssize_t dim,
                          const index_t* ids__n, uint64_t limit, Py_ssize_t lo, Py_ssize_t hi,
                          Py_ssize_t last, int ask, const value_t* weights__n,
                          value_t* out) noexcept nogil:
    """Write the (weighted) sum of rows ids__n[lo:hi] to out (dim,), as `sum_bags` does for one bag."""
    cdef int64_t row_splits[2]
    row_splits[0], row_splits[1] = lo, hi
    return sum_bags(table, stride, dim, ids__n, limit, row_splits, 1, last, ask, weights__n, out)


cdef inline bint sum_bags(const row_t* table, Py_ssize_t stride, Py_ssize_t dim,
                          const index_t* ids__n, uint64_t limit, const int64_t* row_splits,
                          Py_ssize_t bags, Py_ssize_t last, int ask, const value_t* weights__n,
                          value_t* out__bd) noexcept nogil:
    """Write the (weighted) sum of rows ids__n[row_splits[b]:row_splits[b + 1]], in that order, per bag.

    Return whether all ids are below `limit`; each is read once. Rows are asked for ahead, as `ask`
    has it, up to position `last`: bags that come so late that others than theirs are past it, are
    summed by bodies that test for that.
    """
    cdef Py_ssize_t before = last - rows_ahead(ask, dim * sizeof(row_t)), all_come = bags
    while all_come and row_splits[all_come] > before:
        all_come -= 1
    return ((all_come == 0 or sum_so(table, stride, dim, ids__n, limit, row_splits, all_come, last,
                                     True, ask, weights__n, out__bd))
            and (all_come == bags or sum_so(table, stride, dim, ids__n, limit,
                                            row_splits + all_come, bags - all_come, last, False, ask,
                                            weights__n, out__bd + all_come * dim)))


cdef inline bint sum_so(const row_t* table, Py_ssize_t stride, Py_ssize_t dim, const index_t* ids__n,
                        uint64_t limit, const int64_t* row_splits, Py_ssize_t bags,
                        Py_ssize_t last, bint all_come, int ask, const value_t* weights__n,
                        value_t* out__bd) noexcept nogil:
    """Choose the sum for the types of rows and ids."""
    if row_t is half_t and value_t is float32_t:
        if index_t is int64_t:
            return sc_sum_halves_int64(table, stride, dim, ids__n, limit, row_splits, bags,
                                       last, all_come, ask, weights__n, out__bd)
        else:
            return sc_sum_halves_int32(table, stride, dim, ids__n, limit, row_splits, bags,
                                       last, all_come, ask, weights__n, out__bd)
    elif row_t is bfloat_t and value_t is float32_t:
        if index_t is int64_t:
            return sc_sum_bfloats_int64(table, stride, dim, ids__n, limit, row_splits, bags,
                                        last, all_come, ask, weights__n, out__bd)
        else:
            return sc_sum_bfloats_int32(table, stride, dim, ids__n, limit, row_splits, bags,
                                        last, all_come, ask, weights__n, out__bd)
    elif row_t is float32_t and value_t is float32_t:
        if index_t is int64_t:
            return sc_sum_floats_int64(table, stride, dim, ids__n, limit, row_splits, bags,
                                       last, all_come, ask, weights__n, out__bd)
        else:
            return sc_sum_floats_int32(table, stride, dim, ids__n, limit, row_splits, bags,
                                       last, all_come, ask, weights__n, out__bd)
    elif row_t is float64_t and value_t is float64_t:
        if index_t is int64_t:
            return sc_sum_doubles_int64(table, stride, dim, ids__n, limit, row_splits, bags,
                                        last, all_come, ask, weights__n, out__bd)
        else:
            return sc_sum_doubles_int32(table, stride, dim, ids__n, limit, row_splits, bags,
                                        last, all_come, ask, weights__n, out__bd)


cdef inline bint come_unasked(Py_ssize_t row_bytes, Py_ssize_t item_bytes,
                              Py_ssize_t table_bytes) noexcept nogil:
    """Return whether rows of a table that stays in a cache come as soon if they are not asked for.

    To ask for a line takes as long as to read it. Narrow rows do from the second cache, wide ones where
    there are few of them, unless of short floats, others only where the first cache holds half of them.
    """
    if row_bytes <= NARROW_ROW:
        return table_bytes <= NEAR_TABLE
    if row_bytes > WIDE_ROW and item_bytes >= 4:
        return table_bytes <= FEW_ROWS * row_bytes and table_bytes <= SMALL_TABLE
    return table_bytes <= NEARER_TABLE


cdef inline int ask_by_lines(Py_ssize_t row_bytes, bint parts, bint small,
                             bint cached) noexcept nogil:
    """Return how rows are asked for line by line: narrow ones far ahead and near, wide ones far twice.

    Those that are summed in parts are asked for near only, by each part for itself. Of a `small` table,
    whose rows come soon, others are, too. Wide ones of which most are in some cache are asked for as
    suits processors with these vectors.
    """
    if parts:
        return ASK_NEAR | ASK_PARTS
    if small:
        return ASK_NEAR
    if row_bytes <= NARROW_ROW:
        return ASK_FAR | ASK_NEAR
    return ASK_CACHED if cached else ASK_FAR | ASK_AGAIN


cdef inline int ask_by_pairs(Py_ssize_t row_bytes, Py_ssize_t item_bytes,
                             bint cached) noexcept nogil:
    """Return how rows are asked for where processors read the other half of a pair of lines.

    Far ahead and near once more, where wide ones far ahead only; the first time every other line, but
    of short floats, which take longer to add up, every line. Rows of which most are in a cache: for
    the first at once, wide ones half as far ahead.
    """
    if row_bytes >= WIDE_ROW:
        return ASK_FIRST | ASK_SOON if cached else ASK_FAR
    if cached:
        return ASK_FIRST
    return ASK_FAR | ASK_NEAR if item_bytes < 4 else ASK_FAR | ASK_NEAR | ASK_HALF


cdef inline int begin_asking(const row_t* table, Py_ssize_t stride, Py_ssize_t dim,
                             const index_t* ids__n, Py_ssize_t lo, Py_ssize_t hi,
                             int ask) noexcept nogil:
    """Ask for the first rows of ids__n[lo:hi], which no sum asks for; return `ask` for the others.

    Where one of them begins so far within a line that it ends in one line more, others may, too.
    """
    cdef Py_ssize_t size = dim * sizeof(row_t), ahead = rows_ahead(ask, size), i
    cdef const row_t* row
    for i in range(lo, lo + ahead if lo + ahead < hi else hi):
        row = row_at(table, stride, ids__n[i])
        ask_for_row(row, size)
        if (<size_t>row % LINE + <size_t>size - 1) // LINE > (<size_t>size - 1) // LINE:
            ask |= ASK_END
    return ask
