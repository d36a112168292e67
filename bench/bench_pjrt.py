"""A training step on JAX devices: beside plain JAX, and of many tables beside one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import DISTRIBUTIONS, Sizes

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("optax", reason="optax is not installed")

from . import jax_step, jax_tables  # noqa: E402 - need them
from .jax_step import OPTIMIZERS, Ours, Plain  # noqa: E402


@pytest.mark.benchmark(group="pjrt-step")
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
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
    plain = Plain(sizes, optimizer, mesh)
    ours = Ours(sizes, optimizer, mesh, pipeline=contender == "ours-pipeline")
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
        assert engine.programs < 12
    finally:
        for one in engines:
            one.close()
