"""shardcore: sharded embedding tables for any framework, on any device.

The map, from what a caller touches down to the ground; a folder imports from those below it::

    ShardedEmbedding   engine/         features in, activations out, gradients back
    embedding_lookup…  lookup/         TensorFlow's lookups, serving, one prepared once
    Checkpoint         checkpoint/     saved on N hosts, restored on M
    TableConfig, …     features/       what a table and a feature are, and their input
    ShardedVariable    variable/       a NumPy array that lives in shards
    get_backend, …     plugins/        backends, optimizers and commands arrive through hooks
    Backend            backend/        the contract of backends, and the messages they get
                       store/          rows and slots on a CPU, one pool of threads
    Optimizer          optimizer/      the contract of optimizers, and their slots
    Layout, …          sharding/       which shard has which row
    initializers       initializers/   a row's first values, from (seed, row, column)
    Ragged, Sparse     ids/            bags of ids, the one input form
                       validation/     what is refused, and in which words
                       _core/          the kernels

Backends: ``shardcore_cpu`` (default), ``shardcore_sim``. Optimizers: ``shardcore_optimizers``. They
are found through the entry-point group ``shardcore``, as anybody's are. `shardcore.reference` holds
readable NumPy twins of the kernels.
"""

from __future__ import annotations

# The kernels first: in a clone that is not built they say so, before anything else is missed. The
# others are not used here, but as attributes: ``sc.optimizers``.
from shardcore import _core, checkpoint, initializers, optimizers, schedules  # noqa: F401 attributes
from shardcore.backend.base import Backend
from shardcore.backend.quantization import QuantizationConfig
from shardcore.checkpoint import (
    Checkpoint,
    MaxShardSizePolicy,
    ShardableTensor,
    ShardByTaskPolicy,
    ShardingCallback,
    SliceSpec,
    TensorSlice,
    validate_shards,
)
from shardcore.checkpoint.parallel_variable import ParallelVariable, independent_buffers
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.engine.handle import Lookup
from shardcore.errors import ShardcoreError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.ids.hashing import Hash, hash_ids
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse
from shardcore.lookup.lookup import (
    embedding_lookup,
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from shardcore.lookup.prepared import PreparedLookup, prepare_lookup
from shardcore.lookup.serving import serving_embedding_lookup
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.optimizer.slots import SlotSpec
from shardcore.plugins.hookspecs import BackendSpec, CommandSpec, OptimizerSpec, hookimpl
from shardcore.plugins.registry import BackendInfo, backends, get_backend
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
from shardcore.threads.team import get_num_threads, set_num_threads
from shardcore.variable.partitioned import create_partitioned_variables
from shardcore.variable.variable import ShardedVariable, create_variable

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendInfo",
    "BackendSpec",
    "Checkpoint",
    "CommandSpec",
    "FeatureConfig",
    "FixedShardsPartitioner",
    "Hash",
    "Layout",
    "Lookup",
    "MaxShardSizePolicy",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Optimizer",
    "OptimizerSpec",
    "ParallelVariable",
    "Partition",
    "Partitioner",
    "PreparedLookup",
    "QuantizationConfig",
    "Ragged",
    "ShardByTaskPolicy",
    "ShardableTensor",
    "ShardcoreError",
    "ShardedEmbedding",
    "ShardedVariable",
    "ShardingCallback",
    "SliceSpec",
    "SlotSpec",
    "Sparse",
    "TableConfig",
    "TensorSlice",
    "UpdateFunction",
    "backends",
    "checkpoint",
    "create_partitioned_variables",
    "create_variable",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "fixed_size_partitioner",
    "get_backend",
    "get_num_threads",
    "hash_ids",
    "hookimpl",
    "independent_buffers",
    "initializers",
    "min_max_variable_partitioner",
    "optimizers",
    "prepare_lookup",
    "safe_embedding_lookup_sparse",
    "serving_embedding_lookup",
    "schedules",
    "set_num_threads",
    "validate_shards",
    "variable_axis_size_partitioner",
]
