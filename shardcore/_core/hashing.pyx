"""Rows of strings and integers: 64-bit hashes, the same in every process on every platform.

Strings. XXH64 is Yann Collet's, as its specification has it (doc/xxhash_spec.md of xxHash, section
XXH64). FARMHASH64 is ``Fingerprint64`` of Google's FarmHash (Geoff Pike, MIT license), what
TensorFlow's ``string_to_hash_bucket_fast`` takes: written here from the published algorithm. Both
hash bytes; a str is its UTF-8.

Integers. The finalizer of SplitMix64 over x + (seed + 1) * G, see ``counter.pxi``.

The row is the hash, unsigned, modulo the buckets: two rows are drawn with chances that differ by
one in 2**64 // buckets. The remainder is exact, by a product in the place of a division.
"""

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from types cimport index_t

include "counter.pxi"

cdef extern from "scalars.h" nogil:
    uint64_t high_product "sc_high_product"(uint64_t a, uint64_t b)
    void prefetch_read "SC_PREFETCH_READ"(const void* address)
    void forget_sources "SC_FORGET_SOURCES"()

cdef extern from "Python.h":
    void* PyList_GET_ITEM(list words, Py_ssize_t i)
    bint PyUnicode_IS_ASCII(object word)
    int PyUnicode_KIND(object word)
    void* PyUnicode_DATA(object word)
    Py_ssize_t PyUnicode_GetLength(object word) except -1
    char* PyBytes_AS_STRING(object word)
    Py_ssize_t PyBytes_GET_SIZE(object word)

cdef enum Kind:
    XXH64               # the numbers are places in `shardcore.ids.digests.KINDS`
    FARMHASH64

cdef enum:
    BLOCK = 256         # offsets that are copied at once, to be checked
    VIEW = 16           # bytes of a string's view in Arrow's layout
    INLINE = 12         # bytes that a view itself can hold
    AHEAD = 16          # words between asking for memory and reading it
    BYTES_AHEAD = 1024  # the same where they lie one after the other; beyond the end is no harm

# Macros, because a compiler takes a variable for one, even if nothing ever changes it.
cdef extern from * nogil:
    """
    #define SC_P1 0x9E3779B185EBCA87ULL
    #define SC_P2 0xC2B2AE3D27D4EB4FULL
    #define SC_P3 0x165667B19E3779F9ULL
    #define SC_P4 0x85EBCA77C2B2AE63ULL
    #define SC_P5 0x27D4EB2F165667C5ULL

    #define SC_K0 0xC3A5C85C97CB3127ULL
    #define SC_K1 0xB492B66FBE98F273ULL
    #define SC_K2 0x9AE16A3B2F90404FULL
    """
    const uint64_t P1 "SC_P1"
    const uint64_t P2 "SC_P2"
    const uint64_t P3 "SC_P3"
    const uint64_t P4 "SC_P4"
    const uint64_t P5 "SC_P5"
    const uint64_t K0 "SC_K0"
    const uint64_t K1 "SC_K1"
    const uint64_t K2 "SC_K2"

ctypedef fused unit_t:  # of arrays whose strings have one width: bytes, code points
    uint8_t
    uint32_t

cdef struct Function:
    Kind kind
    uint64_t seed
    uint64_t buckets
    uint64_t inverse        # (2**64 - 1) // buckets

cdef struct Pair:
    uint64_t first
    uint64_t second


cdef Function function_of(int kind, uint64_t seed, uint64_t buckets) noexcept nogil:
    cdef Function function
    function.kind, function.seed, function.buckets = <Kind>kind, seed, buckets
    function.inverse = ~<uint64_t>0 // buckets
    return function


cdef inline int64_t row_of(uint64_t hashed, const Function* function) noexcept nogil:
    """Return hashed % buckets. The quotient by the inverse is right or one too small."""
    cdef uint64_t rest = hashed - high_product(hashed, function.inverse) * function.buckets
    return <int64_t>(rest - function.buckets if rest >= function.buckets else rest)


cdef inline uint64_t rotated(uint64_t x, int left) noexcept nogil:
    return x << left | x >> (64 - left)


cdef inline uint64_t turned(uint64_t x, int right) noexcept nogil:
    return x >> right | x << (64 - right)


# Little-endian on every platform; a compiler makes one load of each.
cdef inline uint64_t word32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24)


cdef inline uint64_t word64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>p[0] | <uint64_t>p[1] << 8 | <uint64_t>p[2] << 16 | <uint64_t>p[3] << 24
            | <uint64_t>p[4] << 32 | <uint64_t>p[5] << 40 | <uint64_t>p[6] << 48
            | <uint64_t>p[7] << 56)


# --- XXH64 ---------------------------------------------------------------------------------------


cdef inline uint64_t xxh_round(uint64_t lane, uint64_t word) noexcept nogil:
    return rotated(lane + word * P2, 31) * P1


cdef inline uint64_t xxh_merge(uint64_t hashed, uint64_t lane) noexcept nogil:
    return (hashed ^ xxh_round(0, lane)) * P1 + P4


cdef uint64_t xxh_stripes(const uint8_t* p, int64_t stripes, uint64_t seed) noexcept nogil:
    cdef uint64_t a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1
    cdef uint64_t hashed
    cdef int64_t i
    for i in range(stripes):
        a = xxh_round(a, word64(p))
        b = xxh_round(b, word64(p + 8))
        c = xxh_round(c, word64(p + 16))
        d = xxh_round(d, word64(p + 24))
        p += 32
    hashed = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18)
    return xxh_merge(xxh_merge(xxh_merge(xxh_merge(hashed, a), b), c), d)


cdef inline uint64_t xxh_byte(uint64_t hashed, uint8_t byte) noexcept nogil:
    return rotated(hashed ^ byte * P5, 11) * P1


cdef inline uint64_t xxh64(const uint8_t* p, int64_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t hashed = seed + P5
    cdef int64_t i
    if size >= 32:
        hashed = xxh_stripes(p, size >> 5, seed)
        p += size & ~<int64_t>31
    hashed += <uint64_t>size
    for i in range(size >> 3 & 3):
        hashed = rotated(hashed ^ xxh_round(0, word64(p)), 27) * P1 + P4
        p += 8
    if size & 4:
        hashed = rotated(hashed ^ word32(p) * P1, 23) * P2 + P3
        p += 4
    if size & 2:
        hashed = xxh_byte(xxh_byte(hashed, p[0]), p[1])
        p += 2
    if size & 1:
        hashed = xxh_byte(hashed, p[0])
    hashed = (hashed ^ hashed >> 33) * P2
    hashed = (hashed ^ hashed >> 29) * P3
    return hashed ^ hashed >> 32


# --- FarmHash's Fingerprint64 --------------------------------------------------------------------


cdef inline uint64_t farm_fold(uint64_t x) noexcept nogil:
    return x ^ x >> 47


cdef inline uint64_t farm_join(uint64_t u, uint64_t v, uint64_t factor) noexcept nogil:
    cdef uint64_t a = farm_fold((u ^ v) * factor)
    return farm_fold((v ^ a) * factor) * factor


cdef inline uint64_t farm_to_16(const uint8_t* p, uint64_t size) noexcept nogil:
    cdef uint64_t a, b, factor = K2 + 2 * size
    if size >= 8:
        a, b = word64(p) + K2, word64(p + size - 8)
        return farm_join(turned(b, 37) * factor + a, (turned(a, 25) + b) * factor, factor)
    if size >= 4:
        return farm_join(size + (word32(p) << 3), word32(p + size - 4), factor)
    if size:
        a = p[0] + (<uint64_t>p[size >> 1] << 8)
        b = size + (<uint64_t>p[size - 1] << 2)
        return farm_fold(a * K2 ^ b * K0) * K2
    return K2


cdef uint64_t farm_to_32(const uint8_t* p, uint64_t size) noexcept nogil:
    cdef uint64_t factor = K2 + 2 * size
    cdef uint64_t a = word64(p) * K1, b = word64(p + 8)
    cdef uint64_t c = word64(p + size - 8) * factor, d = word64(p + size - 16) * K2
    return farm_join(
        turned(a + b, 43) + turned(c, 30) + d, a + turned(b + K2, 18) + c, factor
    )


cdef uint64_t farm_to_64(const uint8_t* p, uint64_t size) noexcept nogil:
    cdef uint64_t factor = K2 + 2 * size
    cdef uint64_t a = word64(p) * K2, b = word64(p + 8)
    cdef uint64_t c = word64(p + size - 8) * factor, d = word64(p + size - 16) * K2
    cdef uint64_t y = turned(a + b, 43) + turned(c, 30) + d
    cdef uint64_t z = farm_join(y, a + turned(b + K2, 18) + c, factor)
    cdef uint64_t e = word64(p + 16) * factor, f = word64(p + 24)
    cdef uint64_t g = (y + word64(p + size - 32)) * factor
    cdef uint64_t h = (z + word64(p + size - 24)) * factor
    return farm_join(
        turned(e + f, 43) + turned(g, 30) + h, e + turned(f + a, 18) + g, factor
    )


cdef inline Pair farm_mix32(const uint8_t* p, uint64_t a, uint64_t b) noexcept nogil:
    cdef Pair mixed
    cdef uint64_t begin = a + word64(p)
    a = begin + word64(p + 8) + word64(p + 16)
    mixed.second = turned(b + begin + word64(p + 24), 21) + turned(a, 44) + begin
    mixed.first = a + word64(p + 24)
    return mixed


cdef uint64_t farm_beyond_64(const uint8_t* p, uint64_t size) noexcept nogil:
    cdef const uint8_t* last = p + ((size - 1) & ~<uint64_t>63)     # where the last 64 begin, or less
    cdef uint64_t beyond = (size - 1) & 63, factor = K1
    cdef uint64_t x = 81 * K2 + word64(p)
    cdef uint64_t y = 81 * K1 + 113
    cdef uint64_t z = farm_fold(y * K2 + 113) * K2
    cdef Pair v, w
    v.first = v.second = w.first = w.second = 0
    while p < last:
        x = turned(x + y + v.first + word64(p + 8), 37) * K1 ^ w.second
        y = turned(y + v.second + word64(p + 48), 42) * K1 + v.first + word64(p + 40)
        z = turned(z + w.first, 33) * K1
        v = farm_mix32(p, v.second * K1, x + w.first)
        w = farm_mix32(p + 32, z + w.second, y + word64(p + 16))
        x, z = z, x
        p += 64
    factor = K1 + ((z & 0xff) << 1)
    p = last + beyond - 63
    w.first += beyond
    v.first += w.first
    w.first += v.first
    x = turned(x + y + v.first + word64(p + 8), 37) * factor ^ 9 * w.second
    y = turned(y + v.second + word64(p + 48), 42) * factor + 9 * v.first + word64(p + 40)
    z = turned(z + w.first, 33) * factor
    v = farm_mix32(p, v.second * factor, x + w.first)
    w = farm_mix32(p + 32, z + w.second, y + word64(p + 16))
    x, z = z, x
    return farm_join(
        farm_join(v.first, w.first, factor) + farm_fold(y) * K0 + z,
        farm_join(v.second, w.second, factor) + x,
        factor,
    )


cdef uint64_t farmhash64(const uint8_t* p, uint64_t size) noexcept nogil:
    if size <= 16:
        return farm_to_16(p, size)
    if size <= 32:
        return farm_to_32(p, size)
    if size <= 64:
        return farm_to_64(p, size)
    return farm_beyond_64(p, size)


cdef inline int64_t row_of_bytes(const uint8_t* p, int64_t size, const Function* function) noexcept nogil:
    if function.kind == XXH64:
        return row_of(xxh64(p, size, function.seed), function)
    return row_of(farmhash64(p, <uint64_t>size), function)


# --- UTF-8 ---------------------------------------------------------------------------------------


cdef inline uint32_t code_point(const uint8_t* units, int width, int64_t i) noexcept nogil:
    if width == 1:
        return units[i]
    if width == 2:
        return (<const uint16_t*>units)[i]
    return (<const uint32_t*>units)[i]


cdef int64_t write_utf8(
    const uint8_t* units, int64_t count, int width, uint8_t* utf8
) noexcept nogil:
    """Write `count` code points, of `width` bytes each, and return the bytes written.

    -1 if one is a surrogate, or none at all. At most `width` bytes come of one, but 2 of width 1 and 3 of 2.
    """
    cdef uint8_t* p = utf8
    cdef uint32_t c
    cdef int64_t i
    for i in range(count):
        c = code_point(units, width, i)
        if c < 0x80:
            p[0] = <uint8_t>c
            p += 1
        elif c < 0x800:
            p[0] = <uint8_t>(0xc0 | c >> 6)
            p[1] = <uint8_t>(0x80 | (c & 0x3f))
            p += 2
        elif c < 0x10000:
            if c & 0xf800 == 0xd800:
                return -1
            p[0] = <uint8_t>(0xe0 | c >> 12)
            p[1] = <uint8_t>(0x80 | (c >> 6 & 0x3f))
            p[2] = <uint8_t>(0x80 | (c & 0x3f))
            p += 3
        else:
            if c > 0x10ffff:
                return -1
            p[0] = <uint8_t>(0xf0 | c >> 18)
            p[1] = <uint8_t>(0x80 | (c >> 12 & 0x3f))
            p[2] = <uint8_t>(0x80 | (c >> 6 & 0x3f))
            p[3] = <uint8_t>(0x80 | (c & 0x3f))
            p += 4
    return p - utf8


# --- what Python calls ---------------------------------------------------------------------------


def find_words(
    list words, int64_t[::1] addresses__n, int64_t[::1] lengths__n, int8_t[::1] widths__n
):
    """Find where the text of each str or bytes lies, in a list that nobody else has. O(n).

    Its length is in code points of 1, 2 or 4 bytes, its width; of width 0 are bytes, and strings
    that are their own UTF-8. Return -1, or the first position of what is neither. What is found
    lasts as long as the list has it.
    """
    cdef Py_ssize_t i, n = addresses__n.shape[0]
    for i in range(n):
        if i + AHEAD < n:
            prefetch_read(PyList_GET_ITEM(words, i + AHEAD))
        word = words[i]
        if isinstance(word, str):
            lengths__n[i] = PyUnicode_GetLength(word)  # makes it ready, before Python 3.12
            addresses__n[i] = <int64_t><uintptr_t>PyUnicode_DATA(word)
            widths__n[i] = 0 if PyUnicode_IS_ASCII(word) else PyUnicode_KIND(word)
        elif isinstance(word, bytes):
            lengths__n[i] = PyBytes_GET_SIZE(word)
            addresses__n[i] = <int64_t><uintptr_t>PyBytes_AS_STRING(word)
            widths__n[i] = 0
        else:
            return i
    return -1


def find_fixed(const unit_t[:, ::1] units, int64_t[::1] addresses__n, int64_t[::1] lengths__n):
    """Find where the text of each row of units lies, without the zeros at its end. O(units)."""
    cdef Py_ssize_t i, n = units.shape[0], length, width = units.shape[1]
    with nogil:
        for i in range(n):
            length = width
            while length and units[i, length - 1] == 0:
                length -= 1
            lengths__n[i] = length
            addresses__n[i] = <int64_t><uintptr_t>&units[i, 0] if length else 0


def hash_words(
    const int64_t[::1] addresses__n,
    const int64_t[::1] lengths__n,
    const int8_t[::1] widths__n,
    int kind,
    uint64_t seed,
    uint64_t buckets,
    uint8_t[::1] scratch,
    int64_t[::1] rows__n,
):
    """Hash the words that `find_words` or `find_fixed` found. O(n + bytes).

    `scratch` has room for the UTF-8 of any of them, 1 + width bytes per code point, and is not
    empty. Return -1, or the first position of a str that has no UTF-8. What another thread writes
    into an array's strings meanwhile is read or not.
    """
    cdef Py_ssize_t i, n = rows__n.shape[0], bad = -1
    cdef Function function = function_of(kind, seed, buckets)
    cdef const uint8_t* text
    cdef int64_t size
    with nogil:
        for i in range(n):
            if i + AHEAD < n:
                prefetch_read(<const void*><uintptr_t>addresses__n[i + AHEAD])
            text, size = <const uint8_t*><uintptr_t>addresses__n[i], lengths__n[i]
            if widths__n[i]:
                size = write_utf8(text, size, widths__n[i], &scratch[0])
                text = &scratch[0]
                if size < 0:
                    bad = i
                    break
            rows__n[i] = row_of_bytes(text, size, &function)
    return bad


def hash_spans(
    const uint8_t[::1] data,
    const index_t[::1] offsets__n1,
    int kind,
    uint64_t seed,
    uint64_t buckets,
    int64_t[::1] rows__n,
):
    """Hash the bytes between neighbouring offsets into `data`. O(n + bytes).

    Return -1, or the first position whose span is not within `data`. Offsets that another thread
    changes meanwhile are used as they were checked.
    """
    cdef Py_ssize_t i, block, count, n = rows__n.shape[0], bad = -1
    cdef Function function = function_of(kind, seed, buckets)
    cdef const uint8_t* base = &data[0] if data.shape[0] else <const uint8_t*>&function  # not NULL
    cdef int64_t start, stop, size = data.shape[0]
    cdef index_t own[BLOCK]
    with nogil:
        start = offsets__n1[0] if n else 0
        block = 0
        while block < n and bad < 0:
            count = min(<Py_ssize_t>BLOCK, n - block)
            memcpy(own, &offsets__n1[block + 1], count * sizeof(index_t))
            forget_sources()
            for i in range(count):
                stop = own[i]
                if start < 0 or stop < start or stop > size:
                    bad = block + i
                    break
                prefetch_read(<const void*>(<uintptr_t>base + start + BYTES_AHEAD))
                rows__n[block + i] = row_of_bytes(base + start, stop - start, &function)
                start = stop
            block += count
    return bad


def hash_views(
    const uint8_t[::1] views,
    const int64_t[::1] addresses__b,
    const int64_t[::1] sizes__b,
    int kind,
    uint64_t seed,
    uint64_t buckets,
    int64_t[::1] rows__n,
):
    """Hash strings by their views, as Arrow lays them out, over buffers of given sizes. O(n + bytes).

    Return -1, or the first position of a view that is not within a buffer. Views that another
    thread changes meanwhile are used as they were checked.
    """
    cdef Py_ssize_t i, n = rows__n.shape[0], bad = -1, buffers = addresses__b.shape[0]
    cdef Function function = function_of(kind, seed, buckets)
    cdef const uint8_t* view
    cdef const uint8_t* text
    cdef int32_t size, buffer, start
    with nogil:
        for i in range(n):
            view = &views[VIEW * i]
            prefetch_read(<const void*>(<uintptr_t>view + BYTES_AHEAD))
            size = <int32_t>word32(view)
            text = view + 4
            if size > INLINE or size < 0:
                buffer, start = <int32_t>word32(view + 8), <int32_t>word32(view + 12)
                forget_sources()
                if (size < 0 or buffer < 0 or buffer >= buffers or start < 0
                        or <int64_t>start + size > sizes__b[buffer]):
                    bad = i
                    break
                text = <const uint8_t*><uintptr_t>addresses__b[buffer] + start
                prefetch_read(<const void*>(<uintptr_t>text + BYTES_AHEAD))
            else:
                forget_sources()
            rows__n[i] = row_of_bytes(text, size, &function)
    return bad


def hash_integers(
    const uint64_t[::1] words__n, uint64_t seed, uint64_t buckets, int64_t[::1] rows__n
):
    """Hash integers, given modulo 2**64. O(n)."""
    cdef Py_ssize_t i, n = rows__n.shape[0]
    cdef Function function = function_of(XXH64, seed, buckets)
    cdef uint64_t key = (seed + 1) * INCREMENT
    with nogil:
        for i in range(n):
            rows__n[i] = row_of(mix(words__n[i] + key), &function)
