"""The scalar types of the kernels."""

from libc.stdint cimport int32_t, int64_t

ctypedef float float32_t
ctypedef double float64_t

cdef enum Kind:                 # of the elements of rows; `constants` names them for Python
    FLOAT32, FLOAT64, HALF, BFLOAT, INT32, INT64

cdef enum Asking:               # how rows are asked for ahead; `constants` names them for Python
    BY_PAIRS                    # into the second cache, where a line brings the other half of its pair
    BY_LINES                    # into the second cache, which gets the lines that it is asked for
    INTO_FIRST                  # into the first cache, which takes rows asked for far ahead

ctypedef fused index_t:         # ids, row_splits
    int32_t
    int64_t

ctypedef fused value_t:         # what is computed with: activations, gradients, weights
    float32_t
    float64_t
