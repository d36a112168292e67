"""Where rows live: layouts, and partitioners that choose the number of shards."""

from __future__ import annotations

from shardcore.sharding.layout import Layout, Partition
from shardcore.sharding.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)

__all__ = [
    "Layout",
    "Partition",
    "Partitioner",
    "FixedShardsPartitioner",
    "MinSizePartitioner",
    "MaxSizePartitioner",
    "fixed_size_partitioner",
    "min_max_variable_partitioner",
    "variable_axis_size_partitioner",
]
