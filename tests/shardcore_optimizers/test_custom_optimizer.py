"""An optimizer out of a function, and what the ways to update do in whole backends."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import shardcore as sc
from shardcore.backend import initial_arrays
from shardcore.backend.base import Backend
from shardcore.backend.gradients import gradient_rows, sorted_rows
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.errors import ShardcoreError
from shardcore.optimizer.slots import SlotSpec
from shardcore.store.occurrences import every_row
from shardcore.store.row_update import RowUpdate
from shardcore.store.table import StoreTable
from shardcore.testing import OptimizerConformance

MOMENTA = SlotSpec("momenta", "element", fill=0.5)


def sign_of_momentum(grad, rows, slots, hyper, step, row_ids):
    xp = rows.__array_namespace__()
    momenta = hyper["beta"] * slots["momenta"] + (1 - hyper["beta"]) * grad
    return rows - hyper["learning_rate"] / step * xp.sign(momenta), {"momenta": momenta}


def plain(grad, rows, slots, hyper, step, row_ids):
    return rows - hyper["learning_rate"] * grad, {}


def with_momentum(**arguments):
    return sc.optimizers.Custom(
        sign_of_momentum,
        0.5,
        slot_specs=[MOMENTA],
        hyperparameters={"beta": 0.75},
        **arguments,
    )


class TestCustom(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return with_momentum(stochastic_rounding=True)


class TestCustomPlain(OptimizerConformance):
    @pytest.fixture
    def optimizer(self):
        return sc.optimizers.Custom(plain, 0.05, clipvalue=2.0, weight_decay_factor=1e-5)


def test_custom_plain_is_sgd():
    rng = np.random.default_rng(0)
    rows, grad = rng.standard_normal((2, 9, 5)).astype(np.float32)
    around = {"clipvalue": 0.5, "clip_norm": 0.75, "weight_decay_factor": 0.5}
    ours = sc.optimizers.Custom(plain, 0.25, **around)
    sgd = sc.optimizers.SGD(0.25, **around)
    rest = (rows, {}, (0.25,), 1, np.arange(9))
    assert ours.update(grad, *rest)[0].tobytes() == sgd.update(grad, *rest)[0].tobytes()


def test_custom_equality_and_config():
    optimizer = with_momentum()
    assert optimizer == with_momentum()
    assert hash(optimizer) == hash(with_momentum())
    assert optimizer != sc.optimizers.Custom(sign_of_momentum, 0.5, slot_specs=[MOMENTA])
    assert optimizer.slots == (MOMENTA,)
    assert with_momentum(slot_dtype="table").slots[0].storage_dtype("float16") == np.float16
    config = json.loads(json.dumps(optimizer.config()))
    assert config["computation"] == {"callable": f"{__name__}.sign_of_momentum"}
    slot = {"name": "momenta", "kind": "element", "dtype": None, "fill": 0.5}
    assert config["slot_specs"] == [slot]
    assert config["hyperparameters"] == [["beta", 0.75]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"computation": 3}, "computation must be a callable (grad, rows, slots, hyper, step, "
         "row_ids) -> (rows, slots), got 3"),
        ({"slot_specs": ["momenta"]}, "slot_specs must be a sequence of SlotSpec, got ['momenta']"),
        ({"slot_specs": MOMENTA}, f"slot_specs must be a sequence of SlotSpec, got {MOMENTA!r}"),
        ({"slot_specs": [MOMENTA, MOMENTA]}, "slot_specs must have distinct names: slot_specs[1] "
         "and slot_specs[0] are both named 'momenta'"),
        ({"hyperparameters": 3}, "hyperparameters must be a mapping of str to number, got 3"),
        ({"hyperparameters": {"a b": 1}}, "hyperparameters must be named by identifiers other than "
         "'learning_rate', got 'a b'"),
        ({"hyperparameters": {"learning_rate": 1}}, "hyperparameters must be named by identifiers "
         "other than 'learning_rate', got 'learning_rate'"),
        ({"hyperparameters": {"beta": "x"}}, "hyperparameters['beta'] must be a number, finite as "
         "float32, got 'x'"),
    ],
)  # fmt: skip
def test_custom_messages(arguments, text):
    with pytest.raises(ShardcoreError, match="^" + re.escape(text) + "$"):
        sc.optimizers.Custom(**{"computation": plain, **arguments})


# ----------------------------------------------------------------------------- in backends


class Small(Backend):
    """A third party's backend: the four methods, the rest from the base class."""

    name = "small"

    def __init__(self):
        super().__init__()
        self.arrays = {}

    def make_table(self, spec):
        self.arrays[spec.name] = initial_arrays(spec)

    def remove_table(self, table):
        self.arrays.pop(table, None)

    def gather(self, table, slot, rows):
        return self.arrays[table][slot][rows]

    def scatter(self, table, slot, rows, values):
        self.arrays[table][slot][rows] = values


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "optimizer",
    [
        sc.optimizers.Adagrad(0.1, use_gradient_accumulation=False),
        sc.optimizers.Adam(0.1, stochastic_rounding=True),
        sc.optimizers.Adam(0.1, lazy_adam=False, bias_correction="row"),
        with_momentum(use_gradient_accumulation=False, stochastic_rounding=True),
    ],
    ids=repr,
)
def test_the_base_class_of_backends_and_the_store_agree(optimizer, dtype):
    rng = np.random.default_rng(6)
    spec = TableSpec("t", 23, 9, np.dtype(dtype), sc.initializers.Normal(), 77, optimizer)
    backend = Small()
    backend.create_table(spec)
    table = StoreTable(23, 9, spec.dtype, optimizer)
    table.initialise(spec.initializer, range(23), spec.seed)
    before = table.rows.copy()
    for step in (1, 2, 3):
        bags = FeatureBags(rng.integers(0, 20, 60), np.arange(0, 61, 3))
        gradient = rng.standard_normal((20, 9)).astype(np.float32)
        backend.apply([TableUpdate(TableBatch("t", (bags,)), (gradient,), optimizer.hyper(), step)])
        occurrences = sorted_rows([bags], 23, np.dtype(np.float32))
        if not optimizer.lazy:
            occurrences = every_row(occurrences, 23)
        gradients = gradient_rows([bags], [gradient])
        rest = (gradients, optimizer, optimizer.hyper(), step, spec.seed)
        table.apply(RowUpdate(occurrences, occurrences.rows, *rest))
        for slot, array in {None: table.rows, **table.slots}.items():
            assert backend.arrays["t"][slot].tobytes() == array.tobytes()
    assert (table.rows != before)[:20].all(axis=1).any()
    if optimizer.lazy:
        assert (table.rows == before)[20:].all()
    else:  # every row has counted three steps, those that no batch named too
        np.testing.assert_allclose(table.slots["beta_1_powers"], 0.9**3, rtol=1e-6)


@pytest.mark.parametrize("where", [{}, {"backend": "sim", "backend_options": {"hosts": 3}}])
def test_in_the_engine_one_by_one(where):
    """Adagrad twice over one row is not Adagrad over the sum: the order of occurrences counts."""
    optimizer = sc.optimizers.Adagrad(0.1, use_gradient_accumulation=False)
    table = sc.TableConfig(
        4, 3, initializer=np.array([[1, -2, 3]] * 4, np.float32), combiner="sum", name="t"
    )
    with sc.ShardedEmbedding({"f": sc.FeatureConfig(table)}, optimizer, **where) as engine:
        engine.enqueue({"f": [[2], [2], [1]]})
        engine.dequeue()
        gradient = np.array([[0.5, -0.25, 0]] * 3, np.float32)
        engine.apply_gradients({"f": gradient})
        rows = np.asarray(engine.tables["t"])
    np.testing.assert_allclose(rows[2], [0.8509348, -1.8852780, 3], rtol=1e-6)
    np.testing.assert_allclose(rows[0], [1, -2, 3])


def test_stochastic_rounding_in_the_engine_is_the_same_everywhere():
    def trained(seed, **where):
        table = sc.TableConfig(40, 7, dtype="float16", name="t")
        optimizer = sc.optimizers.SGD(1e-4, stochastic_rounding=True)
        features = {"f": sc.FeatureConfig(table)}
        with sc.ShardedEmbedding(features, optimizer, seed=seed, **where) as engine:
            for step in range(3):
                engine.enqueue({"f": [[i] for i in range(40)]})
                engine.dequeue()
                gradient = np.random.default_rng(step).standard_normal((40, 7))
                engine.apply_gradients({"f": gradient.astype(np.float32)})
            return np.asarray(engine.tables["t"]).tobytes()

    first = trained(3)
    assert trained(3) == first
    for hosts in (1, 2, 5):
        assert trained(3, backend="sim", backend_options={"hosts": hosts}) == first
