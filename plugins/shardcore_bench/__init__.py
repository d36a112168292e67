"""The command ``shardcore bench``: how fast this is here, beside other libraries and the memory.

::

    command     the command line
    compare     processes that measure, one per group of cases, and the tables they fill
    cases/      what is compared, by subject, each with its goal
    workload    sizes, ids and tables, all from fixed seeds; text_ids: ids of real skew
    tasks       what a case asks of a library; ours and peers/: how each library does it
    contender   one way to do a task, and the proof that two do the same
    goals       the ratios that are aimed at
    timing      blocks that take turns
    measure     the process that measures a group
    report      what is printed of it; curves, picture: what is drawn

Every result is compared before it is timed; nothing passes or fails on a time. Peers take part
where they are installed. The suites in ``bench/`` measure the same workloads.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardcore.plugins import CommandSpec, hookimpl

__all__ = ["shardcore_commands"]


@hookimpl
def shardcore_commands() -> Iterator[CommandSpec]:
    """Provide the command ``shardcore bench``."""
    yield CommandSpec(
        "bench",
        "compare the speed with PyTorch, FBGEMM, TensorFlow and NumPy, where they are installed",
        "shardcore_bench.command",
    )
