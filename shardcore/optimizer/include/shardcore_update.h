/* The C boundary of shardcore's optimizers: what `Optimizer.compiled` hands over.

   Version 1. A function is called for blocks of rows, from several threads at once, without Python's
   lock; the rows of two calls never overlap. It must not raise, touch Python objects, call back, or
   touch memory outside of what it is given. It gives the numbers of `Optimizer.update`: to the last
   bit with the same order of operations and a compiler that does not contract them to fused
   multiply-add (-ffp-contract=off).

   One that is called row by row (see `UpdateFunction`) gets the caller's own gradient of a row that
   has but one: its zeros have any sign, where those of a sum are positive.

   Compile against the header of the shardcore that will run it: `shardcore.optimizer.get_include()`
   is its folder. C99 and C++11. */
#ifndef SHARDCORE_UPDATE_H
#define SHARDCORE_UPDATE_H

#ifdef __cplusplus
#include <cstdint>
#else
#include <stdint.h>
#endif

#define SHARDCORE_UPDATE_VERSION 1

/* What a PyCapsule that carries such a function is named; its context, if it has one, is handed to
   the function. */
#define SHARDCORE_UPDATE_FLOAT32 "shardcore.update_rows.v1.float32"
#define SHARDCORE_UPDATE_FLOAT64 "shardcore.update_rows.v1.float64"

/* The parameters of a function whose working type is V: `float` for tables of float32, float16 and
   bfloat16, `double` for tables of float64. Also to declare one: `static void update(
   SHARDCORE_UPDATE_PARAMETERS(float)) { ... }`. */
#define SHARDCORE_UPDATE_PARAMETERS(V)                                                             \
    int64_t count,          /* rows of this block, may be 0 */                                     \
    int64_t dim,            /* columns of a row */                                                 \
    V *const *rows,         /* rows[i]: the dim values of row i, updated in place */               \
    V *const *const *slots, /* slots[k][i]: slot k of row i, dim values or 1, updated in place; */ \
                            /* k in the order of Optimizer.slots */                                \
    const V *gradients,     /* count x dim, C-contiguous: the summed gradients */                  \
    const int64_t *row_ids, /* row_ids[i]: the row's number in the whole table */                  \
    const double *hyper,    /* in the order of Optimizer.hyper_names */                            \
    int64_t step,           /* 1 for the first batch */                                            \
    void *context           /* the capsule's context, or UpdateFunction.context; may be NULL */

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*shardcore_update_float32)(SHARDCORE_UPDATE_PARAMETERS(float));
typedef void (*shardcore_update_float64)(SHARDCORE_UPDATE_PARAMETERS(double));

#ifdef __cplusplus
}
#endif

#endif
