/* What is used of TensorFlow's interface in C, which stays as it is from version to version: its types are
   opaque, and its functions are looked up when TensorFlow is there, so that nothing of it is needed where
   shardcore is compiled. Its own descriptions are in tensorflow/c/kernels.h, ops.h, tf_tensor.h and tf_status.h. */
#ifndef SHARDCORE_OPERATION_H
#define SHARDCORE_OPERATION_H

#include <Python.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>

typedef void *(*sc_create)(void *construction);
typedef void (*sc_compute)(void *kernel, void *context);
typedef void (*sc_delete)(void *kernel);
typedef void (*sc_infer)(void *context, void *status);
typedef void (*sc_deallocate)(void *data, size_t length, void *kept);

#define SC_OF_TENSORFLOW(X) \
    X(void *, TF_NewStatus, (void)) \
    X(void, TF_DeleteStatus, (void *)) \
    X(void, TF_SetStatus, (void *, int, const char *)) \
    X(int, TF_GetCode, (const void *)) \
    X(const char *, TF_Message, (const void *)) \
    X(void *, TF_NewOpDefinitionBuilder, (const char *)) \
    X(void, TF_OpDefinitionBuilderAddAttr, (void *, const char *)) \
    X(void, TF_OpDefinitionBuilderAddInput, (void *, const char *)) \
    X(void, TF_OpDefinitionBuilderAddOutput, (void *, const char *)) \
    X(void, TF_OpDefinitionBuilderSetIsStateful, (void *, _Bool)) \
    X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (void *, sc_infer)) \
    X(void, TF_ShapeInferenceContextSetUnknownShape, (void *, void *)) \
    X(void, TF_RegisterOpDefinition, (void *, void *)) \
    X(void *, TF_NewKernelBuilder, (const char *, const char *, sc_create, sc_compute, sc_delete)) \
    X(void, TF_RegisterKernelBuilder, (const char *, void *, void *)) \
    X(void, TF_OpKernelConstruction_GetAttrInt64, (void *, const char *, int64_t *, void *)) \
    X(void, TF_OpKernelConstruction_Failure, (void *, void *)) \
    X(void, TF_OpKernelContext_Failure, (void *, void *)) \
    X(void, TF_GetInput, (void *, int, void **, void *)) \
    X(void, TF_SetOutput, (void *, int, const void *, void *)) \
    X(void *, TF_NewTensor, (int, const int64_t *, int, void *, size_t, sc_deallocate, void *)) \
    X(void, TF_DeleteTensor, (void *)) \
    X(int, TF_NumDims, (const void *)) \
    X(int64_t, TF_Dim, (const void *, int)) \
    X(void *, TF_TensorData, (const void *))

#define SC_POINTER(result, name, arguments) static result (*name) arguments;
SC_OF_TENSORFLOW(SC_POINTER)
#undef SC_POINTER

/* Look everything up in a library that is loaded. Return what is missing: a function's name, the library's path
   if that cannot be opened, NULL if nothing is. */
static const char *sc_find(const char *path)
{
    void *library = dlopen(path, RTLD_LAZY);
    if (library == NULL)
        return path;
#define SC_FIND(result, name, arguments) \
    *(void **)&name = dlsym(library, #name); \
    if (name == NULL) \
        return #name;
    SC_OF_TENSORFLOW(SC_FIND)
#undef SC_FIND
    return NULL;
}

/* --- arrays in tensors ----------------------------------------------------------------------------------------

   A tensor of a result has the memory of an array, and may be freed in any thread, while it holds a lock of
   TensorFlow's that a thread with the interpreter waits for: so it must not wait for the interpreter, and what
   it leaves is released by the next call of the operation. */

typedef struct sc_kept {
    PyObject *array;
    struct sc_kept *next;
} sc_kept;

static _Atomic(sc_kept *) sc_left = NULL;

static void sc_leave(void *data, size_t length, void *kept)
{
    sc_kept *one = kept;
    (void)data;
    (void)length;
    one->next = atomic_load(&sc_left);
    while (!atomic_compare_exchange_weak(&sc_left, &one->next, one))
        ;
}

/* Return a holder of an array, for `sc_leave`; NULL if there is no memory. */
static sc_kept *sc_keep(PyObject *array)
{
    sc_kept *one = PyMem_RawMalloc(sizeof *one);
    if (one != NULL) {
        Py_INCREF(array);
        one->array = array;
    }
    return one;
}

/* Release the arrays whose tensors are gone, with the interpreter. */
static void sc_release(void)
{
    sc_kept *next, *one = atomic_exchange(&sc_left, NULL);
    for (; one != NULL; one = next) {
        next = one->next;
        Py_DECREF(one->array);
        PyMem_RawFree(one);
    }
}

/* --- threads --------------------------------------------------------------------------------------------------

   TensorFlow calls in threads of its own. A thread that Python does not know yet gets a state for each call, whose
   memory is mapped and unmapped each time, 45 µs on a Zen 4: it keeps its first. */
static void sc_stay_known(void)
{
    if (PyGILState_GetThisThreadState() == NULL) {
        PyGILState_Ensure();
        PyEval_SaveThread();
    }
}

#endif
