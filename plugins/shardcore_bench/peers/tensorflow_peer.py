"""TensorFlow: sparse lookups and updates, and its own ShardedVariable.

The updates are the kernels that update only the rows of an IndexedSlices, with duplicates added up
before. Keras 3 makes such gradients dense, which is slower by the size of the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import LookupTask, PartitionTask, SliceTask, StepTask, VariableTask

__all__ = ["TensorFlow"]


class TensorFlow(Peer):
    """TensorFlow, in graph functions where that is its faster way."""

    name = "TensorFlow"
    modules = ("tensorflow",)

    def set_num_threads(self, threads: int) -> None:
        threading = importlib.import_module("tensorflow").config.threading
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)

    def lookup(self, task: LookupTask) -> Contender:
        tf = importlib.import_module("tensorflow")
        variable = tf.Variable(task.rows)
        ids = tf.RaggedTensor.from_row_splits(task.ids, task.row_splits)
        weights = None
        if task.weights is not None:
            weights = tf.RaggedTensor.from_row_splits(task.weights, task.row_splits)

        @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
        def run(ids: Any, weights: Any) -> Any:
            return tf.nn.embedding_lookup_sparse(
                variable, ids, weights, combiner=task.combiner, allow_fast_lookup=True
            )

        return Contender(
            "nn.embedding_lookup_sparse", lambda: run(ids, weights), lambda found: (found.numpy(),)
        )

    def step(self, task: StepTask) -> Contender:
        tf = importlib.import_module("tensorflow")
        update = task.update
        if update.name not in ("FTRL", "momentum") or len(task.features) > 1 or task.sequence:
            raise self.unable("asked for FTRL and momentum of one feature only")
        (bags,), (rows,) = task.features, task.tables
        variable = tf.Variable(rows)
        accumulators, linears = tf.Variable(tf.zeros_like(rows)), None
        if update.name == "FTRL":
            accumulators.assign(tf.fill(rows.shape, np.float32(update.accumulator)))
            linears = tf.Variable(tf.zeros_like(rows))

        def apply(indices: Any, gradient: Any) -> None:
            if linears is None:
                tf.raw_ops.ResourceSparseApplyKerasMomentum(
                    var=variable.handle,
                    accum=accumulators.handle,
                    lr=update.learning_rate,
                    grad=gradient,
                    indices=indices,
                    momentum=update.momentum,
                )
            else:
                tf.raw_ops.ResourceSparseApplyFtrl(
                    var=variable.handle,
                    accum=accumulators.handle,
                    linear=linears.handle,
                    grad=gradient,
                    indices=indices,
                    lr=update.learning_rate,
                    l1=0.0,
                    l2=0.0,
                    lr_power=-0.5,
                )

        @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
        def step(ids: Any, gradient: Any) -> Any:
            with tf.GradientTape() as tape:
                activations = tf.nn.embedding_lookup_sparse(
                    variable, ids, None, combiner="sum", allow_fast_lookup=True
                )
            slices = tape.gradient(activations, variable, output_gradients=gradient)
            unique, place = tf.unique(slices.indices)
            summed = tf.math.unsorted_segment_sum(slices.values, place, tf.size(unique))
            apply(unique, summed)
            return activations

        ids = tf.RaggedTensor.from_row_splits(bags.ids, bags.row_splits)
        gradient = tf.constant(bags.gradient)

        def arrays(found: Any) -> Arrays:
            return found.numpy(), tf.gather(variable, task.probes[0]).numpy()

        what = "embedding_lookup_sparse, ResourceSparseApply" + (
            "KerasMomentum" if linears is None else "Ftrl"
        )
        return Contender(what, lambda: step(ids, gradient), arrays)

    def partition(self, task: PartitionTask) -> Contender:
        if task.strategy != "div":
            raise self.unable("div only")
        tf = importlib.import_module("tensorflow")
        variable = self._variable([np.zeros((size, 1), np.float32) for size in task.sizes])
        ids = tf.constant(task.ids)

        def arrays(found: Any) -> Arrays:
            per_shard, assignments = found
            order = np.argsort(assignments.numpy(), kind="stable")
            inverse = np.empty_like(order)  # it gives the shard of each id, not its place
            inverse[order] = np.arange(order.size)
            local = np.concatenate([part.numpy() for part in per_shard])
            return local, np.array([part.shape[0] for part in per_shard]), inverse

        return Contender(
            "ShardedVariable._decompose_indices", lambda: variable._decompose_indices(ids), arrays
        )

    def decompose_slice(self, task: SliceTask) -> Contender:
        variable = self._variable([np.zeros((size, 1), np.float32) for size in task.sizes])

        def arrays(found: Any) -> Arrays:
            touched = [shard for shard, local in enumerate(found) if local is not None]
            if (task.rows.step or 1) < 0:  # it lists shards upwards, and we in result order
                touched.reverse()
            local = [np.arange(task.sizes[shard])[found[shard]] for shard in touched]
            return np.array(touched), *local

        return Contender(
            "ShardedVariable._decompose_slice_spec",
            lambda: variable._decompose_slice_spec(task.rows),
            arrays,
        )

    def read_slice(self, task: VariableTask) -> Contender:
        variable = self._variable(task.shards)
        return Contender(
            "ShardedVariable[...]", lambda: variable[task.rows], lambda found: (found.numpy(),)
        )

    def _variable(self, shards: Sequence[NDArray[np.float32]]) -> Any:
        tf = importlib.import_module("tensorflow")
        module = importlib.import_module("tensorflow.python.distribute.sharded_variable")
        return module.ShardedVariable([tf.Variable(shard) for shard in shards])
