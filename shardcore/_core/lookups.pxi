"""Lookups in many tables: rows combined per bag, as `segment_reduce` combines those of one.

A part of ``rows.pxi``. The lookups of all features of a batch are shared out: see ``shares.pxi``.
"""

cdef struct Lookup:             # of the bags of one feature, in plain memory
    Stored stored
    const void* ids
    bint long_ids               # whether they are of int64
    const int64_t* row_splits
    Py_ssize_t ids_count        # of all bags
    const void* weights         # of ids, or NULL
    const void* divisors        # of bags, or NULL
    int divided                 # how sums are divided: see ``divided.pxi``
    void* out


cdef class Lookups(Shares):
    """Lookups in tables: added one by one, cut into shares, made by any number of threads."""

    cdef Lookup* lookups
    cdef int asking             # in which way rows are asked for by the parts of `share`
    cdef bint right[2]          # whether what these made is right

    def __dealloc__(self):
        PyMem_Free(self.lookups)

    def add(self, StoredRows stored, ids__n, row_splits, weights__n, divisors__b, out__bd,
            int divided=BY_GIVEN):
        """Add the lookup of bags in a table.

        Of `ids__n` (n,), int32 or int64, bag b has [row_splits[b], row_splits[b + 1]); `weights__n`
        and `divisors__b` may be None; `out__bd` (b, d) is written to; `divided` as for
        `segment_reduce`.
        """
        cdef Py_ssize_t dim = stored.memory.dim, size = 4, bags, count
        cdef const char* floats = b"f"
        cdef Lookup lookup
        if dim == 0:
            return
        if stored.memory.working == FLOAT64:
            floats, size = b"d", 8
        bags = look_at(row_splits, INTEGERS, 8, 0, <const void**>&lookup.row_splits) - 1
        lookup.long_ids = ids__n.itemsize == 8
        count = look_at(ids__n, INTEGERS, 8 if lookup.long_ids else 4, 0, &lookup.ids)
        if (look_at(weights__n, floats, size, 0, &lookup.weights) != (weights__n is not None) * count
                or look_at(divisors__b, floats, size, 0,
                           &lookup.divisors) != (divisors__b is not None) * bags
                or look_at(out__bd, floats, size, dim, <const void**>&lookup.out) != bags):
            raise ValueError("a lookup must have a weight of each id, and a divisor and a row of out "
                             "of each bag")
        if not PyArray_ISWRITEABLE(<PyArrayObject*><void*>out__bd):
            raise ValueError("out of a lookup must be writable")
        if bags <= 0:
            return
        if lookup.row_splits[0] < 0 or lookup.row_splits[bags] > count:
            raise ValueError("row_splits of a lookup must lie among its ids")
        lookup.stored, lookup.divided = stored.memory, divided
        lookup.ids_count = lookup.row_splits[bags] - lookup.row_splits[0]
        self.lookups = <Lookup*>with_room(self.lookups, self.count, sizeof(Lookup))
        self.lookups[self.count] = lookup
        self.held += stored, ids__n, row_splits, weights__n, divisors__b, out__bd
        self.append(lookup.row_splits, bags, dim, False)

    def make(self, int asking, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many; return whether they are right.

        They are if their ids name rows and, where divisors are made of weights, these are finite, or
        the sums that have none. O(n·d).
        """
        cdef bint right
        with nogil:
            right = self.make_shares(asking, most)
        return right

    def make_alone(self, int asking, Py_ssize_t most):
        """Do what `make` does for all at once, if that is at most so much work. None: it is more."""
        cdef bint right
        if not self.is_alone(most):
            return None
        with nogil:
            right = self.make_shares(asking, ALL)
        return right

    def share(self, int asking, sharing):
        """Do what `make` does for all shares, some in another thread, as `sharing` has it.

        This is a capsule as in ``share.h``; None: it has no thread for them, and nothing was done.
        """
        cdef Sharing share = <Sharing>PyCapsule_GetPointer(sharing, SHARING_NAME)
        self.asking = asking
        cdef bint done
        with nogil:
            done = share(make_part, <void*>self)
        return self.right[0] and self.right[1] if done else None

    cdef bint make_shares(self, int asking, Py_ssize_t most) noexcept nogil:
        cdef Py_ssize_t share, at
        cdef bint right = True
        while most > 0:
            share = self.next_share()
            if share == self.shares:
                break
            for at in range(self.borders[share].part, self.part_after(share)):
                if self.first_of(share, at) < self.last_of(share, at):
                    right &= look_up(&self.lookups[at], self.first_of(share, at),
                                     self.last_of(share, at), asking)
            most -= 1
        return right


cdef void make_part(void* lookups, int part) noexcept nogil:
    """Make shares until none is left: the caller of `share` holds the lookups meanwhile."""
    (<Lookups>lookups).right[part] = (<Lookups>lookups).make_shares((<Lookups>lookups).asking, ALL)


cdef bint look_up(const Lookup* lookup, Py_ssize_t first, Py_ssize_t last,
                  int asking) noexcept nogil:
    """Combine the rows of the bags [first, last); return whether they are right."""
    if lookup.stored.working == FLOAT64:
        if lookup.long_ids:
            return look_up_bags(lookup, <const int64_t*>lookup.ids, <float64_t*>lookup.out, first,
                                last, asking)
        return look_up_bags(lookup, <const int32_t*>lookup.ids, <float64_t*>lookup.out, first, last,
                            asking)
    if lookup.long_ids:
        return look_up_bags(lookup, <const int64_t*>lookup.ids, <float32_t*>lookup.out, first, last,
                            asking)
    return look_up_bags(lookup, <const int32_t*>lookup.ids, <float32_t*>lookup.out, first, last,
                        asking)


cdef inline bint look_up_bags(const Lookup* lookup, const index_t* ids, value_t* out,
                              Py_ssize_t first, Py_ssize_t last, int asking) noexcept nogil:
    cdef const value_t* divisors = <const value_t*>lookup.divisors
    cdef const Stored* stored = &lookup.stored
    cdef Py_ssize_t dim = stored.dim, size = dim * size_of(stored.kind)
    if divisors != NULL:
        divisors += first
    return reduce_rows(stored.table, stored.rows * size, size, stored.kind, ids,
                       <uint64_t>stored.rows, lookup.row_splits + first, last - first,
                       lookup.ids_count, dim, <const value_t*>lookup.weights, divisors,
                       lookup.divided, out + first * dim, asking)


cdef inline Py_ssize_t size_of(int64_t kind) noexcept nogil:
    """Return the bytes of an element of a table."""
    if kind == FLOAT64:
        return sizeof(float64_t)
    return sizeof(float32_t) if kind == FLOAT32 else sizeof(half_t)
