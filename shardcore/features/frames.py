"""Data frames as features: the columns that a configuration names, those of any other unread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.structure import entries_of, is_feature, same_kind, with_entries
from shardcore.ids.arrow import has_capsule, is_lazy, owner_of, pyarrow_for

__all__ = ["columns_of", "is_frame", "read_frames"]

_SHOWN = 8


def is_frame(given: object) -> bool:
    """Return whether what is given for a dict of features may be a data frame.

    Examples
    --------
    >>> import pyarrow
    >>> is_frame(pyarrow.table({"clicks": [[3, 1]]})), is_frame([[3, 1]])
    (True, False)
    """
    return (
        has_capsule(given)
        or (owner_of(given) == "pandas" and hasattr(given, "columns"))
        or is_lazy(given)
    )


class _Frame:
    """A data frame that is open to be read, of any library."""

    def __init__(self, frame: Any, what: str) -> None:
        owner, kind = owner_of(frame), type(frame).__name__
        if is_lazy(frame):
            raise ShardcoreTypeError(
                f"{what} must have values, got a polars LazyFrame, which has none yet: give "
                "frame.collect()"
            )
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
        self._frame, self.known, self._title = frame, known, f"{owner} {kind}"

    def column(self, name: Any, path: str, why: str) -> Any:
        """Return a column as the frame has it; `path` and `why` are for messages."""
        count = self.known.count(name)
        if count == 0:
            raise ShardcoreValueError(
                f"{path} {why}, and the {self._title} has no such column but {_listed(self.known)}"
            )
        if count > 1:
            raise ShardcoreValueError(
                f"{path} must be one column, got {count} of this name in the {self._title}"
            )
        return self._frame[name]


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
    return _columns(_Frame(frame, what), names, what)


def _columns(frame: _Frame, names: Iterable[Any], what: str) -> dict[Any, Any]:
    return {
        name: frame.column(name, f"{what}[{name!r}]", "is missing: it is configured")
        for name in names
    }


def read_frames(
    config: Any, features: Any, weights: Any, what: str = "features", partial: bool = False
) -> tuple[Any, Any]:
    """Return features and weights with the columns of data frames in place of the frames.

    A frame may stand wherever the configuration has a dict of features, and for their weights too.
    Where features come as one, a str among their weights names a column of it.

    Parameters
    ----------
    config : structure of FeatureConfig
    features, weights : as a caller gives them
        What is no frame is passed on as it is, to be checked by others.
    what : str
        The name of the features in messages.
    partial : bool
        Whether a frame may lack columns: their features are left out.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, UnavailableError
        As `columns_of`.

    Examples
    --------
    >>> import pyarrow
    >>> from shardcore.features.config import FeatureConfig, TableConfig
    >>> config = {"user": {"clicks": FeatureConfig(TableConfig(5, 2))}}
    >>> frame = pyarrow.table({"clicks": [[3, 1]], "seconds": [[0.5, 2.0]]})
    >>> features, weights = read_frames(config, {"user": frame}, {"user": {"clicks": "seconds"}})
    >>> features["user"]["clicks"].to_pylist(), weights["user"]["clicks"].to_pylist()
    ([[3, 1]], [[0.5, 2.0]])
    """
    return _read(config, features, weights, what, "weights", partial)


def _read(
    config: Any, features: Any, weights: Any, path: str, weights_path: str, partial: bool
) -> tuple[Any, Any]:
    if is_feature(config):
        return features, weights
    if isinstance(config, Mapping):
        if _stands_for(config, weights, weights_path):
            weights = _columns(_Frame(weights, weights_path), config, weights_path)
        if _stands_for(config, features, path):
            frame = _Frame(features, path)
            names = list(config)
            if partial and any(name in frame.known for name in names):
                names = [name for name in names if name in frame.known]
            return _columns(frame, names, path), _named(frame, weights, weights_path)
    given = _entries(config, features, path)
    weighed = _entries(config, weights, weights_path)
    for key, suffix, entry in entries_of(config, path):
        if is_feature(entry):
            continue
        one, weight = given.get(key), weighed.get(key)
        found = _read(entry, one, weight, path + suffix, weights_path + suffix, partial)
        if key in given:
            given[key] = found[0]
        if key in weighed:
            weighed[key] = found[1]
    return _like(features, given), _like(weights, weighed)


def _stands_for(config: Mapping[Any, Any], given: Any, path: str) -> bool:
    """Return whether a frame was given, which then stands for features that are not nested."""
    if isinstance(given, Mapping | None) or not is_frame(given):
        return False
    for key, entry in config.items():
        if not is_feature(entry):
            raise ShardcoreTypeError(
                f"{path} must be a dict, as it is configured, got {type(given).__name__}: a data "
                f"frame stands for a dict of features alone, and {path}[{key!r}] holds more; give "
                "one there"
            )
    return True


def _named(frame: _Frame, weights: Any, path: str) -> Any:
    """Return weights with the columns of a frame in place of their names."""
    if not isinstance(weights, Mapping):
        return weights
    return {
        key: frame.column(one, f"{path}[{key!r}]", f"names the column {one!r}")
        if isinstance(one, str)
        else one
        for key, one in weights.items()
    }


def _entries(config: Any, given: Any, path: str) -> dict[Any, Any]:
    if given is None or not same_kind(config, given):
        return {}
    return {key: entry for key, _, entry in entries_of(given, path)}


def _like(given: Any, entries: dict[Any, Any]) -> Any:
    """Return a container of these entries, itself where nothing in it is another."""
    if all(
        now is before
        for now, (*_, before) in zip(
            entries.values(), entries_of(given, "") if entries else (), strict=True
        )
    ):
        return given
    return with_entries(given, list(entries.values()))


def _listed(names: list[Any]) -> str:
    if not names:
        return "none at all"
    more = f", ... {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more
