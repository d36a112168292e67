"""Rows and slots on the devices: initial values, reads and writes, for every way they can lie."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from shardcore_pjrt import device_table
from shardcore_pjrt.device_table import DeviceTable
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.stacks import stacked

import shardcore as sc
from shardcore.backend.messages import TableSpec
from shardcore.initializers.constants import Constant
from shardcore.initializers.distributions import TruncatedNormal
from shardcore.initializers.filling import as_initializer, fill

ROWS = 57
CASES = [
    (devices, placement, layout, lanes, dim)
    for devices, (placement, layout), (lanes, dim) in itertools.product(
        (1, 3),
        (("row", "div"), ("row", "mod"), ("column", "div"), ("replicated", "div")),
        ((1, 5), (128, 3), (128, 200)),
    )
]


def make(devices, geometry, dim, optimizer=None, initializer=None, dtype="float32"):
    initializer = initializer or TruncatedNormal()
    spec = TableSpec("t", ROWS, dim, np.dtype(dtype), initializer, 7, optimizer)
    mesh = Mesh(np.array(jax.devices("cpu")[:devices]), ("x",))
    (stack,) = stacked([(spec, geometry, mesh)])
    return DeviceTable(mesh, geometry, stack.members, Programs())


@pytest.mark.parametrize(("devices", "placement", "layout", "lanes", "dim"), CASES)
def test_rows_and_slots_are_read_as_they_were_written(
    devices, placement, layout, lanes, dim, monkeypatch
):
    monkeypatch.setattr(device_table, "PIECE_BYTES", 1000)  # several pieces
    rng = np.random.default_rng(3)
    geometry = Geometry(ROWS, dim, devices, placement, lanes, layout)
    accumulators = rng.random((ROWS, dim), np.float32)
    optimizers = [
        sc.optimizers.RowwiseAdagrad(initial_accumulator_value=0.5),
        sc.optimizers.Adagrad(slot_initial_values={"accumulators": accumulators}),
    ]
    for optimizer in optimizers:
        table = make(devices, geometry, dim, optimizer)
        wanted = np.empty((ROWS, dim), np.float32)
        fill(wanted, TruncatedNormal(), range(ROWS), 7)
        np.testing.assert_array_equal(table.gather(None, np.arange(ROWS)), wanted)
        slot = table.gather("accumulators", np.arange(ROWS))
        expected = accumulators if optimizer is optimizers[1] else np.full((ROWS, 1), 0.5)
        np.testing.assert_array_equal(slot, expected)
        for name, whole in ((None, wanted), ("accumulators", slot)):
            rows = rng.permutation(ROWS)[:20]
            values = rng.standard_normal((20, whole.shape[1])).astype(np.float32)
            table.scatter(name, rows, values)
            whole[rows] = values
            asked = rng.integers(0, ROWS, 70)
            np.testing.assert_array_equal(table.gather(name, asked), whole[asked])
            np.testing.assert_array_equal(table.gather(name, np.arange(ROWS)), whole)


def test_constants_are_made_on_the_devices(monkeypatch):
    def refused(*arguments):
        raise AssertionError("a constant needs no values from the host")

    geometry = Geometry(ROWS, 4, 2, "row")
    with monkeypatch.context() as patch:
        patch.setattr(device_table, "put", refused)
        table = make(2, geometry, 4, sc.optimizers.Adagrad(), Constant(-2.5))
    assert (table.gather(None, np.arange(ROWS)) == -2.5).all()
    assert (table.gather("accumulators", np.arange(ROWS)) == np.float32(0.1)).all()


def test_a_table_lies_on_all_devices_of_its_mesh():
    table = make(4, Geometry(ROWS, 4, 4, "row", 128), 4, sc.optimizers.Adagrad())
    for array in table.arrays.values():
        assert len(array.sharding.device_set) == 4
        assert {shard.data.shape for shard in array.addressable_shards} == {(1, 128)}
    assert table.nbytes == 2 * 4 * 128 * 4


def test_an_array_of_initial_values_need_not_be_whole_on_the_devices_at_once():
    values = np.random.default_rng(0).random((ROWS, 5), np.float32)
    table = make(
        3, Geometry(ROWS, 5, 3, "row"), 5, None, as_initializer(values, (ROWS, 5), np.dtype("f4"))
    )
    np.testing.assert_array_equal(table.gather(None, np.arange(ROWS)), values)


@pytest.mark.parametrize("optimizer", [sc.optimizers.Adagrad(), sc.optimizers.RowwiseAdagrad()])
def test_rows_of_one_device_are_written_without_the_others(optimizer, monkeypatch):
    def pointers(array):
        shards = sorted(array.addressable_shards, key=lambda one: one.index[0].start or 0)
        return [one.data.unsafe_buffer_pointer() for one in shards]

    sent = []
    put = device_table.put
    monkeypatch.setattr(device_table, "put", lambda *given: sent.append(given) or put(*given))
    table = make(4, Geometry(ROWS, 4, 4, "row", 128), 4, optimizer)
    for name, width in (
        (None, 4),
        ("accumulators", table.gather("accumulators", np.arange(1)).shape[1]),
    ):
        rows, whole = np.arange(17, 25), table.gather(name, np.arange(ROWS))
        before = pointers(table.arrays[name])
        sent.clear()
        whole[rows] = np.arange(8 * width).reshape(8, width)
        table.scatter(name, rows, whole[rows])
        assert not sent
        assert pointers(table.arrays[name]) == before  # the one that was written too
        np.testing.assert_array_equal(table.gather(name, np.arange(ROWS)), whole)
