"""Tables in Keras' files of weights: rows, slots and steps, all of them or none."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
import shardcore.tf as st  # noqa: E402
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError  # noqa: E402
from shardcore.tf.saving import save_state  # noqa: E402

# Keras 3.15 makes arrays of its own variables so.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def model_of(rows=6, dtype="float32", seed=0):
    tables = [
        sc.TableConfig(rows, 2, combiner="sum", name=name, dtype=dtype) for name in ("a/b", "c")
    ]
    features = {"x": sc.FeatureConfig(tables[0]), "y": sc.FeatureConfig(tables[1])}
    engine = sc.ShardedEmbedding(features, sc.optimizers.Adam(0.1), seed=seed)
    inputs = {key: keras.Input((2,), dtype="int64", name=key) for key in features}
    found = st.EmbeddingBags(engine, name="bags")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(found["x"] + found["y"]))
    model.compile("adam", "mse")
    return model, engine


def fit(model, steps=2):
    batch = {"x": np.array([[1, 2], [3, 2]]), "y": np.array([[0, 5], [5, 5]])}
    for _ in range(steps):
        model.fit(batch, np.ones((2, 1)), verbose=0)


def state(engine):
    arrays = {name: table.numpy() for name, table in engine.tables.items()}
    for table, slots in engine.slots.items():
        arrays |= {f"{table}/{slot}": one.numpy() for slot, one in slots.items()}
    return arrays


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_goes_on_from_a_file(tmp_path, dtype):
    path = str(tmp_path / "model.weights.h5")
    model, engine = model_of(dtype=dtype)
    fit(model)
    model.save_weights(path)
    other, restored = model_of(dtype=dtype, seed=7)
    assert not equal(state(engine), state(restored))
    other.optimizer.build(other.trainable_variables)  # Keras' own, whose state is there too
    other.load_weights(path)
    assert equal(state(engine), state(restored))
    assert restored.step == 2
    for one in (model, other):
        fit(one, 1)
    assert equal(state(engine), state(restored))
    assert restored.step == engine.step == 3


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")  # Keras, once refused
def test_other_tables_are_refused_and_nothing_changes(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    model, _ = model_of(rows=7)
    model.save_weights(path)
    other, engine = model_of()
    before = state(engine)
    with pytest.raises(ValueError, match="a/b"):  # Keras' error, which has ours in it
        other.load_weights(path)
    assert equal(state(engine), before)


@pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning")  # Keras, once refused
def test_the_weights_of_another_layer_are_refused(tmp_path):
    path = str(tmp_path / "model.weights.h5")
    inputs = keras.Input((2,), dtype="int64")
    keras.Model(inputs, keras.layers.Embedding(6, 2, name="table")(inputs)).save_weights(path)
    own = keras.Model(inputs, st.Embedding(6, 2, name="table")(inputs))
    told = (
        "the weights of layer 'table' must be those of an engine, got ['0']: rows of another layer "
        "are written with layer.engine.tables[name].assign(rows)"
    )
    with pytest.raises(ValueError, match=re.escape(told)):  # Keras' error, which has ours in it
        own.load_weights(path)
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        own.get_layer("table").load_own_variables({"0": np.ones((6, 2))})


def test_the_file_says_what_it_holds():
    store = {}
    _, engine = model_of()
    save_state(engine, store)
    index = json.loads(store.pop("shardcore").tobytes())
    names = [one["name"] for one in index["arrays"]]
    assert names == ["a/b", "a/b/momenta", "a/b/velocities", "c", "c/momenta", "c/velocities"]
    assert list(store) == [one["key"] for one in index["arrays"]]


def test_a_model_is_not_made_from_a_file(tmp_path):
    model, _ = model_of()
    told = (
        "EmbeddingBags cannot be made from a file, as its engine is made by code: keep "
        "model.save_weights(path), make the model again, and model.load_weights(path)"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(told)}$"):
        model.save(str(tmp_path / "model.keras"))


def test_the_token_is_the_only_weight_of_keras():
    model, _ = model_of()
    bags = model.get_layer("bags")
    assert [one.path for one in bags.weights] == ["bags/token"]
    assert bags.count_params() == 1
