"""What update programs take besides rows, slots and lists: gradients of bags, and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from shardcore.backend import TableSpec, TableUpdate
from shardcore.store import rounds_stochastically, step_seed
from shardcore_pjrt.batch_lists import UpdateLists
from shardcore_pjrt.device_table import DeviceTable
from shardcore_pjrt.mesh.placing import over_devices, put, whole, with_sharding
from shardcore_pjrt.programs.activations import Filling, filled_up, filled_up_on_devices
from shardcore_pjrt.programs.compiled import Programs

__all__ = ["JoinedUpdates", "cut_gradient", "fillings_of", "numbers_of", "with_filled_gradients"]


class JoinedUpdates(NamedTuple):
    """Updates of one stack that are one: of a step, by the same hyper-parameters."""

    stack: DeviceTable
    updates: list[TableUpdate]
    routed: UpdateLists


def fillings_of(joined: JoinedUpdates) -> dict[str, list[Filling | None]]:
    """Return, per table and feature with a gradient, where its bags are in the program's lists."""
    devices = joined.stack.geometry.devices
    places = zip(joined.routed.shape.bags, joined.routed.own, strict=True)
    return {
        update.batch.table: [
            None if one is None else Filling(devices, *next(places)) for one in update.gradients
        ]
        for update in joined.updates
    }


def with_filled_gradients(
    mesh: Mesh, programs: Programs, update: TableUpdate, fillings: Sequence[Filling | None]
) -> TableUpdate:
    """Return an update whose gradients have the bags of its program.

    Those on devices are then on all devices of `mesh`.
    """

    def filled(gradient: Any, filling: Filling | None) -> Any:
        if filling is None:
            return None
        if isinstance(gradient, jax.Array):
            return filled_up_on_devices(mesh, programs, gradient, filling)
        return filled_up(gradient, filling)

    gradients = map(filled, update.gradients, fillings)
    return dataclasses.replace(update, gradients=tuple(gradients))


def cut_gradient(gradient: jax.Array | NDArray[Any], mesh: Mesh) -> jax.Array:
    """Return a feature's gradient cut over the devices of its table by bag."""
    if isinstance(gradient, np.ndarray):
        return put({"gradient": gradient}, {"gradient": over_devices(mesh)})["gradient"]
    return with_sharding(gradient, over_devices(mesh))


def numbers_of(
    moving: Sequence[JoinedUpdates], specs: Mapping[str, TableSpec]
) -> list[list[jax.Array]]:
    """Return hyper-parameters, step and seed of each update on its devices: one transfer.

    Parameters
    ----------
    moving : sequence of JoinedUpdates
    specs : mapping of str to TableSpec
        As they are now: a restore gives tables other seeds.
    """
    arrays: dict[str, NDArray[Any]] = {}
    shardings: dict[str, NamedSharding] = {}
    known: dict[Any, str] = {}
    names: list[list[str]] = []
    for table, (update, *_), _ in moving:
        spec, seed = table.spec, 0
        assert spec.optimizer is not None, "the engine trains tables with an optimizer only"
        if rounds_stochastically(spec.optimizer, spec.dtype):  # then it is alone in its stack
            seed = step_seed(specs[spec.name].seed, update.step)
        names.append([])
        for number in (
            np.array(update.hyper, np.float32),
            np.array(update.step, np.int32),
            np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32),
        ):
            name = known.setdefault((table.mesh, number.dtype, number.tobytes()), f"{len(known)}")
            arrays[name], shardings[name] = number, whole(table.mesh)
            names[-1].append(name)
    placed = put(arrays, shardings)
    return [[placed[name] for name in own] for own in names]
