"""TableConfig, FeatureConfig, QuantizationConfig: what they keep and every refusal."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.backend.quantization import QuantizationConfig
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.hyperparameters import LearningRate


def refuses(error: type[Exception], text: str):
    return pytest.raises(error, match="^" + re.escape(text))


@dataclass(frozen=True, eq=False, repr=False)
class Descent(Optimizer):
    learning_rate: LearningRate = 0.1

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows - hyper[0] * grad, {}


def ones(rows, row_shape, dtype, seed):
    return np.ones((len(rows), *row_shape), dtype)


# -- TableConfig --------------------------------------------------------------------------------


def test_table_defaults():
    t = TableConfig(10, 4)
    assert {f.name: getattr(t, f.name) for f in dataclasses.fields(t)} == {
        "vocabulary_size": 10,
        "dim": 4,
        "initializer": None,
        "optimizer": None,
        "combiner": "mean",
        "name": None,
        "dtype": np.dtype(np.float32),
        "quantization_config": None,
        "layout": None,
        "placement": "row",
        "exchange": "exact",
        "max_norm": None,
    }


def test_table_keeps_what_it_is_given():
    optimizer, quantization = Descent(), QuantizationConfig(8, -1, 1)
    t = TableConfig(
        np.int64(10), np.uint8(4), initializer=ones, optimizer=optimizer, combiner="sqrtn",
        name="user", dtype=np.float64, quantization_config=quantization, layout="mod",
        placement="column", exchange="partial",
    )  # fmt: skip
    assert type(t.vocabulary_size) is type(t.dim) is int
    assert t.initializer is ones
    assert t.optimizer is optimizer
    assert t.quantization_config is quantization
    assert (t.combiner, t.name, t.layout, t.placement, t.exchange) == (
        "sqrtn", "user", "mod", "column", "partial",
    )  # fmt: skip
    assert t.dtype == np.float64
    assert TableConfig(1, 1, dtype="bfloat16").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("given", [[3, 0, 7], (3, 0, 7), np.array([3, 0, 7], np.uint8), range(5)])
def test_row_counts_are_kept_as_a_tuple(given):
    t = TableConfig(10, 4, name="user", layout=given)
    assert t.layout == tuple(int(size) for size in given)
    assert all(type(size) is int for size in t.layout)
    copied = pickle.loads(pickle.dumps(t))
    assert copied.layout == t.layout
    assert repr(copied) == repr(t) == f"TableConfig(10, 4, name='user', layout={t.layout})"
    assert {t: 1}[t] == 1


def test_table_takes_an_array_of_its_shape_without_copying_it():
    array = np.zeros((10, 4), np.float32)
    t = TableConfig(10, 4, initializer=array)
    assert isinstance(t.initializer, np.ndarray)
    assert np.shares_memory(t.initializer, array)
    listed = TableConfig(2, 2, initializer=[[1, 2], [3, 4]])
    assert isinstance(listed.initializer, np.ndarray)
    assert listed.initializer.tolist() == [[1, 2], [3, 4]]


def test_configs_are_equal_to_themselves_only_and_frozen():
    a, b = TableConfig(10, 4), TableConfig(10, 4)
    f, g = FeatureConfig(a), FeatureConfig(a)
    assert a == a
    assert a != b
    assert f == f
    assert f != g
    assert len({a, b}) == len({f, g}) == 2
    for config, field in ((a, "dim"), (f, "table")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field, 3)


def test_copies_and_pickles_keep_features_and_tables_together():
    t = TableConfig(10, 4, name="user", optimizer=Descent())
    for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        a, b = copied([FeatureConfig(t), FeatureConfig(t, 3)])
        assert a.table is b.table
        assert a.table is not t
        assert repr(a) == repr(FeatureConfig(t))


def test_table_repr():
    assert repr(TableConfig(10, 4)) == "TableConfig(10, 4)"
    t = TableConfig(
        10, 4, initializer=np.zeros((10, 4)), optimizer=Descent(), combiner="sum", name="user",
        dtype="float16", quantization_config=QuantizationConfig(8, -1, 1), layout="mod",
    )  # fmt: skip
    assert repr(t) == (
        "TableConfig(10, 4, initializer=<array (10, 4) float64>, "
        "optimizer=Descent(learning_rate=0.1), combiner='sum', name='user', dtype='float16', "
        "quantization_config=QuantizationConfig(num_buckets=8, lower=-1.0, upper=1.0), "
        "layout='mod')"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"vocabulary_size": 0}, ShardcoreValueError,
         "vocabulary_size must be an integer >= 1, got 0"),
        ({"vocabulary_size": True}, ShardcoreTypeError,
         "vocabulary_size must be an integer >= 1, got True"),
        ({"vocabulary_size": np.True_}, ShardcoreTypeError,
         "vocabulary_size must be an integer >= 1, got np.True_"),
        ({"vocabulary_size": 10.0}, ShardcoreTypeError,
         "vocabulary_size must be an integer >= 1, got 10.0"),
        ({"vocabulary_size": 2**63}, ShardcoreValueError,
         "vocabulary_size must fit into int64, got 9223372036854775808"),
        ({"dim": -4}, ShardcoreValueError, "dim must be an integer >= 1, got -4"),
        ({"dim": "4"}, ShardcoreTypeError, "dim must be an integer >= 1, got '4'"),
        ({"initializer": np.zeros((4, 10))}, ShardcoreValueError,
         "initializer must have the table's shape (10, 4), got shape (4, 10)"),
        ({"initializer": np.zeros((10, 4), complex)}, ShardcoreTypeError,
         "initializer must be float16, bfloat16, float32 or float64, got dtype complex128"),
        ({"initializer": np.zeros((10, 4), bool)}, ShardcoreTypeError,
         "initializer must be float16, bfloat16, float32 or float64, got dtype bool"),
        ({"initializer": 0.5}, ShardcoreTypeError, "initializer must be an array, got float"),
        ({"initializer": Descent}, ShardcoreTypeError,
         "initializer must be a callable or an array, got <class "),
        ({"optimizer": "adam"}, ShardcoreTypeError,
         "optimizer must be an Optimizer or None, got 'adam'"),
        ({"optimizer": Descent}, ShardcoreTypeError,
         "optimizer must be an Optimizer or None, got <class "),
        ({"combiner": "min"}, ShardcoreValueError,
         "combiner must be one of 'mean', 'sum', 'sqrtn', 'max', got 'min'"),
        ({"combiner": None}, ShardcoreTypeError,
         "combiner must be one of 'mean', 'sum', 'sqrtn', 'max', got None"),
        ({"name": ""}, ShardcoreValueError, "name must not be empty"),
        ({"name": 3}, ShardcoreTypeError, "name must be a string or None, got 3"),
        ({"dtype": "int32"}, ShardcoreTypeError,
         "dtype must be float32, float64, float16 or bfloat16, got 'int32'"),
        ({"dtype": "floaty"}, ShardcoreTypeError, "dtype must be a dtype, got 'floaty'"),
        ({"quantization_config": 8}, ShardcoreTypeError,
         "quantization_config must be a QuantizationConfig or None, got 8"),
        ({"layout": "contiguous"}, ShardcoreValueError,
         "layout must be one of 'div', 'mod' or a sequence of row counts, got 'contiguous'"),
        ({"layout": 10}, ShardcoreTypeError,
         "layout must be one of 'div', 'mod' or a sequence of row counts, got 10"),
        ({"layout": b"\x0a"}, ShardcoreTypeError,
         "layout must be one of 'div', 'mod' or a sequence of row counts, got b'\\n'"),
        ({"layout": [3, -1, 8]}, ShardcoreValueError,
         "layout[1] must be an integer >= 0, got -1"),
        ({"layout": [3, 7.0]}, ShardcoreTypeError, "layout[1] must be an integer >= 0, got 7.0"),
        ({"layout": [3, 0, 5]}, ShardcoreValueError,
         "layout must have row counts that sum to vocabulary_size = 10, got (3, 0, 5), "
         "which sum to 8"),
        ({"layout": [3, 8]}, ShardcoreValueError,
         "layout must have row counts that sum to vocabulary_size = 10, got (3, 8), "
         "which sum to 11"),
        ({"layout": []}, ShardcoreValueError,
         "layout must have row counts that sum to vocabulary_size = 10, got (), which sum to 0"),
        ({"placement": "host"}, ShardcoreValueError,
         "placement must be one of 'row', 'table', 'column', 'replicated', got 'host'"),
        ({"exchange": True}, ShardcoreTypeError,
         "exchange must be one of 'exact', 'partial', got True"),
    ],
)  # fmt: skip
def test_table_refusals(arguments, error, text):
    with refuses(error, text):
        TableConfig(**{"vocabulary_size": 10, "dim": 4, **arguments})


def test_a_class_in_place_of_an_instance_is_told_what_to_write():
    for argument in ("initializer", "optimizer"):
        with pytest.raises(ShardcoreTypeError, match=re.escape("; write Descent(...)") + "$"):
            TableConfig(10, 4, **{argument: Descent})
    with pytest.raises(ShardcoreTypeError, match=re.escape("; write TableConfig(...)") + "$"):
        FeatureConfig(TableConfig)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "quantization", [QuantizationConfig(8, -1e39, 1), QuantizationConfig(2, 0, 1e-42)]
)
def test_quantization_must_fit_the_table(quantization):
    with refuses(
        ShardcoreValueError,
        "quantization_config must have bounds and a step that float32 can hold, "
        f"got {quantization!r}",
    ):
        TableConfig(10, 4, dtype="float16", quantization_config=quantization)
    table = TableConfig(10, 4, dtype="float64", quantization_config=quantization)
    assert table.quantization_config is quantization


# -- FeatureConfig ------------------------------------------------------------------------------

TABLE = TableConfig(10, 4, name="user")


def test_feature_defaults_and_what_it_keeps():
    f = FeatureConfig(TABLE)
    assert (f.table, f.max_sequence_length, f.output_shape, f.invalid_ids, f.name) == (
        TABLE, 0, None, "raise", None,
    )  # fmt: skip
    f = FeatureConfig(TABLE, np.int32(5), output_shape=[2, np.int64(0)], invalid_ids=np.int8(9))
    assert (f.max_sequence_length, f.output_shape, f.invalid_ids) == (5, (2, 0), 9)
    assert type(f.max_sequence_length) is type(f.invalid_ids) is int
    assert FeatureConfig(TABLE, output_shape=()).output_shape == ()
    assert FeatureConfig(TABLE, output_shape=np.array([2, 3])).output_shape == (2, 3)
    for policy in ("raise", "drop", "zero", "clip", 0):
        assert FeatureConfig(TABLE, invalid_ids=policy).invalid_ids == policy
    assert FeatureConfig(TABLE).nulls == "raise"
    for policy in ("raise", "drop", 0, np.int8(9)):
        kept = FeatureConfig(TABLE, nulls=policy).nulls
        assert kept == policy
        assert type(kept) in (str, int)


def test_feature_repr():
    assert repr(FeatureConfig(TABLE)) == "FeatureConfig(TableConfig(10, 4, name='user'))"
    assert repr(FeatureConfig(TABLE, 3, (), 0, "clicks")) == (
        "FeatureConfig(TableConfig(10, 4, name='user'), max_sequence_length=3, output_shape=(), "
        "invalid_ids=0, name='clicks')"
    )
    assert repr(FeatureConfig(TABLE, nulls=0)) == (
        "FeatureConfig(TableConfig(10, 4, name='user'), nulls=0)"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"table": "user"}, ShardcoreTypeError, "table must be a TableConfig, got 'user'"),
        ({"max_sequence_length": -1}, ShardcoreValueError,
         "max_sequence_length must be an integer >= 0, got -1"),
        ({"max_sequence_length": True}, ShardcoreTypeError,
         "max_sequence_length must be an integer >= 0, got True"),
        ({"output_shape": 3}, ShardcoreTypeError,
         "output_shape must be a sequence of integers >= 0, got 3"),
        ({"output_shape": "23"}, ShardcoreTypeError,
         "output_shape must be a sequence of integers >= 0, got '23'"),
        ({"output_shape": [2, -1]}, ShardcoreValueError,
         "output_shape[1] must be an integer >= 0, got -1"),
        ({"output_shape": [2, None]}, ShardcoreTypeError,
         "output_shape[1] must be an integer >= 0, got None"),
        ({"invalid_ids": "ignore"}, ShardcoreValueError,
         "invalid_ids must be one of 'raise', 'drop', 'zero', 'clip' or a row in [0, 10), "
         "got 'ignore'"),
        ({"invalid_ids": 10}, ShardcoreValueError,
         "invalid_ids must be one of 'raise', 'drop', 'zero', 'clip' or a row in [0, 10), got 10"),
        ({"invalid_ids": -1}, ShardcoreValueError,
         "invalid_ids must be one of 'raise', 'drop', 'zero', 'clip' or a row in [0, 10), got -1"),
        ({"invalid_ids": True}, ShardcoreTypeError,
         "invalid_ids must be one of 'raise', 'drop', 'zero', 'clip' or a row in [0, 10), "
         "got True"),
        ({"invalid_ids": None}, ShardcoreTypeError,
         "invalid_ids must be one of 'raise', 'drop', 'zero', 'clip' or a row in [0, 10), "
         "got None"),
        ({"nulls": "zero"}, ShardcoreValueError,
         "nulls must be one of 'raise', 'drop' or a row in [0, 10), got 'zero'"),
        ({"nulls": 10}, ShardcoreValueError,
         "nulls must be one of 'raise', 'drop' or a row in [0, 10), got 10"),
        ({"nulls": None}, ShardcoreTypeError,
         "nulls must be one of 'raise', 'drop' or a row in [0, 10), got None"),
        ({"name": ""}, ShardcoreValueError, "name must not be empty"),
        ({"name": b"x"}, ShardcoreTypeError, "name must be a string or None, got b'x'"),
    ],
)  # fmt: skip
def test_feature_refusals(arguments, error, text):
    with refuses(error, text):
        FeatureConfig(**{"table": TABLE, **arguments})


# -- QuantizationConfig -------------------------------------------------------------------------


def test_quantization_is_a_value():
    a = QuantizationConfig(np.int64(3), np.float32(-1), 1)
    assert a == QuantizationConfig(3, -1.0, 1.0)
    assert hash(a) == hash(QuantizationConfig(3, -1.0, 1.0))
    assert type(a.num_buckets) is int
    assert type(a.lower) is float
    assert a.step == 1.0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((1, 0, 1), ShardcoreValueError, "num_buckets must be an integer >= 2, got 1"),
        ((True, 0, 1), ShardcoreTypeError, "num_buckets must be an integer >= 2, got True"),
        ((2, "0", 1), ShardcoreTypeError, "lower must be a finite number, got '0'"),
        ((2, 0, True), ShardcoreTypeError, "upper must be a finite number, got True"),
        ((2, math.nan, 1), ShardcoreValueError, "lower must be a finite number, got nan"),
        ((2, 0, math.inf), ShardcoreValueError, "upper must be a finite number, got inf"),
        ((2, 1, 1), ShardcoreValueError,
         "lower must be less than upper, got lower = 1.0, upper = 1.0"),
        ((2, 1.5, 1), ShardcoreValueError,
         "lower must be less than upper, got lower = 1.5, upper = 1.0"),
        ((2, -1e308, 1e308), ShardcoreValueError,
         "upper - lower must be finite, got lower = -1e+308, upper = 1e+308"),
    ],
)  # fmt: skip
def test_quantization_refusals(arguments, error, text):
    with refuses(error, text):
        QuantizationConfig(*arguments)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 300),
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.lists(st.floats(-300, 300), max_size=8),
)
def test_quantization_is_the_formula_and_settles(buckets, lower, width, numbers):
    config = QuantizationConfig(buckets, lower, lower + width)
    x = np.array(numbers)
    got = config.apply(x)
    q = (config.upper - config.lower) / (buckets - 1)
    wanted = [
        math.floor((min(max(v, config.lower), config.upper) - config.lower) / q + 0.5) * q
        + config.lower
        for v in numbers
    ]
    assert got.tolist() == wanted
    assert x.tolist() == numbers
    np.testing.assert_allclose(config.apply(got), got, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
    ],
)
def test_quantization_dtypes_and_shape(dtype, result):
    got = QuantizationConfig(3, -1, 1).apply(np.array([[-7, -0.5], [0.4, np.nan]], dtype))
    assert got.dtype == result
    np.testing.assert_array_equal(got, [[-1, 0], [0, np.nan]])
    assert QuantizationConfig(3, -1, 1).apply(np.array(0.6, dtype)).shape == ()


def test_quantization_of_no_numbers_is_refused():
    with refuses(ShardcoreTypeError, "x must be float16, bfloat16, float32 or float64, got dtype"):
        QuantizationConfig(3, -1, 1).apply(np.array(["a"]))
