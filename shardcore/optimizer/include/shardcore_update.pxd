"""The C boundary of shardcore's optimizers for Cython: see shardcore_update.h, beside this file."""

from libc.stdint cimport int64_t

cdef extern from "shardcore_update.h" nogil:
    const int SHARDCORE_UPDATE_VERSION
    const char* SHARDCORE_UPDATE_FLOAT32
    const char* SHARDCORE_UPDATE_FLOAT64

    ctypedef void (*shardcore_update_float32)(
        int64_t count, int64_t dim, float *const *rows, float *const *const *slots,
        const float *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
        void *context,
    ) noexcept

    ctypedef void (*shardcore_update_float64)(
        int64_t count, int64_t dim, double *const *rows, double *const *const *slots,
        const double *gradients, const int64_t *row_ids, const double *hyper, int64_t step,
        void *context,
    ) noexcept
