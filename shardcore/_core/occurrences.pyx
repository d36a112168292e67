"""The occurrences of rows in a batch, sorted by row: what makes one update per unique row possible.

A stable sort of (row, source) pairs, so that the occurrences of a row keep the order in which they
came: that order is the order in which its gradients are added. Pairs are dealt to buckets, ranges
of rows, and each bucket is sorted in the cache: few buckets at a time are few pages at a time, and
different buckets may be sorted by different threads.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from types cimport index_t

include "pairs.pxi"
include "plain_arrays.pxi"
include "shares.pxi"

cdef enum:
    DIGIT_BITS = 8
    MOST_DIGITS = 8     # 8 * 8 >= 63
    DIRECT_BITS = 15    # of rows that are counted each by itself, where a bucket has enough pairs
    ROWS_PER_PAIR = 16  # at most, for that
    DIGIT_COUNTERS = MOST_DIGITS * (1 << DIGIT_BITS)
    COUNTERS_IN_C = DIGIT_COUNTERS + (1 << DIRECT_BITS) + (1 << DIRECT_BITS) // 32
    WORD_BITS = 64
    PER_LINE = 16       # sources of a cache line
    BYTES_AHEAD = 64    # a cache line: so far before its turn the place of a pair is asked for

# What `sort_buckets` counts in: the values of digits; each row; and a bit for each row.
COUNTERS = COUNTERS_IN_C

cdef extern from "scalars.h" nogil:
    int sc_lowest_bit(uint64_t word)
    void prefetch_write "SC_PREFETCH_WRITE"(const void* address)

NARROW_WORDS = sizeof(narrow_t) // sizeof(uint64_t)
WIDE_WORDS = sizeof(wide_t) // sizeof(uint64_t)


def bags_of_ids(const int64_t[::1] row_splits, int32_t first, int32_t[::1] sources__n):
    """Write to `sources__n` (n,) each id's bag, counted from `first`. O(n)."""
    cdef Py_ssize_t b, i
    with nogil:
        for b in range(row_splits.shape[0] - 1):
            for i in range(row_splits[b], row_splits[b + 1]):
                sources__n[i] = first + <int32_t>b


cdef Py_ssize_t _sort_few(const index_t* ids, Py_ssize_t n, const int64_t* row_splits,
                          Py_ssize_t bags, int shift, uint32_t* counts, int64_t* unique,
                          int64_t* run_splits, int32_t* sources) noexcept nogil:
    """Sort the ids of a few thousand rows by row, each with its bag; return how many rows there are.

    Ids, below 2**shift, are counted where they lie and never made pairs. `row_splits` (b + 1,) ends
    at n; `shift` is 1 at least; `counts` are scratch, of a number for each of 2**shift rows and a
    word of 64 bits for every 64 of them, begun or whole. Their distinct rows go to `unique`, where
    each one's run starts to `run_splits`, and the bags to `sources`. O(n + 2**shift / 64).
    """
    cdef Py_ssize_t rows = <Py_ssize_t>1 << shift, words_count = (rows + WORD_BITS - 1) // WORD_BITS
    cdef Py_ssize_t i, b = 0, bag, found
    cdef int64_t end
    cdef uint64_t* words = <uint64_t*>(counts + rows)   # aligned: of two counters and more
    cdef uint32_t place, next_place
    memset(counts, 0, rows * sizeof(uint32_t) + words_count * sizeof(uint64_t))
    for i in range(n):
        words[<uint64_t>ids[i] >> 6] |= <uint64_t>1 << (<uint64_t>ids[i] & 63)
        counts[ids[i]] += 1
        if i % PER_LINE == 0:
            # Written later, in no order, and in no cache: other tables took the last batch's place.
            prefetch_write(sources + i)
    found = starts_of_rows(words, words_count, 0, 0, counts, unique, run_splits)
    i, end = 0, 0
    while i + 2 <= n:                   # two at a time: see pairs.pxi
        bag = b
        if end < i + 2:                 # not both are of the bag of the last
            bag = bag_of(i, b, row_splits)
            b = bag_of(i + 1, bag, row_splits)
            end = row_splits[b + 1]
        place = counts[ids[i]]
        next_place = counts[ids[i + 1]] + (ids[i + 1] == ids[i])
        counts[ids[i]] = place + 1
        counts[ids[i + 1]] = next_place + 1
        sources[place] = <int32_t>bag
        sources[next_place] = <int32_t>b
        i += 2
    if i < n:
        sources[counts[ids[i]]] = <int32_t>bag_of(i, b, row_splits)
    return found


cdef inline Py_ssize_t bag_of(int64_t i, Py_ssize_t b, const int64_t* row_splits) noexcept nogil:
    """Return the bag, `b` or one behind it, that has the id."""
    while row_splits[b + 1] <= i:
        b += 1
    return b


cdef struct Named:              # rows that one feature's bags name, or with sources of their own
    const void* rows
    bint long_rows              # whether they are of int64
    Py_ssize_t count
    const int64_t* row_splits   # of bags; NULL: `sources` says what each row's is
    Py_ssize_t bags
    const int32_t* sources
    int32_t first_source        # of the bags of all features of a table, the first of this one's


cdef struct Sort:               # of what the features of one table name
    Py_ssize_t first_feature    # of those of all tables
    Py_ssize_t features
    int shift                   # rows are below 2**shift
    bint by_row                 # whether each row is counted by itself
    Py_ssize_t first            # of the places for the rows of all tables, the first of this one's
    Py_ssize_t count
    Py_ssize_t bags
    Py_ssize_t found


cdef enum:
    COST_OF_PAIR = 3            # one takes 10 to 16 ns, a row that is counted by itself 4 to 7

cdef int64_t no_values[2]       # the splits of a part of one segment, whose work is its cost


cdef class Sorts(Shares):
    """Sorts of the rows that bags name, few for each table: added one by one, cut into shares, made by
    any threads.

    Rows of a small table are counted each by itself, where they lie; others are made pairs, which are
    sorted in one bucket. What is written lies one table behind the other, in `unique__n` and `sources__n`
    (n,), and in `run_splits` (n + tables,).

    Attributes
    ----------
    ids, tables : int
        How many there are in all.
    scratch : int
        How many numbers of 32 bits `make` needs.
    """

    cdef Sort* sorts
    cdef Named* named
    cdef Py_ssize_t features
    cdef readonly Py_ssize_t ids
    cdef readonly Py_ssize_t scratch

    @property
    def tables(self):
        return self.count

    def __dealloc__(self):
        PyMem_Free(self.sorts)
        PyMem_Free(self.named)

    def add(self, rows__n, row_splits, int shift, bint by_row):
        """Add a table, and the rows, each below 2**shift, that the bags of its first feature name.

        They are checked by the caller. With `by_row` there is no other feature, and `shift` is 1 at least.
        """
        cdef Named one
        self.look_at_bags(rows__n, row_splits, &one)
        self.add_table(shift, by_row)
        self.add_named(&one, rows__n, row_splits)

    def add_feature(self, rows__n, row_splits):
        """Add the bags of one more feature of the table that was added last."""
        cdef Named one
        self.look_at_bags(rows__n, row_splits, &one)
        if self.count == 0 or self.sorts[self.count - 1].by_row:
            raise ValueError("a feature to sort must be of a table that was added, and not by row")
        one.first_source = <int32_t>self.sorts[self.count - 1].bags
        self.add_named(&one, rows__n, row_splits)

    def add_sources(self, rows__n, sources__n, int shift):
        """Add a table, and rows, each below 2**shift, with the source of each."""
        cdef Named one
        one.long_rows = rows__n.itemsize == 8
        one.count = look_at(rows__n, INTEGERS, 8 if one.long_rows else 4, 0, &one.rows)
        if look_at(sources__n, INTEGERS, 4, 0, <const void**>&one.sources) != one.count:
            raise ValueError("rows to sort must have as many sources")
        one.row_splits, one.bags, one.first_source = NULL, 0, 0
        self.add_table(shift, False)
        self.add_named(&one, rows__n, sources__n)

    cdef int look_at_bags(self, rows__n, row_splits, Named* one) except -1:
        one.long_rows = rows__n.itemsize == 8
        one.count = look_at(rows__n, INTEGERS, 8 if one.long_rows else 4, 0, &one.rows)
        one.bags = look_at(row_splits, INTEGERS, 8, 0, <const void**>&one.row_splits) - 1
        one.sources, one.first_source = NULL, 0
        if one.bags < 0 or one.row_splits[one.bags] != one.count or one.row_splits[0] != 0:
            raise ValueError("row_splits of ids to sort must begin at 0 and end at their number")
        return 0

    cdef int add_table(self, int shift, bint by_row) except -1:
        self.sorts = <Sort*>with_room(self.sorts, self.count, sizeof(Sort))
        self.sorts[self.count] = Sort(self.features, 0, shift, by_row, self.ids, 0, 0, 0)
        return self.append(no_values, 1, 0, True)

    cdef int add_named(self, const Named* one, rows__n, others) except -1:
        """Add rows to the table that was added last; bags of several features are numbered through."""
        cdef Sort* sort = &self.sorts[self.count - 1]
        cdef Py_ssize_t scratch, of_pair = sizeof(wide_t) if sort.shift > 32 else sizeof(narrow_t)
        self.named = <Named*>with_room(self.named, self.features, sizeof(Named))
        self.named[self.features] = one[0]
        self.features += 1
        self.held += rows__n, others
        self.ids += one.count
        sort.features += 1
        sort.count += one.count
        sort.bags += one.bags
        if sort.by_row:
            scratch = (<Py_ssize_t>1 << sort.shift) + max((1 << sort.shift) // 32, 2)
        else:
            scratch = DIGIT_COUNTERS + 2 * sort.count * of_pair // <Py_ssize_t>sizeof(uint32_t)
        self.scratch = max(self.scratch, scratch)
        self.parts[self.count - 1].cost += one.bags + one.count * (1 if sort.by_row else COST_OF_PAIR)
        return 0

    def make(self, uint32_t[::1] scratch, int64_t[::1] unique__n, int64_t[::1] run_splits,
             int32_t[::1] sources__n, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many. O(n + rows)."""
        if (scratch.shape[0] < self.scratch or unique__n.shape[0] < self.ids
                or sources__n.shape[0] < self.ids or run_splits.shape[0] < self.ids + self.count):
            raise ValueError("what is sorted needs room for all ids, and for one more of each table")
        if self.count == 0:
            return
        cdef int64_t* unique = &unique__n[0] if self.ids else NULL
        cdef int32_t* sources = &sources__n[0] if self.ids else NULL
        with nogil:
            self.make_shares(&scratch[0], unique, &run_splits[0], sources, most)

    def make_alone(self, Py_ssize_t most):
        """Sort few rows at once, if that is at most so much work; return what `parts_of` returns.

        None, and nothing done: they are many, or it is more work.
        """
        if self.ids > LITTLE or not self.is_alone(most):
            return None
        unique__n = new_numbers(self.ids, NPY_INT64)
        run_splits = new_numbers(self.ids + self.count, NPY_INT64)
        sources__n = new_numbers(self.ids, NPY_INT32)
        cdef int64_t* unique = <int64_t*>memory_of(unique__n)
        cdef int64_t* splits = <int64_t*>memory_of(run_splits)
        cdef int32_t* sources = <int32_t*>memory_of(sources__n)
        cdef uint32_t* scratch = <uint32_t*>PyMem_Malloc(max(self.scratch, 1) * sizeof(uint32_t))
        if scratch == NULL:
            raise MemoryError("no room to sort in")
        with nogil:
            self.make_shares(scratch, unique, splits, sources, ALL)
        PyMem_Free(scratch)
        return self.parts_of(unique__n, run_splits, sources__n)

    cdef void make_shares(self, uint32_t* scratch, int64_t* unique, int64_t* run_splits,
                          int32_t* sources, Py_ssize_t most) noexcept nogil:
        cdef Py_ssize_t share, at
        while most > 0:
            share = self.next_share()
            if share == self.shares:
                break
            for at in range(self.borders[share].part, self.part_after(share)):
                sort_one(&self.sorts[at], self.named, at, scratch, unique, run_splits, sources)
            most -= 1

    def parts_of(self, unique__n, run_splits, sources__n):
        """Return what was written of each table, once all shares are made: slices of the three."""
        cdef Py_ssize_t at, split
        cdef Sort* one
        cdef list found = []
        for at in range(self.count):
            one = &self.sorts[at]
            split = one.first + at
            found.append((
                unique__n[one.first:one.first + one.found],
                run_splits[split:split + one.found + 1],
                sources__n[one.first:one.first + one.count],
            ))
        return found


cdef void sort_one(Sort* one, const Named* named, Py_ssize_t number, uint32_t* scratch,
                   int64_t* unique, int64_t* run_splits, int32_t* sources) noexcept nogil:
    """Sort what the features of a table name; the rows of so many tables lie before them."""
    cdef const Named* first = named + one.first_feature
    cdef int64_t* own_unique = unique + one.first
    cdef int64_t* own_splits = run_splits + one.first + number
    cdef int32_t* own_sources = sources + one.first
    if one.by_row and first.long_rows:
        one.found = _sort_few(<const int64_t*>first.rows, one.count, first.row_splits, one.bags,
                              one.shift, scratch, own_unique, own_splits, own_sources)
    elif one.by_row:
        one.found = _sort_few(<const int32_t*>first.rows, one.count, first.row_splits, one.bags,
                              one.shift, scratch, own_unique, own_splits, own_sources)
    elif one.shift > 32:
        one.found = sort_features(one, first, <wide_t*>(scratch + DIGIT_COUNTERS), scratch,
                                  own_unique, own_splits, own_sources)
    else:
        one.found = sort_features(one, first, <narrow_t*>(scratch + DIGIT_COUNTERS), scratch,
                                  own_unique, own_splits, own_sources)
    own_splits[one.found] = one.count


cdef inline Py_ssize_t sort_features(const Sort* one, const Named* named, pair_t* pairs,
                                     uint32_t* counters, int64_t* unique, int64_t* run_splits,
                                     int32_t* sources) noexcept nogil:
    """Sort the rows of all features of a table as one bucket of pairs; return how many there are."""
    cdef Py_ssize_t feature, at = 0
    cdef pair_t* sorted
    if one.count == 0:
        return 0
    for feature in range(one.features):
        if named[feature].long_rows:
            put_pairs(&named[feature], <const int64_t*>named[feature].rows, pairs + at)
        else:
            put_pairs(&named[feature], <const int32_t*>named[feature].rows, pairs + at)
        at += named[feature].count
    sorted = sorted_pairs(pairs, pairs + one.count, one.count, one.shift, DIGIT_BITS, counters)
    return write_runs(sorted, one.count, 0, unique, run_splits, sources)


cdef inline void put_pairs(const Named* named, const index_t* rows, pair_t* pairs) noexcept nogil:
    cdef Py_ssize_t i, b
    if named.row_splits == NULL:
        for i in range(named.count):
            put_one(&pairs[i], <uint64_t>rows[i], named.sources[i])
        return
    for b in range(named.bags):
        for i in range(named.row_splits[b], named.row_splits[b + 1]):
            put_one(&pairs[i], <uint64_t>rows[i], named.first_source + <int32_t>b)


cdef inline void put_one(pair_t* pair, uint64_t row, int32_t source) noexcept nogil:
    if pair_t is narrow_t:
        pair.key = <uint32_t>row
    else:
        pair.key = row
    pair.source = source


cdef inline Py_ssize_t starts_of_rows(uint64_t* words, Py_ssize_t count, uint64_t base,
                                      Py_ssize_t start, uint32_t* counters, int64_t* unique,
                                      int64_t* run_splits) noexcept nogil:
    """Write the rows whose bits are set, and where their runs start; return how many there are.

    `counters` become these starts, and `words` zero.
    """
    cdef Py_ssize_t at, found = 0
    cdef uint64_t word, key
    cdef uint32_t place
    for at in range(count):
        word = words[at]
        words[at] = 0
        while word:
            key = <uint64_t>at * WORD_BITS + <uint64_t>sc_lowest_bit(word)
            word &= word - 1
            unique[found] = <int64_t>(base | key)
            run_splits[found] = start
            found += 1
            place = <uint32_t>start
            start += counters[key]
            counters[key] = place
    return found


def count_buckets(const index_t[::1] rows__n, int shift, int64_t[::1] counts):
    """Count in `counts` how many of `rows__n` (n,) have each value of ``row >> shift``. O(n)."""
    cdef Py_ssize_t i
    cdef const index_t* rows = &rows__n[0] if rows__n.shape[0] else NULL
    cdef int64_t* of = &counts[0]
    with nogil:
        for i in range(counts.shape[0]):
            of[i] = 0
        for i in range(rows__n.shape[0]):
            of[<uint64_t>rows[i] >> shift] += 1


def starts_of_buckets(int64_t[:, ::1] counts__pb, int64_t[::1] limits):
    """Turn counts of parts (p, buckets) into where each part's pairs of a bucket start.

    Bucket b is [limits[b], limits[b + 1]); in it, parts follow one another.
    """
    cdef Py_ssize_t part, bucket
    cdef int64_t total = 0, count
    for bucket in range(counts__pb.shape[1]):
        limits[bucket] = total
        for part in range(counts__pb.shape[0]):
            count = counts__pb[part, bucket]
            counts__pb[part, bucket] = total
            total += count
    limits[counts__pb.shape[1]] = total


def deal(const index_t[::1] rows__n, const int32_t[::1] sources__n, int shift, int64_t[::1] starts,
         uint64_t[::1] pairs, bint wide):
    """Put the pairs of one part into their buckets, in order; `starts` moves on with them. O(n)."""
    if rows__n.shape[0] == 0:
        return
    with nogil:
        if wide:
            _deal(&rows__n[0], &sources__n[0], rows__n.shape[0], shift, &starts[0],
                  <wide_t*>&pairs[0])
        else:
            _deal(&rows__n[0], &sources__n[0], rows__n.shape[0], shift, &starts[0],
                  <narrow_t*>&pairs[0])


cdef void _deal(const index_t* rows, const int32_t* sources, Py_ssize_t n, int shift,
                int64_t* starts, pair_t* pairs) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + 2 <= n:
        put_two(<uint64_t>rows[i], sources[i], <uint64_t>rows[i + 1], sources[i + 1], shift, starts,
                pairs)
        i += 2
    if i < n:
        put_pair(<uint64_t>rows[i], sources[i], shift, starts, pairs)


def deal_bags(const index_t[::1] rows__n, const int64_t[::1] row_splits, int64_t first, int shift,
              int64_t[::1] starts, uint64_t[::1] pairs, bint wide):
    """Do as `deal` with the ids [first, first + n) of bags, whose sources are their bags. O(n + b)."""
    if rows__n.shape[0] == 0:
        return
    with nogil:
        if wide:
            _deal_bags(&rows__n[0], &row_splits[0], first, rows__n.shape[0], shift, &starts[0],
                       <wide_t*>&pairs[0])
        else:
            _deal_bags(&rows__n[0], &row_splits[0], first, rows__n.shape[0], shift, &starts[0],
                       <narrow_t*>&pairs[0])


cdef void _deal_bags(const index_t* rows, const int64_t* row_splits, int64_t first, Py_ssize_t n,
                     int shift, int64_t* starts, pair_t* pairs) noexcept nogil:
    cdef Py_ssize_t i = 0, bag, b = 0
    cdef int64_t end = row_splits[1]
    while i + 2 <= n:
        bag = b
        if end < first + i + 2:         # not both are of the bag of the last
            bag = bag_of(first + i, b, row_splits)
            b = bag_of(first + i + 1, bag, row_splits)
            end = row_splits[b + 1]
        put_two(<uint64_t>rows[i], <int32_t>bag, <uint64_t>rows[i + 1], <int32_t>b, shift, starts,
                pairs)
        i += 2
    if i < n:
        put_pair(<uint64_t>rows[i], <int32_t>bag_of(first + i, b, row_splits), shift, starts, pairs)


cdef inline void put_pair(uint64_t row, int32_t source, int shift, int64_t* starts,
                          pair_t* pairs) noexcept nogil:
    """Put a pair into its bucket."""
    cdef uint64_t bucket = row >> shift
    cdef int64_t at = starts[bucket]
    starts[bucket] = at + 1
    put_ahead(&pairs[at], row, source)


cdef inline void put_two(uint64_t row, int32_t source, uint64_t next_row, int32_t next_source,
                         int shift, int64_t* starts, pair_t* pairs) noexcept nogil:
    """Put two pairs into their buckets, one after the other; why two: see pairs.pxi."""
    cdef uint64_t bucket = row >> shift, next_bucket = next_row >> shift
    cdef int64_t at = starts[bucket], next_at = starts[next_bucket] + (next_bucket == bucket)
    starts[bucket] = at + 1
    starts[next_bucket] = next_at + 1
    put_ahead(&pairs[at], row, source)
    put_ahead(&pairs[next_at], next_row, next_source)


cdef inline void put_ahead(pair_t* pair, uint64_t row, int32_t source) noexcept nogil:
    """Put a pair, and ask for the place of the bucket's next one.

    The rows of a batch have taken the place of the last batch's pairs in the caches.
    """
    put_one(pair, row, source)
    prefetch_write(<const void*>(<size_t>pair + BYTES_AHEAD))


def sort_buckets(uint64_t[::1] pairs, uint64_t[::1] spare, const int64_t[::1] limits, int shift,
                 uint32_t[::1] counters, bint wide, int64_t[::1] unique__n,
                 int64_t[::1] run_splits, int32_t[::1] sources__n):
    """Sort each bucket of `pairs` by the lowest `shift` bits of its rows; return how many rows.

    Bucket b is [limits[b], limits[b + 1]) of `pairs`, which are used up. Their sources go to the
    same places of `sources__n`; their distinct rows, and where each one's run starts, to
    `unique__n` and `run_splits` from place limits[0] on. `spare`, as large as the largest bucket,
    and `counters` are scratch. O(n) per digit of 8 bits in which the rows of a bucket differ.
    """
    cdef Py_ssize_t bucket, found = limits[0]
    cdef bint direct, cleared = False
    if pairs.shape[0] == 0:
        return 0
    with nogil:
        for bucket in range(limits.shape[0] - 1):
            direct = counts_directly(limits[bucket + 1] - limits[bucket], shift)
            if direct and not cleared:
                clear_counters(&counters[DIGIT_COUNTERS], shift)
                cleared = True
            if wide:
                found += _sort(<wide_t*>&pairs[0], <wide_t*>&spare[0], limits[bucket],
                               limits[bucket + 1], shift, &counters[0], &unique__n[0] + found,
                               &run_splits[0] + found, &sources__n[0])
            else:
                found += _sort(<narrow_t*>&pairs[0], <narrow_t*>&spare[0], limits[bucket],
                               limits[bucket + 1], shift, &counters[0], &unique__n[0] + found,
                               &run_splits[0] + found, &sources__n[0])
    return found - limits[0]


cdef inline void clear_counters(uint32_t* counters, int shift) noexcept nogil:
    """Zero what `count_rows` counts 2**shift rows in."""
    memset(counters, 0, (<size_t>1 << shift) * sizeof(uint32_t))
    memset(counters + (<Py_ssize_t>1 << DIRECT_BITS), 0,
           (((<size_t>1 << shift) + WORD_BITS - 1) // WORD_BITS) * sizeof(uint64_t))


cdef inline bint counts_directly(Py_ssize_t n, int shift) noexcept nogil:
    """Return whether a bucket has enough pairs for its rows to be counted each by itself."""
    return shift <= DIRECT_BITS and n > FEW and n * ROWS_PER_PAIR >= <Py_ssize_t>1 << shift


cdef Py_ssize_t _sort(pair_t* all_pairs, pair_t* spare, Py_ssize_t first, Py_ssize_t last, int shift,
                      uint32_t* counters, int64_t* unique, int64_t* run_splits,
                      int32_t* sources) noexcept nogil:
    """Sort one bucket, and write its runs; return how many."""
    cdef pair_t* pairs = all_pairs + first
    cdef Py_ssize_t n = last - first
    if n == 0:
        return 0
    if counts_directly(n, shift):
        return count_rows(pairs, n, first, shift, counters + DIGIT_COUNTERS, unique, run_splits,
                          sources)
    return write_runs(sorted_pairs(pairs, spare, n, shift, DIGIT_BITS, counters), n, first, unique,
                      run_splits, sources + first)


cdef Py_ssize_t count_rows(const pair_t* pairs, Py_ssize_t n, Py_ssize_t first, int shift,
                           uint32_t* counters, int64_t* unique, int64_t* run_splits,
                           int32_t* sources) noexcept nogil:
    """Sort a bucket in one pass by counting each of its rows, and write its runs; return how many.

    `counters`, one for each of 2**shift rows, come zeroed and are left so, and so is the word for
    every 64 of them that follows, whose bits say which rows there are.
    """
    cdef uint64_t* words = <uint64_t*>(counters + (<Py_ssize_t>1 << DIRECT_BITS))
    cdef uint64_t mask = (<uint64_t>1 << shift) - 1, base = <uint64_t>pairs[0].key & ~mask
    cdef uint64_t key, next_key
    cdef Py_ssize_t i, found
    cdef uint32_t place, next_place
    for i in range(n):
        key = pairs[i].key & mask
        words[key >> 6] |= <uint64_t>1 << (key & 63)
        counters[key] += 1
    found = starts_of_rows(words, ((<Py_ssize_t>1 << shift) + WORD_BITS - 1) // WORD_BITS, base,
                           first, counters, unique, run_splits)
    i = 0
    while i + 2 <= n:                   # two at a time: see pairs.pxi
        key, next_key = pairs[i].key & mask, pairs[i + 1].key & mask
        place, next_place = counters[key], counters[next_key] + (next_key == key)
        counters[key] = place + 1
        counters[next_key] = next_place + 1
        sources[place] = <int32_t>pairs[i].source
        sources[next_place] = <int32_t>pairs[i + 1].source
        i += 2
    if i < n:
        sources[counters[pairs[i].key & mask]] = <int32_t>pairs[i].source
    for i in range(found):
        counters[<uint64_t>unique[i] & mask] = 0
    return found


cdef Py_ssize_t write_runs(const pair_t* pairs, Py_ssize_t n, Py_ssize_t first, int64_t* unique,
                           int64_t* run_splits, int32_t* sources) noexcept nogil:
    """Write the sources of sorted pairs, their rows, and where among all pairs each one's run starts."""
    cdef Py_ssize_t i, found = 0, start = first
    cdef bint new
    unique[0] = <int64_t>pairs[0].key
    run_splits[0] = first
    sources[0] = <int32_t>pairs[0].source
    for i in range(1, n):
        # Without a branch: in a batch that repeats rows it would be foretold wrongly.
        new = pairs[i].key != pairs[i - 1].key
        found += new
        start = first + i if new else start
        unique[found] = <int64_t>pairs[i].key
        run_splits[found] = start
        sources[i] = <int32_t>pairs[i].source
    return found + 1
