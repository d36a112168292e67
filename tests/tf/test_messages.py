"""What is refused, and in which words."""

from __future__ import annotations

import re

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
import shardcore.tf as st  # noqa: E402
from shardcore.errors import ShardcoreRuntimeError  # noqa: E402

IDS = tf.constant([[1, 2], [3, 0]])


def engine(optimizer=None, rows=4):
    config = sc.FeatureConfig(sc.TableConfig(rows, 2, name="t"))
    return sc.ShardedEmbedding(config, optimizer or sc.optimizers.SGD(0.5))


def refused(told, call, *args, kind, **options):
    with pytest.raises(kind, match=f"^{re.escape(told)}$"):
        call(*args, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"engine": "words"}, "engine must be a ShardedEmbedding, got 'words'"),
        (
            {"engine": sc.FeatureConfig(sc.TableConfig(4, 2, name="t"))},
            "engine must be a ShardedEmbedding, got FeatureConfig(TableConfig(4, 2, name='t'))",
        ),
        ({"engine": engine(), "weight_gradients": 1}, "weight_gradients must be a bool, got 1"),
    ],
)
def test_wrong_arguments_are_named(options, told):
    refused(told, st.EmbeddingBags, kind=TypeError, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"embeddings_regularizer": "l2"},
            "embeddings_regularizer must be None, got 'l2'; instead, weight_decay_factor= of the "
            "optimizer decays the rows of a batch",
        ),
        (
            {"embeddings_constraint": "non_neg"},
            "embeddings_constraint must be None, got 'non_neg'; instead, clip_weight_min= and "
            "clip_weight_max= of the optimizer bound rows",
        ),
        (
            {"lora_rank": 2},
            "lora_rank must be None, got 2; instead, add a layer of low rank behind this one",
        ),
        (
            {"lora_alpha": 2},
            "lora_alpha must be None, got 2; instead, add a layer of low rank behind this one",
        ),
        (
            {"quantization_config": "int8"},
            "quantization_config must be None, got 'int8'; instead, "
            "shardcore.TableConfig(quantization_config=...) and EmbeddingBags",
        ),
        (
            {"optimizer": "adam"},
            "optimizer must be one of shardcore.optimizers, such as shardcore.optimizers.SGD(0.1), "
            "or None, got 'adam'",
        ),
    ],
)
def test_what_a_table_of_kerass_has_and_ours_has_not(options, told):
    refused(told, st.Embedding, 4, 2, kind=TypeError, **options)


@pytest.mark.parametrize("global_policy", [False, True])
def test_a_scaled_loss_is_refused(global_policy):
    told = (
        "EmbeddingBags must not be in a model of the policy 'mixed_float16', which scales the "
        "loss, and so what comes to the tables: use 'mixed_bfloat16'"
    )
    before = keras.config.dtype_policy()
    options = {"dtype": "float32" if global_policy else "mixed_float16"}
    try:
        if global_policy:
            keras.config.set_dtype_policy("mixed_float16")
        refused(told, st.EmbeddingBags, engine(), kind=ValueError, **options)
    finally:
        keras.config.set_dtype_policy(before)


def in_call(layer, *args, **options):
    """Call a layer past Keras' wrapper, which puts a frame around every message."""
    return layer.call(*args, **options)


@pytest.mark.parametrize(
    ("ids", "kind", "told"),
    [
        (IDS + 2, IndexError, "features: ids[1] = 4 is outside table 't': must be in [0, 4)"),
        (
            np.add(IDS, [[0, 0], [0, 0.5]]),
            ValueError,
            "features: ids must be integers, got 0.5 at position 3",
        ),
        (
            tf.cast(IDS, tf.float16),
            TypeError,
            "features: ids must be integers, got float16, which cannot count 4 rows: give "
            "keras.Input(dtype='int64')",
        ),
        (tf.constant([["a"]]), TypeError, "features: ids must be integers, got string"),
        (
            {"a": 1},
            TypeError,
            "features must be a tensor, a RaggedTensor or a SparseTensor, got dict",
        ),
        (
            tf.ragged.constant([[[1]]]),
            ValueError,
            "features: a RaggedTensor must have rank 2, its rows are the bags, got shape "
            "(1, None, None)",
        ),
    ],
)
def test_wrong_ids_are_named_and_change_nothing(ids, kind, told):
    layer = st.EmbeddingBags(engine())
    refused(told, in_call, layer, ids, kind=kind)
    assert (layer.engine.step, layer.engine.in_flight) == (0, 0)


def test_floats_that_cannot_count_the_rows_are_refused():
    layer = st.EmbeddingBags(engine(rows=(1 << 24) + 1))
    told = (
        "features: ids must be integers, got float32, which cannot count 16777217 rows: give "
        "keras.Input(dtype='int64')"
    )
    refused(told, in_call, layer, tf.constant([[1.0]]), kind=TypeError)
    assert in_call(layer, tf.constant([[16777216.0]], tf.float64)).shape == (1, 2)


def test_nan_is_no_id():
    layer = st.EmbeddingBags(engine())
    refused(
        "features: ids must be integers, got nan at position 0",
        in_call,
        layer,
        tf.constant([[np.nan]]),
        kind=ValueError,
    )


def test_a_graph_says_so_when_it_runs():
    layer = st.EmbeddingBags(engine())
    told = "ShardcoreIndexError: features: ids[1] = 4 is outside table 't': must be in [0, 4)"
    with pytest.raises(tf.errors.UnknownError, match=re.escape(told)):
        tf.function(layer, autograph=False)(IDS + 2)
    assert (layer.engine.step, layer.engine.in_flight) == (0, 0)


def test_the_dtype_of_an_input_is_asked_for_when_the_model_is_made():
    layer = st.EmbeddingBags(engine(rows=(1 << 24) + 1))
    with pytest.raises(TypeError, match=re.escape("give keras.Input(dtype='int64')")):
        layer(keras.Input((2,)))


def no_optimizer():
    table = sc.TableConfig(4, 2, name="t")
    return sc.ShardedEmbedding(sc.FeatureConfig(table))


def test_gradients_without_an_optimizer():
    layer = st.EmbeddingBags(no_optimizer())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS))
    told = (
        "gradients came to EmbeddingBags without an optimizer: give its engine one, "
        "optimizer=shardcore.optimizers.SGD(0.1), or freeze it, layer.trainable = False"
    )
    refused(told, tape.gradient, loss, layer.trainable_weights, kind=ShardcoreRuntimeError)


def test_gradients_come_once():
    layer = st.EmbeddingBags(engine())
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(layer(IDS))
    tape.gradient(loss, layer.trainable_weights)
    told = "gradients came a second time to one call of EmbeddingBags: call it again"
    refused(told, tape.gradient, loss, layer.trainable_weights, kind=ShardcoreRuntimeError)
    assert layer.engine.step == 1


def test_gradients_must_be_finite():
    layer = st.EmbeddingBags(engine())
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS)) * np.inf
    told = "gradients must be finite in float32: gradients[0, 0] = inf"
    refused(told, tape.gradient, loss, layer.trainable_weights, kind=ValueError)
    assert layer.engine.step == 0


@pytest.mark.parametrize("ids", [tf.ragged.constant([[1]]), tf.sparse.from_dense([[1]])])
def test_bags_are_of_the_other_layer(ids):
    told = f"inputs must be a tensor, got a {type(ids).__name__}: EmbeddingBags takes it"
    refused(told, in_call, st.Embedding(4, 2), ids, kind=TypeError)


def test_replicas_are_refused(monkeypatch):
    layer = st.EmbeddingBags(engine())
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    monkeypatch.setattr(type(strategy.extended), "_num_replicas_in_sync", property(lambda _: 2))
    told = (
        "EmbeddingBags must not run in several replicas, which would each make a step: give the "
        "engine a backend of several hosts"
    )
    with strategy.scope():
        refused(told, in_call, layer, IDS, kind=RuntimeError)


def test_xla_says_what_it_has_not():
    layer = st.EmbeddingBags(engine())
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="No registered 'ShardcoreCall' OpKernel"
    ):
        tf.function(layer, autograph=False, jit_compile=True)(IDS)
