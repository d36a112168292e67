"""Rows, columns, whole tables or copies on the hosts: the same bits, and the messages they take."""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from shardcore_sim.backend import SimBackend
from shardcore_sim.cost import CostModel
from shardcore_sim.placement import home_layout, host_bytes
from shardcore_sim.report import imbalance

import shardcore as sc
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.dtypes import as_dtype
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.initializers.constants import Zeros
from shardcore.initializers.filling import fill
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.hyperparameters import LearningRate
from shardcore.optimizer.slots import SlotSpec
from shardcore.sharding.layout import Layout
from shardcore.testing.requests import layout_over

ROWS = sc.initializers.RowId()
PLACEMENTS = ("row", "table", "column", "replicated")


@dataclass(frozen=True, eq=False, repr=False)
class Whole(Optimizer):
    """Needs whole rows: a norm per row, a slot per row, a slot per weight."""

    learning_rate: LearningRate = 0.25

    slots = (SlotSpec("norms", "row", fill=0.5), SlotSpec("momenta", "element", fill=0.25))

    def update(self, grad, rows, slots, hyper, step, row_ids):
        xp = rows.__array_namespace__()
        norms = slots["norms"] + xp.sqrt(xp.sum(grad * grad, axis=1, keepdims=True))
        momenta = 0.5 * slots["momenta"] + grad / norms
        return rows - hyper[0] * momenta, {"norms": norms, "momenta": momenta}


def make_engine(backend, placements, layout="div", dtype="float32", exchange="exact"):
    first, second, third = placements
    cuts = [layout_over(backend.num_hosts, layout, rows) for rows in (50, 7, 31)]
    tables = [
        TableConfig(50, 20, placement=first, name="a", layout=cuts[0], dtype=dtype,
                    exchange=exchange),
        TableConfig(7, 3, placement=second, name="b", layout=cuts[1], dtype=dtype,
                    combiner="sum", optimizer=Whole(), exchange=exchange),
        TableConfig(31, 70, placement=third, name="c", layout=cuts[2], dtype=dtype,
                    combiner="sqrtn", optimizer=Whole(), exchange=exchange),
    ]  # fmt: skip
    features = {
        "x": FeatureConfig(tables[0]),
        "y": [FeatureConfig(tables[0]), FeatureConfig(tables[1]), FeatureConfig(tables[2])],
        "z": FeatureConfig(tables[2], max_sequence_length=2),
    }
    e = sc.ShardedEmbedding(features, sc.optimizers.Adagrad(0.1), backend, seed=4)
    e.build()
    return e


def bags_of(rng, bags, rows):
    lengths = rng.integers(0, 6, bags)
    ids = rng.zipf(1.4, lengths.sum()) % rows
    return ids, np.concatenate([[0], np.cumsum(lengths)])


def run(e, steps=3):
    """Train, and return every byte that can be seen."""
    rng = np.random.default_rng(1)
    seen = []
    for step in range(steps):
        bags = (40, 2, 0, 17)[step]
        x, y0, y1, y2, z = (bags_of(rng, bags, rows) for rows in (50, 50, 7, 31, 31))
        weights = rng.normal(size=y0[0].size), rng.random(y2[0].size)
        e.enqueue({"x": x, "y": [y0, y1, y2], "z": z},
                  {"x": None, "y": [weights[0], None, weights[1]], "z": None})  # fmt: skip
        out = e.dequeue()
        leaves = [out["x"], *out["y"], out["z"]]
        gradients = [rng.normal(size=leaf.shape) for leaf in leaves]
        if step == 1:
            gradients[0] = gradients[3] = None
        gx, g0, g1, g2, gz = gradients
        dots = e.apply_gradients({"x": gx, "y": [g0, g1, g2], "z": gz}, weight_gradients=True)
        seen += [*leaves, dots["y"][0], dots["y"][2]]
    for name, table in e.tables.items():
        seen.append(np.asarray(table))
        seen += [np.asarray(slot) for slot in e.slots[name].values()]
    return [None if array is None else (array.shape, array.tobytes()) for array in seen]


_expected = {}


def expected(dtype="float32"):
    if dtype not in _expected:
        _expected[dtype] = run(make_engine(sc.get_backend("cpu"), ("row",) * 3, dtype=dtype))
    return _expected[dtype]


@pytest.mark.parametrize("hosts", [1, 2, 3, 7])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_for_all_tables(placement, hosts):
    for layout in ("div", "mod", "ranges"):
        backend = SimBackend(hosts)
        assert run(make_engine(backend, (placement,) * 3, layout)) == expected()
        assert (backend.exchange.messages.sum() == 0) == (hosts == 1)


@pytest.mark.parametrize("placements", [*itertools.permutations(PLACEMENTS, 3)])
def test_placements_mixed_in_one_model(placements):
    assert run(make_engine(SimBackend(3), placements, "mod")) == expected()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("placement", ["column", "replicated"])
def test_dtypes(placement, dtype):
    assert run(make_engine(SimBackend(3), (placement,) * 3, dtype=dtype)) == expected(dtype)


@dataclass(frozen=True, eq=False, repr=False)
class MovesAll(Whole):
    """Moves rows that no batch names, and rounds short rows by chance."""

    lazy = False
    rounds_stochastically = True

    def update(self, grad, rows, slots, hyper, step, row_ids):
        rows, slots = super().update(grad + 0.125, rows, slots, hyper, step, row_ids)
        return rows * 0.9, slots


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_all_rows_move_and_are_rounded_alike(placement, dtype):
    seen = []
    for backend in (sc.get_backend("cpu"), SimBackend(3), SimBackend(8)):
        spec = TableSpec("t", 7, 5, as_dtype(dtype), sc.initializers.Uniform(-1, 1), 3, MovesAll(),
                         "mod", placement)  # fmt: skip
        backend.create_table(spec)
        bags = FeatureBags(np.array([1, 6, 1]), np.array([0, 2, 3]))
        for step in (1, 2):
            batch = TableBatch("t", (bags,), training=True)
            backend.lookup([batch])
            gradient = np.full((2, 5), 0.3, np.float32)
            backend.apply([TableUpdate(batch, (gradient,), spec.optimizer.hyper(), step)])
        assert backend.counters()["unique_rows"] == 4
        slots = (None, "norms", "momenta")
        seen.append([backend.read("t", slot, 0, 7).tobytes() for slot in slots])
        first = np.empty((7, 5), spec.dtype)
        fill(first, spec.initializer, range(7), 3)
        assert (backend.read("t", None, 0, 7) != first).any(axis=1).all()
    assert seen[0] == seen[1] == seen[2]


def spec_of(rows, dim, placement, layout="div", optimizer=None, name="t"):
    return TableSpec(name, rows, dim, np.dtype("float32"), ROWS, 0, optimizer, layout, placement)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("layout", ["div", "mod", (4, 0, 7)])
def test_rows_and_slots_are_read_and_written(placement, layout):
    backend = SimBackend(3)
    backend.create_table(spec_of(11, 4, placement, layout, Whole()))
    rng = np.random.default_rng(0)
    for slot, width in ((None, 4), ("norms", 1), ("momenta", 4)):
        before = backend.read("t", slot, 0, 11)
        expected = {None: np.arange(11.0)[:, None], "norms": 0.5, "momenta": 0.25}[slot]
        np.testing.assert_array_equal(before, np.broadcast_to(expected, (11, width)))
        rows = np.array([10, 3, 0, 7])
        values = rng.normal(size=(4, width)).astype(np.float32)
        backend.scatter("t", slot, rows, values)
        before[rows] = values
        backend.write("t", slot, 4, values[:2])
        before[4:6] = values[:2]
        np.testing.assert_array_equal(backend.gather("t", slot, np.arange(11)[::-1]), before[::-1])
        shards = backend.shards("t", slot)
        for host, shard in enumerate(shards):
            np.testing.assert_array_equal(shard, before[backend.layout("t").global_rows(host)])
    assert backend.exchange.messages.sum() == 0


def test_what_each_host_holds():
    backend = SimBackend(3)
    for placement in PLACEMENTS:
        backend.create_table(spec_of(10, 4, placement, optimizer=Whole(), name=placement))
    shapes = {
        name: [(s.rows.shape, s.slots["norms"].shape, s.slots["momenta"].shape) for s in t.stores]
        for name, t in backend._tables.items()
    }
    assert shapes["row"] == [((n, 4), (n, 1), (n, 4)) for n in (4, 3, 3)]
    assert shapes["table"] == [((n, 4), (n, 1), (n, 4)) for n in (0, 10, 0)]
    homes = zip((2, 1, 1), (4, 3, 3), strict=True)
    assert shapes["column"] == [((10, w), (n, 1), (10, w)) for w, n in homes]
    assert shapes["replicated"] == [((10, 4), (10, 1), (10, 4))] * 3
    for name, table in backend.report().tables.items():
        stored = [
            store.rows.nbytes + sum(slot.nbytes for slot in store.slots.values())
            for store in backend._tables[name].stores
        ]
        assert table.host_bytes.tolist() == stored
    assert backend.report().host_bytes.tolist() == [4 * 36 + 10 * 16 + 4 * 4 + 360, 3 * 36 + 360
                                                    + 10 * 8 + 3 * 4 + 360, 3 * 36 + 10 * 8
                                                    + 3 * 4 + 360]  # fmt: skip
    columns = [store.rows[:, 0].tolist() for store in backend._tables["column"].stores]
    assert columns == [list(range(10))] * 3


def test_whole_tables_go_where_the_fewest_bytes_are():
    backend = SimBackend(3)
    owners = []
    for number, rows in enumerate((10, 4, 5, 3, 8)):
        backend.create_table(spec_of(rows, 1, "table", name=str(number)))
        (owner,) = np.flatnonzero(backend.layout(str(number)).shard_sizes)
        owners.append(int(owner))
    assert owners == [0, 1, 2, 1, 2]  # the first of the emptiest
    assert backend.report().host_bytes.tolist() == [40, 28, 52]
    backend.drop_table("0")
    backend.create_table(spec_of(1, 1, "table", name="0"))
    assert backend.layout("0").shard_sizes.tolist() == [1, 0, 0]


def test_bytes_are_known_before_anything_is_made():
    spec = TableSpec("t", 7, 5, np.dtype("float16"), Zeros(), 0, Whole(), placement="column")
    layout = home_layout(spec, 2, [0, 0])
    assert layout == Layout.div(7, 2)
    assert host_bytes(spec, layout) == [7 * 3 * 6 + 4 * 4, 7 * 2 * 6 + 3 * 4]


def two_hosts(placement, exchange="exact"):
    backend = SimBackend(2)
    table = TableConfig(6, 2, initializer=ROWS, placement=placement, exchange=exchange, name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), backend)
    return e, backend.exchange


def crossed(exchange):
    return [(int(exchange.messages[link]), int(exchange.bytes[link])) for link in ((0, 1), (1, 0))]


# Of 4 samples 0 and 1 belong to host 0, 2 and 3 to host 1; of 6 rows 0 to 2 and 3 to 5.
BAGS = [[0, 3, 3], [1], [5, 4], [0, 5]]


def step(e):
    e.enqueue(BAGS)
    e.dequeue()
    looked = crossed(e._backend.exchange)
    e.apply_gradients(np.ones((4, 2), np.float32))
    return looked, crossed(e._backend.exchange)


def test_a_table_on_one_host_is_asked_by_the_others():
    e, _ = two_hosts("table")
    looked, applied = step(e)
    # Host 1 asks host 0 for rows 0, 4, 5, gets 3 rows; tells it of 4 namings. Then two gradients.
    assert looked == [(1, 24), (1 + 2, 24 + 4 * 12)]
    assert applied == [(1, 24), (4, 72 + 16)]


def test_columns_of_rows_are_asked_from_every_host():
    e, _ = two_hosts("column")
    looked, applied = step(e)
    # Each host has one of the two columns of the rows it needs, 3 of them, and asks for the other:
    # 3 ids there, 3 halves of rows back, as answer of the other. Namings go home, as by row:
    # 2 of row 3 to host 1, 1 of row 0 to host 0.
    assert looked == [(2 + 2, 24 + 12 + 24), (2 + 2, 24 + 12 + 12)]
    # A gradient of 8 bytes each way. Home 0 updates rows 0, 1, home 1 rows 3, 4, 5: ids (8 bytes)
    # there, columns (4 bytes) back, new columns (4 bytes) there.
    assert applied == [
        (4 + 1 + 2 + 1, 60 + 8 + (16 + 8) + 12),
        (4 + 1 + 2 + 1, 48 + 8 + (24 + 12) + 8),
    ]


def test_copies_are_read_at_home_and_told_of_every_gradient():
    e, _ = two_hosts("replicated")
    looked, applied = step(e)
    assert looked == [(2, 4 * 12), (2, 4 * 12)]  # namings: row and gradient's number
    assert applied == [(3, 48 + 16), (3, 48 + 16)]  # two gradients of 8 bytes
    stores = e._backend._tables["t"].stores
    np.testing.assert_array_equal(stores[0].rows, stores[1].rows)
    assert e.metrics()["rows_updated"] == 2 * 5


def test_lookups_of_copies_cross_nothing():
    e, exchange = two_hosts("replicated")
    np.testing.assert_array_equal(e(BAGS)[:, 0], [2, 1, 4.5, 2.5])
    assert exchange.messages.sum() == 0


def test_counters_say_where_what_went():
    e, _ = two_hosts("row")
    step(e)
    metrics = e.metrics()
    assert metrics["messages_exchanged/0->1"] == 2 + 2 + 1
    assert metrics["bytes_exchanged/1->0"] == 16 + 12 + 8
    assert metrics["bytes_exchanged/table/t"] == metrics["bytes_exchanged"]
    assert metrics["messages_exchanged/table/t"] == metrics["messages_exchanged"]
    assert metrics["rows_requested/table/t"] == metrics["rows_requested"] == 6
    assert metrics["rows_updated/table/t"] == metrics["rows_updated"] == 5
    assert metrics["calls"] == 2
    # Rows read: 0, 1, 0 of host 0, 3, 4, 5 of host 1; updated: 0, 1 and 3, 4, 5.
    assert (metrics["hot_host"], metrics["hot_host_rows"]) == (1, 6)
    assert all(type(count) is int for count in metrics.values())
    for event in ("lost", "retried", "late", "discarded"):
        assert metrics[f"messages_{event}"] == 0


def test_report():
    e, exchange = two_hosts("row")
    step(e)
    report = e._backend.report()
    assert report.messages.tolist() == exchange.messages.tolist()
    assert report.bytes.tolist() == exchange.bytes.tolist()
    assert report.tables["t"].rows_served.tolist() == [3, 3]
    assert report.tables["t"].rows_updated.tolist() == [2, 3]
    assert report.host_rows.tolist() == [5, 6]
    assert report.hot_hosts == [1, 0]
    assert report.host_bytes.tolist() == [24, 24]
    assert (report.calls, report.hosts, report.broken) == (2, 2, None)
    assert report.seconds == e._backend.simulated_seconds > 0
    lines = str(report).splitlines()
    assert lines[0] == (
        f"2 hosts, 2 calls, {report.seconds:.6f} simulated seconds, 10 messages, 84 bytes"
    )
    assert lines[1:] == [
        "rows per host: most 6 (host 1), 1.09 of the mean",
        "memory per host: most 24 bytes, 1.00 of the mean",
        "table 't' (row, exact): 10 messages, 84 bytes, 6 rows read, 5 updated",
    ]
    report.messages[:] = 0
    assert exchange.messages.sum() == 10


def test_report_of_nothing():
    report = SimBackend(2).report()
    assert report.host_rows.tolist() == [0, 0]
    assert imbalance(report.host_rows) == 1
    assert SimBackend(2).counters()["rows_requested"] == 0


def test_a_table_that_does_not_fit_is_refused():
    backend = SimBackend(2, cost=CostModel(memory=100))
    backend.create_table(spec_of(10, 2, "row", name="a"))
    message = "table 'b' does not fit: host 0 has 100 bytes, holds 40 and would need 72 more"
    with pytest.raises(sc.errors.ShardcoreValueError, match=re.escape(message)):
        backend.create_table(spec_of(9, 2, "replicated", name="b"))
    assert list(backend.specs) == list(backend._tables) == ["a"]
    backend.create_table(spec_of(14, 2, "row", name="b"))


def test_a_lookup_sees_a_row_of_many_hosts_wholly_before_or_after_an_update():
    backend = SimBackend(4)
    table = TableConfig(3, 4, initializer=Zeros(), combiner="sum", placement="column", name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), backend)
    e.build()
    torn, done = [], threading.Event()

    def look():
        while not done.is_set():
            row = e([[1]])[0]
            if (row != row[0]).any():
                torn.append(row)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        e.enqueue([[1]])
        e.dequeue()
        e.apply_gradients(np.ones((1, 4)))
    done.set()
    for thread in threads:
        thread.join()
    assert torn == []
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[1], [-100] * 4)


@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_rows_are_counted_once_wherever_they_are_kept(placement, hosts):
    """Hosts that update the same rows, or parts of them, do not make them more."""
    table = TableConfig(20, 6, placement=placement, name="t")
    e = sc.ShardedEmbedding([FeatureConfig(table)] * 2, sc.optimizers.SGD(0.1), SimBackend(hosts))
    for expected in (5, 10):
        e.enqueue([[[1, 2], [3, 1], [7, 7]], [[2], [19], [1]]])
        e.apply_gradients(e.dequeue())
        assert e.metrics()["unique_rows"] == expected
