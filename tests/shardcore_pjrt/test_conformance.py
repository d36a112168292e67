"""The conformance suite on the devices of a platform: SHARDCORE_PJRT_PLATFORM, or else CPU."""

import jax
import numpy as np
import pytest
from shardcore_pjrt.backend import PjrtBackend

from shardcore.testing import BackendConformance


def stored_rows(backend, table, slot):
    """Return what the devices hold, put together on the host without any of the backend's reads."""
    member, held = backend._tables[table]
    geometry, spec = held.geometry, member.spec
    dtype = spec.dtype
    if slot is not None:
        declared = {one.name: one for one in spec.optimizer.slots}[slot]
        dtype = declared.storage_dtype(spec.dtype)
    array = np.asarray(held.arrays[slot]).view(dtype)  # short floats are held as their bits
    shards = geometry.layout.num_shards
    if array.ndim == 1:
        local = array.reshape(shards, geometry.local_rows, 1)
    elif geometry.placement == "column":
        parts = array.reshape(geometry.lines, geometry.devices, geometry.line_width)
        local = np.concatenate(
            [
                parts[:, device].reshape(geometry.local_rows, geometry.width)[:, : geometry.columns]
                for device in range(geometry.devices)
            ],
            axis=1,
        )[None]
    else:
        local = array.reshape(shards, geometry.local_rows, geometry.width)
    columns = 1 if array.ndim == 1 else spec.dim
    rows = np.empty((spec.num_rows, columns), array.dtype)
    for shard in range(shards):
        numbers = backend.layout(table).global_rows(shard) if shards > 1 else slice(None)
        first = sum(  # shard by shard, tables of a stack lie under each other in their order
            int(other.layout.shard_sizes[shard])
            for other in held.members[: held.members.index(member)]
        )
        size = int(member.layout.shard_sizes[shard])
        rows[numbers] = local[shard, first : first + size, :columns]
    return rows


class PjrtConformance(BackendConformance):
    exact = False
    max_examples = 10  # nearly every call of a run is one more program to compile
    steps_per_example = 20
    options = {}

    @pytest.fixture
    def backend(self, platform):
        devices = self.options.get("devices", 1)
        if len(jax.devices(platform)) < devices:
            pytest.skip(f"needs {devices} devices of {platform}")
        backend = PjrtBackend(platform, **self.options)
        yield backend
        backend.close()

    @pytest.fixture
    def raw_rows(self):
        return stored_rows

    @pytest.fixture
    def to_device(self):
        return lambda backend, array: jax.device_put(array, backend.mesh.devices.flat[0])


class TestOneDevice(PjrtConformance):
    options = {"devices": 1}


class TestEightDevices(PjrtConformance):
    options = {"devices": 8}


class TestThreeDevicesThatGather(PjrtConformance):
    options = {"devices": 3, "exchange": "gather"}


class TestTwoDevicesThatSendRowsToEachOther(PjrtConformance):
    options = {"devices": 2, "exchange": "all_to_all"}


class TestTheRulesOfATpu(PjrtConformance):  # which packs narrow rows
    options = {"devices": 8, "rules": "tpu"}


class TestTheRulesOfAGpu(PjrtConformance):  # which sorts for itself where it is the only one
    options = {"devices": 1, "rules": "cuda"}
