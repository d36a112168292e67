"""Training steps in one large table: lookup, backward, update."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore_bench import ours
from shardcore_bench.cases.case import Case
from shardcore_bench.contender import LONG_SUMS, Tolerance
from shardcore_bench.goals import STEP_FLOOR, Goal, at_least, of_the_table
from shardcore_bench.tasks import Bags, StepTask, Update
from shardcore_bench.workload import (
    ALL_DISTRIBUTIONS,
    DISTRIBUTIONS,
    Sizes,
    bags_of_ids,
    gradient_of,
    table_rows,
)

__all__ = ["other_forms", "other_optimizers", "step_case", "steps", "widths"]

WIDTHS: Final = (8, 16, 32, 128, 256)
"""Dims of a step beside that of the workload."""

OTHER: Final = {"Adam": "torch", "FTRL": "TensorFlow", "momentum": "TensorFlow"}

# Where a summed gradient is nearly 0, a step of Adam hangs on its last places and on where epsilon
# goes; it is never longer than about the rate.
OF_MOMENTS: Final = Tolerance(relative=1e-3, absolute=1e-4, exceptions=1e-5, limit=0.02)


def steps(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield the optimizers that FBGEMM has too, at every skew of the ids."""
    rows = table_rows(sizes)
    for name in ("RowwiseAdagrad", "SGD", "Adagrad"):
        for distribution in ALL_DISTRIBUTIONS:
            goal = of_the_table(name, distribution, threads)
            task = StepTask([rows], [_whole(sizes, distribution)], Update(name))
            goals = {"FBGEMM": goal, **STEP_FLOOR}
            yield step_case(f"step, {name}, {distribution}", task, goals)


def widths(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield row-wise Adagrad, for which FBGEMM has fast code, in tables of other dims."""
    for dim in WIDTHS:
        of = replace(sizes, dim=dim)
        rows = table_rows(sizes, dim)
        for distribution in DISTRIBUTIONS:
            bags = Bags(0, *bags_of_ids(of, distribution, len(rows)), gradient_of(of))
            task = StepTask([rows], [bags], Update("RowwiseAdagrad"))
            name = f"step, RowwiseAdagrad, dim {dim}, {distribution}"
            yield step_case(name, task, {"FBGEMM": at_least(1), **STEP_FLOOR})


def other_optimizers(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Yield those that it does not have, beside others that do."""
    rows = table_rows(sizes)
    for name, peer in OTHER.items():
        for distribution in DISTRIBUTIONS:
            bags = [_whole(sizes, distribution)]
            tolerance = OF_MOMENTS if name == "Adam" else LONG_SUMS
            task = StepTask([rows], bags, Update(name), tolerance=tolerance)
            goals = {peer: at_least(15), **STEP_FLOOR}
            yield step_case(f"step, {name}, {distribution}", task, goals)


def other_forms(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Row-wise Adagrad where FBGEMM has no fast way: sequences, shared tables, two-byte rows."""
    update, goals = Update("RowwiseAdagrad"), {"FBGEMM": at_least(5)}
    rows = table_rows(sizes)
    for distribution in DISTRIBUTIONS:
        bags = _whole(sizes, distribution)
        yield step_case(
            f"step, sequence, {distribution}",
            StepTask([rows], [_unpooled(sizes, bags)], update, sequence=True),
            goals,
        )
        yield step_case(
            f"step, table of two features, {distribution}",
            StepTask([rows], _halves(sizes, bags), update),
            goals,
        )
    del rows
    dtypes: list[Any] = [np.dtype(np.float16)]
    if importlib.util.find_spec("ml_dtypes") is not None:
        from ml_dtypes import bfloat16

        dtypes.append(np.dtype(bfloat16))
    for dtype in dtypes:
        short = table_rows(sizes, dtype=dtype)
        for update in (Update("RowwiseAdagrad"), Update("RowwiseAdagrad", stochastic=True)):
            rounding = "stochastic rounding, " if update.stochastic else ""
            for distribution in DISTRIBUTIONS:
                task = StepTask([short], [_whole(sizes, distribution)], update)
                name = f"step, {dtype.name} rows, {rounding}{distribution}"
                yield step_case(name, task, goals)


def step_case(name: str, task: StepTask, goals: dict[str, Goal | None] | dict[str, Goal]) -> Case:
    """Return the case of a task: a step of ours against one of each peer."""
    return Case(
        name,
        lambda: ours.step(task),
        lambda peer: peer.step(task),
        goals,
        task.tolerance,
        repeatable=all(rows.dtype.itemsize > 2 for rows in task.tables),
    )


def _whole(sizes: Sizes, distribution: str) -> Bags:
    return Bags(0, *bags_of_ids(sizes, distribution), gradient_of(sizes))


def _unpooled(sizes: Sizes, bags: Bags) -> Bags:
    """Return a quarter of the bags with a gradient for every id."""
    count = sizes.bags // 4
    ids = bags.ids[: count * sizes.pooling]
    draw = np.random.default_rng(6)
    gradient = draw.standard_normal((ids.size, sizes.dim), np.float32)
    return Bags(0, ids, bags.row_splits[: count + 1], gradient)


def _halves(sizes: Sizes, bags: Bags) -> list[Bags]:
    """Return the bags as two features of one table, with half of every bag's ids each."""
    by_bag: NDArray[np.int64] = bags.ids.reshape(sizes.bags, sizes.pooling)
    gradients = (bags.gradient, bags.gradient[::-1].copy())
    return [
        Bags(0, half.reshape(-1).copy(), np.arange(sizes.bags + 1) * half.shape[1], gradient)
        for half, gradient in zip(np.array_split(by_bag, 2, axis=1), gradients, strict=True)
    ]
