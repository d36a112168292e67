"""Every input form gives the same bags; every refusal names the feature and the place."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcore.errors import ShardcoreIndexError, ShardcoreTypeError, ShardcoreValueError
from shardcore.ids.formats import as_ragged, as_weights, dense_shape
from shardcore.ids.ragged import Ragged
from shardcore.ids.sparse import Sparse

PATH = "features['clicks']"


def refuses(error: type[Exception], text: str):
    return pytest.raises(error, match="^" + re.escape(text))


class Converted:
    """What torch and JAX arrays look like from outside, first kind: ``__array__``."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class Exported:
    """The second kind: DLPack only."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def lists_of(leaf: Any) -> tuple[list[list[int]], tuple[int, ...]]:
    ragged, shape = as_ragged(leaf, PATH)
    return ragged.to_lists(), shape


# -- the same data in every form ----------------------------------------------------------------


def every_form(bags: list[list[int]]) -> dict[str, Any]:
    flat = np.array([i for bag in bags for i in bag], dtype=np.int64)
    lengths = [len(bag) for bag in bags]
    row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.repeat(np.arange(len(bags)), lengths)
    columns = np.concatenate([np.arange(n) for n in lengths] or [[]]).astype(np.int64)
    width = max(lengths, default=0)
    # Rows backwards, each bag in its order: what an unsorted SparseTensor may look like.
    backwards = np.argsort(-rows, kind="stable")
    coordinates = np.stack([rows, columns], axis=1)
    ones = np.ones(len(flat), np.float32)
    sparse_shape = (len(bags), 1000)
    arrow = pa.array(bags, type=pa.list_(pa.int64()))
    return {
        "ragged": Ragged(flat, row_splits),
        "pair": (flat, row_splits),
        "pair of int32": (flat.astype(np.int32), row_splits.astype(np.int32)),
        "pair of duck arrays": (Converted(flat), Exported(row_splits)),
        "lists": bags,
        "list of arrays": [np.array(bag, dtype=np.int64) for bag in bags],
        "csr": sp.csr_array((ones, flat, row_splits), shape=sparse_shape),
        "csr matrix": sp.csr_matrix((ones, flat, row_splits), shape=sparse_shape),
        "coo": sp.coo_array((ones, (rows, flat)), shape=sparse_shape),
        "coo backwards": sp.coo_array(
            (ones, (rows[backwards], flat[backwards])), shape=sparse_shape
        ),
        "list array": arrow,
        "large list array": arrow.cast(pa.large_list(pa.int64())),
        "sliced list array": pa.concat_arrays([pa.array([[1, 2]]), arrow, pa.array([[3]])]).slice(
            1, len(bags)
        ),
        "chunked list array": pa.chunked_array([arrow[:1], arrow[1:]], type=pa.list_(pa.int64())),
        "uint16 list array": arrow.cast(pa.list_(pa.uint16())),
        "sparse": Sparse(coordinates, flat, (len(bags), width)),
        "sparse backwards": Sparse(coordinates[backwards], flat[backwards], (len(bags), width)),
    }


BAGS = st.lists(st.lists(st.integers(0, 999), max_size=4), max_size=6)


@settings(max_examples=60, deadline=None)
@given(BAGS)
def test_the_same_data_in_every_form_gives_the_same_ragged(bags):
    for name, leaf in every_form(bags).items():
        ragged, shape = as_ragged(leaf, PATH)
        assert ragged.to_lists() == bags, name
        assert shape == (len(bags),), name
        assert ragged.row_splits.dtype == np.int64, name
        assert ragged.values.dtype in (np.int32, np.int64), name
        weights = as_weights(None, ragged, dense_shape(leaf), "weights['clicks']")
        weighted = name.startswith(("csr", "coo"))
        assert (weights is not None) == weighted, name
        assert weights is None or (weights == 1).all(), name


@settings(max_examples=60, deadline=None)
@given(BAGS, st.data())
def test_the_same_weights_in_every_form_find_the_same_ids(bags, data):
    count = sum(map(len, bags))
    flat = np.array(
        data.draw(st.lists(st.floats(-8, 8, width=32), min_size=count, max_size=count)),
        dtype=np.float32,
    )
    lengths = [len(bag) for bag in bags]
    row_splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = np.repeat(np.arange(len(bags)), lengths)
    ids = np.array([i for bag in bags for i in bag], dtype=np.int64)
    backwards = np.argsort(-rows, kind="stable")
    shape = (len(bags), 1000)
    for name, leaf in every_form(bags).items():
        if name.startswith(("csr", "coo")):
            continue
        ragged, _ = as_ragged(leaf, PATH)
        given_flat = flat[backwards] if name.endswith("backwards") else flat
        for weights in (given_flat, list(given_flat), Converted(given_flat), Exported(given_flat)):
            got = as_weights(weights, ragged, dense_shape(leaf), "weights")
            assert got is not None
            assert got.tolist() == flat.tolist(), name
        got = as_weights(Ragged(flat, row_splits), ragged, dense_shape(leaf), "weights")
        assert got is not None
        assert got.tolist() == flat.tolist(), name
    for matrix in (
        sp.csr_array((flat, ids, row_splits), shape=shape),
        sp.coo_array((flat[backwards], (rows[backwards], ids[backwards])), shape=shape),
        Ragged(ids, row_splits, flat),
    ):
        ragged, _ = as_ragged(matrix, PATH)
        assert ragged.to_lists() == bags
        got = as_weights(None, ragged, dense_shape(matrix), "weights")
        assert got is not None
        assert got.tolist() == flat.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.sampled_from([np.int8, np.uint8, np.int32, np.int64, np.uint64]),
)
def test_dense_arrays_of_every_rank(shape, dtype):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    batch = tuple(shape) if len(shape) == 1 else tuple(shape[:-1])
    bags = x.reshape(-1, 1) if x.ndim == 1 else x.reshape(int(np.prod(batch)), shape[-1])
    for leaf in (x, np.asfortranarray(x), Converted(x), Exported(x)):
        ragged, got = as_ragged(leaf, PATH)
        assert got == batch
        assert ragged.to_lists() == bags.tolist()
        assert dense_shape(leaf) == tuple(shape)
        weights = as_weights(x.astype(np.float64) / 2, ragged, dense_shape(leaf), "weights")
        assert weights is not None
        assert weights.tolist() == (bags / 2).ravel().tolist()


def test_nothing_is_copied_where_nothing_must_be():
    ids, row_splits = np.arange(6), np.array([0, 3, 6])
    weights = np.ones(6, np.float32)
    leaves = [
        ids.reshape(2, 3),
        (ids, row_splits),
        Converted(ids.reshape(2, 3)),
        Exported(ids.reshape(2, 3)),
        sp.csr_array((weights, ids.astype(np.int64), row_splits), shape=(2, 10)),
        Ragged(ids, row_splits),
    ]
    for leaf in leaves:
        source = leaf.indices if sp.issparse(leaf) else ids
        assert np.shares_memory(as_ragged(leaf, PATH)[0].values, source)
    got = as_weights(weights, as_ragged(ids, PATH)[0], (6,), "weights")
    assert got is not None
    assert np.shares_memory(got, weights)


def test_arrow_values_are_not_copied():
    array = pa.array([[1, 2], [3], [4, 5]])
    values = as_ragged(array, PATH)[0].values
    assert values.ctypes.data == array.values.buffers()[1].address


# -- single forms -------------------------------------------------------------------------------


def test_lists():
    assert lists_of([]) == ([], (0,))
    assert lists_of([[], []]) == ([[], []], (2,))
    assert lists_of([(1,), [2, 3]]) == ([[1], [2, 3]], (2,))


def test_empty_arrays_need_no_integer_dtype():
    assert lists_of(np.array([])) == ([], (0,))
    assert lists_of(np.zeros((3, 0))) == ([[], [], []], (3,))
    assert lists_of((np.array([]), [0, 0])) == ([[]], (1,))
    assert lists_of(Ragged(np.array([]), [0, 0])) == ([[]], (1,))


def test_scipy_keeps_duplicates_and_explicit_zeros():
    csr = sp.csr_array((np.array([0.0, 2.0, 3.0]), np.array([4, 1, 1]), np.array([0, 2, 3, 3])))
    ragged, shape = as_ragged(csr, PATH)
    assert (ragged.to_lists(), shape) == ([[4, 1], [1], []], (3,))
    assert ragged.weights is not None
    assert ragged.weights.tolist() == [0.0, 2.0, 3.0]
    coo = sp.coo_array(([1.0, 2.0, 0.0], ([1, 1, 0], [3, 3, 2])), shape=(3, 5))
    ragged, _ = as_ragged(coo, PATH)
    assert ragged.to_lists() == [[2], [3, 3], []]
    assert ragged.weights is not None
    assert ragged.weights.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "dia", "bsr"])
def test_scipy_in_every_format(form):
    dense = np.array([[0, 2.0, 0, 0], [0, 0, 0, 0], [3.0, 0, 0, 4.0]])
    matrix = sp.coo_array(dense).asformat(form)
    if form == "bsr":
        matrix = sp.bsr_array(dense, blocksize=(3, 2))
    ragged, shape = as_ragged(matrix, PATH)
    assert (ragged.to_lists(), shape) == ([[1], [], [0, 3]], (3,))
    assert ragged.weights is not None
    assert ragged.weights.tolist() == [2.0, 3.0, 4.0]


def test_scipy_data_types():
    def weights_of(data):
        matrix = sp.csr_array((data, np.array([0, 1]), np.array([0, 2])), shape=(1, 2))
        return as_ragged(matrix, PATH)[0].weights

    for data, dtype in (
        (np.array([True, True]), np.float32),
        (np.array([1, 1], np.int32), np.float64),
        (np.array([1, 1], np.float32), np.float32),
    ):
        weights = weights_of(data)
        assert weights is not None
        assert weights.dtype == dtype
        assert weights.tolist() == [1, 1]
    with refuses(
        ShardcoreTypeError,
        f"{PATH}: data must be float16, bfloat16, float32 or float64, got dtype complex128",
    ):
        weights_of(np.array([1j, 1j]))


def test_scipy_csr_with_spare_room():
    csr = sp.csr_array((3, 9))
    csr.indptr = np.array([0, 1, 1, 2], np.int32)
    csr.indices = np.array([4, 5, 8, 8], np.int32)
    csr.data = np.array([1.0, 2.0, np.nan, np.nan])
    assert lists_of(csr) == ([[4], [], [5]], (3,))


def test_scipy_of_higher_rank_flattens_its_leading_axes():
    coordinates = (np.array([1, 0, 1]), np.array([2, 0, 2]), np.array([5, 6, 7]))
    coo = sp.coo_array((np.array([1.0, 2.0, 3.0]), coordinates), shape=(2, 3, 9))
    ragged, shape = as_ragged(coo, PATH)
    assert shape == (2, 3)
    assert ragged.to_lists() == [[6], [], [], [], [], [5, 7]]
    assert ragged.weights is not None
    assert ragged.weights.tolist() == [2.0, 1.0, 3.0]


def test_scipy_of_rank_one_is_refused():
    with refuses(
        ShardcoreValueError, f"{PATH}: a scipy.sparse array must have rank >= 2, got shape (3,)"
    ):
        as_ragged(sp.coo_array(np.array([1.0, 0, 2.0])), PATH)


def test_sparse_of_higher_rank_keeps_the_batch_shape():
    s = Sparse([[1, 2, 0], [0, 0, 1], [1, 2, 5]], [7, 8, 9], (2, 3, 6))
    assert lists_of(s) == ([[8], [], [], [], [], [7, 9]], (2, 3))
    assert lists_of(Sparse(np.zeros((0, 3)), [], (2, 0, 6))) == ([], (2, 0))


def test_sparse_keeps_trailing_empty_rows():
    assert lists_of(Sparse([[1, 0]], [7], (4, 3))) == ([[], [7], [], []], (4,))


def test_arrow_forms():
    fixed = pa.array([[1, 2], [3, 4], [5, 6]], type=pa.list_(pa.int32(), 2))
    assert lists_of(fixed) == ([[1, 2], [3, 4], [5, 6]], (3,))
    assert lists_of(fixed.slice(1, 2)) == ([[3, 4], [5, 6]], (2,))
    assert lists_of(pa.array([3, 4])) == ([[3], [4]], (2,))
    assert lists_of(pa.chunked_array([[3], [4, 5]])) == ([[3], [4], [5]], (3,))
    assert lists_of(pa.array([[], []])) == ([[], []], (2,))
    assert lists_of(pa.chunked_array([], type=pa.list_(pa.int64()))) == ([], (0,))
    assert as_ragged(fixed, PATH)[0].values.dtype == np.int32


@pytest.mark.parametrize(
    ("leaf", "error", "text"),
    [
        (pa.array([[1], None, [2]]), ShardcoreValueError,
         "bags must not be null, got a null at position 1"),
        (pa.array([[9], [1], None]).slice(1), ShardcoreValueError,
         "bags must not be null, got a null at position 1"),
        (pa.array([[1], [2, None]]), ShardcoreValueError,
         "values must not be null, got a null at position 2"),
        (pa.array([1, None]), ShardcoreValueError,
         "ids must not be null, got a null at position 1"),
        (pa.array([[0.5]]), ShardcoreTypeError, "values must be integers, got dtype float64"),
        (pa.array([["a"]]), ShardcoreTypeError, "values must be integers, got pyarrow string"),
        (pa.array([[True]]), ShardcoreTypeError, "values must be integers, got dtype bool"),
        (pa.array([[[1]]]), ShardcoreTypeError, "values must be integers, got pyarrow list<"),
        (pa.array([{"a": 1}]), ShardcoreTypeError,
         "a pyarrow array must be a list of integers, got struct<a: int64>"),
        (pa.table({"a": [1]}), ShardcoreTypeError, "ids must be sc.Ragged, sc.Sparse, "),
        (pa.array([[2**63]], type=pa.list_(pa.uint64())), ShardcoreValueError,
         "values[0] = 9223372036854775808 does not fit int64"),
    ],
)  # fmt: skip
def test_arrow_refusals(leaf, error, text):
    with refuses(error, f"{PATH}: {text}"):
        as_ragged(leaf, PATH)


FORMS = (
    "sc.Ragged, sc.Sparse, a dense array, a tuple (values, row_splits), a list of bags, "
    "a scipy.sparse array, an Arrow column of lists (pyarrow, polars, pandas) or TensorFlow's "
    "RaggedTensor or SparseTensor"
)


@pytest.mark.parametrize(
    ("leaf", "error", "text"),
    [
        (None, ShardcoreTypeError, f"ids must be {FORMS}, got NoneType"),
        ("abc", ShardcoreTypeError, f"ids must be {FORMS}, got str"),
        ({"a": [1]}, ShardcoreTypeError, f"ids must be {FORMS}, got dict"),
        (object(), ShardcoreTypeError, f"ids must be {FORMS}, got object"),
        (7, ShardcoreTypeError,
         "ids must come in bags, got the scalar 7; one bag of one id is [[7]]"),
        (np.int64(7), ShardcoreTypeError,
         "ids must come in bags, got the scalar 7; one bag of one id is [[7]]"),
        (np.array(7), ShardcoreTypeError,
         "ids must come in bags, got the scalar 7; one bag of one id is [[7]]"),
        (Exported(np.array(7)), ShardcoreTypeError,
         "ids must come in bags, got the scalar 7; one bag of one id is [[7]]"),
        ([1, 2, 3], ShardcoreTypeError,
         "a list must be a list of bags, got a flat list of integers; "
         "write [[1], [2], ...] for one id per bag, or [[...]] for one bag of them all"),
        ([4], ShardcoreTypeError,
         "a list must be a list of bags, got a flat list of integers; write [[4]] for"),
        ([[1], 2], ShardcoreTypeError, "lists[1] must be a bag, a list of integers, got 2"),
        ([[1], [0.5]], ShardcoreTypeError, "values must be integers, got dtype float64"),
        ([[1], [[2]]], ShardcoreTypeError, "lists[1][0] must be a number, got [2]"),
        ([[1], [2, 2**63]], ShardcoreValueError,
         "lists[1][1] = 9223372036854775808 does not fit int64"),
        (([1], [2], [3]), ShardcoreValueError,
         "a tuple must be (values, row_splits), got 3 entries; write a list for a list of bags"),
        (([1, 2], [0, 3]), ShardcoreValueError,
         "row_splits must end at the number of values, 2"),
        ((np.array([1, 2, 3]), np.array([0, 2, 1, 3])), ShardcoreValueError,
         "row_splits must be non-decreasing: row_splits[2] = 1 < row_splits[1] = 2"),
        (([0.5], [0, 1]), ShardcoreTypeError, "values must be integers, got dtype float64"),
        (np.array([0.5]), ShardcoreTypeError, "ids must be integers, got dtype float64"),
        (np.array([[True]]), ShardcoreTypeError, "ids must be integers, got dtype bool"),
        (np.array([[1], [2, 3]], dtype=object), ShardcoreTypeError,
         "ids must be integers, got dtype object; give a list of bags"),
        (np.array([[3, 2**63]], np.uint64), ShardcoreValueError,
         "ids[0, 1] = 9223372036854775808 does not fit int64"),
        (np.ma.masked_array([1], [True]), ShardcoreTypeError, "ids must not be a masked array"),
        (Ragged([0.5], [0, 1]), ShardcoreTypeError, "values must be integers, got dtype float64"),
    ],
)  # fmt: skip
def test_refusals(leaf, error, text):
    with refuses(error, f"{PATH}: {text}"):
        as_ragged(leaf, PATH)


def test_an_index_error_stays_one_under_its_path():
    coo = sp.coo_array(([1.0], ([1], [0])), shape=(3, 2))
    coo.coords = (np.array([5]), np.array([0]))  # SciPy checks at construction only
    with refuses(ShardcoreIndexError, f"{PATH}: row_ids[0] = 5 must be in [0, 3)"):
        as_ragged(coo, PATH)


# -- weights ------------------------------------------------------------------------------------

THREE = Ragged([7, 8, 9], [0, 2, 3])


def test_no_weights():
    assert as_weights(None, THREE, None, "weights") is None


def test_weights_keep_their_float_type_and_integers_become_float64():
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        got = as_weights(np.ones(3, dtype), THREE, None, "weights")
        assert got is not None
        assert got.dtype == dtype
    for weights in ([1, 2, 3], Ragged([1, 2, 3], [0, 2, 3])):
        got = as_weights(weights, THREE, None, "weights")
        assert got is not None
        assert got.dtype == np.float64


def test_weights_are_cast_to_the_dtype_asked_for():
    got = as_weights([0.1, 0.2, 0.3], THREE, None, "weights", np.dtype(np.float32))
    assert got is not None
    assert got.dtype == np.float32
    assert got.tolist() == np.array([0.1, 0.2, 0.3], np.float32).tolist()
    with refuses(ShardcoreValueError, "weights['a']: weights[1] = 1e+300 does not fit float32"):
        as_weights([1.0, 1e300, 2.0], THREE, None, "weights['a']", np.dtype(np.float32))


def test_a_ragged_the_user_made_from_coo_takes_flat_weights_in_the_order_it_shows():
    r = Ragged.from_coo([1, 0], [7, 8], 2)
    ragged, _ = as_ragged(r, PATH)
    got = as_weights([0.25, 0.5], ragged, None, "weights")
    assert got is not None
    assert ragged.values.tolist() == [8, 7]
    assert got.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("leaf", "ragged", "shape", "error", "text"),
    [
        ([1.0, 2.0], THREE, None, ShardcoreValueError,
         "weights must have a weight per id, shape (3,), got shape (2,)"),
        (np.ones((3, 1)), THREE, None, ShardcoreValueError,
         "weights must have a weight per id, shape (3,), got shape (3, 1)"),
        (np.ones((3, 2)), as_ragged(np.ones((2, 3), int), PATH)[0], (2, 3), ShardcoreValueError,
         "weights must have a weight per id, shape (6,) or (2, 3), got shape (3, 2)"),
        ([1.0, np.nan, 2.0], THREE, None, ShardcoreValueError,
         "weights must be finite, got nan at position 1"),
        (Ragged([1.0, 2.0, -np.inf], [0, 2, 3]), THREE, None, ShardcoreValueError,
         "weights must be finite, got -inf at position 2"),
        (None, Ragged([7, 8], [0, 2], [np.inf, 1]), None, ShardcoreValueError,
         "weights must be finite, got inf at position 0"),
        (np.array([True, False, True]), THREE, None, ShardcoreTypeError,
         "weights must be float16, bfloat16, float32 or float64, got dtype bool"),
        ([True, 1.0, 1.0], THREE, None, ShardcoreTypeError,
         "weights[0] must be a number, got True"),
        (0.5, THREE, None, ShardcoreTypeError, "weights must be an array, got float"),
        (Ragged([1.0, 2.0], [0, 1, 2]), THREE, None, ShardcoreValueError,
         "weights must have the row_splits of the ids: bag 0 has 2 ids and 1 weights"),
        (Ragged([1.0, 2.0, 3.0], [0, 2, 2, 3]), THREE, None, ShardcoreValueError,
         "weights must have the bags of the ids, 2, got 3"),
        (Ragged([1.0, 2.0], [0, 2, 2]), THREE, None, ShardcoreValueError,
         "weights must have the row_splits of the ids: bag 1 has 1 ids and 0 weights"),
        (Ragged([1.0, 2.0, 3.0], [0, 2, 3], [1, 1, 1]), THREE, None, ShardcoreValueError,
         "a Ragged of weights holds them in values and must have no weights of its own"),
        ([1.0], Ragged([7], [0, 1], [0.5]), None, ShardcoreValueError,
         "the ids have weights of their own (Ragged.weights or the data of a scipy.sparse array); "
         "give None here"),
        ([[1.0, 2.0], [3.0]], THREE, None, ShardcoreTypeError,
         "weights must be None, a Ragged or Sparse of floats, or an array aligned with the ids, "
         "got list; "
         "for a list of bags write sc.Ragged.from_lists(...)"),
        (sp.csr_array(np.ones((2, 2))), THREE, None, ShardcoreTypeError,
         "weights must be None, a Ragged or Sparse of floats, or an array aligned with the ids, "
         "got csr_array"),
        (Sparse([[0, 0]], [1], (1, 1)), THREE, None, ShardcoreTypeError,
         "weights must be an array, got Sparse"),
    ],
)  # fmt: skip
def test_refused_weights(leaf, ragged, shape, error, text):
    with refuses(error, f"weights['clicks']: {text}"):
        as_weights(leaf, ragged, shape, "weights['clicks']")


def test_the_position_of_a_bad_weight_is_the_caller_s():
    unsorted = Sparse([[1, 0], [0, 0]], [7, 8], (2, 1))
    ragged, _ = as_ragged(unsorted, PATH)
    with refuses(ShardcoreValueError, "w: weights must be finite, got nan at position 0"):
        as_weights([np.nan, 1.0], ragged, None, "w")


def test_scipy_and_pyarrow_are_never_imported():
    code = """
        import sys
        import numpy as np
        from shardcore.ids.formats import as_ragged, as_weights, dense_shape
        for leaf in ([[1]], np.array([1]), ([1], [0, 1])):
            ragged, _ = as_ragged(leaf, "features")
            as_weights([1.0], ragged, dense_shape(leaf), "weights")
        print(sorted({"scipy", "pyarrow", "torch", "jax"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([["a"], [1]], "lists[0][0] must be a number, got 'a'"),
        (["a", "b"], "lists[0] must be a bag, a list of integers, got 'a'"),
        (([b"x"], [0, 1]), "values[0] must be a number, got b'x'"),
        (np.array(["a"]), "ids must be integers, got dtype <U1"),
        (np.array([b"a"]), "ids must be integers, got dtype |S1"),
        (np.array(["a"], object), "ids must be integers, got dtype object; give a list of bags"),
    ],
)
def test_strings_without_a_hash_are_told_of_it(ids, told):
    hint = "; strings are hashed by FeatureConfig(table, hash=sc.Hash(buckets))"
    with pytest.raises(ShardcoreTypeError, match=f"^{re.escape(f'features: {told}{hint}')}$"):
        as_ragged(ids, "features")


@pytest.mark.parametrize("ids", [[[1.5]], np.array([1.5]), "ab", [[None]], np.array([None])])
def test_what_is_no_string_is_not_told_of_hashes(ids):
    with pytest.raises(ShardcoreTypeError) as raised:
        as_ragged(ids, "features")
    assert "hash" not in str(raised.value)
