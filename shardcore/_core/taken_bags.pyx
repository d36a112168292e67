"""Ids in bags, taken: those of all features of a batch, copied and checked by threads that share them.

Only the copies are used: see ``taken_ids.pxi``. Ids, and row splits, are remembered by where they
lie, so that an array which another thread gives another shape or dtype meanwhile is still read as
it was added. Anything but a plain array is refused when it is added; others say why.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc

include "plain_arrays.pxi"
include "shares.pxi"
include "taken_ids.pxi"

cdef enum:
    MOST_TAKEN = 1 << 16    # numbers of a part: one share copies all of it

cdef int64_t no_values[2]   # the splits of a part of one segment, whose work is its cost

cdef struct Numbers:        # ids or row splits, or a piece of them, in plain memory
    const void* given
    Py_ssize_t count
    bint long_given         # whether they are of int64
    bint long_own           # and their copies
    Py_ssize_t place        # of the first copy, among all of its type
    int64_t rows            # that ids name; of row splits, how many ids they end at
    bint splits
    Py_ssize_t bags         # of all that were added, and of whose numbers the piece begins
    Py_ssize_t first
    Py_ssize_t wrong        # where in the piece a number is wrong, or -1


cdef struct Copies:         # of one feature's bags, among all of their types
    bint long_ids
    Py_ssize_t first
    Py_ssize_t last
    bint with_splits
    Py_ssize_t first_split
    Py_ssize_t last_split


cdef class TakenBags(Shares):
    """Copies of bags: added one by one, cut into shares, made and checked by any number of threads.

    They lie one behind the other, row splits before their ids.

    Attributes
    ----------
    short, long : int
        How many copies there are of int32, and of int64.
    """

    cdef Numbers* numbers
    cdef Copies* copies
    cdef Py_ssize_t added
    cdef readonly Py_ssize_t short
    cdef readonly Py_ssize_t long

    def __dealloc__(self):
        PyMem_Free(self.numbers)
        PyMem_Free(self.copies)

    def add(self, ids, row_splits, int64_t rows, bint narrow):
        """Add ids and their row splits; return whether they are plain arrays, (n,) and (b + 1,).

        Ids are of int32, or of int64; these are copied in 32 bits if `narrow`, which needs at most
        2**31 rows. Row splits are of int64, or None. False: they are anything else, and nothing was
        added.
        """
        cdef Numbers of_ids, of_splits
        cdef Copies copies
        if not found(ids, &of_ids) or narrow and rows > <int64_t>1 << 31:
            return False
        of_ids.long_own = of_ids.long_given and not narrow
        of_ids.rows, of_ids.splits = rows, False
        if row_splits is not None:
            if not found(row_splits, &of_splits) or not of_splits.long_given or not of_splits.count:
                return False
            of_splits.long_own, of_splits.rows, of_splits.splits = True, of_ids.count, True
            copies.first_split, copies.last_split = self.long, self.long + of_splits.count
            self.add_piece(&of_splits, of_splits.count)
        copies.with_splits, copies.long_ids = row_splits is not None, of_ids.long_own
        copies.first = self.long if of_ids.long_own else self.short
        copies.last = copies.first + of_ids.count
        self.copies = <Copies*>with_room(self.copies, self.added, sizeof(Copies))
        self.copies[self.added] = copies
        while of_ids.count > 0:
            self.add_piece(&of_ids, min(of_ids.count, MOST_TAKEN))
        self.held += ids, row_splits
        self.added += 1
        return True

    cdef int add_piece(self, Numbers* rest, Py_ssize_t count) except -1:
        """Add the first numbers of an array's rest, which becomes so much shorter."""
        self.numbers = <Numbers*>with_room(self.numbers, self.count, sizeof(Numbers))
        rest.bags = self.added
        rest.place = self.long if rest.long_own else self.short
        self.numbers[self.count] = rest[0]
        self.numbers[self.count].count = count
        self.numbers[self.count].wrong = 0      # until it was looked at
        self.append(no_values, 1, count, True)
        if rest.long_own:
            self.long += count
        else:
            self.short += count
        rest.given = <const char*>rest.given + count * (8 if rest.long_given else 4)
        rest.first += count
        rest.count -= count
        return 0

    def make(self, int32_t[::1] short__n, int64_t[::1] long__n, Py_ssize_t most=ALL):
        """Make shares that no thread has begun, at most so many. O(n + b)."""
        if short__n.shape[0] < self.short or long__n.shape[0] < self.long:
            raise ValueError(f"copies need room for {self.short} and {self.long}, got "
                             f"{short__n.shape[0]} and {long__n.shape[0]}")
        if self.count == 0:
            return
        cdef int32_t* short = &short__n[0] if self.short else NULL
        cdef int64_t* long = &long__n[0] if self.long else NULL
        with nogil:
            self.make_shares(short, long, most)

    def make_alone(self):
        """Make few copies at once; return what `parts_of` returns. None, and nothing done: they are many."""
        if not self.is_alone(LITTLE):
            return None
        short__n = new_numbers(self.short, NPY_INT32)
        long__n = new_numbers(self.long, NPY_INT64)
        cdef int32_t* short = <int32_t*>memory_of(short__n)
        cdef int64_t* long = <int64_t*>memory_of(long__n)
        with nogil:
            self.make_shares(short, long, ALL)
        return self.parts_of(short__n, long__n)

    cdef void make_shares(self, int32_t* short, int64_t* long, Py_ssize_t most) noexcept nogil:
        cdef Py_ssize_t share, at
        while most > 0:
            share = self.next_share()
            if share == self.shares:
                break
            for at in range(self.borders[share].part, self.part_after(share)):
                self.numbers[at].wrong = taken(&self.numbers[at], short, long)
            most -= 1

    def parts_of(self, short__n, long__n):
        """Return the copies of each of the bags that were added: ids, and row splits or None."""
        cdef Py_ssize_t at
        cdef Copies* one
        cdef list found = []
        for at in range(self.added):
            one = &self.copies[at]
            ids = (long__n if one.long_ids else short__n)[one.first:one.last]
            row_splits = long__n[one.first_split:one.last_split] if one.with_splits else None
            found.append((ids, row_splits))
        return found

    def wrong(self):
        """Return which bags are wrong, by the number of their `add`, once all are made.

        With where the first id is outside of the rows; -1: it is the row splits, which do not go
        from 0 to n without a step down.
        """
        cdef Py_ssize_t at
        cdef Numbers* one
        cdef dict found = {}
        for at in range(self.count):
            one = &self.numbers[at]
            if one.wrong >= 0:
                found.setdefault(one.bags, -1 if one.splits else one.first + one.wrong)
        return found


cdef bint found(object given, Numbers* numbers) noexcept:
    """Find where numbers lie; return whether it is a plain array of int32 or int64."""
    cdef Plain plain
    if not found_plain(given, False, &plain) or plain.ndim != 1:
        return False
    numbers.given, numbers.first, numbers.count = plain.start, 0, plain.size
    numbers.long_given = holds(&plain, INTEGERS, 8)
    return numbers.long_given or holds(&plain, INTEGERS, 4)


cdef Py_ssize_t taken(const Numbers* numbers, int32_t* short, int64_t* long) noexcept nogil:
    """Copy a piece; return where a number is wrong, of row splits anywhere, or -1."""
    cdef Py_ssize_t n = numbers.count
    short += numbers.place
    long += numbers.place
    if numbers.splits:
        copy_numbers(<const int64_t*>numbers.given, n, long)
        return -1 if are_splits(long, n - 1, numbers.rows) else 0
    if not numbers.long_given:
        return take(<const int32_t*>numbers.given, n, numbers.rows, short)
    if numbers.long_own:
        return take(<const int64_t*>numbers.given, n, numbers.rows, long)
    return take(<const int64_t*>numbers.given, n, numbers.rows, short)
