"""What an engine tells of itself: config, log, repr, names of calls, counters; NaN by consent."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import pytest

import shardcore as sc
from shardcore.backend.quantization import QuantizationConfig
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.optimizer import Optimizer, SlotSpec

ROWS = sc.initializers.RowId()


def rate():
    return 0.5


def some_values(rows, row_shape, dtype, seed):
    return np.zeros((len(rows), *row_shape), dtype)


def make_engine(backend="cpu", rates=rate):
    user = TableConfig(
        6, 2, initializer=ROWS, name="user", combiner="sum", layout="mod",
        quantization_config=QuantizationConfig(3, -1, 1) if backend == "cpu" else None,
        max_norm=2.0,
        optimizer=sc.optimizers.SGD(learning_rate=rates),
    )  # fmt: skip
    item = TableConfig(5, 3, initializer=np.ones((5, 3)), dtype="bfloat16")
    tag = TableConfig(4, 1, initializer=some_values, name="tag")
    features = {
        "a": FeatureConfig(user, name="clicks"),
        "b": [FeatureConfig(item, max_sequence_length=2, invalid_ids="drop")],
        "c": FeatureConfig(
            user, output_shape=(2, 1), invalid_ids=3, nulls=1, hash=sc.Hash(5, seed=9)
        ),
        "d": FeatureConfig(tag),
    }
    options = {"hosts": 2} if backend == "sim" else None
    return sc.ShardedEmbedding(
        features, sc.optimizers.Adagrad(0.25), backend=backend, backend_options=options, seed=7
    )


def test_config():
    e = make_engine()
    e.build(batch_size=2)
    config = e.config()
    user, item, tag = config["tables"]
    assert user == {
        "name": "user", "named": True, "rows": 6, "dim": 2, "dtype": "float32", "combiner": "sum",
        "initializer": "RowId(offset=0)", "seed": user["seed"], "layout": "mod",
        "placement": "row", "exchange": "exact",
        "quantization": {"num_buckets": 3, "lower": -1.0, "upper": 1.0}, "max_norm": 2.0,
        "optimizer": {
            "name": "SGD", "learning_rate": "dynamic",
            "parameters": {**user["optimizer"]["parameters"],
                           "learning_rate": {"callable": f"{__name__}.rate"}},
        },
        "features": ["features['a']", "features['c']"],
    }  # fmt: skip
    assert (item["name"], item["named"]) == ("table_1", False)
    assert item["initializer"] == "array of shape (5, 3), float64"
    assert (item["dtype"], item["quantization"]) == ("bfloat16", None)
    assert item["max_norm"] is None
    assert item["optimizer"]["name"] == "Adagrad"
    assert item["optimizer"]["learning_rate"] == "constant"
    assert item["optimizer"]["parameters"]["learning_rate"] == 0.25
    assert item["optimizer"]["parameters"]["initial_accumulator_value"] == 0.1
    assert tag["initializer"] == f"{__name__}.some_values"
    assert config["features"][1:3] == [
        {"path": "features['b'][0]", "name": None, "table": "table_1", "max_sequence_length": 2,
         "output_shape": None, "invalid_ids": "drop", "nulls": "raise", "hash": None},
        {"path": "features['c']", "name": None, "table": "user", "max_sequence_length": 0,
         "output_shape": [2, 1], "invalid_ids": 3, "nulls": 1,
         "hash": {"buckets": 5, "seed": 9, "kind": "xxh64"}},
    ]  # fmt: skip
    rest = {key: value for key, value in config.items() if key not in ("tables", "features")}
    assert rest == {
        "backend": "cpu", "hosts": 1, "batch_size": 2, "pipeline": False,
        "check_gradients": True, "seed": 7,
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_config_is_json_and_equal_for_engines_made_alike(backend):
    first, second = make_engine(backend), make_engine(backend)
    assert first.config() == second.config()
    assert json.loads(json.dumps(first.config())) == first.config()
    second.build(batch_size=3)
    assert first.config() != second.config()
    assert first.config()["hosts"] == (2 if backend == "sim" else 1)


def test_config_tells_a_schedule_and_tuples():
    schedule = sc.schedules.Cosine(0.5, steps=10)
    config = make_engine(rates=schedule.bind(lambda: 0)).config()
    parameters = config["tables"][0]["optimizer"]["parameters"]
    assert parameters["learning_rate"] == {"schedule": "Cosine(initial=0.5, steps=10, final=0.0)"}
    default = sc.ShardedEmbedding(FeatureConfig(TableConfig(3, 2))).config()["tables"][0]
    assert default["optimizer"] is None
    assert default["initializer"] == repr(sc.initializers.TruncatedNormal())


def test_the_log_tells_the_configuration_once(caplog):
    with caplog.at_level(logging.INFO, logger="shardcore"):
        e = make_engine()
        assert caplog.records == []
        e.build()
        e.build()
    (record,) = caplog.records
    assert record.name == "shardcore"
    assert record.getMessage() == f"built {e.config()}"


def test_repr_of_many_tables_is_short():
    config = [FeatureConfig(TableConfig(4, 2, name=f"t{i}")) for i in range(856)]
    e = sc.ShardedEmbedding(config, pipeline=True)
    shown = ", ".join(f"t{i} 4x2" for i in range(6))
    assert repr(e) == (
        f"ShardedEmbedding(856 features; tables: {shown}, ... 850 more; "
        "backend 'cpu', 1 host; pipeline; not built)"
    )


# --- names of calls --------------------------------------------------------------------------


def simple(**options):
    table = TableConfig(4, 1, initializer=ROWS, name="t", combiner="sum")
    return sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), **options)


@pytest.mark.parametrize("pipeline", [False, True])
def test_names_begin_messages_and_are_counted(pipeline):
    with simple(pipeline=pipeline) as e:
        e.enqueue([[1]], name="train")
        e.dequeue(name="train")
        message = "enqueue 'eval': features: ids[0] = 9 is outside table 't': must be in [0, 4)"
        if not pipeline:
            e.apply_gradients(None)
        with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(message)}$") as info:
            e.enqueue([[9]], name="eval")
        assert isinstance(info.value, IndexError)
        if not pipeline:
            e.enqueue([[1]], name="train")
            e.dequeue(name="other")
        message = "apply_gradients 'step': gradients must have the shape of the activations, (1, 1)"
        with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}"):
            e.apply_gradients([[1, 2]], name="step")
        e.apply_gradients([[1]], name="step")
        message = "dequeue 'train': dequeue came without a batch: enqueue one first"
        with pytest.raises(ShardcoreRuntimeError, match=f"^{re.escape(message)}$"):
            e.dequeue(name="train")
        counted = {key: n for key, n in e.metrics().items() if "/" in key}
        expected = {"enqueue/train": 1, "dequeue/train": 1, "apply_gradients/step": 1}
        if not pipeline:
            expected.update({"enqueue/train": 2, "dequeue/other": 1})
        assert counted == expected


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (3, ShardcoreTypeError, "name must be a string or None, got 3"),
        ("", ShardcoreValueError, "name must not be empty"),
    ],
)
def test_names_are_strings(name, error, message):
    e = simple()
    for call in (lambda: e.enqueue([[1]], name=name), lambda: e.dequeue(name=name),
                 lambda: e.apply_gradients(None, name=name)):  # fmt: skip
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            call()
    assert e.metrics()["lookups"] == 0


# --- gradients that are not finite, and counters ---------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
@pytest.mark.parametrize("pipeline", [False, True])
def test_gradients_that_are_not_finite_by_consent(value, pipeline):
    with simple(check_gradients=False, pipeline=pipeline) as e:
        e.enqueue([[1], [2]])
        e.dequeue()
        e.apply_gradients([[value], [1.0]])
        expected = np.array([[0], [1 - np.float64(value)], [1], [3]])
        if value == 1e39:
            expected[1] = -np.inf
        np.testing.assert_array_equal(e.tables["t"], expected)
        e.enqueue([[1]])
        e.dequeue()
        with pytest.raises(ShardcoreValueError, match="must have the shape of the activations"):
            e.apply_gradients([value])
        e.apply_gradients(None)


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("hosts", [None, 1, 3])
def test_unique_rows_are_counted_once_per_table_and_update(hosts, pipeline):
    backend = sc.get_backend("cpu") if hosts is None else sc.get_backend("sim", hosts=hosts)
    shared = TableConfig(9, 1, name="shared", combiner="sum")
    alone = TableConfig(9, 1, name="alone")
    config = {"a": FeatureConfig(shared), "b": FeatureConfig(shared), "c": FeatureConfig(alone)}
    with sc.ShardedEmbedding(
        config, sc.optimizers.SGD(1.0), backend=backend, pipeline=pipeline
    ) as e:
        features = {"a": [[1, 1, 2]], "b": [[2, 3]], "c": [[1, 8]]}
        one = np.ones((1, 1))
        for gradients, expected in (
            ({"a": one, "b": one, "c": one}, 3 + 2),
            ({"a": one, "b": None, "c": None}, 5 + 2),
            (None, 7),
        ):
            e.enqueue(features)
            e.dequeue()
            e.apply_gradients(gradients)
            assert e.metrics()["unique_rows"] == expected
        assert e.metrics()["steps"] == 2


class Long(Optimizer):
    """A slot in a dtype that no kernel reads, beside a compiled form."""

    learning_rate: float = 1.0

    slots = (SlotSpec("velocity", "element", np.longdouble),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        return rows - grad, slots

    def compiled(self, dtype):
        return sc.optimizers.SGD(1.0).compiled(dtype)


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_updates_that_run_the_python_form_of_a_compiled_optimizer_are_counted(backend):
    tables = [TableConfig(9, 1, name=name, optimizer=made) for name, made in
              (("slow", Long()), ("fast", sc.optimizers.SGD(1.0)))]  # fmt: skip
    config = [FeatureConfig(table) for table in tables]
    with sc.ShardedEmbedding(config, backend=backend) as e:
        for step in (1, 2):
            e.enqueue([[[1]], [[2]]])
            e.dequeue()
            e.apply_gradients([np.ones((1, 1)), np.ones((1, 1))])
            assert e.metrics()["pure_updates"] == step


@pytest.mark.parametrize(
    ("placement", "updates"), [("row", 2), ("table", 1), ("column", 2), ("replicated", 3)]
)
def test_updates_by_the_python_form_are_counted_on_every_host(placement, updates):
    table = TableConfig(9, 3, name="t", placement=placement, layout="div")
    with sc.ShardedEmbedding(FeatureConfig(table), Long(), "sim", {"hosts": 3}) as e:
        for step in (1, 2):
            e.enqueue([[0], [8]])  # rows of the first host and of the last
            e.dequeue()
            e.apply_gradients(np.ones((2, 3)))
            assert e.metrics()["pure_updates"] == updates * step
