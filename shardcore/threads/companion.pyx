"""One more thread for pieces of work of microseconds, and for halves of larger ones.

To hand work to `run_tasks` takes as long as 64 bags, and its threads wait for the interpreter, which
the caller has. Kernels that compute without it offer one of two parts to a companion instead: a thread
without the interpreter, which looks for offers while there is work and a tenth of a millisecond more,
and then sleeps. A caller whose offer it has not taken does both parts.
"""

import os

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t

__all__ = ["LITTLE", "MUCH", "allow", "dismiss", "ended", "parts_done"]

cdef extern from "companion.h" nogil:
    bint share_little "sc_share_little"(void (*part)(void* work, int part), void* work)
    bint share_much "sc_share_much"(void (*part)(void* work, int part), void* work)
    void work_ended "sc_work_ended"()
    void dismiss_companion "sc_dismiss_companion"()
    void allow_companion "sc_allow_companion"(int threads)
    int64_t parts_of_companion "sc_parts_done"()
    bint forget_companion "sc_forget_companion"()
    const char* SHARING_NAME "SC_SHARING"

LITTLE = PyCapsule_New(<void*>share_little, SHARING_NAME, NULL)
"""What kernels call with parts of microseconds, see ``_core/share.h``: the companion does one if it looks
for work. It is called after work that came soon after other such work, several times in a row."""

MUCH = PyCapsule_New(<void*>share_much, SHARING_NAME, NULL)
"""The same for work that takes longer than to wake a thread: the companion is woken, if it sleeps. Where
more threads may be used, or such work comes seldom, nothing is done: the pool is to do it."""


def allow(int threads):
    """Let kernels use so many threads, the caller's included: of more than one, the companion."""
    allow_companion(threads)


def ended():
    """Take note that work has ended that came too seldom for the companion."""
    work_ended()


def dismiss():
    """Let the companion look for work no longer, until it is called: other threads need its core."""
    dismiss_companion()


def parts_done():
    """Return how many parts of work a companion has done in this process."""
    return parts_of_companion()


if not forget_companion():
    raise MemoryError("no room for a lock")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_companion)
