"""Configurations of `TPUEmbedding` as engines: the same tables and updates, or refused by name."""

from __future__ import annotations

import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError  # noqa: E402
from shardcore.tf import from_tpu_embedding  # noqa: E402

E = tf.tpu.experimental.embedding
VIDEO = np.arange(32, dtype=np.float32).reshape(8, 4)
USER = np.arange(32, dtype=np.float32).reshape(16, 2)


def rows(values):
    return lambda shape, dtype=None, **_: tf.constant(values)


def table(**options):
    return E.TableConfig(vocabulary_size=8, dim=4, name="t", **options)


def feature(**options):
    return E.FeatureConfig(table=table(), **options)


def features():
    """Return the configuration of upstream's own tests, with initial rows of its numbers."""
    video = E.TableConfig(8, 4, name="video", combiner="sum")
    user = E.TableConfig(16, 2, name="user", combiner="mean")
    return {
        "watched": E.FeatureConfig(video),
        "favorited": E.FeatureConfig(video, name="favourite"),
        "friends": [E.FeatureConfig(user, max_sequence_length=0)],
    }


def test_tables_and_features_are_those_that_were_configured():
    given = features()
    engine = from_tpu_embedding(given, E.Adagrad(0.5), seed=3)
    described = engine.config()
    tables = {one["name"]: one for one in described["tables"]}
    assert [(name, one["rows"], one["dim"], one["combiner"]) for name, one in tables.items()] == [
        ("video", 8, 4, "sum"),
        ("user", 16, 2, "mean"),
    ]
    assert tables["video"]["initializer"] == "TruncatedNormal(mean=0.0, stddev=0.5)"
    assert [one["path"] for one in described["features"]] == [
        "features['watched']",
        "features['favorited']",
        "features['friends'][0]",
    ]
    assert described["features"][1]["name"] == "favourite"
    assert given["watched"].table.optimizer is None  # TensorFlow's own would have written it


@pytest.mark.parametrize(
    ("optimizer", "video_0", "user_3"),
    [
        (E.SGD(0.1), (-0.8, -0.3, 0.2, 0.7), (5.4, 6.3)),
        (E.Adagrad(0.1), (-0.099922, 0.90003, 1.900015, 2.900009), (5.900139, 6.900102)),
        (
            E.AdagradMomentum(
                0.1, momentum=0.9, use_nesterov=True, exponent=3, epsilon=0.1, beta2=0.9
            ),
            (-0.814465, 0.03939, 0.92832, 1.836617),
            (5.262938, 6.222211),
        ),
        (E.Adam(0.1), (-0.316228, 0.683772, 1.683772, 2.683772), (5.683772, 6.683772)),
        (E.FTRL(0.1), (-0.099922, 0.875712, 1.864884, 2.858766), (5.584349, 6.584196)),
        (E.SGD(lambda: tf.constant(0.1)), (-0.8, -0.3, 0.2, 0.7), (5.4, 6.3)),
    ],
)
def test_a_step_has_the_numbers_of_a_tpu(optimizer, video_0, user_3):
    """The batch, gradients and numbers of upstream's tests of training."""
    engine = from_tpu_embedding(features(), optimizer)
    engine.build()
    engine.tables["video"].assign(VIDEO)
    engine.tables["user"].assign(USER)
    lookup = engine.lookup(
        {
            "watched": tf.ragged.constant([[0], [0, 1]]),
            "favorited": tf.ragged.constant([[0, 1], [1]]),
            "friends": [tf.ragged.constant([[3], [0, 1, 2]])],
        }
    )
    lookup.apply_gradients(lookup.activations)
    assert engine.tables["video"][0] == pytest.approx(video_0, abs=1e-5)
    assert engine.tables["user"][3] == pytest.approx(user_3, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "own"),
    [
        (E.SGD(), sc.optimizers.SGD()),
        (E.Adagrad(clipvalue=2.0), sc.optimizers.Adagrad(clipvalue=(-2.0, 2.0))),
        (E.Adagrad(clipvalue=(None, 1.0)), sc.optimizers.Adagrad(clipvalue=(None, 1.0))),
        (
            E.Adam(
                0.1,
                0.8,
                0.9,
                1e-3,
                False,
                False,
                weight_decay_factor=0.1,
                multiply_weight_decay_factor_by_learning_rate=True,
            ),
            sc.optimizers.Adam(
                0.1,
                0.8,
                0.9,
                1e-3,
                False,
                False,
                weight_decay_factor=0.1,
                multiply_weight_decay_factor_by_learning_rate=True,
            ),
        ),
        (
            E.FTRL(0.1, -0.3, 1, 2, 3, 4, False, -1, 1, multiply_linear_by_learning_rate=True),
            sc.optimizers.FTRL(
                0.1,
                -0.3,
                1,
                2,
                3,
                4,
                use_gradient_accumulation=False,
                clip_weight_min=-1,
                clip_weight_max=1,
                multiply_linear_by_learning_rate=True,
            ),
        ),
        (sc.optimizers.AdamW(), sc.optimizers.AdamW()),
    ],
)
def test_optimizers_keep_every_parameter(given, own):
    for engine in (
        from_tpu_embedding(feature(), given),
        from_tpu_embedding(E.FeatureConfig(table(optimizer=given))),
    ):
        assert engine.config()["tables"][0]["optimizer"] == own.description()


def test_other_options_are_taken_over():
    config = E.FeatureConfig(
        table(
            quantization_config=E.QuantizationConfig(3, 0, 1),
            initializer=tf.initializers.RandomUniform(-1, 1),
        ),
        max_sequence_length=2,
        output_shape=[4],
    )
    engine = from_tpu_embedding([config], backend="sim", pipeline=True)
    described = engine.config()
    assert described["tables"][0]["quantization"] == {"num_buckets": 3, "lower": 0.0, "upper": 1.0}
    assert described["tables"][0]["initializer"] == "Uniform(low=-1.0, high=1.0)"
    assert described["features"][0]["max_sequence_length"] == 2
    assert described["features"][0]["output_shape"] == [4]
    assert described["pipeline"] is True
    engine.close()


def compute(*values):
    return values[0]


COMBINER = E.CustomCombiner(tf.function(compute), 3) if hasattr(E, "CustomCombiner") else None
OPTIMIZER = E.CustomOptimizer(tf.function(compute))


@pytest.mark.parametrize(
    ("call", "path", "instead"),
    [
        pytest.param(
            lambda: from_tpu_embedding(E.FeatureConfig(table(combiner=COMBINER))),
            f"feature_config.table.combiner = {COMBINER!r}",
            "give the feature max_sequence_length=, and combine its rows in the model",
            marks=pytest.mark.skipif(COMBINER is None, reason="TensorFlow has no CustomCombiner"),
        ),
        (
            lambda: from_tpu_embedding([feature()], OPTIMIZER),
            f"optimizer = {OPTIMIZER!r}",
            "write shardcore.optimizers.Custom(computation, learning_rate)",
        ),
        (
            lambda: from_tpu_embedding(
                {"a": E.FeatureConfig(table(optimizer=E.SGD(low_dimensional_packing_status=True)))}
            ),
            "feature_config['a'].table.optimizer.low_dimensional_packing_status = True",
            "leave it out: rows are not packed, whatever their length",
        ),
        (
            lambda: from_tpu_embedding(feature(), E.Adam(slot_variable_creation_fn=compute)),
            f"optimizer.slot_variable_creation_fn = {compute!r}",
            "slots begin with slot_initial_values= of a shardcore optimizer",
        ),
        (
            lambda: from_tpu_embedding([feature(validate_weights_and_indices=False)]),
            "feature_config[0].validate_weights_and_indices = False",
            "leave it out: what is given is always checked",
        ),
        (
            lambda: from_tpu_embedding(feature(output_shape=[2, None])),
            "feature_config.output_shape = TensorShape([2, None])",
            "give the length of every axis, or none",
        ),
        (
            lambda: from_tpu_embedding(E.FeatureConfig(table(layout="spread"))),
            "feature_config.table.layout = 'spread'",
            "layout= and placement= of shardcore.TableConfig say where rows lie",
        ),
        (
            lambda: from_tpu_embedding(E.FeatureConfig(table(dtype=tf.int32))),
            "feature_config.table.dtype = tf.int32",
            "tables hold floats; count in another structure",
        ),
        (
            lambda: from_tpu_embedding(feature(), None, True),
            "pipeline_execution_with_tensor_core = True",
            "give pipeline=True",
        ),
        (
            lambda: from_tpu_embedding(feature(), sparse_core_embedding_config="x"),
            "sparse_core_embedding_config = 'x'",
            "leave it out: tables need no stacking, and no id is dropped",
        ),
    ],
)
def test_what_an_engine_lacks_is_refused_by_name(call, path, instead):
    with pytest.raises(ShardcoreTypeError) as found:
        call()
    told = f"{path} has no counterpart; instead, {instead}"
    shortened = re.sub(r"<.*?>", "<…>", str(found.value))
    assert shortened == re.sub(r"<.*?>", "<…>", told)


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (
            lambda: from_tpu_embedding(feature(), "sgd"),
            ShardcoreTypeError,
            "optimizer must be one of tf.tpu.experimental.embedding or shardcore.optimizers, got "
            "'sgd'",
        ),
        (
            lambda: from_tpu_embedding(feature(), E.SGD(-1.0)),
            ShardcoreValueError,
            "optimizer: learning_rate must be a number >= 0, finite as float32, or a callable that "
            "takes nothing or the step, got -1.0",
        ),
        (
            lambda: from_tpu_embedding(
                E.FeatureConfig(table(quantization_config=E.QuantizationConfig(3, 1, 0)))
            ),
            ShardcoreValueError,
            "feature_config.table.quantization_config: lower must be less than upper, got "
            "lower = 1.0, upper = 0.0",
        ),
        (
            lambda: from_tpu_embedding(
                E.FeatureConfig(table(initializer=tf.initializers.Orthogonal()))
            ),
            ShardcoreTypeError,
            "feature_config.table: initializer must be a callable init(rows, row_shape, dtype, "
            "seed) or an array, got Orthogonal, which draws all rows at once: give what it draws, "
            "initializer=numpy.asarray(initializer((8, 4)))",
        ),
        (
            lambda: from_tpu_embedding([1]),
            ShardcoreTypeError,
            "feature_config[0] must be a FeatureConfig, or a dict, list, tuple, named tuple or "
            "dataclass of them, got 1",
        ),
    ],
)
def test_wrong_values_are_told_with_their_place(call, kind, told):
    with pytest.raises(kind, match=f"^{re.escape(told)}$"):
        call()


def test_every_option_of_tensorflow_is_known():
    """A new one must be taken over, or told of: the names of this release, and no others."""
    import inspect

    def options(kind):
        return set(inspect.signature(kind.__init__).parameters) - {"self"}

    assert options(E.FeatureConfig) == {
        "table",
        "max_sequence_length",
        "validate_weights_and_indices",
        "output_shape",
        "name",
    }
    assert options(E.TableConfig) == {
        *("vocabulary_size", "dim", "initializer", "optimizer", "combiner", "name"),
        *("quantization_config", "layout", "dtype"),
    }
    assert options(E.TPUEmbeddingV2) == {
        *("feature_config", "optimizer", "pipeline_execution_with_tensor_core"),
        "sparse_core_embedding_config",
    }
    lacking = {"slot_variable_creation_fn", "low_dimensional_packing_status"}
    for name in ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam"):
        own = inspect.signature(getattr(sc.optimizers, name)).parameters
        assert options(getattr(E, name)) - lacking <= set(own), name


def test_an_error_is_shardcores():
    with pytest.raises(ShardcoreError):
        from_tpu_embedding({})
