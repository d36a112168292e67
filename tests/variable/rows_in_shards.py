"""The rows that tests of a variable share, cut into shards by every kind of layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardcore.sharding.layout import Layout
from shardcore.variable.variable import ShardedVariable

ROWS = np.arange(1, 17).reshape(8, 2)
LAYOUTS = [Layout.from_sizes([3, 3, 2]), Layout.mod(8, 3), Layout.from_sizes([0, 1, 7, 0])]


def sharded(whole: Any, layout: Layout | list[int]) -> ShardedVariable:
    if isinstance(layout, list):
        layout = Layout.from_sizes(layout)
    whole = np.asarray(whole)
    arrays = [whole[layout.global_rows(shard)].copy() for shard in range(layout.num_shards)]
    return ShardedVariable(arrays, layout=layout)
