/* Memory as this machine has it: rows of a table read and written in any order.

   Compiled by `machine.py`, for this processor alone. Rows are folded into one vector, and asked for some
   way ahead: how far, and in which of three ways, the caller has found best. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 64 };

/* Ask for rows into the second cache, into the first, or into the second twice, the second time after a
   quarter of the way: some processors drop some of what is asked for. */
enum { SECOND, FIRST, TWICE };

/* Not wider than the processor's vectors: of what is, compilers make single words, which take longer than
   memory does. */
#if defined(__AVX512F__)
enum { MOST = 64 };
#elif defined(__AVX__)
enum { MOST = 32 };
#else
enum { MOST = 16 };
#endif
#define VECTOR(bytes) __attribute__((vector_size((bytes) < MOST ? (bytes) : MOST), aligned(4), may_alias))
typedef uint64_t line VECTOR(64);
typedef uint64_t half VECTOR(32);
typedef uint64_t pair VECTOR(16);
typedef uint32_t word __attribute__((aligned(4), may_alias));

static inline __attribute__((always_inline)) void ask_for(const char* row, size_t row_bytes, int near)
{
#pragma GCC unroll 16
    for (size_t at = 0; at < row_bytes; at += LINE) {
        if (near)
            __builtin_prefetch(row + at, 0, 3);
        else
            __builtin_prefetch(row + at, 0, 2);
    }
}

/* For rows of WIDTH bytes, in parts of a type; how far to look ahead and in which way is known too. Fold the
   rows of the bags from first to last, and write `out_bytes` of each. */
#define READ(WIDTH, PART)                                                                          \
    static inline __attribute__((always_inline)) uint64_t read_##WIDTH##_by(                       \
        const char* table, const int64_t* ids, const int64_t* row_splits, int64_t first,           \
        int64_t last, char* out, size_t out_bytes, int64_t ahead, int way)                         \
    {                                                                                              \
        PART all = {0};                                                                            \
        uint64_t words[sizeof(PART) / 8], whole = 0;                                               \
        int64_t end = row_splits[last], again = ahead - ahead / 4;                                 \
        for (int64_t bag = first; bag < last; bag++) {                                             \
            PART sum = {0};                                                                        \
            for (int64_t i = row_splits[bag]; i < row_splits[bag + 1]; i++) {                      \
                const PART* row = (const PART*)(table + ids[i] * (WIDTH));                         \
                if (i + ahead < end)                                                               \
                    ask_for(table + ids[i + ahead] * (WIDTH), WIDTH, way == FIRST);                \
                if (way == TWICE && i + again < end)                                               \
                    ask_for(table + ids[i + again] * (WIDTH), WIDTH, 0);                           \
                _Pragma("GCC unroll 16") for (size_t at = 0; at < WIDTH / sizeof(PART); at++)      \
                    sum ^= row[at];                                                                \
            }                                                                                      \
            for (size_t at = 0; at < out_bytes; at += sizeof(PART))                                \
                *(PART*)(out + bag * out_bytes + at) = sum;                                        \
            all ^= sum;                                                                            \
        }                                                                                          \
        memcpy(words, &all, sizeof(words));                                                        \
        for (size_t w = 0; w < sizeof(words) / 8; w++)                                             \
            whole ^= words[w];                                                                     \
        return whole;                                                                              \
    }                                                                                              \
    static uint64_t read_##WIDTH(const char* table, const int64_t* ids, const int64_t* row_splits, \
                                 int64_t first, int64_t last, char* out, size_t out_bytes,         \
                                 int64_t ahead, int way)                                           \
    {                                                                                              \
        if (way == FIRST)                                                                          \
            return read_##WIDTH##_by(table, ids, row_splits, first, last, out, out_bytes, ahead,   \
                                     FIRST);                                                       \
        if (way == TWICE)                                                                          \
            return read_##WIDTH##_by(table, ids, row_splits, first, last, out, out_bytes, ahead,   \
                                     TWICE);                                                       \
        return read_##WIDTH##_by(table, ids, row_splits, first, last, out, out_bytes, ahead,       \
                                 SECOND);                                                          \
    }

/* Add `value` to every word of rows, each named once: 0 leaves them as they are, and writes them. */
#define WRITE(WIDTH)                                                                               \
    static void write_##WIDTH(char* table, const int64_t* rows, int64_t first, int64_t last,       \
                              int64_t ahead, uint32_t value)                                       \
    {                                                                                              \
        for (int64_t i = first; i < last; i++) {                                                   \
            word* row = (word*)(table + rows[i] * (WIDTH));                                        \
            if (i + ahead < last)                                                                  \
                ask_for(table + rows[i + ahead] * (WIDTH), WIDTH, 0);                              \
            _Pragma("GCC ivdep") for (size_t at = 0; at < WIDTH / 4; at++) row[at] += value;       \
        }                                                                                          \
    }

#define FOR_EACH_WIDTH(DO)                                                                         \
    DO(16, pair) DO(32, half) DO(64, line) DO(128, line) DO(256, line) DO(512, line) DO(1024, line)
#define WRITE_TOO(WIDTH, PART) WRITE(WIDTH)

FOR_EACH_WIDTH(READ)
FOR_EACH_WIDTH(WRITE_TOO)
WRITE(4)

/* Return the exclusive or of all words of 8 bytes of the rows; of a width that is not here, 0. */
uint64_t read_rows(size_t row_bytes, const char* table, const int64_t* ids, const int64_t* row_splits,
                   int64_t first, int64_t last, char* out, size_t out_bytes, int64_t ahead, int way)
{
#define CASE_READ(WIDTH, PART)                                                                     \
    case WIDTH:                                                                                    \
        return read_##WIDTH(table, ids, row_splits, first, last, out, out_bytes, ahead, way);
    switch (row_bytes) {
        FOR_EACH_WIDTH(CASE_READ)
    }
    return 0;
}

void write_rows(size_t row_bytes, char* table, const int64_t* rows, int64_t first, int64_t last,
                int64_t ahead, uint32_t value)
{
#define CASE_WRITE(WIDTH, PART)                                                                    \
    case WIDTH:                                                                                    \
        write_##WIDTH(table, rows, first, last, ahead, value);                                     \
        return;
    switch (row_bytes) {
        CASE_WRITE(4, word)
        FOR_EACH_WIDTH(CASE_WRITE)
    }
}
