"""Nothing crashes while another thread writes into the arrays that a call was given.

Groups of entries run in processes of their own, this file being their script: a thread flips one
element between its value and wild ones, which as rows, bags or shards lie far outside of memory,
and the entry is called for a while. Every call either gives the answer for the valid value or
raises one of shardcore's errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import shardcore as sc
from shardcore.ids import row_splits as offsets
from shardcore.store.segment_reduce import segment_reduce

ROWS, DIM, BAGS, PER = 3000, 2, 5000, 4
N = BAGS * PER
WILD = (2**44, -(2**44), N + 1)
# For an entry; SHARDCORE_TEST_SECONDS is how long samples by chance go on, 3 in .ci/run.
SECONDS = 0.4 * min(1.0, float(os.environ.get("SHARDCORE_TEST_SECONDS", "3")) / 3)

Flipped = tuple[Any, Any]  # an array, and where in it
Entry = tuple[list[Flipped], Callable[[], Any]]

ENTRIES: dict[str, Callable[[], Entry]] = {}


def entry(make: Callable[..., Entry], *arguments: Any) -> None:
    ENTRIES[" ".join([make.__name__, *map(str, arguments)])] = lambda: make(*arguments)


def given() -> tuple[Any, Any]:
    """Return fresh ids and row splits."""
    ids = np.random.default_rng(0).integers(0, ROWS, N)
    return ids, np.arange(BAGS + 1) * PER


def engine(backend: str) -> tuple[sc.ShardedEmbedding, sc.FeatureConfig]:
    rows = sc.initializers.RowId()
    table = sc.TableConfig(ROWS, DIM, initializer=rows, combiner="sum", name="t")
    feature = sc.FeatureConfig(table)
    sgd = sc.optimizers.SGD(learning_rate=0.0)
    return sc.ShardedEmbedding(feature, sgd, backend=backend), feature


FORMS = ("dense", "ids of a pair", "splits of a pair", "values of a Ragged", "splits of a Ragged",
         "indices of a Sparse", "values of a Sparse", "indices of a csr", "indptr of a csr",
         "weights' splits", "ids beside weights", "splits beside weights", "sequence")  # fmt: skip


def leaf_of(form: str) -> tuple[list[Flipped], Any, Any]:
    """Return what is flipped, and the ids and weights to give."""
    ids, splits = given()
    if form in ("dense", "sequence"):
        dense = ids.reshape(BAGS, PER)
        return [(dense, (BAGS - 1, PER - 1)), (dense, (7, 0))], dense, None
    if form == "ids of a pair":
        return [(ids, N - 1), (ids, 3)], (ids, splits), None
    if form == "splits of a pair":
        return [(splits, BAGS - 1), (splits, BAGS)], (ids, splits), None
    if form == "values of a Ragged":
        ragged = sc.Ragged(ids, splits)
        return [(ragged.values, N - 2)], ragged, None
    if form == "splits of a Ragged":
        ragged = sc.Ragged(ids, splits)
        return [(ragged.row_splits, BAGS // 2), (ragged.row_splits, 0)], ragged, None
    if form.endswith("Sparse"):
        places = np.stack([np.repeat(np.arange(BAGS), PER), np.tile(np.arange(PER), BAGS)], axis=1)
        sparse = sc.Sparse(places, ids, (BAGS, PER))
        if form.startswith("indices"):
            return [(sparse.indices, (N // 2, 0)), (sparse.indices, (5, 0))], sparse, None
        return [(sparse.values, 9)], sparse, None
    if form.endswith("csr"):
        import scipy.sparse

        csr = scipy.sparse.csr_array((np.ones(N, np.float32), ids, splits), shape=(BAGS, ROWS))
        array = csr.indices if form.startswith("indices") else csr.indptr
        return [(array, len(array) - 1), (array, 2)], csr, None
    if form.endswith("beside weights"):
        weights = np.ones(N, np.float32)
        if form.startswith("ids"):
            return [(ids, N - 1), (ids, 3)], (ids, splits), weights
        return [(splits, BAGS - 1), (splits, BAGS)], (ids, splits), weights
    ragged = sc.Ragged(ids, splits)
    weights = sc.Ragged(np.ones(N, np.float32), splits.copy())
    return [(weights.row_splits, 11)], ragged, weights


def engine_lookup(backend: str, form: str) -> Entry:
    e, feature = engine(backend)
    if form == "sequence":
        longer = sc.FeatureConfig(feature.table, max_sequence_length=PER)
        e = sc.ShardedEmbedding(longer, backend=backend)
    flipped, leaf, weights = leaf_of(form)
    return flipped, lambda: e(leaf, weights)


def engine_training(backend: str, form: str) -> Entry:
    e, _ = engine(backend)
    flipped, leaf, weights = leaf_of(form)
    gradients = np.ones((BAGS, DIM), np.float32)

    def step() -> Any:
        e.enqueue(leaf, weights)
        found = e.dequeue()
        e.apply_gradients(gradients)
        return found

    return flipped, step


def serving(form: str) -> Entry:
    _, feature = engine("cpu")
    tables = {"t": np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)}
    flipped, leaf, weights = leaf_of(form)
    return flipped, lambda: sc.serving_embedding_lookup(leaf, weights, tables, feature)


def shards() -> list[Any]:
    whole = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)
    return [whole[: ROWS // 3].copy(), whole[ROWS // 3 :].copy()]


def free_lookup(function: str, table: str, form: str) -> Entry:
    params: Any = shards() if table == "shards" else np.concatenate(shards())
    flipped, leaf, weights = leaf_of(form)
    look_up = getattr(sc, function)
    if function == "embedding_lookup":
        return flipped, lambda: look_up(params, leaf)
    return flipped, lambda: look_up(params, leaf, weights, combiner="sum")


def prepared(table: str, flip: str, bags: int) -> Entry:
    lookup = sc.prepare_lookup(np.concatenate(shards()) if table == "array" else shards())
    ids, splits = given()
    ids, splits = ids[: bags * PER].copy(), splits[: bags + 1].copy()
    flipped: Flipped = (ids, len(ids) - 1) if flip == "ids" else (splits, bags - 1)
    return [flipped], lambda: lookup(ids, splits)


def layout(kind: str, method: str, dtype: str) -> Entry:
    made = {
        "div": sc.Layout.div(ROWS, 7),
        "mod": sc.Layout.mod(ROWS, 7),
        "ranges": sc.Layout.from_sizes([ROWS - 5, 0, 3, 1, 1]),
    }[kind]
    ids = given()[0].astype(dtype)
    return [(ids, N - 1), (ids, 0)], lambda: getattr(made, method)(ids)


def done(_: object) -> None:
    """Answer nothing, for a call that answers with the variable itself."""


def variable(method: str, table: str) -> Entry:
    v = sc.ShardedVariable(shards() if table == "shards" else [np.concatenate(shards())])
    ids = given()[0]
    if method == "getitem":
        return [(ids, N - 1)], lambda: v[ids]
    if method == "getitem of columns":
        columns = ids % DIM
        return [(columns, N - 1)], lambda: v[ids, columns]
    if method == "setitem":
        return [(ids, N - 1)], lambda: v.__setitem__(ids, 1.0)
    if method == "sparse_read":
        return [(ids, N - 1)], lambda: v.sparse_read(ids)
    if method in ("gather_nd", "scatter_nd_add"):
        places = np.stack([ids, ids % DIM], axis=1)
        flipped: list[Flipped] = [(places, (N - 1, 0)), (places, (2, 1))]
        if method == "gather_nd":
            return flipped, lambda: v.gather_nd(places)
        return flipped, lambda: done(v.scatter_nd_add(places, 0.0))
    if method == "batch_scatter_update":
        in_row = np.zeros((ROWS, 1), np.int64)
        return [(in_row, (ROWS - 1, 0))], lambda: done(v.batch_scatter_update(in_row, 0.0))
    return [(ids, N - 1)], lambda: done(getattr(v, method)(ids, 0.0))


def reduced(flip: str) -> Entry:
    ids, splits = given()
    rows = np.concatenate(shards())
    flipped: Flipped = (ids, N - 1) if flip == "ids" else (splits, BAGS - 1)
    return [flipped], lambda: segment_reduce(rows, ids, splits)


def converted(function: str) -> Entry:
    _, splits = given()
    if function.startswith(("lengths", "row_ids")):
        return [(splits, BAGS // 2), (splits, 9)], lambda: getattr(offsets, function)(splits)
    if function == "row_splits_from_row_ids":
        bag_of = np.repeat(np.arange(BAGS), PER)
        return [(bag_of, N - 1)], lambda: offsets.row_splits_from_row_ids(bag_of, BAGS)
    lengths = np.full(BAGS, PER)
    return [(lengths, 9)], lambda: offsets.row_splits_from_lengths(lengths)


def ragged(method: str) -> Entry:
    ids, splits = given()
    made = sc.Ragged(ids, splits)
    if method == "from_coo":
        bag_of = np.repeat(np.arange(BAGS), PER)
        return [(bag_of, N - 1)], lambda: sc.Ragged.from_coo(bag_of, ids, BAGS).values
    if method == "from_lengths":
        lengths = np.full(BAGS, PER)
        return [(lengths, 9)], lambda: sc.Ragged.from_lengths(ids, lengths).row_splits
    return [(made.row_splits, BAGS - 1)], lambda: getattr(made, method)()


def hashed(kind: str) -> Entry:
    ids = given()[0]
    if kind == "integers":
        return [(ids, 3)], lambda: sc.hash_ids(ids, 1 << 20)
    if kind in ("spans", "views", "codes"):
        return hashed_column(kind)
    strings = np.array([f"user {row}" for row in ids[:500]], object)
    return [(strings, 3)], lambda: sc.hash_ids(strings, 1 << 20)


def hashed_column(layout: str) -> Entry:
    """Return Arrow columns in memory that can be written to."""
    import pyarrow as pa

    text = pa.py_buffer(bytes(range(256)) * 100)
    if layout == "spans":
        offsets = np.arange(BAGS + 1) * PER
        buffers = [None, pa.py_buffer(offsets), text]
        column = pa.Array.from_buffers(pa.large_string(), BAGS, buffers)
        return [(offsets, 7), (offsets, BAGS)], lambda: sc.hash_ids(column, 1 << 20)
    if layout == "views":
        views = np.tile(np.array([20, 0, 0, 5], np.int32), (BAGS, 1))
        buffers = [None, pa.py_buffer(views), text]
        column = pa.Array.from_buffers(pa.binary_view(), BAGS, buffers)
        places = [(views, (BAGS // 2, field)) for field in (0, 2, 3)]
        return places, lambda: sc.hash_ids(column, 1 << 20)
    codes = np.arange(BAGS) % 3
    held = pa.Array.from_buffers(pa.int64(), BAGS, [None, pa.py_buffer(codes)])
    column = pa.DictionaryArray.from_arrays(held, pa.array(["a", "b", "c"]))
    return [(codes, 9)], lambda: sc.hash_ids(column, 1 << 20)


for form in FORMS:
    for backend in ("cpu", "sim"):
        entry(engine_lookup, backend, form)
        if form in ("dense", "ids of a pair", "splits of a Ragged", "indices of a Sparse"):
            entry(engine_training, backend, form)
for form in ("dense", "splits of a Ragged", "indices of a Sparse", "ids beside weights"):
    entry(serving, form)
for table in ("array", "shards"):
    entry(free_lookup, "embedding_lookup", table, "dense")
    for form in ("dense", "splits of a pair", "splits of a Ragged", "indices of a Sparse"):
        for function in ("embedding_lookup_sparse", "safe_embedding_lookup_sparse"):
            entry(free_lookup, function, table, form)
for flip in ("ids", "splits"):
    entry(reduced, flip)
    for table in ("array", "shards"):
        for bags in (1, 64, 2000, BAGS):  # of 2,000 one call finds the rows in shards, not of more
            entry(prepared, table, flip, bags)
for kind in ("div", "mod", "ranges"):
    entry(layout, kind, "partition", "int64")
    entry(layout, kind, "locate", "int64")
entry(layout, "div", "partition", "int32")
for method in (
    "getitem",
    "getitem of columns",
    "setitem",
    "sparse_read",
    "gather_nd",
    "scatter_add",
    "scatter_update",
    "scatter_nd_add",
    "batch_scatter_update",
):
    entry(variable, method, "shards")
    entry(variable, method, "array")  # where no partition looks at the rows again
for function in ("lengths_from_row_splits", "row_ids_from_row_splits", "row_splits_from_lengths",
                 "row_splits_from_row_ids"):  # fmt: skip
    entry(converted, function)
for method in ("lengths", "to_lists", "__repr__", "from_coo", "from_lengths"):
    entry(ragged, method)
for kind in ("integers", "strings", "spans", "views", "codes"):
    entry(hashed, kind)


def flip(array: Any, at: Any, stop: threading.Event) -> None:
    """Write wild values and the true one to one element in turn, most of the time without the GIL.

    NumPy copies a long pattern over an array all of whose elements are this one.
    """
    value = array[at]
    if array.dtype == object:
        pattern = np.array(["another", value, 7, value, None, value], object)
    else:
        limits = np.iinfo(array.dtype)
        wild = [min(max(value, limits.min), limits.max) for value in WILD]
        runs = [(other, length) for length in (1, 50, 3000, 100_000) for other in (*wild, value)]
        pattern = np.concatenate([np.full(length, other, array.dtype) for other, length in runs])
    place = int(np.ravel_multi_index(at, array.shape) if isinstance(at, tuple) else at)
    element = as_strided(array.reshape(-1)[place:], pattern.shape, (0,))
    while not stop.is_set():
        np.copyto(element, pattern)
    array[at] = value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(same, one, other))
    return one is other if one is None else bool(np.array_equal(one, other))


def race(name: str, seconds: float) -> None:
    """Call one entry for a while, and print how often it answered and how often it raised."""
    print(name, end=" ", flush=True)
    flipped, call = ENTRIES[name]()
    expected = call()
    # Other lengths are lengths, and a negative id may be left out: no harm, so not compared.
    may_differ = name.startswith(("hashed", "ragged __repr__", "converted", "free_lookup safe"))
    answers = errors = 0
    for array, at in flipped:
        stop = threading.Event()
        thread = threading.Thread(target=flip, args=(array, at, stop), daemon=True)
        thread.start()
        end = time.monotonic() + seconds / len(flipped)
        while time.monotonic() < end:
            try:
                found = call()
            except sc.ShardcoreError:
                errors += 1
            else:
                answers += 1
                assert may_differ or same(found, expected), f"{name}: an answer for neither value"
        stop.set()
        thread.join()
    assert same(call(), expected), f"{name}: the call is not what it was"
    print(answers, errors, flush=True)


def group_of(name: str) -> str:
    first, second = name.split()[:2]
    return f"{first} {second}" if first in ("engine_lookup", "free_lookup") else first


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted(set(map(group_of, ENTRIES))))
def test_no_call_crashes_while_its_arguments_change(group: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", __file__, group, str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    said = f"{done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    own = [name for name in ENTRIES if group_of(name) == group]
    lines = done.stdout.splitlines()
    assert len(lines) == len(own), said
    for name, line in zip(own, lines, strict=True):
        answers, errors = map(int, line.removeprefix(name).split())
        assert answers + errors > 0, said


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)
    for one in ENTRIES:
        if group_of(one) == sys.argv[1]:
            race(one, float(sys.argv[2]))
