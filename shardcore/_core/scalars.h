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

/* The finalizer of SplitMix64, see random.pyx. */
static inline uint64_t sc_mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Many at once, as above; column c of a row takes the upper half of mix(start + (c + 1) * step). */
static inline uint32_t sc_chance(uint64_t start, uint64_t step, int64_t column) {
    return (uint32_t)(sc_mix(start + (uint64_t)(column + 1) * step) >> 32);
}

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
#define SC_TOGETHER 16
typedef struct { __m512i first, apart; } sc_columns;

static inline sc_columns sc_first_columns(uint64_t start, uint64_t step) {
    __m512i numbers = _mm512_set_epi64(8, 7, 6, 5, 4, 3, 2, 1);
    sc_columns columns = {_mm512_add_epi64(_mm512_set1_epi64((long long)start),
                                           _mm512_mullo_epi64(numbers, _mm512_set1_epi64((long long)step))),
                          _mm512_set1_epi64((long long)(8 * step))};
    return columns;
}

static inline __m512i sc_mix_eight(__m512i z) {
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)),
                           _mm512_set1_epi64((long long)0xBF58476D1CE4E5B9u));
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)),
                           _mm512_set1_epi64((long long)0x94D049BB133111EBu));
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

/* The 32 random bits of each of the next 16 columns. */
static inline __m512i sc_chances(sc_columns *columns) {
    __m512i upper = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    __m512i next = _mm512_add_epi64(columns->first, columns->apart);
    __m512i chances = _mm512_permutex2var_epi32(sc_mix_eight(columns->first), upper, sc_mix_eight(next));
    columns->first = _mm512_add_epi64(next, columns->apart);
    return chances;
}

static inline void sc_put_halves(__m512 value, __m512i chance, sc_half *to) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    __m512i result = _mm512_srli_epi32(
        _mm512_sub_epi32(_mm512_add_epi32(magnitude, _mm512_srli_epi32(chance, 19)),
                         _mm512_set1_epi32(112 << 23)), 13);
    __mmask16 small = _mm512_cmplt_epu32_mask(magnitude, _mm512_set1_epi32(113 << 23));
    __mmask16 large = _mm512_cmpge_epu32_mask(magnitude, _mm512_set1_epi32(0x477fe000));
    if (small) {    /* few weights are */
        __m512 scaled = _mm512_mul_ps(_mm512_maskz_mov_ps(small, _mm512_castsi512_ps(magnitude)),
                                      _mm512_set1_ps(0x1p24f));
        __m512i whole = _mm512_cvttps_epi32(scaled);
        __m512 rest = _mm512_sub_ps(scaled, _mm512_cvtepi32_ps(whole));
        __m512 bound = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(chance, 8)),
                                     _mm512_set1_ps(0x1p-24f));
        __mmask16 up = _mm512_cmp_ps_mask(rest, bound, _CMP_GT_OQ);
        whole = _mm512_mask_add_epi32(whole, up, whole, _mm512_set1_epi32(1));
        result = _mm512_mask_mov_epi32(result, small, whole);
    }
    result = _mm512_or_si512(result, sign);
    if (large)
        result = _mm512_mask_mov_epi32(result, large, _mm512_cvtepu16_epi32(
            _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT)));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(result));
}

static inline __m512i sc_nearest_bfloats(__m512i bits) {
    __m512i half = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(half, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 none = _mm512_cmpgt_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                             _mm512_set1_epi32(0x7f800000));
    return _mm512_mask_or_epi32(rounded, none, half, _mm512_set1_epi32(0x40));
}

static inline void sc_put_bfloats(__m512 value, __m512i chance, sc_bfloat *to) {
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 large = _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                              _mm512_set1_epi32(0x7f7f0000));
    __m512i result = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_srli_epi32(chance, 16)), 16);
    if (large)
        result = _mm512_mask_mov_epi32(result, large, sc_nearest_bfloats(bits));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(result));
}
#define SC_NEXT_FLOATS(from) _mm512_loadu_ps(from)

#elif defined(__AVX2__) && defined(__F16C__)
#define SC_TOGETHER 8
typedef struct { __m256i first, apart; } sc_columns;

static inline sc_columns sc_first_columns(uint64_t start, uint64_t step) {
    sc_columns columns = {
        _mm256_set_epi64x((long long)(start + 4 * step), (long long)(start + 3 * step),
                          (long long)(start + 2 * step), (long long)(start + step)),
        _mm256_set1_epi64x((long long)(4 * step))};
    return columns;
}

/* The product with a word, given as its two halves. */
static inline __m256i sc_times_word(__m256i z, uint32_t upper, uint32_t lower) {
    __m256i across = _mm256_add_epi64(
        _mm256_mul_epu32(_mm256_srli_epi64(z, 32), _mm256_set1_epi64x(lower)),
        _mm256_mul_epu32(z, _mm256_set1_epi64x(upper)));
    return _mm256_add_epi64(_mm256_mul_epu32(z, _mm256_set1_epi64x(lower)),
                            _mm256_slli_epi64(across, 32));
}

static inline __m256i sc_mix_four(__m256i z) {
    z = sc_times_word(_mm256_xor_si256(z, _mm256_srli_epi64(z, 30)), 0xBF58476Du, 0x1CE4E5B9u);
    z = sc_times_word(_mm256_xor_si256(z, _mm256_srli_epi64(z, 27)), 0x94D049BBu, 0x133111EBu);
    return _mm256_xor_si256(z, _mm256_srli_epi64(z, 31));
}

/* The 32 random bits of each of the next 8 columns. */
static inline __m256i sc_chances(sc_columns *columns) {
    __m256i next = _mm256_add_epi64(columns->first, columns->apart);
    __m256 upper = _mm256_shuffle_ps(_mm256_castsi256_ps(sc_mix_four(columns->first)),
                                     _mm256_castsi256_ps(sc_mix_four(next)), _MM_SHUFFLE(3, 1, 3, 1));
    columns->first = _mm256_add_epi64(next, columns->apart);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(upper), _MM_SHUFFLE(3, 1, 2, 0));
}

/* Which numbers below 2**31 are not less than a bound. */
static inline __m256i sc_from(__m256i numbers, int bound) {
    return _mm256_cmpgt_epi32(numbers, _mm256_set1_epi32(bound - 1));
}

static inline void sc_put_words(__m256i words, void *to) {
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(packed));
}

static inline void sc_put_halves(__m256 value, __m256i chance, sc_half *to) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
    __m256i result = _mm256_srli_epi32(
        _mm256_sub_epi32(_mm256_add_epi32(magnitude, _mm256_srli_epi32(chance, 19)),
                         _mm256_set1_epi32(112 << 23)), 13);
    __m256i normal = sc_from(magnitude, 113 << 23), large = sc_from(magnitude, 0x477fe000);
    if (_mm256_movemask_epi8(normal) != -1) {   /* few weights are smaller */
        __m256 scaled = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_andnot_si256(normal, magnitude)),
                                      _mm256_set1_ps(0x1p24f));
        __m256i whole = _mm256_cvttps_epi32(scaled);
        __m256 rest = _mm256_sub_ps(scaled, _mm256_cvtepi32_ps(whole));
        __m256 bound = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(chance, 8)),
                                     _mm256_set1_ps(0x1p-24f));
        __m256i up = _mm256_castps_si256(_mm256_cmp_ps(rest, bound, _CMP_GT_OQ));
        result = _mm256_blendv_epi8(_mm256_sub_epi32(whole, up), result, normal);
    }
    result = _mm256_or_si256(result, sign);
    if (_mm256_movemask_epi8(large))
        result = _mm256_blendv_epi8(result, _mm256_cvtepu16_epi32(_mm256_cvtps_ph(
            value, _MM_FROUND_TO_NEAREST_INT)), large);
    sc_put_words(result, to);
}

static inline __m256i sc_nearest_bfloats(__m256i bits) {
    __m256i half = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(half, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i none = sc_from(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)), 0x7f800001);
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(half, _mm256_set1_epi32(0x40)), none);
}

static inline void sc_put_bfloats(__m256 value, __m256i chance, sc_bfloat *to) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i large = sc_from(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)), 0x7f7f0000);
    __m256i result = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_srli_epi32(chance, 16)), 16);
    sc_put_words(_mm256_blendv_epi8(result, sc_nearest_bfloats(bits), large), to);
}
#define SC_NEXT_FLOATS(from) _mm256_loadu_ps(from)
#endif

/* Bits first, then rounding, so that the compiler can do many of each at once. */
#define SC_ROUND_BY_CHANCE(SHORTS, SHORT)                                                          \
    static inline void sc_narrow_##SHORTS##_stochastic(const float *from, int64_t count,           \
                                                       uint64_t start, uint64_t step, SHORT *to) { \
        uint32_t chances[64];                                                                      \
        int64_t i = 0, size, c;                                                                    \
        SC_ROUND_TOGETHER(SHORTS)                                                                  \
        for (; i < count; i += size) {                                                             \
            size = count - i < 64 ? count - i : 64;                                                \
            for (c = 0; c < size; c++)                                                             \
                chances[c] = sc_chance(start, step, i + c);                                        \
            for (c = 0; c < size; c++)                                                             \
                to[i + c] = SC_ROUNDED_##SHORTS(from[i + c], chances[c]);                          \
        }                                                                                          \
    }
#if defined(SC_TOGETHER)
#define SC_ROUND_TOGETHER(SHORTS)                                                                  \
    sc_columns columns = sc_first_columns(start, step);                                            \
    for (; i + SC_TOGETHER <= count; i += SC_TOGETHER)                                             \
        sc_put_##SHORTS(SC_NEXT_FLOATS(from + i), sc_chances(&columns), to + i);
#else
#define SC_ROUND_TOGETHER(SHORTS)
#endif
#define SC_ROUNDED_halves sc_to_half_stochastic
#define SC_ROUNDED_bfloats sc_to_bfloat_stochastic
SC_ROUND_BY_CHANCE(halves, sc_half)
SC_ROUND_BY_CHANCE(bfloats, sc_bfloat)

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

/* Into the second-level cache, as the first level of some processors has too few miss buffers to run far
   ahead. "Near": into the first, what the second has; or all, where the first level has enough of them. */
#if defined(__GNUC__) || defined(__clang__)
#define SC_PREFETCH_READ(address) __builtin_prefetch((address), 0, 2)
#define SC_PREFETCH_NEAR(address) __builtin_prefetch((address), 0, 3)
#define SC_PREFETCH_WRITE(address) __builtin_prefetch((address), 1, 2)
#else
#define SC_PREFETCH_READ(address) ((void)(address))
#define SC_PREFETCH_NEAR(address) ((void)(address))
#define SC_PREFETCH_WRITE(address) ((void)(address))
#endif

/* Return a number that no other thread gets: what the counter was before one was added. */
#if defined(__GNUC__) || defined(__clang__)
#define SC_TAKE_NUMBER(counter) __atomic_fetch_add((counter), 1, __ATOMIC_RELAXED)
#else
#include <intrin.h>
#define SC_TAKE_NUMBER(counter) _InterlockedExchangeAdd64((volatile long long *)(counter), 1)
#endif

/* What was read from memory that another thread may write to is not read from there again: the
   compiler may otherwise look at the source of a copy where the copy is asked for.

   A function that holds SC_KEEP has an effect: calls of it stay. */
#if defined(__GNUC__) || defined(__clang__)
#define SC_FORGET_SOURCES() __asm__ __volatile__("" ::: "memory")
#define SC_KEEP() __asm__ __volatile__("")
#elif defined(_MSC_VER)
#include <intrin.h>
#define SC_FORGET_SOURCES() _ReadWriteBarrier()
#define SC_KEEP() ((void)0)
#else
#define SC_FORGET_SOURCES() ((void)0)
#define SC_KEEP() ((void)0)
#endif

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#define SC_CPU_HAS(feature) (__builtin_cpu_supports(feature) != 0)
#define SC_CPU_IS(vendor) (__builtin_cpu_is(vendor) != 0)
#define SC_CPU_ASK(leaf, a, other) __get_cpuid((leaf), &(a), &(other), &(other), &(other))
static inline void sc_cpu_init(void) { __builtin_cpu_init(); }
#else
#define SC_CPU_HAS(feature) (0)
#define SC_CPU_IS(vendor) (0)
#define SC_CPU_ASK(leaf, a, other) ((a) = (other) = 0)
static inline void sc_cpu_init(void) {}
#endif

#endif
