"""Twins of the faces in `shardcore.store`: everything that reads or writes rows.

All arithmetic is NumPy's on arrays of the working dtype, a row at a time: one multiplication, one
addition, each rounded, in the order of the contract. Overflows and undefined results become inf or
NaN without a warning, as in the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.dtypes import working_dtype
from shardcore.reference.offsets import row_ids_from_row_splits
from shardcore.reference.random import uniform_bits
from shardcore.store.occurrences import Occurrences
from shardcore.store.rounding import rounds_stochastically, step_seed
from shardcore.store.row_update import RowUpdate

__all__ = [
    "accumulate",
    "at_winners",
    "divisors",
    "gather_rows",
    "max_of_bags",
    "narrowed",
    "stochastic_round",
    "occurrence_gains",
    "put_rows",
    "reciprocals",
    "row_dots",
    "scaled_to_norm",
    "scatter_rows",
    "segment_reduce",
    "sort_bags",
    "sort_occurrences",
    "update_rows",
    "weight_gradients",
    "widened",
]

LANES: Final = 8
RUN_BLOCK: Final = 4096


# --- one element -----------------------------------------------------------------------------


def stochastic_round(
    values: NDArray[Any], dtype: np.dtype[Any], row_ids: NDArray[np.int64], seed: int
) -> NDArray[Any]:
    """Return values rounded to a neighbour in a short dtype: away from 0 as often as it is near.

    Beyond the largest finite value, to the nearest. How near is measured in as many bits as
    float32 has more than `dtype`, 24 where float16 is subnormal.

    Examples
    --------
    >>> rounded = stochastic_round(np.full((9, 1), 2.0, "float32"), np.dtype("float16"),
    ...                              np.arange(9), seed=0)
    >>> np.unique(rounded).tolist()
    [2.0]
    """
    half = dtype.name == "float16"
    digits, lowest, largest = (10, -14, 65504.0) if half else (7, -126, (2 - 2.0**-7) * 2.0**127)
    random = np.empty(values.shape, np.uint64)
    uniform_bits(row_ids, seed, random)
    out = narrowed(values, dtype)
    for at in np.ndindex(values.shape):
        magnitude = abs(float(values[at]))
        if not magnitude < largest:  # NaN is not, either
            continue
        exponent = max(math.frexp(magnitude)[1] - 1, lowest)
        quantum = 2.0 ** (exponent - digits)
        whole, chance = math.floor(magnitude / quantum), int(random[at])
        rest = magnitude / quantum - whole
        if half and magnitude < 2.0**-14:
            up = rest > (chance >> 40) * 2.0**-24
        else:
            bits = 23 - digits
            up = int(rest * 2**bits) + (chance >> (64 - bits)) >= 2**bits
        out[at] = math.copysign((whole + up) * quantum, float(values[at]))
    return out


def widened(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows in the working dtype: exact, for it holds every short float.

    Examples
    --------
    >>> widened(np.array([0.5], np.float16))
    array([0.5], dtype=float32)
    """
    with np.errstate(invalid="ignore"):  # some bit patterns of NaN raise the flag
        return rows.astype(working_dtype(rows.dtype))


def narrowed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values rounded to `dtype`: to the nearest, ties to even, beyond the range to inf.

    Examples
    --------
    >>> narrowed(np.array([2049.0, 1e9], np.float32), np.dtype("float16"))
    array([2.048e+03,       inf], dtype=float16)
    """
    with np.errstate(all="ignore"):
        return values.astype(dtype)


# --- combine ---------------------------------------------------------------------------------


def segment_reduce(
    rows: NDArray[Any],
    ids: ArrayLike,
    row_splits: ArrayLike,
    weights: ArrayLike | None = None,
    divisors: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return, per bag, Σ w·row in the order of the occurrences, divided; 0 where the divisor is 0.

    Examples
    --------
    >>> rows = np.array([[1.0], [3.0]])
    >>> segment_reduce(rows, [0, 1, 1], [0, 2, 2, 3], divisors=np.array([2, 1, 0]))
    array([[2.],
           [0.],
           [0.]])
    """
    wide = widened(rows)
    at, splits = np.asarray(ids, np.int64), np.asarray(row_splits, np.int64)
    out = np.zeros((splits.size - 1, rows.shape[1]), wide.dtype)
    gains = None if weights is None else np.asarray(weights).astype(wide.dtype)
    shares = None if divisors is None else np.asarray(divisors).astype(wide.dtype)
    with np.errstate(all="ignore"):
        for bag in range(splits.size - 1):
            for i in range(splits[bag], splits[bag + 1]):
                row = wide[at[i]]
                out[bag] += row if gains is None else gains[i] * row
            if shares is not None:
                out[bag] = 0 if shares[bag] == 0 else out[bag] / shares[bag]
    return out


def scaled_to_norm(rows: NDArray[Any], max_norm: float) -> NDArray[Any]:
    """Return rows, (n, dim), those of a greater L2 norm scaled down to it.

    Examples
    --------
    >>> scaled_to_norm(np.array([[3.0, 4.0]]), 2.5)
    array([[1.5, 2. ]])
    """
    scaled = rows.copy()
    with np.errstate(all="ignore"):
        for row in scaled:
            total = np.float64(0)
            for element in row:
                total += np.float64(element) * np.float64(element)
            norm = np.sqrt(total)
            if norm > max_norm:
                row[:] = row.astype(np.float64) * (max_norm / norm)
    return scaled


def max_of_bags(
    rows: NDArray[Any], row_splits: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the greatest values of each bag of rows, and which row has each; 0 and -1 for none.

    Examples
    --------
    >>> max_of_bags(np.array([[1.0], [2.0]]), np.array([0, 2]))
    (array([[2.]]), array([[1]]))
    """
    shape = (row_splits.size - 1, rows.shape[1])
    out, winners = np.zeros(shape, rows.dtype), np.full(shape, -1, np.int64)
    for bag, (start, stop) in enumerate(_bags(row_splits)):
        for column in range(rows.shape[1]):
            for i in range(start, stop):
                if i == start or rows[i, column] > out[bag, column]:
                    out[bag, column], winners[bag, column] = rows[i, column], i
    return out, winners


def at_winners(
    gradients: NDArray[Any], winners: NDArray[np.int64], row_splits: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the gradients of bags at the rows that have their greatest values, 0 elsewhere.

    Examples
    --------
    >>> at_winners(np.array([[7.0]]), np.array([[1]]), np.array([0, 2]))
    array([[0.],
           [7.]])
    """
    out = np.zeros((row_splits[-1], gradients.shape[1]), gradients.dtype)
    for bag, (start, stop) in enumerate(_bags(row_splits)):
        for column in range(gradients.shape[1]):
            if stop > start:
                out[winners[bag, column], column] = gradients[bag, column]
    return out


def divisors(
    combiner: str,
    row_splits: NDArray[np.int64],
    weights: NDArray[Any] | None = None,
    dtype: np.dtype[Any] | type[Any] = np.float32,
) -> NDArray[Any] | None:
    """Return what each bag's sum is divided by: None for sum, Σ w for mean, √(Σ w²) for sqrtn.

    Examples
    --------
    >>> divisors("sqrtn", np.array([0, 2]), np.array([3.0, 4.0]))
    array([5.], dtype=float32)
    """
    if combiner == "sum":
        return None
    if weights is None:
        sums = np.array([stop - start for start, stop in _bags(row_splits)]).astype(dtype)
    else:
        wide = np.asarray(weights).astype(dtype)
        with np.errstate(all="ignore"):
            sums = _sums(wide if combiner == "mean" else wide * wide, row_splits)
    return sums if combiner == "mean" else np.sqrt(sums)


def _bags(row_splits: NDArray[np.int64]) -> list[tuple[int, int]]:
    return list(zip(row_splits[:-1].tolist(), row_splits[1:].tolist(), strict=True))


def _sums(values: NDArray[Any], row_splits: NDArray[np.int64]) -> NDArray[Any]:
    out = np.zeros(row_splits.size - 1, values.dtype)
    for bag, (start, stop) in enumerate(_bags(row_splits)):
        for i in range(start, stop):
            out[bag] += values[i]
    return out


def reciprocals(divisors: NDArray[Any]) -> NDArray[Any]:
    """Return 1 / divisor, and 0 where the divisor is 0.

    Examples
    --------
    >>> reciprocals(np.array([2.0, 0.0]))
    array([0.5, 0. ])
    """
    one = divisors.dtype.type(1)
    with np.errstate(all="ignore"):
        out: NDArray[Any] = np.where(divisors == 0, divisors.dtype.type(0), one / divisors)
    return out


def occurrence_gains(
    row_splits: NDArray[np.int64], weights: NDArray[Any], divisors: NDArray[Any] | None
) -> NDArray[Any]:
    """Return the gain w / divisor of each occurrence, and 0 where the divisor is 0.

    Examples
    --------
    >>> occurrence_gains(np.array([0, 2]), np.array([1.0, 3.0]), np.array([4.0]))
    array([0.25, 0.75])
    """
    if divisors is None:
        return weights
    divisor = divisors[row_ids_from_row_splits(row_splits)]
    with np.errstate(all="ignore"):
        out: NDArray[Any] = np.where(divisor == 0, weights.dtype.type(0), weights / divisor)
    return out


def row_dots(
    rows: NDArray[Any],
    ids: NDArray[Any],
    row_splits: NDArray[np.int64],
    gradients: NDArray[Any],
) -> NDArray[Any]:
    """Return the dot product of each occurrence's row with its bag's gradient, in 8 lanes.

    Column c is added to lane c mod 8; lanes are then added in order.

    Examples
    --------
    >>> rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> row_dots(rows, np.array([1, 0]), np.array([0, 2]), np.array([[1.0, 10.0]]))
    array([43., 21.])
    """
    wide, dim = widened(rows), rows.shape[1]
    out = np.zeros(ids.size, gradients.dtype)
    with np.errstate(all="ignore"):
        for i, bag in enumerate(row_ids_from_row_splits(row_splits)):
            products = wide[ids[i]] * gradients[bag]
            lanes = np.zeros(LANES, gradients.dtype)
            for column in range(dim):
                lanes[column % LANES] += products[column]
            for lane in range(LANES):
                out[i] += lanes[lane]
    return out


def weight_gradients(
    combiner: str,
    dots: NDArray[Any],
    row_splits: NDArray[np.int64],
    weights: NDArray[Any],
    divisors: NDArray[Any] | None,
) -> NDArray[Any]:
    """Return the gradient with respect to each weight; the formulas are those of the face.

    Examples
    --------
    >>> one_bag, w = np.array([0, 2]), np.array([1.0, 1.0])
    >>> weight_gradients("mean", np.array([3.0, 1.0]), one_bag, w, np.array([2.0]))
    array([ 0.5, -0.5])
    """
    if divisors is None:
        return dots
    out = np.zeros_like(dots)
    with np.errstate(all="ignore"):
        along = _sums(dots * weights, row_splits) * reciprocals(divisors)
        for bag, (start, stop) in enumerate(_bags(row_splits)):
            share = reciprocals(divisors)[bag]
            for i in range(start, stop):
                if combiner == "mean":
                    out[i] = (dots[i] - along[bag]) * share
                else:
                    out[i] = dots[i] * share - weights[i] * along[bag] * share * share
    return out


# --- train -----------------------------------------------------------------------------------


def sort_occurrences(
    rows: NDArray[Any], sources: NDArray[np.int32], gains: NDArray[Any] | None, num_rows: int
) -> Occurrences:
    """Return the occurrences grouped by row, rows ascending, each row's in the order given.

    Examples
    --------
    >>> sort_occurrences(np.array([7, 2, 7]), np.array([0, 0, 1], np.int32), None, 10).rows
    array([2, 7])
    """
    runs: dict[int, list[int]] = {}
    for i, row in enumerate(rows.tolist()):
        runs.setdefault(row, []).append(i)
    assert all(0 <= row < num_rows for row in runs)
    unique = sorted(runs)
    order = np.array([i for row in unique for i in runs[row]], np.int64)
    run_splits = np.cumsum([0, *(len(runs[row]) for row in unique)], dtype=np.int64)
    return Occurrences(
        np.array(unique, np.int64),
        run_splits,
        sources[order],
        None if gains is None else gains[order],
    )


def sort_bags(ids: NDArray[Any], row_splits: NDArray[np.int64], num_rows: int) -> Occurrences:
    """Return the occurrences of one feature, grouped by row; sources are its bags.

    Examples
    --------
    >>> sort_bags(np.array([7, 2, 7]), np.array([0, 2, 3]), 10).sources
    array([0, 0, 1], dtype=int32)
    """
    bags = np.repeat(np.arange(row_splits.size - 1, dtype=np.int32), np.diff(row_splits))
    return sort_occurrences(ids, bags, None, num_rows)


def accumulate(occurrences: Occurrences, gradients: NDArray[Any]) -> NDArray[Any]:
    """Return each unique row's Σ gain·gradient: blocks of 4,096 from the first, blocks in order.

    Examples
    --------
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> accumulate(batch, np.array([[1.0], [10.0]]))
    array([[ 1.],
           [11.]])
    """
    out = np.zeros((occurrences.rows.size, gradients.shape[1]), gradients.dtype)
    with np.errstate(all="ignore"):
        for u, (start, stop) in enumerate(_bags(occurrences.run_splits)):
            for block in range(start, stop, RUN_BLOCK):
                total = np.zeros_like(out[u])
                for i in range(block, min(block + RUN_BLOCK, stop)):
                    gradient = gradients[occurrences.sources[i]]
                    gains = occurrences.gains
                    total += gradient if gains is None else gains[i] * gradient
                out[u] = total if block == start else out[u] + total
    return out


def _received(occurrences: Occurrences, at: int, gradients: NDArray[Any]) -> NDArray[Any]:
    """Return what one occurrence gives to its row, as a sum of one."""
    gradient = gradients[occurrences.sources[at]]
    gains = occurrences.gains
    with np.errstate(all="ignore"):
        total: NDArray[Any] = np.zeros_like(gradient) + (
            gradient if gains is None else gains[at] * gradient
        )
    return total[None]


def update_rows(rows: NDArray[Any], slots: Mapping[str, NDArray[Any]], update: RowUpdate) -> None:
    """Update the rows of a batch and their slots in place: one by one, by `optimizer.update`.

    Without accumulation each occurrence of a row is an update, in their order.

    Examples
    --------
    >>> from shardcore_optimizers.sgd import SGD
    >>> rows, sgd = np.ones((4, 1)), SGD(learning_rate=0.5)
    >>> batch = sort_occurrences(np.array([3, 1, 3]), np.array([0, 0, 1], np.int32), None, 4)
    >>> gradients = np.array([[1.0], [10.0]])
    >>> update_rows(rows, {}, RowUpdate(batch, batch.rows, gradients, sgd, sgd.hyper(), step=1))
    >>> rows[:, 0]
    array([ 1. ,  0.5,  1. , -4.5])
    """
    if rows.shape[1] == 0:
        return
    occurrences, optimizer = update.occurrences, update.optimizer
    sums = accumulate(occurrences, update.gradients)
    for u, row in enumerate(occurrences.rows.tolist()):
        row_id = update.row_ids[u : u + 1]
        new_row: Any = widened(rows[row : row + 1])
        new_slots: Mapping[str, Any] = {
            name: slot[row : row + 1].astype(sums.dtype) for name, slot in slots.items()
        }
        received = [sums[u : u + 1]]
        if not optimizer.accumulate:
            run = range(occurrences.run_splits[u], occurrences.run_splits[u + 1])
            received = [_received(occurrences, at, update.gradients) for at in run]
        for gradient in received:
            with np.errstate(all="ignore"):
                new_row, new_slots = optimizer.update(
                    gradient, new_row, new_slots, update.hyper, update.step, row_id
                )
        values = np.asarray(new_row)
        if rounds_stochastically(optimizer, rows.dtype):
            now = step_seed(update.seed, update.step)
            rows[row] = stochastic_round(values, rows.dtype, row_id, now)[0]
        else:
            rows[row] = narrowed(values, rows.dtype)[0]
        for name, slot in slots.items():
            slot[row] = narrowed(np.asarray(new_slots[name]), slot.dtype)[0]


# --- scatter ---------------------------------------------------------------------------------


def scatter_rows(rows: NDArray[Any], ids: NDArray[Any], values: NDArray[Any], op: str) -> None:
    """Apply ``rows[ids[i]] = rows[ids[i]] (op) values[i]`` for every i in order, in place.

    Short floats are computed in float32 and rounded after every step. Of two equal numbers "min"
    and "max" give the second, of two numbers one of which is NaN, NaN.

    Examples
    --------
    >>> rows = np.zeros((3, 1))
    >>> scatter_rows(rows, np.array([2, 0, 2]), np.ones((3, 1)), "add")
    >>> rows[:, 0]
    array([1., 0., 2.])
    """
    short = rows.dtype.name in ("float16", "bfloat16")
    for i, row in enumerate(ids.tolist()):
        old, new = rows[row], values[i]
        if short:
            old, new = widened(old), widened(new)
        with np.errstate(all="ignore"):
            rows[row] = narrowed(np.asarray(_operate(old, new, op)), rows.dtype)


def _operate(old: Any, new: Any, op: str) -> Any:
    if op == "add":
        return old + new
    if op == "sub":
        return old - new
    if op == "mul":
        return old * new
    if op == "div":
        return old / new
    if op == "min":
        return np.where((old < new) | (old != old), old, new)
    if op == "max":
        return np.where((old > new) | (old != old), old, new)
    assert op == "update"
    return new


def gather_rows(rows: NDArray[Any], ids: NDArray[Any]) -> NDArray[Any]:
    """Return copies of rows `ids`, in that order.

    Examples
    --------
    >>> gather_rows(np.array([[1.0], [2.0]]), np.array([1, 1, 0]))[:, 0]
    array([2., 2., 1.])
    """
    out = np.empty((ids.size, *rows.shape[1:]), rows.dtype)
    for i, row in enumerate(ids.tolist()):
        out[i] = rows[row]
    return out


def put_rows(rows: NDArray[Any], ids: NDArray[Any], values: NDArray[Any]) -> None:
    """Copy `values` to rows `ids`, in order: of equal ids the last one wins.

    Examples
    --------
    >>> rows = np.zeros((2, 1))
    >>> put_rows(rows, np.array([1, 1]), np.array([[5.0], [6.0]]))
    >>> rows[:, 0]
    array([0., 6.])
    """
    for i, row in enumerate(ids.tolist()):
        rows[row] = values[i]
