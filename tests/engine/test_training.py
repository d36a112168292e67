"""Steps of an engine: TensorFlow's numbers, what a gradient moves, and what lookups see of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from engines import BACKENDS, ROWS, VIDEOS, Creep, engine, train, video_and_user

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig


@dataclass(frozen=True, eq=False, repr=False)
class Momentum(sc.Optimizer):
    learning_rate: Any = 1.0
    slots = (sc.SlotSpec("momenta", "element"),)

    def update(self, grad, rows, slots, hyper, step, row_ids):
        momenta = 0.5 * slots["momenta"] + grad
        return rows - hyper[0] * momenta, {"momenta": momenta}


# --- golden numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_one_step_of_upstream(name, where):
    e = video_and_user(optimizer=getattr(sc.optimizers, name)(learning_rate=0.1), where=where)
    e.enqueue(VIDEOS)
    x = e.dequeue()
    np.testing.assert_allclose(x["watched"], [[0, 1, 2, 3], [4, 6, 8, 10]])
    np.testing.assert_allclose(x["favorited"], [[4, 6, 8, 10], [4, 5, 6, 7]])
    np.testing.assert_allclose(x["friends"], [[6, 7], [2, 3]])
    assert sum((a * a).sum() / 2 for a in x.values()) == 335
    e.apply_gradients(x)  # the gradient of that loss, 2 x / batch
    video, user = (np.asarray(e.tables[table]) for table in ("video", "user"))
    initial = np.arange(32.0)
    np.testing.assert_array_equal(video[2:], initial.reshape(8, 4)[2:])
    np.testing.assert_array_equal(user[4:], initial.reshape(16, 2)[4:])
    if name == "SGD":
        np.testing.assert_allclose(video[0], [-0.8, -0.3, 0.2, 0.7], atol=1e-6)
        np.testing.assert_allclose(video[1], [2.8, 3.3, 3.8, 4.3], atol=1e-6)
        np.testing.assert_allclose(user[0], [-0.066667, 0.9], atol=1e-6)
        np.testing.assert_allclose(user[3], [5.4, 6.3], atol=1e-6)
        return
    np.testing.assert_allclose(video[0], [-0.099922, 0.90003, 1.900015, 2.900009], atol=1e-6)
    np.testing.assert_allclose(user[0], [-0.090351, 0.904654], atol=1e-6)
    np.testing.assert_allclose(user[3], [5.900139, 6.900102], atol=1e-6)
    videos, users = (np.asarray(e.slots[table]["accumulators"]) for table in ("video", "user"))
    np.testing.assert_allclose(videos[0], [64.1, 169.1, 324.1, 529.1], rtol=1e-6)
    np.testing.assert_allclose(users[0], [0.544444, 1.1], atol=1e-6)
    np.testing.assert_allclose(users[3], [36.1, 49.1], rtol=1e-6)
    np.testing.assert_array_equal(videos[2:], np.float32(0.1))


def test_dynamic_learning_rate_of_upstream():
    asked = []

    def rate():
        asked.append(threading.get_ident())
        return 1.0 - 0.05 * (len(asked) - 1)

    one, two = (TableConfig(3, 1, initializer=sc.initializers.Zeros(), name=n) for n in "ab")
    e = engine({"a": FeatureConfig(one), "b": FeatureConfig(two)}, sc.optimizers.SGD(rate))
    seen = [float(train(e, {"a": [[1]], "b": [[2]]}, 1)["a"][0, 0]) for _ in range(10)]
    np.testing.assert_allclose(seen[:4], [0, -1, -1.95, -2.85], rtol=1e-6)
    expected = [-sum(1 - 0.05 * j for j in range(i)) for i in range(10)]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)
    assert asked == [threading.get_ident()] * 10  # once per batch, in the caller's thread
    assert np.asarray(e.tables["a"])[1] == np.asarray(e.tables["b"])[2]


# --- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("where", BACKENDS)
def test_none_touches_nothing_and_zeros_touch(where):
    table = TableConfig(6, 1, initializer=ROWS, combiner="sum", name="t")
    config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
    e = engine(config, Creep(), **where)
    train(e, {"a": [[1, 1], [2]], "b": [[2, 3], [4]]}, {"a": None, "b": np.zeros((2, 1))})
    np.testing.assert_array_equal(e.tables["t"], [[0], [1], [3], [4], [5], [5]])
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [0], [1], [1], [1], [0]])
    train(e, {"a": [[1, 1], [2]], "b": [[2, 3], [4]]}, 0.0)
    np.testing.assert_array_equal(e.slots["t"]["visits"], [[0], [1], [2], [2], [2], [0]])
    assert (e.step, e.metrics()["steps"]) == (2, 2)


@pytest.mark.parametrize("where", BACKENDS)
def test_a_gradient_of_zeros_lets_momentum_move_and_none_does_not(where):
    table = TableConfig(3, 1, initializer=sc.initializers.Zeros(), name="t")
    e = engine({"a": FeatureConfig(table)}, Momentum(), **where)
    train(e, {"a": [[0], [1], [2]]}, 1.0)
    train(e, {"a": [[1]]}, 0.0)
    np.testing.assert_array_equal(e.tables["t"], [[-1], [-1.5], [-1]])
    np.testing.assert_array_equal(e.slots["t"]["momenta"], [[1], [0.5], [1]])
    train(e, {"a": [[2]]}, {"a": None})
    np.testing.assert_array_equal(e.tables["t"], [[-1], [-1.5], [-1]])


def test_zeros_leave_adagrad_as_it_was():
    e = engine({"a": FeatureConfig(TableConfig(3, 2, name="t"))}, sc.optimizers.Adagrad(0.5))
    before = np.asarray(e.tables["t"]).tobytes(), np.asarray(e.slots["t"]["accumulators"]).tobytes()
    train(e, {"a": [[0, 1]]}, 0.0)
    after = np.asarray(e.tables["t"]).tobytes(), np.asarray(e.slots["t"]["accumulators"]).tobytes()
    assert after == before
    assert e.step == 1


@pytest.mark.parametrize("dropped", [None, {"a": None, "b": None}])
def test_no_gradient_at_all_drops_the_batch(dropped):
    asked = []
    table = TableConfig(3, 1, initializer=ROWS, name="t")
    config = {"a": FeatureConfig(table), "b": FeatureConfig(table)}
    e = engine(config, Momentum(lambda: asked.append(1) or 1.0))
    e.enqueue({"a": [[0]], "b": [[1]]})
    if dropped is not None:
        e.dequeue()
        assert e.apply_gradients(dropped) is None
    else:
        e.dequeue()
        assert e.apply_gradients(None) is None
    np.testing.assert_array_equal(e.tables["t"], [[0], [1], [2]])
    assert (e.step, e.metrics()["steps"], asked) == (0, 0, [])
    train(e, {"a": [[0]], "b": [[1]]}, 1.0)
    assert e.step == 1


def test_ids_that_weigh_nothing_are_touched():
    e = engine(FeatureConfig(TableConfig(4, 1, initializer=ROWS, name="t")), Creep())
    e.enqueue([[1, 2], [3]], np.array([0.0, 1.0, 0.0]))
    e.dequeue()
    e.apply_gradients(np.ones((2, 1)))
    np.testing.assert_array_equal(e.tables["t"], [[0], [2], [3], [4]])


def test_optimizers_see_the_step_and_the_rows():
    seen = []

    @dataclass(frozen=True, eq=False, repr=False)
    class Watch(sc.Optimizer):
        hyper_names = ()

        def update(self, grad, rows, slots, hyper, step, row_ids):
            seen.append((step, row_ids.tolist(), grad[:, 0].tolist()))
            return rows, {}

    e = engine({"a": FeatureConfig(TableConfig(9, 1, combiner="sum"))}, Watch())
    train(e, {"a": [[7, 2], [7]]}, 1.0)
    train(e, {"a": [[5]]}, 2.0)
    assert seen == [(1, [2, 7], [1.0, 2.0]), (2, [5], [2.0])]


def test_two_tables_with_optimizers_of_their_own():
    own = TableConfig(3, 1, initializer=ROWS, optimizer=Creep(), name="own")
    plain = TableConfig(3, 1, initializer=ROWS, name="plain")
    e = engine({"a": FeatureConfig(own), "b": FeatureConfig(plain)}, sc.optimizers.SGD(0.5))
    train(e, {"a": [[1]], "b": [[1]]}, 1.0)
    np.testing.assert_array_equal(e.tables["own"], [[0], [2], [2]])
    np.testing.assert_array_equal(e.tables["plain"], [[0], [0.5], [2]])
    assert [list(slots) for slots in e.slots.values()] == [["visits"], []]


def test_a_table_without_optimizer_is_looked_up_only():
    frozen = TableConfig(3, 1, initializer=ROWS, name="frozen")
    moving = TableConfig(3, 1, initializer=ROWS, optimizer=Creep(), name="moving")
    e = engine({"a": FeatureConfig(frozen), "b": FeatureConfig(moving)})
    activations = train(e, {"a": [[1]], "b": [[1]]}, {"a": None, "b": np.ones((1, 1))})
    np.testing.assert_array_equal(activations["a"], [[1]])
    np.testing.assert_array_equal(e.tables["frozen"], [[0], [1], [2]])
    np.testing.assert_array_equal(e.tables["moving"], [[0], [2], [2]])
    untrained = engine(FeatureConfig(frozen))
    untrained.enqueue([[2]])
    np.testing.assert_array_equal(untrained.dequeue(), [[2]])
    untrained.enqueue([[1]])  # the one before needed no gradients
    np.testing.assert_array_equal(untrained.dequeue(), [[1]])


@pytest.mark.parametrize("where", BACKENDS)
def test_a_lookup_sees_the_updates_before_it_and_no_other(where):
    table = TableConfig(3, 1, initializer=ROWS, name="t")
    e = engine({"a": FeatureConfig(table)}, Creep(), **where)
    e.enqueue({"a": [[1]]})
    e.tables["t"][1] = [50]
    waiting = e.dequeue()["a"]
    assert waiting.tolist() == [[1]]
    assert e({"a": [[1]]})["a"].tolist() == [[50]]  # a lookup beside a batch in flight
    e.apply_gradients({"a": np.zeros((1, 1))})
    assert waiting.tolist() == [[1]]
    assert e({"a": [[1]]})["a"].tolist() == [[51]]
    e.enqueue({"a": [[1]]}, training=False)
    assert e.dequeue()["a"].tolist() == [[51]]
    assert e.step == 1


@pytest.mark.parametrize("where", BACKENDS)
def test_lookups_of_other_threads_see_whole_rows(where):
    table = TableConfig(2, 257, initializer=sc.initializers.Zeros(), name="t")
    e = engine({"a": FeatureConfig(table)}, sc.optimizers.SGD(learning_rate=1.0), **where)
    torn, stop, looked = [], threading.Event(), []

    def look():
        while not stop.is_set():
            row = e({"a": [[1]]})["a"][0]
            looked.append(row[0])
            if (row != row[0]).any():
                torn.append(row)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        train(e, {"a": [[1]]}, -1.0)
    while len(looked) < 5 and all(thread.is_alive() for thread in threads):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert not torn
    assert e.metrics()["lookups"] == 60 + len(looked)
    assert np.asarray(e.tables["t"])[1, 0] == 60


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dtypes_train_in_their_working_dtype(dtype):
    rows = np.linspace(-1, 1, 12).reshape(4, 3)
    table = TableConfig(4, 3, initializer=rows, combiner="sum", dtype=dtype, name="t")
    e = engine({"a": FeatureConfig(table)}, sc.optimizers.Adagrad(0.5))
    working = np.float64 if dtype == "float64" else np.float32
    stored = np.asarray(e.tables["t"])
    assert stored.dtype.name == dtype
    assert e.slots["t"]["accumulators"].dtype == working
    g = np.array([[0.5, -1, 2]])
    x = train(e, {"a": [[1, 3, 3]]}, {"a": g.astype(np.float16)})["a"]
    assert x.dtype == working
    w = stored.astype(working)
    np.testing.assert_allclose(x[0], w[1] + 2 * w[3], rtol=1e-6)
    for row, total in ((1, g[0]), (3, 2 * g[0])):
        a = (np.float32(0.1) if working == np.float32 else 0.1) + total**2
        w[row] = w[row] - 0.5 * total / np.sqrt(a)
    tolerance = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    after = np.asarray(e.tables["t"]).astype(working)
    np.testing.assert_allclose(after, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("where", BACKENDS)
def test_gradients_may_lie_anywhere_and_in_any_order(where, dtype):
    """As in a record or a message: kernels read numbers of C-ordered, aligned arrays only."""
    gradients = np.arange(8, dtype=dtype).reshape(2, 4)
    anywhere = np.ndarray((2, 4), dtype, bytearray(gradients.nbytes + 1), offset=1)
    anywhere[...] = gradients
    assert not anywhere.flags.aligned
    swapped = gradients.astype(gradients.dtype.newbyteorder())
    trained = []
    for given in (gradients, anywhere, np.asfortranarray(gradients), swapped):
        table = TableConfig(9, 4, dtype=dtype, combiner="sum", initializer=ROWS, name="t")
        e = engine(FeatureConfig(table), sc.optimizers.SGD(learning_rate=0.5), **where)
        e.enqueue([[1, 2], [8]])
        e.dequeue()
        e.apply_gradients(given)
        trained.append(np.asarray(e.tables["t"]))
    for found in trained[1:]:
        np.testing.assert_array_equal(found, trained[0])
