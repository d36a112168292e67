"""Data frames as features: the columns that a configuration names, those of any other unread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.arrow import has_capsule, owner_of, pyarrow_for

__all__ = ["columns_of", "is_frame"]

_SHOWN = 8


def is_frame(given: object) -> bool:
    """Return whether what is given for a dict of features may be a data frame.

    Examples
    --------
    >>> import pyarrow
    >>> is_frame(pyarrow.table({"clicks": [[3, 1]]})), is_frame([[3, 1]])
    (True, False)
    """
    return has_capsule(given) or (owner_of(given) == "pandas" and hasattr(given, "columns"))


def columns_of(frame: Any, names: Iterable[Any], what: str) -> dict[Any, Any]:
    """Return the named columns of a data frame, as it has them; the others are not touched.

    Parameters
    ----------
    frame : pandas, polars or pyarrow data frame, or any with ``__arrow_c_stream__``
    names : iterable
        The names that are asked for.
    what : str
        The name of `frame` in messages, e.g. ``"features"``.

    Raises
    ------
    ShardcoreTypeError
        If it holds no columns.
    ShardcoreValueError
        If there is no such column, or more than one.
    UnavailableError
        If pyarrow is needed and is not installed.

    Examples
    --------
    >>> import pyarrow
    >>> frame = pyarrow.table({"clicks": [[3, 1]], "text": ["unused"]})
    >>> {name: len(column) for name, column in columns_of(frame, ["clicks"], "features").items()}
    {'clicks': 1}
    """
    owner, kind = owner_of(frame), type(frame).__name__
    if owner in ("pandas", "polars") and kind == "DataFrame":
        known = list(frame.columns)
    else:
        pyarrow = pyarrow_for(frame)
        if not isinstance(frame, pyarrow.Table | pyarrow.RecordBatch):
            try:
                frame = pyarrow.table(frame)
            except Exception as error:  # whatever the owner raises: it is the reason
                raise ShardcoreTypeError(
                    f"{what} must be a dict, as it is configured, or a data frame; a {owner} "
                    f"{kind} cannot be read as one: {type(error).__name__}: {error}"
                ) from error
        known = frame.schema.names
    columns = {}
    for name in names:
        count = known.count(name)
        if count == 0:
            raise ShardcoreValueError(
                f"{what}[{name!r}] is missing: it is configured, and the {owner} {kind} has no "
                f"such column but {_listed(known)}"
            )
        if count > 1:
            raise ShardcoreValueError(
                f"{what}[{name!r}] must be one column, got {count} of this name in the {owner} "
                f"{kind}"
            )
        columns[name] = frame[name]
    return columns


def _listed(names: list[Any]) -> str:
    if not names:
        return "none at all"
    more = f", ... {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
