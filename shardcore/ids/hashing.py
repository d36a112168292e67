"""Hashing of strings and ids into rows of a table: always asked for, never behind one's back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from shardcore.errors import ShardcoreError, ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.ids.arrow import arrow_array, is_arrow_column, read_arrow_column
from shardcore.ids.arrow_strings import hash_arrow, integers_refused
from shardcore.ids.digests import KINDS, Kind, hash_fixed, hash_integers, hash_words
from shardcore.ids.ragged import Ragged
from shardcore.validation.arrays import read_array
from shardcore.validation.integers import place_in
from shardcore.validation.shapes import check_rank

__all__ = ["Hash", "hash_array", "hash_bags", "hash_ids", "hash_values", "hashed"]

HashableIds: TypeAlias = NDArray[Any] | Sequence[str | bytes | int] | int | np.integer[Any]

_MAX_BUCKETS: Final = 2**63 - 1  # rows are int64
_WORD: Final = 2**64 - 1
_STRINGS: Final = "OSUT"  # Python objects, and NumPy's kinds of strings
_RULE: Final = "ids must be an array or a sequence of integers, of str or of bytes"

_COLUMNS: Final = "a column of integers, strings or binary, or of lists of them"

Place: TypeAlias = Callable[[int], str]


@dataclass(frozen=True, repr=False)
class Hash:
    """A function from strings or integers to rows: the same in every process on every platform.

    Give it as ``FeatureConfig(table, hash=...)`` to have a feature's values hashed before they are
    looked up, or call it.

    A str is hashed by its UTF-8, bytes are as they are: ``"é"`` and ``"é".encode()`` share a row.
    The kind "xxh64" is XXH64 of these bytes with `seed`; "farmhash64" is FarmHash's Fingerprint64,
    and gives the buckets of TensorFlow's ``tf.strings.to_hash_bucket_fast``. An integer x, taken
    modulo 2**64, is mixed by the finaliser of splitmix64, whatever its dtype::

        z = x + (seed + 1) * 0x9E3779B97F4A7C15
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB
        z = z ^ (z >> 31)

    all modulo 2**64. The row is the hash, as an unsigned integer, modulo `buckets`. Different
    values may share a row: n values over b buckets make about n**2 / 2b pairs that do, if n < b.

    Parameters
    ----------
    buckets : int
        Rows are in ``[0, buckets)``; in [1, 2**63).
    seed : int, default 0
        In [0, 2**64). Another seed is another function. "farmhash64" has none.
    kind : {"xxh64", "farmhash64"}
        The hash of strings. "farmhash64" refuses integers, as TensorFlow's function does.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule.

    Notes
    -----
    Any number of buckets is as good as another: of two rows, one is drawn at most
    ``1 + buckets / 2**64`` times as often as the other, for up to 2**32 buckets less than one part
    in 4 * 10**9 more.

    XXH64: Collet, "xxHash fast digest algorithm", doc/xxhash_spec.md of xxHash. FarmHash: Pike,
    google/farmhash. splitmix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014, with the constants of Vigna's ``splitmix64.c``.

    Examples
    --------
    >>> rows_of = Hash(1000, seed=3)
    >>> rows_of
    Hash(1000, seed=3)
    >>> rows_of(["user:7", "user:8"])
    array([ 17, 817])
    >>> rows_of([["user:7", "user:8"], []])
    Ragged([[17, 817], []], dtype=int64)
    """

    buckets: int
    seed: int = 0
    kind: Kind = "xxh64"

    def __post_init__(self) -> None:
        buckets = _in_range(self.buckets, "buckets", 1, _MAX_BUCKETS, "2**63")
        seed = _in_range(self.seed, "seed", 0, _WORD, "2**64")
        rule = f"kind must be one of {', '.join(map(repr, KINDS))}, got {shown(self.kind)}"
        if not isinstance(self.kind, str):
            raise ShardcoreTypeError(rule)
        if self.kind not in KINDS:
            raise ShardcoreValueError(rule)
        if self.kind == "farmhash64" and seed:
            raise ShardcoreValueError(f"seed must be 0: kind='farmhash64' has none, got {seed}")
        object.__setattr__(self, "buckets", buckets)
        object.__setattr__(self, "seed", seed)

    def __repr__(self) -> str:
        seed = f", seed={self.seed}" if self.seed else ""
        kind = f", kind={self.kind!r}" if self.kind != KINDS[0] else ""
        return f"Hash({self.buckets}{seed}{kind})"

    @overload
    def __call__(self, ids: HashableIds) -> NDArray[np.int64]: ...

    @overload
    def __call__(self, ids: Ragged) -> Ragged: ...

    @overload
    def __call__(self, ids: Any) -> NDArray[np.int64] | Ragged: ...

    def __call__(self, ids: Any) -> NDArray[np.int64] | Ragged:
        """Return a row in ``[0, buckets)`` for every id.

        Parameters
        ----------
        ids : array, sequence, Ragged or Arrow column
            Integers, or str and bytes. An array of any shape, its dtype an integer type, NumPy's
            "U", "S" or ``StringDType``, or object. A list or tuple, or lists in a list. An Arrow
            column (pyarrow, polars, pandas) of integers, strings or binary, dictionary-encoded
            or not, or of lists of them; a null is an error.

        Returns
        -------
        ndarray of int64
            The shape of `ids`, where they have one.
        Ragged
            For a `Ragged`, a column of lists, and lists of different lengths in a list.

        Raises
        ------
        ShardcoreTypeError
            If an id is neither an integer nor a string, or an integer among strings.
        ShardcoreValueError
            If an integer needs more than 64 bits, or a str has a surrogate in it and so no UTF-8.
        UnavailableError
            If pyarrow is needed and is not installed.
        """
        if isinstance(ids, Ragged):
            return hashed(self, ids.with_own_splits())
        if isinstance(ids, str | bytes | bytearray | memoryview):
            raise ShardcoreTypeError(f"{_RULE}, got the {type(ids).__name__} {ids!r}")
        if isinstance(ids, list | tuple):
            return _hash_sequence(self, list(ids))
        if not is_arrow_column(ids):
            return hash_array(self, ids, "ids")
        column = arrow_array(ids, _COLUMNS)
        ragged = read_arrow_column(column, None, _COLUMNS, self._of_column)
        return ragged if column.type.num_fields else ragged.values

    def _of_column(
        self, array: Any, name: str, valid: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        return hash_arrow(array, name, valid, self.kind, self.seed, self.buckets)


@overload
def hash_ids(ids: HashableIds, buckets: int, seed: int = 0) -> NDArray[np.int64]: ...


@overload
def hash_ids(ids: Ragged, buckets: int, seed: int = 0) -> Ragged: ...


@overload
def hash_ids(ids: Any, buckets: int, seed: int = 0) -> NDArray[np.int64] | Ragged: ...


def hash_ids(ids: Any, buckets: int, seed: int = 0) -> NDArray[np.int64] | Ragged:
    """Return ``Hash(buckets, seed)(ids)``: a row in ``[0, buckets)`` for every id.

    Parameters
    ----------
    ids : array, sequence, Ragged or Arrow column
        Of integers, or of str and bytes; see `Hash`.
    buckets : int
        Number of rows of the table, in [1, 2**63).
    seed : int, default 0
        In [0, 2**64). Another seed is another hash function.

    Returns
    -------
    ndarray of int64, the shape of `ids`; or Ragged, for bags of different lengths

    Raises
    ------
    ShardcoreTypeError
        If `ids` are neither integers nor strings, or `buckets` or `seed` is no integer.
    ShardcoreValueError
        If `buckets` or `seed` is out of its range, an id needs more than 64 bits, or a str has no
        UTF-8.

    Examples
    --------
    >>> hash_ids([[7, 8], [9, 7]], buckets=1000)
    array([[487, 622],
           [228, 487]])
    >>> hash_ids(["user:7", "user:8"], buckets=1000)
    array([503, 428])
    """
    rows: NDArray[np.int64] | Ragged = Hash(buckets, seed)(ids)
    return rows


def hashed(function: Hash, ragged: Ragged) -> Ragged:
    """Return bags of integers with their rows in place of their values.

    Examples
    --------
    >>> hashed(Hash(1000), Ragged([7, 8], [0, 2]))
    Ragged([[487, 622]], dtype=int64)
    """
    rows = hash_array(function, ragged.values, "values")
    return ragged.with_values(rows)


def hash_array(function: Hash, ids: Any, argument: str) -> NDArray[np.int64]:
    """Return the rows of an array of integers or strings, in its shape.

    Parameters
    ----------
    function : Hash
    ids : array, or any with ``__array__`` or ``__dlpack__``; or a scalar
        Of an integer dtype, NumPy's kinds of strings, or objects. Empty, of any.
    argument : str
        Its name, for the message.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If it holds something else, or what cannot be hashed.

    Examples
    --------
    >>> hash_array(Hash(1000), np.array([["user:7"], ["user:8"]]), "ids")
    array([[503],
           [428]])
    """
    if hasattr(ids, "__array__") or hasattr(ids, "__dlpack__"):
        array = read_array(ids, argument)
    else:
        array = np.array(ids, dtype=object)
    if array.dtype.kind in "iu":
        _refuse_integers(function, f"dtype {array.dtype}")
        return hash_integers(array, function.seed, function.buckets)
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in _STRINGS:
        raise ShardcoreTypeError(f"{_RULE}, got dtype {array.dtype}")
    shape = array.shape
    if array.dtype.kind in "SU":
        rows, bad = hash_fixed(array, function.kind, function.seed, function.buckets)
        if bad >= 0:
            raise ShardcoreValueError(
                f"ids must be valid Unicode, got {place_in(argument, bad, shape)}, "
                "which has no UTF-8"
            )
        return rows
    words = array.ravel().tolist()
    return _hash_list(function, words, lambda at: place_in(argument, at, shape)).reshape(shape)


def hash_values(function: Hash, values: Any) -> NDArray[np.int64]:
    """Return the rows of the values of a pair (values, row_splits), shape (values,).

    Parameters
    ----------
    function : Hash
    values : list, tuple or array of integers or strings, of rank 1

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If they are no such values, or cannot be hashed.

    Examples
    --------
    >>> hash_values(Hash(1000), ("user:7", "user:8"))
    array([503, 428])
    """
    if isinstance(values, list | tuple):
        return _hash_list(function, list(values), "values[{}]".format)
    rows = hash_array(function, values, "values")
    if rows.ndim != 1:
        raise ShardcoreValueError(f"values must have rank 1, got shape {rows.shape}")
    return rows


def hash_bags(function: Hash, lists: Sequence[Any]) -> Ragged:
    """Return the rows of one list of integers or strings per bag.

    Parameters
    ----------
    function : Hash
    lists : sequence of bags
        A bag is a list, tuple or array of rank 1.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If a bag is no list, or holds what cannot be hashed.

    Examples
    --------
    >>> hash_bags(Hash(1000), [["user:7", "user:8"], []])
    Ragged([[503, 428], []], dtype=int64)
    """
    return _hash_bags_of(function, *_flattened(_bag_lists(list(lists), "lists")), "lists")


def _in_range(value: object, argument: str, low: int, high: int, bound: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ShardcoreTypeError(f"{argument} must be an integer, got {shown(value)}")
    if not low <= value <= high:
        raise ShardcoreValueError(f"{argument} must be in [{low}, {bound}), got {value}")
    return int(value)


def _hash_sequence(function: Hash, ids: list[Any]) -> NDArray[np.int64] | Ragged:
    """Hash a list that nobody else has; lists in it may be others'."""
    if not ids or not isinstance(ids[0], list | tuple | np.ndarray):
        return _hash_list(function, ids, "ids[{}]".format)
    check_rank(ids, "ids")
    if all(map(_is_bag, ids)):
        bags = _bag_lists(ids, "ids")
        first = next(filter(None, bags), [None])[0]
        if not isinstance(first, list | tuple | np.ndarray):
            words, lengths = _flattened(bags)
            if len(set(lengths)) > 1:
                return _hash_bags_of(function, words, lengths, "ids")
            shape = (len(lengths), lengths[0])
            rows = _hash_list(function, words, lambda at: place_in("ids", at, shape))
            return rows.reshape(shape)
    try:
        array = np.array(ids, dtype=object)
    except ValueError as error:
        raise ShardcoreValueError(f"ids must form one rectangular array: {error}") from error
    return hash_array(function, array, "ids")


def _is_bag(value: object) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _bag_lists(bags: Sequence[Any], argument: str) -> Sequence[Sequence[Any]]:
    """Return bags as lists and tuples."""
    if set(map(type, bags)) <= {list, tuple}:
        return bags
    return [
        bag if isinstance(bag, (list, tuple)) else _words_of(bag, f"{argument}[{at}]")
        for at, bag in enumerate(bags)
    ]


def _flattened(bags: Sequence[Sequence[Any]]) -> tuple[list[Any], list[int]]:
    """Return the ids of all bags as a list that nobody else has, and the length of each bag."""
    words, lengths = list(chain.from_iterable(bags)), list(map(len, bags))
    if sum(lengths) != len(words):  # another thread has changed one in between
        bags = list(map(list, bags))  # which takes as long as to hash them
        words, lengths = list(chain.from_iterable(bags)), list(map(len, bags))
    return words, lengths


def _words_of(bag: Any, name: str) -> list[Any]:
    if not hasattr(bag, "__array__") or isinstance(bag, np.generic):
        raise ShardcoreTypeError(f"{name} must be a bag, a list of ids, got {shown(bag)}")
    array = read_array(bag, name)
    if array.ndim != 1:
        raise ShardcoreValueError(f"{name} must have rank 1, got shape {array.shape}")
    try:
        return list(array.tolist())
    except (ValueError, SystemError) as error:  # any 32 bits may stand for a character in "U"
        raise ShardcoreValueError(f"{name} must be valid Unicode: {error}") from error


def _hash_bags_of(function: Hash, words: list[Any], lengths: list[int], argument: str) -> Ragged:
    starts = list(accumulate(lengths, initial=0))

    def place(at: int) -> str:
        bag = bisect_right(starts, at) - 1
        return f"{argument}[{bag}][{at - starts[bag]}]"

    rows = _hash_list(function, words, place)
    return Ragged(rows, np.array(starts, np.int64))


def _hash_list(function: Hash, words: list[Any], place: Place) -> NDArray[np.int64]:
    """Return the row of each id of a list that nobody else has, or raise with an id's place."""
    rows, bad = hash_words(words, function.kind, function.seed, function.buckets)
    if bad < 0:
        return rows
    word = words[bad]
    if isinstance(word, str):
        raise _unicode_error(place(bad), word)
    if bad == 0 and _is_integer(type(word)):
        return _hash_python_integers(function, words, place)
    raise ShardcoreTypeError(f"{_RULE}, got {place(bad)} = {shown(word)}")


def _is_integer(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and kind is not bool


def _unicode_error(place: str, word: str) -> ShardcoreError:
    try:
        str.encode(word)
    except UnicodeEncodeError as error:
        at = error.start
    return ShardcoreValueError(
        f"ids must be valid Unicode, got {place} = {word!r}, whose position {at} is none"
    )


def _hash_python_integers(function: Hash, words: list[Any], place: Place) -> NDArray[np.int64]:
    kinds = set(map(type, words))
    odd = {kind for kind in kinds if not _is_integer(kind)}
    if odd:
        at = next(at for at, value in enumerate(words) if type(value) in odd)
        raise ShardcoreTypeError(f"{_RULE}, got {place(at)} = {shown(words[at])}")
    _refuse_integers(function, f"{place(0)} = {words[0]}")
    for at, value in enumerate(words):
        if not -(2**63) <= value <= _WORD:
            raise ShardcoreValueError(f"ids must fit into 64 bits, got {place(at)} = {value}")
    array = np.array([int(value) & _WORD for value in words], np.uint64)
    return hash_integers(array, function.seed, function.buckets)


def _refuse_integers(function: Hash, got: str) -> None:
    if function.kind == "farmhash64":
        raise ShardcoreTypeError(integers_refused("ids", got))
