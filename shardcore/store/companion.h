/* A thread that does one of two parts of a small piece of work, without the interpreter and without a
   system call: it looks for work for a while after the last, and then sleeps. There is one in a process,
   for all who share; whoever finds it at other work, or asleep, does both parts. Without the atomic
   operations of GCC and Clang there is none. */
#ifndef SHARDCORE_COMPANION_H
#define SHARDCORE_COMPANION_H

#include <Python.h>
#include <stdint.h>

#include "cores.h"
#include "share.h"

#if defined(__GNUC__) || defined(__clang__)

#include <sched.h>
#include <time.h>

#define SC_LOOKS 100000     /* nanoseconds for which it looks: what it would take to wake it, or twice that */
#define SC_CLOSE 4          /* pieces of work so close together before it is woken: it costs some µs */
#define SC_PATIENCE 4000    /* looks at the other part before the processor is given away between them */

#if defined(__x86_64__) || defined(__i386__)
#define SC_REST() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define SC_REST() __asm__ __volatile__("yield")
#else
#define SC_REST() ((void)0)
#endif

enum { SC_NONE, SC_ASLEEP, SC_CALLED, SC_LOOKING };

/* A part that is offered, on the stack of the caller until it has ended or is taken back. */
typedef struct {
    sc_part part;
    void *work;
    int ended;
} sc_offer;

static struct {
    _Alignas(128) sc_offer *offered;
    int64_t done;               /* parts that the companion did */
    _Alignas(128) int allowed;  /* from here on what is seldom written: in other cache lines */
    int state;
    int close;                  /* how often work came soon after other work, and was not shared */
    int64_t last;               /* when such work ended */
    PyThread_type_lock bed;     /* held but while the companion is woken */
    long thread;
    int core;                   /* where it fell asleep */
    int kept_off;               /* whether it was kept off the caller's core since: see `work.pyx` */
    sc_cores before;
} sc_companion;

#define SC_LOAD(from) __atomic_load_n(&(from), __ATOMIC_ACQUIRE)
#define SC_STORE(to, value) __atomic_store_n(&(to), (value), __ATOMIC_RELEASE)
/* Whether what was there was as expected, and is changed now. */
#define SC_CHANGE(what, expected, value)                                                     \
    __extension__({                                                                          \
        __typeof__(what) found = (expected);                                                 \
        __atomic_compare_exchange_n(&(what), &found, (value), 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED); \
    })

static inline int64_t sc_nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Do what is offered until nothing was for a while. */
static void sc_look_for_work(void) {
    int64_t end = sc_nanoseconds() + SC_LOOKS;
    int looks = 0;
    for (;;) {
        sc_offer *offer = SC_LOAD(sc_companion.offered);
        if (offer != NULL && SC_CHANGE(sc_companion.offered, offer, NULL)) {
            __atomic_fetch_add(&sc_companion.done, 1, __ATOMIC_RELAXED);
            offer->part(offer->work, 1);
            SC_STORE(offer->ended, 1);
            looks = -1;
        } else {
            SC_REST();
        }
        if (++looks % 32 == 0) {
            int64_t now = sc_nanoseconds();
            if (looks == 0)
                end = now + SC_LOOKS;
            else if (now > end)
                return;
        }
    }
}

static void sc_accompany(void *bed) {
    sc_companion.thread = sc_own_thread();
    for (;;) {
        SC_STORE(sc_companion.state, SC_LOOKING);
        sc_look_for_work();
        sc_companion.core = sc_own_core();
        SC_STORE(sc_companion.state, SC_ASLEEP);
        PyThread_acquire_lock((PyThread_type_lock)bed, WAIT_LOCK);
        if (sc_companion.kept_off)
            sc_allow(&sc_companion.before);
        sc_companion.kept_off = 0;
    }
}

/* Wake the companion, elsewhere than here, or start it. */
static void sc_call_companion(void) {
    if (SC_CHANGE(sc_companion.state, SC_ASLEEP, SC_CALLED)) {
        sc_cores taken;
        sc_no_cores(&taken);
        sc_add_core(&taken, sc_own_core());
        if (sc_add_core(&taken, sc_companion.core))
            sc_companion.kept_off = sc_keep_off(sc_companion.thread, &taken, &sc_companion.before);
        PyThread_release_lock(sc_companion.bed);
    } else if (SC_CHANGE(sc_companion.state, SC_NONE, SC_CALLED)) {
        if (PyThread_start_new_thread(sc_accompany, sc_companion.bed) == PYTHREAD_INVALID_THREAD_ID)
            SC_STORE(sc_companion.state, SC_NONE);
    }
}

/* Do both parts here, and count whether such work comes often enough for two. */
static void sc_do_alone(sc_part part, void *work) {
    int64_t begun = sc_nanoseconds();
    if (begun - __atomic_load_n(&sc_companion.last, __ATOMIC_RELAXED) > SC_LOOKS) {
        __atomic_store_n(&sc_companion.close, 0, __ATOMIC_RELAXED);
    } else if (__atomic_add_fetch(&sc_companion.close, 1, __ATOMIC_RELAXED) >= SC_CLOSE) {
        __atomic_store_n(&sc_companion.close, 0, __ATOMIC_RELAXED);
        sc_call_companion();
    }
    part(work, 0);
    part(work, 1);
    __atomic_store_n(&sc_companion.last, sc_nanoseconds(), __ATOMIC_RELAXED);
}

/* Call ``part(work, 0)`` and ``part(work, 1)``, at the same time where the companion looks for work. */
static void sc_share(sc_part part, void *work) {
    _Alignas(64) sc_offer offer = {part, work, 0};
    int looks = 0;
    if (!__atomic_load_n(&sc_companion.allowed, __ATOMIC_RELAXED)) {
        part(work, 0);
        part(work, 1);
        return;
    }
    if (SC_LOAD(sc_companion.state) != SC_LOOKING || !SC_CHANGE(sc_companion.offered, NULL, &offer)) {
        sc_do_alone(part, work);
        return;
    }
    part(work, 0);
    if (SC_CHANGE(sc_companion.offered, &offer, NULL)) {
        part(work, 1);      /* it has not come to it, and will not */
        return;
    }
    while (!SC_LOAD(offer.ended)) {
        SC_REST();
        if (++looks >= SC_PATIENCE) {
            sched_yield();
            looks = 0;
        }
    }
}

static inline void sc_allow_companion(int allowed) {
    __atomic_store_n(&sc_companion.allowed, allowed, __ATOMIC_RELAXED);
}

static inline int64_t sc_parts_done(void) {
    return __atomic_load_n(&sc_companion.done, __ATOMIC_RELAXED);
}

/* Be without a companion; return whether there is room to have one. In the child of a fork the companion
   is the parent's, and what it sleeps on may be in any state. */
static int sc_forget_companion(void) {
    sc_companion.offered = NULL;
    sc_companion.state = SC_NONE;
    sc_companion.close = sc_companion.kept_off = 0;
    sc_companion.last = sc_companion.done = 0;
    sc_companion.bed = PyThread_allocate_lock();
    if (sc_companion.bed == NULL) {
        sc_companion.allowed = 0;
        return 0;
    }
    PyThread_acquire_lock(sc_companion.bed, NOWAIT_LOCK);
    return 1;
}

#else

static void sc_share(sc_part part, void *work) {
    part(work, 0);
    part(work, 1);
}

static inline void sc_allow_companion(int allowed) { (void)allowed; }
static inline int64_t sc_parts_done(void) { return 0; }
static int sc_forget_companion(void) { return 1; }

#endif

#endif
