"""Nested structures of features: what goes in comes out in the same shape.

The configuration is a structure whose leaves are `FeatureConfig`; features, weights, activations
and gradients are structures of the same shape. The configuration alone says where the leaves are:
a feature may itself be a list or a tuple.

Containers are mappings, lists, tuples, named tuples and dataclasses. Entries are taken in the
order in which the *configuration* has them; a mapping's keys are not sorted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.features.config import FeatureConfig, TableConfig

__all__ = [
    "IsLeaf",
    "entries_of",
    "entries_of_kind",
    "flatten",
    "flatten_like",
    "is_feature",
    "unflatten",
    "with_entries",
]

IsLeaf: TypeAlias = Callable[[Any], bool]

_DEEPEST: Final = 100  # containers in containers; one that holds itself has no end


def is_feature(value: object) -> bool:
    """Return whether `value` is a leaf of a feature configuration."""
    return isinstance(value, FeatureConfig)


def flatten(
    structure: Any, is_leaf: IsLeaf = is_feature, what: str = "features"
) -> list[tuple[str, Any]]:
    """Return the leaves of a structure with their paths, in its own order.

    Parameters
    ----------
    structure : nested containers of leaves, or a leaf
    is_leaf : callable
        Returns whether a value is a leaf; anything else must be a container.
    what : str
        The structure's name: each path begins with it.

    Returns
    -------
    list of (path, leaf)
        A path reads as Python would write it: ``features['user']['clicks'][0]``.

    Raises
    ------
    ShardcoreTypeError
        If something in it is neither a leaf nor a container.
    ShardcoreValueError
        If it is nested more than 100 deep.

    Examples
    --------
    >>> flatten({"b": 1, "a": [2, 3]}, lambda x: isinstance(x, int))
    [("features['b']", 1), ("features['a'][0]", 2), ("features['a'][1]", 3)]
    """
    leaves: list[tuple[str, Any]] = []
    _collect(structure, what, 0, is_leaf, what, leaves)
    return leaves


def _collect(
    part: Any, path: str, depth: int, is_leaf: IsLeaf, what: str, leaves: list[tuple[str, Any]]
) -> None:
    # A function of the module, as `_rebuilt`: one that called itself out of its own closure would
    # be part of a cycle, and hold what it was given until the garbage collector comes.
    if is_leaf(part):
        leaves.append((path, part))
        return
    if depth == _DEEPEST:
        raise ShardcoreValueError(f"{what} must be nested at most {_DEEPEST} deep, got deeper")
    for _, suffix, entry in entries_of(part, path):
        _collect(entry, path + suffix, depth + 1, is_leaf, what, leaves)


def flatten_like(
    config_structure: Any, other: Any, what: str, is_leaf: IsLeaf = is_feature
) -> list[Any]:
    """Return the parts of `other` that stand where the configuration has leaves, in its order.

    Parameters
    ----------
    config_structure : nested containers of leaves, or a leaf
        Says where the leaves are.
    other : the same containers
        Its leaves may be anything. A dict may be any mapping, in any order; a dataclass or named
        tuple any with the same fields.
    what : str
        The name of `other` in messages, e.g. ``"features"``.
    is_leaf : callable
        Returns whether a value is a leaf of the configuration.

    Raises
    ------
    ShardcoreTypeError
        If a container is of another kind than the configuration's.
    ShardcoreValueError
        If an entry is missing or not configured.

    Examples
    --------
    >>> flatten_like({"b": 1, "a": 2}, {"a": [7], "b": (5, 6)}, "features",
    ...              lambda x: isinstance(x, int))
    [(5, 6), [7]]
    """
    if is_leaf(config_structure):
        return [other]
    wanted = entries_of(config_structure, what)
    given = entries_of_kind(config_structure, other, what)
    by_key = {key: entry for key, _, entry in given}
    for key, suffix, _ in wanted:
        if key not in by_key:
            raise ShardcoreValueError(f"{what}{suffix} is missing: it is configured")
    keys = {key for key, _, _ in wanted}
    for key, suffix, _ in given:
        if key not in keys:
            configured = ", ".join(known for _, known, _ in wanted) or "no entry"
            raise ShardcoreValueError(f"{what}{suffix} is not configured: {what} has {configured}")
    leaves = []
    for key, suffix, entry in wanted:
        leaves += flatten_like(entry, by_key[key], what + suffix, is_leaf)
    return leaves


def unflatten(structure: Any, leaves: Iterable[Any], is_leaf: IsLeaf = is_feature) -> Any:
    """Return the structure with its leaves replaced, in the order of `flatten`.

    Parameters
    ----------
    structure : nested containers of leaves, or a leaf
        Left as it is. Every mapping comes back as a dict; named tuples and dataclasses keep their
        class.
    leaves : iterable
        As many as the structure has.
    is_leaf : callable
        Returns whether a value is a leaf.

    Raises
    ------
    ShardcoreTypeError
        If something in it is neither a leaf nor a container.
    ShardcoreValueError
        If there are more or fewer leaves than places.

    Examples
    --------
    >>> unflatten({"b": 1, "a": [2, 3]}, "xyz", lambda x: isinstance(x, int))
    {'b': 'x', 'a': ['y', 'z']}
    """
    given = list(leaves)
    places = len(flatten(structure, is_leaf))
    if len(given) != places:
        raise ShardcoreValueError(
            f"leaves must be as many as the structure has, {places}, got {len(given)}"
        )
    return _rebuilt(structure, iter(given), is_leaf)


def _rebuilt(part: Any, remaining: Iterator[Any], is_leaf: IsLeaf) -> Any:
    if is_leaf(part):
        return next(remaining)
    entries = [_rebuilt(entry, remaining, is_leaf) for *_, entry in entries_of(part, "structure")]
    return with_entries(part, entries)


def entries_of(container: Any, path: str) -> list[tuple[Any, str, Any]]:
    """Return a container's entries: key, the text that follows the container's path, entry."""
    if isinstance(container, Mapping):
        return [(key, f"[{key!r}]", entry) for key, entry in container.items()]
    fields = _field_names(container)
    if fields is not None:
        return [(name, f".{name}", getattr(container, name)) for name in fields]
    if isinstance(container, list | tuple):
        return [(i, f"[{i}]", entry) for i, entry in enumerate(container)]
    raise ShardcoreTypeError(
        f"{path} must be a FeatureConfig, or a dict, list, tuple, named tuple or dataclass "
        f"of them, got {shown(container)}"
    )


def entries_of_kind(config: Any, other: Any, path: str) -> list[tuple[Any, str, Any]]:
    """Return the entries of `other`, refused if it is another kind of container than `config`."""
    kind = _kind(config)
    if _kind(other) != kind:
        raise ShardcoreTypeError(
            f"{path} must be a {kind}, as it is configured, got {type(other).__name__}"
        )
    if kind in ("list", "tuple") and len(other) != len(config):
        raise ShardcoreValueError(
            f"{path} must have {len(config)} entries, as it is configured, got {len(other)}"
        )
    return entries_of(other, path)


def same_kind(config: Any, other: Any) -> bool:
    """Return whether `other` is the kind of container that the configuration has there."""
    return _kind(config) == _kind(other)


def _kind(container: Any) -> str:
    if isinstance(container, Mapping):
        return "dict"
    if _field_names(container) is not None:
        return "named tuple" if isinstance(container, tuple) else "dataclass"
    if isinstance(container, list | tuple):
        return "list" if isinstance(container, list) else "tuple"
    return "leaf"


def _field_names(container: Any) -> Sequence[str] | None:
    if isinstance(container, tuple):
        names: Sequence[str] | None = getattr(container, "_fields", None)
        return names
    if isinstance(container, type | TableConfig):  # a table given in place of a feature
        return None
    if dataclasses.is_dataclass(container):
        return [field.name for field in dataclasses.fields(container) if field.init]
    return None


def with_entries(container: Any, values: list[Any]) -> Any:
    """Return a container like `container`, of these entries, in its order."""
    if isinstance(container, Mapping):
        return dict(zip(container, values, strict=True))
    fields = _field_names(container)
    if fields is None:
        return values if isinstance(container, list) else tuple(values)
    named = dict(zip(fields, values, strict=True))
    if isinstance(container, tuple):
        return type(container)(**named)
    return dataclasses.replace(container, **named)
