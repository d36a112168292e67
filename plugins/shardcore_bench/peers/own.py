"""Ourselves: the plain float32 sum that other lookups must keep up with, and the single array."""

from __future__ import annotations

from functools import partial

import numpy as np

import shardcore as sc
from shardcore_bench.contender import Contender
from shardcore_bench.ours import engine_of, lookup_of
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import LookupTask, ShardsTask
from shardcore_bench.workload import bags_combined

__all__ = ["Own"]


class Own(Peer):
    """Ourselves, at the plainest of what a case does."""

    name = "shardcore"
    modules = ("shardcore",)

    def version(self) -> str:
        return f"{self.name} {sc.__version__}"

    def set_num_threads(self, threads: int) -> None:
        sc.set_num_threads(threads)

    def lookup(self, task: LookupTask) -> Contender:
        """Time the plain sum of float32 rows; what it gives is not asked, the oracle's answer is.

        Where weights, another combiner or shorter rows are the case, the sum is another thing.
        """
        engine = engine_of(np.asarray(task.rows, np.float32), "sum")
        plain = lookup_of(engine, LookupTask(task.rows, task.ids, task.row_splits))
        return Contender(
            "own float32 sum",
            plain.run,
            lambda found: (
                bags_combined(task.rows, task.ids, task.row_splits, task.weights, task.combiner),
            ),
        )

    def lookup_in_shards(self, task: ShardsTask) -> Contender:
        whole = np.concatenate(task.shards)
        run = partial(
            sc.embedding_lookup_sparse, whole, (task.ids, task.row_splits), combiner="sum"
        )
        return Contender("embedding_lookup_sparse, one array", run, lambda found: (found,))
