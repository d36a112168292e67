"""TensorFlow's tensors of bags as `Ragged` and `Sparse`, which share their memory.

TensorFlow is never imported from here: a caller with one of its objects has imported it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse

__all__ = ["is_of_tensorflow", "read_tensorflow"]

_RAGGED: Final = ("RaggedTensor", "RaggedTensorValue")
_SPARSE: Final = ("SparseTensor", "SparseTensorValue")


def is_of_tensorflow(leaf: Any) -> bool:
    """Return whether something is TensorFlow's ``RaggedTensor`` or ``SparseTensor``.

    Examples
    --------
    >>> is_of_tensorflow([[3, 1], []])
    False
    """
    kind = type(leaf)
    return kind.__name__ in _RAGGED + _SPARSE and kind.__module__.startswith("tensorflow.")


def read_tensorflow(
    leaf: Any, argument: str, rows_of: Callable[[NDArray[Any]], NDArray[Any]] | None = None
) -> Ragged | Sparse:
    """Return a ``RaggedTensor`` as a `Ragged`, a ``SparseTensor`` as a `Sparse`.

    Parameters
    ----------
    leaf : RaggedTensor, SparseTensor, or the ``Value`` of one
        A ragged tensor must have rank 2: its rows are the bags.
    argument : str
        For messages: "ids" or "weights".
    rows_of : callable, optional
        Makes rows of the values: of strings, by a hash.

    Raises
    ------
    ShardcoreTypeError
        If its values are not known yet, inside a ``tf.function``.
    ShardcoreValueError
        If a ragged tensor has another rank, or a part breaks a rule.
    """
    name = type(leaf).__name__
    if name in _SPARSE:
        parts: tuple[Any, ...] = (leaf.indices, leaf.values, leaf.dense_shape)
    elif len(leaf.shape) != 2:
        raise ShardcoreValueError(
            f"{argument} must be a RaggedTensor of rank 2, whose rows are the bags, got shape "
            f"{tuple(leaf.shape)}"
        )
    else:
        parts = (leaf.values, leaf.row_splits)
    if not name.endswith("Value") and not all(hasattr(part, "numpy") for part in parts):
        raise ShardcoreTypeError(
            f"{argument} must have values, got a {name} of a tf.function: look up outside of it, "
            "or by shardcore.tf.EmbeddingBags"
        )
    arrays = [np.asarray(part) for part in parts]
    at = 1 if name in _SPARSE else 0
    if rows_of is not None:
        arrays[at] = rows_of(arrays[at])
    if name in _SPARSE:
        indices, values, shape = arrays
        return Sparse(indices, values, tuple(int(size) for size in shape))
    return Ragged(*arrays)
