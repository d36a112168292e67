"""Where a layout places rows, for kernels that find them by the way."""

from libc.stdint cimport int32_t, int64_t

from types cimport index_t

include "divisor.pxi"

cdef enum Way:
    BLOCKS              # ranges of one size, ids below 2**31
    COMPARE             # ranges, a cell of the table holds one border at most
    SEARCH              # ranges
    MOD                 # ids below 2**31
    MOD_RECIPROCAL      # ids below 2**53: by a float64 reciprocal, mended
    MOD_DIVIDE

cdef struct Rule:
    Way way
    int64_t rows
    int64_t shards
    Divisor divisor         # by the size of the blocks, or by the shards of "mod"
    double inverse          # of the shards of "mod"
    const int64_t* offsets
    const int32_t* first    # first[cell]: the shard that holds row cell << shift
    int shift
    int64_t size            # of the blocks

cdef class Placement:
    cdef Rule rule
    cdef readonly object offsets
    cdef readonly bytes first       # int32
    cdef readonly int shift
    cdef readonly Py_ssize_t reach
    cdef readonly int64_t size

cdef Py_ssize_t addresses_of(const Rule* rule, const index_t* ids__n, Py_ssize_t n,
                             const int64_t* bases__s, int64_t stride,
                             int64_t* addresses__n) noexcept nogil
