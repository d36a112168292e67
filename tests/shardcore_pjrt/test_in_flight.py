"""How many programs run ahead on several CPU devices: fewer than XLA has room for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.programs import in_flight

AHEAD = """
import jax, numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec as Spec
from shardcore_pjrt.mesh.placing import over_devices
from shardcore_pjrt.programs.compiled import Programs

mesh = Mesh(np.array(jax.devices("cpu")), ("x",))

def exchange():
    body = lambda part: lax.all_to_all(part, "x", 1, 0, tiled=True).reshape(part.shape) + 1
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=Spec("x"), out_specs=Spec("x")))

def work():
    return jax.jit(lambda array: jax.numpy.tanh(array @ array.T).sum())

programs = Programs()
array = jax.device_put(np.zeros((512, 256), np.float32), over_devices(mesh))
for step in range(100):
    array = programs.get(exchange)(array)
    programs.get(work)(array)
print(float(array.min()), float(array.max()))
"""


def test_programs_may_be_started_far_ahead_of_eight_devices():
    """The same loop in plain JAX hangs."""
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    done = subprocess.run(
        [sys.executable, "-c", AHEAD],
        env=os.environ | env, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["100.0", "100.0"]


@pytest.fixture
def flight(monkeypatch):
    empty = deque()
    monkeypatch.setattr(in_flight, "_flight", empty)
    return empty


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices("cpu")[:2]), ("x",))


class Result:
    """What a program returns that runs until it is waited for."""

    def __init__(self, error=None):
        self.error = error
        self.waited = 0

    def is_ready(self):
        if self.error == "deleted":
            raise RuntimeError("Array has been deleted.")
        return self.waited > 0

    def block_until_ready(self):
        self.waited += 1
        if self.error:
            raise RuntimeError(self.error)


def test_the_oldest_are_waited_for(flight):
    results = [Result() for _ in range(in_flight.MOST + 2)]
    flight.extend(lambda one=one: one for one in results)
    in_flight.make_room()
    assert [one.waited for one in results] == [1] * 3 + [0] * (in_flight.MOST - 1)
    in_flight.make_room()
    assert len(flight) == in_flight.MOST - 1


def test_nothing_is_kept_of_programs_that_are_done(flight, mesh):
    array = jax.device_put(np.ones((4, 2), np.float32), over_devices(mesh))
    in_flight.started((), {"large": array, "small": array[:2]})
    assert flight[0]().shape == (2, 2)
    flight[0]().block_until_ready()
    in_flight.make_room()
    assert not flight


@pytest.mark.parametrize("error", ["deleted", "RESOURCE_EXHAUSTED: out of memory"])
def test_what_was_given_up_or_failed_is_no_error_here(flight, error):
    results = [Result(error), *(Result() for _ in range(in_flight.MOST))]
    flight.extend(lambda one=one: one for one in results)
    in_flight.make_room()
    assert [one.waited for one in results[:3]] == [1, 1, 0]


def test_a_table_is_not_kept_for_programs_that_changed_it(flight, mesh):
    rows = jax.device_put(np.ones((4, 2), np.float32), over_devices(mesh))
    program = jax.jit(lambda rows: rows + 1, donate_argnums=0)
    changed = program(rows)
    in_flight.started((rows,), changed)
    assert flight[0]() is changed
    changed.block_until_ready()
    del changed
    assert flight[0]() is None


def test_programs_on_one_device_are_not_counted(flight):
    in_flight.started((), jax.numpy.ones(3))
    in_flight.started((), np.ones(3))
    assert not flight
