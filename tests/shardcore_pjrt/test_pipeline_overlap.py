"""pipeline=True on devices: the host routes batch t + 1 while the devices work on batch t.

No clock says so. The dense step of batch t, on the device, begins, and does not end before the
routing of batch t + 1 has; which in turn does not begin before the step has begun. Each waits for
the other, so that they come to an end only if they overlap.
"""

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shardcore_pjrt.batch_lists
from jax.experimental import io_callback
from jax.sharding import NamedSharding, PartitionSpec

import shardcore as sc
from shardcore.engine.pipeline import Pipeline

STEPS = 5
BAGS = 8


class Meetings:
    """Of the device's step t and the host's routing of batch t + 1.

    Parameters
    ----------
    patience : float
        Seconds that one waits for the other; nothing depends on them where the two do meet.
    """

    def __init__(self, patience):
        self.patience = patience
        self.begun = [threading.Event() for _ in range(STEPS + 1)]
        self.routed = [threading.Event() for _ in range(STEPS + 1)]
        self.met = []
        self.routes = 0

    def on_device(self, step):
        """Be part of the device's step."""
        self.begun[int(step)].set()
        if self.routed[int(step) + 1].wait(self.patience):
            self.met.append(int(step))
        return np.float32(0.1)

    def route(self, route_lookup, *arguments):
        """Route, from the second batch on after the device has begun with the one before."""
        batch, self.routes = self.routes, self.routes + 1
        in_time = batch == 0 or self.begun[batch - 1].wait(self.patience)
        route = route_lookup(*arguments)
        if in_time:
            self.routed[batch].set()
        return route


def ids_of(batch):
    return np.random.default_rng(batch).integers(0, 100, (BAGS, 3))


def train(monkeypatch, meetings, early, devices, platform, pipeline):
    """Return all activations, and the rows at the end; `early`: enqueue t + 1 before step t."""
    route = shardcore_pjrt.batch_lists.route_lookup
    table = sc.TableConfig(100, 4, combiner="sum", name="items")
    feature = sc.FeatureConfig(table, output_shape=(BAGS,))
    engine = sc.ShardedEmbedding(
        feature,
        sc.optimizers.Adagrad(0.1),
        backend="pjrt",
        backend_options={"platform": platform, "devices": devices},
        pipeline=pipeline,
    )

    @jax.jit
    def step(activations, number):
        turn = number + jnp.isnan(activations).any()  # which waits for the activations
        scale = io_callback(meetings.on_device, jax.ShapeDtypeStruct((), np.float32), turn)
        return jnp.cos(activations) * scale

    seen = []
    with monkeypatch.context() as patch, engine:
        engine.build()
        patch.setattr(shardcore_pjrt.batch_lists, "route_lookup", partial(meetings.route, route))
        engine.enqueue(ids_of(0))
        for number in range(STEPS):
            activations = engine.dequeue()
            seen.append(activations)
            if early:
                engine.enqueue(ids_of(number + 1))
            everywhere = NamedSharding(activations.sharding.mesh, PartitionSpec())
            turn = jax.device_put(np.int32(number), everywhere)
            engine.apply_gradients(step(activations, turn))
            if not early:
                engine.enqueue(ids_of(number + 1))
        seen.append(engine.dequeue())
        engine.apply_gradients(None)
        return [np.array(activations) for activations in seen], engine.tables["items"][:]


def one_after_the_other(devices, platform, early):
    """Return what the same calls give with nothing at the same time, or one update late."""
    table = sc.TableConfig(100, 4, combiner="sum", name="items")
    options = {"platform": platform, "devices": devices}
    engine = sc.ShardedEmbedding(
        sc.FeatureConfig(table), sc.optimizers.Adagrad(0.1), "pjrt", options
    )
    step = jax.jit(lambda activations: jnp.cos(activations) * np.float32(0.1))
    seen = []
    with engine:
        engine.build()
        ahead = engine(ids_of(0))
        for number in range(STEPS + 1):
            jax.block_until_ready(ahead)
            seen.append(np.array(ahead))
            if number == STEPS:
                break
            late = engine(ids_of(number + 1)) if early else None
            engine.enqueue(ids_of(number))
            engine.dequeue()
            engine.apply_gradients(jax.block_until_ready(step(ahead)))
            ahead = late if early else engine(ids_of(number + 1))
        return seen, engine.tables["items"][:]


CASES = [
    pytest.param(1, True, id="1-device-enqueued-early"),
    pytest.param(2, True, id="2-devices-enqueued-early"),
    pytest.param(2, False, id="2-devices"),
    pytest.param(4, False, id="4-devices"),
]


@pytest.fixture
def enough(platform):
    def check(devices):
        if len(jax.devices(platform)) < devices:
            pytest.skip(f"needs {devices} devices of {platform}")

    return check


@pytest.mark.parametrize(("devices", "early"), CASES)
def test_batches_are_routed_while_devices_work(monkeypatch, platform, enough, devices, early):
    enough(devices)
    meetings = Meetings(patience=60)
    activations, rows = train(monkeypatch, meetings, early, devices, platform, pipeline=True)
    assert meetings.met == list(range(STEPS))
    expected, expected_rows = one_after_the_other(devices, platform, early)
    np.testing.assert_array_equal(activations, expected)
    np.testing.assert_array_equal(rows, expected_rows)


def test_a_caller_who_waits_for_the_background_sees_no_overlap(monkeypatch, platform):
    """What the test above sees is the pipeline's doing."""
    submit = Pipeline.submit

    def submit_and_wait(pipeline, operation, work):
        ticket = submit(pipeline, operation, work)
        pipeline.wait()
        return ticket

    monkeypatch.setattr(Pipeline, "submit", submit_and_wait)
    meetings = Meetings(patience=0.1)
    train(monkeypatch, meetings, True, 1, platform, pipeline=True)
    assert meetings.met == []
