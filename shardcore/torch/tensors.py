"""Tensors as NumPy arrays and back, without a copy where both can share the memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown

__all__ = ["DTYPES", "as_array", "as_gradient", "as_tensor", "check_place", "numpy_dtype"]

DTYPES: Final = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""The element types of tables."""


def numpy_dtype(dtype: Any, argument: str = "dtype") -> np.dtype[Any]:
    """Return the table's dtype for one of torch's.

    Raises
    ------
    ShardcoreTypeError
        If it is none of the four.
    UnavailableError
        If it is bfloat16, and ml_dtypes is not installed.

    Examples
    --------
    >>> numpy_dtype(torch.float16)
    dtype('float16')
    """
    name = DTYPES.get(dtype)
    if name is None:
        allowed = ", ".join(map(str, DTYPES))
        raise ShardcoreTypeError(f"{argument} must be one of {allowed}, got {shown(dtype)}")
    return as_dtype(name, argument)


def check_place(device: Any) -> None:
    """Raise unless a device is None or the CPU.

    Examples
    --------
    >>> check_place(torch.device("cpu"))
    """
    if device is not None and torch.device(device).type != "cpu":
        raise ShardcoreValueError(
            f"device must be None or 'cpu', got {str(device)!r}: tables are where backend= has them"
        )


def as_array(tensor: Any, argument: str) -> NDArray[Any]:
    """Return a tensor's values as an array that shares its memory.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it is no tensor, or not on the CPU.

    Examples
    --------
    >>> as_array(torch.tensor([1, 2]), "input")
    array([1, 2])
    """
    if type(tensor) is torch.Tensor and not tensor.requires_grad:
        try:
            plain: NDArray[Any] = tensor.numpy()
        except (RuntimeError, TypeError):  # bfloat16, elsewhere, or without values
            pass
        else:
            return plain
    if not isinstance(tensor, torch.Tensor):
        raise ShardcoreTypeError(f"{argument} must be a tensor, got {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise ShardcoreValueError(
            f"{argument} must be on the CPU, got a tensor on {str(tensor.device)!r}"
        )
    own = tensor.detach()
    short = own.dtype == torch.bfloat16
    try:
        array: NDArray[Any] = (own.contiguous().view(torch.int16) if short else own).numpy()
    except (RuntimeError, TypeError) as error:  # a stand-in, or of a layout that is no array
        raise ShardcoreTypeError(
            f"{argument} must have values that NumPy can read, got a tensor without, as "
            "torch.func's vmap and grad have, or of a sparse layout"
        ) from error
    return array.view(as_dtype("bfloat16")) if short else array


def as_gradient(tensor: Any) -> NDArray[Any]:
    """Return a gradient for an engine; the short types, which it would widen, as float32.

    Examples
    --------
    >>> as_gradient(torch.ones(1, dtype=torch.bfloat16))
    array([1.], dtype=float32)
    """
    wide = tensor.detach() if tensor.requires_grad else tensor
    if wide.dtype in (torch.float16, torch.bfloat16):
        wide = wide.float()
    array: NDArray[Any] = wide.numpy()
    return array


def as_tensor(array: Any, dtype: Any = None) -> Any:
    """Return what an engine gave as a tensor, which shares its memory where that can be.

    Parameters
    ----------
    array : array
        Of a table dtype.
    dtype : torch.dtype, optional
        That of the tensor. None: the array's.

    Examples
    --------
    >>> as_tensor(np.ones(2, np.float32)), as_tensor(np.ones(2, np.float32), torch.float16)
    (tensor([1., 1.]), tensor([1., 1.], dtype=torch.float16))
    """
    if not isinstance(array, np.ndarray):  # of a backend with arrays of its own
        array = np.asarray(array)
    # NumPy has no bfloat16 itself; to ask every dtype for its name takes longer than the rest.
    if array.dtype.isbuiltin != 1 and array.dtype.name == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    # One that has the dtype is not asked for it: the call would let the GIL go.
    return tensor if dtype is None or tensor.dtype == dtype else tensor.to(dtype)
