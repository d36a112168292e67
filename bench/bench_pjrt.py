"""A training step with the table on JAX devices, and the same in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shardcore_bench.workload import DISTRIBUTIONS, Sizes

jax = pytest.importorskip("jax", reason="jax is not installed")
pytest.importorskip("optax", reason="optax is not installed")

from .jax_step import OPTIMIZERS, Ours, Plain, batches_of, check_equal  # noqa: E402 - needs them


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
    batches = batches_of(sizes, distribution)
    plain = Plain(sizes, optimizer, mesh)
    ours = Ours(sizes, optimizer, mesh, pipeline=contender == "ours-pipeline")
    step, other = (plain, ours) if contender == "plain" else (ours, plain)

    def run() -> None:
        for ids in batches:
            step.run(ids)
        step.wait()

    try:
        check_equal(step, other, batches, sizes.rows)
        before = step.rows(batches[0][0])
        benchmark(run)
        assert not np.array_equal(step.rows(batches[0][0]), before)
    finally:
        ours.close()
        plain.close()
