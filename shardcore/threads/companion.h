/* A thread that does one of two parts of some work, without the interpreter, and without a system call while
   it looks for work: as long as there is some, and a while after that. There is one in a process, for all
   callers; one that finds it at other work does both parts. Without the atomic operations of GCC and Clang
   there is none. */
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
#define SC_MISSES 32        /* offers in a row that were of no use, after which it is left alone, */
#define SC_ALONE 5000000    /* for so many nanoseconds, as other threads may spin for a moment; */
#define SC_LONGEST 320000000    /* each time twice as long as the time before, up to so many */
#define SC_PATIENCE 4000    /* looks at the other part before the processor is given away between them */

#if defined(__x86_64__) || defined(__i386__)
#define SC_REST() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define SC_REST() __asm__ __volatile__("yield")
#else
#define SC_REST() ((void)0)
#endif

enum { SC_NONE, SC_ASLEEP, SC_CALLED, SC_LOOKING };   /* from "called" on it comes, or is there */

/* A part that is offered, on the stack of the caller until it has ended or is taken back. */
typedef struct {
    sc_part part;
    void *work;
    int core;       /* of the caller, -1: not known */
    int ended;
} sc_offer;

static struct {
    _Alignas(128) sc_offer *offered;
    int64_t done;               /* parts that the companion did */
    int dismissed;              /* whether it is to look no longer */
    _Alignas(128) int threads;  /* that may be used; from here on what is seldom written: in other cache lines */
    int state;
    int close;                  /* how often work came soon after other work, and was not shared */
    int missed;                 /* how many offers in a row were of no use */
    int64_t last;               /* when work ended */
    int64_t alone;              /* until when it is left alone */
    int64_t alone_for;          /* how long it is the next time */
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

/* Let the companion look for work no longer, until it is called: others need the core. */
static inline void sc_dismiss_companion(void) {
    if (SC_LOAD(sc_companion.state) == SC_LOOKING)
        SC_STORE(sc_companion.dismissed, 1);
}

/* An offer was taken back, or taken on the caller's core. If that is so time after time, there is no core
   for a companion, whatever the number of threads that are allowed, and it would only cost time. */
static void sc_miss_companion(void) {
    if (__atomic_add_fetch(&sc_companion.missed, 1, __ATOMIC_RELAXED) >= SC_MISSES) {
        const int64_t alone_for = SC_LOAD(sc_companion.alone_for);
        __atomic_store_n(&sc_companion.missed, 0, __ATOMIC_RELAXED);
        SC_STORE(sc_companion.alone, sc_nanoseconds() + alone_for);
        SC_STORE(sc_companion.alone_for, alone_for < SC_LONGEST ? 2 * alone_for : SC_LONGEST);
        sc_dismiss_companion();
    }
}

/* Do what is offered until nothing was for a while, or until it is dismissed. */
static void sc_look_for_work(void) {
    int64_t end = sc_nanoseconds() + SC_LOOKS;
    int looks = 0;
    for (;;) {
        sc_offer *offer = SC_LOAD(sc_companion.offered);
        if (offer != NULL && SC_CHANGE(sc_companion.offered, offer, NULL)) {
            __atomic_fetch_add(&sc_companion.done, 1, __ATOMIC_RELAXED);
            offer->part(offer->work, 1);
            if (offer->core >= 0 && offer->core == sc_own_core())
                sc_miss_companion();
            else if (SC_LOAD(sc_companion.missed) || SC_LOAD(sc_companion.alone_for) != SC_ALONE) {
                SC_STORE(sc_companion.missed, 0);
                SC_STORE(sc_companion.alone_for, SC_ALONE);
            }
            SC_STORE(offer->ended, 1);
            looks = -1;
        } else if (SC_LOAD(sc_companion.dismissed)) {
            return;
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
        SC_STORE(sc_companion.dismissed, 0);    /* it may have been as it fell asleep */
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

/* Wake the companion, elsewhere than here, or start it; nothing if it is awake. */
static void sc_call_companion(void) {
    if (sc_companion.bed == NULL)
        return;     /* there was no room for it after a fork */
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

static void sc_do_both(sc_part part, void *work) {
    part(work, 0);
    part(work, 1);
}

/* Do part 0, and part 1 if the companion has not taken it; return whether it was offered, as it is not
   while other work is. */
static int sc_offer_part(sc_part part, void *work, int call) {
    _Alignas(64) sc_offer offer = {part, work, sc_own_core(), 0};
    int looks = 0;
    if (!SC_CHANGE(sc_companion.offered, NULL, &offer))
        return 0;
    if (call)
        sc_call_companion();
    part(work, 0);
    if (SC_CHANGE(sc_companion.offered, &offer, NULL)) {
        sc_miss_companion();
        part(work, 1);      /* it has not come to it, and will not */
        return 1;
    }
    while (!SC_LOAD(offer.ended)) {
        SC_REST();
        if (++looks >= SC_PATIENCE) {
            sched_yield();
            looks = 0;
        }
    }
    return 1;
}

/* Whether work has ended so shortly before that more of it is likely, and the companion is not left alone. */
static int sc_work_comes_often(void) {
    const int64_t now = sc_nanoseconds();
    return now - SC_LOAD(sc_companion.last) <= SC_LOOKS && now >= SC_LOAD(sc_companion.alone);
}

/* Whether the companion is there or comes, or is worth to be called for work that comes often. */
static int sc_companion_is_of_use(void) {
    return SC_LOAD(sc_companion.state) >= SC_CALLED || sc_work_comes_often();
}

/* Work has ended: see `sc_work_comes_often`. */
static void sc_work_ended(void) { SC_STORE(sc_companion.last, sc_nanoseconds()); }

/* Call ``part(work, 0)`` and ``part(work, 1)``, work of microseconds: in two threads if the companion looks
   for work, or soon will. It is called where such work has come soon after other work, several times in a
   row: only then, as that takes longer than the work, and afterwards, as it might sleep again before the end. */
static int sc_share_little(sc_part part, void *work) {
    int often;
    if (part == NULL)
        return SC_LOAD(sc_companion.threads) > 1;
    if (SC_LOAD(sc_companion.threads) <= 1) {
        sc_do_both(part, work);
    } else if (SC_LOAD(sc_companion.state) >= SC_CALLED) {
        if (!sc_offer_part(part, work, 0))
            sc_do_both(part, work);
    } else {
        often = sc_work_comes_often();
        sc_do_both(part, work);
        if (!often) {
            if (SC_LOAD(sc_companion.close))    /* a line that others read */
                SC_STORE(sc_companion.close, 0);
        } else if (__atomic_add_fetch(&sc_companion.close, 1, __ATOMIC_RELAXED) >= SC_CLOSE) {
            SC_STORE(sc_companion.close, 0);
            sc_call_companion();
        }
        sc_work_ended();
    }
    return 1;
}

/* The same for work that takes longer than to call the companion, if it is of use and one other thread at most
   may be used; return whether that is so, else nothing was done. More threads, and a companion that would be
   called each time, are of more use with the pool's. */
static int sc_share_much(sc_part part, void *work) {
    const int threads = SC_LOAD(sc_companion.threads);
    if (part == NULL)
        return threads > 1;
    if (threads > 2 || (threads == 2 && !sc_companion_is_of_use()))
        return 0;
    if (threads <= 1 || !sc_offer_part(part, work, 1))
        sc_do_both(part, work);
    sc_work_ended();
    return 1;
}

static inline void sc_allow_companion(int threads) {
    __atomic_store_n(&sc_companion.threads, threads, __ATOMIC_RELAXED);
}

static inline int64_t sc_parts_done(void) {
    return __atomic_load_n(&sc_companion.done, __ATOMIC_RELAXED);
}

/* Be without a companion; return whether there is room to have one. In the child of a fork the companion
   is the parent's, and what it sleeps on may be in any state. */
static int sc_forget_companion(void) {
    sc_companion.offered = NULL;
    sc_companion.state = SC_NONE;
    sc_companion.close = sc_companion.missed = 0;
    sc_companion.kept_off = sc_companion.dismissed = 0;
    sc_companion.last = sc_companion.alone = sc_companion.done = 0;
    sc_companion.alone_for = SC_ALONE;
    sc_companion.bed = PyThread_allocate_lock();
    if (sc_companion.bed == NULL)
        return 0;
    PyThread_acquire_lock(sc_companion.bed, NOWAIT_LOCK);
    return 1;
}

#else

static int sc_share_little(sc_part part, void *work) {
    if (part == NULL)
        return 0;
    part(work, 0);
    part(work, 1);
    return 1;
}

static int sc_share_much(sc_part part, void *work) {
    (void)part;
    (void)work;
    return 0;
}
static inline int sc_companion_is_of_use(void) { return 0; }
static inline void sc_work_ended(void) {}
static inline void sc_dismiss_companion(void) {}
static inline void sc_allow_companion(int threads) { (void)threads; }
static inline int64_t sc_parts_done(void) { return 0; }
static int sc_forget_companion(void) { return 1; }

#endif

#endif
