"""Rows and slots of checkpoints that `tf.train` has written."""

from __future__ import annotations

import re

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

import shardcore as sc  # noqa: E402
from shardcore.errors import (  # noqa: E402
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.tf import checkpoints, from_tpu_embedding, load_checkpoint  # noqa: E402

ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)
E = tf.tpu.experimental.embedding


def engine(**options):
    table = sc.TableConfig(5, 2, initializer=sc.initializers.Zeros(), name="t", **options)
    return sc.ShardedEmbedding(sc.FeatureConfig(table), sc.optimizers.Adagrad(0.1))


def saved(folder, **objects):
    variables = {
        name: tf.Variable(one) if isinstance(one, np.ndarray) else one
        for name, one in objects.items()
    }
    return tf.train.Checkpoint(**variables).save(str(folder / "model"))


@pytest.fixture(params=[None, 1, 17])
def block_bytes(request, monkeypatch):
    """Blocks of all rows, of one, and of two of eight bytes."""
    if request.param:
        monkeypatch.setattr(checkpoints, "_BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("name", ["emb", "emb/.ATTRIBUTES/VARIABLE_VALUE"])
def test_rows_are_read(tmp_path, name):
    e = engine()
    load_checkpoint(e, saved(tmp_path, emb=ROWS), {"t": name})
    assert np.array_equal(e.tables["t"], ROWS)
    assert e.step == 0


def test_the_latest_of_a_folder_is_read(tmp_path):
    variable = tf.Variable(ROWS)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(emb=variable), str(tmp_path), 3)
    manager.save()
    variable.assign_add(tf.ones_like(variable))
    manager.save()
    e = engine()
    load_checkpoint(e, tmp_path, {"t": "emb"})
    assert np.array_equal(e.tables["t"], ROWS + 1)


@pytest.mark.usefixtures("block_bytes")
def test_a_sharded_variable_is_one(tmp_path):
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    from tensorflow.python.distribute import sharded_variable

    parts = [tf.Variable(ROWS[:3]), tf.Variable(ROWS[3:])]
    assert partitioner(tf.TensorShape([5, 2]), tf.float32) == [2, 1]
    path = saved(tmp_path, emb=sharded_variable.ShardedVariable(parts))
    e = engine()
    load_checkpoint(e, path, {"t": "emb"})
    assert np.array_equal(e.tables["t"], ROWS)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("names", ["emb", ["emb/part_0", "emb/part_1"]])
def test_parts_are_joined(tmp_path, names):
    graph = tf.Graph()
    with graph.as_default():
        with tf.compat.v1.variable_scope("emb"):
            for at, rows in enumerate((ROWS[:3], ROWS[3:])):
                tf.compat.v1.get_variable(f"part_{at}", initializer=rows)
        saver = tf.compat.v1.train.Saver()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            path = saver.save(session, str(tmp_path / "old"))
    e = engine()
    load_checkpoint(e, path, {"t": names})
    assert np.array_equal(e.tables["t"], ROWS)


def test_rows_and_slots_of_a_tpu_embedding_are_read_and_serve_alike(tmp_path):
    table = E.TableConfig(5, 2, name="words", combiner="mean")
    config = {"clicks": E.FeatureConfig(table)}
    theirs = E.TPUEmbeddingForServing(config, E.Adagrad(0.1, initial_accumulator_value=0.25))
    theirs.build()
    path = tf.train.Checkpoint(embedding=theirs).save(str(tmp_path / "model"))
    own = from_tpu_embedding(config, E.Adagrad(0.1))
    names = {"words": "embedding/words", "words/accumulators": "embedding/words.Saccumulators"}
    load_checkpoint(own, path, names)
    assert np.array_equal(own.slots["words"]["accumulators"], np.full((5, 2), 0.25, np.float32))
    ids = tf.ragged.constant([[1, 2], [], [4]], dtype=tf.int64)
    served = E.serving_embedding_lookup({"clicks": ids}, None, theirs.embedding_tables, config)
    assert np.allclose(own({"clicks": ids})["clicks"], served["clicks"])
    assert np.asarray(served["clicks"]).any()


@pytest.mark.parametrize(
    ("names", "kind", "told"),
    [
        (
            {"u": "emb"},
            ShardcoreValueError,
            "names must name tables and slots of the engine, 't', 't/accumulators', got 'u'",
        ),
        (
            {"t": "emb", "t/accumulators": "none"},
            ShardcoreValueError,
            "names['t/accumulators'] must be a variable of the checkpoint, 'emb', 'ids', 'long', "
            "'other', 'save_counter', 'wide', got 'none'",
        ),
        (
            {"t": "emb", "t/accumulators": "wide"},
            ShardcoreValueError,
            "names['t/accumulators'] must have the shape of 't/accumulators', (5, 2), got (5, 3)",
        ),
        (
            {"t": ["emb", "other"]},
            ShardcoreValueError,
            "names['t'] must have the shape of 't', (5, 2), got (5, 2) and (2, 2)",
        ),
        (
            {"t": "save_counter"},
            ShardcoreTypeError,
            "names['t']: 'save_counter/.ATTRIBUTES/VARIABLE_VALUE' must be float32, as 't' is, got "
            "int64",
        ),
        (
            {"t": "long"},
            ShardcoreTypeError,
            "names['t']: 'long/.ATTRIBUTES/VARIABLE_VALUE' must be float32, as 't' is, got float64",
        ),
        ({"t": 3}, ShardcoreTypeError, "names['t'] must be a name or a list, got 3"),
        (
            {"t": []},
            ShardcoreTypeError,
            "names['t'] must be a name or a list, got []",
        ),
        (
            {},
            ShardcoreTypeError,
            "names must map a table, or 'table/slot', to a variable of the checkpoint, got {}",
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, names, kind, told):
    path = saved(
        tmp_path,
        emb=ROWS,
        wide=np.ones((5, 3), np.float32),
        other=np.ones((2, 2), np.float32),
        long=np.ones((5, 2)),
        ids=np.ones(3, np.int64),
    )
    e = engine()
    e.build()
    with pytest.raises(kind, match=f"^{re.escape(told)}$"):
        load_checkpoint(e, path, names)
    assert not e.tables["t"].numpy().any()


def test_the_engine_comes_first():
    with pytest.raises(
        ShardcoreTypeError, match=re.escape("engine must be a ShardedEmbedding, got 'x'")
    ):
        load_checkpoint("x", "path", {"t": "emb"})


def test_what_cannot_be_read_is_told(tmp_path):
    told = f"path must be a checkpoint, got a folder of none, {str(tmp_path)!r}"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(told)}$"):
        load_checkpoint(engine(), tmp_path, {"t": "emb"})
    told = f"path {str(tmp_path / 'none')!r} cannot be read: "
    with pytest.raises(ShardcoreOSError, match=f"^{re.escape(told)}"):
        load_checkpoint(engine(), tmp_path / "none", {"t": "emb"})


def test_a_file_that_was_cut_is_told(tmp_path):
    path = saved(tmp_path, emb=ROWS)
    (data,) = tmp_path.glob("*.data-*")
    data.write_bytes(data.read_bytes()[:8])
    told = "'emb/.ATTRIBUTES/VARIABLE_VALUE' cannot be read: "
    with pytest.raises(ShardcoreOSError, match=f"^{re.escape(told)}"):
        load_checkpoint(engine(), path, {"t": "emb"})
