"""Regression suites, and scripts for devices and frameworks.

::

    conftest    fixtures: small sizes for a test run, the real workload for a measurement
    bench_*     pytest-benchmark; with --benchmark-disable, the default, each is an ordinary test

    torch_dlrm                                a whole DLRM through shardcore.torch and torch alone
    jax_step, jax_tables, jax_processes       devices, through JAX; jax_turns times them
    accelerator, ahead_of_time                those that may not be there

The workloads are those of ``shardcore bench``, in `shardcore_bench`, which compares with other
libraries. Every bench asserts its result. Nothing passes or fails on a time.
"""

import shardcore  # noqa: F401 - first: in a clone, what it finds of backends is then the clone's
