"""What tables in SparseCores need: their stacks, and their programs, compiled for a topology.

A batch needs four programs: the cores' lookup and update, and those that cut the cores' bags into
features, and join the gradients of features.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from shardcore.backend import FeatureBags
from shardcore.errors import ShardcoreValueError
from shardcore.planning import Model
from shardcore_pjrt.planning.ahead_of_time import Compiled, Refused, compiled
from shardcore_pjrt.planning.needs import TableNeeds, activation_bytes, with_programs
from shardcore_pjrt.planning.topologies import Topology
from shardcore_pjrt.sparsecore.buffers import Buffers, bags_of_core, make_buffers
from shardcore_pjrt.sparsecore.capabilities import CAPABILITIES, DEFAULT_LAYOUT
from shardcore_pjrt.sparsecore.stacked_tables import StackedTables, stacked

if TYPE_CHECKING:
    from jax.sharding import Mesh

__all__ = ["EXCHANGE", "SparseCorePrograms", "sparsecore_stacks"]

EXCHANGE: Final = "cores"
"""The cores themselves exchange: what a plan calls it."""


def sparsecore_stacks(model: Model, topology: Topology) -> list[tuple[StackedTables, TableNeeds]]:
    """Return a model's tables in stacks of SparseCores, and what is known of their needs.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If the devices have no SparseCores, or these cannot have a table.
    """
    if not topology.sparsecores:
        raise ShardcoreValueError(
            "strategy 'sparsecore' must be for devices with SparseCores, which those of v5p, v6e "
            f"and tpu7x have, got topology {topology.name!r}"
        )
    specs = []
    for described in model.tables:
        spec = described.spec
        if not described.layout_given:
            spec = replace(spec, layout=DEFAULT_LAYOUT)
        CAPABILITIES.check_table(spec, "pjrt")
        specs.append(spec)
    found = []
    for tables in stacked(specs, topology.devices, topology.sparsecores):
        geometry, own, rule = tables
        table = 4 * geometry.rows_per_device * geometry.columns
        needs = TableNeeds(
            own[0].name,
            "row",
            None,
            "",
            table,
            table * (0 if rule is None else len(rule.slots)),
            activation_bytes(
                model.batch, topology.devices, [one.dim for one in own], rule is not None
            ),
            0,
            members=tuple(one.name for one in own) if len(own) > 1 else (),
        )
        found.append((tables, needs))
    return found


class SparseCorePrograms:
    """The programs of a stack, each shape of them compiled once."""

    def __init__(self, tables: StackedTables, mesh: Mesh) -> None:
        self._tables, self._mesh = tables, mesh
        self._found: dict[Hashable, Compiled | Refused] = {}

    def needs_with(self, features: Sequence[FeatureBags], needs: TableNeeds) -> TableNeeds:
        """Return the needs of the tables, with those of their programs for a batch."""
        geometry, _, rule = self._tables
        minibatched = rule is None or rule.minibatched
        try:
            made = make_buffers(geometry, list(enumerate(features)), minibatched)
        except ShardcoreValueError as error:  # told before anything is compiled
            return replace(needs, exchange=EXCHANGE, refused=str(error))
        lookup, cut = self._lookup(made), self._features(made)
        found = [lookup, cut]
        batch = 0
        if isinstance(lookup, Compiled):
            batch += 2 * (lookup.arguments - needs.table + lookup.outputs)
        if isinstance(cut, Compiled):
            batch += 2 * cut.outputs
        if rule is not None:
            join, update = self._gradients(made), self._update(made)
            found += [join, update]
            if isinstance(join, Compiled):
                batch += join.arguments
            if isinstance(update, Compiled):
                batch += update.arguments - needs.table - needs.slots
        return with_programs(needs, EXCHANGE, batch, found)

    def _once(
        self, key: Hashable, make: Callable[[], Any], arguments: Callable[[], Any]
    ) -> Compiled | Refused:
        if key not in self._found:
            self._found[key] = compiled(make, arguments())
        return self._found[key]

    def _lookup(self, made: Buffers) -> Compiled | Refused:
        from shardcore_pjrt.sparsecore.programs import lookup_arguments, lookup_program

        given = self._mesh, self._tables.geometry, made.shape
        return self._once(
            ("lookup", made.shape),
            lambda: lookup_program(*given),
            lambda: lookup_arguments(*given),
        )

    def _update(self, made: Buffers) -> Compiled | Refused:
        from shardcore_pjrt.sparsecore.programs import update_arguments, update_program

        rule = self._tables.rule
        assert rule is not None, "tables without an optimizer are not updated"
        given = self._mesh, self._tables.geometry, made.shape, rule
        return self._once(
            ("update", made.shape),
            lambda: update_program(*given),
            lambda: update_arguments(*given),
        )

    def _features(self, made: Buffers) -> Compiled | Refused:
        from shardcore_pjrt.sparsecore.programs import features_arguments, features_program

        geometry, spread = self._tables.geometry, made.spread
        of_core = bags_of_core(geometry, spread)
        dims = [spec.dim for spec in self._tables.specs]
        cuts = tuple(zip(spread.starts, spread.bags, dims, strict=True))
        return self._once(
            ("features", made.shape.bags, of_core, cuts),
            lambda: features_program(self._mesh, geometry, of_core, cuts),
            lambda: features_arguments(self._mesh, geometry, made.shape),
        )

    def _gradients(self, made: Buffers) -> Compiled | Refused:
        from shardcore_pjrt.sparsecore.programs import gradients_arguments, gradients_program

        geometry, spread = self._tables.geometry, made.spread
        of_core = bags_of_core(geometry, spread)
        parts = tuple(zip(spread.bags, [spec.dim for spec in self._tables.specs], strict=True))
        return self._once(
            ("gradients", made.shape.bags, of_core, parts),
            lambda: gradients_program(self._mesh, geometry, made.shape, of_core, len(parts)),
            lambda: gradients_arguments(self._mesh, geometry, parts),
        )
