/* Columns of rows added up in vector registers. Every function is called with a width that the compiler
   knows, a multiple of four up to SC_WIDE, and with totals in a local array: inlined and unrolled, such
   totals never leave the registers. Of plain loops compilers make that for some widths only.

   A product is rounded before it is added, one row after the other: the same bits everywhere. */
#ifndef SHARDCORE_COLUMNS_H
#define SHARDCORE_COLUMNS_H

#include <stddef.h>

#include "scalars.h"

/* Bytes of a vector, and floats that are summed at a time: as many as leave registers for the rest; of AVX2's
   there are as many as a row of 128 floats needs, if these are added as they lie. */
#if defined(__AVX512F__)
#define SC_VECTOR 64
#define SC_WIDE 256
#elif defined(__AVX2__)
#define SC_VECTOR 32
#define SC_WIDE 64
#define SC_WHOLE_ROW 128
#elif defined(__aarch64__)
#define SC_VECTOR 16
#define SC_WIDE 64
#else
#define SC_VECTOR 16
#define SC_WIDE 32
#endif

#if !defined(SC_WHOLE_ROW)
#define SC_WHOLE_ROW SC_WIDE
#endif

/* The most vectors in which rows of any dim are summed whole; and whether those of more are summed in parts of as
   many, so that the last part is never larger. There, without weights, rows of more are summed whole, too: floats, which
   are added as they lie, of as many as AVX2 has registers; short floats, which are converted first, of fewer. */
#define SC_MOST_VECTORS 8
#define SC_PARTS_OF_VECTORS (SC_WIDE * 4 == SC_MOST_VECTORS * SC_VECTOR)
#define SC_MANY_VECTORS 16
#define SC_MANY_OF_SHORTS 12

/* The fewest columns that are summed at a time, the most of rows of which two bags are, and bytes in a cache line. */
#define SC_FEW 4
#define SC_NARROW 8
#define SC_LINE 64

/* Occurrences between asking for a row and using it: from memory, for the second-level cache, far ahead;
   from there, for the first, near, and without AVX-512 a little farther where that is the only request and rows are not
   asked for in parts, as Zen 3 was fastest. Or from memory for the first at once, as far ahead as has room there, or
   half as far: of few rows the second cache may have most. `ask` of a sum has a bit for each, one for every
   other line, far ahead, where processors read the other half of a pair by themselves, one for rows that do
   not begin where cache lines do, which end in one line more, one for a second request, for the same
   cache, where processors drop some of those that come close together; of two, the first comes later; one
   for rows that are asked for in parts; and one, set by bodies for one way of asking, for sums of which no row
   to be asked for is past the last. Where no row is asked for, ids are, by SC_IDS_AHEAD bytes ahead. Where
   rows are, the memory of sums is, too, by SC_SUMS_AHEAD bytes ahead. Near only are, of more than two lines, rows of
   tables of up to SC_NEAR_BYTES, of which the second cache, or without AVX-512 the third, and what others leave
   of it, holds much. Other instruction sets than these two were not measured for these three, and do as they did. */
#define SC_FAR 64
#define SC_NEAR 16
#if defined(__AVX512F__)
#define SC_NEAR_ONLY SC_NEAR
#define SC_NEAR_BYTES (1 << 21)
#define SC_SUMS_AHEAD 1024
#elif defined(__AVX2__)
#define SC_NEAR_ONLY 24
#define SC_NEAR_BYTES (1 << 23)
#define SC_SUMS_AHEAD 1024
#else
#define SC_NEAR_ONLY SC_NEAR
#define SC_NEAR_BYTES (1 << 20)
#define SC_SUMS_AHEAD 0
#endif
#define SC_TWICE 32
#define SC_AGAIN 16
#define SC_IDS_AHEAD 1024
#define SC_FIRST(ask, row_bytes)                                                                   \
    (((row_bytes) <= 512 ? 64 : (row_bytes) <= 1024 ? 32 : 16) >> ((ask) & SC_ASK_SOON ? 1 : 0))
#define SC_AHEAD(ask, row_bytes)                                                                   \
    ((ask) & SC_ASK_FIRST   ? SC_FIRST(ask, row_bytes)                                             \
     : (ask) & SC_ASK_AGAIN ? SC_TWICE                                                             \
     : (ask) & SC_ASK_FAR   ? SC_FAR                                                               \
     : (ask) & SC_ASK_NEAR  ? SC_NEAR_AHEAD(ask)                                                   \
                            : 0)
#define SC_NEAR_AHEAD(ask) ((ask) & (SC_ASK_FAR | SC_ASK_PARTS) ? SC_NEAR : SC_NEAR_ONLY)
#define SC_ASK_FAR 1
#define SC_ASK_NEAR 2
#define SC_ASK_FIRST 4
#define SC_ASK_SOON 8
#define SC_ASK_END 16
#define SC_ASK_HALF 32
#define SC_ASK_AGAIN 64
#define SC_ASK_PARTS 128
#define SC_ASK_ALL 256

/* How rows that are asked for by lines, and are not short, are if most of them are in a cache. */
#if defined(__AVX512F__)
#define SC_ASK_CACHED (SC_ASK_FAR | SC_ASK_NEAR)
#else
#define SC_ASK_CACHED (SC_ASK_FAR | SC_ASK_AGAIN)
#endif

/* Bytes of rows whose sums take no longer than tests of how to ask. */
#define SC_SHORT_ROW 128

/* Whether a row is summed in parts, each of which asks for its own columns with SC_ASK_PARTS, near: so they
   come into the first cache in time, and memory is busy throughout; else the first part asks for all of
   it. With AVX-512 such rows have over 256 columns, and were not measured. */
#if defined(__AVX512F__)
#define SC_IN_PARTS(dim, number_bytes) 0
#else
#define SC_IN_PARTS(dim, number_bytes) ((dim) * (ptrdiff_t)(number_bytes) > SC_WIDE * (ptrdiff_t)sizeof(float))
#endif

#if defined(__clang__)
#define SC_VECTORS(number, bytes) number __attribute__((vector_size(bytes), aligned(sizeof(number)), may_alias))
#define SC_UNROLL _Pragma("clang loop unroll(full)")
#define SC_UNROLL_SOME _Pragma("clang loop unroll(enable)")
#define SC_UNROLL_NONE _Pragma("clang loop unroll(disable)")
#define SC_INLINE static inline __attribute__((always_inline))
#define SC_OUT_OF_LINE __attribute__((noinline, unused))
#elif defined(__GNUC__)
#define SC_VECTORS(number, bytes) number __attribute__((vector_size(bytes), aligned(sizeof(number)), may_alias))
#define SC_UNROLL _Pragma("GCC unroll 64")
#define SC_UNROLL_SOME _Pragma("GCC unroll 16")
#define SC_UNROLL_NONE _Pragma("GCC unroll 1")
#define SC_INLINE static inline __attribute__((always_inline))
#define SC_OUT_OF_LINE __attribute__((noinline, unused))
#else
#define SC_VECTORS(number, bytes) number
#define SC_UNROLL
#define SC_UNROLL_SOME
#define SC_UNROLL_NONE
#define SC_INLINE static inline
#define SC_OUT_OF_LINE
#endif

/* Whether ways of asking for rows, and counts of vectors, have bodies of their own, and each body the code that asks
   within it. In the baseline of x86-64, which servers' processors since 2013 do not run, neither is so: compiled without
   optimisation it took nine times as long. With the sanitizers it is as elsewhere. */
#if defined(__x86_64__) && !defined(__AVX2__) && !defined(SC_EVERY_BODY)
#define SC_BODIES_FOR_WAYS 0
#define SC_ASKING static SC_OUT_OF_LINE
#else
#define SC_BODIES_FOR_WAYS 1
#define SC_ASKING SC_INLINE
#endif

/* As many as a row of 256 bytes has, and one. */
#define SC_FEW_LINES 5

/* Ask for every line of a row: for the second-level cache, for the first, or to write to it. Of few lines the loop
   is unrolled: its end is foretold wrongly wherever something else varied before, and holds up what is asked for.
   Of more it is not: asked for all at once, they are held up themselves. A row that begins within a line may end in one
   more. To compilers a function that only asks has no effect, and they drop calls of it: the barrier is one. */
#define SC_DEFINE_ASKING(NAME, PREFETCH)                                                           \
    SC_INLINE void NAME(const void *row, ptrdiff_t size) {                                         \
        const char *const bytes = (const char *)row;                                               \
        ptrdiff_t at;                                                                              \
        if (size > SC_FEW_LINES * SC_LINE)                                                         \
            SC_UNROLL_NONE for (at = 0; at < size; at += SC_LINE)                                  \
                PREFETCH(bytes + at);                                                              \
        else                                                                                       \
            SC_UNROLL for (at = 0; at < SC_FEW_LINES * SC_LINE; at += SC_LINE)                     \
                if (at < size)                                                                     \
                    PREFETCH(bytes + at);                                                          \
        if ((size_t)row % SC_LINE + (size_t)(size - 1) % SC_LINE >= SC_LINE)                       \
            PREFETCH(bytes + size - 1);                                                            \
        SC_KEEP();                                                                                 \
    }
SC_DEFINE_ASKING(sc_ask_for_row, SC_PREFETCH_READ)
SC_DEFINE_ASKING(sc_ask_for_row_near, SC_PREFETCH_NEAR)
SC_DEFINE_ASKING(sc_ask_for_update, SC_PREFETCH_WRITE)

typedef SC_VECTORS(float, SC_VECTOR) sc_floats;
typedef SC_VECTORS(float, 16) sc_few_floats;
typedef SC_VECTORS(double, SC_VECTOR) sc_doubles;
typedef SC_VECTORS(double, 16) sc_few_doubles;

#define SC_LOADED(VECTOR, from) (*(const VECTOR *)(from))

/* Do something with the columns of a row: in long vectors first, in short ones then. */
#define SC_COLUMNS(NUMBER, VECTOR, FEW, DO)                                                        \
    ptrdiff_t c = 0;                                                                               \
    SC_UNROLL for (; c + (ptrdiff_t)(sizeof(VECTOR) / sizeof(NUMBER)) <= width;                    \
                   c += sizeof(VECTOR) / sizeof(NUMBER)) DO(VECTOR)                                \
    SC_UNROLL for (; c < width; c += sizeof(FEW) / sizeof(NUMBER)) DO(FEW)

#define SC_CLEAR(VECTOR) *(VECTOR *)(totals + c) = (VECTOR){0};
#define SC_PUT(VECTOR) *(VECTOR *)(out + c) = *(const VECTOR *)(totals + c);
#define SC_ADD(VECTOR) *(VECTOR *)(totals + c) += SC_LOADED(VECTOR, row + c);
#define SC_ADD_TIMES(VECTOR) *(VECTOR *)(totals + c) += weight * SC_LOADED(VECTOR, row + c);

#define SC_DEFINE_SUMS(NUMBERS, NUMBER)                                                            \
    SC_INLINE void sc_clear_##NUMBERS(NUMBER *totals, ptrdiff_t width) {                           \
        SC_COLUMNS(NUMBER, sc_##NUMBERS, sc_few_##NUMBERS, SC_CLEAR)                               \
    }                                                                                              \
    SC_INLINE void sc_put_##NUMBERS(const NUMBER *totals, ptrdiff_t width, NUMBER *out) {          \
        SC_COLUMNS(NUMBER, sc_##NUMBERS, sc_few_##NUMBERS, SC_PUT)                                 \
    }                                                                                              \
    SC_INLINE void sc_add_##NUMBERS(NUMBER *totals, const NUMBER *row, ptrdiff_t width) {          \
        SC_COLUMNS(NUMBER, sc_##NUMBERS, sc_few_##NUMBERS, SC_ADD)                                 \
    }                                                                                              \
    SC_INLINE void sc_add_##NUMBERS##_times(NUMBER *totals, const NUMBER *row, NUMBER weight,      \
                                            ptrdiff_t width) {                                     \
        SC_COLUMNS(NUMBER, sc_##NUMBERS, sc_few_##NUMBERS, SC_ADD_TIMES)                           \
    }

SC_DEFINE_SUMS(floats, float)
SC_DEFINE_SUMS(doubles, double)

/* Write the sum of a few rows, of a dim that the compiler knows, a multiple of four. */
SC_INLINE void sc_sum_few_floats(const float *rows, ptrdiff_t dim, const int32_t *ids, ptrdiff_t count,
                                 float *out) {
    const ptrdiff_t width = dim < SC_WIDE ? dim : SC_WIDE;
    ptrdiff_t column, i;
    for (column = 0; column < dim; column += width) {
        float totals[SC_WIDE];
        sc_clear_floats(totals, width);
        for (i = 0; i < count; i++)
            sc_add_floats(totals, rows + ids[i] * dim + column, width);
        sc_put_floats(totals, width, out + column);
    }
}

SC_INLINE float sc_one_of_floats(float value) { return value; }
SC_INLINE double sc_one_of_doubles(double value) { return value; }
#if defined(__F16C__)
SC_INLINE float sc_one_of_halves(sc_half value) { return _cvtsh_ss(value.bits); }
#else
SC_INLINE float sc_one_of_halves(sc_half value) { return sc_from_half(value); }
#endif
SC_INLINE float sc_one_of_bfloats(sc_bfloat value) { return sc_from_bfloat(value); }

/* Rows of short floats: converted in registers where there are instructions for it. */
#if defined(__AVX2__) && defined(__F16C__) && defined(__GNUC__)
#if defined(__AVX512F__)
SC_INLINE sc_floats sc_floats_of_halves(const sc_half *row) {
    return (sc_floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)row));
}
SC_INLINE sc_floats sc_floats_of_bfloats(const sc_bfloat *row) {
    return (sc_floats)_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)row)), 16);
}
#else
SC_INLINE sc_floats sc_floats_of_halves(const sc_half *row) {
    return (sc_floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)row));
}
SC_INLINE sc_floats sc_floats_of_bfloats(const sc_bfloat *row) {
    return (sc_floats)_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)row)), 16);
}
#endif
SC_INLINE sc_few_floats sc_few_floats_of_halves(const sc_half *row) {
    return (sc_few_floats)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)row));
}
SC_INLINE sc_few_floats sc_few_floats_of_bfloats(const sc_bfloat *row) {
    return (sc_few_floats)_mm_slli_epi32(
        _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)row)), 16);
}
#define SC_ADD_HALVES(VECTOR) *(VECTOR *)(totals + c) += VECTOR##_of_halves(row + c);
#define SC_ADD_HALVES_TIMES(VECTOR) *(VECTOR *)(totals + c) += weight * VECTOR##_of_halves(row + c);
#define SC_ADD_BFLOATS(VECTOR) *(VECTOR *)(totals + c) += VECTOR##_of_bfloats(row + c);
#define SC_ADD_BFLOATS_TIMES(VECTOR) *(VECTOR *)(totals + c) += weight * VECTOR##_of_bfloats(row + c);
#define SC_ADD_SHORTS(SHORTS, DO, DO_TIMES) SC_COLUMNS(float, sc_floats, sc_few_floats, DO)
#define SC_ADD_SHORTS_TIMES(SHORTS, DO, DO_TIMES) SC_COLUMNS(float, sc_floats, sc_few_floats, DO_TIMES)
#else
#define SC_ADD_SHORTS(SHORTS, DO, DO_TIMES)                                                        \
    float wide[SC_WIDE];                                                                           \
    sc_widen_##SHORTS(row, width, wide);                                                           \
    sc_add_floats(totals, wide, width);
#define SC_ADD_SHORTS_TIMES(SHORTS, DO, DO_TIMES)                                                  \
    float wide[SC_WIDE];                                                                           \
    sc_widen_##SHORTS(row, width, wide);                                                           \
    sc_add_floats_times(totals, wide, weight, width);
#endif

SC_INLINE void sc_add_halves(float *totals, const sc_half *row, ptrdiff_t width) {
    SC_ADD_SHORTS(halves, SC_ADD_HALVES, SC_ADD_HALVES_TIMES)
}
SC_INLINE void sc_add_halves_times(float *totals, const sc_half *row, float weight, ptrdiff_t width) {
    SC_ADD_SHORTS_TIMES(halves, SC_ADD_HALVES, SC_ADD_HALVES_TIMES)
}
SC_INLINE void sc_add_bfloats(float *totals, const sc_bfloat *row, ptrdiff_t width) {
    SC_ADD_SHORTS(bfloats, SC_ADD_BFLOATS, SC_ADD_BFLOATS_TIMES)
}
SC_INLINE void sc_add_bfloats_times(float *totals, const sc_bfloat *row, float weight,
                                    ptrdiff_t width) {
    SC_ADD_SHORTS_TIMES(bfloats, SC_ADD_BFLOATS, SC_ADD_BFLOATS_TIMES)
}

#define SC_JOIN(a, b) a##b
#define SC_JOINED(a, b) SC_JOIN(a, b)

/* Whether there are vectors at all, and instructions that make them of short floats. */
#if defined(__GNUC__) && SC_BODIES_FOR_WAYS
#define SC_LOADS_FLOATS 1
#else
#define SC_LOADS_FLOATS 0
#endif
#if defined(__GNUC__) && defined(__AVX2__) && defined(__F16C__)
#define SC_LOADS_SHORTS 1
#else
#define SC_LOADS_SHORTS 0
#endif

#define ROWS floats
#define ROW float
#define NUMBERS floats
#define NUMBER float
#define LOADS_VECTORS SC_LOADS_FLOATS
#define MOST_VECTORS SC_MANY_VECTORS
#define LOAD(VECTOR, from) SC_LOADED(VECTOR, from)
#include "sum_rows.h"

#define ROWS halves
#define ROW sc_half
#define NUMBERS floats
#define NUMBER float
#define LOADS_VECTORS SC_LOADS_SHORTS
#define MOST_VECTORS SC_MANY_OF_SHORTS
#define LOAD(VECTOR, from) SC_JOINED(VECTOR, _of_halves)(from)
#include "sum_rows.h"

#define ROWS bfloats
#define ROW sc_bfloat
#define NUMBERS floats
#define NUMBER float
#define LOADS_VECTORS SC_LOADS_SHORTS
#define MOST_VECTORS SC_MANY_OF_SHORTS
#define LOAD(VECTOR, from) SC_JOINED(VECTOR, _of_bfloats)(from)
#include "sum_rows.h"

#define ROWS doubles
#define ROW double
#define NUMBERS doubles
#define NUMBER double
#define LOADS_VECTORS 0
#define MOST_VECTORS SC_MOST_VECTORS
#define LOAD(VECTOR, from) SC_LOADED(VECTOR, from)
#include "sum_rows.h"

#endif
