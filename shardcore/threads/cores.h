/* The cores that threads run on, and a thread that is woken on none of some. On Linux; elsewhere nothing is
   known of cores, and no thread is moved. */
#ifndef SHARDCORE_CORES_H
#define SHARDCORE_CORES_H

#if defined(__linux__)

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    cpu_set_t set;
} sc_cores;

static inline void sc_no_cores(sc_cores *cores) { CPU_ZERO(&cores->set); }

/* Whether the core is one of them; it is now. */
static inline int sc_add_core(sc_cores *cores, int core) {
    int known;
    if (core < 0 || core >= CPU_SETSIZE)
        return 0;
    known = CPU_ISSET(core, &cores->set) != 0;
    CPU_SET(core, &cores->set);
    return known;
}

static inline int sc_own_core(void) { return sched_getcpu(); }
static inline long sc_own_thread(void) { return syscall(SYS_gettid); }

/* Keep a thread that sleeps off some cores, and write which it was allowed; return whether that was done:
   not where these are all that it may use, nor where the system does not let it. */
static inline int sc_keep_off(long thread, const sc_cores *cores, sc_cores *before) {
    cpu_set_t left;
    if (sched_getaffinity((pid_t)thread, sizeof left, &before->set) != 0)
        return 0;
    CPU_AND(&left, &before->set, &cores->set);
    CPU_XOR(&left, &left, &before->set);
    if (CPU_COUNT(&left) == 0)
        return 0;
    return sched_setaffinity((pid_t)thread, sizeof left, &left) == 0;
}

/* Allow the calling thread the cores that it was allowed before. */
static inline void sc_allow(const sc_cores *before) {
    (void)!sched_setaffinity(0, sizeof before->set, &before->set);
}

#else

typedef struct {
    int none;
} sc_cores;

static inline void sc_no_cores(sc_cores *cores) { cores->none = 0; }
static inline int sc_add_core(sc_cores *cores, int core) {
    (void)cores;
    (void)core;
    return 0;
}
static inline int sc_own_core(void) { return -1; }
static inline long sc_own_thread(void) { return 0; }
static inline int sc_keep_off(long thread, const sc_cores *cores, sc_cores *before) {
    (void)thread;
    (void)cores;
    (void)before;
    return 0;
}
static inline void sc_allow(const sc_cores *before) { (void)before; }

#endif

#endif
