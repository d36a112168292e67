"""Which rows several askers name of several owners: sorted once, and the lists that are made of it.

Every asker has a list of occurrences, all of `length` places; an occurrence's *position* is its
place among those of all askers, one list after the other. Pairs (key, position) are sorted by key,
which is what the owner's first key is plus the row there, positions of a key staying in the order
in which they came. One walk over the sorted pairs then meets each owner's rows in ascending order,
and of each asker the same: so it knows how many rows the asker has named before, which is where the
row lies in what the owner sends it. Walks are cut at borders of buckets; no row lies in two.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from types cimport index_t

include "divisor.pxi"
include "pairs.pxi"

cdef extern from "scalars.h" nogil:
    void prefetch_write "SC_PREFETCH_WRITE"(const void* address)

cdef enum:
    AHEAD = 16          # pairs between asking for a place and writing to it
    DIGIT_BITS = 9
    MOST_DIGITS = 4     # 4 * 9 >= 31

COUNTERS = MOST_DIGITS * (1 << DIGIT_BITS)      # what `sort_askers` counts in

cdef uint32_t NONE = <uint32_t>0xffffffff       # no key: keys are below 2**31


cdef inline uint32_t key_of(uint32_t id, uint32_t shards, Divisor by_shards,
                            const int64_t* offsets) noexcept nogil:
    """Return the id's key: the id itself, or, with rows dealt round to shards, by its shard."""
    cdef uint32_t local
    if shards == 0:
        return id
    local = <uint32_t>quotient(id, by_shards)
    return <uint32_t>offsets[id - local * shards] + local


def count_keys(const index_t[::1] ids__n, int64_t first, int64_t last, int64_t shards,
               const int64_t[::1] offsets, int shift, int64_t[::1] counts):
    """Add to `counts` how many of ``ids__n[first:last]`` have each value of ``key >> shift``. O(n).

    `shards` is 0 where a row's key is its number, else that of round-robin shards.
    """
    cdef Py_ssize_t i
    cdef Divisor by_shards = divisor_of(shards if shards else 1)
    cdef const index_t* ids
    cdef int64_t* of = &counts[0]
    cdef const int64_t* borders = &offsets[0]
    if first >= last:
        return
    ids = &ids__n[0]
    with nogil:
        if shards == 0:
            for i in range(first, last):
                of[<uint32_t>ids[i] >> shift] += 1
        else:
            for i in range(first, last):
                of[key_of(<uint32_t>ids[i], <uint32_t>shards, by_shards, borders) >> shift] += 1


def deal_positions(const index_t[::1] ids__n, const int64_t[::1] row_splits, int64_t first_bag,
                   int64_t last_bag, int64_t bags, const int64_t[::1] starts__a, int64_t room,
                   int64_t shards, const int64_t[::1] offsets, int shift, int64_t[::1] starts,
                   uint64_t[::1] pairs):
    """Put the ids of a feature's bags into their buckets, with their positions. O(n).

    Asker a has bags ``a * bags`` to ``(a + 1) * bags``, their occurrences from position
    `starts__a[a]` on: one after the other, or, where `room` is not 0, that many places a bag.
    """
    cdef int64_t bag = first_bag, end, asker, own, first, last, at
    cdef Divisor by_shards = divisor_of(shards if shards else 1)
    cdef const index_t* ids
    cdef narrow_t* to
    if first_bag >= last_bag or row_splits[first_bag] == row_splits[last_bag]:
        return
    ids = &ids__n[0]
    to = <narrow_t*>&pairs[0]
    with nogil:
        while bag < last_bag:
            asker = bag // bags
            own = asker * bags
            end = min(last_bag, own + bags)
            if room == 0:
                at = starts__a[asker] + row_splits[bag] - row_splits[own]
                deal_ids(ids + row_splits[bag], row_splits[end] - row_splits[bag], at, shards,
                         by_shards, &offsets[0], shift, &starts[0], to)
                bag = end
            else:
                while bag < end:
                    at = starts__a[asker] + (bag - own) * room
                    deal_ids(ids + row_splits[bag], row_splits[bag + 1] - row_splits[bag], at,
                             shards, by_shards, &offsets[0], shift, &starts[0], to)
                    bag += 1


cdef void deal_ids(const index_t* ids, int64_t n, int64_t position, int64_t shards,
                   Divisor by_shards, const int64_t* offsets, int shift, int64_t* starts,
                   narrow_t* pairs) noexcept nogil:
    cdef int64_t i, at
    cdef narrow_t pair
    if shards == 0:
        for i in range(n):
            pair.key = <uint32_t>ids[i]
            pair.source = <int32_t>(position + i)
            at = starts[pair.key >> shift]
            starts[pair.key >> shift] = at + 1
            pairs[at] = pair
    else:
        for i in range(n):
            pair.key = key_of(<uint32_t>ids[i], <uint32_t>shards, by_shards, offsets)
            pair.source = <int32_t>(position + i)
            at = starts[pair.key >> shift]
            starts[pair.key >> shift] = at + 1
            pairs[at] = pair


def sort_askers(uint64_t[::1] pairs, uint64_t[::1] spare, const int64_t[::1] limits, int shift,
                uint32_t[::1] counters, int64_t length, int64_t rows_per_line,
                const int64_t[::1] borders, uint32_t[::1] seen__a, int64_t[:, ::1] rows__oa,
                int64_t[::1] lines__o, int64_t[::1] unique__o):
    """Sort each bucket of `pairs` in place, and count what they name. O(n) per digit of 9 bits.

    Bucket b is [limits[b], limits[b + 1]), owner o's keys are [borders[o], borders[o + 1]). Added
    up are: how many rows of each owner each asker names, and how many lines of `rows_per_line`
    rows and how many rows are named at all of each owner. `spare`, as large as the largest bucket,
    `counters` and `seen__a` are scratch.
    """
    cdef Py_ssize_t bucket, i
    cdef Walk walk
    cdef narrow_t* all_pairs
    if limits[limits.shape[0] - 1] == limits[0]:
        return
    all_pairs = <narrow_t*>&pairs[0]
    start_walk(&walk, length, rows_per_line, borders, seen__a, 0)
    with nogil:
        for bucket in range(limits.shape[0] - 1):
            sort(all_pairs + limits[bucket], <narrow_t*>&spare[0],
                 limits[bucket + 1] - limits[bucket], shift, &counters[0])
            count_named(all_pairs + limits[bucket], limits[bucket + 1] - limits[bucket], &walk,
                        &rows__oa[0, 0], &lines__o[0], &unique__o[0])


cdef void sort(narrow_t* pairs, narrow_t* spare, Py_ssize_t n, int bits_left,
               uint32_t* counters) noexcept nogil:
    """Sort one bucket by its lowest bits, to where it lies."""
    cdef const narrow_t* found = sorted_pairs(pairs, spare, n, bits_left, DIGIT_BITS, counters)
    cdef Py_ssize_t i
    if found != pairs:
        for i in range(n):
            pairs[i] = found[i]


cdef struct Walk:
    int64_t askers
    Divisor by_length
    Divisor by_line
    const int64_t* borders
    int64_t owner
    uint32_t first      # key of the owner
    uint32_t end        # of its keys
    uint32_t key        # the last one met
    int64_t line        # the last one met, of the owner; -1: none
    uint32_t* seen      # by asker: the last key that it named


cdef void start_walk(Walk* walk, int64_t length, int64_t rows_per_line,
                     const int64_t[::1] borders, uint32_t[::1] seen__a, int64_t owner):
    cdef int64_t asker
    walk.askers = seen__a.shape[0]
    walk.by_length = divisor_of(length)
    walk.by_line = divisor_of(rows_per_line)
    walk.borders = &borders[0]
    walk.owner = owner
    walk.first = <uint32_t>borders[owner]
    walk.end = <uint32_t>borders[owner + 1]
    walk.key = NONE
    walk.line = -1
    walk.seen = &seen__a[0]
    for asker in range(seen__a.shape[0]):
        seen__a[asker] = NONE


cdef inline void go_to_owner(Walk* walk, uint32_t key) noexcept nogil:
    while key >= walk.end:
        walk.owner += 1
        walk.first = walk.end
        walk.end = <uint32_t>walk.borders[walk.owner + 1]


cdef void count_named(const narrow_t* pairs, Py_ssize_t n, Walk* walk, int64_t* rows,
                      int64_t* lines, int64_t* unique) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t asker, line, new_lines = 0, new_rows = 0, last_line = walk.line
    cdef uint32_t key, end = walk.end, first = walk.first, last = walk.key
    cdef Divisor by_length = walk.by_length, by_line = walk.by_line
    cdef int64_t* of_owner = rows + walk.owner * walk.askers
    cdef uint32_t* seen = walk.seen
    for i in range(n):
        key = pairs[i].key
        if key >= end:
            lines[walk.owner] += new_lines
            unique[walk.owner] += new_rows
            go_to_owner(walk, key)
            end, first = walk.end, walk.first
            of_owner = rows + walk.owner * walk.askers
            new_lines = new_rows = 0
            last_line = -1
        asker = quotient(pairs[i].source, by_length)
        of_owner[asker] += seen[asker] != key
        seen[asker] = key
        line = quotient(key - first, by_line)
        new_lines += line != last_line
        new_rows += key != last
        last_line = line
        last = key
    lines[walk.owner] += new_lines
    unique[walk.owner] += new_rows
    walk.key = last
    walk.line = last_line


def list_asked(const uint64_t[::1] pairs, int64_t first, int64_t last, int64_t length,
               const int64_t[::1] borders, int64_t owner, int64_t room, uint32_t[::1] seen__a,
               int64_t[::1] ahead__a, int32_t[::1] asked__oac, int32_t[::1] slots__p):
    """List what askers name in pairs `first` to `last`, of which the first is of `owner`. O(n).

    `asked__oac` (owners * askers * room): the owner's row. `slots__p` (askers * length), at the
    pair's position: ``owner * room`` plus the row's number among those that the asker has named of
    the owner. `ahead__a` rows of the first owner were listed for each asker before; used up.
    """
    cdef Walk walk
    cdef Py_ssize_t i
    cdef int64_t asker, before, askers = seen__a.shape[0], base
    cdef uint32_t key, end, first_key
    cdef const narrow_t* of
    cdef int64_t* ahead = &ahead__a[0]
    cdef int32_t* asked
    cdef int32_t* slots
    cdef Divisor by_length
    cdef uint32_t* seen
    if first >= last:
        return
    start_walk(&walk, length, 1, borders, seen__a, owner)
    of, asked, slots = <const narrow_t*>&pairs[0], &asked__oac[0], &slots__p[0]
    by_length, seen = walk.by_length, walk.seen
    with nogil:
        end, first_key = walk.end, walk.first
        asked += owner * askers * room
        base = owner * room - 1
        for i in range(first, last):
            key = of[i].key
            prefetch_write(slots + of[min(i + AHEAD, last - 1)].source)
            if key >= end:
                before = walk.owner
                go_to_owner(&walk, key)
                end, first_key = walk.end, walk.first
                asked += (walk.owner - before) * askers * room
                base = walk.owner * room - 1
                for asker in range(askers):
                    ahead[asker] = 0
            asker = quotient(of[i].source, by_length)
            ahead[asker] += seen[asker] != key
            seen[asker] = key
            asked[asker * room + ahead[asker] - 1] = <int32_t>(key - first_key)
            slots[of[i].source] = <int32_t>(base + ahead[asker])


def fill_rest(int32_t[:, ::1] lists__rc, const int64_t[::1] counts__r, int32_t padding):
    """Fill each list from its count on. O(n)."""
    cdef int64_t r, i
    with nogil:
        for r in range(lists__rc.shape[0]):
            for i in range(counts__r[r], lists__rc.shape[1]):
                lists__rc[r, i] = padding
