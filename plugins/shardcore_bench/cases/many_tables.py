"""Steps of whole models: the 26 tables of DLRM-DCNv2, and hundreds of small ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shardcore.planning import IdDistribution
from shardcore_bench.cases.case import Case
from shardcore_bench.cases.step import step_case
from shardcore_bench.goals import at_least
from shardcore_bench.tasks import Bags, StepTask, Update
from shardcore_bench.workload import DISTRIBUTIONS, Sizes, draw_ids

__all__ = ["criteo", "many_small"]

# MLPerf Training's DLRM-DCNv2 on Criteo 1TB, multi-hot: rows, and ids per sample, of each table.
ROWS: Final = (40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000,
               3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000,
               40_000_000, 590_152, 12_973, 108, 36)  # fmt: skip
HOT: Final = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)

GOALS: Final = {"FBGEMM": at_least(1.5)}


def criteo(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Every table of the model at twice the workload's dim, its rows capped."""
    draw, dim, bags = np.random.default_rng(7), 2 * sizes.dim, sizes.criteo_bags
    counts = [min(rows, sizes.criteo_rows) for rows in ROWS]
    tables = [draw.random((rows, dim), np.float32) - np.float32(0.5) for rows in counts]
    gradients = [draw.standard_normal((bags, dim), np.float32) for _ in ROWS]
    for name, distribution in (
        *(("RowwiseAdagrad", distribution) for distribution in (DISTRIBUTIONS[0], "zipf 1.05")),
        ("Adagrad", "zipf 1.05"),
    ):
        features = [
            Bags(
                at,
                draw_ids(draw, distribution, bags * hot, rows),
                np.arange(bags + 1, dtype=np.int64) * hot,
                gradients[at],
            )
            for at, (hot, rows) in enumerate(zip(HOT, counts, strict=True))
        ]
        task = StepTask(tables, features, Update(name))
        yield step_case(f"step, 26 tables of DLRM-DCNv2, {name}, {distribution}", task, {**GOALS})


def many_small(sizes: Sizes, threads: int) -> Iterator[Case]:
    """Bags of 4 to 12 ids, 8 in the mean, used as often as in Meta's dlrm_datasets of 2021."""
    draw, bags = np.random.default_rng(8), sizes.many_bags
    law = IdDistribution("reuse:2021")
    tables, features = [], []
    for at in range(sizes.many_tables):
        shape = (sizes.many_rows, sizes.dim)
        tables.append(draw.random(shape, np.float32) - np.float32(0.5))
        row_splits = np.concatenate(([0], np.cumsum(draw.integers(4, 13, bags))))
        ids = law.draw(draw, int(row_splits[-1]), sizes.many_rows)
        gradient = draw.standard_normal((bags, sizes.dim), np.float32)
        features.append(Bags(at, ids, row_splits, gradient))
    task = StepTask(tables, features, Update("RowwiseAdagrad"))
    name = f"step, {sizes.many_tables} tables, RowwiseAdagrad, pooling 8, reuse of 2021"
    yield step_case(name, task, {**GOALS})
