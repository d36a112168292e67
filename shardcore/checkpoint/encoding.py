"""Element types of a checkpoint: which can be stored, under which name, and as which bytes.

Numbers are stored little-endian. Strings are stored as their bytes one after the other and int64
offsets into them, and are read back as object arrays, so that a forged item size allocates nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.dtypes import as_dtype
from shardcore.errors import ShardcoreTypeError

__all__ = [
    "StoredType",
    "decode_numbers",
    "decode_strings",
    "encode_numbers",
    "encode_strings",
    "named_type",
    "stored_type",
]

_CODES: Final = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32",
    "uint32": "U32", "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "complex64": "C64",
}  # fmt: skip
_ITEM_SIZES: Final = {
    "BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4,
    "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
_FIXED_STRING: Final = re.compile(r"([US])(0|[1-9][0-9]{0,8})")
# NumPy's item size is a 32-bit int, and a character of "U" takes four bytes of it.
_LONGEST: Final = {"U": (1 << 29) - 1, "S": (1 << 31) - 1}


@dataclass(frozen=True)
class StoredType:
    """How elements of one dtype are stored.

    Parameters
    ----------
    name : str
        NumPy's name for numbers ("float32"); "U5", "S3", "T" or "O" for strings.
    code : str or None
        Name of the type in a safetensors file; None for strings, which take two tensors.
    itemsize : int
        Bytes per element; 0 for strings, whose elements differ.
    """

    name: str
    code: str | None
    itemsize: int

    @property
    def is_string(self) -> bool:
        """Whether elements are strings or byte strings."""
        return self.code is None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in memory; bfloat16 needs ml_dtypes."""
        return np.dtype(np.dtypes.StringDType()) if self.name == "T" else as_dtype(self.name)

    @property
    def longest(self) -> int | None:
        """Most characters ("U") or bytes ("S") of an element, None where there is no limit."""
        return int(self.name[1:]) if self.name[0] in "US" and self.is_string else None


def stored_type(dtype: np.dtype[Any], argument: str) -> StoredType:
    """Return how `dtype` is stored, whatever its byte order.

    Raises
    ------
    ShardcoreTypeError
        If it cannot be stored.

    Examples
    --------
    >>> stored_type(np.dtype(">f4"), "w")
    StoredType(name='float32', code='F32', itemsize=4)
    >>> stored_type(np.dtype("U5"), "w").name
    'U5'
    """
    characters = {"U": dtype.itemsize // 4, "S": dtype.itemsize}
    name = f"{dtype.kind}{characters[dtype.kind]}" if dtype.kind in "US" else dtype.kind
    found = named_type(name if dtype.kind in "USTO" else dtype.name)
    if found is None:
        raise ShardcoreTypeError(
            f"{argument} has dtype {dtype}, which a checkpoint cannot hold: must be one of "
            f"{', '.join(_CODES)} or strings"
        )
    return found


def named_type(name: str) -> StoredType | None:
    """Return the type stored under `name`, or None where there is none.

    Examples
    --------
    >>> named_type("bfloat16")
    StoredType(name='bfloat16', code='BF16', itemsize=2)
    >>> named_type("U-1") is None
    True
    """
    if name in _CODES:
        return StoredType(name, _CODES[name], _ITEM_SIZES[_CODES[name]])
    if name in ("T", "O"):
        return StoredType(name, None, 0)
    match = _FIXED_STRING.fullmatch(name)
    if match is None or int(match[2]) > _LONGEST[match[1]]:
        return None
    return StoredType(name, None, 0)


def encode_numbers(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the little-endian bytes of `array` in C order, without a copy where it has them.

    Examples
    --------
    >>> encode_numbers(np.array([1, 258], dtype=">u2"))
    array([1, 0, 2, 1], dtype=uint8)
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.name == "bfloat16":  # no NumPy type: its bytes are ordered as a 16-bit integer's
        flat = flat.view(np.uint16)
    return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8)


def decode_numbers(
    data: NDArray[np.uint8], stored: StoredType, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the array of `shape` whose little-endian bytes are `data`.

    Raises
    ------
    ValueError
        If `data` cannot be elements of this type (only bool has such bytes).

    Examples
    --------
    >>> decode_numbers(np.array([1, 0, 2, 1], dtype=np.uint8), named_type("uint16"), (2,))
    array([  1, 258], dtype=uint16)
    """
    if stored.name == "bool" and data.size and data.max() > 1:
        raise ValueError(f"byte {int((data > 1).argmax())} of a bool tensor is {data.max()}")
    dtype = stored.dtype
    raw = np.dtype(np.uint16) if stored.name == "bfloat16" else dtype
    little = np.require(data, requirements=["A"]).view(raw.newbyteorder("<"))
    return little.astype(raw, copy=False).view(dtype).reshape(shape)


def encode_strings(array: NDArray[Any], stored: StoredType, argument: str) -> list[bytes]:
    r"""Return the bytes of every string of `array` in C order; text is UTF-8.

    Raises
    ------
    ShardcoreTypeError
        If an element is not a string.

    Examples
    --------
    >>> encode_strings(np.array(["a", "é"]), named_type("U1"), "names")
    [b'a', b'\xc3\xa9']
    """
    items: list[Any] = array.reshape(-1).tolist()
    if stored.name[0] == "S":
        return items
    encoded = []
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise ShardcoreTypeError(
                f"{argument} must hold strings only, found {type(item).__name__} at element {index}"
            )
        encoded.append(item.encode("utf-8", "surrogatepass"))
    return encoded


def decode_strings(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], stored: StoredType, shape: tuple[int, ...]
) -> NDArray[Any]:
    """Return the object array of strings whose bytes are ``data[offsets[i]:offsets[i + 1]]``.

    Raises
    ------
    ValueError
        If bytes are no UTF-8 or an element is longer than its type allows.

    Examples
    --------
    >>> text = np.frombuffer(b"abc", dtype=np.uint8)
    >>> decode_strings(text, np.array([0, 1, 3]), named_type("U2"), (2,))
    array(['a', 'bc'], dtype=object)
    """
    raw = data.tobytes()
    bounds: Sequence[int] = offsets.tolist()
    strings = np.empty(math.prod(shape), dtype=object)
    for index in range(strings.size):
        piece = raw[bounds[index] : bounds[index + 1]]
        item = piece if stored.name[0] == "S" else piece.decode("utf-8", "surrogatepass")
        if stored.longest is not None and len(item) > stored.longest:
            raise ValueError(f"a string of length {len(item)} in a tensor of dtype {stored.name}")
        strings[index] = item
    return strings.reshape(shape)
