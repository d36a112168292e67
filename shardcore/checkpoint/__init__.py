"""Checkpoints: step directories of safetensors files under one checksummed manifest."""

from __future__ import annotations

from shardcore.checkpoint.checkpoint import Checkpoint
from shardcore.checkpoint.directory import latest, steps
from shardcore.checkpoint.inspection import inspect, verify
from shardcore.checkpoint.shard_validation import validate_shards
from shardcore.checkpoint.sharding import (
    ShardableTensor,
    ShardingCallback,
    SliceSpec,
    TensorSlice,
)
from shardcore.checkpoint.sharding_policies import MaxShardSizePolicy, ShardByTaskPolicy

__all__ = [
    "Checkpoint",
    "ShardingCallback",
    "ShardByTaskPolicy",
    "MaxShardSizePolicy",
    "ShardableTensor",
    "TensorSlice",
    "SliceSpec",
    "validate_shards",
    "steps",
    "latest",
    "inspect",
    "verify",
]
