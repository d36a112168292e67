"""Input that nobody means: nested thousands deep, too large to exist, names no system takes."""

from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import shardcore as sc
from shardcore.errors import (
    ShardcoreError,
    ShardcoreMemoryError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)


def nested(leaf: Any, depth: int = 5000) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


class Rude:
    def __repr__(self) -> str:
        raise KeyError("no repr")


TABLE = sc.TableConfig(10, 2, name="t", optimizer=sc.optimizers.SGD())
ROWS = np.ones((10, 2), np.float32)
DEEP = nested(1)


@pytest.fixture(params=["cpu", "sim"])
def engine(request: pytest.FixtureRequest) -> Any:
    with sc.ShardedEmbedding({"a": sc.FeatureConfig(TABLE)}, backend=request.param) as e:
        yield e


def raises(call: Any, error: type[ShardcoreError], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


# --- nested thousands deep -----------------------------------------------------------------------


def test_a_list_is_shown_where_that_helps() -> None:
    """Python 3.12 and later have a repr of every depth."""
    longer: list[Any] = []
    for _ in range(65):
        longer = [0, longer]
    for some in (nested(1, 64), [[1]] * 100, ([], {}, ()) * 50):
        assert shown(some) == repr(some)
    for deep in (nested(1, 65), [0, nested(1, 65)], longer):
        assert shown(deep) == "<list>"


TOO_DEEP = "must be nested at most 64 deep, got deeper"


@pytest.mark.parametrize("depth", [65, 5000])
@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x: sc.embedding_lookup(ROWS, x), "ids"),
        (lambda x: sc.embedding_lookup([x], [0]), None),
        (lambda x: sc.hash_ids(x, 5), "ids"),
        (lambda x: sc.Ragged(x, [0, 1]), "values"),
        (lambda x: sc.Ragged([1], x), "row_splits"),
        (lambda x: sc.Ragged([1], [0, 1], x), "weights"),
        (lambda x: sc.Ragged.from_lengths([1], x), "lengths"),
        (lambda x: sc.Ragged.from_dense(x, padding=0), None),
        (lambda x: sc.Sparse(x, [1], [1, 1]), "indices"),
        (lambda x: sc.TableConfig(10, 2, initializer=x), "initializer"),
        (lambda x: sc.create_variable((4, 2), initializer=x), None),
        (lambda x: sc.create_variable((4, 2)).scatter_add(x, 1.0), "indices"),
        (lambda x: sc.create_variable((4, 2)).scatter_add([1], x), None),
        (lambda x: sc.create_variable((4, 2)).gather_nd(x), "indices"),
        (lambda x: sc.create_variable((4, 2)).sparse_read(x), "indices"),
        (lambda x: sc.create_variable((4, 2))[x], None),
        (lambda x: sc.create_variable((4, 2)).assign(x), None),
    ],
)
def test_lists_nested_too_deep_for_an_array(call: Any, argument: str | None, depth: int) -> None:
    """Where the argument is None, NumPy says why."""
    for leaf in (1, 1.5):
        if argument is None:
            with pytest.raises(ShardcoreError):
                call(nested(leaf, depth))
        else:
            raises(
                lambda x=leaf: call(nested(x, depth)), ShardcoreValueError, f"{argument} {TOO_DEEP}"
            )


def test_what_an_array_can_have_is_taken() -> None:
    assert sc.hash_ids(nested(1, 64), 5).ndim == 64


@pytest.mark.parametrize(
    "give",
    [
        lambda e, x: e({"a": x}),
        lambda e, x: e({"a": [[1], [2, x]]}),
        lambda e, x: e({"a": (x, [0, 1])}),
        lambda e, x: e({"a": [[1]]}, {"a": x}),
        lambda e, x: e({"a": x}, {"a": x}),
        lambda e, x: e(x),
        lambda e, x: e.enqueue({"a": x}),
        lambda e, x: sc.serving_embedding_lookup({"a": x}, None, {TABLE: ROWS}, FEATURES),
        lambda e, x: sc.embedding_lookup_sparse(ROWS, x),
        lambda e, x: sc.safe_embedding_lookup_sparse(ROWS, x),
        lambda e, x: sc.Ragged.from_lists(x),
        lambda e, x: sc.ShardedEmbedding(x),
        lambda e, x: sc.ShardedEmbedding(FEATURES, optimizer=x),
        lambda e, x: sc.TableConfig(x, 2),
        lambda e, x: sc.TableConfig(2, 2, name=x),
        lambda e, x: sc.TableConfig(2, 2, combiner=x),
        lambda e, x: sc.TableConfig(2, 2, dtype=x),
        lambda e, x: sc.TableConfig(2, 2, optimizer=x),
        lambda e, x: sc.FeatureConfig(x),
        lambda e, x: sc.FeatureConfig(TABLE, invalid_ids=x),
        lambda e, x: sc.create_variable(x),
        lambda e, x: sc.create_variable((4,), partitioner=x),
        lambda e, x: sc.Checkpoint(e=x),
    ],
)
@pytest.mark.parametrize("rude", [False, True], ids=["deep", "rude"])
def test_hostile_objects_are_refused_by_name(engine: Any, give: Any, rude: bool) -> None:
    """Neither a list without a repr nor an object whose repr raises hides the error."""
    with pytest.raises(ShardcoreError):
        give(engine, Rude() if rude else DEEP)
    assert engine({"a": [[1]]})["a"].shape == (1, 2)


FEATURES = {"a": sc.FeatureConfig(TABLE)}


def test_gradients_nested_too_deep_leave_the_batch(engine: Any) -> None:
    engine.enqueue({"a": [[1]]})
    before = engine.dequeue()["a"].copy()
    raises(
        lambda: engine.apply_gradients({"a": DEEP}),
        ShardcoreValueError,
        f"gradients['a'] {TOO_DEEP}",
    )
    engine.apply_gradients({"a": np.ones((1, 2))})
    assert engine.step == 1
    assert (engine({"a": [[1]]})["a"] != before).all()


def test_a_number_nested_deep_in_a_bag_is_shown_by_its_type() -> None:
    raises(
        lambda: sc.Ragged.from_lists([[1, nested(2)]]),
        ShardcoreTypeError,
        "lists[0][1] must be a number, got <list>",
    )


def test_structures_have_a_depth() -> None:
    message = "features must be nested at most 100 deep, got deeper"
    leaf = sc.FeatureConfig(TABLE)
    raises(lambda: sc.ShardedEmbedding(nested(leaf)), ShardcoreValueError, message)
    raises(lambda: sc.ShardedEmbedding(nested(leaf, 101)), ShardcoreValueError, message)
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    raises(lambda: sc.ShardedEmbedding(round_and_round), ShardcoreValueError, message)
    with sc.ShardedEmbedding(nested(leaf, 100)) as e:
        found = e(nested(np.array([[1]]), 100))
        for _ in range(100):
            (found,) = found
        assert found.shape == (1, 2)


def test_checkpointed_structures_have_a_depth() -> None:
    message = "object 'x' must be nested at most 100 deep"
    raises(lambda: sc.Checkpoint(x=nested(np.zeros(1))), ShardcoreValueError, message)
    raises(lambda: sc.Checkpoint(x=nested(np.zeros(1), 101)), ShardcoreValueError, message)
    sc.Checkpoint(x=nested(np.zeros(1), 100))


# --- too large to exist --------------------------------------------------------------------------


def test_a_table_that_no_address_can_name_is_refused() -> None:
    raises(
        lambda: sc.TableConfig(2**63 - 1, 1, name="user"),
        ShardcoreValueError,
        "table 'user' must have fewer than 2**63 bytes, got 36893488147419103228: "
        "shape (9223372036854775807, 1) of float32",
    )
    raises(
        lambda: sc.TableConfig(2**40, 2**30, dtype="float16"),
        ShardcoreValueError,
        "the table must have fewer than 2**63 bytes, got 2361183241434822606848: "
        "shape (1099511627776, 1073741824) of float16",
    )
    assert sc.TableConfig(2**61 - 1, 1).vocabulary_size == 2**61 - 1


@pytest.mark.parametrize("backend", ["cpu", "sim"])
@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [(2**50, "float32"), (2**61 - 1, "float32"), (2**62 - 1, "float16"), (2**47, "bfloat16")],
)
def test_a_table_without_room_is_an_error_of_both_kinds(
    backend: str, placement: str, rows: int, dtype: str
) -> None:
    """Slots are counted, which may be the larger part: those of float16 tables are float32."""
    optimizer = sc.optimizers.Adagrad()
    small = sc.FeatureConfig(sc.TableConfig(4, 2, name="small"))
    table = sc.TableConfig(
        rows, 1, name="big", dtype=dtype, optimizer=optimizer, placement=placement
    )
    e = sc.ShardedEmbedding({"small": small, "big": sc.FeatureConfig(table)}, backend=backend)
    size = rows * (np.dtype(table.dtype).itemsize + 4)
    message = (
        f"table 'big' of {rows} x 1 {dtype} has no room: with its slots it needs {size} bytes: "
        "no room for "
    )
    for build in (e.build, lambda: e({"small": [[1]], "big": [[1]]})):
        with pytest.raises(MemoryError, match=f"^{re.escape(message)}") as caught:
            build()
        assert type(caught.value) is ShardcoreMemoryError
    assert "not built" in repr(e)
    assert e._backend.specs == {}, "all tables or none"


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((2**63 - 1,), "float32", 4 * (2**63 - 1)),
        ((2**62, 2), "int8", 2**63),
        ((2**70,), "int64", 2**73),
        ((2**40, 2**40), "float16", 2**81),
        ((0, 2**62), "float32", 2**64),
        ((2**62,), "S5", 5 * 2**62),
    ],
)
def test_variables_that_no_address_can_name(shape: Any, dtype: str, size: int) -> None:
    message = (
        f"the variable must have fewer than 2**63 bytes, got {size}: shape {shape} of "
        f"{np.dtype(dtype)}"
    )
    zeros = sc.initializers.Zeros()
    ones = [1] * len(shape)
    for call in (
        lambda: sc.create_variable(shape, dtype),
        lambda: sc.create_variable(shape, dtype, num_shards=3),
        lambda: sc.create_variable(shape, dtype, sc.FixedShardsPartitioner(3)),
        lambda: sc.create_partitioned_variables(shape, ones, zeros, dtype=dtype),
    ):
        raises(call, ShardcoreValueError, message)


def test_variables_without_room() -> None:
    message = "no room for 4503599627370496 bytes, an array of float32 of shape (1125899906842624,)"
    zeros = sc.initializers.Zeros()
    raises(lambda: sc.create_variable((2**50,)), ShardcoreMemoryError, message)
    create = sc.create_partitioned_variables
    raises(lambda: create((2**50,), [1], zeros), ShardcoreMemoryError, message)


@pytest.mark.parametrize("shards", [2**31, 2**70])
def test_shards_without_a_number(shards: int) -> None:
    message = f"shards must be at most 2**31 - 1, got {shards}"
    raises(lambda: sc.create_variable((4,), num_shards=shards), ShardcoreValueError, message)
    raises(lambda: sc.Layout.mod(4, shards), ShardcoreValueError, message)


# --- names and dtypes ----------------------------------------------------------------------------


class Somewhere(os.PathLike[Any]):
    def __init__(self, path: Any) -> None:
        self._path = path

    def __fspath__(self) -> Any:
        return self._path


CHECKPOINT = sc.Checkpoint(w=np.zeros(2))
OF_PATHS = [
    pytest.param(lambda path: CHECKPOINT.save(path, step=1), "root", id="save"),
    pytest.param(lambda path: CHECKPOINT.restore(path), "path", id="restore"),
    pytest.param(sc.checkpoint.steps, "root", id="steps"),
    pytest.param(sc.checkpoint.latest, "root", id="latest"),
    pytest.param(sc.checkpoint.inspect, "path", id="inspect"),
    pytest.param(sc.checkpoint.verify, "path", id="verify"),
]


@pytest.mark.parametrize(("call", "argument"), OF_PATHS)
@pytest.mark.parametrize(("text", "at"), [("a\0b", 1), ("\0", 0), ("root/step\0", 9)])
@pytest.mark.parametrize("kind", [str, pathlib.Path, Somewhere])
def test_paths_with_nul(call: Any, argument: str, text: str, at: int, kind: Any) -> None:
    raises(
        lambda: call(kind(text)),
        ShardcoreValueError,
        f"{argument} must be a path without NUL, got one at position {at} of {text!r}",
    )


@pytest.mark.parametrize(("call", "argument"), OF_PATHS)
def test_paths_that_are_none(call: Any, argument: str) -> None:
    for path in (b"abc", bytearray(b"abc"), 3, None, ["a"], DEEP, Somewhere(b"abc"), Rude()):
        name = type(path).__name__
        raises(lambda p=path: call(p), ShardcoreTypeError, f"{argument} must be a path, got {name}")
    text = "a\ud800b"
    raises(
        lambda: call(text),
        ShardcoreValueError,
        f"{argument} must be a path that the system can name, got '\\ud800' at position 1 of "
        f"{text!r}",
    )
    with pytest.raises(ShardcoreError):
        call("x" * 5000)


def test_names_with_nul_are_saved_and_found_again(tmp_path: pathlib.Path) -> None:
    def make(seed: int) -> Any:
        table = sc.TableConfig(4, 2, name="a\0b", optimizer=sc.optimizers.SGD())
        return sc.ShardedEmbedding([sc.FeatureConfig(table)], seed=seed)

    e, other = make(1), make(2)
    e.build()
    dense, copy = {"k\0": np.arange(3.0)}, {"k\0": np.zeros(3)}
    sc.Checkpoint(e=e, dense=dense).save(tmp_path, 1)
    sc.Checkpoint(e=other, dense=copy).restore(tmp_path)
    np.testing.assert_array_equal(np.asarray(other.tables["a\0b"]), np.asarray(e.tables["a\0b"]))
    np.testing.assert_array_equal(copy["k\0"], dense["k\0"])
    raises(
        lambda: sc.Checkpoint(**{"a\0b": np.zeros(1)}),
        ShardcoreValueError,
        "object names must be non-empty, printable and without '/', got 'a\\x00b'",
    )


@pytest.mark.parametrize("make", [lambda name: sc.TableConfig(4, 2, name=name),
                                  lambda name: sc.FeatureConfig(TABLE, name=name)])  # fmt: skip
def test_names_that_no_file_can_hold(make: Any) -> None:
    message = "name must be valid Unicode, got 'a\\ud800', whose position 1 is none"
    raises(lambda: make("a\ud800"), ShardcoreValueError, message)


@pytest.mark.parametrize(
    "call",
    [
        lambda dtype: sc.TableConfig(4, 2, dtype=dtype),
        lambda dtype: sc.create_variable((4,), dtype),
        lambda dtype: sc.create_partitioned_variables(
            (4,), [2], sc.initializers.Zeros(), dtype=dtype
        ),
        lambda dtype: sc.FixedShardsPartitioner(2)((4,), dtype),
        lambda dtype: sc.MinSizePartitioner()((4,), dtype),
        lambda dtype: sc.MaxSizePartitioner(100)((4,), dtype),
        lambda dtype: sc.fixed_size_partitioner(3)((4,), dtype),
        lambda dtype: sc.min_max_variable_partitioner(3)((4,), dtype),
        lambda dtype: sc.variable_axis_size_partitioner(100)((4,), dtype),
        lambda dtype: sc.initializers.Zeros()([1], (2,), dtype, 0),
        lambda dtype: sc.initializers.Normal()([1], (2,), dtype, 0),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "text"),
    [(None, "None"), ("O,,", "'O,,'"), (("f4", (2**70,)), f"('f4', ({2**70},))"),
     ([1, 2], "[1, 2]"), (DEEP, "<list>"), (Rude(), "<Rude>")],
)  # fmt: skip
def test_dtypes_that_are_none(call: Any, dtype: Any, text: str) -> None:
    """None above all, which NumPy takes for float64."""
    raises(lambda: call(dtype), ShardcoreTypeError, f"dtype must be a dtype, got {text}")
