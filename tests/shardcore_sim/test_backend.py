"""The simulated cluster: what crosses between hosts, and that nothing else does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardcore_sim.backend import SimBackend
from shardcore_sim.exchange import Call, Exchange
from shardcore_sim.route import named_rows, shares

import shardcore as sc
from shardcore.backend.messages import FeatureBags, TableSpec
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.sharding.layout import Layout

ROWS = sc.initializers.RowId()
# Of 4 samples 0 and 1 belong to host 0, 2 and 3 to host 1; of 6 rows 0 to 2 and 3 to 5.
BAGS = [[0, 3, 3], [1], [5, 4], [0, 5]]


def two_hosts(features, layout="div"):
    backend = SimBackend(hosts=2)
    table = TableConfig(6, 2, initializer=ROWS, layout=layout, name="t")
    config = {name: FeatureConfig(table) for name in features}
    e = sc.ShardedEmbedding(config, optimizer=sc.optimizers.SGD(1.0), backend=backend)
    return e, backend.exchange


def crossed(exchange):
    assert (exchange.messages.diagonal() == 0).all()
    assert (exchange.bytes.diagonal() == 0).all()
    return {
        "0 to 1": (int(exchange.messages[0, 1]), int(exchange.bytes[0, 1])),
        "1 to 0": (int(exchange.messages[1, 0]), int(exchange.bytes[1, 0])),
    }


def test_a_lookup_asks_once_for_each_row_and_gets_it_once():
    e, exchange = two_hosts("a")
    out = e({"a": BAGS})["a"]
    np.testing.assert_array_equal(out[:, 0], [2, 1, 4.5, 2.5])
    # Host 0 asks host 1 for row 3, named twice: 8 bytes of id, 8 bytes of two floats come back.
    # Host 1 asks host 0 for row 0.
    assert crossed(exchange) == {"0 to 1": (2, 16), "1 to 0": (2, 16)}
    assert e.metrics()["rows_requested"] == 6  # {0, 1}, {3} and {0}, {4, 5}
    assert e.metrics()["messages_exchanged"] == 4
    assert e.metrics()["bytes_exchanged"] == 32


def test_an_update_sends_each_gradient_once_to_each_owner():
    e, exchange = two_hosts("a")
    e.enqueue({"a": BAGS})
    e.dequeue()
    # Beside the rows: which rows (8 bytes) get which of the gradients (4 bytes) that will come;
    # row 3 twice to host 1, row 0 once to host 0.
    assert crossed(exchange) == {"0 to 1": (4, 16 + 24), "1 to 0": (4, 16 + 12)}
    e.apply_gradients({"a": np.array([[3.0, 6.0], [1, 1], [2, 2], [4, 4]])})
    # Bag 0 names host 1's row 3 twice, its gradient goes there once; bag 3 names host 0's row 0.
    assert crossed(exchange) == {"0 to 1": (5, 40 + 8), "1 to 0": (5, 28 + 8)}
    table = np.asarray(e.tables["t"])
    np.testing.assert_array_equal(table[0], [0 - 1 - 2, 0 - 2 - 2])
    np.testing.assert_array_equal(table[3], [3 - 2, 3 - 4])


def test_weights_cross_as_gains():
    e, exchange = two_hosts("a")
    e.enqueue({"a": BAGS}, {"a": np.ones(8)})
    e.dequeue()
    # As without weights, and a float per naming of another host's row.
    assert crossed(exchange) == {"0 to 1": (5, 40 + 8), "1 to 0": (5, 28 + 4)}


def test_features_of_one_table_share_their_requests():
    e, exchange = two_hosts("ab")
    e({"a": [[3], []], "b": [[4, 3], []]})
    # Host 0 asks for rows 3 and 4 in one message, and gets two rows in one.
    assert crossed(exchange) == {"0 to 1": (1, 16), "1 to 0": (1, 16)}
    assert e.metrics()["rows_requested"] == 2


def test_a_feature_without_gradient_sends_none():
    e, exchange = two_hosts("ab")
    e.enqueue({"a": [[3], []], "b": [[4], []]})
    e.dequeue()
    before = crossed(exchange)
    assert before == {"0 to 1": (1 + 4, 16 + 24), "1 to 0": (1, 16)}
    e.apply_gradients({"a": None, "b": np.ones((2, 2))})
    # The owner is told anew which rows are meant (8 + 4 bytes), and gets one gradient of 8 bytes.
    assert crossed(exchange) == {"0 to 1": (8, 40 + 12 + 8), "1 to 0": before["1 to 0"]}
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 0], [0, 1, 2, 3, 3, 5])


def test_rows_by_mod_cross_otherwise():
    e, exchange = two_hosts("a", layout="mod")
    out = e({"a": BAGS})["a"]
    np.testing.assert_array_equal(out[:, 0], [2, 1, 4.5, 2.5])
    # Host 1 has rows 1, 3, 5: host 0 asks for 3 and 1; host 1 asks host 0 for 4 and 0.
    assert crossed(exchange) == {"0 to 1": (2, 16 + 16), "1 to 0": (2, 16 + 16)}


def test_one_host_exchanges_nothing():
    table = TableConfig(6, 2, initializer=ROWS)
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(), "sim", {"hosts": 1})
    e.enqueue(BAGS)
    e.apply_gradients(e.dequeue())
    assert e.metrics()["messages_exchanged"] == 0
    assert e.metrics()["bytes_exchanged"] == 0
    assert e.metrics()["rows_requested"] == 5


def test_what_is_sent_is_a_copy():
    links = Exchange(3)
    sent = np.arange(4.0)
    with links.call("test") as call:
        received = call.send(sent, 0, 2, "t")
        received[:] = -1
        np.testing.assert_array_equal(sent, [0, 1, 2, 3])
        sent[:] = 7
        np.testing.assert_array_equal(received, [-1] * 4)
        empty = call.send(sent[:0], 1, 2, "t")
        assert empty.shape == (0,)
        assert call.send(sent, 1, 1, "t") is sent
    assert links.messages.tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert links.bytes.tolist() == [[0, 0, 32], [0, 0, 0], [0, 0, 0]]
    assert links.by_table["t"].tolist() == [1, 32]


@pytest.mark.parametrize("placement", ["row", "table", "column", "replicated"])
@pytest.mark.parametrize("exchange", ["exact", "partial"])
def test_hosts_share_no_memory(monkeypatch, placement, exchange):
    backend = SimBackend(hosts=2)
    table = TableConfig(6, 2, initializer=ROWS, placement=placement, exchange=exchange, name="t")
    config = {name: FeatureConfig(table) for name in "ab"}
    e = sc.ShardedEmbedding(config, optimizer=sc.optimizers.SGD(1.0), backend=backend)
    e.build()
    stores = backend._tables["t"].stores
    seen = []
    send, deliver = Call.send, Call.deliver

    def sent(call, array, source, target, *rest):
        received = send(call, array, source, target, *rest)
        assert source == target or not np.shares_memory(received, array)
        return received

    def delivered(call, array, source, target, *rest):
        deliver(call, array, source, target, *rest)
        if source != target:
            assert not any(np.shares_memory(array, store.rows) for store in stores)
            seen.append(array.size)

    monkeypatch.setattr(Call, "send", sent)
    monkeypatch.setattr(Call, "deliver", delivered)
    e.enqueue({"a": BAGS, "b": BAGS[::-1]}, {"a": None, "b": np.ones(8)})
    e.apply_gradients(e.dequeue(), weight_gradients=True)
    assert sum(size > 0 for size in seen) == backend.exchange.messages.sum() > 0
    assert not np.shares_memory(stores[0].rows, stores[1].rows)


@pytest.mark.parametrize("layout", ["div", "mod", "ranges"])
@pytest.mark.parametrize("hosts", [1, 2, 3, 7, 9])
def test_every_host_holds_its_rows_and_no_other(layout, hosts):
    backend = SimBackend(hosts=hosts)
    if layout == "ranges":  # the first host has one row, the last but one none
        layout = [7] if hosts == 1 else [1, *[0] * (hosts - 2), 6]
    table = TableConfig(7, 2, initializer=ROWS, layout=layout, name="t")
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.Adagrad(), backend)
    e.build()
    owned = backend.layout("t")
    assert owned.num_shards == hosts
    held = []
    stores, copies = backend._tables["t"].stores, e.tables["t"].shards
    for host, (store, shard) in enumerate(zip(stores, copies, strict=True)):
        rows = owned.global_rows(host)
        assert store.rows.shape == (len(rows), 2)
        assert store.slots["accumulators"].shape == (len(rows), 2)
        np.testing.assert_array_equal(store.rows[:, 0], rows)
        np.testing.assert_array_equal(shard, store.rows)
        if layout == "mod":
            assert rows.tolist() == [r for r in range(7) if r % hosts == host]
        elif isinstance(layout, list):
            assert len(rows) == layout[host]
            assert rows.tolist() == list(range(len(held), len(held) + len(rows)))
        else:  # the first 7 % hosts hold one more
            assert len(rows) == 7 // hosts + (host < 7 % hosts)
            assert rows.tolist() == list(range(len(held), len(held) + len(rows)))
        held += rows.tolist()
    assert sorted(held) == list(range(7))
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 1], np.arange(7))


@pytest.mark.parametrize("layout", ["div", "mod", (2, 5, 1)])
def test_boxes_of_rows_are_read_and_written_across_hosts(layout):
    backend = SimBackend(hosts=3)
    backend.create_table(TableSpec("t", 8, 1, np.dtype("float32"), ROWS, 0, layout=layout))
    backend.write("t", None, 2, np.array([[20], [30], [40]], np.float32))
    np.testing.assert_array_equal(backend.read("t", None, 1, 6)[:, 0], [1, 20, 30, 40, 5])
    backend.scatter("t", None, np.array([7, 0]), np.array([[-7], [9]], np.float32))
    np.testing.assert_array_equal(backend.gather("t", None, np.array([0, 7, 7, 3]))[:, 0],
                                  [9, -7, -7, 30])  # fmt: skip
    assert backend.gather("t", None, np.array([], np.int64)).shape == (0, 1)
    assert backend.exchange.messages.sum() == 0
    backend.drop_table("t")
    assert backend.specs == {}


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 3), st.randoms(use_true_random=False))
def test_samples_belong_to_hosts_in_order(samples, hosts, bags_per_sample, random):
    lengths = [random.randint(0, 3) for _ in range(samples * bags_per_sample)]
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    bags = FeatureBags(np.zeros(row_splits[-1], np.int64), row_splits,
                       bags_per_sample=bags_per_sample)  # fmt: skip
    cut = shares(bags, hosts)
    assert len(cut) == hosts
    owner = {b: host for host, share in enumerate(cut) for b in range(*share.bags.indices(10**6))}
    assert sum(share.bags.stop - share.bags.start for share in cut) == len(lengths)
    for bag in range(len(lengths)):
        assert owner[bag] == bag // bags_per_sample * hosts // samples
    for share in cut:
        assert share.ids == slice(row_splits[share.bags.start], row_splits[share.bags.stop])


@given(
    st.lists(st.lists(st.integers(0, 10), max_size=5), max_size=8),
    st.integers(1, 4),
    st.sampled_from(["div", "mod"]),
    st.booleans(),
)
def test_occurrences_are_split_by_owner_in_order(lists, hosts, strategy, weighted):
    ids = np.array([i for bag in lists for i in bag], np.int64)
    row_splits = np.concatenate([[0], np.cumsum([len(bag) for bag in lists])]).astype(np.int64)
    weights = np.arange(1.0, ids.size + 1) if weighted else None
    bags = FeatureBags(ids, row_splits, weights)
    layout = getattr(Layout, strategy)(11, hosts)
    namings = [(b, i) for b, bag in enumerate(lists) for i in bag]
    for share in shares(bags, hosts):
        mine = namings[share.ids]
        for owner, part in enumerate(named_rows(bags, share, layout).owners):
            local_of = {int(r): local for local, r in enumerate(layout.global_rows(owner))}
            wanted = [(p, b, i) for p, (b, i) in enumerate(mine) if i in local_of]
            assert part.positions.tolist() == [p for p, _, _ in wanted]
            assert part.rows.tolist() == [local_of[i] for _, _, i in wanted]
            assert part.bags[part.sources].tolist() == [b for _, b, _ in wanted]
            assert part.bags.tolist() == sorted({b for _, b, _ in wanted})
            if weighted:
                gains = weights[share.ids][[p for p, _, _ in wanted]]
                np.testing.assert_array_equal(part.gains, gains)
            else:
                assert part.gains is None


def test_ids_travel_in_the_type_they_were_given_in():
    """Each of two hosts asks the other for one row of two float32."""
    for dtype in (np.int32, np.int64):
        table = sc.TableConfig(8, 2, combiner="sum", name="t")
        options = {"hosts": 2}
        with sc.ShardedEmbedding(sc.FeatureConfig(table), None, "sim", options) as e:
            e((np.array([0, 7, 1, 6], dtype), np.array([0, 2, 4])))
            assert e.metrics()["bytes_exchanged"] == 2 * (np.dtype(dtype).itemsize + 2 * 4)
