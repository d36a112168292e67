"""As many threads as torch uses, unless shardcore was told a number of its own.

Both have a pool. Where a program, or a worker of a DataLoader, gives torch one thread, the kernels
here must not take all cores.
"""

from __future__ import annotations

import os

import torch

from shardcore.threads.team import cores_of_process, get_num_threads, set_num_threads

__all__ = ["follow_torch"]

_told = "SHARDCORE_NUM_THREADS" in os.environ


_followed = cores_of_process()  # the last number that no user has set: first the default


def follow_torch() -> None:
    """Take over torch's number of threads, unless another was set since that was last done.

    Examples
    --------
    >>> before = get_num_threads()
    >>> follow_torch()
    >>> set_num_threads(before)
    """
    global _followed
    threads = torch.get_num_threads()
    if threads == _followed or _told or get_num_threads() != _followed:
        return
    set_num_threads(threads)
    _followed = threads
