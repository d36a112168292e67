"""The lists of a batch on the devices that hold a stack: those of its lookup, and of its update.

A route is made on the host, or, where a device sorts for itself, its shape alone; then its lists
are put on the devices, but for those that are there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from numpy.typing import NDArray

from shardcore.backend import FeatureBags
from shardcore_pjrt.device_table import DeviceTable
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placing import over_devices, put, whole
from shardcore_pjrt.programs.compiled import Programs
from shardcore_pjrt.programs.sort_program import sort_program, sorted_shape
from shardcore_pjrt.routing.capacity import Rooms
from shardcore_pjrt.routing.lookup_route import LookupRoute, route_lookup
from shardcore_pjrt.routing.spread import bags_of_device
from shardcore_pjrt.routing.strategy import (
    Exchange,
    choose_exchange,
    sorts_on_device,
    update_exchange,
)
from shardcore_pjrt.routing.update_route import UpdateShape, route_update
from shardcore_pjrt.stacks import numbered

__all__ = ["BatchLists", "LookupLists", "UpdateLists", "on_devices"]


class LookupLists(NamedTuple):
    """The route of a lookup, and its lists on the devices."""

    route: LookupRoute
    lists: dict[str, jax.Array]
    features: Sequence[FeatureBags]
    """That were routed."""
    own: tuple[int, ...]
    """True bags of each feature that a device has; the last ones may lack some."""


class UpdateLists(NamedTuple):
    """The lists of an update on the devices, for tables of one stack."""

    tables: tuple[str, ...]
    shape: UpdateShape
    lists: dict[str, jax.Array]
    unique_rows: int | jax.Array
    named: bool
    """Whether the batch names any row."""
    own: tuple[int, ...]
    """As that of `LookupLists`, of the features that have gradients."""


class BatchLists:
    """How bags over a stack become lists on its devices.

    Parameters
    ----------
    programs : Programs
    rules : str
        The platform whose rules choose exchanges, and whether devices sort.
    exchange : {"gather", "all_to_all"}, optional
        What the user has chosen for rows that are cut.
    several : bool
        Whether several processes take part: they use no class that was taken before, since they
        might remember different calls where one of them failed.
    """

    def __init__(
        self, programs: Programs, rules: str, exchange: Exchange | None, several: bool
    ) -> None:
        self._programs = programs
        self._rules = rules
        self._exchange = exchange
        self._several = several

    def of_lookup(self, stack: DeviceTable, features: Sequence[FeatureBags]) -> LookupLists:
        """Return the route of a lookup of features, and its lists."""
        geometry = stack.geometry
        rooms = self._rooms(stack.lookup_rooms)
        route = route_lookup(geometry, features, self._exchange_of(geometry), rooms)
        own = _bags_of_devices(stack, features)
        return LookupLists(route, on_devices(stack, route.arrays), features, own)

    def of_update(
        self,
        stack: DeviceTable,
        tables: Sequence[str],
        features: Sequence[FeatureBags],
        looked_up: LookupLists | None = None,
    ) -> UpdateLists:
        """Return the lists of an update by features of tables.

        Parameters
        ----------
        stack : DeviceTable
        tables : sequence of str
            Those that have the features.
        features : sequence of FeatureBags
            Over the stack.
        looked_up : LookupLists, optional
            Of the same features, whose lists the update may share.
        """
        if sorts_on_device(stack.geometry.devices, self._rules):
            return self._sorted(stack, tables, features, looked_up)
        optimizer = stack.spec.optimizer
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        chosen = None if self._exchange is not None else self._rules
        exchange = update_exchange(self._exchange_of(stack.geometry), optimizer.accumulate, chosen)
        found = looked_up.route if looked_up and exchange == "all_to_all" else None
        route = numbered(
            stack.numbering,
            route_update(
                stack.geometry,
                features,
                exchange,
                optimizer.accumulate,
                optimizer.lazy,
                self._rooms(stack.update_rooms),
                found,
            ),
        )
        lists = {}
        if looked_up is not None and found is not None:  # those that are on the devices already
            held = found.arrays
            lists = {
                name: looked_up.lists[name]
                for name, array in route.arrays.items()
                if held.get(name) is array
            }
        new = {name: array for name, array in route.arrays.items() if name not in lists}
        lists |= on_devices(stack, new)
        rows = route.unique_rows
        own = _bags_of_devices(stack, features)
        return UpdateLists(tuple(tables), route.shape, lists, rows, rows > 0, own)

    def _sorted(
        self,
        stack: DeviceTable,
        tables: Sequence[str],
        features: Sequence[FeatureBags],
        looked_up: LookupLists | None,
    ) -> UpdateLists:
        """Return the lists of an update that the device makes of the lookup's."""
        if looked_up is None:
            looked_up = self.of_lookup(stack, features)
        geometry, optimizer, shape = stack.geometry, stack.spec.optimizer, looked_up.route.shape
        assert optimizer is not None, "the engine trains tables with an optimizer only"
        kind = optimizer.accumulate, optimizer.lazy
        firsts = tuple(int(member.start[0]) for member in stack.members)
        program = self._programs.get(sort_program, stack.mesh, geometry, shape, *kind, firsts)
        lists, unique_rows = program(looked_up.lists)
        named = any(bags.ids.size for bags in features)
        sorted_by_it = sorted_shape(geometry, shape, *kind)
        own = looked_up.own
        return UpdateLists(tuple(tables), sorted_by_it, lists, unique_rows, named, own)

    def _exchange_of(self, geometry: Geometry) -> Exchange:
        if self._exchange is not None and geometry.placement == "row" and geometry.devices > 1:
            return self._exchange
        return choose_exchange(geometry.devices, geometry.placement, geometry.num_rows, self._rules)

    def _rooms(self, taken: Rooms) -> Rooms | None:
        """Return the classes that a stack's batches have taken, if they are to be taken again."""
        return None if self._several else taken


def _bags_of_devices(stack: DeviceTable, features: Sequence[FeatureBags]) -> tuple[int, ...]:
    return tuple(bags_of_device(bags, stack.geometry.devices) for bags in features)


def on_devices(stack: DeviceTable, arrays: dict[str, NDArray[Any]]) -> dict[str, jax.Array]:
    """Put the lists of a route on the devices: those with a part per device are cut."""
    cut, all_of_it = over_devices(stack.mesh), whole(stack.mesh)
    shardings = {
        name: cut if array.ndim and array.shape[0] == stack.mesh.size else all_of_it
        for name, array in arrays.items()
    }
    return put(arrays, shardings)
