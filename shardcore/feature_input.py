"""From what a caller gives for one feature to checked bags over its table.

Here invalid ids meet their policy, sequences are cut and padded, weights take the working dtype and
every bag gets its divisor. What comes out, a backend may trust.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore._core import partition as _partition
from shardcore.arrays import as_floats, read_array
from shardcore.batch import FeatureBags
from shardcore.config import FeatureConfig
from shardcore.dtypes import working_dtype
from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.inputs import as_ragged, as_weights, dense_shape
from shardcore.offsets import lengths_from_row_splits, row_ids_from_row_splits
from shardcore.ragged import Ragged
from shardcore.store.segment_reduce import divisors

__all__ = ["PreparedFeature", "prepare_feature", "read_gradient"]

Ints = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PreparedFeature:
    """One feature of one batch, ready for a backend.

    Attributes
    ----------
    bags : FeatureBags
    shape : tuple of int
        Of the activations, without the last axis.
    invalid : int
        Ids that the policy dealt with.
    weights_given : bool
    kept : ndarray of bool, shape (ids given,), or None
        Which of the ids in bag order are in `bags`; None: all.
    given_order : ndarray of int64, or None
        Where each id in bag order stood as it was given; None: the same place.
    ids_shape : tuple of int, or None
        Shape of ids that came as a dense array.
    """

    bags: FeatureBags
    shape: tuple[int, ...]
    invalid: int
    weights_given: bool
    kept: NDArray[np.bool_] | None
    given_order: NDArray[np.int64] | None
    ids_shape: tuple[int, ...] | None

    def weight_gradient(self, of_kept: NDArray[Any]) -> NDArray[Any]:
        """Return gradients of weights as the weights were given: their order, zeros for left out.

        Parameters
        ----------
        of_kept : ndarray, shape (ids in `bags`,)
        """
        full = of_kept
        if self.kept is not None:
            full = np.zeros(self.kept.size, of_kept.dtype)
            full[self.kept] = of_kept
        if self.given_order is not None:
            in_bags, full = full, np.empty_like(full)
            full[self.given_order] = in_bags
        return full if self.ids_shape is None else full.reshape(self.ids_shape)


def prepare_feature(
    config: FeatureConfig, leaf: Any, weights_leaf: Any, path: str, weights_path: str, table: str
) -> PreparedFeature:
    """Check one feature's input and turn it into bags.

    Parameters
    ----------
    config : FeatureConfig
    leaf, weights_leaf : as in `shardcore.inputs`
    path, weights_path : str
        Places in their structures; every message begins with one.
    table : str
        The table's name, for messages.

    Returns
    -------
    PreparedFeature

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
        If the input breaks a rule.

    Examples
    --------
    >>> from shardcore.config import TableConfig
    >>> feature = FeatureConfig(TableConfig(10, 4, combiner="mean"))
    >>> prepared = prepare_feature(feature, [[1, 2], []], None, "features", "weights", "t")
    >>> prepared.bags.divisors, prepared.shape
    (array([2., 0.], dtype=float32), (2,))
    """
    value = working_dtype(np.dtype(config.table.dtype))
    ragged, batch_shape = as_ragged(leaf, path)
    ids_shape = dense_shape(leaf)
    weights = as_weights(weights_leaf, ragged, ids_shape, weights_path, value)
    if config.max_sequence_length:
        if weights is not None:
            raise ShardcoreValueError(
                f"{weights_path}: weights are refused for a sequence, whose rows are not combined; "
                f"{path} has max_sequence_length = {config.max_sequence_length}"
            )
        bags, shape, invalid = _sequence(config, ragged, batch_shape, path, table)
        return PreparedFeature(bags, shape, invalid, False, None, None, ids_shape)
    shape = _activation_shape(config, batch_shape, path)
    ids, valid, invalid = _valid_ids(config, ragged.values, path, table)
    row_splits, combiner = ragged.row_splits, config.table.combiner
    if valid is None:
        divisor = divisors(combiner, row_splits, weights, value)
        bags = FeatureBags(ids, row_splits, weights, divisor)
    else:
        before = divisors(combiner, row_splits, weights, value)
        row_splits = _splits_without(row_splits, valid)
        ids, kept_weights = ids[valid], None if weights is None else weights[valid]
        # "zero" keeps the weight of an invalid id in the denominator, "drop" takes it out.
        after = divisors(combiner, row_splits, kept_weights, value)
        divisor = before if config.invalid_ids == "zero" else after
        bags = FeatureBags(ids, row_splits, kept_weights, divisor)
    return PreparedFeature(
        bags, shape, invalid, weights is not None, valid, ragged._given_order, ids_shape
    )


def _activation_shape(
    config: FeatureConfig, batch_shape: tuple[int, ...], path: str
) -> tuple[int, ...]:
    if config.output_shape is None:
        return batch_shape
    shape = tuple(config.output_shape)
    if math.prod(shape) != math.prod(batch_shape):
        raise ShardcoreValueError(
            f"{path}: output_shape {shape} must hold as many vectors as there are bags, "
            f"{math.prod(batch_shape)}, got {math.prod(shape)}"
        )
    return shape


def _valid_ids(
    config: FeatureConfig, ids: Ints, path: str, table: str
) -> tuple[Ints, NDArray[np.bool_] | None, int]:
    """Return the ids, which of them are to be kept (None: all), and how many were invalid."""
    rows = config.table.vocabulary_size
    bad = _partition.first_outside(ids, rows)
    if bad < 0:
        return ids, None, 0
    policy = config.invalid_ids
    if policy == "raise":
        raise ShardcoreIndexError(
            f"{path}: ids[{bad}] = {ids[bad]} is outside table {table!r}: must be in [0, {rows})"
        )
    valid = (ids >= 0) & (ids < rows)
    invalid = int(ids.size - np.count_nonzero(valid))
    if policy in ("drop", "zero"):
        return ids, valid, invalid
    if policy == "clip":
        clipped: Ints = np.clip(ids, 0, rows - 1)
        return clipped, None, invalid
    replaced: Ints = np.where(valid, ids, ids.dtype.type(policy))
    return replaced, None, invalid


def _splits_without(row_splits: NDArray[np.int64], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    kept_before = np.zeros(valid.size + 1, np.int64)
    np.cumsum(valid, out=kept_before[1:])
    return kept_before[row_splits]


def _sequence(
    config: FeatureConfig, ragged: Ragged, batch_shape: tuple[int, ...], path: str, table: str
) -> tuple[FeatureBags, tuple[int, ...], int]:
    """Return a bag per position, holding the id there or nothing, and the shape of them all."""
    length = config.max_sequence_length
    ids, valid, invalid = _valid_ids(config, ragged.values, path, table)
    row_splits = ragged.row_splits
    if valid is not None and config.invalid_ids == "drop":  # later ids move up
        ids, row_splits, valid = ids[valid], _splits_without(row_splits, valid), None
    sample = row_ids_from_row_splits(row_splits)
    position = np.arange(ids.size) - row_splits[sample]
    used = position < length
    if valid is not None:  # "zero": the position stays, empty
        used &= valid
    samples = lengths_from_row_splits(row_splits).size
    counts = np.zeros(samples * length, np.int64)
    counts[sample[used] * length + position[used]] = 1
    per_position = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=per_position[1:])
    bags = FeatureBags(ids[used], per_position, bags_per_sample=length)
    shape = (*batch_shape, length)
    if config.output_shape is not None:
        given = tuple(config.output_shape)
        if math.prod(given) != math.prod(shape):
            raise ShardcoreValueError(
                f"{path}: output_shape {given} must hold as many vectors as there are positions, "
                f"{math.prod(shape)}, got {math.prod(given)}"
            )
        shape = given
    return bags, shape, invalid


def read_gradient(
    leaf: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: str
) -> NDArray[Any] | None:
    """Return a feature's gradient as (bags, dim) of the working dtype, or None for none.

    Parameters
    ----------
    leaf : array_like or None
        Of any real dtype, shaped like the activations.
    shape : tuple of int
        That of the activations.
    dtype : numpy.dtype
        The working dtype.
    path : str
        Its place in the structure; begins every message.

    Raises
    ------
    ShardcoreTypeError
        If it is no array of real numbers.
    ShardcoreValueError
        If its shape differs, or a value is not finite, or does not fit the working dtype.

    Examples
    --------
    >>> read_gradient([[1, 2]], (1, 2), np.dtype("float32"), "gradients")
    array([[1., 2.]], dtype=float32)
    """
    if leaf is None:
        return None
    array = read_array(leaf, path)
    if array.dtype.kind == "b" or array.dtype.kind == "c":
        raise ShardcoreTypeError(f"{path} must be real numbers, got dtype {array.dtype}")
    array = as_floats(array, path)
    if array.shape != shape:
        raise ShardcoreValueError(
            f"{path} must have the shape of the activations, {shape}, got {array.shape}"
        )
    with np.errstate(over="ignore"):  # told below, with its position
        cast = array.astype(dtype, copy=False)
    finite = np.isfinite(cast)
    if not finite.all():
        at = np.unravel_index(int(np.argmin(finite)), shape)
        place = ", ".join(str(int(i)) for i in at)
        raise ShardcoreValueError(
            f"{path} must be finite in {dtype}: {path}[{place}] = {array[at]}"
        )
    return np.ascontiguousarray(cast.reshape(-1, shape[-1]))
