"""The layer over an engine, in tapes, in graphs and in `fit`, beside what TensorFlow computes."""

from __future__ import annotations

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
import shardcore.tf as st  # noqa: E402

ROWS = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
RAGGED = tf.ragged.constant([[1, 2], [], [2]])
WEIGHTS = tf.ragged.constant([[0.5, 2.0], [], [3.0]])
SPARSE = tf.SparseTensor([[0, 0], [0, 1], [2, 1]], [1, 2, 2], (3, 2))
COMBINERS = ["sum", "mean", "sqrtn"]


def layer(combiner="sum", optimizer=None, dtype="float32", **options):
    table = sc.TableConfig(6, 2, initializer=ROWS, combiner=combiner, name="t", dtype=dtype)
    engine = sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer or sc.optimizers.SGD(0.5))
    return st.EmbeddingBags(engine, **options)


def rows_of(bags):
    return bags.engine.tables["t"].numpy()


def loss_of(bags, ids, weights=None):
    found = bags(ids, weights=weights)
    return tf.reduce_sum(found * found)


def eagerly(function):
    return function


def in_graph(function):
    return tf.function(function, autograph=False)


def beside(combiner, weighted):
    """Return TensorFlow's loss, table after a step of SGD, and gradients of weights."""
    table = tf.Variable(ROWS)
    weights = WEIGHTS.to_sparse() if weighted else None
    with tf.GradientTape() as tape:
        if weighted:
            tape.watch(weights.values)
        found = tf.nn.safe_embedding_lookup_sparse(
            table, RAGGED.to_sparse(), weights, combiner=combiner
        )
        loss = tf.reduce_sum(found * found)
    gradients = tape.gradient(loss, [table, *([weights.values] if weighted else [])])
    table.assign_sub(0.5 * tf.convert_to_tensor(gradients[0]))
    of_weights = tf.convert_to_tensor(gradients[1]).numpy() if weighted else None
    return loss.numpy(), table.numpy(), of_weights


@pytest.mark.parametrize("mode", [eagerly, in_graph])
@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("ids", [RAGGED, SPARSE])
def test_a_step_is_that_of_tensorflow(mode, combiner, ids):
    bags = layer(combiner)

    @mode
    def step(given):
        with tf.GradientTape() as tape:
            loss = loss_of(bags, given)
        return loss, tape.gradient(loss, bags.trainable_weights)

    loss, gradients = step(ids)
    expected, table, _ = beside(combiner, weighted=False)
    assert loss.numpy() == pytest.approx(expected)
    assert np.allclose(rows_of(bags), table, atol=1e-5)
    assert bags.engine.step == 1
    assert [float(one) for one in gradients] == [0.0]
    assert float(bags.token) == 0


@pytest.mark.parametrize("mode", [eagerly, in_graph])
@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_get_gradients_that_are_tensorflows(mode, combiner):
    bags = layer(combiner, weight_gradients=True)

    @mode
    def step(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = loss_of(bags, RAGGED, WEIGHTS.with_values(values))
        return loss, tape.gradient(loss, [values, *bags.trainable_weights])

    loss, (gradient, _) = step(WEIGHTS.values)
    expected, table, of_weights = beside(combiner, weighted=True)
    assert loss.numpy() == pytest.approx(expected)
    assert np.allclose(rows_of(bags), table, atol=1e-4)
    assert np.allclose(gradient, of_weights, atol=1e-4)
    assert bags.engine.step == 1


def test_weights_are_constants_unless_asked():
    bags = layer()
    weights = tf.Variable([[0.5, 2.0]])
    with tf.GradientTape() as tape:
        loss = loss_of(bags, tf.constant([[1, 2]]), weights)
    assert tape.gradient(loss, weights) is None
    assert bags.engine.step == 1


def test_a_tape_that_passes_the_layer_updates_whatever_it_is_asked_for():
    bags = layer()
    scale = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(bags(RAGGED) * scale)
    tape.gradient(loss, [scale])
    assert bags.engine.step == 1
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.stop_gradient(bags(RAGGED)) * scale)
    tape.gradient(loss, [scale])
    assert bags.engine.step == 1


def test_a_graph_and_the_tape_around_it():
    bags = layer()
    call = tf.function(bags, autograph=False)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(RAGGED))
    assert (bags.engine.step, bags.engine.in_flight) == (0, 1)
    tape.gradient(loss, bags.trainable_weights)
    assert (bags.engine.step, bags.engine.in_flight) == (1, 0)
    assert np.array_equal(rows_of(bags) - ROWS, -0.5 * np.outer([0, 1, 2, 0, 0, 0], [1, 1]))


@pytest.mark.parametrize("mode", [eagerly, in_graph])
def test_more_lookups_than_wait_are_updated_each(mode):
    bags = layer()

    @mode
    def step():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(bags(tf.constant([[row % 6]]))) for row in range(20)])
            tape.gradient(loss, bags.trainable_weights)

    step()
    assert bags.engine.step == 20
    counts = np.bincount(np.arange(20) % 6)
    assert np.array_equal(ROWS - rows_of(bags), 0.5 * np.outer(counts, [1, 1]))


def test_few_lookups_wait_for_gradients():
    bags = layer()
    for _ in range(30):
        bags(RAGGED)
    assert bags.engine.in_flight == 8


@pytest.mark.parametrize("mode", [eagerly, in_graph])
def test_what_is_recomputed_is_updated_once(mode):
    bags = layer()
    bags(RAGGED)
    inner = tf.recompute_grad(lambda ids, x: tf.reduce_sum(bags(ids)) * x)

    @mode
    def step():
        with tf.GradientTape() as tape:
            x = tf.convert_to_tensor(bags.token) + 1
            loss = inner(RAGGED.values[:, None], x)
        return tape.gradient(loss, bags.trainable_weights)

    step()
    assert bags.engine.step == 1


@pytest.mark.parametrize(
    ("call", "trainable"), [({"training": False}, True), ({}, False), ({"training": True}, False)]
)
def test_inference_and_frozen_layers_look_up_only(call, trainable):
    bags = layer(trainable=trainable)
    scale = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(bags(RAGGED, **call)) * scale
    assert tape.gradient(loss, [scale])[0].numpy() == pytest.approx(float(loss) / 2)
    assert (bags.engine.step, bags.engine.in_flight) == (0, 0)
    assert np.array_equal(rows_of(bags), ROWS)


def test_a_dict_of_features_is_one_step():
    t = sc.TableConfig(6, 2, initializer=ROWS, combiner="sum", name="t")
    u = sc.TableConfig(3, 4, initializer=sc.initializers.Zeros(), name="u")
    features = {
        "clicks": sc.FeatureConfig(t),
        "seen": sc.FeatureConfig(t, max_sequence_length=2),
        "user": sc.FeatureConfig(u, output_shape=(3, 1)),
    }
    bags = st.EmbeddingBags(sc.ShardedEmbedding(features, sc.optimizers.SGD(0.5)))
    batch = {"clicks": RAGGED, "seen": SPARSE, "user": tf.constant([0, 1, 0])}

    @tf.function(autograph=False)
    def step(given):
        with tf.GradientTape() as tape:
            found = bags(given)
            loss = tf.reduce_sum(found["clicks"]) + tf.reduce_sum(found["seen"][:, 0])
        tape.gradient(loss, bags.trainable_weights)
        return found

    found = step(batch)
    assert {key: one.shape for key, one in found.items()} == {
        "clicks": (3, 2),
        "seen": (3, 2, 2),
        "user": (3, 1, 4),
    }
    shapes = step.get_concrete_function(batch).structured_outputs
    assert shapes["clicks"].shape.as_list() == [3, 2]
    assert shapes["user"].shape.as_list() == [3, 1, 4]
    assert bags.engine.step == 1
    changed = np.outer([0, 2, 3, 0, 0, 0], [1, 1])  # clicks 1, 2, 2; the first of seen: 1, 2
    assert np.array_equal(ROWS - rows_of(bags), 0.5 * changed)
    assert not bags.engine.tables["u"].numpy().any()  # nothing was made of it


def test_gradients_of_gathered_activations():
    bags = layer()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(bags(tf.constant([[1], [2], [3]])), [0, 0, 2]))
    tape.gradient(loss, bags.trainable_weights)
    assert np.array_equal((ROWS - rows_of(bags))[:, 0], [0, 1, 0, 0.5, 0, 0])


@pytest.mark.parametrize(
    ("table", "policy", "activations"),
    [
        ("float32", "float32", tf.float32),
        ("float64", "float64", tf.float64),
        ("float64", "float32", tf.float32),
        ("float32", "mixed_bfloat16", tf.bfloat16),
        ("bfloat16", "float32", tf.float32),
    ],
)
def test_activations_have_the_dtype_of_the_policy(table, policy, activations):
    bags = layer(dtype=table, optimizer=sc.optimizers.SGD(1.0))
    bags = st.EmbeddingBags(bags.engine, dtype=policy)
    with tf.GradientTape() as tape:
        found = bags(RAGGED)
        loss = tf.reduce_sum(found)
    assert found.dtype == activations
    tape.gradient(loss, bags.trainable_weights)
    assert np.array_equal(
        ROWS - rows_of(bags).astype(np.float32), np.outer([0, 1, 2, 0, 0, 0], [1, 1])
    )


# --- in a model of Keras --------------------------------------------------------------------------

IDS = np.random.default_rng(0).integers(0, 6, (32, 3))
TARGETS = np.random.default_rng(1).normal(size=(32, 1))


def model_of(first, dtype="int64"):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype=dtype)
    return keras.Model(inputs, keras.layers.Dense(1)(first(inputs)))


@pytest.mark.parametrize("eager", [False, True])
def test_fit_is_that_of_kerass_embedding(eager):
    own = layer("mean", sc.optimizers.SGD(0.01))

    class Mean(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(6, 2, keras.initializers.Constant(ROWS))

        def call(self, ids):
            return keras.ops.mean(self.table(ids), axis=1)

    found = []
    for first in (own, Mean()):
        model = model_of(first)
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eager)
        assert model.jit_compile is False
        model.fit(IDS, TARGETS, epochs=2, batch_size=8, shuffle=False, verbose=0)
        evaluated = model.evaluate(IDS, TARGETS, verbose=0)
        found.append((evaluated, model.predict(IDS, verbose=0), model.layers[-1].get_weights()[0]))
        if first is not own:
            table = first.table.get_weights()[0]
    assert own.engine.step == 8
    for mine, theirs in zip(*found, strict=True):
        assert np.allclose(mine, theirs, atol=1e-5)
    assert np.allclose(rows_of(own), table, atol=1e-5)


def test_ragged_data_is_fitted():
    bags = layer()
    inputs = keras.Input((None,), dtype="int64", ragged=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(bags(inputs)))
    model.compile("sgd", "mse")
    ids = tf.ragged.constant([[1, 2, 3], [], [2]])  # three in a batch of two bags
    data = tf.data.Dataset.from_tensor_slices((ids, np.ones((3, 1), np.float32))).batch(2)
    model.fit(data.repeat(2), shuffle=False, verbose=0)
    assert bags.engine.step == 4


def test_a_compiled_model_that_is_frozen_stays():
    bags = layer()
    model = model_of(bags)
    bags.trainable = False
    model.compile("sgd", "mse")
    model.fit(IDS, TARGETS, verbose=0)
    assert bags.engine.step == 0


@pytest.mark.filterwarnings("ignore:Model doesn't support `jit_compile=True`:UserWarning")
def test_a_model_that_asks_for_xla_goes_without():
    bags = layer()
    model = model_of(bags)
    model.compile("sgd", "mse", jit_compile=True)
    assert model.jit_compile is False
    model.fit(IDS, TARGETS, verbose=0)
    assert bags.engine.step == 1


def test_ids_that_keras_has_made_floats_are_taken():
    bags = layer()
    model = keras.Sequential([bags, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(IDS, TARGETS, verbose=0)
    assert bags.engine.step == 1
    assert np.array_equal(bags(IDS.astype(np.float32)), bags(IDS))


def test_the_optimizer_of_a_model_decides_the_rate():
    model = model_of(layer())
    rate = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    bags = layer(optimizer=sc.optimizers.SGD(rate))
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(bags(tf.constant([[1]])))
        tape.gradient(loss, bags.trainable_weights)
    assert rows_of(bags)[1].tolist() == (ROWS[1] - 0.75).tolist()
    model.compile(keras.optimizers.SGD(0.25), "mse")
    bags = layer(optimizer=sc.optimizers.SGD(lambda: model.optimizer.learning_rate))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(bags(tf.constant([[1]])))
    tape.gradient(loss, bags.trainable_weights)
    assert rows_of(bags)[1].tolist() == (ROWS[1] - 0.25).tolist()
