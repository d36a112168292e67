"""Initializers of Keras, TensorFlow and JAX, where a table takes one: as theirs, or refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")
jax = pytest.importorskip("jax", reason="jax is not installed")

import shardcore as sc  # noqa: E402
from shardcore import initializers as own  # noqa: E402
from shardcore.errors import ShardcoreTypeError  # noqa: E402

K, J, T = keras.initializers, jax.nn.initializers, tf.compat.v1.initializers
SHAPE = (3000, 40)


def table(initializer, shape=SHAPE):
    return sc.TableConfig(*shape, initializer=initializer, name="t")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (K.Zeros(), own.Zeros()),
        (K.Ones(), own.Constant(1.0)),
        (K.Constant(0.5), own.Constant(0.5)),
        (K.Constant(np.ones(SHAPE)), own.FromArray(np.ones(SHAPE))),
        (K.RandomNormal(1.0, 0.1), own.Normal(1.0, 0.1)),
        (K.RandomUniform(-1, 2), own.Uniform(-1, 2)),
        (K.TruncatedNormal(1.0, 0.2), own.TruncatedNormal(1.0, 0.2)),
        (T.truncated_normal(1.0, 0.2), own.TruncatedNormal(1.0, 0.2)),
        (tf.tpu.experimental.embedding.RowIdInitializer(7), own.RowId(7)),
        (J.zeros, own.Zeros()),
        (J.ones, own.Constant(1.0)),
        (J.constant(3), own.Constant(3.0)),
        (J.normal(0.1), own.Normal(0.0, 0.1)),
        (J.uniform(0.1), own.Uniform(0.0, 0.1)),
        (J.truncated_normal(0.1), own.TruncatedNormal(0.0, 0.1)),
    ],
)
def test_theirs_is_ours_of_the_same_distribution(theirs, ours):
    assert table(theirs).initializer == ours


KERAS_SCALED = [
    K.GlorotUniform(1),
    K.GlorotNormal(1),
    K.HeNormal(1),
    K.HeUniform(1),
    K.LecunNormal(1),
    K.VarianceScaling(2.0, "fan_out", "untruncated_normal", seed=1),
    K.VarianceScaling(2.0, "fan_avg", "uniform", seed=1),
    K.RandomNormal(0.3, 0.2, seed=1),
    K.TruncatedNormal(0.3, 0.2, seed=1),
    K.RandomUniform(0.3, 0.5, seed=1),
    T.glorot_uniform(1),
    T.variance_scaling(2.0, "fan_out", "normal", seed=1),
]
JAX_SCALED = [
    J.glorot_uniform(),
    J.he_normal(),
    J.lecun_normal(in_axis=-1, out_axis=-2),
    J.variance_scaling(1.0, "fan_in", "normal", out_axis=0),  # flax's, for its Embed
    J.variance_scaling(2.0, "fan_geo_avg", "uniform"),
    J.truncated_normal(0.3),
    J.normal(0.3),
    J.uniform(0.3),
]


def moments(values):
    values = np.asarray(values, np.float64)
    return [values.mean(), values.std(), values.min(), values.max()]


@pytest.mark.parametrize("theirs", KERAS_SCALED + JAX_SCALED)
def test_what_is_drawn_is_spread_as_theirs(theirs):
    if theirs in JAX_SCALED:
        drawn = theirs(jax.random.key(1), SHAPE)
    else:
        drawn = theirs(SHAPE, dtype="float32")
    rows = table(theirs).initializer(np.arange(SHAPE[0]), SHAPE[1:], "float32", 3)
    mean, deviation, low, high = moments(drawn)
    ours = moments(rows)
    assert abs(ours[0] - mean) < deviation / 50
    assert ours[1] == pytest.approx(deviation, rel=0.02)
    assert ours[2:] == pytest.approx([low, high], abs=deviation)  # of a tail, the same length


def test_rows_do_not_depend_on_the_number_of_hosts():
    found = []
    for hosts in (1, 3):
        config = sc.FeatureConfig(table(K.RandomNormal(), (10, 4)))
        engine = sc.ShardedEmbedding(config, backend="sim", backend_options={"hosts": hosts})
        engine.build()
        found.append(engine.tables["t"][:])
    assert np.array_equal(*found)
    assert np.ptp(found[0]) > 0


def test_a_variable_takes_them_too():
    view = sc.create_variable((4, 2), initializer=K.Constant(0.5))
    assert view.numpy().tolist() == [[0.5, 0.5]] * 4


class OfOnesOwn(K.Initializer):
    def __call__(self, shape, dtype=None):
        return np.ones(shape)


def by_shape(shape, dtype=None):
    return np.ones(shape)


def by_key(key, shape, dtype=None):
    return np.ones(shape)


@pytest.mark.parametrize(
    ("theirs", "name", "call"),
    [
        (K.Orthogonal(), "Orthogonal", "((5, 2))"),
        (K.GlorotUniform(input_axes=0, output_axes=1), "GlorotUniform", "((5, 2))"),
        (K.Constant([1.0, 2.0]), "Constant", "((5, 2))"),
        (OfOnesOwn(), "OfOnesOwn", "((5, 2))"),
        (by_shape, "by_shape", "((5, 2))"),
        (by_key, "by_key", "(key, (5, 2))"),
        (J.orthogonal(), "orthogonal", "(key, (5, 2))"),
        (J.truncated_normal(0.1, lower=-1), "truncated_normal", "(key, (5, 2))"),
        (J.constant(np.ones(2)), "constant", "(key, (5, 2))"),
        (J.he_normal(batch_axis=0), "variance_scaling", "(key, (5, 2))"),
    ],
)
def test_others_are_refused_when_the_table_is_configured(theirs, name, call):
    told = (
        "initializer must be a callable init(rows, row_shape, dtype, seed) or an array, got "
        f"{name}, which draws all rows at once: give what it draws, "
        f"initializer=numpy.asarray(initializer{call})"
    )
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(told)}$"):
        table(theirs, (5, 2))


def test_what_it_draws_can_be_given():
    rows = K.Orthogonal(seed=1)((5, 2))
    given = table(np.asarray(rows), (5, 2))
    assert np.array_equal(given.initializer, rows)
