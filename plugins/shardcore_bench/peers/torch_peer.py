"""PyTorch: ``embedding_bag``, and sparse gradients with its sparse optimizers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore_bench.contender import Arrays, Contender, in_turn
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import LookupTask, StepTask

__all__ = ["Torch", "as_array", "as_tensor"]


def as_tensor(array: NDArray[Any]) -> Any:
    """Return a tensor with a copy of the array; bfloat16 goes there by its bits."""
    torch = importlib.import_module("torch")
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)


def as_array(tensor: Any) -> NDArray[Any]:
    """Return the tensor as an array that shares its memory, of bfloat16 too."""
    torch = importlib.import_module("torch")
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        bits: NDArray[Any] = tensor.contiguous().view(torch.int16).numpy()
        return bits.view(importlib.import_module("ml_dtypes").bfloat16)
    array: NDArray[Any] = tensor.numpy()
    return array


class Torch(Peer):
    """torch, by its functional interface and its sparse optimizers."""

    name = "torch"
    modules = ("torch",)

    def set_num_threads(self, threads: int) -> None:
        importlib.import_module("torch").set_num_threads(threads)

    def lookup(self, task: LookupTask) -> Contender:
        return self.lookups([task])

    def lookups(self, tasks: Sequence[LookupTask]) -> Contender:
        rows = as_tensor(tasks[0].rows)
        return in_turn([self._lookup(rows, task) for task in tasks])

    def _lookup(self, rows: Any, task: LookupTask) -> Contender:
        torch = importlib.import_module("torch")
        if task.combiner == "sqrtn" or (task.weights is not None and task.combiner != "sum"):
            raise self.unable("no sqrtn, and weights in sums only")
        ids, offsets = as_tensor(task.ids), as_tensor(task.row_splits[:-1])
        weights = None if task.weights is None else as_tensor(task.weights)
        embedding_bag, mode = torch.nn.functional.embedding_bag, task.combiner

        def run() -> Any:
            return embedding_bag(ids, rows, offsets, mode=mode, per_sample_weights=weights)

        def arrays(found: Any) -> Arrays:
            return (found.float().numpy(),)

        return Contender("F.embedding_bag", run, arrays)

    def own_lookup(self, task: LookupTask) -> Contender:
        torch = importlib.import_module("torch")
        bag = torch.nn.EmbeddingBag(*task.rows.shape, mode="sum", _weight=as_tensor(task.rows))
        ids, offsets = as_tensor(task.ids), as_tensor(task.row_splits[:-1])

        def run() -> Any:
            with torch.no_grad():
                return bag(ids, offsets)

        return Contender("torch.nn.EmbeddingBag", run, lambda found: (found.numpy(),))

    def step(self, task: StepTask) -> Contender:
        torch = importlib.import_module("torch")
        # It warns of every sparse gradient unless told whether to check them; unchecked is faster.
        torch.sparse.check_sparse_tensor_invariants.disable()
        if len(task.features) > 1 or task.sequence or task.update.stochastic:
            raise self.unable("not asked for more than one bag of float32 rows")
        (bags,), (rows,) = task.features, task.tables
        bag = torch.nn.EmbeddingBag(*rows.shape, mode="sum", sparse=True)
        with torch.no_grad():
            bag.weight.copy_(as_tensor(rows))
        optimizer = self._optimizer(bag, task)
        ids, offsets = as_tensor(bags.ids), as_tensor(bags.row_splits[:-1])
        gradient, probe = as_tensor(bags.gradient), as_tensor(task.probes[0])

        def run() -> Any:
            optimizer.zero_grad(set_to_none=True)
            activations = bag(ids, offsets)
            activations.backward(gradient)
            optimizer.step()
            return activations

        def arrays(found: Any) -> Arrays:
            return found.detach().numpy(), bag.weight.detach()[probe].numpy()

        return Contender(f"EmbeddingBag(sparse) + {type(optimizer).__name__}", run, arrays)

    def own_step(self, task: StepTask) -> Contender:
        return self.step(task)

    def _optimizer(self, bag: Any, task: StepTask) -> Any:
        optim = importlib.import_module("torch.optim")
        update = task.update
        if update.name == "SGD":
            return optim.SGD(bag.parameters(), lr=update.learning_rate)
        if update.name == "Adagrad":
            start = update.accumulator
            return optim.Adagrad(
                bag.parameters(), update.learning_rate, initial_accumulator_value=start, eps=0.0
            )
        if update.name == "Adam":
            return optim.SparseAdam(bag.parameters(), lr=update.learning_rate, eps=1e-8)
        if update.name == "momentum":
            raise self.unable(
                "the momentum of sparse gradients keeps every occurrence of every step, and never "
                "adds them up"
            )
        raise self.unable(f"no {update.name} of sparse gradients")
