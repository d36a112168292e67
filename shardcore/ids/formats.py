"""Every form a feature may come in, turned into one `Ragged`; and its weights, aligned with it.

SciPy is never imported from here: a caller with one of its objects has imported it. Torch, JAX and
others are read through ``__array__`` or DLPack; Arrow columns in `shardcore.ids.arrow`, and
TensorFlow's bags in `shardcore.ids.tensorflow`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import (
    ShardcoreError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.ids.arrow import (
    Nulls,
    is_arrow_column,
    is_lazy,
    read_arrow_column,
    read_arrow_weights,
)
from shardcore.ids.hashing import Hash, hash_array, hash_bags, hash_values, hashed
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse
from shardcore.ids.tensorflow import is_of_tensorflow, read_tensorflow
from shardcore.validation.arrays import as_floats, as_ids, read_array

__all__ = ["as_ragged", "as_weights", "dense_shape", "named", "placed_weights"]

_HASHED: Final = "strings are hashed by FeatureConfig(table, hash=sc.Hash(buckets))"

_FORMS: Final = (
    "sc.Ragged, sc.Sparse, a dense array, a tuple (values, row_splits), a list of bags, "
    "a scipy.sparse array, an Arrow column of lists (pyarrow, polars, pandas) or TensorFlow's "
    "RaggedTensor or SparseTensor"
)
_PADDED_FORMATS: Final = ("bsr", "dia")  # they store zeros of their own


def as_ragged(
    leaf: Any, path: str, nulls: Nulls | None = None, function: Hash | None = None
) -> tuple[Ragged, tuple[int, ...]]:
    """Return one feature's ids as bags, and the shape of the batch those bags fill.

    Parameters
    ----------
    leaf : Ragged, Sparse, array, tuple, list, scipy.sparse array, Arrow column or TensorFlow's
        - `Ragged`: its values as they are, its row_splits checked again and copied.
        - dense array (NumPy, or any with ``__array__`` or ``__dlpack__``): of rank 1, one id per
          bag; else the last axis is the bag.
        - tuple of two arrays of rank 1: (values, row_splits).
        - list: a list of bags, each a list or array of ids.
        - scipy.sparse, any format: column = id, data = weight. Duplicates and explicit zeros stay,
          except in BSR and DIA, where a stored zero may be padding and is left out.
        - Arrow column: a pyarrow array, a polars or pandas Series, or any object with
          ``__arrow_c_array__`` or ``__arrow_c_stream__``. Lists of integers, of any length or one,
          are bags; integers are one id per bag. Values are not copied where they lie in one piece.
        - `Sparse`: values = ids; the last axis is the bag.
        - TensorFlow's ``RaggedTensor`` of rank 2 as a `Ragged`, its ``SparseTensor`` as a `Sparse`.
    path : str
        The feature's place in its structure; begins every message.
    nulls : {"raise", "drop"}, int or None
        What is done with nulls of an Arrow column, see `read_arrow_column`.
    function : Hash, optional
        What gives the rows of the ids, which may then be strings too, in every form but `Ragged`,
        `Sparse` and scipy.sparse. None: ids are rows.

    Returns
    -------
    ragged : Ragged
        Of int32 or int64 ids that share memory with the input where that is possible: to be copied
        and checked before a kernel reads them. No caller can change the row_splits.
    batch_shape : tuple of int
        Its product is ``ragged.num_bags``.

    Raises
    ------
    ShardcoreTypeError
        If it is none of these forms, or holds no integers.
    ShardcoreValueError, ShardcoreIndexError
        If it breaks a rule of its form.
    UnavailableError
        If pyarrow is needed to read it and is not installed.

    Examples
    --------
    >>> as_ragged([[3, 1], []], "features['clicks']")
    (Ragged([[3, 1], []], dtype=int64), (2,))
    >>> as_ragged(np.array([[3, 1], [2, 2]]), "features['clicks']")
    (Ragged([[3, 1], [2, 2]], dtype=int64), (2,))
    """
    with named(path):
        try:
            ragged, shape = _read(leaf, nulls, function)
        except ShardcoreTypeError as error:
            if function is None and not isinstance(leaf, str | bytes) and _holds_strings(leaf):
                raise ShardcoreTypeError(f"{error}; {_HASHED}") from error
            raise
        if ragged.values.dtype.kind == "i":
            return ragged, shape
        # Raises for floats; no ids at all may come as floats, as np.array([]) does.
        ids = Ragged(as_ids(ragged.values, "values"), ragged.row_splits, ragged.weights)
        return ids, shape


def as_weights(
    leaf: Any,
    ragged: Ragged,
    dense_shape: tuple[int, ...] | None,
    path: str,
    dtype: np.dtype[Any] | None = None,
    keep: bool = False,
) -> NDArray[Any] | None:
    """Return the weights of one feature's ids, aligned with ``ragged.values``, or None.

    Parameters
    ----------
    leaf : None, Ragged, RaggedTensor or array
        - None: the weights that came with the ids (``Ragged.weights``, SciPy's data), if any.
        - `Ragged`, or TensorFlow's ``RaggedTensor``, of real numbers with the row_splits of the
          ids. (`Sparse` weights of `Sparse` ids, and Arrow columns, go through `placed_weights`.)
        - array of rank 1, aligned with the ids in the order they were given.
        - array shaped like the dense ids.
    ragged : Ragged
        What `as_ragged` returned.
    dense_shape : tuple of int or None
        Shape of the ids where they came as a dense array; see `dense_shape`.
    path : str
        The weights' place in their structure; begins every message.
    dtype : numpy.dtype, optional
        The type rows are combined in. The weights are cast to it, and one that does not fit is an
        error. Without it floats keep their type and integers become float64.
    keep : bool
        Whether they outlive the call: then they share no memory with what the caller gave.

    Returns
    -------
    ndarray of float, shape (num_values,), or None
        All finite.

    Raises
    ------
    ShardcoreTypeError
        If it is none of these, or holds no real numbers.
    ShardcoreValueError
        If the ids have weights already, a shape or row_splits do not match, or a weight is not
        finite.

    Examples
    --------
    >>> r, _ = as_ragged([[3, 1], []], "features['clicks']")
    >>> as_weights([0.5, 2.0], r, None, "weights['clicks']")
    array([0.5, 2. ])
    """
    with named(path):
        if leaf is None:
            weights = ragged.weights
        elif ragged.weights is not None:
            raise ShardcoreValueError(
                "the ids have weights of their own (Ragged.weights or the data of a scipy.sparse "
                "array); give None here"
            )
        else:
            weights = _read_weights(leaf, ragged, dense_shape)
        if weights is None:
            return None
        if keep:
            weights = weights.copy()
        _check_finite(weights)
        if dtype is None or weights.dtype == dtype:
            return weights
        with np.errstate(over="ignore"):  # raised below, with its position
            cast = weights.astype(dtype)
        fits = np.isfinite(cast)
        if not fits.all():
            at = int(np.argmin(fits))
            raise ShardcoreValueError(f"weights[{at}] = {weights[at]} does not fit {dtype}")
        return cast


def placed_weights(weights: Any, ids: Any) -> Any:
    """Return weights of other libraries as ours; of `Sparse` ones, placed as the ids, the values.

    An Arrow column becomes a `Ragged` or an array, TensorFlow's tensors what they stand for. Others
    come back as they are.

    Parameters
    ----------
    weights, ids : as in `as_weights` and `as_ragged`

    Raises
    ------
    ShardcoreTypeError
        If the weights are `Sparse` and the ids are not.
    ShardcoreValueError
        If their places differ.

    Examples
    --------
    >>> places = [[0, 0], [2, 1]]
    >>> placed_weights(Sparse(places, [0.5, 2.0], (4, 2)), Sparse(places, [7, 5], (4, 2)))
    array([0.5, 2. ])
    """
    if weights is None:
        return None
    if is_of_tensorflow(weights):
        weights = read_tensorflow(weights, "weights")
    elif is_arrow_column(weights):
        return read_arrow_weights(weights)
    if not isinstance(weights, Sparse):
        return weights
    if is_of_tensorflow(ids):
        ids = read_tensorflow(ids, "ids", _any_row)  # whatever they are: places are compared
    if not isinstance(ids, Sparse):
        raise ShardcoreTypeError(
            f"weights may be Sparse only where the ids are, got ids of type {type(ids).__name__}"
        )
    if weights.dense_shape != ids.dense_shape or len(weights.values) != len(ids.values):
        raise ShardcoreValueError(
            "weights must have the places of the ids: "
            f"{len(ids.values)} in dense_shape {ids.dense_shape}, "
            f"got {len(weights.values)} in {weights.dense_shape}"
        )
    differ = (weights.indices != ids.indices).any(axis=1)
    if differ.any():
        at = int(np.argmax(differ))
        raise ShardcoreValueError(
            f"weights must have the places of the ids: indices[{at}] is "
            f"{weights.indices[at].tolist()}, of the ids {ids.indices[at].tolist()}"
        )
    return weights.values


def dense_shape(leaf: Any) -> tuple[int, ...] | None:
    """Return the shape of ids that come as a dense array, None for every other form.

    Examples
    --------
    >>> dense_shape(np.zeros((4, 2), np.int64)), dense_shape([[3, 1], []])
    ((4, 2), None)
    """
    if isinstance(leaf, Ragged | Sparse | list | tuple) or _is_scipy(leaf) or is_arrow_column(leaf):
        return None
    if is_of_tensorflow(leaf):
        return None
    if hasattr(leaf, "shape"):
        return tuple(int(size) for size in leaf.shape)
    return read_array(leaf, "ids").shape


@contextmanager
def named(path: str) -> Iterator[None]:
    """Begin the message of every shardcore error with the feature's path."""
    try:
        yield
    except ShardcoreError as error:
        raise type(error)(f"{path}: {error}") from error


def _read(leaf: Any, nulls: Nulls | None, function: Hash | None) -> tuple[Ragged, tuple[int, ...]]:
    if is_of_tensorflow(leaf):
        rows_of = None if function is None else partial(hash_values, function)
        leaf, function = read_tensorflow(leaf, "ids", rows_of), None
    if isinstance(leaf, Ragged | Sparse) or _is_scipy(leaf):
        ragged, shape = _read_integers(leaf)
        return ragged if function is None else hashed(function, ragged), shape
    if isinstance(leaf, tuple):
        ragged = _read_pair(leaf, function)
    elif isinstance(leaf, list):
        ragged = _read_list(leaf, function)
    elif leaf is None or isinstance(leaf, str | bytes | dict):
        raise ShardcoreTypeError(f"ids must be {_FORMS}, got {type(leaf).__name__}")
    elif isinstance(leaf, bool | int | float | complex | np.generic):
        raise _scalar_error(leaf)
    elif is_arrow_column(leaf):
        of_column = None if function is None else function._of_column
        ragged = read_arrow_column(leaf, nulls, _FORMS, of_column)
    else:
        return _read_dense(leaf, function)
    return ragged, (ragged.num_bags,)


def _read_integers(leaf: Any) -> tuple[Ragged, tuple[int, ...]]:
    if isinstance(leaf, Ragged):
        ragged = leaf.with_own_splits()
        return ragged, (ragged.num_bags,)
    if isinstance(leaf, Sparse):
        return leaf.by_bag(), leaf.dense_shape[:-1]
    return _read_scipy(leaf)


def _scalar_error(scalar: object) -> ShardcoreTypeError:
    return ShardcoreTypeError(
        f"ids must come in bags, got the scalar {scalar}; one bag of one id is [[{scalar}]]"
    )


def _read_dense(leaf: Any, function: Hash | None) -> tuple[Ragged, tuple[int, ...]]:
    if not (hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")):
        hint = "; frame.collect() gives its values" if is_lazy(leaf) else ""
        raise ShardcoreTypeError(f"ids must be {_FORMS}, got {type(leaf).__name__}{hint}")
    array = read_array(leaf, "ids")[...]  # a view whose shape only we can change
    if array.ndim == 0:
        raise _scalar_error(array.item())
    if function is not None:
        rows = hash_array(function, array, "ids")
        return Ragged.from_dense(rows), rows.shape if rows.ndim == 1 else rows.shape[:-1]
    if array.dtype == object:
        raise ShardcoreTypeError("ids must be integers, got dtype object; give a list of bags")
    ids = as_ids(array, "ids")
    return Ragged.from_dense(ids), ids.shape if ids.ndim == 1 else ids.shape[:-1]


def _read_pair(leaf: tuple[Any, ...], function: Hash | None) -> Ragged:
    if len(leaf) != 2:
        raise ShardcoreValueError(
            f"a tuple must be (values, row_splits), got {len(leaf)} entries; "
            "write a list for a list of bags"
        )
    values, row_splits = leaf
    if function is not None:
        values = hash_values(function, values)
    return Ragged(values, read_array(row_splits, "row_splits").copy())


def _read_list(leaf: list[Any], function: Hash | None) -> Ragged:
    flat = (int, np.integer) if function is None else (int, np.integer, str, bytes)
    if leaf and all(isinstance(bag, flat) for bag in leaf):
        bags = ", ".join(f"[{bag!r}]" for bag in leaf[:2]) + (", ..." if len(leaf) > 2 else "")
        kind = "strings" if isinstance(leaf[0], str | bytes) else "integers"
        raise ShardcoreTypeError(
            f"a list must be a list of bags, got a flat list of {kind}; "
            f"write [{bags}] for one id per bag, or [[...]] for one bag of them all"
        )
    return Ragged.from_lists(leaf) if function is None else hash_bags(function, leaf)


def _holds_strings(leaf: Any) -> bool:
    """Return whether bags that were refused hold strings: as far as bags are nested, no deeper."""
    for bag in leaf if isinstance(leaf, list | tuple) else [leaf]:
        for one in bag if isinstance(bag, list | tuple) else [bag]:
            if isinstance(one, np.ndarray) and one.dtype.kind in "USTO":
                one = next(iter(one.flat), None)
            if isinstance(one, str | bytes):
                return True
    return False


def _any_row(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.zeros(values.shape, np.int64)


def _flatten_leading(
    coordinates: tuple[NDArray[Any], ...], sizes: list[int] | tuple[int, ...]
) -> NDArray[np.int64]:
    flat = coordinates[0].astype(np.int64)
    for coordinate, size in zip(coordinates[1:], sizes[1:], strict=True):
        flat = flat * size + coordinate
    return flat


def _is_scipy(leaf: Any) -> bool:
    scipy_sparse = sys.modules.get("scipy.sparse")
    return scipy_sparse is not None and bool(scipy_sparse.issparse(leaf))


def _read_scipy(leaf: Any) -> tuple[Ragged, tuple[int, ...]]:
    shape = tuple(int(size) for size in leaf.shape)
    if len(shape) < 2:
        raise ShardcoreValueError(f"a scipy.sparse array must have rank >= 2, got shape {shape}")
    if leaf.format == "csr":
        row_splits = leaf.indptr.astype(np.int64)
        stored = int(row_splits[-1])  # the arrays may be longer than what they hold
        data = _scipy_weights(leaf.data[:stored])
        return Ragged(leaf.indices[:stored], row_splits, data), shape[:-1]
    coo = leaf.tocoo(copy=False)
    coordinates, data = coo.coords, coo.data
    if leaf.format in _PADDED_FORMATS:
        kept = data != 0
        coordinates, data = tuple(axis[kept] for axis in coordinates), data[kept]
    *leading, columns = coordinates
    bag_ids = _flatten_leading(tuple(leading), shape[:-1])
    bags = math.prod(shape[:-1])
    return Ragged.from_coo(bag_ids, columns, bags, _scipy_weights(data)), shape[:-1]


def _scipy_weights(data: NDArray[Any]) -> NDArray[Any]:
    # A boolean matrix says which ids are there: each weighs one, but for an explicit False.
    return data.astype(np.float32) if data.dtype == bool else as_floats(data, "data")


def _read_weights(leaf: Any, ragged: Ragged, dense_shape: tuple[int, ...] | None) -> NDArray[Any]:
    if is_of_tensorflow(leaf):
        leaf = read_tensorflow(leaf, "weights")
    if isinstance(leaf, Ragged):
        return _read_ragged_weights(leaf, ragged)
    if (
        isinstance(leaf, str | dict)
        or _is_scipy(leaf)
        or (isinstance(leaf, list | tuple) and any(isinstance(w, list | tuple) for w in leaf))
    ):
        hint = (
            "the column of that name is meant where features come as a data frame"
            if isinstance(leaf, str)
            else "for a list of bags write sc.Ragged.from_lists(...)"
        )
        raise ShardcoreTypeError(
            "weights must be None, a Ragged or Sparse of floats, or an array aligned with the ids, "
            f"got {type(leaf).__name__}; {hint}"
        )
    array = as_floats(read_array(leaf, "weights"), "weights")
    given = len(ragged.values)
    if dense_shape is not None and array.shape == dense_shape:
        return array.reshape(-1)
    if array.shape != (given,):
        shapes = f"shape {(given,)}" + ("" if dense_shape is None else f" or {dense_shape}")
        raise ShardcoreValueError(
            f"weights must have a weight per id, {shapes}, got shape {array.shape}"
        )
    _check_finite(array)  # before the order changes, so that the position is the caller's
    return array if ragged._given_order is None else array[ragged._given_order]


def _read_ragged_weights(given: Ragged, ragged: Ragged) -> NDArray[Any]:
    leaf = given.with_own_splits()
    if leaf.weights is not None:
        raise ShardcoreValueError(
            "a Ragged of weights holds them in values and must have no weights of its own"
        )
    if leaf.num_bags != ragged.num_bags:
        raise ShardcoreValueError(
            f"weights must have the bags of the ids, {ragged.num_bags}, got {leaf.num_bags}"
        )
    differ = leaf.row_splits != ragged.row_splits
    if differ.any():
        bag = int(np.argmax(differ)) - 1
        lengths = (np.diff(r.row_splits[bag : bag + 2])[0] for r in (leaf, ragged))
        got, wanted = lengths
        raise ShardcoreValueError(
            "weights must have the row_splits of the ids: "
            f"bag {bag} has {wanted} ids and {got} weights"
        )
    return as_floats(leaf.values, "weights")


def _check_finite(weights: NDArray[Any]) -> None:
    finite = np.isfinite(weights)
    if not finite.all():
        at = int(np.argmin(finite.ravel()))
        raise ShardcoreValueError(
            f"weights must be finite, got {weights.ravel()[at]} at position {at}"
        )
