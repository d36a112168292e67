"""The greatest value per column of each bag, and the way back to the rows that had them.

Row p of n is an occurrence; bag b has the rows [row_splits[b], row_splits[b + 1]).
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from types cimport index_t, value_t


def max_of_bags(const value_t[:, ::1] rows__nd, const int64_t[::1] row_splits,
                value_t[:, ::1] out__bd, index_t[:, ::1] winners__bd):
    """Write each bag's greatest values to `out__bd`, and the first rows that have them. O(n·d).

    A row wins a column only if it is greater than those before: a NaN that is not first never does,
    and one that is first stays. An empty bag is 0, and its winners are -1. Row splits may begin
    beyond 0; they lie in [0, n].
    """
    cdef Py_ssize_t b, bags = out__bd.shape[0], dim = out__bd.shape[1]
    if bags == 0 or dim == 0:
        return
    with nogil:
        for b in range(bags):
            if row_splits[b] == row_splits[b + 1]:
                fill_empty(dim, &out__bd[b, 0], &winners__bd[b, 0])
            else:
                max_of_bag(&rows__nd[row_splits[b], 0], row_splits[b + 1] - row_splits[b], dim,
                           <index_t>row_splits[b], &out__bd[b, 0], &winners__bd[b, 0])


cdef inline void fill_empty(Py_ssize_t dim, value_t* out, index_t* winners) noexcept nogil:
    cdef Py_ssize_t c
    for c in range(dim):
        out[c] = 0
        winners[c] = -1


cdef inline void max_of_bag(const value_t* rows, Py_ssize_t count, Py_ssize_t dim, index_t first,
                            value_t* out, index_t* winners) noexcept nogil:
    """Write the greatest values of `count` > 0 rows, and their places, counted from `first`."""
    cdef Py_ssize_t i, c
    cdef const value_t* row
    cdef index_t place
    cdef bint greater
    for c in range(dim):
        out[c] = rows[c]
        winners[c] = first
    for i in range(1, count):
        row = rows + i * dim
        place = first + <index_t>i
        for c in range(dim):
            greater = row[c] > out[c]
            out[c] = row[c] if greater else out[c]
            winners[c] = place if greater else winners[c]


def at_winners(const value_t[:, ::1] gradients__bd, const index_t[:, ::1] winners__bd,
               const int64_t[::1] row_splits, value_t[:, ::1] out__nd):
    """Write each bag's gradients to the rows that won, and 0 to its others. O(n·d).

    Winners are those of `max_of_bags` for these row splits. Rows of no bag stay as they are.
    """
    cdef Py_ssize_t b, c, bags = gradients__bd.shape[0], dim = gradients__bd.shape[1]
    if bags == 0 or dim == 0 or row_splits[bags] == row_splits[0]:
        return
    with nogil:
        memset(&out__nd[row_splits[0], 0], 0,
               (row_splits[bags] - row_splits[0]) * dim * sizeof(value_t))
        for b in range(bags):
            if row_splits[b] == row_splits[b + 1]:
                continue
            for c in range(dim):
                out__nd[winners__bd[b, c], c] = gradients__bd[b, c]
