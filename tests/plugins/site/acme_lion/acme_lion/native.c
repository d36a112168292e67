#include <Python.h>

#include "shardcore_update.h"

#define SIGN(x) ((x) > 0 ? 1 : (x) < 0 ? -1 : (x)) /* of NaN: NaN */

#define LION(NAME, V)                                                                            \
    static void NAME(SHARDCORE_UPDATE_PARAMETERS(V)) {                                           \
        const V rate = (V)hyper[0], decay = (V)hyper[3];                                         \
        const V beta_1 = (V)hyper[1], share_1 = (V)(1 - hyper[1]);                               \
        const V beta_2 = (V)hyper[2], share_2 = (V)(1 - hyper[2]);                               \
        for (int64_t row = 0; row < count; row++) {                                              \
            V *w = rows[row], *m = slots[0][row];                                                \
            const V *g = gradients + row * dim;                                                  \
            for (int64_t c = 0; c < dim; c++) {                                                  \
                const V mixed = beta_1 * m[c] + share_1 * g[c];                                  \
                w[c] = w[c] - rate * ((V)SIGN(mixed) + decay * w[c]);                            \
                m[c] = beta_2 * m[c] + share_2 * g[c];                                           \
            }                                                                                    \
        }                                                                                        \
    }

LION(update_float32, float)
LION(update_float64, double)

/* Of the header's types, so that the compiler checks the functions. */
static const shardcore_update_float32 of_float32 = update_float32;
static const shardcore_update_float64 of_float64 = update_float64;

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "native", .m_size = -1};

PyMODINIT_FUNC PyInit_native(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *first = PyCapsule_New((void *)of_float32, SHARDCORE_UPDATE_FLOAT32, NULL);
    PyObject *second = PyCapsule_New((void *)of_float64, SHARDCORE_UPDATE_FLOAT64, NULL);
    if (!module || PyModule_AddObjectRef(module, "float32", first) < 0 ||
        PyModule_AddObjectRef(module, "float64", second) < 0)
        Py_CLEAR(module);
    Py_XDECREF(first);
    Py_XDECREF(second);
    return module;
}
