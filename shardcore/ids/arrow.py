"""Columns in Arrow's memory layout, of pyarrow, polars, pandas and others, turned into a `Ragged`.

They are read through pyarrow, by the protocol of ``__arrow_c_array__`` and ``__arrow_c_stream__``,
where the object is not pyarrow's own. pyarrow is imported only when there is such a column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, UnavailableError
from shardcore.ids.ragged import Ragged
from shardcore.ids.row_splits import row_splits_from_lengths
from shardcore.validation.arrays import as_floats, as_ids

__all__ = [
    "Nulls",
    "Rows",
    "arrow_array",
    "has_capsule",
    "is_arrow_column",
    "is_lazy",
    "owner_of",
    "pyarrow_for",
    "read_arrow_column",
    "read_arrow_weights",
]

Nulls: TypeAlias = Literal["raise", "drop"] | int

Rows: TypeAlias = Callable[[Any, str, NDArray[np.bool_] | None], NDArray[np.int64]]
"""From a pyarrow array, its name and which of it are no nulls (None: all), to the rows of these."""

_CAPSULES: Final = ("__arrow_c_stream__", "__arrow_c_array__")


def owner_of(value: object) -> str:
    """Return the package that the type of a value comes from, such as "polars"."""
    return type(value).__module__.partition(".")[0]


def has_capsule(value: object) -> bool:
    """Return whether an object hands out its data by Arrow's protocol."""
    return any(hasattr(value, name) for name in _CAPSULES)


def is_arrow_column(leaf: object) -> bool:
    """Return whether ids come as a column to be read here.

    One whose dtype is NumPy's, as of a pandas Series of int64, is an array like any other. So is a
    data frame of two axes that is given for one feature.
    """
    if owner_of(leaf) == "pyarrow":
        return True
    dtype = getattr(leaf, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return False
    if len(getattr(leaf, "shape", ())) > 1:
        return False
    return has_capsule(leaf) or _is_older_series(leaf)


def is_lazy(value: object) -> bool:
    """Return whether something is a LazyFrame of polars, which has no values yet."""
    return owner_of(value) == "polars" and type(value).__name__ == "LazyFrame"


def _is_older_series(leaf: object) -> bool:
    return owner_of(leaf) == "pandas" and type(leaf).__name__ == "Series"  # before pandas 3


def pyarrow_for(given: object) -> Any:
    """Return the module pyarrow, to read an object with.

    Raises
    ------
    UnavailableError
        If it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped, import-not-found, unused-ignore]  # an extra
    except ImportError as error:
        raise UnavailableError(
            f"a {owner_of(given)} {type(given).__name__} is read through the package pyarrow, "
            "which is not installed; pip install pyarrow"
        ) from error
    return pyarrow


def arrow_array(leaf: Any, forms: str) -> Any:
    """Return a column as one array of pyarrow, not copied if it is one already.

    Parameters
    ----------
    leaf : object
        For which `is_arrow_column` is true.
    forms : str
        The forms that it may have, for a message.

    Raises
    ------
    ShardcoreTypeError
        If pyarrow cannot read it.
    UnavailableError
        If pyarrow is not installed.

    Examples
    --------
    >>> import pyarrow
    >>> len(arrow_array(pyarrow.chunked_array([[3], [1]]), "a column"))
    2
    """
    return _one_array(pyarrow_for(leaf), leaf, forms)


def read_arrow_column(
    leaf: Any, nulls: Nulls | None, forms: str, rows_of: Rows | None = None
) -> Ragged:
    """Return the bags of a column: a list per bag, or an integer.

    Parameters
    ----------
    leaf : object
        For which `is_arrow_column` is true.
    nulls : {"raise", "drop"}, int or None
        What a null id stands for: an error, nothing, or this row. A null list is an error, or else
        an empty bag. None is "raise", for callers who have no such setting.
    forms : str
        The forms that ids may have, for a message.
    rows_of : callable, optional
        Gives the rows of a column's values, which are integers or what else it takes. None: the
        values are ids as they are.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it does not hold integers, or a null that is refused.
    UnavailableError
        If pyarrow is needed and is not installed.

    Examples
    --------
    >>> import pyarrow
    >>> read_arrow_column(pyarrow.array([[3, None], None]), "drop", "")
    Ragged([[3], []], dtype=int64)
    """
    try:
        pyarrow = pyarrow_for(leaf)
    except UnavailableError:
        if (
            not rows_of
            and hasattr(leaf, "__array__")
            and (dense := np.asarray(leaf)).dtype.kind in "iu"
        ):
            return Ragged.from_dense(as_ids(dense, "ids"))
        raise
    array = _one_array(pyarrow, leaf, forms)
    kind = array.type
    if not pyarrow.types.is_nested(kind):
        numbers, kept = _read_numbers(pyarrow, array, "ids", nulls, rows_of)
        if kept is None:
            return Ragged.from_dense(numbers)
        return Ragged(numbers, row_splits_from_lengths(kept.astype(np.int64)))
    if not _is_list(pyarrow, array):
        raise ShardcoreTypeError(f"a pyarrow array must be a list of integers, got {kind}")
    row_splits, children = _bags_of(pyarrow, array, "bags", nulls)
    numbers, kept = _read_numbers(pyarrow, children, "values", nulls, rows_of)
    if kept is not None:
        kept_before = np.zeros(kept.size + 1, np.int64)
        np.cumsum(kept, out=kept_before[1:])
        row_splits = kept_before[row_splits]
    return Ragged(numbers, row_splits)


def read_arrow_weights(leaf: Any) -> Ragged | NDArray[Any]:
    """Return a column of weights: lists as a `Ragged` of floats, numbers as an array.

    Floats that lie in one piece are not copied.

    Parameters
    ----------
    leaf : object
        For which `is_arrow_column` is true.

    Raises
    ------
    ShardcoreTypeError
        If it holds no real numbers.
    ShardcoreValueError
        If it holds a null, which stands for no weight.
    UnavailableError
        If pyarrow is not installed.

    Examples
    --------
    >>> import pyarrow
    >>> read_arrow_weights(pyarrow.array([[0.5, 2.0], []]))
    Ragged([[0.5, 2.0], []], dtype=float64)
    """
    pyarrow = pyarrow_for(leaf)
    array = _one_array(pyarrow, leaf, "numbers, or lists of numbers", "weights")
    kind = array.type
    if not pyarrow.types.is_nested(kind):
        return _read_floats(pyarrow, array)
    if not _is_list(pyarrow, array):
        raise ShardcoreTypeError(f"a column of weights must hold lists of numbers, got {kind}")
    row_splits, children = _bags_of(pyarrow, array, "bags of weights", None)
    return Ragged(_read_floats(pyarrow, children), row_splits)


def _read_floats(pyarrow: Any, array: Any) -> NDArray[Any]:
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        raise _null_error("weights", int(np.argmin(valid)), None)
    if not len(array):
        return np.empty(0)
    if not (pyarrow.types.is_floating(array.type) or pyarrow.types.is_integer(array.type)):
        raise ShardcoreTypeError(f"weights must be real numbers, got pyarrow {array.type}")
    return as_floats(array.to_numpy(zero_copy_only=False), "weights")


def _is_list(pyarrow: Any, array: Any) -> bool:
    return isinstance(
        array, pyarrow.ListArray | pyarrow.LargeListArray | pyarrow.FixedSizeListArray
    )


def _bags_of(
    pyarrow: Any, array: Any, name: str, nulls: Nulls | None
) -> tuple[NDArray[np.int64], Any]:
    """Return the row_splits of a column of lists, and their values."""
    if array.null_count:
        if nulls is None or nulls == "raise":
            at = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise _null_error(name, at, nulls)
        # Below a null list there may be values: flatten leaves them out.
        lengths = array.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        return row_splits_from_lengths(lengths), array.flatten()
    if isinstance(array, pyarrow.FixedSizeListArray):
        lengths = np.full(len(array), array.type.list_size, dtype=np.int64)
        return row_splits_from_lengths(lengths), array.flatten()
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    row_splits = offsets - offsets[0]
    return row_splits, array.values.slice(offsets[0], row_splits[-1])


def _one_array(pyarrow: Any, leaf: Any, forms: str, argument: str = "ids") -> Any:
    """Return a column as one array of pyarrow, not copied if it is one already."""
    array = leaf
    if owner_of(leaf) != "pyarrow":
        try:
            stream = hasattr(leaf, "__arrow_c_stream__")
            array = pyarrow.chunked_array(leaf) if stream else pyarrow.array(leaf)
        except Exception as error:  # whatever the owner raises: it is the reason
            raise ShardcoreTypeError(
                f"a {owner_of(leaf)} {type(leaf).__name__} cannot be read as Arrow: "
                f"{type(error).__name__}: {error}"
            ) from error
    if isinstance(array, pyarrow.ChunkedArray):
        filled = [chunk for chunk in array.chunks if len(chunk)]
        if len(filled) < array.num_chunks:  # an imported one of no strings breaks pyarrow's join
            array = pyarrow.chunked_array(filled, array.type)
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if not isinstance(array, pyarrow.Array):
        raise ShardcoreTypeError(f"{argument} must be {forms}, got pyarrow {type(leaf).__name__}")
    return array


def _read_numbers(
    pyarrow: Any, array: Any, name: str, nulls: Nulls | None, rows_of: Rows | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return ids, and which of the values given they are; None: all."""
    kind = array.type
    if pyarrow.types.is_dictionary(kind) and (not rows_of or array.dictionary.null_count):
        array = array.dictionary_decode()
    if not array.null_count:
        if rows_of:
            return rows_of(array, name, None), None
        numbers: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        if numbers.dtype == object and len(numbers):
            raise ShardcoreTypeError(f"{name} must be integers, got pyarrow {kind}")
        return as_ids(numbers, name), None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if nulls is None or nulls == "raise":
        raise _null_error(name, int(np.argmin(valid)), nulls)
    if pyarrow.types.is_null(array.type):  # nothing but nulls
        array = array.cast(pyarrow.string() if rows_of else pyarrow.int64())
    if rows_of:
        filled: NDArray[Any] = rows_of(array, name, valid)
    elif not pyarrow.types.is_integer(array.type):
        raise ShardcoreTypeError(f"{name} must be integers, got pyarrow {kind}")
    else:
        filled = as_ids(array.fill_null(0).to_numpy(), name)
    if nulls == "drop":
        return filled[valid], valid
    return np.where(valid, filled, np.int64(nulls)), None  # int64: the row may fit no less


def _null_error(name: str, at: int, nulls: Nulls | None) -> ShardcoreValueError:
    hint = "" if nulls is None else "; FeatureConfig(nulls=...) has other policies"
    return ShardcoreValueError(f"{name} must not be null, got a null at position {at}{hint}")
