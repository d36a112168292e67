"""Threads: the locks they share, the pool they are in, and how work is cut over them.

::

    lock        locks that no interrupt splits; what a fork waits for    (compiled)
    tally       numbers that several threads add to                      (compiled)
    work        the one pool of threads; changes that run to their end   (compiled)
    companion   one more thread, for work that comes often               (compiled)
    team        how many threads, and how work is cut over them

Kernels start no threads: their callers hand out the work. What backends need of this is named by
`shardcore.store`.
"""
