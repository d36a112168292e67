/* The short floats as one-field structs (two uint16 would be one type to Cython), the hint that
   asks for a cache line ahead of its use, what a copy must not forget, and what the processor can
   do. */
#ifndef SHARDCORE_SCALARS_H
#define SHARDCORE_SCALARS_H

#include <stdint.h>
#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

typedef struct { uint16_t bits; } sc_half;
typedef struct { uint16_t bits; } sc_bfloat;

static inline float sc_float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sc_bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Branch-free, so that the compiler can do many at once: the exponent is moved into place and
   corrected by an exact multiplication, which also makes subnormals right. */
static inline float sc_from_half(sc_half half) {
    uint32_t magnitude = (uint32_t)(half.bits & 0x7fff) << 13;
    uint32_t sign = (uint32_t)(half.bits & 0x8000) << 16;
    uint32_t finite = sc_bits_of_float(sc_float_of_bits(magnitude) * 0x1p112f);
    uint32_t special = magnitude | 0x7f800000;
    return sc_float_of_bits(sign | (magnitude >= (0x7c00u << 13) ? special : finite));
}

/* Round to nearest, ties to even, as NumPy and IEEE 754 do; NaN stays NaN. */
static inline sc_half sc_to_half(float value) {
    uint32_t bits = sc_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    /* Adding 0.5 lets the float unit itself round a subnormal half into the low bits. */
    uint32_t tiny = sc_bits_of_float(sc_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < (113u << 23) ? tiny : normal;
    result = magnitude >= 0x477ff000u ? 0x7c00 : result;
    result = magnitude > 0x7f800000u ? 0x7e00 | (magnitude >> 13 & 0x3ff) : result;
    sc_half half = {(uint16_t)(sign | result)};
    return half;
}

/* In one rounding, as NumPy does: what a float cannot hold is first rounded to its odd neighbour, from
   which the second rounding goes where one would have gone. */
static inline sc_half sc_double_to_half(double value) {
    float rounded = (float)value;
    uint32_t bits = sc_bits_of_float(rounded);
    double back = (double)rounded;
    if (back != value && value == value) {
        int away = (value < 0 ? -back : back) > (value < 0 ? -value : value);
        bits = (bits - (uint32_t)away) | 1;
    }
    return sc_to_half(sc_float_of_bits(bits));
}

static inline float sc_from_bfloat(sc_bfloat value) {
    return sc_float_of_bits((uint32_t)value.bits << 16);
}

static inline sc_bfloat sc_to_bfloat(float value) {
    uint32_t bits = sc_bits_of_float(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t result = (bits & 0x7fffffff) > 0x7f800000u ? (bits >> 16 | 0x40) : rounded;
    sc_bfloat short_value = {(uint16_t)result};
    return short_value;
}

/* Many at once. Compilers leave short loops over the formulas above as they are, and do not know the
   instructions that convert halves; both give the same bits, but for the quiet bit of a NaN. */
static inline void sc_widen_halves(const sc_half *from, int64_t count, float *to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + i))));
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < count; i++)
        to[i] = sc_from_half(from[i]);
}

static inline void sc_narrow_halves(const float *from, int64_t count, sc_half *to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((__m128i *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++)
        to[i] = sc_to_half(from[i]);
}

static inline void sc_widen_bfloats(const sc_bfloat *from, int64_t count, float *to) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16)
        _mm512_storeu_ps(to + i, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(
            _mm256_loadu_si256((const __m256i *)(from + i))), 16)));
#endif
#if defined(__AVX2__)
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(to + i, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(
            _mm_loadu_si128((const __m128i *)(from + i))), 16)));
#endif
    for (; i < count; i++)
        to[i] = sc_from_bfloat(from[i]);
}

/* Round to one of the two neighbours: away from zero with the probability that makes the mean right,
   `chance` being 32 random bits. Beyond the largest finite value, to the nearest. */
static inline sc_half sc_to_half_stochastic(float value, uint32_t chance) {
    uint32_t bits = sc_bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + (chance >> 19) - (112u << 23)) >> 13;
    /* Below 2**-14: a multiple of 2**-24, and what is left of it. All three results are computed and
       one is kept by its mask; with branches, the compiler would do one number at a time. */
    uint32_t is_small = 0u - (uint32_t)(magnitude < (113u << 23));
    uint32_t is_large = 0u - (uint32_t)(magnitude >= 0x477fe000u);
    float scaled = sc_float_of_bits(magnitude & is_small) * 0x1p24f;
    int32_t whole = (int32_t)scaled;
    float rest = scaled - (float)whole, bound = (float)(int32_t)(chance >> 8) * 0x1p-24f;
    uint32_t small = (uint32_t)whole + (uint32_t)(rest > bound);
    uint32_t near = sc_to_half(value).bits;
    uint32_t result = sign | (is_small & small) | (~is_small & normal);
    sc_half half = {(uint16_t)((is_large & near) | (~is_large & result))};
    return half;
}

static inline sc_bfloat sc_to_bfloat_stochastic(float value, uint32_t chance) {
    uint32_t bits = sc_bits_of_float(value);
    sc_bfloat nearest = sc_to_bfloat(value);
    sc_bfloat short_value = {(uint16_t)((bits & 0x7fffffff) >= 0x7f7f0000u
                                            ? nearest.bits
                                            : (bits + (chance >> 16)) >> 16)};
    return short_value;
}

/* The upper half of the product of two words. */
static inline uint64_t sc_high_product(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    return (uint64_t)((unsigned __int128)a * b >> 64);
#else
    uint64_t low = (a & 0xffffffff) * (b & 0xffffffff);
    uint64_t left = (a >> 32) * (b & 0xffffffff) + (low >> 32);
    uint64_t right = (a & 0xffffffff) * (b >> 32) + (left & 0xffffffff);
    return (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32);
#endif
}

/* The place of the lowest bit that is set; the word is not 0. */
static inline int sc_lowest_bit(uint64_t word) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(word);
#else
    int place = 0;
    while (!(word >> place & 1))
        place++;
    return place;
#endif
}

/* Into the second-level cache: the first level has too few miss buffers to run far ahead. */
#if defined(__GNUC__) || defined(__clang__)
#define SC_PREFETCH_READ(address) __builtin_prefetch((address), 0, 2)
#define SC_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 2)
#else
#define SC_PREFETCH_READ(address) ((void)(address))
#define SC_PREFETCH_WRITE(address) ((void)(address))
#endif

/* What was read from memory that another thread may write to is not read from there again: the
   compiler may otherwise look at the source of a copy where the copy is asked for. */
#if defined(__GNUC__) || defined(__clang__)
#define SC_FORGET_SOURCES() __asm__ __volatile__("" ::: "memory")
#elif defined(_MSC_VER)
#include <intrin.h>
#define SC_FORGET_SOURCES() _ReadWriteBarrier()
#else
#define SC_FORGET_SOURCES() ((void)0)
#endif

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define SC_CPU_HAS(feature) (__builtin_cpu_supports(feature) != 0)
static inline void sc_cpu_init(void) { __builtin_cpu_init(); }
#else
#define SC_CPU_HAS(feature) (0)
static inline void sc_cpu_init(void) {}
#endif

#endif
