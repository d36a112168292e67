"""NumPy."""

from __future__ import annotations

import numpy as np

from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import PartitionTask, VariableTask

__all__ = ["Numpy"]


class Numpy(Peer):
    """NumPy, as it would be written by hand."""

    name = "NumPy"
    modules = ("numpy",)

    def set_num_threads(self, threads: int) -> None:
        """Change nothing: what is measured of NumPy runs on one thread."""

    def partition(self, task: PartitionTask) -> Contender:
        ids, shards = task.ids, task.sizes.size
        offsets = np.concatenate(([0], np.cumsum(task.sizes)))

        def run() -> Arrays:
            if task.strategy == "div":
                shard = np.searchsorted(offsets, ids, side="right") - 1
                local = ids - offsets[shard]
            else:
                local, shard = np.divmod(ids, shards)
            order = np.argsort(shard, kind="stable")
            inverse = np.empty_like(order)
            inverse[order] = np.arange(order.size)
            return local[order], np.bincount(shard, minlength=shards), inverse

        what = "searchsorted" if task.strategy == "div" else "divmod"
        return Contender(f"{what} + stable argsort", run, lambda found: found)

    def read_slice(self, task: VariableTask) -> Contender:
        """Copy the parts, which are known beforehand, into one array: the plain memory copy."""
        offsets = np.cumsum([0, *(len(shard) for shard in task.shards)])
        numbers = np.arange(offsets[-1])[task.rows]
        stride = task.rows.step or 1
        parts = []
        for shard, first, end in zip(task.shards, offsets, offsets[1:], strict=False):
            local = numbers[(numbers >= first) & (numbers < end)] - first
            if local.size:
                beyond = int(local[-1]) + (1 if stride > 0 else -1)
                parts.append(shard[local[0] : None if beyond < 0 else beyond : stride])
        if stride < 0:
            parts.reverse()
        return Contender("concatenate", lambda: np.concatenate(parts), lambda found: (found,))
