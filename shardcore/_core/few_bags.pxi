"""Few bags, combined where their rows lie, by one call.

What a small lookup costs is what is around its rows: calls, views, arrays in between. A `FewBags`
knows a table; what a call needs of it is read once. The call takes ids and row splits as they are
given. They are the caller's, and another thread may write to them: row splits are copied, to the
stack where they fit, and the copies are checked and used; an id is read once, and checked before its
row is read. Weights lead nowhere, and are read where they lie. What is not plain, or too much, or
breaks a rule, is left to others, which say so; what is too much, to a function that the caller names.
Half of the bags may be combined by another thread, if the caller knows of one: see ``share.h``.

A part of ``rows.pxi``.
"""

from shardcore._core.partition cimport Placement, Rule as PlacementRule, addresses_of

cdef enum:
    MOST = 8192         # ids, and bags
    FEW = 2048          # of which what a call needs lies on the stack
    MOST_SUMMED = 1 << 19   # of the rows named: from then on a batch may be cut over threads
    SHORT = 1 << 13     # so few are summed before another thread would have the interpreter
    SHARED = 1 << 14    # so many are worth an offer to another thread, if it looks for work

MOST_IDS = MOST
"""Ids, and bags, of which a lookup may have so many here."""


cdef struct Call:               # what both parts of a call need
    const void* table           # of the one array
    Py_ssize_t stride
    Py_ssize_t dim
    int kind
    int asking
    const PlacementRule* rule            # NULL: one array; else rows lie where these say
    const int64_t* bases
    int64_t* addresses__n       # room for them
    const void* ids__n          # of int64 if `wide`, else of int32, not checked yet
    bint wide
    uint64_t limit
    Py_ssize_t ids_count
    const int64_t* splits
    Py_ssize_t bags
    Py_ssize_t middle           # the first bag of the second part
    const void* weights
    int divided
    void* out
    bint right[2]               # by part: whether ids and sums are right


cdef class FewBags:
    """The rows of a table, or of its shards, for lookups of few bags.

    Made of the address of each shard's first row, where `placement` finds rows among several, the
    bytes from row to row, their kind, columns and number, the way in which rows are asked for ahead,
    what does as `combine` does where bags are not few, or None, a capsule of the function by which
    calls share their work with another thread, as in ``share.h``, and what holds on to the memory.
    """

    cdef const int64_t[::1] bases__s
    cdef const int64_t* bases
    cdef Placement placement
    cdef const PlacementRule* rule           # of the placement; NULL: one array
    cdef Py_ssize_t stride
    cdef int kind
    cdef Py_ssize_t dim
    cdef int64_t rows
    cdef int asking
    cdef object combine_many
    cdef Sharing sharing
    cdef object held

    def __init__(self, const int64_t[::1] bases__s, Placement placement, Py_ssize_t stride,
                 int kind, Py_ssize_t dim, int64_t rows, int asking, combine_many,
                 sharing, held):
        self.bases__s, self.placement, self.stride = bases__s, placement, stride
        self.bases, self.rule = &bases__s[0], NULL if placement is None else &placement.rule
        self.kind, self.dim, self.rows, self.held = kind, dim, rows, held
        self.asking, self.combine_many = asking, combine_many
        self.sharing = <Sharing>PyCapsule_GetPointer(sharing, SHARING_NAME)

    def combine(self, values, row_splits, weights, int divided, out):
        """Write the combined rows of each bag to `out`; return whether that was done.

        `values` (n,) are ids of int32 or int64, `row_splits` (b + 1,) of int64, `weights` (n,) and
        `out` (b, d) of the working dtype, each C-contiguous, or `weights` None; `divided` is of
        `DIVIDED`. False: one of them is of another form, or breaks a rule; or n, b or n·d is too
        large, and nothing combines many. `out` holds nothing of use then.
        """
        cdef Py_buffer ids, splits, factors, sums
        cdef const Py_buffer* given_factors = NULL
        cdef bint done = False, many = False
        if not exported(values, False, &ids):
            return False
        if exported(row_splits, False, &splits):
            many = ids.ndim == splits.ndim == 1 and (
                ids.shape[0] > MOST or splits.shape[0] > MOST + 1
                or ids.shape[0] * self.dim > MOST_SUMMED)
            if not many and (weights is None or exported(weights, False, &factors)):
                if weights is not None:
                    given_factors = &factors
                if exported(out, True, &sums):
                    done = self.combine_buffers(&ids, &splits, given_factors, divided, &sums)
                    PyBuffer_Release(&sums)
                if weights is not None:
                    PyBuffer_Release(&factors)
            PyBuffer_Release(&splits)
        PyBuffer_Release(&ids)
        if many and self.combine_many is not None:
            return self.combine_many(values, row_splits, weights, divided, out)
        return done

    cdef bint combine_buffers(self, const Py_buffer* ids, const Py_buffer* splits,
                              const Py_buffer* factors, int divided,
                              const Py_buffer* sums) noexcept:
        cdef int64_t few[2 * FEW + 1]       # row splits, and addresses
        cdef int64_t* own_splits = few
        cdef Call call
        cdef bint done = False
        cdef const void* weights = NULL
        cdef Py_ssize_t n, bags
        cdef Py_ssize_t size = 8 if self.kind == FLOAT64 else 4     # of the working dtype
        cdef const char* letter = b"d" if self.kind == FLOAT64 else b"f"
        if not (ids.ndim == 1 and splits.ndim == 1 and sums.ndim == 2):
            return False
        n, bags = ids.shape[0], splits.shape[0] - 1
        if not (bags >= 0 and sums.shape[0] == bags and sums.shape[1] == self.dim
                and holds(splits, INTEGERS, 8) and holds(sums, letter, size)):
            return False
        if factors != NULL:
            if not (factors.ndim == 1 and factors.shape[0] == n and holds(factors, letter, size)):
                return False
            weights = factors.buf
        call.wide = holds(ids, INTEGERS, 8)
        if not (call.wide or holds(ids, INTEGERS, 4)):
            return False
        if bags + n > 2 * FEW:
            own_splits = <int64_t*>PyMem_Malloc((bags + 1 + n) * sizeof(int64_t))
            if own_splits == NULL:
                return False
        copy_numbers(<const int64_t*>splits.buf, bags + 1, own_splits)
        if are_splits(own_splits, bags, n):
            call.ids__n, call.ids_count, call.splits, call.bags = ids.buf, n, own_splits, bags
            call.addresses__n = own_splits + bags + 1
            call.weights, call.divided, call.out = weights, divided, sums.buf
            done = self.combine_ids(&call)
        if own_splits != few:
            PyMem_Free(own_splits)
        return done

    cdef bint combine_ids(self, Call* call) noexcept:
        """Combine rows of the one array, or of those that the placement finds."""
        cdef Py_ssize_t numbers = call.ids_count * self.dim
        call.table, call.stride = <const void*><size_t>self.bases[0], self.stride
        call.limit = <uint64_t>self.rows
        call.rule, call.bases = self.rule, self.bases
        call.kind, call.dim, call.asking = self.kind, self.dim, self.asking
        call.middle = call.bags
        call.right[0] = call.right[1] = True
        if numbers <= SHORT:
            combine_part(call, 0)
            return call.right[0]
        with nogil:
            if numbers >= SHARED:
                call.middle = middle_of(call)
            if call.middle == call.bags:
                combine_part(call, 0)
            else:
                self.sharing(combine_part, call)
        return call.right[0] and call.right[1]


cdef Py_ssize_t middle_of(const Call* call) noexcept nogil:
    """Return the first bag that is not of the first half of the ids."""
    cdef Py_ssize_t low = 0, high = call.bags, middle
    while low < high:
        middle = (low + high) // 2
        if 2 * call.splits[middle] < call.ids_count:
            low = middle + 1
        else:
            high = middle
    return low


cdef void combine_part(void* given, int part) noexcept nogil:
    """Combine the bags before the middle of a call, or those behind it."""
    cdef Call* call = <Call*>given
    cdef Py_ssize_t first = call.middle if part else 0
    cdef Py_ssize_t last = call.bags if part else call.middle
    if call.wide:
        call.right[part] = combine_ids(call, <const int64_t*>call.ids__n, first, last)
    else:
        call.right[part] = combine_ids(call, <const int32_t*>call.ids__n, first, last)


cdef bint combine_ids(const Call* call, const index_t* ids__n, Py_ssize_t first,
                      Py_ssize_t last) noexcept nogil:
    """Combine the rows of some bags, once it is known where they are; return whether all is right."""
    cdef Py_ssize_t start = call.splits[first], count = call.splits[last] - start
    if call.rule == NULL:
        return combine_kind(call, call.table, call.stride, ids__n, call.limit, first, last)
    if addresses_of(call.rule, ids__n + start, count, call.bases, call.stride,
                    call.addresses__n + start) >= 0:
        return False
    return combine_kind(call, NULL, 1, <const int64_t*>call.addresses__n, ANY, first, last)


cdef bint combine_kind(const Call* call, const void* table, Py_ssize_t stride,
                       const index_t* ids__n, uint64_t limit, Py_ssize_t first,
                       Py_ssize_t last) noexcept nogil:
    """Choose the body for the type of the rows."""
    if call.kind == FLOAT64:
        return combine(call, <const float64_t*>table, stride, ids__n, limit, first, last,
                       <const float64_t*>call.weights, <float64_t*>call.out)
    if call.kind == HALF:
        return combine(call, <const half_t*>table, stride, ids__n, limit, first, last,
                       <const float32_t*>call.weights, <float32_t*>call.out)
    if call.kind == BFLOAT:
        return combine(call, <const bfloat_t*>table, stride, ids__n, limit, first, last,
                       <const float32_t*>call.weights, <float32_t*>call.out)
    return combine(call, <const float32_t*>table, stride, ids__n, limit, first, last,
                   <const float32_t*>call.weights, <float32_t*>call.out)


cdef bint combine(const Call* call, const row_t* table, Py_ssize_t stride, const index_t* ids__n,
                  uint64_t limit, Py_ssize_t first, Py_ssize_t last, const value_t* weights__n,
                  value_t* out__bd) noexcept nogil:
    """Combine some bags; return whether all ids are below `limit`, without which no row is read, and
    whether `divide` found what weights leave to be finite."""
    cdef const int64_t* splits = call.splits
    cdef Py_ssize_t dim = call.dim, end = splits[last], b
    cdef int ask
    if call.asking == INTO_FIRST:
        ask = ASK_FIRST | ASK_SOON
    elif call.asking == BY_LINES:
        ask = ask_by_lines(dim * sizeof(row_t), in_parts(dim, sizeof(value_t)), False)
    else:
        ask = ask_by_pairs(dim * sizeof(row_t), sizeof(row_t), False)
    ask = begin_asking(table, stride, dim, ids__n, splits[first], end, ask)
    for b in range(first, last):
        if not sum_rows(table, stride, dim, ids__n, limit, splits[b], splits[b + 1], end, ask,
                        weights__n, out__bd + b * dim):
            return False
        if not divide(out__bd + b * dim, dim, weights__n, splits[b], splits[b + 1], call.divided):
            return False
    return True
