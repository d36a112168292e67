"""Lookups and steps through our doors to other frameworks, imported where one is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardcore as sc
from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.ours import engine_of, optimizer_of
from shardcore_bench.tasks import LookupTask, StepTask

__all__ = [
    "jax_lookup",
    "jax_step",
    "keras_lookup",
    "keras_step",
    "torch_lookup",
    "torch_step",
]


def torch_lookup(task: LookupTask) -> Contender:
    """Return the lookup through a module of `shardcore.torch`, without gradients."""
    torch = importlib.import_module("torch")
    module = _module(task.rows, None)
    ids, offsets = torch.tensor(task.ids), torch.tensor(task.row_splits[:-1])

    def run() -> Any:
        with torch.no_grad():
            return module(ids, offsets)

    return Contender("shardcore.torch.EmbeddingBag", run, lambda found: (found.numpy(),))


def torch_step(task: StepTask) -> Contender:
    """Return forward and backward of a module of `shardcore.torch` with the task's only table."""
    torch = importlib.import_module("torch")
    (bags,), (rows,) = task.features, task.tables
    module = _module(rows, optimizer_of(task.update))
    ids, offsets = torch.tensor(bags.ids), torch.tensor(bags.row_splits[:-1])
    gradient = torch.tensor(bags.gradient)

    def run() -> Any:
        activations = module(ids, offsets)
        activations.backward(gradient)
        return activations

    def arrays(found: Any) -> Arrays:
        return found.detach().numpy(), module.engine.tables["embedding"][task.probes[0]]

    return Contender("shardcore.torch.EmbeddingBag", run, arrays)


def _module(rows: NDArray[Any], optimizer: sc.Optimizer | None) -> Any:
    torch = importlib.import_module("torch")
    modules = importlib.import_module("shardcore.torch")
    weight, (count, dim) = torch.from_numpy(rows), rows.shape
    return modules.EmbeddingBag(count, dim, mode="sum", _weight=weight, optimizer=optimizer)


def jax_lookup(task: LookupTask) -> Contender:
    """Return the lookup within a program of JAX."""
    jax = importlib.import_module("jax")
    lookup = importlib.import_module("shardcore.jax").lookup(engine_of(task.rows, "sum"))
    ids = jax.numpy.asarray(_in_rows(task.ids, task.row_splits))
    program = jax.jit(lookup)

    def run() -> Any:
        return program(ids).block_until_ready()

    return Contender("shardcore.jax.lookup in jit", run, lambda found: (np.asarray(found),))


def jax_step(task: StepTask) -> Contender:
    """Return a program of JAX with a loss whose gradient updates the task's only table."""
    jax = importlib.import_module("jax")
    door = importlib.import_module("shardcore.jax")
    (bags,), (rows,) = task.features, task.tables
    engine = engine_of(rows, "sum", optimizer_of(task.update))
    lookup, token = door.lookup(engine), door.token(engine)
    ids = jax.numpy.asarray(_in_rows(bags.ids, bags.row_splits))
    gradient = jax.numpy.asarray(bags.gradient)

    def loss(token: Any, ids: Any) -> Any:
        activations = lookup(ids, token)
        return (activations * gradient).sum(), activations

    program = jax.jit(jax.grad(loss, has_aux=True))

    def run() -> Any:
        return jax.block_until_ready(program(token, ids))[1]

    def arrays(found: Any) -> Arrays:
        return np.asarray(found), engine.tables["items"][task.probes[0]]

    return Contender("shardcore.jax.lookup in jit(grad)", run, arrays)


def keras_lookup(task: LookupTask) -> Contender:
    """Return the lookup of a layer of Keras within a graph, as a model predicts."""
    tf = importlib.import_module("tensorflow")
    layer = importlib.import_module("shardcore.tf").EmbeddingBags(engine_of(task.rows, "sum"))
    ids = tf.constant(_in_rows(task.ids, task.row_splits))

    graph = tf.function(lambda ids: layer(ids, training=False))
    return Contender(
        "shardcore.tf.EmbeddingBags", lambda: graph(ids), lambda found: (found.numpy(),)
    )


def keras_step(task: StepTask) -> Contender:
    """Return forward and backward of a layer of Keras within a graph."""
    tf = importlib.import_module("tensorflow")
    (bags,), (rows,) = task.features, task.tables
    engine = engine_of(rows, "sum", optimizer_of(task.update))
    layer = importlib.import_module("shardcore.tf").EmbeddingBags(engine)
    ids, gradient = tf.constant(_in_rows(bags.ids, bags.row_splits)), tf.constant(bags.gradient)

    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            activations = layer(ids, training=True)
        tape.gradient(activations, layer.trainable_variables, output_gradients=gradient)
        return activations

    def arrays(found: Any) -> Arrays:
        return found.numpy(), engine.tables["items"][task.probes[0]]

    graph = tf.function(step)
    return Contender("shardcore.tf.EmbeddingBags", lambda: graph(ids), arrays)


def _in_rows(ids: NDArray[Any], row_splits: NDArray[Any]) -> NDArray[Any]:
    """Return the ids of bags of one length, a row for each."""
    return ids.reshape(row_splits.size - 1, -1)
