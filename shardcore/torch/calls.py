"""The forms in which torch's modules are called: ids of one or two axes, offsets, nested."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.row_splits import first_descent, row_splits_from_offsets
from shardcore.torch.tensors import as_array
from shardcore.validation import outside, place_in

__all__ = [
    "Bags",
    "check_inside",
    "ids_of",
    "jagged_parts",
    "plain_ids",
    "plain_leaf",
    "read_bags",
    "renamed",
    "row_splits_of",
]

_IDS = (torch.int64, torch.int32)


class Bags(NamedTuple):
    """Ids in bags, as they were given.

    Attributes
    ----------
    ids : ndarray of int, shape (ids,) or (bags, width)
    row_splits : ndarray of int64, shape (bags + 1,), or None
        None for ids of two axes, whose rows are the bags.
    weights : tensor or None
        Shaped like the ids.
    """

    ids: NDArray[Any]
    row_splits: NDArray[np.int64] | None
    weights: Any

    @property
    def leaf(self) -> Any:
        """What an engine is given for them."""
        return self.ids if self.row_splits is None else (self.ids, self.row_splits)

    def in_one_axis(self) -> tuple[NDArray[Any], NDArray[np.int64], Any]:
        """Return the ids in one axis, their row splits, and the weights beside them."""
        if self.row_splits is not None:
            return self.ids, self.row_splits, self.weights
        bags, width = self.ids.shape
        weights = None if self.weights is None else self.weights.reshape(-1)
        return self.ids.reshape(-1), np.arange(bags + 1, dtype=np.int64) * width, weights

    def without(self, row: int) -> Bags:
        """Return the bags without one row's ids, and their weights."""
        kept = self.ids != row
        if kept.all():
            return self
        ids, splits, weights = self.in_one_axis()
        kept = kept.reshape(-1)
        before = np.zeros(kept.size + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        if weights is not None:
            weights = weights[torch.from_numpy(kept)]
        return Bags(ids[kept], before[splits], weights)


def ids_of(tensor: Any, argument: str) -> NDArray[Any]:
    """Return ids as an array that shares their memory.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they are no tensor of int32 or int64 on the CPU.

    Examples
    --------
    >>> ids_of(torch.tensor([3, 1]), "input")
    array([3, 1])
    """
    ids = as_array(tensor, argument)
    if tensor.dtype not in _IDS:
        raise ShardcoreTypeError(f"{argument} must be int64 or int32, got {tensor.dtype}")
    return ids


def row_splits_of(offsets: Any, ids: int, include_last: bool, of: str) -> NDArray[np.int64]:
    """Return the row splits that offsets are: where bags begin, and where the last one ends.

    Parameters
    ----------
    offsets : tensor
    ids : int
        How many ids the bags hold.
    include_last : bool
        Whether the last offset is the number of ids already.
    of : str
        What a message calls the ids.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they break a rule.

    Examples
    --------
    >>> row_splits_of(torch.tensor([0, 2]), 3, include_last=False, of="input")
    array([0, 2, 3])
    """
    begins = ids_of(offsets, "offsets")
    right = row_splits_from_offsets(begins, ids, include_last)
    if right is not None:
        return right
    if begins.ndim != 1:
        raise ShardcoreValueError(f"offsets must be of rank 1, got shape {begins.shape}")
    if include_last:
        if begins.size == 0 or begins[-1] != ids:
            last = "none" if begins.size == 0 else begins[-1]
            raise ShardcoreValueError(
                f"offsets must end with the number of ids in {of}, {ids}, got {last}"
            )
        splits: NDArray[np.int64] = np.ascontiguousarray(begins, np.int64)
    else:
        splits = np.empty(begins.size + 1, np.int64)
        splits[:-1] = begins
        splits[-1] = ids
        if begins.size and begins[-1] > ids:
            raise ShardcoreValueError(
                f"offsets[{begins.size - 1}] must be at most the number of ids in {of}, {ids}, "
                f"got {begins[-1]}"
            )
    if splits[0] != 0:
        got = splits[0] if begins.size else "none"
        raise ShardcoreValueError(f"offsets must begin with 0, got {got}")
    at = first_descent(splits)
    if at >= 0:
        raise ShardcoreValueError(
            f"offsets must not decrease, got {splits[at]} after {splits[at - 1]} at position {at}"
        )
    return splits


def plain_ids(tensor: Any) -> NDArray[Any] | None:
    """Return ids as an array that shares their memory, as `ids_of` does; None where it would raise.

    None too for tensors that are not quite plain, of which `ids_of` takes some.

    Examples
    --------
    >>> plain_ids(torch.tensor([3, 1]))
    array([3, 1])
    """
    if type(tensor) is not torch.Tensor or tensor.dtype not in _IDS:
        return None
    try:
        ids: NDArray[Any] = tensor.numpy()
    except (RuntimeError, TypeError):  # elsewhere, or without values
        return None
    return ids


def plain_leaf(input: Any, offsets: Any, include_last: bool) -> Any:
    """Return what an engine is given for tensors that share their memory with arrays, if they do.

    Parameters
    ----------
    input : tensor, shape (ids,) with `offsets`; else (bags, width)
    offsets : tensor or None
    include_last : bool

    Returns
    -------
    ndarray, (ndarray, ndarray of int64) or None
        The ids, and row splits. Of the ids nothing is known. None: something is of another form,
        or breaks a rule, which `read_bags` says.

    Examples
    --------
    >>> plain_leaf(torch.tensor([3, 1, 2]), torch.tensor([0, 2]), False)
    (array([3, 1, 2]), array([0, 2, 3]))
    >>> plain_leaf(torch.tensor([3, 1, 2]), torch.tensor([0, 4]), False) is None
    True
    """
    ids = plain_ids(input)
    if ids is None:
        return None
    if offsets is None:
        return ids if ids.ndim == 2 else None
    begins = plain_ids(offsets) if ids.ndim == 1 else None
    splits = None if begins is None else row_splits_from_offsets(begins, ids.size, include_last)
    return None if splits is None else (ids, splits)


def jagged_parts(tensor: Any, argument: str) -> tuple[Any, Any]:
    """Return the values of a nested tensor and where its bags begin and end among them.

    Values in one piece are not copied. A tensor that `torch.nested.narrow` made has some between
    its bags, which are left out.

    Raises
    ------
    ShardcoreValueError
        If it is not jagged, or not of rank 2.

    Examples
    --------
    >>> bags = torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 1, 3]))
    >>> jagged_parts(bags, "input")
    (tensor([0, 1, 2]), tensor([0, 1, 3]))
    """
    if tensor.layout != torch.jagged or tensor.dim() != 2:
        raise ShardcoreValueError(
            f"{argument} must be a nested tensor of rank 2 with layout=torch.jagged, "
            f"got rank {tensor.dim()} and {tensor.layout}"
        )
    values, offsets, lengths = tensor.values(), tensor.offsets(), tensor.lengths()
    if lengths is None:
        return values, offsets
    splits = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=splits[1:])
    moved = torch.repeat_interleave(offsets[: lengths.numel()] - splits[:-1], lengths)
    return values[torch.arange(int(splits[-1])) + moved], splits


def read_bags(input: Any, offsets: Any, weights: Any, include_last: bool) -> Bags:
    """Return the bags of a call of `torch.nn.EmbeddingBag`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If the arguments break a rule.

    Examples
    --------
    >>> read_bags(torch.tensor([3, 1, 2]), torch.tensor([0, 2]), None, False).row_splits
    array([0, 2, 3])
    """
    if isinstance(input, torch.Tensor) and input.is_nested:
        if offsets is not None:
            raise ShardcoreValueError("offsets must be None where input is a nested tensor")
        input, offsets = jagged_parts(input, "input")
        include_last = True
        if weights is not None:
            if not (isinstance(weights, torch.Tensor) and weights.is_nested):
                raise ShardcoreTypeError("per_sample_weights must be nested where input is")
            weights, of_weights = jagged_parts(weights, "per_sample_weights")
            if not torch.equal(of_weights, offsets):
                raise ShardcoreValueError(
                    "per_sample_weights must have the bags of input, of lengths "
                    f"{offsets.diff().tolist()}, got {of_weights.diff().tolist()}"
                )
    ids = ids_of(input, "input")
    if weights is not None:
        if not isinstance(weights, torch.Tensor) or not weights.is_floating_point():
            got = weights.dtype if isinstance(weights, torch.Tensor) else type(weights).__name__
            raise ShardcoreTypeError(f"per_sample_weights must be a tensor of floats, got {got}")
        if weights.shape != input.shape:
            raise ShardcoreValueError(
                f"per_sample_weights must have the shape of input, {tuple(input.shape)}, "
                f"got {tuple(weights.shape)}"
            )
    if ids.ndim == 2:
        if offsets is not None:
            raise ShardcoreValueError(
                "offsets must be None where input has rank 2: its rows are the bags"
            )
        return Bags(ids, None, weights)
    if ids.ndim != 1:
        raise ShardcoreValueError(f"input must be of rank 1 or 2, got shape {ids.shape}")
    if offsets is None:
        raise ShardcoreValueError(
            "offsets must be given where input has rank 1: they say where each bag begins"
        )
    return Bags(ids, row_splits_of(offsets, ids.size, include_last, "input"), weights)


def check_inside(ids: NDArray[Any], rows: int) -> None:
    """Raise for the first id that is not a row; for what does not go through an engine's checks.

    Examples
    --------
    >>> check_inside(np.array([1, 2]), 3)
    """
    bad = (ids < 0) | (ids >= rows)
    if bad.any():
        at = int(np.argmax(bad))
        place = place_in("ids", at, ids.shape)
        raise outside(f"input: {place}", ids.reshape(-1)[at], "table 'embedding'", rows)


def renamed(error: ShardcoreError) -> ShardcoreError:
    """Return an engine's error with its features and weights called as torch's arguments are.

    One that names neither is returned itself.

    Examples
    --------
    >>> renamed(ShardcoreError("weights: must be finite"))
    ShardcoreError('per_sample_weights: must be finite')
    """
    text = str(error)
    for ours, theirs in (("features: ", "input: "), ("weights: ", "per_sample_weights: ")):
        if text.startswith(ours):
            return type(error)(theirs + text.removeprefix(ours))
    return error
