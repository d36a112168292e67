"""Lists that one device makes for itself: those of the host's route, but for room and padding."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore import optimizers
from shardcore.backend.messages import FeatureBags, TableSpec
from shardcore.initializers.constants import Zeros

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.sort_program import sort_program, sorted_shape
from shardcore_pjrt.programs.update_program import update_arguments
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.update_route import route_update
from shardcore_pjrt.stacks import Numbering, numbered, stacked

MESH = Mesh(np.array(jax.devices("cpu")[:1]), ("x",))


def some_bags(rng, rows, bags, lengths, weighted, divided):
    lengths = rng.integers(0, lengths, bags) if isinstance(lengths, int) else np.array(lengths)
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.minimum(rng.zipf(1.3, row_splits[-1]) - 1, rows - 1)
    weights = rng.normal(size=ids.size).astype(np.float32) if weighted else None
    divisors = rng.integers(0, 4, bags).astype(np.float32) if divided else None
    return FeatureBags(rng.permutation(rows)[ids], row_splits, weights, divisors)


def check(geometry, features, accumulate, lazy, members=None):
    looked_up = route_lookup(geometry, features, "local")
    route = route_update(geometry, features, "local", accumulate, lazy)
    firsts = (0,)
    if members is not None:
        route = numbered(Numbering(members), route)
        firsts = tuple(int(member.first[0]) for member in members)
    program = sort_program(MESH, geometry, looked_up.shape, accumulate, lazy, firsts)
    made, unique = program(jax.device_put(looked_up.arrays))
    assert int(unique) == route.unique_rows
    shape = sorted_shape(geometry, looked_up.shape, accumulate, lazy)
    wanted = update_arguments(MESH, geometry, np.float32, shape, optimizers.SGD())[3]
    assert {name: (one.shape, one.dtype) for name, one in made.items()} == {
        name: (one.shape, one.dtype) for name, one in wanted.items()
    }
    ours = {name: np.asarray(one) for name, one in made.items()}
    theirs, n = route.arrays, sum(bags.ids.size for bags in features)
    bags, end = sum(looked_up.shape.bags), geometry.local_rows
    if lazy:
        lines = int(np.count_nonzero(theirs["lines"] < geometry.lines))
        part = geometry.rows_per_line
        np.testing.assert_array_equal(ours["lines"][0, :lines], theirs["lines"][0, :lines])
        beyond = ours["lines"][0, lines:]
        assert (beyond >= geometry.lines).all()
        assert (np.diff(ours["lines"][0]) > 0).all()
        own = slice(0, lines * part)
        np.testing.assert_array_equal(ours["row_ids"][0, own], theirs["row_ids"][0, own])
        assert (ours["row_ids"][0, lines * part :] == -1).all()
        end = shape.lines * part
    else:
        own = slice(0, geometry.local_rows)
        for name in ("rows_here", "first_row", "row_stride"):
            np.testing.assert_array_equal(ours[name], theirs[name])
    np.testing.assert_array_equal(ours["slot"][0, :n], theirs["slot"][0, :n])
    assert (ours["slot"][0, n:] == end).all()
    factors = np.ones(n, np.float32)
    expected = factors.copy()
    if "scale" in ours:
        factors = ours["scale"][0][ours["source"][0, :n]]
    if "scale" in theirs:
        expected = theirs["scale"][0][theirs["source"][0, :n]]
    np.testing.assert_array_equal(ours["source"][0, :n], theirs["source"][0, :n])
    assert (ours["source"][0, n:] == bags).all()
    if "gain" in ours:
        factors = factors * ours["gain"][0, :n]
        assert (ours["gain"][0, n:] == 0).all()
    if "gain" in theirs:
        expected = expected * theirs["gain"][0, :n]
    np.testing.assert_allclose(factors, expected, rtol=3e-7)
    if not accumulate:
        np.testing.assert_array_equal(ours["count"][0, own], theirs["count"][0, own])
        there = ours["count"][0, own] > 0
        np.testing.assert_array_equal(ours["first"][0, own][there], theirs["first"][0, own][there])
        assert ours["waves"] == theirs["waves"]
        assert not ours["count"][0, own.stop :].any()


SETTINGS = [(True, True), (False, True), (True, False), (False, False)]


@pytest.mark.parametrize(("accumulate", "lazy"), SETTINGS)
@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("dim", [3, 40])
def test_ragged_bags(accumulate, lazy, lanes, dim):
    geometry = Geometry(501, dim, 1, "row", lanes)
    rng = np.random.default_rng(5)
    for weighted in (False, True):
        for divided in (False, True):
            features = [
                some_bags(rng, 501, 30, 9, weighted, divided),
                some_bags(rng, 501, 7, 40, False, divided),
                some_bags(rng, 501, 12, 5, weighted, False),
            ]
            check(geometry, features, accumulate, lazy)


@pytest.mark.parametrize(("accumulate", "lazy"), SETTINGS)
@pytest.mark.parametrize("lanes", [1, 128])
def test_bags_of_about_one_length(accumulate, lazy, lanes):
    geometry = Geometry(77, 8, 1, "table", lanes)
    rng = np.random.default_rng(6)
    lengths = [8, 8, 7, 8, 8, 8, 8, 8]
    assert route_lookup(geometry, [some_bags(rng, 77, 8, lengths, 0, 0)], "local").shape.pooling
    for weighted in (False, True):
        features = [some_bags(rng, 77, 8, lengths, weighted, True) for _ in range(2)]
        check(geometry, features, accumulate, lazy)


@pytest.mark.parametrize(("accumulate", "lazy"), SETTINGS)
def test_batches_without_ids_and_with_every_row(accumulate, lazy):
    geometry = Geometry(40, 8, 1, "replicated", 128)
    rng = np.random.default_rng(7)
    check(geometry, [some_bags(rng, 40, 5, [0] * 5, False, True)], accumulate, lazy)
    ids = rng.permutation(np.repeat(np.arange(40), 20))
    every = FeatureBags(ids, np.array([0, 300, 301, 800]))
    check(geometry, [every], accumulate, lazy)


@pytest.mark.parametrize("lanes", [1, 128])
def test_rows_of_a_stack_are_numbered_by_table(lanes):
    rng = np.random.default_rng(9)
    tables = [
        (TableSpec(f"{rows}", rows, 8, np.dtype("float32"), Zeros(), 0), rows)
        for rows in (37, 5, 120)
    ]
    alone = [(spec, Geometry(rows, 8, 1, "row", lanes), MESH) for spec, rows in tables]
    ((_, geometry, members),) = stacked(alone)
    features = []
    for member, (_, rows) in zip(members, tables, strict=True):
        features += member.bags([some_bags(rng, rows, 20, 6, False, True)])
    check(geometry, features, True, True, members)
