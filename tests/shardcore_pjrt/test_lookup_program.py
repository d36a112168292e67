"""Lookups as programs over 1 to 8 devices: what the reference backend looks up."""

from __future__ import annotations

import numpy as np
import pytest

from shardcore.backend.max_norm import scaled_to_norm as on_host
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec
from shardcore.backend.quantization import QuantizationConfig
from shardcore.dtypes import as_dtype
from shardcore.initializers.constants import Zeros
from shardcore.testing.model import ModelBackend

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.lookup_program import lookup_arguments, lookup_program
from shardcore_pjrt.programs.scaled_to_norm import scaled_to_norm
from shardcore_pjrt.routing.lookup_route import route_lookup
from shardcore_pjrt.routing.spread import bags_of_device

ROWS, DIM = 61, 12


def mesh_of(devices):
    return Mesh(np.array(jax.devices("cpu")[:devices]), ("x",))


def packed(geometry, rows, padding=np.nan):
    """Return rows as they lie on the devices, NaN wherever no row lies."""
    shards = []
    for shard in range(geometry.layout.num_shards):
        held = np.full((geometry.local_rows, geometry.width), padding, rows.dtype)
        own = rows[geometry.layout.global_rows(shard)]
        if geometry.placement == "column":
            parts = np.full((geometry.devices, *held.shape), padding, rows.dtype)
            for device, part in enumerate(parts):
                columns = own[:, device * geometry.columns :][:, : geometry.columns]
                part[: len(columns), : columns.shape[1]] = columns
            lines = parts.reshape(geometry.devices, geometry.lines, -1)
            return np.concatenate(lines, axis=1)
        held[: len(own), : rows.shape[1]] = own
        shards.append(held.reshape(geometry.lines, -1))
    return np.concatenate(shards)


def some_bags(rng, bags, even=False, weighted=False, divided=False, bags_per_sample=1):
    lengths = np.full(bags, 4) if even else rng.integers(0, 9, bags)
    if not even:
        lengths[::7] = 0
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    weights = rng.normal(size=row_splits[-1]).astype(np.float32) if weighted else None
    divisors = rng.integers(0, 4, bags).astype(np.float32) if divided else None
    ids = rng.integers(0, ROWS, row_splits[-1])
    return FeatureBags(ids, row_splits, weights, divisors, bags_per_sample)


def check(
    geometry, exchange, features, dtype="float32", quantization=None, edit=None, max_norm=None
):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((geometry.num_rows, geometry.dim)).astype(as_dtype(dtype))
    if edit is not None:
        edit(rows)
    model = ModelBackend()
    model.create_table(
        TableSpec(
            "t", *rows.shape, rows.dtype, Zeros(), 0, quantization=quantization, max_norm=max_norm
        )
    )
    model.scatter("t", None, np.arange(len(rows)), rows)
    expected = model.lookup([TableBatch("t", tuple(features))])[0]
    mesh = mesh_of(geometry.devices)
    route = route_lookup(geometry, features, exchange)
    wanted, wanted_arrays = lookup_arguments(mesh, geometry, rows.dtype, route.shape)
    arrays = {
        name: jax.device_put(array, wanted_arrays[name].sharding)
        for name, array in route.arrays.items()
    }
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        name: (array.shape, array.dtype) for name, array in wanted_arrays.items()
    }
    table = jax.device_put(packed(geometry, rows).view(wanted.dtype), wanted.sharding)
    program = lookup_program(mesh, geometry, route.shape, quantization, rows.dtype, max_norm)
    ours = program(table, arrays)
    assert len(ours) == len(features)
    for theirs, bags, array, room in zip(expected, features, ours, route.shape.bags, strict=True):
        assert array.shape == (geometry.devices * room, geometry.dim)
        assert array.dtype == np.float32
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, Spec("x", None)), 2)
        own = bags_of_device(bags, geometry.devices)
        by_device = np.asarray(array).reshape(geometry.devices, room, geometry.dim)
        assert not by_device[:, own:].any(), "bags that only fill up are zeros"
        got = by_device[:, :own].reshape(geometry.devices * own, geometry.dim)
        np.testing.assert_allclose(got[: bags.num_bags], theirs, rtol=2e-5, atol=2e-5)
        assert not got[bags.num_bags :].any(), "bags that only fill up are zeros"
    return program, (table, arrays)


EXCHANGES = [
    *((4, "row", "gather"), (8, "row", "all_to_all"), (8, "column", "columns")),
    *((1, "row", "local"), (4, "replicated", "one_hot")),
]
PLACES = [
    *EXCHANGES,
    *((2, "row", "gather"), (8, "row", "gather")),
    *((2, "row", "all_to_all"), (4, "row", "all_to_all")),
    *((2, "column", "columns"), (4, "column", "columns")),
    *((4, "replicated", "local"), (1, "replicated", "one_hot")),
    *((1, "table", "local"), (1, "column", "columns")),
]


def named(places):
    names = [f"{placement}-{devices}-{exchange}" for devices, placement, exchange in places]
    return pytest.mark.parametrize(("devices", "placement", "exchange"), places, ids=names)


@named(PLACES)
def test_ragged_weighted_and_divided_features(devices, placement, exchange):
    rng = np.random.default_rng(devices)
    features = [
        some_bags(rng, 19, weighted=True, divided=True),
        some_bags(rng, 21, bags_per_sample=3),
        some_bags(rng, 2, divided=True),
    ]
    check(Geometry(ROWS, DIM, devices, placement, 128), exchange, features)


@named(EXCHANGES)
def test_bags_of_one_length(devices, placement, exchange):
    rng = np.random.default_rng(devices)
    features = [some_bags(rng, 32, even=True), some_bags(rng, 64, even=True, divided=True)]
    geometry = Geometry(ROWS, DIM, devices, placement, 128)
    assert route_lookup(geometry, features, exchange).shape.pooling == 4
    check(geometry, exchange, features, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("exchange", ["gather", "all_to_all"])
def test_round_robin_layout(dtype, exchange):
    rng = np.random.default_rng(1)
    geometry = Geometry(ROWS, DIM, 4, "row", 128, "mod")
    check(geometry, exchange, [some_bags(rng, 30, divided=True)], dtype)


@pytest.mark.parametrize("dim", [1, 3, 16, 96, 128, 130])
def test_widths(dim):
    rng = np.random.default_rng(dim)
    check(Geometry(ROWS, dim, 2, "row", 128), "all_to_all", [some_bags(rng, 9)])


@named(EXCHANGES)
def test_quantized_rows_and_zeros_for_padding(devices, placement, exchange):
    # 0 lies between two buckets: padding that were quantized would not be zeros.
    rng = np.random.default_rng(4)
    features = [some_bags(rng, 19, divided=True), some_bags(rng, 8, weighted=True)]
    geometry = Geometry(ROWS, DIM, devices, placement, 1)
    check(geometry, exchange, features, quantization=QuantizationConfig(4, -1.0, 1.0))


@named(PLACES)
@pytest.mark.parametrize("dim", [7, 12])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_a_greatest_norm(devices, placement, exchange, dim, dtype):
    """NaN lies where no row does: padding of columns takes no part in a norm."""
    rng = np.random.default_rng(4)
    features = [some_bags(rng, 19, divided=True), some_bags(rng, 8, weighted=True)]

    def edit(rows):
        rows[5] = 0

    geometry = Geometry(ROWS, dim, devices, placement, 1)
    check(geometry, exchange, features, dtype, edit=edit, max_norm=2.5)
    check(geometry, exchange, features[:1], dtype, QuantizationConfig(4, -1.0, 1.0), max_norm=2.5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_norms_of_any_size(dtype):
    values = np.random.default_rng(2).normal(size=(9, 13)).astype(as_dtype(dtype))
    values[0] = np.finfo(as_dtype("float16")).max if dtype == "float16" else 3e38
    values[1, 2:4] = np.nan, np.inf
    values[2, 1] = -np.inf
    values[3] = 0
    values[4] = 1e-30
    ours = np.asarray(scaled_to_norm(values, 0.75)).astype(np.float64)
    wanted = on_host(values, 0.75).astype(np.float64)
    np.testing.assert_allclose(ours, wanted, rtol={"float32": 1e-6}.get(dtype, 8e-3))
    assert (np.linalg.norm(wanted[5:], axis=1) < 0.76).all()


@named(EXCHANGES)
def test_rows_that_are_not_finite_reach_only_bags_that_name_them(devices, placement, exchange):
    def edit(rows):
        rows[7] = np.nan
        rows[8] = np.inf

    ids = np.array([1, 7, 2, 3, 8, 8, 4, 5])
    features = [FeatureBags(ids, np.array([0, 1, 2, 4, 6, 8]))]
    check(Geometry(ROWS, DIM, devices, placement, 128), exchange, features, edit=edit)


def test_fewer_samples_than_devices():
    features = [FeatureBags(np.array([60, 0, 60]), np.array([0, 1, 3]))]
    for exchange in ("gather", "all_to_all"):
        check(Geometry(ROWS, DIM, 8, "row", 1), exchange, features)


@pytest.mark.parametrize("exchange", ["gather", "all_to_all"])
def test_no_copy_of_the_table(exchange):
    geometry = Geometry(400_000, 16, 4, "row", 128)
    rng = np.random.default_rng(0)
    features = [FeatureBags(rng.integers(0, 400_000, 256), np.arange(0, 257, 4))]
    route = route_lookup(geometry, features, exchange)
    mesh = mesh_of(4)
    program = lookup_program(mesh, geometry, route.shape)
    shapes = lookup_arguments(mesh, geometry, np.dtype("float32"), route.shape)
    memory = program.lower(*shapes).compile().memory_analysis()
    assert memory.temp_size_in_bytes < geometry.lines * geometry.line_width * 4 // 8


@named(EXCHANGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_bags(devices, placement, exchange, dtype):
    rng = np.random.default_rng(devices)
    features = [some_bags(rng, 19, weighted=True, divided=True), some_bags(rng, 40)]
    check(Geometry(ROWS, DIM, devices, placement, 128), exchange, features, dtype)
    check(Geometry(ROWS, DIM, devices, placement, 1), exchange, features[1:], dtype)


@pytest.mark.parametrize("length", [1, 8, 11, 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_every_length(length, weighted):
    rng = np.random.default_rng(length)
    ids = rng.integers(0, ROWS, 24 * length)
    weights = rng.normal(size=ids.size).astype(np.float32) if weighted else None
    features = [FeatureBags(ids, np.arange(0, ids.size + 1, length), weights)]
    assert route_lookup(Geometry(ROWS, DIM, 1, "row"), features, "local").shape.pooling == length
    check(Geometry(ROWS, DIM, 1, "row"), "local", features)
    check(Geometry(ROWS, DIM, 4, "row"), "all_to_all", features)
