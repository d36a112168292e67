"""What tables are called: their own name, or one made from their place among the tables."""

from __future__ import annotations

from collections.abc import Sequence

from shardcore.config import FeatureConfig, TableConfig
from shardcore.errors import ShardcoreValueError

__all__ = ["table_names"]


def table_names(features: Sequence[tuple[str, FeatureConfig]]) -> dict[TableConfig, str]:
    """Return the name of each table, in the order of their first appearance.

    A table without a name is called ``table_0``, ``table_1``, … by its place in that order. Such a
    name means nothing to another set of tables.

    Parameters
    ----------
    features : sequence of (path, FeatureConfig)
        As `shardcore.structure.flatten` returns them.

    Raises
    ------
    ShardcoreValueError
        If two tables have one name.

    Examples
    --------
    >>> user, item = TableConfig(10, 4, name="user"), TableConfig(20, 4)
    >>> features = [("f[0]", FeatureConfig(item)), ("f[1]", FeatureConfig(user))]
    >>> list(table_names(features).values())
    ['table_0', 'user']
    """
    names: dict[TableConfig, str] = {}
    first_place: dict[str, str] = {}
    for path, feature in features:
        table = feature.table
        if table in names:
            continue
        name = table.name if table.name is not None else f"table_{len(names)}"
        if name in first_place:
            raise ShardcoreValueError(
                f"tables must have distinct names: {first_place[name]} and {path} "
                f"use different tables named {name!r}"
            )
        first_place[name] = path
        names[table] = name
    return names
