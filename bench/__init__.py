"""Speed, measured two ways.

::

    workload    sizes, ids and tables, all from fixed seeds; text_ids: ids of real skew
    conftest    fixtures: small sizes for a test run, the real workload for a measurement
    bench_*     pytest-benchmark; with --benchmark-disable, the default, each is an ordinary test

    compare     ours against theirs, as ratios beside their goals: python -m bench.compare
    cases/      what is compared, by subject, each with its goal
    tasks       what a case asks of a library; ours and peers/: how each library does it
    contender   one way to do a task, and the proof that two do the same
    timing      blocks that take turns
    measure     the process that measures a group; report: what is printed of it

    accelerator, jax_step, ahead_of_time    devices

Every bench asserts its result. Nothing passes or fails on a time.
"""

import shardcore  # noqa: F401 - first: in a clone, what it finds of backends is then the clone's
