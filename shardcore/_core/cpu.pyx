"""What this processor can do, asked at call time."""

cdef extern from *:
    """
    #include "scalars.h"
    /* The compiler's question takes a literal only, hence one line a feature. */
    #define SC_EACH_FEATURE(ask) \
        ask("avx2") ask("bmi") ask("bmi2") ask("fma") \
        ask("avx512f") ask("avx512bw") ask("avx512cd") ask("avx512dq") ask("avx512vl")
    #define SC_NAME(feature) feature,
    #define SC_ANSWER(feature) SC_CPU_HAS(feature),
    static const char *sc_feature_names[] = {SC_EACH_FEATURE(SC_NAME) 0};
    static int sc_amd_family(void) {
        unsigned int signature, other;
        sc_cpu_init();
        if (!SC_CPU_IS("amd") || !SC_CPU_ASK(1, signature, other))
            return 0;
        return (int)((signature >> 8 & 15) + (signature >> 20 & 255));
    }
    static void sc_feature_answers(int *answers) {
        sc_cpu_init();
        int now[] = {SC_EACH_FEATURE(SC_ANSWER) 0};
        memcpy(answers, now, sizeof now);
    }
    """
    const char* sc_feature_names[]
    void sc_feature_answers(int* answers) nogil
    int sc_amd_family() nogil


def features():
    """Return ``{name: bool}``: the x86 features that the compiled bodies need, all False elsewhere."""
    cdef int[16] answers
    cdef Py_ssize_t i = 0
    sc_feature_answers(answers)
    found = {}
    while sc_feature_names[i] != NULL:
        found[sc_feature_names[i].decode("ascii")] = bool(answers[i])
        i += 1
    return found


def amd_family():
    """Return the family of an x86 processor of AMD's: 23 and 25 up to Zen 4, 26 Zen 5; 0 of others.

    The base family and the extended one of CPUID's leaf 1, added up.
    """
    return sc_amd_family()
