"""A training step on JAX devices against plain JAX: ``python -m bench.jax_step``.

Both keep a table on the devices, cut over them by row, and do the same step with the same ids:
bags' sums, a loss, its gradient, an update. Plain JAX does it as its users write it: `jnp.take` and
`segment_sum`, `jax.value_and_grad` with respect to the table, an optax update of all of it; one
jitted function, the old table and state donated. Ours includes all that the host does for it.

The first steps must agree (``allclose``); then both take turns, a few steps in each. The table
gives medians per step and the median of the ratios within a round. No time makes it fail.

On CPU, start it with ``XLA_FLAGS=--xla_force_host_platform_device_count=4`` for four devices.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray
from shardcore_bench.timing import duration
from shardcore_bench.workload import (
    DISTRIBUTIONS,
    FULL,
    Sizes,
    bags_of_ids,
    gradient_of,
    table_rows,
)

import shardcore as sc

from .jax_turns import Contender, seconds_per_step

__all__ = ["BATCHES", "OPTIMIZERS", "Ours", "Plain", "Step", "batches_of", "check_equal", "main"]

SIZES: Final = replace(FULL, rows=1_000_000, bags=4_096, pooling=8)
BATCHES: Final = 4
"""Batches that steps take in turn."""
LEARNING_RATE: Final = 0.5
ACCUMULATOR: Final = 0.1
OPTIMIZERS: Final = ("SGD", "Adagrad")

Ids = NDArray[np.int64]


def batches_of(sizes: Sizes, distribution: str) -> list[Ids]:
    """Return ids of several batches, (bags, pooling) each."""
    drawn = replace(sizes, bags=sizes.bags * BATCHES)
    ids, _ = bags_of_ids(drawn, distribution)
    return list(ids.reshape(BATCHES, sizes.bags, sizes.pooling))


def loss_of(activations: jax.Array, targets: jax.Array) -> jax.Array:
    return 0.5 * jnp.square(activations - targets).sum(axis=1).mean()


class Step(Protocol):
    """One of the two contenders."""

    what: str

    def run(self, ids: Ids) -> jax.Array:
        """Do a step; return its loss, which need not be there yet."""

    def wait(self) -> None:
        """Return when the devices are done."""

    def rows(self, numbers: Ids) -> NDArray[np.float32]:
        """Return rows of the table."""

    def close(self) -> None:
        """Let the table go."""


class Plain:
    """As it is written in JAX and optax."""

    what = "jnp.take, segment_sum, optax"

    def __init__(self, sizes: Sizes, optimizer: str, mesh: Mesh) -> None:
        self._by_row = NamedSharding(mesh, PartitionSpec("x"))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        table = jax.device_put(table_rows(sizes), self._by_row)
        transform = (
            optax.sgd(LEARNING_RATE)
            if optimizer == "SGD"
            else optax.adagrad(LEARNING_RATE, ACCUMULATOR, eps=0)
        )
        held = table, transform.init(table)
        where = jax.tree.map(lambda one: self._by_row if one.ndim else self._everywhere, held)
        self._held = jax.device_put(held, where)
        self._targets = jax.device_put(gradient_of(sizes), self._by_row)
        bag = np.repeat(np.arange(sizes.bags, dtype=np.int32), sizes.pooling)

        def step(table: jax.Array, state: Any, ids: jax.Array, targets: jax.Array) -> Any:
            def loss(table: jax.Array) -> jax.Array:
                found = jnp.take(table, ids.reshape(-1), axis=0)
                sums = jax.ops.segment_sum(found, bag, sizes.bags, indices_are_sorted=True)
                return loss_of(sums, targets)

            value, gradient = jax.value_and_grad(loss)(table)
            updates, state = transform.update(gradient, state, table)
            return value, optax.apply_updates(table, updates), state

        self._step = jax.jit(step, donate_argnums=(0, 1), out_shardings=(self._everywhere, *where))

    def run(self, ids: Ids) -> jax.Array:
        """Do a step."""
        placed = jax.device_put(ids.astype(np.int32), self._by_row)
        loss, *held = self._step(*self._held, placed, self._targets)
        self._held = tuple(held)
        return loss

    def wait(self) -> None:
        """Return when the devices are done."""
        jax.block_until_ready(self._held)

    def rows(self, numbers: Ids) -> NDArray[np.float32]:
        """Return rows of the table."""
        found: NDArray[np.float32] = np.asarray(self._held[0])[numbers]
        return found

    def close(self) -> None:
        """Let the table go."""
        del self._held


class Ours:
    """The engine with the backend ``pjrt``, and a jitted function for the loss."""

    what = "enqueue, dequeue, apply_gradients"

    def __init__(self, sizes: Sizes, optimizer: str, mesh: Mesh, pipeline: bool = False) -> None:
        if pipeline:
            self.what = f"{self.what}, pipeline"
        options = {"initial_accumulator_value": ACCUMULATOR} if optimizer == "Adagrad" else {}
        table = sc.TableConfig(
            sizes.rows, sizes.dim, initializer=table_rows(sizes), combiner="sum", name="items"
        )
        self._engine = sc.ShardedEmbedding(
            sc.FeatureConfig(table),
            optimizer=getattr(sc.optimizers, optimizer)(learning_rate=LEARNING_RATE, **options),
            backend="pjrt",
            backend_options={
                "platform": mesh.devices.flat[0].platform,
                "devices": list(mesh.devices.flat),
            },
            pipeline=pipeline,
        )
        self._engine.build()
        by_bag = NamedSharding(mesh, PartitionSpec("x"))
        self._targets = jax.device_put(gradient_of(sizes), by_bag)
        out = NamedSharding(mesh, PartitionSpec()), by_bag
        self._loss = jax.jit(jax.value_and_grad(loss_of), out_shardings=out)

    def run(self, ids: Ids) -> jax.Array:
        """Do a step."""
        self._engine.enqueue(ids)
        loss, gradient = self._loss(self._engine.dequeue(), self._targets)
        self._engine.apply_gradients(gradient)
        return loss

    def wait(self) -> None:
        """Return when the devices are done: a row read is one that no update is to change."""
        self.rows(np.zeros(1, np.int64))

    def rows(self, numbers: Ids) -> NDArray[np.float32]:
        """Return rows of the table."""
        found: NDArray[np.float32] = self._engine.tables["items"][numbers]
        return found

    def close(self) -> None:
        """Let the table go."""
        self._engine.close()


def check_equal(one: Step, other: Step, batches: Sequence[Ids], rows: int) -> None:
    """Do a step with every batch, and compare losses, touched rows, and some that must stay.

    Raises
    ------
    AssertionError
        If one differs.
    """
    message = f"{one.what} and {other.what} disagree"
    losses, others = ([float(each.run(ids)) for ids in batches] for each in (one, other))
    np.testing.assert_allclose(losses, others, rtol=1e-4, err_msg=message)
    assert losses[0] != losses[1], "steps with different batches have different losses"
    seen = np.unique(np.concatenate([ids.ravel() for ids in batches]))
    probe = np.concatenate([seen[:5_000], np.setdiff1d(np.arange(min(rows, 1_000)), seen)])
    np.testing.assert_allclose(
        one.rows(probe), other.rows(probe), rtol=1e-4, atol=1e-6, err_msg=message
    )


def turn_of(step: Step, batches: Sequence[Ids], steps: int) -> Contender:
    """Return how a contender takes its turns, through the batches one after the other."""
    return Contender(lambda number: step.run(batches[number % len(batches)]), step.wait, steps)


HEADER: Final = (
    "| devices | optimizer | ids | ours | ours, median | plain JAX, median | plain / ours |\n"
    "|--:|---|---|---|--:|--:|--:|"
)


def cases(options: argparse.Namespace, mesh: Mesh) -> Iterator[str]:
    """Yield the lines of the table for one mesh."""
    for optimizer in options.optimizers:
        for distribution in options.ids:
            batches = batches_of(SIZES, distribution)
            for pipeline in (False, True):
                plain = Plain(SIZES, optimizer, mesh)
                ours = Ours(SIZES, optimizer, mesh, pipeline)
                check_equal(ours, plain, batches, SIZES.rows)
                turns = [turn_of(ours, batches, 40), turn_of(plain, batches, 2)]
                seconds = seconds_per_step(turns, options.rounds)
                ratios = [theirs / mine for mine, theirs in zip(*seconds, strict=True)]
                cells = (
                    str(mesh.size),
                    optimizer,
                    distribution,
                    ours.what,
                    *(duration(statistics.median(each)) for each in seconds),
                    f"**{statistics.median(ratios):.1f}**",
                )
                yield f"| {' | '.join(cells)} |"
                ours.close()
                plain.close()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.jax_step", description=__doc__)
    parser.add_argument("--platform", default="cpu", help="cpu, cuda, tpu, ...")
    parser.add_argument("--devices", type=int, nargs="+", help="such as: 1 4; default: 1 and all")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--ids", nargs="+", choices=DISTRIBUTIONS, default=list(DISTRIBUTIONS))
    parser.add_argument("--rounds", type=int, default=9, help="pairs per comparison")
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.devices or [1]) < 1:
        parser.error("--rounds and --devices must be at least 1")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    options = arguments(argv)
    devices = jax.devices(options.platform)
    print(f"shardcore {sc.__version__}, jax {jax.__version__}, optax {optax.__version__}; ", end="")
    print(f"{devices[0].device_kind}, {os.cpu_count()} cores")
    print(f"table {SIZES.rows:,} x {SIZES.dim}, {SIZES.bags:,} bags x {SIZES.pooling} ids")
    print(f"{options.rounds} rounds\n\n{HEADER}", flush=True)
    for count in options.devices or sorted({1, len(devices)}):
        mesh = Mesh(np.array(devices[:count]), ("x",))
        if mesh.size < count:
            print(f"{count} devices left out: {options.platform} has {len(devices)}")
            continue
        for line in cases(options, mesh):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
