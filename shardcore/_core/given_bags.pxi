"""Bags of one table, combined where their rows lie, by one call.

What a small lookup costs is what is around its rows: calls, views, arrays in between. A `GivenBags`
knows a table; what a call needs of it is read once. The call takes ids and row splits as they are
given. They are the caller's, and another thread may write to them: row splits are copied, to the
stack where they fit, and the copies are checked and used; an id is read once, and checked before its
row is read. Weights lead nowhere, and are read where they lie. What is not plain, or too much, or
breaks a rule, is left to others, which say so. Shares of the bags may be combined by one other thread,
if the caller knows of one, see ``share.h``, or by threads that the caller has.

A part of ``rows.pxi``.
"""

from shardcore._core.partition cimport Placement, Rule as PlacementRule, addresses_of

cdef enum:
    MOST = 8192         # ids, and bags, whose rows are looked for in several shards
    ON_STACK = 2048     # of which what a call needs lies on the stack
    SHORT = 1 << 13     # elements that are summed before another thread would have the interpreter
    SHARED = 1 << 14    # so many are worth an offer to another thread, if it looks for work
    MUCH = 1 << 19      # and so many to wake it
    MUCH_SHARE = 1 << 18    # of which a share has at least so many
    MOST_SHARES = 16    # with fewer, one thread waits longer for the other

MOST_IDS = MOST
"""Ids, and bags, of which a lookup in several shards may have so many here."""


cdef struct Call:               # what all parts of a call need
    const void* table           # of the one array
    Py_ssize_t table_bytes      # of all rows
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
    Py_ssize_t shares           # of about equally many ids
    int64_t begun               # shares that some thread has taken, or more
    int64_t wrong               # shares of which ids or sums are wrong
    const void* weights
    int divided
    void* out


cdef class GivenBags:
    """The rows of a table, or of its shards, for lookups of bags as they are given.

    Made of the address of each shard's first row, where `placement` finds rows among several, the
    bytes from row to row, their kind, columns and number, the way in which rows are asked for ahead,
    capsules of the functions by which calls share their work with one other thread, as in ``share.h``,
    little work and much, a function that has a `SharedCall` made by any threads, where that one is of
    no use, and what holds on to the memory.
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
    cdef Sharing share_little
    cdef Sharing share_much
    cdef object make_on_threads
    cdef object held

    def __init__(self, const int64_t[::1] bases__s, Placement placement, Py_ssize_t stride,
                 int kind, Py_ssize_t dim, int64_t rows, int asking, little, much,
                 make_on_threads, held):
        self.bases__s, self.placement, self.stride = bases__s, placement, stride
        self.bases, self.rule = &bases__s[0], NULL if placement is None else &placement.rule
        self.kind, self.dim, self.rows, self.held = kind, dim, rows, held
        self.asking, self.make_on_threads = asking, make_on_threads
        self.share_little = <Sharing>PyCapsule_GetPointer(little, SHARING_NAME)
        self.share_much = <Sharing>PyCapsule_GetPointer(much, SHARING_NAME)

    def combine(self, values, row_splits, weights, int divided, out):
        """Write the combined rows of each bag to `out`; return whether that was done.

        `values` (n,) are ids of int32 or int64, `row_splits` (b + 1,) of int64, `weights` (n,) and
        `out` (b, d) of the working dtype, each C-contiguous, or `weights` None; `divided` is of
        `DIVIDED`. False: one of them is of another form, or breaks a rule; or rows lie in shards, and n,
        b or n·d is too large. `out` holds nothing of use then.
        """
        cdef Plain ids, splits, sums, factors
        if not (found_plain(values, False, &ids) and found_plain(row_splits, False, &splits)
                and found_plain(out, True, &sums)):
            return False
        if weights is None:
            return self.combine_arrays(&ids, &splits, NULL, divided, &sums)
        if not found_plain(weights, False, &factors):
            return False
        return self.combine_arrays(&ids, &splits, &factors, divided, &sums)

    cdef bint combine_arrays(self, const Plain* ids, const Plain* splits, const Plain* factors,
                             int divided, const Plain* sums) except -1:
        cdef int64_t few[2 * ON_STACK + 1]      # row splits, and addresses
        cdef int64_t* own_splits = few
        cdef Call call
        cdef bint done = False
        cdef const void* weights = NULL
        cdef Py_ssize_t n, bags, numbers
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
            weights = factors.start
        call.wide = holds(ids, INTEGERS, 8)
        if not (call.wide or holds(ids, INTEGERS, 4)):
            return False
        if self.rule != NULL and (n > MOST or bags > MOST or n * self.dim > MUCH):
            return False
        numbers = bags + 1 + (n if self.rule != NULL else 0)
        if numbers > 2 * ON_STACK + 1:
            own_splits = <int64_t*>PyMem_Malloc(numbers * sizeof(int64_t))
            if own_splits == NULL:
                return False
        try:
            copy_numbers(<const int64_t*>splits.start, bags + 1, own_splits)
            if are_splits(own_splits, bags, n):
                call.ids__n, call.ids_count, call.splits, call.bags = ids.start, n, own_splits, bags
                call.addresses__n = own_splits + bags + 1
                call.weights, call.divided, call.out = weights, divided, sums.start
                done = self.combine_ids(&call)
        finally:
            if own_splits != few:
                PyMem_Free(own_splits)
        return done

    cdef bint combine_ids(self, Call* call) except -1:
        """Combine rows of the one array, or of those that the placement finds: here, or in shares."""
        cdef Py_ssize_t numbers = max(call.ids_count, call.bags) * self.dim
        cdef bint shared = True
        cdef SharedCall to_share
        call.table, call.stride = <const void*><size_t>self.bases[0], self.stride
        call.table_bytes = self.rows * self.stride
        call.limit = <uint64_t>self.rows
        call.rule, call.bases = self.rule, self.bases
        call.kind, call.dim, call.asking = self.kind, self.dim, self.asking
        call.shares, call.begun, call.wrong = 1, 0, 0
        if numbers <= SHORT:
            combine_part(call, 0)
            return call.wrong == 0
        with nogil:
            if numbers >= SHARED and self.share_little(NULL, NULL):
                call.shares = min(max(numbers // MUCH_SHARE, 2), MOST_SHARES)
                if border_of(call, 1) == call.bags:     # one bag, or one that has nearly all
                    call.shares = 1
            if call.shares == 1:
                combine_part(call, 0)
            elif numbers < MUCH or call.rule != NULL:
                self.share_little(combine_part, call)
            else:
                shared = self.share_much(combine_part, call)
        if not shared:
            to_share = SharedCall.__new__(SharedCall)
            to_share.call, to_share.numbers = call, numbers
            try:
                self.make_on_threads(to_share)
            finally:
                to_share.call = NULL    # which lies on the stack
        return call.wrong == 0


cdef class SharedCall:
    """Bags of one call, cut into shares, made by any number of threads while the call waits.

    There is nothing to cut or to make before it or after it.
    """

    cdef Call* call
    cdef Py_ssize_t numbers     # elements that are summed

    def cut(self, Py_ssize_t most, Py_ssize_t least):
        """Cut them into shares, at most `most`, of about as many ids; return how many.

        None has fewer than `least` elements but where one is all.
        """
        if self.call == NULL:
            return 0
        self.call.shares = max(min(most, self.numbers // least), 1)
        return self.call.shares

    def make(self):
        """Make shares that no thread has begun."""
        if self.call != NULL:
            with nogil:
                combine_part(self.call, 0)


cdef Py_ssize_t border_of(const Call* call, Py_ssize_t share) noexcept nogil:
    """Return the first bag that is not of the shares before one."""
    cdef Py_ssize_t low = 0, high = call.bags, middle
    if share == call.shares:
        return call.bags
    while low < high:
        middle = (low + high) // 2
        if call.shares * call.splits[middle] < call.ids_count * share:
            low = middle + 1
        else:
            high = middle
    return low


cdef void combine_part(void* given, int part) noexcept nogil:
    """Combine the bags of shares that no thread has begun: as many as this one comes to."""
    cdef Call* call = <Call*>given
    cdef Py_ssize_t share = take_number(&call.begun)
    cdef Py_ssize_t first, last
    cdef bint right
    while share < call.shares:
        first, last = border_of(call, share), border_of(call, share + 1)
        if call.wide:
            right = combine_ids(call, <const int64_t*>call.ids__n, first, last)
        else:
            right = combine_ids(call, <const int32_t*>call.ids__n, first, last)
        if not right:
            take_number(&call.wrong)
        share = take_number(&call.begun)


cdef bint combine_ids(const Call* call, const index_t* ids__n, Py_ssize_t first,
                      Py_ssize_t last) noexcept nogil:
    """Combine the rows of some bags, once it is known where they are; return whether all is right."""
    cdef Py_ssize_t start = call.splits[first], count = call.splits[last] - start
    if call.rule == NULL:
        return combine_rows(call, call.table, call.stride, ids__n, call.limit, first, last)
    if addresses_of(call.rule, ids__n + start, count, call.bases, call.stride,
                    call.addresses__n + start) >= 0:
        return False
    return combine_rows(call, NULL, 1, <const int64_t*>call.addresses__n, ANY, first, last)


cdef bint combine_rows(const Call* call, const void* table, Py_ssize_t stride,
                       const index_t* ids__n, uint64_t limit, Py_ssize_t first,
                       Py_ssize_t last) noexcept nogil:
    """Combine some bags; return whether all ids are below `limit`, without which no row is read, and
    whether `divide` found what weights leave to be finite."""
    if call.kind == FLOAT64:
        return reduce_rows(table, call.table_bytes, stride, call.kind, ids__n, limit,
                           call.splits + first, last - first, call.ids_count, call.dim,
                           <const float64_t*>call.weights, <const float64_t*>NULL, call.divided,
                           <float64_t*>call.out + first * call.dim, call.asking)
    return reduce_rows(table, call.table_bytes, stride, call.kind, ids__n, limit,
                       call.splits + first, last - first, call.ids_count, call.dim,
                       <const float32_t*>call.weights, <const float32_t*>NULL, call.divided,
                       <float32_t*>call.out + first * call.dim, call.asking)
