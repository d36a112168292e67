"""Rows and slots out of checkpoints that ``tf.train`` has written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf

from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreOSError, ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.variable.variable import ShardedVariable

__all__ = ["load_checkpoint"]

_SUFFIX: Final = "/.ATTRIBUTES/VARIABLE_VALUE"  # of a variable of an object-based checkpoint
_BLOCK_BYTES: Final = 16 << 20
_SHOWN: Final = 8


@dataclass(frozen=True, eq=False)
class _Part:
    """A variable of the checkpoint that holds the rows of a table from `start` on."""

    key: str
    shape: tuple[int, ...]
    start: int


def load_checkpoint(
    engine: ShardedEmbedding,
    path: str | os.PathLike[str],
    names: Mapping[str, str | Sequence[str]],
) -> None:
    """Read rows and slots of an engine from a checkpoint of ``tf.train``, block by block.

    Parameters
    ----------
    engine : ShardedEmbedding
        It is built here. Tables and slots that `names` leaves out stay as they are, and its step.
    path : path
        What ``tf.train.Checkpoint.save`` returned, or a folder, of which the latest is taken.
    names : mapping of str to str, or to a list of str
        ``"table"`` or ``"table/slot"`` -> the variable, with or without the
        ``/.ATTRIBUTES/VARIABLE_VALUE`` of object-based checkpoints. Variables of a list are joined
        along their rows; for a name that is not there, ``name/part_0``, ``name/part_1``, … are. A
        ``ShardedVariable`` is one variable.

    Raises
    ------
    ShardcoreTypeError
        If an argument is of another kind, or a dtype is not the table's.
    ShardcoreValueError
        If the engine has no such table or slot, the checkpoint no such variable, or a shape
        differs. Nothing has changed then.
    ShardcoreOSError
        If the checkpoint cannot be read. Where that shows between two blocks, those before it are
        written.

    Examples
    --------
    >>> import tempfile
    >>> import shardcore as sc
    >>> words = sc.TableConfig(3, 2, name="words")
    >>> engine = sc.ShardedEmbedding(sc.FeatureConfig(words))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = tf.train.Checkpoint(emb=tf.Variable([[1.0, 2], [3, 4], [5, 6]]))
    ...     load_checkpoint(engine, model.save(f"{folder}/model"), {"words": "emb"})
    >>> engine.tables["words"][1]
    array([3., 4.], dtype=float32)
    """
    if not isinstance(engine, ShardedEmbedding):
        raise ShardcoreTypeError(f"engine must be a ShardedEmbedding, got {shown(engine)}")
    if not isinstance(names, Mapping) or not names:
        raise ShardcoreTypeError(
            "names must map a table, or 'table/slot', to a variable of the checkpoint, got "
            f"{shown(names)}"
        )
    engine.build()
    prefix = os.fspath(path)
    if os.path.isdir(prefix):
        latest = tf.train.latest_checkpoint(prefix)
        if latest is None:
            raise ShardcoreValueError(
                f"path must be a checkpoint, got a folder of none, {prefix!r}"
            )
        prefix = latest
    try:
        reader = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        raise ShardcoreOSError(f"path {prefix!r} cannot be read: {error}") from error
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    found = []
    for place, name in names.items():
        view = _view(engine, place)
        parts = _parts(place, name, shapes)
        _check(place, view, parts, dtypes)
        found.append((view, parts))
    for view, parts in found:
        for part in parts:
            _copy(prefix, view, part, dtypes[part.key])


def _view(engine: ShardedEmbedding, place: str) -> ShardedVariable:
    """Return the table or the slot of that place; a table's own name may have a slash."""
    tables, slots = engine.tables, engine.slots
    views = dict(tables)
    views |= {f"{table}/{slot}": one for table in slots for slot, one in slots[table].items()}
    if place not in views:
        raise ShardcoreValueError(
            f"names must name tables and slots of the engine, {_listed(views)}, got {shown(place)}"
        )
    return views[place]


def _parts(place: str, name: Any, shapes: Mapping[str, Sequence[int]]) -> list[_Part]:
    wanted = [name] if isinstance(name, str) else name
    named = isinstance(wanted, list | tuple) and all(isinstance(one, str) for one in wanted)
    if not named or not wanted:
        raise ShardcoreTypeError(f"names[{place!r}] must be a name or a list, got {shown(name)}")
    keys = [key for one in wanted for key in _keys(place, one, shapes)]
    parts, start = [], 0
    for key in keys:
        shape = tuple(shapes[key])
        parts.append(_Part(key, shape, start))
        start += shape[0] if shape else 0
    return parts


def _keys(place: str, name: str, shapes: Mapping[str, Any]) -> list[str]:
    """Return the keys of a variable: one, or those of its parts, in their order."""
    for key in (name, name + _SUFFIX):
        if key in shapes:
            return [key]
    keys: list[str] = []
    for suffix in ("", _SUFFIX):
        while f"{name}/part_{len(keys)}{suffix}" in shapes:
            keys.append(f"{name}/part_{len(keys)}{suffix}")
    if not keys:
        known = [one.removesuffix(_SUFFIX) for one in shapes if not one.startswith("_")]
        raise ShardcoreValueError(
            f"names[{place!r}] must be a variable of the checkpoint, {_listed(sorted(known))}, got "
            f"{shown(name)}"
        )
    return keys


def _check(
    place: str, view: ShardedVariable, parts: Sequence[_Part], dtypes: Mapping[str, Any]
) -> None:
    for part in parts:
        dtype = dtypes[part.key]
        if dtype.as_numpy_dtype != view.dtype:
            raise ShardcoreTypeError(
                f"names[{place!r}]: {part.key!r} must be {view.dtype.name}, as {place!r} is, got "
                f"{dtype.name}"
            )
    rows = sum(part.shape[0] if part.shape else 0 for part in parts)
    got = parts[0].shape if len(parts) == 1 else (rows, *parts[0].shape[1:])
    if got != view.shape or any(part.shape[1:] != view.shape[1:] for part in parts):
        shapes = " and ".join(str(part.shape) for part in parts)
        raise ShardcoreValueError(
            f"names[{place!r}] must have the shape of {place!r}, {view.shape}, got {shapes}"
        )


def _copy(prefix: str, view: ShardedVariable, part: _Part, dtype: Any) -> None:
    """Write the rows of a part, a block after the other."""
    rows, *rest = part.shape
    row_bytes = max(1, view.nbytes // max(1, view.shape[0]))
    block = max(1, _BLOCK_BYTES // row_bytes)
    full = " ".join(str(size) for size in part.shape)
    others = "".join(f":0,{size}" for size in rest)
    for start in range(0, rows, block):
        length = min(block, rows - start)
        try:
            (values,) = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[part.key],
                shape_and_slices=[f"{full} {start},{length}{others}"],
                dtypes=[dtype],
            )
        except tf.errors.OpError as error:
            raise ShardcoreOSError(f"{part.key!r} cannot be read: {error.message}") from error
        first = part.start + start
        view[first : first + length] = values.numpy()


def _listed(names: Any) -> str:
    names = list(names)
    more = f", … {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
