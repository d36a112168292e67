"""What the host does per batch for a mesh: a DLRM-DCNv2 batch on 16 devices, by "all_to_all".

The tables lie in one stack, as the backend has them. And for SparseCores: the same batch on 16
devices with 4 cores each.

The 26 tables of MLPerf's DLRM-DCNv2, 214 ids a sample; an eighth of its batch of 65,536 unless
SHARDCORE_BENCH_SAMPLES says another number. Lookup and update routes together, as in training;
nanoseconds per id and the bytes that go to the devices, in int32 ids, are printed.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
import pytest
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.lookup_route import LookupRoute, route_lookup
from shardcore_pjrt.routing.update_route import UpdateRoute, route_update
from shardcore_pjrt.sparsecore.buffers import Buffers, make_buffers
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry
from shardcore_pjrt.stacks import Stack, stacked

from shardcore.backend import FeatureBags, TableSpec
from shardcore.initializers import Zeros

MILLIONS: Final = 40_000_000
ROWS: Final = (
    *(MILLIONS, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, MILLIONS, 3067956, 405282, 10),
    *(2209, 11938, 155, 4, 976, 14, MILLIONS, MILLIONS, MILLIONS, 590152, 12973, 108, 36),
)
POOLING: Final = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
DIM: Final = 128
DEVICES: Final = 16
CORES: Final = 4
SAMPLES: Final = {False: 64, True: 8192}
"""In a test run, and in a measurement."""

Batch = list[tuple[Geometry, FeatureBags]]


def batch_of(samples: int, distribution: str) -> Batch:
    """Return the tables, rows dealt round, and their bags; "skewed": log-uniform ranks."""
    draw = np.random.default_rng(5)
    batch = []
    for rows, pooling in zip(ROWS, POOLING, strict=True):
        count = samples * pooling
        if distribution == "uniform":
            ids = draw.integers(0, rows, count)
        else:
            ids = np.minimum(rows ** draw.random(count), rows - 1).astype(np.int64)
        bags = FeatureBags(ids.astype(np.int32), np.arange(0, count + 1, pooling))
        batch.append((Geometry(rows, DIM, DEVICES, "row", 128, "mod"), bags))
    return batch


def stack_of(batch: Batch) -> Stack[str]:
    """Return the one stack in which the tables lie."""
    (stack,) = stacked(
        [
            (
                TableSpec(str(at), geometry.num_rows, DIM, np.dtype("f4"), Zeros(), 0),
                geometry,
                "mesh",
            )
            for at, (geometry, _) in enumerate(batch)
        ]
    )
    return stack


def check(batch: Batch, stack: Stack[str], lookup: LookupRoute, update: UpdateRoute) -> None:
    """Read every id back from where its row will be."""
    place, fetch = lookup.arrays["place"], lookup.arrays["fetch"]
    owner, at = np.divmod(place, fetch.shape[2])
    for device in range(DEVICES):
        first = 0
        for (_, bags), member in zip(batch, stack.members, strict=True):
            count = bags.ids.size // DEVICES
            of = owner[device, first : first + count]
            local = fetch[of, device, at[device, first : first + count]] - member.start[of]
            own = bags.ids[device * count : (device + 1) * count]
            np.testing.assert_array_equal(local * DEVICES + of, own)
            first += count
    assert update.unique_rows == sum(np.unique(bags.ids).size for _, bags in batch)
    assert update.shape.lines >= update.unique_rows // DEVICES


@pytest.fixture
def samples(measured: bool) -> int:
    return int(os.environ.get("SHARDCORE_BENCH_SAMPLES", SAMPLES[measured]))


@pytest.mark.benchmark(group="routing")
@pytest.mark.parametrize("distribution", ["uniform", "skewed"])
def test_routes(
    benchmark: Any,
    measured: bool,
    samples: int,
    capsys: pytest.CaptureFixture[str],
    threads: int,
    distribution: str,
) -> None:
    batch = batch_of(samples, distribution)
    ids = samples * sum(POOLING)
    stack = stack_of(batch)

    def run() -> tuple[LookupRoute, UpdateRoute]:
        features = [
            bags
            for member, (_, given) in zip(stack.members, batch, strict=True)
            for bags in member.bags([given])
        ]
        lookup = route_lookup(stack.geometry, features, "all_to_all")
        update = route_update(stack.geometry, features, "all_to_all", True, True, looked_up=lookup)
        return lookup, update

    routes = benchmark(run)
    check(batch, stack, *routes)
    sent = {id(array): array.nbytes for one in routes for array in one.arrays.values()}
    words = sum(sent.values()) / 4 / ids
    assert words < 2.5 if measured else words > 1
    if measured:
        nanoseconds = 1e9 * benchmark.stats.stats.min / ids
        benchmark.extra_info |= {"ns per id": nanoseconds, "words sent per id": words}
        with capsys.disabled():
            print(
                f"\n{distribution}, {threads} threads, {ids:,} ids: {nanoseconds:.1f} ns per id, "
                f"{words:.2f} words sent per id"
            )


@pytest.mark.benchmark(group="routing to SparseCores")
@pytest.mark.parametrize("distribution", ["uniform", "skewed"])
def test_buffers(
    benchmark: Any,
    measured: bool,
    samples: int,
    capsys: pytest.CaptureFixture[str],
    threads: int,
    distribution: str,
) -> None:
    batch = batch_of(samples, distribution)
    ids = samples * sum(POOLING)
    stack = StackGeometry(tuple(geometry.layout for geometry, _ in batch), CORES, DIM)
    features = [(table, bags) for table, (_, bags) in enumerate(batch)]

    def run() -> Buffers:
        return make_buffers(stack, features)

    made = benchmark(run)
    assert made.unique_rows == sum(np.unique(bags.ids).size for _, bags in batch)
    # Padding aside, all gains are there: one for each id.
    assert np.nansum(made.gains, dtype=np.float64) == ids
    if measured:
        nanoseconds = 1e9 * benchmark.stats.stats.min / ids
        benchmark.extra_info |= {"ns per id": nanoseconds}
        with capsys.disabled():
            print(
                f"\n{distribution}, {threads} threads, {ids:,} ids: {nanoseconds:.1f} ns per id, "
                f"{made.num_minibatches} minibatches"
            )
