"""Many tables on JAX devices against the same rows as one table: ``python -m bench.jax_tables``.

One engine has many tables of as many sizes, with a feature each; two have all of their rows in one
table: one with as many features, the other with all of their bags in one. Ids name the same rows,
and gradients are arrays on the devices. Rows must agree after the first steps; then the engines
take turns, a few steps in each.

The table gives the programs of the first engine, its seconds from nothing to the end of its first
step, medians per step, and the ratios within a round: their median, and 10 % to 90 % of them. No
time makes it fail.

On CPU, start it with ``XLA_FLAGS=--xla_force_host_platform_device_count=8`` for eight devices.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import jax
import numpy as np
from numpy.typing import NDArray
from shardcore_bench.timing import duration

import shardcore as sc

from .jax_turns import Contender, seconds_per_step

__all__ = ["BATCHES", "Engine", "Sizes", "check_equal", "engines_of", "main", "sizes_of"]

DIM: Final = 32
BAGS: Final = 512
POOLING: Final = 4
ROWS: Final = {26: (50, 40_000), 856: (50, 2_000)}
"""Rows of the smallest and the largest table, by how many there are."""
BATCHES: Final = 4
LEARNING_RATE: Final = 0.5

Sizes = tuple[int, ...]


class Engine:
    """Tables on devices, batches of ids, and a gradient for each feature.

    Parameters
    ----------
    rows : dict of str to ndarray
        First values of each table.
    table_of : dict of str to str
        The table of each feature.
    batches : sequence of dict of str to ndarray
        Ids of each feature, (bags, pooling).
    devices : list of jax.Device
    """

    def __init__(
        self,
        rows: Mapping[str, NDArray[np.float32]],
        table_of: Mapping[str, str],
        batches: Sequence[Mapping[str, NDArray[np.int64]]],
        devices: Sequence[jax.Device],
    ) -> None:
        self._batches = batches
        tables = {
            name: sc.TableConfig(len(held), DIM, initializer=held, combiner="sum", name=name)
            for name, held in rows.items()
        }
        features = {name: sc.FeatureConfig(tables[table]) for name, table in table_of.items()}
        options = {"platform": devices[0].platform, "devices": list(devices)}
        began = perf_counter()
        self._engine = sc.ShardedEmbedding(
            features,
            sc.optimizers.Adagrad(learning_rate=LEARNING_RATE),
            backend="pjrt",
            backend_options=options,
        )
        self._engine.build()
        self._gradients: dict[str, Any] | None = None
        self.run(0)
        self.wait()
        self.first = perf_counter() - began
        """Seconds from nothing to the end of the first step."""

    def run(self, number: int) -> None:
        """Do a step; return while the devices do it."""
        self._engine.enqueue(self._batches[number % len(self._batches)])
        activations = self._engine.dequeue()
        if self._gradients is None:  # as the activations lie, and made once
            self._gradients = {
                name: jax.device_put(pattern(one.shape), one.sharding)
                for name, one in activations.items()
            }
        self._engine.apply_gradients(self._gradients)

    def wait(self) -> None:
        """Return when the devices are done: a row read is one that no update is to change."""
        first, *_ = self._engine.tables.values()
        np.asarray(first[:1])

    def rows(self) -> NDArray[np.float32]:
        """Return the rows of all tables, one table after the other."""
        return np.concatenate([table[:] for table in self._engine.tables.values()])

    @property
    def programs(self) -> int:
        """How many programs were compiled."""
        count: int = self._engine.metrics()["programs"]
        return count

    def close(self) -> None:
        """Let the tables go."""
        self._engine.close()


def pattern(shape: Sequence[int]) -> NDArray[np.float32]:
    """Return gradients that are the same for the same column: the order of bags means nothing."""
    return np.broadcast_to(np.linspace(-1, 1, shape[-1], dtype=np.float32), shape)


def sizes_of(tables: int) -> Sizes:
    """Return as many numbers of rows, in equal ratios from the least to the most."""
    least, most = ROWS[tables]
    return tuple(int(one) for one in np.geomspace(least, most, tables).round())


def engines_of(sizes: Sizes, devices: Sequence[jax.Device]) -> tuple[Engine, Engine, Engine]:
    """Return an engine of tables of these sizes, and two with their rows in one table.

    The second has as many features as the first, the third has all of their bags in one.
    """
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = rng.standard_normal((starts[-1], DIM), np.float32)
    apart = {f"t{at}": rows[starts[at] : starts[at + 1]] for at in range(len(sizes))}
    batches = [
        {name: rng.integers(0, len(held), (BAGS, POOLING)) for name, held in apart.items()}
        for _ in range(BATCHES)
    ]
    numbered = [
        {name: ids + start for (name, ids), start in zip(one.items(), starts, strict=False)}
        for one in batches
    ]
    joined = [{"all": np.concatenate(list(one.values()))} for one in numbered]
    return (
        Engine(apart, {name: name for name in apart}, batches, devices),
        Engine({"all": rows}, dict.fromkeys(apart, "all"), numbered, devices),
        Engine({"all": rows}, {"all": "all"}, joined, devices),
    )


def check_equal(engines: Sequence[Engine]) -> None:
    """Do a step with every batch, and compare all rows.

    Raises
    ------
    AssertionError
        If one differs, or none has changed.
    """
    before = engines[0].rows()
    for number in range(BATCHES):
        for engine in engines:
            engine.run(number)
    after = engines[0].rows()
    for other in engines[1:]:
        np.testing.assert_allclose(after, other.rows(), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(before, after)


HEADER: Final = (
    "| devices | tables | programs | build and first step | a step "
    "| one table, as many features: ratio | one table, one feature: ratio |\n"
    "|--:|--:|--:|--:|--:|--:|--:|"
)


def lines(options: argparse.Namespace, devices: Sequence[jax.Device]) -> Iterator[str]:
    """Yield the lines of the table for some devices."""
    for tables in options.tables:
        engines = engines_of(sizes_of(tables), devices)
        check_equal(engines)
        turns = [Contender(engine.run, engine.wait, options.steps) for engine in engines]
        many, *of_one = seconds_per_step(turns, options.rounds)
        cells = [str(len(devices)), str(tables), str(engines[0].programs)]
        cells += [duration(engines[0].first), duration(statistics.median(many))]
        for seconds in of_one:
            low, median, high = np.quantile(many / seconds, [0.1, 0.5, 0.9])
            cells.append(
                f"{duration(statistics.median(seconds))}: **{median:.2f}**, {low:.2f} to {high:.2f}"
            )
        yield f"| {' | '.join(cells)} |"
        for engine in engines:
            engine.close()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.jax_tables", description=__doc__)
    parser.add_argument("--platform", default="cpu", help="cpu, cuda, tpu, ...")
    parser.add_argument("--devices", type=int, nargs="+", help="such as: 1 8; default: 1 and all")
    parser.add_argument("--tables", type=int, nargs="+", choices=list(ROWS), default=[26])
    parser.add_argument("--rounds", type=int, default=15, help="pairs per comparison")
    parser.add_argument("--steps", type=int, default=20, help="steps in a turn")
    options = parser.parse_args(argv)
    if min(options.rounds, options.steps, *(options.devices or [1])) < 1:
        parser.error("--rounds, --steps and --devices must be at least 1")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    options = arguments(argv)
    found = jax.devices(options.platform)
    print(f"shardcore {sc.__version__}, jax {jax.__version__}; ", end="")
    print(f"{found[0].device_kind}, {os.cpu_count()} cores")
    print(f"a feature of {BAGS} bags x {POOLING} ids for each table, dim {DIM}, Adagrad")
    print(f"{options.rounds} rounds of {options.steps} steps\n\n{HEADER}", flush=True)
    for count in options.devices or sorted({1, len(found)}):
        if len(found) < count:
            print(f"{count} devices left out: {options.platform} has {len(found)}")
            continue
        for line in lines(options, found[:count]):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
