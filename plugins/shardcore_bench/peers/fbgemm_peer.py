"""FBGEMM on a CPU: one table-batched embedding (TBE) with all tables of a task.

``EXACT_SGD``, ``EXACT_ADAGRAD`` and ``EXACT_ROWWISE_ADAGRAD`` with epsilon 0, from the same
accumulators, do what our SGD, Adagrad and RowwiseAdagrad do.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.peers.torch_peer import as_array, as_tensor
from shardcore_bench.tasks import Bags, LookupTask, PartitionTask, StepTask

__all__ = ["Fbgemm"]

_KINDS: Final = {
    "SGD": "EXACT_SGD",
    "Adagrad": "EXACT_ADAGRAD",
    "RowwiseAdagrad": "EXACT_ROWWISE_ADAGRAD",
}
_PRECISIONS: Final = {"float32": "FP32", "float16": "FP16"}


class Fbgemm(Peer):
    """FBGEMM: one table-batched embedding (TBE) with all tables of a task."""

    name = "FBGEMM"
    modules = ("torch", "fbgemm_gpu")

    def set_num_threads(self, threads: int) -> None:
        importlib.import_module("torch").set_num_threads(threads)

    def lookup(self, task: LookupTask) -> Contender:
        torch = importlib.import_module("torch")
        if task.combiner == "sqrtn" or (task.weights is not None and task.combiner != "sum"):
            raise self.unable("no sqrtn, and no division by the sum of weights")
        module = self._module([task.rows], task.combiner.upper())
        ids, offsets = as_tensor(task.ids), as_tensor(task.row_splits)
        weights = None if task.weights is None else as_tensor(task.weights)

        def run() -> Any:
            with torch.no_grad():
                return module(ids, offsets, weights)

        return Contender("TBE", run, lambda found: (found.numpy(),))

    def step(self, task: StepTask) -> Contender:
        kind = _KINDS.get(task.update.name)
        if kind is None:
            raise self.unable(f"no {task.update.name} on a CPU")
        configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
        module = self._module(
            task.tables,
            "NONE" if task.sequence else "SUM",
            feature_table_map=[bags.table for bags in task.features],
            optimizer=getattr(configs.EmbOptimType, kind),
            learning_rate=task.update.learning_rate,
            eps=0.0,
            stochastic_rounding=task.update.stochastic,
        )
        for states in module.split_optimizer_states():
            for state in states:
                state.fill_(task.update.accumulator)
        ids = as_tensor(np.concatenate([bags.ids for bags in task.features]))
        offsets = as_tensor(_joined_splits(task.features))
        gradients = [bags.gradient for bags in task.features]
        gradient = as_tensor(np.concatenate(gradients, axis=0 if task.sequence else 1))
        probes = [as_tensor(probe) for probe in task.probes]
        if task.sequence:
            cuts = np.cumsum([len(one) for one in gradients])[:-1]
        else:
            cuts = np.cumsum([one.shape[1] for one in gradients])[:-1]

        def run() -> Any:
            activations = module(ids, offsets)
            activations.backward(gradient)  # the update is part of it
            return activations

        def arrays(found: Any) -> Arrays:
            tables = module.split_embedding_weights()
            trained = (as_array(rows[at]) for rows, at in zip(tables, probes, strict=True))
            return *np.split(as_array(found), cuts, axis=0 if task.sequence else 1), *trained

        return Contender(f"TBE, {kind}", run, arrays)

    def partition(self, task: PartitionTask) -> Contender:
        torch = importlib.import_module("torch")
        importlib.import_module("fbgemm_gpu")
        if task.strategy != "div" or np.unique(task.sizes).size > 1:
            raise self.unable("blocks are all of one size, and there is no round robin")
        bucketize = torch.ops.fbgemm.block_bucketize_sparse_features
        ids = as_tensor(task.ids)
        lengths = torch.tensor([task.ids.size], dtype=ids.dtype)
        block = torch.tensor([task.sizes[0]], dtype=ids.dtype)
        shards = task.sizes.size

        def run() -> Any:
            return bucketize(lengths, ids, False, True, block, shards)

        def arrays(found: Any) -> Arrays:
            counts, local, _, _, inverse = found
            return local.numpy(), counts.numpy(), inverse.numpy()

        return Contender("block_bucketize_sparse_features", run, arrays)

    def _module(self, tables: Sequence[NDArray[Any]], pooling: str, **options: Any) -> Any:
        torch = importlib.import_module("torch")
        training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        configs = importlib.import_module("fbgemm_gpu.split_embedding_configs")
        precision = _PRECISIONS.get(tables[0].dtype.name)
        if precision is None:
            raise self.unable(f"no table of {tables[0].dtype.name} on a CPU")
        place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        module = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(*rows.shape, *place) for rows in tables],
            pooling_mode=getattr(common.PoolingMode, pooling),
            weights_precision=getattr(configs.SparseType, precision),
            **options,
        )
        for table, rows in zip(module.split_embedding_weights(), tables, strict=True):
            table.copy_(torch.from_numpy(rows))  # without a second copy of a large table
        return module


def _joined_splits(features: Sequence[Bags]) -> NDArray[np.int64]:
    """Return the row splits of the bags of all features, one after another."""
    lengths = np.concatenate([np.diff(bags.row_splits) for bags in features])
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
