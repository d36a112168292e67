/* The sum of rows of one type, for ids of each of the two types: columns.h includes this once per type of
   row, with ROWS and ROW, the rows, and NUMBERS and NUMBER, the sums, defined, and LOADS_VECTORS, whether
   LOAD makes a vector of the columns of a row, and MOST_VECTORS, the most that hold a row that is summed whole. */
#if !defined(INDEX)

#define INDICES int64
#define INDEX int64_t
#include "sum_rows.h"
#define INDICES int32
#define INDEX int32_t
#include "sum_rows.h"
#undef ROWS
#undef ROW
#undef NUMBERS
#undef NUMBER
#undef LOAD
#undef LOADS_VECTORS
#undef MOST_VECTORS

#else

#define NAME(what) SC_JOINED(SC_JOINED(SC_JOINED(what, ROWS), _), INDICES)
#define CLEAR SC_JOINED(sc_clear_, NUMBERS)
#define PUT SC_JOINED(sc_put_, NUMBERS)
#define ADD SC_JOINED(sc_add_, ROWS)
#define ADD_TIMES SC_JOINED(SC_JOINED(sc_add_, ROWS), _times)
#define ONE SC_JOINED(sc_one_of_, ROWS)
#define VECTOR_OF(kind) SC_JOINED(kind, NUMBERS)
#define LONG ((ptrdiff_t)(SC_VECTOR / sizeof(NUMBER)))

/* Rows lie `stride` bytes apart from `table` on; or, from NULL on, one byte apart, anywhere. */
SC_INLINE const ROW *NAME(sc_row_of_)(const void *table, ptrdiff_t stride, INDEX id) {
    return (const ROW *)((size_t)table + (size_t)id * (size_t)stride);
}

/* While position `at` is summed, ask for the rows that come, up to position `last`: for the lines that begin
   in their columns [column, column + width). Of ids that are not checked yet a row may lie anywhere:
   addresses are numbers here, no pointers. */
SC_ASKING void NAME(sc_ask_)(const void *table, ptrdiff_t stride, ptrdiff_t dim, const INDEX *ids,
                             ptrdiff_t at, ptrdiff_t last, int ask, ptrdiff_t column, ptrdiff_t width) {
    const ptrdiff_t size = dim * (ptrdiff_t)sizeof(ROW), bytes = width * (ptrdiff_t)sizeof(ROW);
    const ptrdiff_t start = column * (ptrdiff_t)sizeof(ROW), end = start + bytes;
    const ptrdiff_t far = ask & SC_ASK_AGAIN ? SC_TWICE : SC_FAR;
    const int all_come = ask & SC_ASK_ALL;
    /* Of parts that are whole lines, each begins with one: then no test is left for a line. */
#define ASK_FOR_LINES(PREFETCH, ahead, step)                                                       \
    const size_t row = (size_t)NAME(sc_row_of_)(table, stride, ids[at + (ahead)]);                 \
    if (all_come && bytes % (step) == 0)                                                           \
        SC_UNROLL_SOME for (ptrdiff_t byte = 0; byte < bytes; byte += (step))                      \
            PREFETCH((const void *)(row + (size_t)(start + byte)));                                \
    else                                                                                           \
        SC_UNROLL_SOME for (ptrdiff_t byte = (start + (step) - 1) / (step) * (step); byte < end;   \
                            byte += (step))                                                        \
            PREFETCH((const void *)(row + (size_t)byte));                                          \
    if ((ask & SC_ASK_END) && end == size)                                                         \
        PREFETCH((const void *)(row + (size_t)size - 1));
    if ((ask & SC_ASK_FAR) && (all_come || at + far < last)) {
        if (ask & SC_ASK_HALF) {
            ASK_FOR_LINES(SC_PREFETCH_READ, far, 2 * SC_LINE)
        } else {
            ASK_FOR_LINES(SC_PREFETCH_READ, far, SC_LINE)
        }
    }
    if ((ask & SC_ASK_AGAIN) && (all_come || at + SC_AGAIN < last)) {
        ASK_FOR_LINES(SC_PREFETCH_READ, SC_AGAIN, SC_LINE)
    }
    const ptrdiff_t near = ask & SC_ASK_FIRST ? SC_FIRST(ask, size) : SC_NEAR_AHEAD(ask);
    if ((ask & (SC_ASK_NEAR | SC_ASK_FIRST)) && (all_come || at + near < last)) {
        ASK_FOR_LINES(SC_PREFETCH_NEAR, near, SC_LINE)
    }
#undef ASK_FOR_LINES
}

/* Return an id, read once: another thread may write to ids that are the caller's. */
SC_INLINE INDEX NAME(sc_id_at_)(const INDEX *ids, ptrdiff_t at) {
    return *(const volatile INDEX *)(ids + at);
}

/* Ask for as many of the ids that come as positions [lo, hi) have, if `ask` is for no rows: to ask for those reads ids
   ahead. They are a caller's, and may be in no cache. */
SC_INLINE void NAME(sc_ask_for_ids_)(const INDEX *ids, ptrdiff_t lo, ptrdiff_t hi, int ask) {
    if (!(ask & (SC_ASK_FAR | SC_ASK_NEAR | SC_ASK_FIRST)))
        for (; lo < hi; lo += SC_LINE / sizeof(INDEX))
            SC_PREFETCH_READ((const void *)((size_t)(ids + lo) + SC_IDS_AHEAD));
}

/* Ask for the memory of sums that come, as much as those about to be made take, if `ask` is for rows: processors fetch
   what is written in order by themselves, but not among requests for rows that lie anywhere. Far only is how the sum of
   one run is made, after which none comes. */
SC_INLINE void NAME(sc_ask_for_sums_)(const NUMBER *out, ptrdiff_t width, int ask) {
    const ptrdiff_t bytes = width * (ptrdiff_t)sizeof(NUMBER);
    if (SC_SUMS_AHEAD && (ask & (SC_ASK_NEAR | SC_ASK_FIRST | SC_ASK_AGAIN)) && bytes >= SC_LINE)
        for (ptrdiff_t byte = 0; byte < bytes; byte += SC_LINE)
            SC_PREFETCH_WRITE((const void *)((size_t)out + SC_SUMS_AHEAD + (size_t)byte));
}

/* Sum columns [column, column + width) of rows ids[lo:hi] into out[column:]; `ask`: which of the rows up
   to position `last` are asked for ahead. Return whether all ids are below `limit`; else no more is read. */
SC_INLINE int NAME(sc_sum_columns_)(const void *table, ptrdiff_t stride, ptrdiff_t dim,
                                    const INDEX *ids, uint64_t limit, ptrdiff_t lo, ptrdiff_t hi,
                                    ptrdiff_t last, int ask, const NUMBER *weights,
                                    ptrdiff_t column, ptrdiff_t width, NUMBER *out) {
    const ptrdiff_t asked = ask & SC_ASK_PARTS ? column : 0;
    const ptrdiff_t asked_width = ask & SC_ASK_PARTS ? width : dim;
    NUMBER totals[SC_WHOLE_ROW];
    CLEAR(totals, width);
    if (column == 0)
        NAME(sc_ask_for_ids_)(ids, lo, hi, ask);
    NAME(sc_ask_for_sums_)(out + column, width, ask);
    if (weights == NULL)
        for (ptrdiff_t i = lo; i < hi; i++) {
            const INDEX id = NAME(sc_id_at_)(ids, i);
            NAME(sc_ask_)(table, stride, dim, ids, i, last, ask, asked, asked_width);
            if ((uint64_t)(int64_t)id >= limit)
                return 0;
            ADD(totals, NAME(sc_row_of_)(table, stride, id) + column, width);
        }
    else
        for (ptrdiff_t i = lo; i < hi; i++) {
            const INDEX id = NAME(sc_id_at_)(ids, i);
            if ((uint64_t)(int64_t)id >= limit)
                return 0;
            ADD_TIMES(totals, NAME(sc_row_of_)(table, stride, id) + column, weights[i], width);
            NAME(sc_ask_)(table, stride, dim, ids, i, last, ask, asked, asked_width);
        }
    PUT(totals, width, out + column);
    return 1;
}

/* Sum all columns of rows that are narrower than the shortest vector. */
SC_INLINE int NAME(sc_sum_narrow_)(const void *table, ptrdiff_t stride, ptrdiff_t dim,
                                   const INDEX *ids, uint64_t limit, ptrdiff_t lo, ptrdiff_t hi,
                                   ptrdiff_t last, int ask, const NUMBER *weights, NUMBER *out) {
    NUMBER totals[SC_FEW] = {0};
#define SUM_NARROW(WEIGHT_TIMES)                                                                   \
    for (ptrdiff_t i = lo; i < hi; i++) {                                                          \
        const INDEX id = NAME(sc_id_at_)(ids, i);                                                  \
        NAME(sc_ask_)(table, stride, dim, ids, i, last, ask, 0, dim);                              \
        if ((uint64_t)(int64_t)id >= limit)                                                        \
            return 0;                                                                              \
        const ROW *row = NAME(sc_row_of_)(table, stride, id);                                      \
        for (ptrdiff_t c = 0; c < dim; c++)                                                        \
            totals[c] += WEIGHT_TIMES ONE(row[c]);                                                 \
    }
    if (weights == NULL)
        SUM_NARROW()
    else
        SUM_NARROW(weights[i] *)
#undef SUM_NARROW
    for (ptrdiff_t c = 0; c < dim; c++)
        out[c] = totals[c];
    return 1;
}

/* As many columns at a time as registers hold, then ever fewer. The last few may overlap those before:
   their sums are made, and written, twice. */
SC_INLINE int NAME(sc_sum_parts_)(const void *table, ptrdiff_t stride, ptrdiff_t dim,
                                  const INDEX *ids, uint64_t limit, ptrdiff_t lo, ptrdiff_t hi,
                                  ptrdiff_t last, int ask, const NUMBER *weights, NUMBER *out) {
    const ptrdiff_t widest = SC_WIDE * sizeof(float) / sizeof(NUMBER);
    ptrdiff_t column = 0;
    if (dim < SC_FEW)
        return NAME(sc_sum_narrow_)(table, stride, dim, ids, limit, lo, hi, last, ask, weights, out);
#define SUM_COLUMNS(at, width)                                                                     \
    if (!NAME(sc_sum_columns_)(table, stride, dim, ids, limit, lo, hi, last,                       \
                               (at) && !(ask & SC_ASK_PARTS) ? 0 : ask, weights, at, width, out))  \
        return 0;
#define SUM_IF_THERE_ARE(width)                                                                    \
    if (widest > width && column + width <= dim) {                                                 \
        SUM_COLUMNS(column, width)                                                                 \
        column += width;                                                                           \
    }
    for (; column + widest <= dim; column += widest)
        SUM_COLUMNS(column, widest)
    SUM_IF_THERE_ARE(128)
    SUM_IF_THERE_ARE(64)
    SUM_IF_THERE_ARE(32)
    SUM_IF_THERE_ARE(16)
    SUM_IF_THERE_ARE(8)
    SUM_IF_THERE_ARE(SC_FEW)
    if (column < dim)
        SUM_COLUMNS(dim - SC_FEW, SC_FEW)
    return 1;
#undef SUM_IF_THERE_ARE
#undef SUM_COLUMNS
}

/* Sum all columns, which the compiler knows, at most SC_NARROW, of two bags at a time, asking for none: each sum of so
   few waits for the one before it, but not for the other bag's. */
SC_INLINE int NAME(sc_sum_two_bags_)(const void *table, ptrdiff_t stride, ptrdiff_t columns,
                                     const INDEX *ids, uint64_t limit, const int64_t *splits,
                                     ptrdiff_t bags, const NUMBER *weights, NUMBER *out) {
#define ADD_ROW(totals, at)                                                                        \
    {                                                                                              \
        const INDEX id = NAME(sc_id_at_)(ids, at);                                                 \
        if ((uint64_t)(int64_t)id >= limit)                                                        \
            return 0;                                                                              \
        const ROW *row = NAME(sc_row_of_)(table, stride, id);                                      \
        if (columns < SC_FEW)                                                                      \
            for (ptrdiff_t c = 0; c < columns; c++)                                                \
                totals[c] += weights == NULL ? ONE(row[c]) : weights[at] * ONE(row[c]);            \
        else if (weights == NULL)                                                                  \
            ADD(totals, row, columns);                                                             \
        else                                                                                       \
            ADD_TIMES(totals, row, weights[at], columns);                                          \
    }
    for (; bags > 1; bags -= 2, splits += 2, out += 2 * columns) {
        NUMBER first[SC_NARROW] = {0}, second[SC_NARROW] = {0};
        const ptrdiff_t middle = splits[1], end = splits[2];
        ptrdiff_t i = splits[0], j = middle;
        const ptrdiff_t both = middle - i < end - j ? middle : i + end - j;
        NAME(sc_ask_for_ids_)(ids, i, end, 0);
        for (; i < both; i++, j++) {
            ADD_ROW(first, i)
            ADD_ROW(second, j)
        }
        for (; i < middle; i++)
            ADD_ROW(first, i)
        for (; j < end; j++)
            ADD_ROW(second, j)
        for (ptrdiff_t c = 0; c < columns; c++) {
            out[c] = first[c];
            out[columns + c] = second[c];
        }
    }
#undef ADD_ROW
    return bags == 0 || NAME(sc_sum_parts_)(table, stride, columns, ids, limit, splits[0], splits[1],
                                            splits[1], 0, weights, out);
}

/* What each of the bodies below is given: bags [splits[b], splits[b + 1]) of ids, whose sums it writes to out (bags,
   dim), one after the other, and whose ids it checks as `sc_sum_` does; and whether, after the last of these bags,
   all rows come that are to be asked for. */
#define GIVEN                                                                                      \
    const void *table, ptrdiff_t stride, ptrdiff_t dim, const INDEX *ids, uint64_t limit,          \
        const int64_t *splits, ptrdiff_t bags, ptrdiff_t last, int all_come, int ask,              \
        const NUMBER *weights, NUMBER *out
#define BODY(name) static SC_OUT_OF_LINE int NAME(sc_sum_##name##_)(GIVEN)
#define SUM_SO(name)                                                                               \
    return NAME(sc_sum_##name##_)(table, stride, dim, ids, limit, splits, bags, last, all_come, ask, \
                                  weights, out);

#if LOADS_VECTORS

/* While position `at` is summed, ask for rows that come, of which none is past the last: for every line that
   begins in one. They have `size` bytes, more than `least` and at most `most`, which the compiler knows. */
SC_INLINE void NAME(sc_ask_whole_)(const void *table, ptrdiff_t stride, ptrdiff_t size, ptrdiff_t least,
                                   ptrdiff_t most, const INDEX *ids, ptrdiff_t at, int ask,
                                   ptrdiff_t far, ptrdiff_t near) {
#define ASK_FOR_ROW(PREFETCH, ahead, step)                                                         \
    const size_t row = (size_t)NAME(sc_row_of_)(table, stride, ids[at + (ahead)]);                 \
    SC_UNROLL for (ptrdiff_t byte = 0; byte < most; byte += (step)) {                              \
        if (byte <= least || byte < size)                                                          \
            PREFETCH((const void *)(row + (size_t)byte));                                          \
    }                                                                                              \
    if (ask & SC_ASK_END)                                                                          \
        PREFETCH((const void *)(row + (size_t)size - 1));
    if (ask & SC_ASK_FAR) {
        if (ask & SC_ASK_HALF) {
            ASK_FOR_ROW(SC_PREFETCH_READ, far, 2 * SC_LINE)
        } else {
            ASK_FOR_ROW(SC_PREFETCH_READ, far, SC_LINE)
        }
    }
    if (ask & SC_ASK_AGAIN) {
        ASK_FOR_ROW(SC_PREFETCH_READ, SC_AGAIN, SC_LINE)
    }
    if (ask & (SC_ASK_NEAR | SC_ASK_FIRST)) {
        ASK_FOR_ROW(SC_PREFETCH_NEAR, near, SC_LINE)
    }
#undef ASK_FOR_ROW
}

/* Sum all columns of each bag in one go, more than `least` and at most as many as `count` vectors have, both of
   which the compiler knows: those that would go past the last column end with it, and sum some columns twice. */
#define SUM_OF_WHOLE_ROWS(VECTOR, VECTORS)                                                         \
    SC_INLINE int NAME(sc_sum_whole_##VECTORS##_)(                                                 \
        GIVEN, ptrdiff_t least, ptrdiff_t count) {                                                 \
        const ptrdiff_t width = sizeof(VECTOR) / sizeof(NUMBER), most = count * width;             \
        const ptrdiff_t item = sizeof(ROW), ending = dim - width;                                  \
        const ptrdiff_t far = ask & SC_ASK_AGAIN ? SC_TWICE : SC_FAR;                              \
        const ptrdiff_t near =                                                                     \
            ask & SC_ASK_FIRST ? SC_FIRST(ask, dim * item) : SC_NEAR_AHEAD(ask);                   \
        ptrdiff_t i = splits[0];                                                                   \
        (void)last, (void)all_come;                                                                \
        for (ptrdiff_t b = 0; b < bags; b++, out += dim) {                                         \
            const ptrdiff_t hi = splits[b + 1];                                                    \
            NAME(sc_ask_for_ids_)(ids, i, hi, ask);                                                \
            NAME(sc_ask_for_sums_)(out, dim, ask);                                                 \
            VECTOR totals[SC_MANY_VECTORS];                                                        \
            SC_UNROLL for (ptrdiff_t v = 0; v < count; v++)                                        \
                totals[v] = (VECTOR){0};                                                           \
            for (; i < hi; i++) {                                                                  \
                const INDEX id = NAME(sc_id_at_)(ids, i);                                          \
                NAME(sc_ask_whole_)(table, stride, dim * item, least * item, most * item, ids, i,  \
                                    ask, far, near);                                               \
                if ((uint64_t)(int64_t)id >= limit)                                                \
                    return 0;                                                                      \
                const ROW *row = NAME(sc_row_of_)(table, stride, id);                              \
                if (weights == NULL)                                                               \
                    SC_UNROLL for (ptrdiff_t v = 0; v < count; v++)                                \
                        totals[v] += LOAD(VECTOR, row + COLUMN_OF(v));                             \
                else                                                                               \
                    SC_UNROLL for (ptrdiff_t v = 0; v < count; v++)                                \
                        totals[v] += weights[i] * LOAD(VECTOR, row + COLUMN_OF(v));                \
            }                                                                                      \
            SC_UNROLL for (ptrdiff_t v = 0; v < count; v++)                                        \
                *(VECTOR *)(out + COLUMN_OF(v)) = totals[v];                                       \
        }                                                                                          \
        return 1;                                                                                  \
    }
#define COLUMN_OF(v) ((v + 1) * width <= least || v * width < ending ? (v) * width : ending)
SUM_OF_WHOLE_ROWS(VECTOR_OF(sc_), vectors)
SUM_OF_WHOLE_ROWS(VECTOR_OF(sc_few_), few)
#undef COLUMN_OF
#undef SUM_OF_WHOLE_ROWS

/* Functions of their own, which have the registers for themselves: of (count before, count] vectors, for bags after
   which all rows come that are to be asked for, for some ways of asking without weights or with them, and for any. */
#define WHOLE_ASKED_SO(VECTORS, width, before, count, way, how, factors)                           \
    BODY(whole_##VECTORS##_##count##_##way) {                                                      \
        (void)weights;                                                                             \
        return NAME(sc_sum_whole_##VECTORS##_)(table, stride, dim, ids, limit, splits, bags, last, \
                                               1, how, factors, out, (width) * (before), count);   \
    }
#define WHOLE(VECTORS, width, before, count)                                                       \
    WHOLE_ASKED_SO(VECTORS, width, before, count, none, 0, NULL)                                   \
    WHOLE_ASKED_SO(VECTORS, width, before, count, near, SC_ASK_NEAR | (ask & SC_ASK_END), NULL)    \
    WHOLE_ASKED_SO(VECTORS, width, before, count, first, SC_ASK_FIRST | (ask & SC_ASK_END), NULL)  \
    WHOLE_ASKED_SO(VECTORS, width, before, count, twice,                                           \
                   SC_ASK_FAR | SC_ASK_NEAR | (ask & SC_ASK_END), NULL)                            \
    WHOLE_ASKED_SO(VECTORS, width, before, count, again,                                           \
                   SC_ASK_FAR | SC_ASK_AGAIN | (ask & SC_ASK_END), NULL)                           \
    WHOLE_ASKED_SO(VECTORS, width, before, count, none_weighted, 0, weights)                       \
    WHOLE_ASKED_SO(VECTORS, width, before, count, near_weighted, SC_ASK_NEAR | (ask & SC_ASK_END), \
                   weights)                                                                        \
    WHOLE_ASKED_SO(VECTORS, width, before, count, any, ask, weights)
WHOLE(few, SC_FEW, 0, 1)
WHOLE(few, SC_FEW, 1, 2)
WHOLE(few, SC_FEW, 2, 3)
WHOLE(few, SC_FEW, 3, 4)
WHOLE(vectors, LONG, 0, 1)
WHOLE(vectors, LONG, 1, 2)
WHOLE(vectors, LONG, 2, 3)
WHOLE(vectors, LONG, 3, 4)
WHOLE(vectors, LONG, 4, 6)
WHOLE(vectors, LONG, 6, 8)
#undef WHOLE

/* Choose the body by the count of vectors that hold a row, and by the way of asking. */
#define SUM_WHOLE(VECTORS, count)                                                                  \
    if (weights == NULL && way == 0)                                                               \
        SUM_SO(whole_##VECTORS##_##count##_none)                                                   \
    if (weights == NULL && way == SC_ASK_NEAR)                                                     \
        SUM_SO(whole_##VECTORS##_##count##_near)                                                   \
    if (weights == NULL && way == SC_ASK_FIRST)                                                    \
        SUM_SO(whole_##VECTORS##_##count##_first)                                                  \
    if (weights == NULL && way == (SC_ASK_FAR | SC_ASK_NEAR))                                      \
        SUM_SO(whole_##VECTORS##_##count##_twice)                                                  \
    if (weights == NULL && way == (SC_ASK_FAR | SC_ASK_AGAIN))                                     \
        SUM_SO(whole_##VECTORS##_##count##_again)                                                  \
    if (weights != NULL && way == 0)                                                               \
        SUM_SO(whole_##VECTORS##_##count##_none_weighted)                                          \
    if (weights != NULL && way == SC_ASK_NEAR)                                                     \
        SUM_SO(whole_##VECTORS##_##count##_near_weighted)                                          \
    SUM_SO(whole_##VECTORS##_##count##_any)
BODY(in_few) {
    const int way = ask & ~SC_ASK_END;
    switch ((dim + SC_FEW - 1) / SC_FEW) {
    case 1:
        SUM_WHOLE(few, 1)
    case 2:
        SUM_WHOLE(few, 2)
    case 3:
        SUM_WHOLE(few, 3)
    default:
        SUM_WHOLE(few, 4)
    }
}
BODY(in_vectors) {
    const int way = ask & ~SC_ASK_END;
    switch ((dim + LONG - 1) / LONG) {
    case 1:
        SUM_WHOLE(vectors, 1)
    case 2:
        SUM_WHOLE(vectors, 2)
    case 3:
        SUM_WHOLE(vectors, 3)
    case 4:
        SUM_WHOLE(vectors, 4)
    case 5:
    case 6:
        SUM_WHOLE(vectors, 6)
    default:
        SUM_WHOLE(vectors, 8)
    }
}
#undef SUM_WHOLE

#if SC_PARTS_OF_VECTORS

/* Rows of more vectors, at most MOST_VECTORS, without weights. In two parts, each of which reads all ids of a bag, they
   take up to twice as long in bags of four; but of more than ten that are asked for, those in long bags take less. */
#define MANY_ASKED_SO(before, count, way, how)                                                     \
    WHOLE_ASKED_SO(vectors, LONG, before, count, many_##way, how, NULL)
MANY_ASKED_SO(8, 10, none, 0)
MANY_ASKED_SO(10, 12, none, 0)
MANY_ASKED_SO(12, 14, none, 0)
MANY_ASKED_SO(14, 16, none, 0)
MANY_ASKED_SO(8, 10, near, SC_ASK_NEAR | SC_ASK_PARTS | (ask & SC_ASK_END))
#undef MANY_ASKED_SO

/* Rows that are summed in parts, each of which asks for its own columns, or for none. Columns after the last whole part
   are one, of as many vectors as they need: in ever fewer columns at a time rows take up to 1.8 times as long; together
   with that part up to 1.5, out of the third cache. */
#define EACH_COUNT(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8)
#define LAST_COLUMNS(count)                                                                        \
    WHOLE_ASKED_SO(vectors, LONG, (count) - 1, count, part,                                        \
                   SC_ASK_NEAR | SC_ASK_PARTS | (ask & SC_ASK_END), weights)
EACH_COUNT(LAST_COLUMNS)
#undef LAST_COLUMNS

/* Sum all columns of each bag in parts that ask in one way, the last of them by SUM_LAST. */
#define IN_PARTS(name, how, SUM_LAST)                                                              \
    BODY(name) {                                                                                   \
        const ptrdiff_t width = SC_MOST_VECTORS * LONG;                                            \
        (void)all_come;                                                                            \
        for (ptrdiff_t b = 0; b < bags; b++, splits++, out += dim) {                               \
            ptrdiff_t column = 0;                                                                  \
            int all_known = 1;                                                                     \
            for (; column + width <= dim; column += width)                                         \
                if (!NAME(sc_sum_columns_)(table, stride, dim, ids, limit, splits[0], splits[1],   \
                                           last, (how) | SC_ASK_PARTS | SC_ASK_ALL, weights,       \
                                           column, width, out))                                    \
                    return 0;                                                                      \
            const void *const from = NAME(sc_row_of_)(table, sizeof(ROW), (INDEX)column);          \
            SUM_LAST                                                                               \
            if (!all_known)                                                                        \
                return 0;                                                                          \
        }                                                                                          \
        return 1;                                                                                  \
    }
#define LAST_SO(name)                                                                              \
    all_known = NAME(sc_sum_##name##_)(from, stride, dim - column, ids, limit, splits, 1, last, 1, \
                                       ask, weights, out + column);
#define LAST_COLUMNS(count)                                                                        \
    case count:                                                                                    \
        LAST_SO(whole_vectors_##count##_part)                                                      \
        break;
IN_PARTS(in_parts_near, SC_ASK_NEAR,
         switch ((dim - column + LONG - 1) / LONG) { EACH_COUNT(LAST_COLUMNS) })
IN_PARTS(in_parts_none, 0, if (column < dim) LAST_SO(in_vectors))
#undef IN_PARTS
#undef LAST_SO
#undef LAST_COLUMNS
#undef EACH_COUNT

#endif
#undef WHOLE_ASKED_SO

#endif

/* Sum the columns of each bag, in parts, one bag after the other. */
#define SUM_BAGS_IN_PARTS(dim, ask)                                                                \
    for (ptrdiff_t b = 0; b < bags; b++)                                                           \
        if (!NAME(sc_sum_parts_)(table, stride, dim, ids, limit, splits[b], splits[b + 1], last,   \
                                 ask, weights, out + b * (dim)))                                   \
            return 0;                                                                              \
    return 1;

/* Rows of one dim, asked for in any way. Those that as many registers hold as AVX2 has, are summed in one go,
   but asked for as those that are not. */
#define ASKED_IN_ANY_WAY(name, columns)                                                            \
    BODY(name) {                                                                                   \
        const int once = ask & ~(SC_ASK_AGAIN | SC_ASK_PARTS | SC_ASK_ALL), end = ask & SC_ASK_END; \
        (void)dim;                                                                                 \
        if (SC_IN_PARTS(columns, sizeof(NUMBER)) && all_come && (ask & SC_ASK_PARTS)) {            \
            if ((columns) == SC_WHOLE_ROW && sizeof(ROW) == sizeof(float) && weights == NULL) {    \
                for (ptrdiff_t b = 0; b < bags; b++)                                               \
                    if (!NAME(sc_sum_columns_)(table, stride, columns, ids, limit, splits[b],      \
                                               splits[b + 1], last,                                \
                                               SC_ASK_NEAR | SC_ASK_PARTS | SC_ASK_ALL | end, NULL, \
                                               0, SC_WHOLE_ROW, out + b * (columns)))              \
                        return 0;                                                                  \
                return 1;                                                                          \
            }                                                                                      \
            SUM_BAGS_IN_PARTS(columns, SC_ASK_NEAR | SC_ASK_PARTS | SC_ASK_ALL | end)              \
        }                                                                                          \
        if (SC_IN_PARTS(columns, sizeof(NUMBER)) && ask == 0) {                                    \
            SUM_BAGS_IN_PARTS(columns, 0)                                                          \
        }                                                                                          \
        if (!SC_IN_PARTS(columns, sizeof(NUMBER)) && (ask & SC_ASK_AGAIN)) {                       \
            SUM_BAGS_IN_PARTS(columns, SC_ASK_FAR | SC_ASK_AGAIN | end)                            \
        }                                                                                          \
        SUM_BAGS_IN_PARTS(columns, once)                                                           \
    }
ASKED_IN_ANY_WAY(1, 1)
ASKED_IN_ANY_WAY(2, 2)
ASKED_IN_ANY_WAY(3, 3)
ASKED_IN_ANY_WAY(16, 16)
ASKED_IN_ANY_WAY(32, 32)
ASKED_IN_ANY_WAY(64, 64)
ASKED_IN_ANY_WAY(128, 128)
ASKED_IN_ANY_WAY(256, 256)
ASKED_IN_ANY_WAY(other, dim)
#undef ASKED_IN_ANY_WAY

#if SC_BODIES_FOR_WAYS

/* Rows of some dims, for some ways of asking, if all come that are asked for. (Asked for far ahead, once, rows of
   128 floats take a tenth longer so: without tests in between, their lines are asked for in closer succession.
   AMD's drop some of these, and more or fewer of them by where the tests of a loop happen to lie: so the ways that
   these ask in have bodies without.) Rows of 3 columns end in one line more here and there, wherever they begin. */
#define ENDS(columns) ((columns) == 3 ? SC_ASK_END : 0)
#define ASKED_SO(columns, way, how)                                                                \
    BODY(columns##_##way) {                                                                        \
        (void)dim, (void)all_come, (void)ask;                                                      \
        SUM_BAGS_IN_PARTS(columns, (how) | ENDS(columns) | SC_ASK_ALL)                             \
    }
#define MOST_WAYS(columns)                                                                         \
    ASKED_SO(columns, twice, SC_ASK_FAR | SC_ASK_NEAR)                                             \
    ASKED_SO(columns, half, SC_ASK_FAR | SC_ASK_NEAR | SC_ASK_HALF)                                \
    ASKED_SO(columns, near, SC_ASK_NEAR)                                                           \
    ASKED_SO(columns, first, SC_ASK_FIRST)
MOST_WAYS(1)
MOST_WAYS(2)
MOST_WAYS(3)
MOST_WAYS(16)
MOST_WAYS(32)
MOST_WAYS(64)
ASKED_SO(16, none, 0)
ASKED_SO(32, none, 0)
ASKED_SO(64, none, 0)
ASKED_SO(64, again, SC_ASK_FAR | SC_ASK_AGAIN)
ASKED_SO(128, again, SC_ASK_FAR | SC_ASK_AGAIN)
ASKED_SO(256, again, SC_ASK_FAR | SC_ASK_AGAIN)
ASKED_SO(256, far, SC_ASK_FAR)
#undef MOST_WAYS
#undef ASKED_SO
#define TWO_BAGS(columns)                                                                          \
    BODY(columns##_none) {                                                                         \
        (void)dim, (void)last, (void)all_come, (void)ask;                                          \
        return weights == NULL ? NAME(sc_sum_two_bags_)(table, stride, columns, ids, limit, splits, \
                                                        bags, NULL, out)                           \
                               : NAME(sc_sum_two_bags_)(table, stride, columns, ids, limit, splits, \
                                                        bags, weights, out);                       \
    }
TWO_BAGS(1)
TWO_BAGS(2)
TWO_BAGS(3)
TWO_BAGS(4)
TWO_BAGS(8)
#undef TWO_BAGS

#endif
#undef SUM_BAGS_IN_PARTS

/* Write the (weighted) sums of rows ids[splits[b]:splits[b + 1]], in that order, to out (bags, dim), and return
   whether all ids are below `limit`: each is read once, and not used where it is not. The dims of most tables
   have bodies in which every count is known. Some ways of asking have bodies of their own, for bags after
   which all rows come that are to be asked for, `all_come`: to test for that, and for the way, at every id
   takes a fifth of the time of a short row; to choose among bodies, at every bag, as long as a third of 32 of
   them. */
static int NAME(sc_sum_)(GIVEN) {
#if SC_BODIES_FOR_WAYS
#define SUM_IN_ONE_WAY(columns, way, how)                                                          \
    if (all_come && ask == (how))                                                                  \
        SUM_SO(columns##_##way)
#define SUM_ASKING_FOR_NONE(columns)                                                               \
    if (ask == 0)                                                                                  \
        SUM_SO(columns##_none)
#define SUM_IN_MOST_WAYS(columns)                                                                  \
    SUM_IN_ONE_WAY(columns, none, 0)                                                               \
    SUM_IN_ONE_WAY(columns, half, SC_ASK_FAR | SC_ASK_NEAR | SC_ASK_HALF | ENDS(columns))          \
    SUM_IN_ONE_WAY(columns, near, SC_ASK_NEAR | ENDS(columns))                                     \
    if ((columns) * sizeof(ROW) <= SC_SHORT_ROW) {                                                 \
        SUM_IN_ONE_WAY(columns, twice, SC_ASK_FAR | SC_ASK_NEAR | ENDS(columns))                   \
        SUM_IN_ONE_WAY(columns, first, SC_ASK_FIRST | ENDS(columns))                               \
    }
#else
#define SUM_IN_ONE_WAY(columns, way, how)
#define SUM_ASKING_FOR_NONE(columns)
#define SUM_IN_MOST_WAYS(columns)
#endif
    switch (dim) {
    case 1:
        SUM_IN_MOST_WAYS(1)
        SUM_SO(1)
    case 2:
        SUM_IN_MOST_WAYS(2)
        SUM_SO(2)
    case 3:
        SUM_IN_MOST_WAYS(3)
        SUM_SO(3)
    case 4:
        SUM_ASKING_FOR_NONE(4)
        break;
    case 8:
        SUM_ASKING_FOR_NONE(8)
        break;
    case 16:
        SUM_IN_MOST_WAYS(16)
        SUM_SO(16)
    case 32:
        SUM_IN_MOST_WAYS(32)
        SUM_SO(32)
    case 64:
        SUM_IN_ONE_WAY(64, again, SC_ASK_FAR | SC_ASK_AGAIN)
        SUM_IN_MOST_WAYS(64)
        SUM_SO(64)
    case 128:
        SUM_IN_ONE_WAY(128, again, SC_ASK_FAR | SC_ASK_AGAIN)
        SUM_SO(128)
    case 256:
        SUM_IN_ONE_WAY(256, again, SC_ASK_FAR | SC_ASK_AGAIN)
        SUM_IN_ONE_WAY(256, far, SC_ASK_FAR)
        SUM_SO(256)
    }
#if LOADS_VECTORS
    if (all_come && dim >= SC_FEW && dim < LONG)
        SUM_SO(in_few)
    if (all_come && dim >= LONG && dim <= SC_MOST_VECTORS * LONG)
        SUM_SO(in_vectors)
#if SC_PARTS_OF_VECTORS
#define SUM_MANY(count, way)                                                                       \
    if ((count) <= MOST_VECTORS && weights == NULL && dim <= (count) * LONG)                       \
        SUM_SO(whole_vectors_##count##_many_##way)
    if (SC_IN_PARTS(dim, sizeof(NUMBER)) && all_come && (ask & SC_ASK_PARTS)) {
        SUM_MANY(10, near)
        SUM_SO(in_parts_near)
    }
    if (SC_IN_PARTS(dim, sizeof(NUMBER)) && ask == 0) {
        SUM_MANY(10, none)
        SUM_MANY(12, none)
        SUM_MANY(14, none)
        SUM_MANY(16, none)
        SUM_SO(in_parts_none)
    }
#undef SUM_MANY
#endif
#endif
    SUM_SO(other)
#undef SUM_IN_ONE_WAY
#undef SUM_ASKING_FOR_NONE
#undef SUM_IN_MOST_WAYS
#undef ENDS
}
#undef SUM_SO
#undef BODY
#undef GIVEN
#undef NAME
#undef CLEAR
#undef PUT
#undef ADD
#undef ADD_TIMES
#undef ONE
#undef VECTOR_OF
#undef LONG
#undef INDICES
#undef INDEX

#endif
