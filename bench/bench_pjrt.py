"""Training steps on JAX devices: beside plain JAX, of many tables beside one, and what may wait.

What may wait is a call of `enqueue` while a device is busy, and a batch of a size that is new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import DISTRIBUTIONS, Sizes

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("optax", reason="optax is not installed")

import shardcore as sc  # noqa: E402 - after the checks of what is installed

from . import jax_step, jax_tables  # noqa: E402 - they import jax and optax


@pytest.mark.benchmark(group="pjrt-step")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("optimizer", jax_step.OPTIMIZERS)
@pytest.mark.parametrize("contender", ["ours", "ours-pipeline", "plain"])
@pytest.mark.parametrize("devices", [1, 2])
def test_pjrt_step(
    benchmark: Callable[..., Any],
    sizes: Sizes,
    devices: int,
    contender: str,
    optimizer: str,
    distribution: str,
) -> None:
    found = jax.devices("cpu")
    if len(found) < devices or sizes.rows % devices or sizes.bags % devices:
        pytest.skip(f"needs {devices} devices, and rows and bags that are cut evenly")
    mesh = jax.sharding.Mesh(np.array(found[:devices]), ("x",))
    batches = jax_step.batches_of(sizes, distribution)
    plain = jax_step.Plain(sizes, optimizer, mesh)
    ours = jax_step.Ours(sizes, optimizer, mesh, pipeline=contender == "ours-pipeline")
    step, other = (plain, ours) if contender == "plain" else (ours, plain)

    def run() -> None:
        for ids in batches:
            step.run(ids)
        step.wait()

    try:
        jax_step.check_equal(step, other, batches, sizes.rows)
        before = step.rows(batches[0][0])
        benchmark(run)
        assert not np.array_equal(step.rows(batches[0][0]), before)
    finally:
        ours.close()
        plain.close()


@pytest.mark.benchmark(group="pjrt-tables")
@pytest.mark.parametrize("contender", ["tables", "one-table", "one-feature"])
@pytest.mark.parametrize("devices", [1, 2])
def test_pjrt_tables(
    benchmark: Callable[..., Any], measured: bool, devices: int, contender: str
) -> None:
    found = jax.devices("cpu")
    if len(found) < devices:
        pytest.skip(f"needs {devices} devices")
    sizes = jax_tables.sizes_of(26) if measured else (50, 400, 3)
    engines = jax_tables.engines_of(sizes, found[:devices])
    try:
        jax_tables.check_equal(engines)
        engine = engines[["tables", "one-table", "one-feature"].index(contender)]

        def run() -> None:
            for number in range(jax_tables.BATCHES):
                engine.run(number)
            engine.wait()

        benchmark(run)
        assert engine.programs <= 10
    finally:
        for one in engines:
            one.close()


DIM = 64


def engine_of(rows: int, devices: int, optimizer: sc.Optimizer, **options: Any) -> Any:
    table = sc.TableConfig(
        rows, DIM, initializer=sc.initializers.Zeros(), combiner="sum", name="items"
    )
    return sc.ShardedEmbedding(
        sc.FeatureConfig(table),
        optimizer,
        backend="pjrt",
        backend_options={"platform": "cpu", "devices": devices},
        **options,
    )


@pytest.mark.benchmark(group="pjrt-enqueue")
@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_pjrt_enqueue(benchmark: Any, measured: bool, check: bool) -> None:
    """Of a batch, while the device updates every row for the batch before: a second of work."""
    rows = 2_000_000 if measured else 1_000
    optimizer = sc.optimizers.Adam(learning_rate=0.1, lazy_adam=False)
    ids = np.random.default_rng(0).integers(0, rows, (512, 8))
    with engine_of(rows, 1, optimizer, check_gradients=check) as e:
        gradient = jax.numpy.ones((512, DIM))

        def update() -> None:
            e.dequeue()
            e.apply_gradients(gradient)

        e.enqueue(ids)
        benchmark.pedantic(e.enqueue, (ids,), setup=update, rounds=5)
        assert e.step == (5 if measured else 1)
        assert (e.tables["items"][ids[0]] < 0).all()


@pytest.mark.benchmark(group="pjrt-batch-sizes")
@pytest.mark.parametrize("sizes", ["new", "again"])
@pytest.mark.parametrize("devices", [1, 8])
def test_pjrt_batch_sizes(benchmark: Any, measured: bool, devices: int, sizes: str) -> None:
    """A step with a batch of another size each time, gradients from the host."""
    if len(jax.devices("cpu")) < devices:
        pytest.skip(f"needs {devices} devices")
    counts = list(range(511, 399, -1) if measured else (15, 14))
    rng = np.random.default_rng(0)
    done: list[int] = []
    with engine_of(100_000, devices, sc.optimizers.SGD(learning_rate=0.5)) as e:

        def step(count: int) -> None:
            e.enqueue(rng.integers(0, 100_000, (count, 8)))
            assert e.dequeue().shape == (count, DIM)
            e.apply_gradients(np.ones((count, DIM), np.float32))
            e.tables["items"][:1]
            done.append(count)

        step(counts[0] + 1)
        if sizes == "again":
            for count in counts:
                step(count)
        left = iter(counts)
        benchmark.pedantic(step, setup=lambda: ((next(left),), {}), rounds=len(counts))
        expected = -0.5 * 8 * sum(done)
        assert e.tables["items"][:].sum(axis=0, dtype=np.float64) == pytest.approx(expected)
