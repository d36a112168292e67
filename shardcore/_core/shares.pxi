"""Work on many tables, cut into shares of about equal size, whatever table they are for.

A step works on hundreds of tables, most of them so small that to call a kernel for one takes as
long as its work, and that threads cannot share it. So their work is added to one object, in plain
memory, which is cut into shares. Every thread makes one call, which does shares until none is left:
so a thread that begins late, or has work that takes longer than was thought, holds up no other.
What the work is, a class says that is derived from `Shares`.
"""

cdef extern from "scalars.h" nogil:
    int64_t take_number "SC_TAKE_NUMBER"(int64_t* counter)

cdef enum:
    ALL = 1 << 30       # shares, at most
    LITTLE = 1 << 14    # numbers: arrays of so many lie in memory of the heap

cdef struct Part:               # the work on one table, in segments that follow one another
    const int64_t* splits       # segment s is of splits[s + 1] - splits[s] values
    Py_ssize_t segments
    Py_ssize_t cost             # elements that a value stands for, and a segment
    bint whole                  # whether one share does all of it

cdef struct Border:             # where a share begins
    Py_ssize_t part
    Py_ssize_t segment


cdef class Shares:
    """The parts of some work, and the shares that they are cut into."""

    cdef Part* parts
    cdef Py_ssize_t count
    cdef Border* borders        # where each share begins, and the last one ends
    cdef Py_ssize_t shares
    cdef int64_t begun          # shares that some thread has taken, or more
    cdef list held              # what keeps the memory of the parts

    def __cinit__(self):
        self.held = []

    def __dealloc__(self):
        PyMem_Free(self.parts)
        PyMem_Free(self.borders)

    cdef int append(self, const int64_t* splits, Py_ssize_t segments, Py_ssize_t cost,
                    bint whole) except -1:
        """Add a part, whose arrays are added to `held`."""
        self.parts = <Part*>with_room(self.parts, self.count, sizeof(Part))
        self.parts[self.count] = Part(splits, segments, cost, whole)
        self.count += 1
        return 0

    def cut(self, Py_ssize_t most, Py_ssize_t least):
        """Cut all that was added into shares, and return how many.

        At most `most`, none of fewer than `least` elements but where one is all. O(tables).
        """
        cdef Py_ssize_t share, at = 0, work = 0, before = 0, wanted, i
        for i in range(self.count):
            work += all_of(&self.parts[i])
        self.shares = max(min(most, work // least), min(self.count, 1))
        PyMem_Free(self.borders)
        self.borders = <Border*>PyMem_Malloc((self.shares + 1) * sizeof(Border))
        if self.borders == NULL:
            raise MemoryError("no room for shares")
        self.borders[0] = Border(0, 0)
        for share in range(1, self.shares):
            wanted = work * share // self.shares
            while at < self.count and before + all_of(&self.parts[at]) <= wanted:
                before += all_of(&self.parts[at])
                at += 1
            self.borders[share] = Border(at, 0)
            if at < self.count and not self.parts[at].whole:
                self.borders[share].segment = segment_at(&self.parts[at], wanted - before)
        self.borders[self.shares] = Border(self.count, 0)
        self.begun = 0
        return self.shares

    cdef bint is_alone(self, Py_ssize_t most) except -1:
        """Cut all that was added into one share, if it is at most so much work; return whether it is."""
        cdef Py_ssize_t work = 0, i
        for i in range(self.count):
            work += all_of(&self.parts[i])
        if work > most:
            return False
        self.cut(1, 1)
        return True

    cdef Py_ssize_t next_share(self) noexcept nogil:
        """Return a share that no thread has begun, or one behind the last."""
        cdef int64_t share = take_number(&self.begun)
        return share if share < self.shares else self.shares

    cdef Py_ssize_t part_after(self, Py_ssize_t share) noexcept nogil:
        """Return the first part of which a share has nothing, nor of those behind it."""
        cdef const Border* border = &self.borders[share + 1]
        return border.part + (border.segment > 0)

    cdef Py_ssize_t first_of(self, Py_ssize_t share, Py_ssize_t part) noexcept nogil:
        """Return the first segment of a part that is a share's."""
        cdef const Border* border = &self.borders[share]
        return border.segment if part == border.part else 0

    cdef Py_ssize_t last_of(self, Py_ssize_t share, Py_ssize_t part) noexcept nogil:
        """Return the segment of a part that follows those of a share."""
        cdef const Border* border = &self.borders[share + 1]
        return border.segment if part == border.part else self.parts[part].segments


cdef inline Py_ssize_t work_of(const Part* part, Py_ssize_t segments) noexcept nogil:
    """Return how many elements the first `segments` of a part stand for."""
    return (part.splits[segments] - part.splits[0] + segments) * part.cost


cdef inline Py_ssize_t all_of(const Part* part) noexcept nogil:
    return work_of(part, part.segments)


cdef inline Py_ssize_t segment_at(const Part* part, Py_ssize_t work) noexcept nogil:
    """Return the first segment before which there is so much work, or more."""
    cdef Py_ssize_t low = 0, high = part.segments, middle
    while low < high:
        middle = (low + high) // 2
        if work_of(part, middle) < work:
            low = middle + 1
        else:
            high = middle
    return low


cdef void* with_room(void* items, Py_ssize_t count, Py_ssize_t size) except NULL:
    """Return memory with room for one item more, where `count` of that size have been added."""
    cdef void* larger
    if count & (count - 1):     # it grows at powers of two, and zero
        return items
    larger = PyMem_Realloc(items, max(2 * count, 1) * size)
    if larger == NULL:
        raise MemoryError("no room for the work on a table")
    return larger


cdef Py_ssize_t look_at(object array, const char* letters, Py_ssize_t size, Py_ssize_t dim,
                        const void** start) except -1:
    """Find where an array lies, (n,) or, of rows of `dim`, (n, dim), and return n; None has none.

    The caller holds the array.
    """
    cdef Plain plain
    start[0] = NULL
    if array is None:
        return 0
    if not (found_plain(array, False, &plain) and plain.ndim == (2 if dim else 1)
            and holds(&plain, letters, size) and (not dim or plain.shape[1] == dim)):
        raise TypeError(
            "work on a table must have arrays of its dtypes and of its number of columns"
        )
    if plain.size:
        start[0] = plain.start
    return plain.shape[0]
