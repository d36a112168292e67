"""An update in C: its address and its context, however it was compiled.

The signature is that of ``shardcore_update.h`` in `get_include`; ``shardcore_update.pxd`` beside it
is the same for Cython.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardcore._core.constants import UPDATE_CAPSULES, UPDATE_VERSION
from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError

__all__ = ["UpdateFunction", "get_include", "update_prototype"]

_CAPSULES: Final[Mapping[str, np.dtype[Any]]] = {
    capsule: np.dtype(dtype) for dtype, capsule in UPDATE_CAPSULES.items()
}
_ANY_CAPSULE: Final = "shardcore.update_rows."  # of whichever version

# Prototypes of our own: the attributes of ctypes.pythonapi are shared by the whole process.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


_capsule_context = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(
    ("PyCapsule_GetContext", ctypes.pythonapi)
)


def get_include() -> str:
    """Return the folder of ``shardcore_update.h`` and ``shardcore_update.pxd``.

    For C the compiler's ``-I``; for Cython also its ``include_path``.

    Examples
    --------
    >>> sorted(path.name for path in Path(get_include()).glob("shardcore_update.*"))
    ['shardcore_update.h', 'shardcore_update.pxd']
    """
    return str(Path(__file__).with_name("include"))


def _argument_types(dtype: Any) -> tuple[Any, ...]:
    """Return SHARDCORE_UPDATE_PARAMETERS of a working dtype, or raise if it is none."""
    value_types = {"float32": ctypes.c_float, "float64": ctypes.c_double}
    resolved = as_dtype(dtype)
    if resolved.name not in value_types:
        raise ShardcoreTypeError(
            f"dtype of a compiled update must be float32 or float64, got {resolved.name!r}"
        )
    value = ctypes.POINTER(value_types[resolved.name])
    return (
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.POINTER(value),
        ctypes.POINTER(ctypes.POINTER(value)),
        value,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_double),
        ctypes.c_int64,
        ctypes.c_void_p,
    )


def update_prototype(dtype: Any) -> Any:
    """Return the ctypes function type of a compiled update, to make one of a Python function.

    Parameters
    ----------
    dtype : "float32" or "float64"
        The working dtype, V in ``shardcore_update.h``.

    Raises
    ------
    ShardcoreTypeError
        If it is another dtype.

    Examples
    --------
    >>> callback = update_prototype("float32")(lambda *arguments: None)
    >>> len(callback.argtypes), callback.argtypes[-1]
    (9, <class 'ctypes.c_void_p'>)
    """
    return ctypes.CFUNCTYPE(None, *_argument_types(dtype))


@dataclass(frozen=True)
class UpdateFunction:
    """The address of a compiled update, and what must stay alive as long as it is in use.

    Made by `from_capsule`, `from_ctypes` or `from_address`. Two are equal if their addresses and
    contexts are.

    Parameters
    ----------
    address : int
        Where the function is, not 0.
    owner : object
        The capsule, library or callback that keeps it, and what the context points to, there.
    dtype : dtype, optional
        The working dtype it is compiled for, where that is known.
    context : int, default 0
        The address that is handed to every call, of numbers that the function needs besides
        ``hyper``; 0 for none.
    row_by_row : bool, default False
        Whether it may be called for one row at a time, with the caller's own gradient where a row
        has but one: its zeros have any sign, those of a sum are never negative. Faster on some
        processors for a function that does as much for each row in a call as for a single one.

    Raises
    ------
    ShardcoreValueError
        If the address is not an integer > 0, or the context none >= 0.

    Examples
    --------
    A callback written in Python, to try the contract out; it holds the GIL, so it is not fast:

    >>> def halve(count, dim, rows, slots, gradients, row_ids, hyper, step, context):
    ...     for row in range(count):
    ...         for column in range(dim):
    ...             rows[row][column] -= hyper[0] * gradients[row * dim + column]
    >>> function = UpdateFunction.from_ctypes(update_prototype("float32")(halve))
    >>> rows = np.ones((1, 2), np.float32)
    >>> grad = np.array([[1, 2]], np.float32)
    >>> function.run(grad, rows, [], hyper=(0.5,), step=1, row_ids=np.array([7]))
    >>> rows
    array([[0.5, 0. ]], dtype=float32)
    """

    address: int
    owner: object = dataclasses.field(compare=False, repr=False)
    dtype: np.dtype[Any] | None = dataclasses.field(default=None, compare=False)
    context: int = 0
    row_by_row: bool = dataclasses.field(default=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("address", 1), ("context", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ShardcoreValueError(
                    f"{name} of a compiled update must be an integer "
                    f"{'> 0' if least else '>= 0'}, got {value!r}"
                )

    @classmethod
    def from_capsule(cls, capsule: object) -> UpdateFunction:
        """Take the function out of a PyCapsule, whose name says the dtype, and its context.

        Raises
        ------
        ShardcoreTypeError
            If it is no capsule.
        ShardcoreValueError
            If it has another name than the two of ``shardcore_update.h``: another version's, say.
        """
        if type(capsule).__name__ != "PyCapsule":
            raise ShardcoreTypeError(f"capsule must be a PyCapsule, got {capsule!r}")
        raw = _capsule_name(capsule)
        name = None if raw is None else raw.decode(errors="replace")
        if name is None or name not in _CAPSULES:
            allowed = " or ".join(map(repr, _CAPSULES))
            advice = ""
            if name is not None and name.startswith(_ANY_CAPSULE):
                advice = (
                    ", a function for another version of shardcore_update.h than "
                    f"{UPDATE_VERSION}: compile it against the one in "
                    "shardcore.optimizer.get_include()"
                )
            raise ShardcoreValueError(f"capsule must be named {allowed}, got {name!r}{advice}")
        address = _capsule_pointer(capsule, raw)
        return cls(address, capsule, _CAPSULES[name], _capsule_context(capsule) or 0)

    @classmethod
    def from_ctypes(cls, function: Any, dtype: Any = None, context: int = 0) -> UpdateFunction:
        """Take a ctypes function: a callback, or one of a loaded library.

        Parameters
        ----------
        function : ctypes function
        dtype : "float32" or "float64", optional
            The working dtype; known without if the function was made by `update_prototype`.
        context : int, default 0
            See the class; what it points to must live as long as the function does.

        Raises
        ------
        ShardcoreTypeError
            If it is no ctypes function, or `dtype` is another than its prototype's.
        """
        if not isinstance(function, ctypes._CFuncPtr):  # type: ignore[attr-defined]  # untyped there
            raise ShardcoreTypeError(f"function must be a ctypes function, got {function!r}")
        given = None if dtype is None else as_dtype(dtype)
        if given is not None:
            _argument_types(given)
        declared, known = tuple(function.argtypes or ()), given
        for candidate in _CAPSULES.values():
            if declared == _argument_types(candidate):
                known = candidate
        if given is not None and given != known:
            raise ShardcoreTypeError(
                f"dtype must be {known}, for which the function is declared, got {given}"
            )
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return cls(address, function, known, context)

    @classmethod
    def from_address(cls, address: int, owner: object, context: int = 0) -> UpdateFunction:
        """Take a bare address, e.g. ``from_address(f.address, f)`` for ``f`` of ``numba.cfunc``."""
        return cls(address, owner, context=context)

    def address_for(self, dtype: Any) -> int:
        """Return the address for tables whose working dtype is `dtype`.

        Raises
        ------
        ShardcoreTypeError
            If the function is known to be compiled for another one.
        """
        wanted = as_dtype(dtype)
        if self.dtype is not None and self.dtype != wanted:
            raise ShardcoreTypeError(
                f"the compiled update works on {self.dtype.name}, the table on {wanted.name}"
            )
        return self.address

    def run(
        self,
        grad: np.ndarray[Any, Any],
        rows: np.ndarray[Any, Any],
        slots: Sequence[np.ndarray[Any, Any]],
        hyper: Sequence[float],
        step: int,
        row_ids: np.ndarray[Any, Any],
    ) -> None:
        """Run the function over a block of arrays, in place; for tests of an optimizer.

        Tables are updated without this: a backend calls the address itself.

        Parameters
        ----------
        grad : (n, dim) array of float32 or float64
            The summed gradients.
        rows : (n, dim) array of the same dtype
            Updated in place.
        slots : sequence of (n, dim) or (n, 1) arrays of the same dtype
            In the order of `Optimizer.slots`; updated in place.
        hyper : sequence of float
        step : int
        row_ids : (n,) array of int64

        Raises
        ------
        ShardcoreTypeError
            If a dtype is not the function's.
        ShardcoreValueError
            If a shape differs from the above, or an array is not C-contiguous and writeable.
        """
        if rows.ndim != 2:
            raise ShardcoreValueError(f"rows must have shape (n, dim), got {rows.shape}")
        count, dim = rows.shape
        _argument_types(rows.dtype)
        address = self.address_for(rows.dtype)
        named = {"grad": grad, "rows": rows, **{f"slots[{k}]": s for k, s in enumerate(slots)}}
        for name, array in named.items():
            widths = (1, dim) if name.startswith("slots") else (dim,)
            if array.dtype != rows.dtype:
                raise ShardcoreTypeError(
                    f"{name} must have the dtype of rows, {rows.dtype.name}, got {array.dtype.name}"
                )
            if array.ndim != 2 or array.shape[0] != count or array.shape[1] not in widths:
                allowed = " or ".join(str((count, width)) for width in widths)
                raise ShardcoreValueError(f"{name} must have shape {allowed}, got {array.shape}")
            if not array.flags.c_contiguous or not (array.flags.writeable or name == "grad"):
                raise ShardcoreValueError(f"{name} must be C-contiguous and writeable")
        if row_ids.shape != (count,) or row_ids.dtype != np.int64 or not row_ids.flags.c_contiguous:
            raise ShardcoreValueError(
                f"row_ids must be a contiguous int64 array of shape ({count},), "
                f"got {row_ids.dtype.name} {row_ids.shape}"
            )
        tables = [_row_addresses(array) for array in (rows, *slots)]
        slot_tables = np.array([table.ctypes.data for table in tables[1:]], np.uintp)
        values = np.array(hyper, np.float64)
        arrays = (tables[0], slot_tables, grad, row_ids, values)
        pointers = [
            ctypes.cast(array.ctypes.data, kind)
            for array, kind in zip(arrays, _argument_types(rows.dtype)[2:7], strict=True)
        ]
        update_prototype(rows.dtype)(address)(count, dim, *pointers, step, self.context)


def _row_addresses(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the address of each row of a 2-D array."""
    offsets = np.arange(array.shape[0], dtype=np.uintp) * np.uintp(array.strides[0])
    return offsets + np.uintp(array.ctypes.data)
