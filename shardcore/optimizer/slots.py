"""Slots: the state of an optimizer beside the rows of a table, and its first values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.initializers.base import Initializer, derived_seed
from shardcore.initializers.constants import Constant, FromArray, Zeros
from shardcore.initializers.filling import fill
from shardcore.optimizer.hyperparameters import callable_name, check_hyper_parameter, is_number
from shardcore.validation.arrays import as_floats, read_array

__all__ = ["InitialValue", "SlotSpec", "described_value", "initial_value"]

InitialValue: TypeAlias = float | Initializer
"""A number, or what is asked for the values of rows; an array is the initializer `FromArray`."""


def initial_value(value: Any, argument: str) -> InitialValue:
    """Return the initial value of a slot: a float, or an initializer.

    Parameters
    ----------
    value : number, array of the slot's full shape, or callable
        A callable is an initializer ``init(rows, row_shape, dtype, seed)``, see
        `shardcore.initializers`. An array is not copied. Whether it has the slot's shape shows
        when there is a table.
    argument : str
        The name of the user's argument.

    Raises
    ------
    ShardcoreTypeError
        If it is none of these, or an array of something else than real numbers.
    ShardcoreValueError
        If a number is not finite as float32, or an array has another rank than 2.

    Examples
    --------
    >>> initial_value(1, "fill"), initial_value(Constant(0.5), "fill")
    (1.0, 0.5)
    >>> initial_value([[1.0], [2.0]], "fill")
    <rows of an array of shape (2, 1), dtype float64>
    """
    rule = f"{argument} must be a number, an array or an initializer"
    if isinstance(value, type):
        raise ShardcoreTypeError(
            f"{rule}, got the class {value.__name__}; write {value.__name__}()"
        )
    if isinstance(value, Zeros):
        return 0.0
    if isinstance(value, Constant):
        value = value.value
    if is_number(value):
        return check_hyper_parameter(value, argument)
    if callable(value) and not isinstance(value, FromArray):
        initializer: Initializer = value
        return initializer
    given = value.array if isinstance(value, FromArray) else value
    like_array = isinstance(given, list | tuple) or hasattr(given, "__array__")
    if not like_array and not hasattr(given, "__dlpack__"):
        raise ShardcoreTypeError(f"{rule}, got {value!r}")
    array = read_array(given, argument)
    as_floats(array[:0], argument) if array.ndim else None
    if array.ndim != 2:
        raise ShardcoreValueError(
            f"{argument} must have the slot's shape, (rows, dim) or (rows, 1), "
            f"got an array of shape {array.shape}"
        )
    return value if isinstance(value, FromArray) else FromArray(array)


def described_value(value: InitialValue) -> Any:
    """Return an initial value as JSON can hold it; an array by its shape, dtype and checksum.

    Examples
    --------
    >>> described_value(FromArray(np.zeros((2, 1), np.float32)))["array"]["shape"]
    [2, 1]
    """
    if isinstance(value, FromArray):
        array = value.array
        described = {"shape": list(array.shape), "dtype": array.dtype.name}
        return {"array": {**described, "blake2b": value.checksum}}
    if dataclasses.is_dataclass(value):
        return {"initializer": repr(value)}
    return {"callable": callable_name(value)} if callable(value) else value


@dataclass(frozen=True, eq=False, repr=False)
class SlotSpec:
    """One piece of optimizer state that a table keeps beside its rows.

    Parameters
    ----------
    name : str
        An identifier, unique within the optimizer, e.g. ``"accumulators"``.
    kind : {"element", "row"}
        A value per weight, or one value per row.
    dtype : dtype or "table", optional
        The type it is stored in, "table" being that of the table. None is the working dtype of the
        table: float64 for float64 tables, else float32. `Optimizer.update` gets and returns it in
        the working dtype always.
    fill : float, array or initializer, default 0.0
        The first values: a number, an array of the slot's full shape, which is not copied, or a
        callable ``init(rows, row_shape, dtype, seed)`` as tables have it, see
        `shardcore.initializers`. The callable is asked in blocks of rows, with the slot's storage
        dtype, and a seed that is the slot's own. Kept as a float or a callable.

    Raises
    ------
    ShardcoreTypeError
        If `dtype` is not a floating dtype, or `fill` none of the above.
    ShardcoreValueError
        If `name`, `kind` or `fill` break the rules above.

    Notes
    -----
    Two are equal if their parts are: initializers as they compare themselves, by identity where
    they cannot be hashed; arrays by shape, dtype and checksum.

    Examples
    --------
    >>> slot = SlotSpec("accumulators", "element", fill=0.1)
    >>> slot.shape(rows=1000, dim=64), slot.storage_dtype("float16")
    ((1000, 64), dtype('float32'))
    >>> SlotSpec("accumulators", "row").shape(rows=1000, dim=64)
    (1000, 1)
    """

    name: str
    kind: Literal["row", "element"]
    dtype: Any = None
    fill: Any = 0.0

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ShardcoreValueError(f"name of a slot must be an identifier, got {self.name!r}")
        if self.kind not in ("row", "element"):
            raise ShardcoreValueError(
                f"kind of slot {self.name!r} must be 'row' or 'element', got {self.kind!r}"
            )
        if not (self.dtype is None or (isinstance(self.dtype, str) and self.dtype == "table")):
            dtype = as_dtype(self.dtype, f"dtype of slot {self.name!r}")
            if dtype.kind != "f" and dtype.name != "bfloat16":
                raise ShardcoreTypeError(
                    f"dtype of slot {self.name!r} must be a floating dtype, got {dtype.name!r}"
                )
            object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "fill", initial_value(self.fill, f"fill of slot {self.name!r}"))

    def shape(self, rows: int, dim: int) -> tuple[int, int]:
        """Return the slot's shape beside a table of (rows, dim): (rows, dim) or (rows, 1)."""
        return (rows, dim if self.kind == "element" else 1)

    def storage_dtype(self, table_dtype: Any) -> np.dtype[Any]:
        """Return the dtype in which the slot of a table of `table_dtype` is stored."""
        if isinstance(self.dtype, str):  # "table"
            return as_dtype(table_dtype)
        if self.dtype is not None:
            return as_dtype(self.dtype)
        return working_dtype(as_dtype(table_dtype))

    @property
    def constant(self) -> float | None:
        """The number it starts from, or None where `fill` is an initializer."""
        return None if callable(self.fill) else self.fill

    def write_fill(
        self, out: NDArray[Any], global_rows: NDArray[np.int64] | range, seed: int
    ) -> None:
        """Write `fill` into the slot of some rows, in blocks where it is an initializer.

        Tables get their slots from `shardcore.optimizer.initial_slots`.

        Parameters
        ----------
        out : (n, dim) or (n, 1) array of the storage dtype, written
        global_rows : int64 array (n,), or range of length n
            The number of each row in the whole table.
        seed : int in [0, 2**64)
            Of the table.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If the initializer gives no such values; see `shardcore.initializers.fill`.
        """
        if not callable(self.fill):
            out[...] = self.fill
            return
        try:
            fill(out, self.fill, global_rows, derived_seed(seed, self.name))
        except ShardcoreError as error:
            error.add_note(f"in the initial values of slot {self.name!r}")
            raise

    def _key(self) -> tuple[object, ...]:
        return (self.name, self.kind, self.dtype, comparable(self.fill))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SlotSpec):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"SlotSpec(name={self.name!r}, kind={self.kind!r}, dtype={self.dtype!r}, "
            f"fill={shown(self.fill)})"
        )


def comparable(value: InitialValue) -> object:
    """Return what stands for an initial value in comparisons: itself, or its identity."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def shown(value: InitialValue) -> str:
    """Return an initial value in words, without an address in memory."""
    if callable(value) and not dataclasses.is_dataclass(value):
        return f"<{callable_name(value)}>"
    return repr(value)
