"""Tables in the embedding units of TPU chips: the strategy "sparsecore" of the backend.

::

    stack_geometry   which core holds which row, of one table or several stacked
    stacked_tables   which tables lie in one stack
    limits           what a core can take in one minibatch, and the few sizes it is told
    buffers          a batch as the cores take it
    updates          the optimizers the cores have, and their numbers
    primitives       the calls of jax-tpu-embedding that the programs are made of
    programs         the compiled programs: look up, update, read and write
    stack            rows and slots on the devices
    backend          the backend

What the cores are given
------------------------
Each device has two or four SparseCores. Of n cores in all, a power of two, numbered device by
device, core ``r % n`` holds row r of a stack, as its row ``r // n``. `stack_geometry` says which
row of a table that is. A device's array of rows is (cores x rows of a core,
columns), float32, core under core; so is that of every slot. Rows of a core are a multiple of 8 in
number, columns too. The compiler keeps such an array without padding only if its layout is pinned,
as tiles of 8 along a row; with its own choice it copies narrow tables, padded, at every call.

A batch is a list of (row, bag, gain). A core works for its part of the bags of its device, which is
consecutive and as large for all cores. The triples of a core are cut by the core that holds the
row: these are *partitions*, n for each core. In a partition triples are sorted by row, then by bag,
and no pair of row and bag comes twice: gains of a pair are added. Five arrays say so:

``row_pointers`` int32
    Of each partition the end of its triples. It begins where the one before it ends, rounded up to
    8. With n < 8 there are 8 ends for each core, the last ones of nothing.
``embedding_ids``, ``sample_ids`` int32, ``gains`` float32
    The row in the core that holds it, the bag in the core that works for it, the factor. What fills
    up a partition to a multiple of 8 is 2**31 - 1, 2**31 - 1 and NaN.
``num_minibatches`` int32
    A core takes all its partitions of a minibatch at once, so memory in it bounds them:
    `max_ids_per_partition` triples, `max_unique_ids_per_partition` distinct rows. A partition that
    has more is cut over up to 64 minibatches, by row, so that a row is updated once. In the arrays
    minibatches are inside cores, and partitions inside minibatches.

The call for a lookup is ``SparseDenseMatmulWithMinibatchingOp``. It returns (bags of a device,
columns): sums of gain times row. That of an update, to which the gradients of these bags go, is
``SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp``. It sums gain times gradient per row, and
calls a function of one row: (gradient, row, slots, numbers) -> (row, slots).

A batch that exceeds the two numbers it was compiled with ends the process, and no exception tells
of it. They are therefore computed from the batch itself, before each call.
"""
