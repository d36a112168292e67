"""Rows are combined where they lie, in one array, many shards or an engine's table, and alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.backend.messages import TableBatch
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.sharding.layout import Layout
from shardcore.store import DIVIDED
from shardcore.testing.requests import make_bags, make_spec
from shardcore.variable.row_store import ArrayRowStore, BackendRowStore

LAYOUTS = {
    "equal blocks": lambda rows: Layout.div(rows, 8),
    "mod": lambda rows: Layout.mod(rows, 7),
    "ranges, some empty": lambda rows: Layout.from_sizes([0, rows // 3, 0, 1, rows * 2 // 3 - 1]),
    "one": lambda rows: Layout.div(rows, 1),
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = sc.get_num_threads()
    sc.set_num_threads(2)
    yield
    sc.set_num_threads(before)


def sharded(whole: np.ndarray[Any, Any], layout: Layout) -> sc.ShardedVariable:
    arrays = [whole[layout.global_rows(shard)] for shard in range(layout.num_shards)]
    return sc.ShardedVariable.from_store(ArrayRowStore(arrays, layout), "table")


def bags_of(rng: np.random.Generator, bags: int, rows: int) -> tuple[Any, Any]:
    lengths = rng.integers(0, 40, bags)
    splits = np.concatenate(([0], np.cumsum(lengths)))
    return rng.integers(0, rows, int(splits[-1])), splits


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_shards_are_combined_as_one_array_is(
    make: Callable[[int], Layout],
    dtype: str,
    combiner: str,
    weighted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(5)
    rows, dim = 5001, 37
    whole = rng.standard_normal((rows, dim)).astype(as_dtype(dtype))
    variable = sharded(whole, make(rows))
    ids, splits = bags_of(rng, 3000, rows)
    weights = rng.random(ids.size).astype(working_dtype(whole.dtype)) if weighted else None
    bags = sc.Ragged(ids, splits, weights)
    monkeypatch.delattr(ArrayRowStore, "gather")  # nothing is copied first
    expected = sc.embedding_lookup_sparse(whole, bags, combiner=combiner)
    found = sc.embedding_lookup_sparse(variable, bags, combiner=combiner)
    np.testing.assert_array_equal(found, expected, strict=True)
    prepared = [sc.prepare_lookup(table, combiner) for table in (whole, variable)]
    small = slice(0, 3)
    for part in (slice(None), small):
        few = splits[: None if part == slice(None) else 4]
        some = slice(0, int(few[-1]))
        one, other = (
            lookup(ids[some].astype(np.int32), few, None if weights is None else weights[some])
            for lookup in prepared
        )
        np.testing.assert_array_equal(other, one, strict=True)


def test_shards_that_are_no_plain_arrays_are_gathered() -> None:
    rng = np.random.default_rng(6)
    whole = rng.standard_normal((100, 6))
    ids, splits = bags_of(rng, 30, 100)
    expected = sc.embedding_lookup_sparse(whole.copy(), sc.Ragged(ids, splits))
    strided = [np.asfortranarray(part) for part in np.array_split(whole, 3)]
    found = sc.embedding_lookup_sparse(sc.ShardedVariable(strided), sc.Ragged(ids, splits))
    np.testing.assert_array_equal(found, expected)
    assert not ArrayRowStore(strided, Layout.div(100, 3)).combine(None, np.empty((1, 6)))  # type: ignore[arg-type]


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_lookup_into_an_array_writes_what_the_lookup_returns(
    backend: str, quantized: bool
) -> None:
    rng = np.random.default_rng(3)
    rounding = sc.QuantizationConfig(5, -1.0, 1.0) if quantized else None
    spec = make_spec("t", 50, 6, quantization=rounding)
    bags = make_bags(rng, spec, 20, combiner="mean", weighted=True)
    owner = sc.get_backend(backend)
    owner.create_table(spec)
    ((expected,),) = owner.lookup([TableBatch("t", (bags,))])
    out = np.full_like(expected, 7)
    owner.lookup_into("t", bags, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_given_bags_are_combined_where_rows_are_seen_as_they_lie(
    backend: str, quantized: bool
) -> None:
    rng = np.random.default_rng(3)
    rounding = sc.QuantizationConfig(5, -1.0, 1.0) if quantized else None
    spec = make_spec("t", 50, 6, quantization=rounding)
    bags = make_bags(rng, spec, 20, combiner="mean")
    owner = sc.get_backend(backend)
    owner.create_table(spec)
    ((expected,),) = owner.lookup([TableBatch("t", (bags,))])
    out = np.full_like(expected, 7)
    done = owner.lookup_given("t", bags.ids, bags.row_splits, None, DIVIDED["mean"], out)
    assert done is (backend == "cpu" and not quantized)
    np.testing.assert_array_equal(out, expected if done else 7)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_an_engine_s_table_is_read_where_it_lies_unless_its_rows_are_rounded(
    backend: str, quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view shows rows as they are stored, and so does a lookup in it."""
    rng = np.random.default_rng(7)
    rounding = sc.QuantizationConfig(5, -1.0, 1.0) if quantized else None
    table = sc.TableConfig(50, 4, name="t", combiner="sum", quantization_config=rounding)
    ids, splits = bags_of(rng, 20, 50)
    with sc.ShardedEmbedding(sc.FeatureConfig(table), backend=backend) as engine:
        engine.build()
        view = engine.tables["t"]
        lookup = sc.prepare_lookup(view)
        expected = sc.prepare_lookup(view[:])(ids, splits)
        asked: list[int] = []
        gather = BackendRowStore.gather
        monkeypatch.setattr(
            BackendRowStore, "gather", lambda self, rows: asked.append(1) or gather(self, rows)
        )
        np.testing.assert_array_equal(lookup(ids, splits), expected)
        assert bool(asked) == quantized
        view[3] += 1.0
        np.testing.assert_array_equal(lookup(np.array([3]), np.array([0, 1]))[0], view[3])
    with pytest.raises(sc.errors.ShardcoreRuntimeError, match="gone: its engine was closed"):
        lookup(ids, splits)
