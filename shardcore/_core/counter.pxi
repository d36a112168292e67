# The counters behind counter-based random numbers, see random.pyx for what they are: included where
# the numbers are made.

cdef uint64_t INCREMENT = 0x9E3779B97F4A7C15ULL


cdef extern from "scalars.h" nogil:
    uint64_t mix "sc_mix"(uint64_t z)


cdef inline uint64_t row_start(uint64_t key, int64_t row) noexcept nogil:
    return mix(key + (2 * <uint64_t>row + 1) * INCREMENT)


cdef inline uint64_t row_step(uint64_t key, int64_t row) noexcept nogil:
    return mix(key + (2 * <uint64_t>row + 2) * INCREMENT) | 1
