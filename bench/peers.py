"""The same work done by others: torch, FBGEMM, TensorFlow and NumPy, each only where installed.

Nothing here is a dependency. A `Peer` answers the tasks of `compare` that it can do; for each it
returns a `Contender`, whose inputs are already in the peer's own form, so that only the work is
timed, and whose result can be turned into NumPy arrays in our form, so that it can be checked.

FBGEMM is measured with ``EXACT_SGD`` and ``EXACT_ADAGRAD``, which do what our SGD and Adagrad do.
Its row-wise Adagrad keeps one accumulator per row: less work and other numbers than an element-wise
Adagrad, so the two are not compared.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PEERS",
    "Contender",
    "Fbgemm",
    "LookupTask",
    "Numpy",
    "PartitionTask",
    "Peer",
    "SliceTask",
    "StepTask",
    "TensorFlow",
    "Torch",
    "VariableTask",
]

Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Contender:
    """One way to do a task.

    Attributes
    ----------
    what : str
        The function that is called.
    run : callable
        What is timed.
    arrays : callable
        What `run` returned -> arrays to compare, in the form the task describes.
    """

    what: str
    run: Callable[[], Any]
    arrays: Callable[[Any], Arrays]


@dataclass(frozen=True, eq=False)
class LookupTask:
    """Sums of the rows of every bag. Arrays: activations (bags, dim)."""

    rows: NDArray[np.float32]
    ids: NDArray[np.int64]
    row_splits: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepTask:
    """Lookup, backward and update. Arrays: activations, and the rows `probe` after the update.

    Adagrad starts from `accumulator` and has no epsilon.
    """

    rows: NDArray[np.float32]
    ids: NDArray[np.int64]
    row_splits: NDArray[np.int64]
    gradient: NDArray[np.float32]
    optimizer: str
    learning_rate: float
    accumulator: float
    probe: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PartitionTask:
    """Ids grouped by shard. Arrays: local rows in that order, ids per shard, and the inverse."""

    ids: NDArray[np.int64]
    sizes: NDArray[np.int64]
    strategy: str


@dataclass(frozen=True, eq=False)
class SliceTask:
    """A slice cut into local slices. Arrays: shards touched, then the local rows of each."""

    sizes: NDArray[np.int64]
    rows: slice


@dataclass(frozen=True, eq=False)
class VariableTask:
    """A slice read from a variable in shards. Arrays: the rows read."""

    shards: Sequence[NDArray[np.float32]]
    rows: slice


class Peer(ABC):
    """Another library. A task that it cannot do, or not by the same definition, is None."""

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]

    def missing(self) -> str | None:
        """Return why this peer cannot take part; None where it can."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed"
        return None

    @abstractmethod
    def version(self) -> str:
        """Return name and version, for the report."""

    @abstractmethod
    def set_num_threads(self, threads: int) -> None:
        """Let the peer use so many threads.

        Raises
        ------
        RuntimeError
            If it can no longer be changed.
        """

    def lookup(self, task: LookupTask) -> Contender | None:
        return None

    def step(self, task: StepTask) -> Contender | None:
        return None

    def partition(self, task: PartitionTask) -> Contender | None:
        return None

    def decompose_slice(self, task: SliceTask) -> Contender | None:
        return None

    def read_slice(self, task: VariableTask) -> Contender | None:
        return None


class Numpy(Peer):
    name = "NumPy"
    modules = ("numpy",)

    def version(self) -> str:
        return f"NumPy {np.__version__}"

    def set_num_threads(self, threads: int) -> None:
        """Change nothing: what is measured of NumPy runs on one thread."""

    def partition(self, task: PartitionTask) -> Contender | None:
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


class Torch(Peer):
    name = "torch"
    modules = ("torch",)

    def version(self) -> str:
        return f"torch {importlib.import_module('torch').__version__}"

    def set_num_threads(self, threads: int) -> None:
        importlib.import_module("torch").set_num_threads(threads)

    def lookup(self, task: LookupTask) -> Contender | None:
        torch = importlib.import_module("torch")
        rows, ids = torch.tensor(task.rows), torch.tensor(task.ids)
        offsets = torch.tensor(task.row_splits[:-1])
        embedding_bag = torch.nn.functional.embedding_bag

        def run() -> Any:
            with torch.no_grad():
                return embedding_bag(ids, rows, offsets, mode="sum")

        return Contender("F.embedding_bag", run, lambda found: (found.numpy(),))

    def step(self, task: StepTask) -> Contender | None:
        torch = importlib.import_module("torch")
        # It warns of every sparse gradient unless told whether to check them; unchecked is faster.
        torch.sparse.check_sparse_tensor_invariants.disable()
        bag = torch.nn.EmbeddingBag(*task.rows.shape, mode="sum", sparse=True)
        with torch.no_grad():
            bag.weight.copy_(torch.tensor(task.rows))
        if task.optimizer == "SGD":
            optimizer = torch.optim.SGD(bag.parameters(), lr=task.learning_rate)
        else:
            optimizer = torch.optim.Adagrad(
                bag.parameters(),
                lr=task.learning_rate,
                initial_accumulator_value=task.accumulator,
                eps=0.0,
            )
        ids, offsets = torch.tensor(task.ids), torch.tensor(task.row_splits[:-1])
        gradient = torch.tensor(task.gradient)

        def run() -> Any:
            optimizer.zero_grad(set_to_none=True)
            activations = bag(ids, offsets)
            activations.backward(gradient)
            optimizer.step()
            return activations

        def arrays(found: Any) -> Arrays:
            return found.detach().numpy(), bag.weight.detach()[torch.tensor(task.probe)].numpy()

        return Contender(f"EmbeddingBag(sparse) + {task.optimizer}", run, arrays)


class Fbgemm(Peer):
    name = "FBGEMM"
    modules = ("torch", "fbgemm_gpu")

    def version(self) -> str:
        return f"FBGEMM {importlib.import_module('fbgemm_gpu').__version__}"

    def set_num_threads(self, threads: int) -> None:
        importlib.import_module("torch").set_num_threads(threads)

    def lookup(self, task: LookupTask) -> Contender | None:
        torch = importlib.import_module("torch")
        module = self._module(task.rows)
        ids, offsets = torch.tensor(task.ids), torch.tensor(task.row_splits)

        def run() -> Any:
            with torch.no_grad():
                return module(ids, offsets)

        return Contender("SplitTableBatchedEmbeddingBags", run, lambda found: (found.numpy(),))

    def step(self, task: StepTask) -> Contender | None:
        torch = importlib.import_module("torch")
        kinds = importlib.import_module("fbgemm_gpu.split_embedding_configs").EmbOptimType
        kind = kinds.EXACT_SGD if task.optimizer == "SGD" else kinds.EXACT_ADAGRAD
        module = self._module(task.rows, optimizer=kind, learning_rate=task.learning_rate, eps=0.0)
        for states in module.split_optimizer_states():
            for state in states:
                state.fill_(task.accumulator)
        ids, offsets = torch.tensor(task.ids), torch.tensor(task.row_splits)
        gradient, probe = torch.tensor(task.gradient), torch.tensor(task.probe)

        def run() -> Any:
            activations = module(ids, offsets)
            activations.backward(gradient)  # the update is part of it
            return activations

        def arrays(found: Any) -> Arrays:
            return found.detach().numpy(), module.split_embedding_weights()[0][probe].numpy()

        return Contender(f"SplitTableBatchedEmbeddingBags, {kind.name}", run, arrays)

    def partition(self, task: PartitionTask) -> Contender | None:
        torch = importlib.import_module("torch")
        importlib.import_module("fbgemm_gpu")
        if task.strategy != "div" or np.unique(task.sizes).size > 1:
            return None  # its blocks are all of one size, and it has no round robin
        bucketize = torch.ops.fbgemm.block_bucketize_sparse_features
        lengths, ids = torch.tensor([task.ids.size]), torch.tensor(task.ids)
        block, shards = torch.tensor([task.sizes[0]]), task.sizes.size

        def run() -> Any:
            return bucketize(lengths, ids, False, True, block, shards)

        def arrays(found: Any) -> Arrays:
            counts, local, _, _, inverse = found
            return local.numpy(), counts.numpy(), inverse.numpy()

        return Contender("block_bucketize_sparse_features", run, arrays)

    def _module(self, rows: NDArray[np.float32], **options: Any) -> Any:
        torch = importlib.import_module("torch")
        training = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_training")
        common = importlib.import_module("fbgemm_gpu.split_table_batched_embeddings_ops_common")
        place = (common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)
        module = training.SplitTableBatchedEmbeddingBagsCodegen(
            [(*rows.shape, *place)], pooling_mode=common.PoolingMode.SUM, **options
        )
        module.split_embedding_weights()[0].copy_(torch.tensor(rows))
        return module


class TensorFlow(Peer):
    name = "TensorFlow"
    modules = ("tensorflow",)

    def version(self) -> str:
        return f"TensorFlow {importlib.import_module('tensorflow').__version__}"

    def set_num_threads(self, threads: int) -> None:
        threading = importlib.import_module("tensorflow").config.threading
        if threading.get_intra_op_parallelism_threads() != threads:
            threading.set_intra_op_parallelism_threads(threads)

    def partition(self, task: PartitionTask) -> Contender | None:
        if task.strategy != "div":
            return None
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

    def decompose_slice(self, task: SliceTask) -> Contender | None:
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

    def read_slice(self, task: VariableTask) -> Contender | None:
        variable = self._variable(task.shards)
        return Contender(
            "ShardedVariable[...]", lambda: variable[task.rows], lambda found: (found.numpy(),)
        )

    def _variable(self, shards: Sequence[NDArray[np.float32]]) -> Any:
        tf = importlib.import_module("tensorflow")
        module = importlib.import_module("tensorflow.python.distribute.sharded_variable")
        return module.ShardedVariable([tf.Variable(shard) for shard in shards])


PEERS: tuple[Peer, ...] = (Numpy(), Torch(), Fbgemm(), TensorFlow())
