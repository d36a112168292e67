"""A schedule of optax is a learning rate as it stands, traced by jax or not, on any backend."""

import jax
import numpy as np
import optax
import pytest

import shardcore as sc

SCHEDULES = {
    "constant": optax.constant_schedule(0.5),
    "decay": optax.exponential_decay(0.5, transition_steps=1, decay_rate=0.5),
    "joined": optax.join_schedules(
        [optax.linear_schedule(0.0, 1.0, 2), optax.cosine_decay_schedule(1.0, 3)], [2]
    ),
    "jit": jax.jit(optax.polynomial_schedule(1.0, 0.25, power=1, transition_steps=3)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("backend", ["cpu", "pjrt"])
def test_a_schedule_of_optax_is_a_learning_rate(name, backend, platform, tmp_path):
    schedule = SCHEDULES[name]
    table = sc.TableConfig(2, 1, initializer=sc.initializers.Zeros(), name="t")
    options = {"platform": platform} if backend == "pjrt" else None

    def engine():
        optimizer = sc.optimizers.SGD(learning_rate=schedule)
        made = sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer, backend, options)
        made.build()
        return made

    first, second = engine(), engine()
    moved = [step_of(first) for _ in range(3)]
    sc.Checkpoint(model=first).save(tmp_path, step=3)
    sc.Checkpoint(model=second).restore(tmp_path)
    moved += [step_of(second) for _ in range(3)]
    expected = [float(schedule(step)) for step in range(6)]
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    assert second.config()["tables"][0]["optimizer"]["learning_rate"] == "dynamic"


def step_of(engine):
    """Train one step of gradient 1, and return how far the row moved."""
    before = float(engine.tables["t"][1][0])
    handle = engine.lookup([[1]])
    handle.apply_gradients(np.ones((1, 1)))
    return before - float(engine.tables["t"][1][0])
