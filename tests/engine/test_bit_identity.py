"""One training run, byte for byte the same on every backend, layout, host and thread count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from dictionary_backend import Dictionary

import shardcore as sc
from shardcore.features.config import FeatureConfig, TableConfig

BATCHES = (500, 2, 0, 61)
HOT = 3  # a row that one batch names more than 4,096 times
RATES = {"items": 0.1, "users": 0.05, "tags": 0.2}


def layout_of(layout, rows):
    """A layout, or for a number of hosts row counts, all uneven and some 0."""
    if isinstance(layout, str):
        return layout
    borders = np.sort(np.random.default_rng(rows).choice(rows // 2, layout - 1, replace=True))
    return np.diff([0, *borders, rows])


def make_engine(backend, options=None, layout="div", dtype="float32"):
    items = TableConfig(1000, 20, name="items", layout=layout_of(layout, 1000), dtype=dtype)
    users = TableConfig(37, 8, combiner="sqrtn", name="users", layout=layout_of(layout, 37),
                        dtype=dtype,
                        optimizer=sc.optimizers.SGD(learning_rate=RATES["users"]))  # fmt: skip
    tags_optimizer = sc.optimizers.Adagrad(learning_rate=lambda: RATES["tags"])
    tags = TableConfig(5, 67, combiner="sum", name="tags", layout=layout_of(layout, 5),
                       dtype=dtype, optimizer=tags_optimizer)  # fmt: skip
    features = {
        "clicks": FeatureConfig(items),
        "views": [FeatureConfig(items, invalid_ids="drop"), FeatureConfig(users)],
        "history": FeatureConfig(items, max_sequence_length=3, invalid_ids="zero"),
        "tags": FeatureConfig(tags, invalid_ids="clip"),
    }
    e = sc.ShardedEmbedding(
        features, optimizer=sc.optimizers.Adagrad(learning_rate=RATES["items"]), backend=backend,
        backend_options=options, seed=3,
    )  # fmt: skip
    e.build()
    return e


def ragged(rng, bags, rows, dtype=np.int64):
    lengths = rng.integers(0, 20, bags)
    ids = (rng.zipf(1.3, lengths.sum()) % rows).astype(dtype)
    return ids, np.concatenate([[0], np.cumsum(lengths)])


def batches() -> Iterator[tuple[dict, dict, int]]:
    """The run's features and weights, in the features' structure."""
    rng = np.random.default_rng(0)
    for step, bags in enumerate(BATCHES):
        clicks = ragged(rng, bags, 1000, np.int32)
        if step == 0:
            clicks[0][:] = np.where(np.arange(clicks[0].size) % 50 == 0, clicks[0], HOT)
        views, users = ragged(rng, bags, 1100), ragged(rng, bags, 37)
        history, tags = ragged(rng, bags, 1001), ragged(rng, bags, 6)
        features = {"clicks": clicks, "views": [views, users], "history": history, "tags": tags}
        tag_weights = rng.normal(size=len(tags[0]))
        view_weights = [rng.random(len(views[0])), rng.normal(size=len(users[0]))]
        weights = {"clicks": None, "views": view_weights, "history": None, "tags": tag_weights}
        yield features, weights, step


def gradients_for(activations, step):
    rng = np.random.default_rng(100 + step)

    def of(array):
        return rng.normal(size=array.shape)

    clicks, views, history, tags = (
        of(activations["clicks"]), [of(a) for a in activations["views"]],
        of(activations["history"]), of(activations["tags"]),
    )  # fmt: skip
    if step == 1:  # these touch no row
        views[1] = clicks = None
    return {"clicks": clicks, "views": views, "history": history, "tags": tags}


def run(e):
    """Train on all batches; return every byte that can be seen, by name."""
    seen = {}
    for features, weights, step in batches():
        e.enqueue(features, weights)
        x = e.dequeue()
        found = e.apply_gradients(gradients_for(x, step), weight_gradients=True)
        for name, array in (
            ("clicks", x["clicks"]), ("views 0", x["views"][0]), ("views 1", x["views"][1]),
            ("history", x["history"]), ("tags", x["tags"]), ("dviews 0", found["views"][0]),
            ("dviews 1", found["views"][1]), ("dtags", found["tags"]),
        ):  # fmt: skip
            seen[f"step {step}: {name}"] = array
    for name, table in e.tables.items():
        seen[f"table {name}"] = np.asarray(table)
        for slot, values in e.slots[name].items():
            seen[f"slot {name}/{slot}"] = np.asarray(values)
    return seen


def bytes_of(seen):
    return {
        name: None if array is None else (array.dtype.name, array.shape, array.tobytes())
        for name, array in seen.items()
    }


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr("shardcore.threads.team.PIECE", 1024)  # small batches are cut too
    before = sc.get_num_threads()
    yield sc.set_num_threads
    sc.set_num_threads(before)


_expected: dict[str, dict] = {}


def expected(dtype):
    if dtype not in _expected:
        before = sc.get_num_threads()
        sc.set_num_threads(1)
        _expected[dtype] = bytes_of(run(make_engine("cpu", dtype=dtype)))
        sc.set_num_threads(before)
    return _expected[dtype]


def assert_same(seen, dtype="float32"):
    reference, found = expected(dtype), bytes_of(seen)
    assert list(found) == list(reference)
    different = [name for name in reference if found[name] != reference[name]]
    assert not different


def test_the_run_has_what_it_is_meant_to_have():
    counts = []
    for features, _, _ in batches():
        ids = features["clicks"][0]
        counts.append(int((ids == HOT).sum()))
        assert (features["views"][0][0] >= 1000).any() or len(ids) < 1000
    assert counts[0] > 4096
    sizes = {rows: layout_of(7, rows).tolist() for rows in (1000, 37, 5)}
    assert sizes[1000] != sc.Layout.div(1000, 7).shard_sizes.tolist()
    assert 0 in sizes[5]
    assert 0 in BATCHES
    assert min(size for size in BATCHES if size) < 3  # fewer samples than hosts
    assert len(expected("float32")) == 8 * len(BATCHES) + 5
    assert expected("float32")["step 1: dviews 1"] is None


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("layout", ["div", "mod", "ranges"])
@pytest.mark.parametrize("hosts", [None, 1, 2, 3, 7])
def test_hosts_layouts_and_threads(hosts, layout, count, threads):
    threads(count)
    layout = hosts or 3 if layout == "ranges" else layout
    if hosts is None:
        assert_same(run(make_engine("cpu", layout=layout)))
    else:
        assert_same(run(make_engine("sim", {"hosts": hosts}, layout)))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("where", ["cpu", "sim", "dictionary"])
def test_dtypes(dtype, where, threads):
    threads(2)
    if where == "dictionary":
        assert_same(run(make_engine(Dictionary(), dtype=dtype)), dtype)
    else:
        options = {"hosts": 3} if where == "sim" else None
        assert_same(run(make_engine(where, options, "mod", dtype)), dtype)


@pytest.mark.parametrize("layout", ["div", "mod", 3])
def test_a_backend_of_four_methods(layout, threads):
    threads(1)
    assert_same(run(make_engine(Dictionary(), layout=layout)))


# --- against a model that can be read ----------------------------------------------------------


def bags_of(pair):
    ids, row_splits = pair
    return [ids[a:b].tolist() for a, b in pairwise(row_splits)]


def model_gains(ids, weights, combiner):
    """The factor of each row in the combined row of its bag."""
    w = np.ones(len(ids)) if weights is None else np.asarray(weights, np.float64)
    divisor = {"sum": 1.0, "mean": w.sum(), "sqrtn": np.sqrt((w * w).sum())}[combiner]
    return w / divisor if divisor else 0 * w


def model_features(features, weights):
    """Yield (table, gradient's place, occurrences per bag): the rules of inputs, written out."""

    def cut(array, pair):
        return [array[a:b] for a, b in pairwise(pair[1])]

    clicks = bags_of(features["clicks"])
    yield "items", ("clicks",), [(b, model_gains(b, None, "mean")) for b in clicks]
    views, users = features["views"]
    bags = []
    for ids, w in zip(bags_of(views), cut(weights["views"][0], views), strict=True):
        kept = [(i, x) for i, x in zip(ids, w, strict=True) if i < 1000]
        bags.append(([i for i, _ in kept], model_gains(kept, [x for _, x in kept], "mean")))
    yield "items", ("views", 0), bags
    bags = zip(bags_of(users), cut(weights["views"][1], users), strict=True)
    yield "users", ("views", 1), [(ids, model_gains(ids, w, "sqrtn")) for ids, w in bags]
    positions = []
    for ids in bags_of(features["history"]):
        for i in [*ids, None, None, None][:3]:
            valid = i is not None and i < 1000
            positions.append(([i], [1.0]) if valid else ([], []))
    yield "items", ("history",), positions
    bags = zip(bags_of(features["tags"]), cut(weights["tags"], features["tags"]), strict=True)
    yield "tags", ("tags",), [([min(i, 4) for i in ids], w) for ids, w in bags]


def at(structure, place):
    for key in place:
        structure = structure[key]
    return structure


def test_against_a_model_in_numpy():
    """The same run in float64 by the formulas, one occurrence after the other."""
    e = make_engine("sim", {"hosts": 3}, "mod", "float64")
    tables = {name: np.array(table) for name, table in e.tables.items()}
    squares = {name: np.full(t.shape, 0.1) for name, t in tables.items() if name != "users"}
    seen = run(e)
    for features, weights, step in batches():
        prepared = list(model_features(features, weights))
        activations = {"views": [None, None]}
        for name, place, bags in prepared:
            rows = tables[name]
            out = np.array([sum((g * rows[i] for i, g in zip(*bag, strict=True)), 0 * rows[0])
                            for bag in bags]).reshape(-1, rows.shape[1])  # fmt: skip
            if place == ("history",):
                out = out.reshape(-1, 3, rows.shape[1])
            at(activations, place[:-1])[place[-1]] = out
            label = " ".join(map(str, place))
            np.testing.assert_allclose(seen[f"step {step}: {label}"], out, rtol=1e-9, atol=1e-12)
        gradients = gradients_for(activations, step)
        sums = {name: {} for name in tables}
        for name, place, bags in prepared:
            gradient = at(gradients, place)
            if gradient is None:
                continue
            flat = gradient.reshape(-1, gradient.shape[-1])
            for bag, g in zip(bags, flat, strict=True):
                for i, gain in zip(*bag, strict=True):
                    sums[name][i] = sums[name].get(i, 0) + gain * g
        for name, rows in tables.items():
            for i, g in sums[name].items():
                if name == "users":
                    rows[i] -= RATES[name] * g
                else:
                    squares[name][i] += g * g
                    rows[i] -= RATES[name] * g / np.sqrt(squares[name][i])
    for name, rows in tables.items():
        np.testing.assert_allclose(seen[f"table {name}"], rows, rtol=1e-9, atol=1e-11)
    for name, square in squares.items():
        np.testing.assert_allclose(seen[f"slot {name}/accumulators"], square, rtol=1e-9)


@pytest.mark.parametrize("where", ["cpu", "sim", "dictionary"])
def test_long_runs_are_summed_in_blocks_of_4096(where):
    """The order of the sum of a row's gradients, to the last bit of float32."""
    occurrences = 10_000
    table = TableConfig(5, 1, initializer=sc.initializers.Zeros(), combiner="sum", name="t")
    backend, options = (Dictionary(), None) if where == "dictionary" else (where, None)
    if where == "sim":
        options = {"hosts": 4}
    e = sc.ShardedEmbedding(FeatureConfig(table), sc.optimizers.SGD(1.0), backend, options)
    e.enqueue(np.full(occurrences, 2))
    e.dequeue()
    g = np.random.default_rng(1).normal(size=(occurrences, 1)).astype(np.float32)
    e.apply_gradients(g)
    blocks = [np.float32(0)] * 3
    for i, value in enumerate(g[:, 0]):
        blocks[i // 4096] = blocks[i // 4096] + value
    total = blocks[0] + blocks[1] + blocks[2]
    plain = np.cumsum(g[:, 0], dtype=np.float32)[-1]
    assert plain != total  # the order shows
    np.testing.assert_array_equal(np.asarray(e.tables["t"])[:, 0], [0, 0, -total, 0, 0])
