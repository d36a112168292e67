"""JAX: a table that is an array, gathered, summed and updated by a compiled program."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from shardcore_bench.contender import Arrays, Contender
from shardcore_bench.peers.base import Peer
from shardcore_bench.tasks import LookupTask, StepTask

__all__ = ["Jax"]


class Jax(Peer):
    """JAX on the CPU."""

    name = "JAX"
    modules = ("jax",)

    def set_num_threads(self, threads: int) -> None:
        os.environ["JAX_PLATFORMS"] = "cpu"
        flags = os.environ.get("XLA_FLAGS", "")
        alone = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
        os.environ["XLA_FLAGS"] = f"{flags} {alone} intra_op_parallelism_threads={threads}"

    def own_lookup(self, task: LookupTask) -> Contender:
        jax = importlib.import_module("jax")
        table = jax.numpy.asarray(task.rows)
        ids = jax.numpy.asarray(task.ids.reshape(task.row_splits.size - 1, -1))

        program = jax.jit(lambda table, ids: table[ids].sum(axis=1))

        def run() -> Any:
            return program(table, ids).block_until_ready()

        return Contender("table[ids].sum(1) in jit", run, lambda found: (np.asarray(found),))

    def own_step(self, task: StepTask) -> Contender:
        jax = importlib.import_module("jax")
        (bags,), (rows,) = task.features, task.tables
        if task.update.name != "SGD":
            raise self.unable("asked for SGD only")
        tables = [jax.numpy.asarray(rows)]
        ids = jax.numpy.asarray(bags.ids.reshape(bags.row_splits.size - 1, -1))
        gradient, rate = jax.numpy.asarray(bags.gradient), task.update.learning_rate

        def loss(found: Any) -> Any:
            activations = found.sum(axis=1)
            return (activations * gradient).sum(), activations

        # A gradient of the rows that were gathered: one of the table is as large as the table.
        def step(table: Any, ids: Any) -> Any:
            gradients, activations = jax.grad(loss, has_aux=True)(table[ids])
            return table.at[ids].add(-rate * gradients), activations

        program = jax.jit(step, donate_argnums=0)

        def run() -> Any:
            tables[0], activations = program(tables[0], ids)
            return jax.block_until_ready((tables[0], activations))[1]

        def arrays(found: Any) -> Arrays:
            return np.asarray(found), np.asarray(tables[0])[task.probes[0]]

        return Contender("table.at[ids].add in jit, donated", run, arrays)
