"""The rule that chooses an exchange, and which exchange can serve which table."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.strategy import (
    GATHER_BELOW,
    GATHER_BELOW_ON_CPU,
    ONE_HOT_ROWS,
    check_exchange,
    choose_exchange,
    default_layout,
    update_exchange,
)
from shardcore_pjrt.routing.update_route import route_update

from shardcore.backend import FeatureBags
from shardcore.errors import ShardcoreValueError
from shardcore.planning import IdDistribution


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize(
    ("devices", "placement", "exchange"),
    [
        (1, "row", "local"),
        (1, "table", "local"),
        (1, "column", "local"),
        (1, "replicated", "local"),
        (4, "replicated", "local"),
        (2, "row", "gather"),
        (256, "row", "all_to_all"),
        (2, "column", "columns"),
        (256, "column", "columns"),
    ],
)
def test_large_tables(devices, placement, exchange, platform):
    assert choose_exchange(devices, placement, 10**6, platform) == exchange


@pytest.mark.parametrize(
    ("platform", "below"),
    [("cpu", GATHER_BELOW_ON_CPU), ("tpu", GATHER_BELOW), ("cuda", GATHER_BELOW)],
)
def test_larger_meshes_send_rows_to_those_that_ask(platform, below):
    assert choose_exchange(below - 1, "row", 10**6, platform) == "gather"
    assert choose_exchange(below, "row", 10**6, platform) == "all_to_all"


@pytest.mark.parametrize(
    ("devices", "placement", "rows", "platform", "exchange"),
    [
        (1, "table", ONE_HOT_ROWS, "tpu", "one_hot"),
        (8, "replicated", ONE_HOT_ROWS, "tpu", "one_hot"),
        (8, "replicated", ONE_HOT_ROWS + 1, "tpu", "local"),
        (8, "replicated", ONE_HOT_ROWS, "cpu", "local"),
        (4, "row", 10, "tpu", "gather"),
        (8, "column", 10, "tpu", "columns"),
    ],
)
def test_tiny_tables(devices, placement, rows, platform, exchange):
    assert choose_exchange(devices, placement, rows, platform) == exchange


def test_updates_follow_lookups():
    for accumulate in (True, False):
        assert update_exchange("one_hot", accumulate) == "local"
        for same in ("local", "gather", "columns"):
            assert update_exchange(same, accumulate) == same
    assert update_exchange("all_to_all", True) == "all_to_all"
    assert update_exchange("all_to_all", False) == "gather"
    assert update_exchange("all_to_all", True, "tpu") == "all_to_all"


def test_updates_on_a_cpu_gather_gradients():
    assert update_exchange("all_to_all", True, "cpu") == "gather"
    for same in ("local", "gather", "columns"):
        assert update_exchange(same, True, "cpu") == same


@pytest.mark.parametrize(
    ("devices", "placement", "platform", "exchange", "layout"),
    [
        (8, "row", "tpu", None, "mod"),
        (7, "row", "tpu", None, "div"),
        (4, "row", "cpu", None, "mod"),
        (2, "row", "cuda", "all_to_all", "mod"),
        (16, "row", "tpu", "gather", "div"),
        (1, "row", "cpu", "all_to_all", "div"),
        *((16, other, "tpu", "all_to_all", "div") for other in ("table", "column", "replicated")),
    ],
)
def test_rows_that_are_exchanged_are_dealt_out(devices, placement, platform, exchange, layout):
    assert default_layout(devices, placement, platform, exchange) == layout


def test_ids_by_rank_need_no_more_room_than_scattered_ones():
    """Where rows are exchanged, the pair of devices with most rows decides the room of all."""
    devices, rows = 16, 1_000_000
    ids = IdDistribution("zipf:1.05").draw(np.random.default_rng(0), 200_000, rows, by_rank=True)
    bags = [FeatureBags(ids, np.arange(0, ids.size + 1, 20))]
    room = {}
    for layout in ("div", default_layout(devices, "row", "tpu")):
        geometry = Geometry(rows, 16, devices, "row", 128, layout)
        lookup = route_lookup(geometry, bags, "all_to_all").shape.capacity
        update = route_update(geometry, bags, "all_to_all", True, True).shape.capacity
        room[layout] = lookup, update
    asked = max(np.unique(part).size for part in np.array_split(ids, devices))
    assert max(room["mod"]) <= 1.5 * asked / devices
    assert min(room["div"]) >= 8 * asked / devices, "else this test would show nothing"


@pytest.mark.parametrize("devices", [1, 2, 8, 64])
@pytest.mark.parametrize("placement", ["row", "column", "replicated"])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_the_chosen_exchange_can_serve_the_table(devices, placement, platform):
    for rows in (10, 10**6):
        geometry = Geometry(rows, 16, devices, placement)
        chosen = choose_exchange(devices, placement, rows, platform)
        route_lookup(geometry, [], chosen)
        for accumulate in (True, False):
            exchange = update_exchange(chosen, accumulate, platform)
            route_update(geometry, [], exchange, accumulate, True)


@pytest.mark.parametrize(
    ("placement", "devices", "exchange", "possible"),
    [
        ("row", 2, "local", "gather, all_to_all"),
        ("row", 1, "columns", "local, one_hot, gather, all_to_all"),
        ("column", 2, "gather", "columns"),
        ("replicated", 2, "columns", "local, one_hot"),
        ("table", 1, "nothing", "local, one_hot"),
    ],
)
def test_an_exchange_that_cannot_serve_the_table_is_refused(placement, devices, exchange, possible):
    message = (
        f"exchange must be one of {possible} for placement {placement!r} "
        f"on {devices} devices, got {exchange!r}"
    )
    every = ("local", "one_hot", "gather", "all_to_all", "columns")
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        check_exchange(Geometry(10, 4, devices, placement), exchange, every)
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        route_lookup(Geometry(10, 4, devices, placement), [], exchange)


def test_updates_have_no_one_hot():
    message = "exchange must be one of local for placement 'table' on 1 devices, got 'one_hot'"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        route_update(Geometry(10, 4, 1, "table"), [], "one_hot", True, True)


def test_all_to_all_sends_sums():
    message = "exchange must be 'gather' where gradients of a row are not summed, got 'all_to_all'"
    with pytest.raises(ShardcoreValueError, match=f"^{re.escape(message)}$"):
        route_update(Geometry(10, 4, 2, "row"), [], "all_to_all", False, True)
