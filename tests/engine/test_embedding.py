"""ShardedEmbedding: life cycle, and the structures of features and tables."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engines import BACKENDS, ROWS, Creep, engine, train

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig

# --- life cycle ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
def test_life_from_build_to_close(where):
    table = TableConfig(6, 2, initializer=ROWS, combiner="sum", name="user")
    hosts = 1 if where["backend"] == "cpu" else 3
    with sc.ShardedEmbedding(
        {"a": FeatureConfig(table)}, optimizer=sc.optimizers.Adagrad(learning_rate=1.0), **where
    ) as e:
        shown = "ShardedEmbedding(1 features; tables: user 6x2; backend "
        shown += f"{where['backend']!r}, {hosts} host{'s' * (e._backend.num_hosts != 1)}; "
        assert repr(e) == shown + "not built)"
        e.build()
        e.build()
        assert repr(e) == shown + "built)"
        assert list(e.tables) == ["user"]
        assert list(e.embedding_tables) == [table]
        assert list(e.slots["user"]) == ["accumulators"]
        view = e.tables["user"]
        assert view.shape == (6, 2)
        assert view.name == "user"
        assert view.dtype == np.float32
        assert len(view.shards) == hosts
        assert e.slots["user"]["accumulators"].name == "user/accumulators"
        np.testing.assert_array_equal(
            e.slots["user"]["accumulators"], np.full((6, 2), np.float32(0.1))
        )
        np.testing.assert_array_equal(e({"a": [[5], [1, 1]]})["a"], [[5, 5], [2, 2]])
        assert e.step == 0
        activations = train(e, {"a": [[5], [1, 1]]}, 1.0)
        np.testing.assert_array_equal(activations["a"], [[5, 5], [2, 2]])
        assert e.step == 1
        moved = np.asarray(view)
        np.testing.assert_allclose(moved[5], 5 - 1 / np.sqrt(1.1), rtol=1e-6)
        np.testing.assert_allclose(moved[1], 1 - 2 / np.sqrt(4.1), atol=1e-6)
        np.testing.assert_array_equal(moved[[0, 2, 3, 4]], [[0, 0], [2, 2], [3, 3], [4, 4]])
        metrics = e.metrics()
        assert (metrics["lookups"], metrics["ids"], metrics["invalid_ids"]) == (2, 6, 0)
        assert metrics["steps"] == 1
        assert (metrics["bytes_exchanged"] > 0) == (hosts > 1)
    assert repr(e) == shown + "closed)"
    e.close()
    np.testing.assert_array_equal(moved[0], [0, 0])


def test_tables_are_views_that_write_through():
    e = engine({"a": FeatureConfig(TableConfig(4, 2, initializer=ROWS, name="t"))}, Creep())
    e.tables["t"][1] = [7, 8]
    e.slots["t"]["visits"][2] = 5
    np.testing.assert_array_equal(e({"a": [[1]]})["a"], [[7, 8]])
    train(e, {"a": [[2]]}, 0)
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [0], [6], [0]])


def test_a_lookup_builds_the_tables():
    e = sc.ShardedEmbedding(FeatureConfig(TableConfig(4, 2, initializer=ROWS)))
    np.testing.assert_array_equal(e([[3]]), [[3, 3]])
    assert list(e.tables) == ["table_0"]
    assert e.slots == {"table_0": {}}


@pytest.mark.parametrize("where", BACKENDS)
def test_a_failing_initializer_leaves_an_engine_that_is_not_built(where):
    def broken(rows, row_shape, dtype, seed):
        if 3 in rows:
            raise OSError("no values today")
        return np.zeros((len(rows), *row_shape))

    first, second = TableConfig(4, 2), TableConfig(4, 2, initializer=broken)
    e = sc.ShardedEmbedding([FeatureConfig(first), FeatureConfig(second)], **where)
    for _ in range(2):
        with pytest.raises(OSError, match="no values today"):
            e.build(batch_size=3)
        assert "not built" in repr(e)
    with pytest.raises(OSError, match="no values today"):  # and 3 was not kept
        e.build(batch_size=4)


def test_the_caller_may_change_his_structure_afterwards():
    features = {"a": FeatureConfig(TableConfig(4, 2, initializer=ROWS))}
    e = sc.ShardedEmbedding(features)
    features["b"] = features.pop("a")
    np.testing.assert_array_equal(e({"a": [[3]]})["a"], [[3, 3]])


# --- structures ------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass
class Group:
    first: Any
    second: Any = None


def test_structures_come_back_as_they_are():
    table = TableConfig(8, 2, initializer=ROWS, combiner="sum")
    f = [FeatureConfig(table) for _ in range(7)]
    config = {"d": {"x": f[0]}, "l": [f[1]], "t": (f[2], f[3]), "n": Pair(f[4], [f[5]]),
              "c": Group(f[6], [])}  # fmt: skip
    features = {"c": Group([[6]], []), "t": ([[2]], [[3]]), "n": Pair([[4]], [[[5]]]),
                "l": [[[1]]], "d": {"x": [[0]]}}  # fmt: skip
    e = engine(config, sc.optimizers.SGD(learning_rate=1.0))
    e.enqueue(features)
    out = e.dequeue()
    assert list(out) == ["d", "l", "t", "n", "c"]
    assert isinstance(out["t"], tuple)
    assert isinstance(out["n"], Pair)
    assert isinstance(out["c"], Group)
    pair = out["n"]
    leaves = [out["d"]["x"], out["l"][0], *out["t"], pair.left, pair.right[0], out["c"].first]
    for row, leaf in enumerate(leaves):
        np.testing.assert_array_equal(leaf, [[row, row]])
    e.apply_gradients(out)
    np.testing.assert_array_equal(e.tables["table_0"], np.repeat([[0]] * 7 + [[7]], 2, axis=1))


def test_a_bare_feature_and_several_features_on_one_table():
    table = TableConfig(8, 2, initializer=ROWS, combiner="sum")
    bare = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=1.0))
    bare.enqueue([[1, 2]])
    np.testing.assert_array_equal(bare.dequeue(), [[3, 3]])
    bare.apply_gradients([[1, 2]])
    np.testing.assert_array_equal(bare.tables["table_0"][1:3], [[0, -1], [1, 0]])

    e = engine({"a": FeatureConfig(table), "b": FeatureConfig(table)},
               sc.optimizers.SGD(learning_rate=1.0))  # fmt: skip
    train(e, {"a": [[3], [4]], "b": [[3, 3]]}, {"a": [[1, 1], [1, 1]], "b": [[10, 10]]})
    np.testing.assert_array_equal(e.tables["table_0"][3:5], [[3 - 21] * 2, [3, 3]])


def test_configs_are_shared_between_engines_and_never_changed():
    table = TableConfig(8, 2)
    config = {"a": FeatureConfig(table)}
    before = (dict(vars(table)), dict(vars(config["a"])))
    first = engine(config, sc.optimizers.SGD())
    second = engine(config, sc.optimizers.Adagrad())
    assert (dict(vars(table)), dict(vars(config["a"]))) == before
    assert first.slots == {"table_0": {}}
    assert list(second.slots["table_0"]) == ["accumulators"]


def test_tables_come_in_order_of_first_appearance():
    t = [TableConfig(4, 1, name=name) for name in ("z", None, "a", None)]
    features = {"q": [FeatureConfig(t[2]), FeatureConfig(t[0])], "b": FeatureConfig(t[3]),
                "a": (FeatureConfig(t[2]), FeatureConfig(t[1]))}  # fmt: skip
    e = engine(features)
    assert list(e.tables) == ["a", "z", "table_2", "table_3"]
    assert list(e.embedding_tables) == [t[2], t[0], t[3], t[1]]


_TABLES_PROGRAM = """
import hashlib
import numpy as np
import shardcore as sc
sizes = np.random.default_rng(5).integers(1, 40, (30, 2))
tables = [sc.TableConfig(int(r), int(d), name=None if i % 3 else f"t{i}",
                         optimizer=sc.optimizers.SGD(learning_rate=lambda: 0.5) if i % 2 else None)
          for i, (r, d) in enumerate(sizes)]
e = sc.ShardedEmbedding({f"f{i}": sc.FeatureConfig(t) for i, t in enumerate(tables)},
                        optimizer=sc.optimizers.Adagrad(), seed=11)
features = {f"f{i}": [[0]] for i in range(30)}
e.enqueue(features)
e.apply_gradients(e.dequeue())
digest = hashlib.sha256()
for name, table in e.tables.items():
    digest.update(name.encode() + np.asarray(table).tobytes())
for name, slots in e.slots.items():
    for slot in slots:
        digest.update((name + slot).encode() + np.asarray(slots[slot]).tobytes())
print(digest.hexdigest())
"""


def test_tables_are_the_same_in_every_process():
    found = set()
    for hash_seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, "-c", _TABLES_PROGRAM], env=environment,
                              capture_output=True, text=True, check=True)  # fmt: skip
        found.add(done.stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 2 * hashlib.sha256().digest_size


def test_initial_values_depend_on_seed_and_name():
    def initial(seed, name):
        e = engine(FeatureConfig(TableConfig(5, 3, name=name)), seed=seed)
        return np.asarray(e.tables[name])

    assert initial(1, "a").tobytes() == initial(1, "a").tobytes()
    assert (initial(1, "a") != initial(2, "a")).any()
    assert (initial(1, "a") != initial(1, "b")).any()


def test_config_records_are_frozen():
    table = TableConfig(3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.name = "x"
