"""Updates one by one, without a sum: every occurrence is told the row's number in the whole table.

A host's store, a batch and a block of it number rows in ways of their own; on `sim` all of these
differ from the table's.
"""

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest

import shardcore as sc
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.initializers.base import derived_seed
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.compiled import UpdateFunction, update_prototype
from shardcore.reference import stochastic_round
from shardcore.store.rounding import step_seed

ROWS, DIM, SEED = 97, 5, 11
ENGINES = [
    ("cpu", {}, "div", "row"),
    ("cpu", {}, "mod", "row"),
    ("sim", {"hosts": 3}, "mod", "row"),
    ("sim", {"hosts": 4}, "div", "row"),
    ("sim", {"hosts": 2}, "div", "column"),
]


@dataclass(frozen=True, eq=False, repr=False)
class ByNumber(Optimizer):
    """w = w / 2 - g / 4 + row / 64, of each occurrence: the order and the row's number show."""

    learning_rate: float = 0.25
    accumulate = False
    rounds_stochastically = True

    def update(self, grad, rows, slots, hyper, step, row_ids):
        number = np.asarray(row_ids, rows.dtype)[:, None]
        return rows / 2 - grad.dtype.type(hyper[0]) * grad + number / 64, {}


MADE = {}


class CompiledByNumber(ByNumber):
    """The same through a C function."""

    def compiled(self, dtype):
        working = working_dtype(as_dtype(dtype)).name
        if working not in MADE:

            def function(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
                for u in range(count):
                    for c in range(dim):
                        moved = rows[u][c] / 2 - hyper[0] * gradients[u * dim + c]
                        rows[u][c] = moved + row_ids[u] / 64

            callback = update_prototype(working)(function)
            assert isinstance(callback, ctypes._CFuncPtr)
            MADE[working] = UpdateFunction.from_ctypes(callback)
        return MADE[working]


def trained(optimizer, dtype, engine):
    """Return the table after three batches, and the table and batches that it had."""
    backend, options, layout, placement = engine
    rng = np.random.default_rng(3)
    table = sc.TableConfig(
        *(ROWS, DIM),
        combiner="sum",
        name="t",
        dtype=dtype,
        layout=layout,
        placement=placement,
        initializer=sc.initializers.Zeros(),
    )
    features = {key: sc.FeatureConfig(table) for key in "ab"}
    batches = []
    with sc.ShardedEmbedding(
        features, optimizer=optimizer, backend=backend, backend_options=options, seed=SEED
    ) as e:
        for _ in range(3):
            ids = {key: rng.integers(30, ROWS, 90) for key in features}
            gradients = {key: rng.integers(-64, 64, (90, DIM)) / 64 for key in features}
            e.enqueue(ids)
            e.dequeue()
            working = working_dtype(as_dtype(dtype))
            e.apply_gradients({key: one.astype(working) for key, one in gradients.items()})
            batches.append([np.concatenate([one["a"], one["b"]]) for one in (ids, gradients)])
        return np.asarray(e.tables["t"]), batches


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("shardcore.threads.team.PIECE", 64)
    before = sc.get_num_threads()
    sc.set_num_threads(2)
    yield
    sc.set_num_threads(before)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("kind", [ByNumber, CompiledByNumber])
def test_each_occurrence_is_told_the_number_in_the_whole_table(kind, engine):
    found, batches = trained(kind(), "float64", engine)
    expected = np.zeros((ROWS, DIM))
    for ids, gradients in batches:
        for row, gradient in zip(ids, gradients, strict=True):
            expected[row] = expected[row] / 2 - gradient / 4 + row / 64
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("kind", [ByNumber, CompiledByNumber])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chance_is_that_of_the_number_in_the_whole_table(kind, dtype, engine):
    found, batches = trained(kind(), dtype, engine)
    expected = np.zeros((ROWS, DIM), as_dtype(dtype))
    for step, (ids, gradients) in enumerate(batches, start=1):
        after = expected.astype(np.float64)
        for row, gradient in zip(ids, gradients, strict=True):
            after[row] = after[row] / 2 - gradient / 4 + row / 64
        assert (after == after.astype(np.float32)).all()  # nothing is rounded on the way
        named = np.unique(ids)
        now = step_seed(derived_seed(SEED, "t"), step)
        exact = after[named].astype(np.float32)
        expected[named] = stochastic_round(exact, expected.dtype, named, now)
    np.testing.assert_array_equal(found, expected)
    assert (found != after.astype(found.dtype)).any()  # the nearest is not always it
