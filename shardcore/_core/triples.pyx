"""Triples (row, bag, gain) of the workers that bags are shared out to, sorted by holder and row.

A row's *number* says where it lies, in three digits of bits: the group that holds it, its row
there, and which holder of the group: ``1 << holder_bits`` are one group. Its *key* has the digits
in the order (group, holder, row), so that keys ascend from holder to holder, and in each from row
to row.
A worker's pairs of key and (bag, gain) are sorted by key, those of a key staying in the order in
which they came, which is that of bags. Workers have nothing in common: each may be sorted by a
thread of its own, and the memory that it needs is that of its own pairs.
"""

from libc.math cimport NAN
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

include "pairs.pxi"

cdef enum:
    DIGIT_BITS = 11
    MOST_DIGITS = 6     # 6 * 11 >= 63
    STEP = 8            # triples: a list begins at a multiple

COUNTERS = MOST_DIGITS * (1 << DIGIT_BITS)      # what `sort_triples` counts in
WORDS = sizeof(wide_t) // sizeof(uint64_t)

# The fraction of the golden ratio, odd: equal steps between rows become unequal ones.
cdef uint32_t SCATTER = 0x9E3779B1u

cdef extern from "scalars.h" nogil:
    float float_of_bits "sc_float_of_bits"(uint32_t bits)
    uint32_t bits_of_float "sc_bits_of_float"(float value)


cdef inline uint64_t key_of_number(int64_t number, int holder_bits,
                                   int row_bits) noexcept nogil:
    cdef uint64_t digits = <uint64_t>number
    cdef uint64_t holder = digits & ((<uint64_t>1 << holder_bits) - 1)
    cdef uint64_t row = (digits >> holder_bits) & ((<uint64_t>1 << row_bits) - 1)
    cdef uint64_t group = digits >> (holder_bits + row_bits)
    return ((group << holder_bits | holder) << row_bits) | row


cdef inline uint32_t part_of(uint64_t row, int part_bits) noexcept nogil:
    """Return which of ``1 << part_bits`` parts a holder's row is in."""
    return <uint32_t>(<uint64_t>(<uint32_t>row * SCATTER) >> (32 - part_bits))


def count_keys(const int64_t[::1] numbers__n, int holder_bits, int row_bits, int shift,
               int64_t[::1] counts):
    """Add to `counts` how many of `numbers__n` have each value of ``key >> shift``. O(n)."""
    cdef Py_ssize_t i
    cdef int64_t* of = &counts[0]
    with nogil:
        for i in range(numbers__n.shape[0]):
            of[key_of_number(numbers__n[i], holder_bits, row_bits) >> shift] += 1


def deal_bags(const int64_t[::1] numbers__n, const int64_t[::1] row_splits, int64_t first_bag,
              int64_t last_bag, int32_t number, const float[::1] gains__n,
              const float[::1] gains__b, int holder_bits, int row_bits, int shift,
              int64_t[::1] starts, uint64_t[::1] pairs):
    """Put some of a feature's bags, the first one of this `number`, into a worker's buckets. O(n).

    `numbers__n` are those of these bags; gains are those of all ids, of all bags, or, where there
    are neither, 1.
    """
    cdef int64_t bag, i, at, before
    cdef const int64_t* numbers
    cdef const float* of_ids = &gains__n[0] if gains__n.shape[0] else NULL
    cdef const float* of_bags = &gains__b[0] if gains__b.shape[0] else NULL
    cdef wide_t* to
    cdef wide_t pair
    cdef uint64_t bucket
    cdef float gain
    if first_bag >= last_bag or row_splits[first_bag] == row_splits[last_bag]:
        return
    numbers, to = &numbers__n[0], <wide_t*>&pairs[0]
    before = row_splits[first_bag]
    with nogil:
        for bag in range(first_bag, last_bag):
            gain = of_bags[bag] if of_bags != NULL else 1
            pair.source = <int64_t>(number + bag - first_bag) << 32 | bits_of_float(gain)
            for i in range(row_splits[bag], row_splits[bag + 1]):
                pair.key = key_of_number(numbers[i - before], holder_bits, row_bits)
                if of_ids != NULL:
                    pair.source = pair.source >> 32 << 32 | bits_of_float(of_ids[i])
                bucket = pair.key >> shift
                at = starts[bucket]
                starts[bucket] = at + 1
                to[at] = pair


def sort_triples(uint64_t[::1] pairs, uint64_t[::1] spare, const int64_t[::1] limits, int shift,
                 uint32_t[::1] counters, int row_bits, int64_t[::1] counts__h,
                 int64_t[::1] unique__h):
    """Sort a worker's pairs, add the gains of those equal in key and bag; return how many are left.

    Bucket b is [limits[b], limits[b + 1]). What is left is at the front of `pairs`. How many
    triples and distinct rows there are of each holder is written to `counts__h` and `unique__h`,
    which come zeroed. `spare`, as large as the largest bucket, and `counters` are scratch. O(n) per
    digit of 11 bits in which the keys of a bucket differ.
    """
    cdef Py_ssize_t bucket, found = 0
    cdef wide_t* all_pairs
    cdef wide_t* of_bucket
    if limits[limits.shape[0] - 1] == 0:
        return 0
    all_pairs = <wide_t*>&pairs[0]
    with nogil:
        for bucket in range(limits.shape[0] - 1):
            if limits[bucket] == limits[bucket + 1]:
                continue
            of_bucket = sorted_pairs(all_pairs + limits[bucket], <wide_t*>&spare[0],
                                     limits[bucket + 1] - limits[bucket], shift, DIGIT_BITS,
                                     &counters[0])
            found += merge(of_bucket, limits[bucket + 1] - limits[bucket], all_pairs + found,
                           row_bits, &counts__h[0], &unique__h[0])
    return found


cdef Py_ssize_t merge(const wide_t* pairs, Py_ssize_t n, wide_t* to, int row_bits,
                      int64_t* counts, int64_t* unique) noexcept nogil:
    """Write the triples of a sorted bucket, each once, where it lies or before; return how many."""
    cdef Py_ssize_t i, found = 0, counted = 0
    cdef int64_t rows = 1
    cdef uint64_t holder = pairs[0].key >> row_bits
    cdef wide_t last = pairs[0], pair
    for i in range(1, n):
        pair = pairs[i]
        if pair.key == last.key and pair.source >> 32 == last.source >> 32:
            last.source = last.source >> 32 << 32 | bits_of_float(
                float_of_bits(<uint32_t>last.source) + float_of_bits(<uint32_t>pair.source))
            continue
        to[found] = last
        found += 1
        if pair.key >> row_bits != holder:
            counts[holder] += found - counted
            unique[holder] += rows
            counted, rows, holder = found, 1, pair.key >> row_bits
        else:
            rows += pair.key != last.key
        last = pair
    to[found] = last
    found += 1
    counts[holder] += found - counted
    unique[holder] += rows
    return found


def count_parts(const uint64_t[::1] pairs, int64_t n, int row_bits, int part_bits,
                int64_t[:, ::1] counts__ph, int64_t[:, ::1] unique__ph):
    """Add up how many triples and distinct rows of each holder are in each part. O(n)."""
    cdef Py_ssize_t i
    cdef const wide_t* of
    cdef uint64_t key, last = <uint64_t>-1, mask = (<uint64_t>1 << row_bits) - 1
    cdef uint32_t part
    if n == 0:
        return
    of = <const wide_t*>&pairs[0]
    with nogil:
        for i in range(n):
            key = of[i].key
            part = part_of(key & mask, part_bits)
            counts__ph[part, key >> row_bits] += 1
            unique__ph[part, key >> row_bits] += key != last
            last = key


def list_keys(const uint64_t[::1] pairs, int64_t n, int64_t[::1] keys):
    """Write the distinct keys of sorted triples to `keys`, which has room for just these. O(n)."""
    cdef Py_ssize_t i, found = 0
    cdef const wide_t* of
    cdef uint64_t last = <uint64_t>-1
    if n == 0:
        return
    of = <const wide_t*>&pairs[0]
    with nogil:
        for i in range(n):
            found += of[i].key != last
            last = of[i].key
            keys[found - 1] = <int64_t>last


def count_distinct(const int64_t[::1] keys, const int64_t[::1] limits__w, int64_t first,
                   int64_t end, int window_bits, uint64_t[::1] bitmap, int64_t[:, ::1] at__2w):
    """Return how many keys from `first` to `end` there are in ascending lists, each once. O(n).

    List w is [limits__w[w], limits__w[w + 1]). Keys are marked in windows of ``1 << window_bits``,
    in `bitmap`, which comes zeroed and is left so; `at__2w` is scratch.
    """
    cdef int64_t found = 0
    if keys.shape[0] == 0:
        return 0
    with nogil:
        found = count_marked(&keys[0], &limits__w[0], limits__w.shape[0] - 1, first, end,
                             window_bits, &bitmap[0], &at__2w[0, 0], &at__2w[1, 0])
    return found


cdef int64_t count_marked(const int64_t* keys, const int64_t* limits, Py_ssize_t lists,
                          int64_t first, int64_t end, int window_bits, uint64_t* bitmap,
                          int64_t* at, int64_t* before) noexcept nogil:
    cdef Py_ssize_t w
    cdef int64_t found = 0, lowest, last, i
    cdef uint64_t bit, word
    for w in range(lists):
        at[w] = lower_bound(keys, limits[w], limits[w + 1], first)
    while True:
        lowest = end
        for w in range(lists):
            before[w] = at[w]
            if at[w] < limits[w + 1] and keys[at[w]] < lowest:
                lowest = keys[at[w]]
        if lowest == end:
            return found
        lowest = lowest >> window_bits << window_bits
        last = min(end, lowest + (<int64_t>1 << window_bits))
        for w in range(lists):
            i = at[w]
            while i < limits[w + 1] and keys[i] < last:
                bit = <uint64_t>(keys[i] - lowest)
                word = bitmap[bit >> 6]
                found += <int64_t>(~(word >> (bit & 63)) & 1)
                bitmap[bit >> 6] = word | <uint64_t>1 << (bit & 63)
                i += 1
            at[w] = i
        for w in range(lists):
            for i in range(before[w], at[w]):
                bitmap[<uint64_t>(keys[i] - lowest) >> 6] = 0


cdef int64_t lower_bound(const int64_t* keys, int64_t low, int64_t high,
                         int64_t key) noexcept nogil:
    """Return the place of the first of ascending keys that is not below `key`."""
    cdef int64_t middle
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


def list_triples(const uint64_t[::1] pairs, int64_t n, int row_bits, int part_bits,
                 int64_t[:, ::1] starts__ph, int32_t padding, int32_t[::1] rows,
                 int32_t[::1] bags, float[::1] gains):
    """Write sorted triples to lists, one for each part and holder, which begin at `starts__ph`.

    A list is filled up to a multiple of 8 by `padding` and gains of NaN; `starts__ph` moves on to
    the end of each. O(n).
    """
    cdef Py_ssize_t i
    cdef int64_t at, part, holder
    cdef const wide_t* of
    cdef uint64_t row, mask = (<uint64_t>1 << row_bits) - 1
    cdef int64_t* starts = &starts__ph[0, 0]
    cdef Py_ssize_t holders = starts__ph.shape[1]
    if n:
        of = <const wide_t*>&pairs[0]
        with nogil:
            for i in range(n):
                row = of[i].key & mask
                part = part_of(row, part_bits) * holders + <Py_ssize_t>(of[i].key >> row_bits)
                at = starts[part]
                starts[part] = at + 1
                rows[at] = <int32_t>row
                bags[at] = <int32_t>(of[i].source >> 32)
                gains[at] = float_of_bits(<uint32_t>of[i].source)
    with nogil:
        for part in range(starts__ph.shape[0]):
            for holder in range(holders):
                at = starts__ph[part, holder]
                while at % STEP:
                    rows[at] = padding
                    bags[at] = padding
                    gains[at] = NAN
                    at += 1
                starts__ph[part, holder] = at
