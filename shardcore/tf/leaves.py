"""One feature's ids or weights as the plain tensors that a call of Python inside a graph takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse

__all__ = ["Leaf", "read_ids", "read_weights"]

_WHOLE: Final = {tf.float32: 1 << 24, tf.float64: 1 << 53}  # below it, every integer is its own


@dataclass(frozen=True, eq=False)
class Leaf:
    """The tensors of one feature, and how they are put together again as arrays.

    Attributes
    ----------
    path : str
        Its place in the structure.
    kind : {"none", "dense", "ragged", "sparse"}
    tensors : tuple of tf.Tensor
        What it consists of.
    values : int
        Which of them holds the ids, or the weights.
    batch : list or None
        The axes of the batch, None where one is not known yet; None if their number is not.
    """

    path: str
    kind: Literal["none", "dense", "ragged", "sparse"]
    tensors: tuple[Any, ...]
    values: int = 0
    batch: list[int | None] | None = None

    def ids(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Return the arrays of its tensors as ids, in a form that an engine takes."""
        held = list(arrays)
        held[self.values] = _integers(held[self.values], self.path)
        if self.kind == "ragged":
            return tuple(held)
        return Sparse(*held) if self.kind == "sparse" else held[0]

    def weights(self, arrays: Sequence[NDArray[Any]]) -> Any:
        """Return the arrays of its tensors as weights, in a form that an engine takes."""
        if self.kind == "none":
            return None
        if self.kind == "ragged":
            return Ragged(*arrays)
        return Sparse(*arrays) if self.kind == "sparse" else arrays[0]


def _integers(array: NDArray[Any], path: str) -> NDArray[Any]:
    """Return ids that came as floats as what they are; others as they came."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore"):  # NaN: no integer is equal to it
        ids = array.astype(np.int64)
    differ = ids != array
    if differ.any():
        at = int(np.argmax(differ))
        raise ShardcoreValueError(
            f"{path}: ids must be integers, got {array.flat[at]} at position {at}"
        )
    return ids


def read_ids(given: Any, path: str, rows: int, hashed: bool = False) -> Leaf:
    """Return the tensors of a feature.

    Keras makes float32 of ids unless it is told otherwise, by ``keras.Input(dtype="int64")``; they
    are taken where that has changed none.

    Parameters
    ----------
    given : tf.Tensor, RaggedTensor, SparseTensor, or what converts to a tensor
    path : str
        Its place in the structure; begins every message.
    rows : int
        Of its table.
    hashed : bool
        Whether its values are hashed to rows, and so may be strings.

    Raises
    ------
    ShardcoreTypeError
        If it holds neither integers nor strings that are hashed, or floats too short for the rows.
    ShardcoreValueError
        If a ragged tensor has not rank 2.

    Examples
    --------
    >>> read_ids(tf.ragged.constant([[3, 1], []]), "features", 10).kind
    'ragged'
    """
    leaf = _read(given, path)
    dtype = leaf.tensors[leaf.values].dtype
    if hashed and dtype == tf.string:
        if leaf.kind == "sparse":
            raise ShardcoreTypeError(
                f"{path}: strings must be a tensor or a RaggedTensor, got a SparseTensor: give "
                "tf.RaggedTensor.from_sparse(...) of it"
            )
        return leaf
    if not dtype.is_integer and rows > _WHOLE.get(dtype, 0):
        hint = f", which cannot count {rows} rows: give keras.Input(dtype='int64')"
        raise ShardcoreTypeError(
            f"{path}: ids must be integers, got {dtype.name}{hint if dtype.is_floating else ''}"
        )
    return leaf


def read_weights(given: Any, path: str) -> Leaf:
    """Return the tensors of a feature's weights; of None, none.

    Examples
    --------
    >>> read_weights(None, "weights").tensors
    ()
    """
    return Leaf(path, "none", ()) if given is None else _read(given, path)


def _read(given: Any, path: str) -> Leaf:
    if isinstance(given, tf.RaggedTensor):
        if given.shape.rank != 2:
            raise ShardcoreValueError(
                f"{path}: a RaggedTensor must have rank 2, its rows are the bags, got shape "
                f"{given.shape}"
            )
        return Leaf(path, "ragged", (given.values, given.row_splits), 0, given.shape.as_list()[:1])
    if isinstance(given, tf.SparseTensor):
        rank = given.shape.rank
        batch = None if rank is None else given.shape.as_list()[:-1]
        return Leaf(path, "sparse", (given.indices, given.values, given.dense_shape), 1, batch)
    try:
        tensor = tf.convert_to_tensor(given)
    except (TypeError, ValueError) as error:
        raise ShardcoreTypeError(
            f"{path} must be a tensor, a RaggedTensor or a SparseTensor, got {type(given).__name__}"
        ) from error
    shape = None if tensor.shape.rank is None else tensor.shape.as_list()
    return Leaf(
        path, "dense", (tensor,), 0, shape if shape is None or len(shape) < 2 else shape[:-1]
    )
