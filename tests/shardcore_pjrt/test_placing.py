"""Arrays and gradients come onto the devices of a mesh in its order, wherever they were."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.placing import on_mesh, over_devices, whole
from shardcore_pjrt.programs.activations import Filling, filled_up, filled_up_on_devices
from shardcore_pjrt.programs.compiled import Programs


def mesh_of(devices):
    return Mesh(np.array(devices), ("x",))


def test_arrays_on_the_devices_in_another_order_are_put_in_that_of_the_mesh():
    devices = jax.devices("cpu")[:4]
    mesh, backwards = mesh_of(devices), mesh_of(devices[::-1])
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    for sharding in (over_devices(backwards), whole(backwards)):
        found = on_mesh(jax.device_put(values, sharding), mesh)
        assert found.sharding.mesh.devices.tolist() == devices
        np.testing.assert_array_equal(found, values)
    own = jax.device_put(values, over_devices(mesh))
    assert on_mesh(own, mesh) is own


@pytest.mark.parametrize("true", [5, 8, 12])
@pytest.mark.parametrize("where", ["host", "one device", "backwards", "here"])
def test_gradients_are_cut_over_the_devices_with_padding_in_each_part(where, true):
    devices = jax.devices("cpu")[:4]
    mesh = mesh_of(devices)
    values = np.arange(1, 2 * true + 1, dtype=np.float32).reshape(true, 2)
    shardings = {
        "one device": jax.sharding.SingleDeviceSharding(devices[1]),
        "backwards": whole(mesh_of(devices[::-1])),
        "here": whole(mesh),
    }
    given = jax.device_put(values, shardings[where]) if where in shardings else values
    own = -(-true // 4)
    filling = Filling(4, 3, own)
    if where == "host":
        cut = filled_up(given, filling)
    else:
        cut = filled_up_on_devices(mesh, Programs(), given, filling)
        assert cut.sharding == over_devices(mesh)
    want = np.zeros((4, 3, 2), np.float32)
    for bag, line in enumerate(values):
        want[bag // own, bag % own] = line
        assert filling.true_bag(bag // own * 3 + bag % own) == bag
    np.testing.assert_array_equal(cut, want.reshape(12, 2))
