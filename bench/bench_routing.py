"""What the host does per batch for a mesh: a DLRM-DCNv2 batch on 16 devices, by "all_to_all".

And for SparseCores: the same batch on 16 devices with 4 cores each, of one stack.

The 26 tables of MLPerf's DLRM-DCNv2, 214 ids a sample; an eighth of its batch of 65,536 unless
SHARDCORE_BENCH_SAMPLES says another number. Lookup and update routes together, as in training;
nanoseconds per id and the bytes that go to the devices, in int32 ids, are printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.routing.lookup_route import LookupRoute, route_lookup
from shardcore_pjrt.routing.update_route import UpdateRoute, route_update
from shardcore_pjrt.sparsecore.buffers import Buffers, make_buffers
from shardcore_pjrt.sparsecore.stack_geometry import StackGeometry

from shardcore.backend import FeatureBags

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
Routes = list[tuple[LookupRoute, UpdateRoute]]


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


def check(batch: Batch, routes: Routes) -> None:
    """Read every id back from where its row will be."""
    for (geometry, bags), (lookup, update) in zip(batch, routes, strict=True):
        place, fetch = lookup.arrays["place"], lookup.arrays["fetch"]
        room, per_device = fetch.shape[2], bags.ids.size // DEVICES
        owner, at = np.divmod(place, room)
        for device in range(DEVICES):
            local = fetch[owner[device], device, at[device]].astype(np.int64)
            own = bags.ids[device * per_device : (device + 1) * per_device]
            np.testing.assert_array_equal(local * DEVICES + owner[device], own)
        assert update.unique_rows == np.unique(bags.ids).size
        assert update.shape.lines >= min(geometry.lines, update.unique_rows // DEVICES)


@pytest.mark.benchmark(group="routing")
@pytest.mark.parametrize("distribution", ["uniform", "skewed"])
def test_routes(
    benchmark: Any,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
    threads: int,
    distribution: str,
) -> None:
    option: Callable[[str], Any] = pytestconfig.getoption
    measured = not option("benchmark_disable") or option("benchmark_enable")
    samples = int(os.environ.get("SHARDCORE_BENCH_SAMPLES", SAMPLES[measured]))
    batch = batch_of(samples, distribution)
    ids = samples * sum(POOLING)

    def run() -> Routes:
        routes = []
        for geometry, bags in batch:
            lookup = route_lookup(geometry, [bags], "all_to_all")
            update = route_update(geometry, [bags], "all_to_all", True, True, looked_up=lookup)
            routes.append((lookup, update))
        return routes

    routes = benchmark(run)
    check(batch, routes)
    sent = {
        id(array): array.nbytes for pair in routes for one in pair for array in one.arrays.values()
    }
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
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
    threads: int,
    distribution: str,
) -> None:
    option: Callable[[str], Any] = pytestconfig.getoption
    measured = not option("benchmark_disable") or option("benchmark_enable")
    samples = int(os.environ.get("SHARDCORE_BENCH_SAMPLES", SAMPLES[measured]))
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
