"""The layer with a table of its own, beside Keras'."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
import shardcore.tf as st  # noqa: E402

ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
IDS = np.random.default_rng(0).integers(0, 6, (16, 3))
IDS[:, 2] += IDS[:, 2] == 0  # no sample is masked whole, which would make its mean NaN
TARGETS = np.random.default_rng(1).normal(size=(16, 1))


@pytest.mark.parametrize("ids", [IDS, IDS[0], IDS.reshape(2, 8, 3)])
def test_rows_and_shapes_are_kerass(ids):
    own = st.Embedding(6, 2, weights=ROWS)
    theirs = keras.layers.Embedding(6, 2, keras.initializers.Constant(ROWS))
    assert np.array_equal(own(ids), theirs(ids))
    symbolic = keras.Input(ids.shape[1:], dtype="int64")
    assert own(symbolic).shape == theirs(symbolic).shape


def test_fit_is_that_of_keras():
    found = []
    for make in (st.Embedding, keras.layers.Embedding):
        options = {"optimizer": sc.optimizers.SGD(0.05)} if make is st.Embedding else {}
        table = make(6, 2, keras.initializers.Constant(ROWS), mask_zero=True, **options)
        inputs = keras.Input((3,), dtype="int64")
        pooled = keras.layers.GlobalAveragePooling1D()(table(inputs))  # the mask leaves id 0 out
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Ones())
        model = keras.Model(inputs, dense(pooled))
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model.fit(IDS, TARGETS, epochs=2, batch_size=8, shuffle=False, verbose=0)
        found.append((np.asarray(table.embeddings), model.predict(IDS, verbose=0)))
    for mine, theirs in zip(*found, strict=True):
        assert np.allclose(mine, theirs, atol=1e-6)
    assert not np.allclose(found[0][0], ROWS)


def test_chance_follows_kerass_seed():
    drawn = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        drawn.append(st.Embedding(50, 4).embeddings)
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert np.abs(drawn[0]).max() <= 0.05


@pytest.mark.parametrize(
    ("given", "deviation"),
    [("glorot_uniform", (2 / 504) ** 0.5), (sc.initializers.Normal(0, 2), 2.0), ("zeros", 0.0)],
)
def test_initializers_are_named_as_in_keras(given, deviation):
    assert st.Embedding(500, 4, given).embeddings.std() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("weights", [ROWS, [ROWS], ROWS.tolist()])
def test_weights_are_initial_values(weights):
    assert np.array_equal(st.Embedding(6, 2, weights=weights).embeddings, ROWS)


def test_a_table_has_the_dtype_of_the_policy():
    assert st.Embedding(6, 2, dtype="float64").embeddings.dtype == np.float64
    assert st.Embedding(6, 2, dtype="mixed_bfloat16").embeddings.dtype == np.float32


def test_no_mask_unless_asked():
    assert st.Embedding(6, 2).compute_mask(tf.constant([0, 1])) is None
    mask = st.Embedding(6, 2, mask_zero=True).compute_mask(tf.constant([0, 1]))
    assert mask.numpy().tolist() == [False, True]
