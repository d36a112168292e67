"""Arrays and gradients come onto the devices of a mesh in its order, wherever they were."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.placing import on_mesh, over_devices, whole
from shardcore_pjrt.programs.activations import as_cut
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


@pytest.mark.parametrize("true", [5, 8])
@pytest.mark.parametrize("where", ["host", "one device", "backwards", "here"])
def test_gradients_are_cut_over_the_devices_with_padding_at_the_end(where, true):
    devices = jax.devices("cpu")[:4]
    mesh = mesh_of(devices)
    values = np.arange(1, 2 * true + 1, dtype=np.float32).reshape(true, 2)
    shardings = {
        "one device": jax.sharding.SingleDeviceSharding(devices[1]),
        "backwards": whole(mesh_of(devices[::-1])),
        "here": whole(mesh),
    }
    given = jax.device_put(values, shardings[where]) if where in shardings else values
    cut = as_cut(mesh, Programs(), given, 8)
    assert cut.sharding == over_devices(mesh)
    np.testing.assert_array_equal(cut, np.pad(values, ((0, 8 - true), (0, 0))))
