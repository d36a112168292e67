"""What an earlier commit wrote is read, and training goes on from it as it went on then.

The folder `written_by_0_1_0` was written by `sim` on three hosts, seed 11, before the modules were
put into folders, with the engine, the batches and the objects below.
"""

from pathlib import Path

import numpy as np
import pytest

import shardcore as sc

WRITTEN = Path(__file__).with_name("written_by_0_1_0")
ROWS = {"u": 50, "v": 50, "i": 37, "c": 20, "f": 11}
DIMS = {"u": 8, "v": 8, "i": 4, "c": 6}


def engine(backend, seed=0):
    optimizers = sc.optimizers
    user = sc.TableConfig(
        50,
        8,
        optimizer=optimizers.Adagrad(0.1, initial_accumulator_value=0.25),
        name="user",
    )
    item = sc.TableConfig(
        37,
        4,
        dtype="float16",
        layout="mod",
        combiner="sum",
        optimizer=optimizers.Adam(0.05),
        name="item/of the shop",
    )
    row_wise = optimizers.RowwiseAdagrad(0.2)
    city = sc.TableConfig(20, 6, combiner="sqrtn", optimizer=row_wise, name="näme")
    frozen = sc.TableConfig(11, 3, dtype="float64", name="frozen", optimizer=None)
    tables = {"u": user, "v": user, "i": item, "c": city, "f": frozen}
    features = {name: sc.FeatureConfig(table) for name, table in tables.items()}
    return sc.ShardedEmbedding(features, backend=backend, seed=seed)


def train(trained, step):
    rng = np.random.default_rng(step)
    splits = np.array([0, 3, 3, 8, 12])
    trained.enqueue({name: (rng.integers(0, n, 12), splits) for name, n in ROWS.items()})
    trained.dequeue()
    gradients = {name: np.round(rng.normal(size=(4, n)) * 8) / 8 for name, n in DIMS.items()}
    trained.apply_gradients(gradients | {"f": None})


def arrays_of(trained, step):
    found = {f"{step}|{name}|": np.asarray(table) for name, table in trained.tables.items()}
    for name, slots in trained.slots.items():
        found |= {f"{step}|{name}|{slot}": np.asarray(rows) for slot, rows in slots.items()}
    return found


@pytest.mark.parametrize("backend", ["cpu", "sim"])
def test_a_checkpoint_of_an_earlier_version_is_restored_and_trained_on(backend):
    expected = np.load(WRITTEN / "expected.npz")
    variable = sc.create_variable(
        (9, 2), dtype="int64", num_shards=2, initializer=sc.initializers.Zeros()
    )
    words = sc.ShardedVariable([np.zeros(5, "<U2")])
    with engine(backend) as restored:
        sc.Checkpoint(engine=restored, variable=variable, words=words).restore(
            WRITTEN / "checkpoint"
        )
        assert restored.step == 3
        found = arrays_of(restored, 3)
        train(restored, 3)
        found |= arrays_of(restored, 4)
    assert found.keys() == set(expected.files)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    np.testing.assert_array_equal(np.asarray(variable), np.arange(18).reshape(9, 2) - 7)
    assert np.asarray(words).tolist() == ["a", "ß", "漢字", "", "x"]
