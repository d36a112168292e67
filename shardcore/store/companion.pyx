"""One more thread for small pieces of work, which is there at once while such work comes often.

To hand work to `run_tasks` takes as long as 64 bags. Kernels of small calls offer one of two parts to
a companion instead: a thread without the interpreter, which looks for offers while there is work, for
a tenth of a millisecond more, and then sleeps. It is first called by work that comes soon after other
such work, several times in a row. A caller whose offer it has not taken does both parts.
"""

import os

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t

__all__ = ["SHARING", "allow", "parts_done"]

cdef extern from "companion.h" nogil:
    void share "sc_share"(void (*part)(void* work, int part), void* work)
    void allow_companion "sc_allow_companion"(int allowed)
    int64_t parts_of_companion "sc_parts_done"()
    bint forget_companion "sc_forget_companion"()
    const char* SHARING_NAME "SC_SHARING"

SHARING = PyCapsule_New(<void*>share, SHARING_NAME, NULL)
"""What kernels call with their parts: see ``_core/share.h``."""


def allow(bint allowed):
    """Allow kernels a companion, or let every caller work alone."""
    allow_companion(allowed)


def parts_done():
    """Return how many parts of work a companion has done in this process."""
    return parts_of_companion()


if not forget_companion():
    raise MemoryError("no room for a lock")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_companion)
