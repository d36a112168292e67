"""A slice of rows, whatever holds them and whatever its step, is NumPy's slice of the whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.sharding.layout import Layout
from shardcore.variable.row_store import ArrayRowStore

ROWS = 11
BORDERS = (None, 0, 3, -2, ROWS, -ROWS, 20, -20)
STEPS = (None, 1, 2, -1, -2, -5, 7)
SLICES = [slice(*parts) for parts in itertools.product(BORDERS, BORDERS, STEPS)]
LAYOUTS = [Layout.div(ROWS, 4), Layout.mod(ROWS, 4), Layout.from_sizes([0, 5, 0, 6])]


def in_shards(layout: Layout) -> Iterator[Any]:
    whole = np.arange(3.0 * ROWS).reshape(ROWS, 3)
    shards = [whole[layout.global_rows(shard)] for shard in range(layout.num_shards)]
    yield sc.ShardedVariable.from_store(ArrayRowStore(shards, layout), "rows"), whole


def of_engine(backend: str, hosts: int, layout: str) -> Iterator[Any]:
    table = sc.TableConfig(ROWS, 3, initializer=sc.initializers.RowId(), layout=layout, name="rows")
    options = {"hosts": hosts} if backend == "sim" else None
    with sc.ShardedEmbedding(sc.FeatureConfig(table), None, backend, options) as engine:
        engine.build()
        rows = np.arange(ROWS, dtype=np.float32)
        yield engine.tables["rows"], np.repeat(rows[:, None], 3, axis=1)


STORES = {
    **{f"shards, {layout!r}": (in_shards, (layout,)) for layout in LAYOUTS},
    "engine, cpu": (of_engine, ("cpu", 1, "div")),
    "engine, 3 hosts, div": (of_engine, ("sim", 3, "div")),
    "engine, 3 hosts, mod": (of_engine, ("sim", 3, "mod")),
}


@pytest.mark.parametrize(("make", "arguments"), STORES.values(), ids=STORES)
def test_every_slice_is_numpys(make: Any, arguments: Any) -> None:
    for view, whole in make(*arguments):
        for part in SLICES:
            np.testing.assert_array_equal(view[part], whole[part], str(part), strict=True)
            np.testing.assert_array_equal(view[part, 1], whole[part, 1], str(part), strict=True)
