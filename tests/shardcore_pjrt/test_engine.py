"""Whole engines on devices beside the same engine on the cpu: features, optimizers, checkpoints."""

import gc
import itertools
import re
import tracemalloc

import jax
import numpy as np
import pytest

import shardcore as sc
from shardcore.plugins import registry

LEFT_OUT = {"Custom"}  # is given a function; below
SETTINGS = {
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}],
    "Adagrad": [{}, {"use_gradient_accumulation": False}, {"clip_norm": 1.0, "clipvalue": 0.5}],
    "Adam": [{}, {"lazy_adam": False}, {"bias_correction": "row"}],
}
OPTIMIZERS = [
    (name, settings)
    for name in registry.optimizers()
    if name not in LEFT_OUT
    for settings in SETTINGS.get(name, [{}])
]
PLACEMENTS = [("row", "div"), ("row", "mod"), ("column", "div"), ("replicated", "div")]


def tables(dtype="float32"):
    """Return four tables that lie in different ways, of several widths."""
    return {
        "rows": sc.TableConfig(97, 12, combiner="mean", name="rows", dtype=dtype),
        "mod": sc.TableConfig(50, 3, combiner="sqrtn", name="mod", layout="mod", dtype=dtype),
        "columns": sc.TableConfig(31, 10, combiner="sum", name="columns", placement="column"),
        "everywhere": sc.TableConfig(7, 4, combiner="sum", name="all", placement="replicated"),
        "one": sc.TableConfig(20, 5, combiner="mean", name="one", placement="table"),
    }


def features(of):
    """Return every kind of feature, two of them on one table."""
    return {
        "bags": sc.FeatureConfig(of["rows"], invalid_ids="drop"),
        "weighted": sc.FeatureConfig(of["rows"]),
        "dense": sc.FeatureConfig(of["mod"]),
        "sequence": sc.FeatureConfig(of["mod"], max_sequence_length=3),
        "nested": [sc.FeatureConfig(of["columns"]), sc.FeatureConfig(of["everywhere"])],
        "clipped": sc.FeatureConfig(of["one"], invalid_ids="clip"),
    }


def batch(rng, size):
    lengths = rng.integers(0, 6, size)
    splits = np.concatenate(([0], np.cumsum(lengths)))
    total = int(splits[-1])
    ids = {
        "bags": (rng.integers(-2, 97, total), splits),
        "weighted": (rng.integers(0, 97, total), splits),
        "dense": rng.integers(0, 50, (size, 4)),
        "sequence": (rng.integers(0, 50, total), splits),
        "nested": [(rng.integers(0, 31, total), splits), rng.integers(0, 7, size)],
        "clipped": rng.integers(-5, 30, (size, 2)),
    }
    weights = {
        "bags": None,
        "weighted": rng.random(total).astype(np.float32),
        "dense": rng.random((size, 4)).astype(np.float32),
        "sequence": None,
        "nested": [None, None],
        "clipped": None,
    }
    return ids, weights


def gradients_like(rng, activations):
    return jax.tree.map(
        lambda one: rng.standard_normal(one.shape).astype(np.float32), dict(activations)
    )


def assert_near(ours, expected, tolerance=2e-5):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("exchange", ["gather", "all_to_all"])
def test_every_kind_of_feature(platform, devices, exchange):
    options = {"platform": platform, "devices": devices, "exchange": exchange}
    on_cpu = sc.ShardedEmbedding(features(tables()), sc.optimizers.Adagrad(0.1), seed=3)
    on_devices = sc.ShardedEmbedding(
        features(tables()), sc.optimizers.Adagrad(0.1), "pjrt", options, seed=3
    )
    rng = np.random.default_rng(1)
    with on_cpu, on_devices:
        for size in (8, 5, 0, 11):  # 5 and 11 are no multiples of the devices
            ids, weights = batch(rng, size)
            for engine in (on_cpu, on_devices):
                engine.enqueue(ids, weights)
            expected, ours = on_cpu.dequeue(), on_devices.dequeue()
            assert_near(ours, expected)
            gradients = gradients_like(rng, expected)
            gradients["bags"] = None if size == 5 else gradients["bags"]
            wanted = on_cpu.apply_gradients(gradients, weight_gradients=True)
            found = on_devices.apply_gradients(
                jax.tree.map(lambda one: jax.device_put(one, jax.devices(platform)[0]), gradients),
                weight_gradients=True,
            )
            assert_near(found, wanted)
        for name in on_cpu.tables:
            assert_near(on_devices.tables[name][:], on_cpu.tables[name][:])
            for slot in on_cpu.slots[name]:
                assert_near(on_devices.slots[name][slot][:], on_cpu.slots[name][slot][:])
        assert on_devices.metrics()["invalid_ids"] == on_cpu.metrics()["invalid_ids"] > 0


@pytest.mark.parametrize("exchange", ["gather", "all_to_all"])
def test_row_counts_for_each_device(platform, exchange):
    options = {"platform": platform, "devices": 4, "exchange": exchange}
    counts = {"even": "div", "uneven": (0, 50, 1, 46)}
    engines = {
        name: sc.ShardedEmbedding(
            sc.FeatureConfig(sc.TableConfig(97, 5, name="t", layout=layout)),
            sc.optimizers.Adagrad(0.1), "pjrt", options, seed=3,
        )
        for name, layout in counts.items()
    }  # fmt: skip
    rng = np.random.default_rng(1)
    for size in (8, 0, 11):
        ids, gradient = rng.integers(0, 97, (size, 3)), rng.normal(size=(size, 5))
        seen = []
        for e in engines.values():
            e.enqueue(ids, rng.random((size, 3)) if size == 0 else None)
            seen.append(np.asarray(e.dequeue()))
            e.apply_gradients(gradient)
        np.testing.assert_array_equal(*seen)
    stored = [e.tables["t"][:] for e in engines.values()]
    np.testing.assert_array_equal(*stored)
    sizes = [len(shard) for shard in engines["uneven"].tables["t"].shards]
    assert sizes == [0, 50, 1, 46]
    table = sc.TableConfig(97, 5, name="t", layout=(50, 47))
    message = (
        "table 't' must have one row count in layout for each of 4 hosts on backend 'pjrt', "
        "got 2: (50, 47)"
    )
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(message)}$"):
        sc.ShardedEmbedding(sc.FeatureConfig(table), None, "pjrt", options)


def test_rows_are_dealt_out_where_they_are_exchanged_and_no_layout_is_given(platform, tmp_path):
    def engine(layout, **options):
        table = sc.TableConfig(97, 5, name="t", layout=layout)
        given = {"platform": platform, "devices": 4, **options}
        return sc.ShardedEmbedding(
            sc.FeatureConfig(table), sc.optimizers.Adagrad(0.1), "pjrt", given, seed=3
        )

    rng = np.random.default_rng(1)
    saved = None
    for layout, exchange, found in (
        (None, "gather", "div"), ("div", "all_to_all", "div"), (None, "all_to_all", "mod"),
        ("mod", "gather", "mod"), (None, "gather", "div"), ((0, 90, 0, 7), "all_to_all", "ranges"),
    ):  # fmt: skip
        with engine(layout, exchange=exchange) as e:
            told = (0, 90, 0, 7) if found == "ranges" else found
            assert e.config()["tables"][0]["layout"] == told
            e.build()
            if saved is not None:  # by an engine of another layout
                assert sc.Checkpoint(embedding=e).restore(tmp_path) == saved[0]
                np.testing.assert_array_equal(e.tables["t"][:], saved[1])
            assert e.tables["t"].layout.strategy == found
            e.enqueue(rng.integers(0, 97, (8, 3)))
            e.apply_gradients(rng.normal(size=np.asarray(e.dequeue()).shape))
            saved = 1 if saved is None else saved[0] + 1, e.tables["t"][:]
            sc.Checkpoint(embedding=e).save(tmp_path, step=saved[0])


@pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])
@pytest.mark.parametrize("placement", ["row", "column", "replicated", "table"])
def test_greatest_values_and_rows_of_a_greatest_norm(platform, placement, pipeline):
    def engine(*where):
        table = sc.TableConfig(31, 10, combiner="max", name="t", placement=placement, max_norm=0.8)
        mean = sc.TableConfig(9, 3, name="mean")
        features = {
            "max": sc.FeatureConfig(table),
            "zero": sc.FeatureConfig(table, invalid_ids="zero"),
            "seq": sc.FeatureConfig(table, 2),
            "mean": sc.FeatureConfig(mean),
        }
        return sc.ShardedEmbedding(features, sc.optimizers.Adagrad(0.1), *where, seed=3)

    devices = ("pjrt", {"platform": platform, "devices": 4}, pipeline)
    rng = np.random.default_rng(1)
    with engine() as on_cpu, engine(*devices) as on_devices:
        for size in (8, 5, 0):
            splits = np.concatenate(([0], np.cumsum(rng.integers(0, 6, size))))
            ids = {name: (rng.integers(0, 9, splits[-1]), splits) for name in ("mean", "seq")}
            ids["max"] = rng.integers(0, 31, splits[-1]), splits
            ids["zero"] = rng.integers(-4, 31, splits[-1]), splits
            held = [e.lookup(ids) for e in (on_cpu, on_devices)]
            expected, ours = (h.activations for h in held)
            assert type(ours["max"]) is type(ours["zero"]) is np.ndarray
            assert isinstance(ours["mean"], jax.Array)
            assert_near(ours, expected)
            gradients = gradients_like(rng, expected)
            held[0].apply_gradients(gradients)
            there = jax.devices(platform)[0]
            held[1].apply_gradients(jax.tree.map(lambda g: jax.device_put(g, there), gradients))  # noqa: B023
        for name in on_cpu.tables:
            assert_near(on_devices.tables[name][:], on_cpu.tables[name][:])


@pytest.mark.parametrize("pipeline", [False, True], ids=["inline", "pipeline"])
@pytest.mark.parametrize("devices", [1, 8])
def test_lookups_in_flight_and_several_in_a_step(platform, devices, pipeline):
    """Gradients of one lookup live on the devices, those of the other on the host."""
    options = {"platform": platform, "devices": devices}
    on_cpu = sc.ShardedEmbedding(features(tables()), sc.optimizers.Adagrad(0.1), seed=3)
    on_devices = sc.ShardedEmbedding(
        features(tables()), sc.optimizers.Adagrad(0.1), "pjrt", options, pipeline, seed=3
    )
    rng = np.random.default_rng(1)
    with on_cpu, on_devices:
        for sizes in ((8, 8), (5, 11)):
            inputs = [batch(rng, size) for size in sizes]
            held = [[e.lookup(*one) for one in inputs] for e in (on_cpu, on_devices)]
            for ours, expected in zip(held[1], held[0], strict=True):
                assert_near(ours.activations, expected.activations)
            gradients = [gradients_like(rng, one.activations) for one in held[0]]
            gradients[1]["bags"] = None if sizes[0] == 5 else gradients[1]["bags"]
            there = jax.device_put(gradients[0], jax.devices(platform)[0])
            wanted = on_cpu.apply(list(zip(held[0], gradients, strict=True)), True)
            pairs = list(zip(held[1], [there, gradients[1]], strict=True))
            assert_near(on_devices.apply(pairs, True), wanted)
        assert (on_devices.step, on_devices.in_flight) == (2, 0)
        for name in on_cpu.tables:
            assert_near(on_devices.tables[name][:], on_cpu.tables[name][:])
            assert_near(
                on_devices.slots[name]["accumulators"][:], on_cpu.slots[name]["accumulators"][:]
            )
        bad = {**gradients[0], "dense": np.full_like(gradients[0]["dense"], np.nan)}
        there = jax.device_put(bad, jax.devices(platform)[0])
        one, two = (on_devices.lookup(*given) for given in reversed(inputs))
        on_devices.apply([(one, gradients[1]), (two, there)])
        told = r"step 3 was refused: pairs\[1\]: gradients\['dense'\] must be finite"
        with pytest.raises(sc.ShardcoreError, match=told):
            on_devices.metrics()
        assert (on_devices.step, on_devices.in_flight) == (2, 0)


def trained(optimizer, dtype, placement, layout, backend, options, steps=3):
    table = sc.TableConfig(
        40, 12, combiner="mean", name="t", layout=layout, placement=placement, dtype=dtype
    )
    of = {"a": sc.FeatureConfig(table), "b": sc.FeatureConfig(table)}
    rng = np.random.default_rng(5)
    with sc.ShardedEmbedding(of, optimizer, backend, options, seed=1) as engine:
        for _ in range(steps):
            engine.enqueue({name: rng.integers(0, 30, (8, 4)) for name in of})
            shapes = {name: one.shape for name, one in engine.dequeue().items()}
            engine.apply_gradients(
                {name: rng.standard_normal(shape) for name, shape in shapes.items()}
            )
        return [np.asarray(one[:]) for one in (engine.tables["t"], *engine.slots["t"].values())]


@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_every_optimizer(platform, name, settings):
    optimizer = getattr(sc.optimizers, name)(learning_rate=0.1, **settings)
    expected = trained(optimizer, "float32", "row", "div", "cpu", {})
    at = OPTIMIZERS.index((name, settings))
    placement, layout = PLACEMENTS[at % len(PLACEMENTS)]
    options = {"platform": platform, "devices": (8, 3)[at % 2], "lanes": (1, 128)[at // 2 % 2]}
    ours = trained(optimizer, "float32", placement, layout, "pjrt", options)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)


def signs(grad, rows, slots, hyper, step, row_ids):
    xp = rows.__array_namespace__()
    momenta = hyper["beta"] * slots["momenta"] + (1 - hyper["beta"]) * grad
    return rows - hyper["learning_rate"] * xp.sign(momenta), {"momenta": momenta}


def test_an_optimizer_of_the_users_own(platform):
    optimizer = sc.optimizers.Custom(
        signs,
        learning_rate=0.25,
        slot_specs=[sc.SlotSpec("momenta", "element")],
        hyperparameters={"beta": 0.75},
        initialization=lambda rows, row_ids: {"momenta": rows * 2},
    )
    expected = trained(optimizer, "float32", "row", "div", "cpu", {})
    options = {"platform": platform, "devices": 8}
    ours = trained(optimizer, "float32", "row", "mod", "pjrt", options)
    assert_near(ours, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_by_chance_has_the_bits_of_the_cpu(platform, dtype):
    # Exact sums: one gradient per row, so only the rounding could differ.
    optimizer = sc.optimizers.SGD(0.125, stochastic_rounding=True)
    table = sc.TableConfig(64, 8, combiner="sum", name="t", dtype=dtype)
    found = []
    for backend, options in (("cpu", {}), ("pjrt", {"platform": platform, "devices": 8})):
        of = {"a": sc.FeatureConfig(table)}
        with sc.ShardedEmbedding(of, optimizer, backend, options, seed=9) as engine:
            for step in range(4):
                rng = np.random.default_rng(step)
                engine.enqueue({"a": rng.permutation(64)[:48, None]})
                engine.dequeue()
                engine.apply_gradients({"a": rng.standard_normal((48, 8)).astype(np.float32)})
            found.append(engine.tables["t"][:])
    np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16))


def test_the_number_of_devices_changes_no_bit_where_nothing_is_added(platform):
    results = []
    for devices in (1, 2, 4, 8):
        table = sc.TableConfig(64, 8, combiner="sum", name="t")
        options = {"platform": platform, "devices": devices}
        with sc.ShardedEmbedding(
            {"a": sc.FeatureConfig(table)}, sc.optimizers.SGD(0.1), "pjrt", options, seed=9
        ) as engine:
            for step in range(3):
                rng = np.random.default_rng(step)
                engine.enqueue({"a": rng.permutation(64)[:48, None]})
                activations = engine.dequeue()["a"]
                engine.apply_gradients({"a": activations * 0.5})
            results.append((np.asarray(activations).tobytes(), engine.tables["t"][:].tobytes()))
    assert len(set(results)) == 1


def test_activations_are_cut_over_the_devices_by_sample(platform):
    devices = len(jax.devices(platform))
    table = sc.TableConfig(64, 8, combiner="sum", name="t")
    options = {"platform": platform}
    with sc.ShardedEmbedding({"a": sc.FeatureConfig(table)}, None, "pjrt", options) as engine:
        even = engine({"a": np.zeros((2 * devices, 1), np.int64)})["a"]
        assert isinstance(even, jax.Array)
        assert {shard.data.shape for shard in even.addressable_shards} == {(2, 8)}
        odd = engine({"a": np.zeros((2 * devices + 1, 1), np.int64)})["a"]
        assert odd.is_fully_replicated
        assert odd.shape == (2 * devices + 1, 8)


def test_batches_of_about_one_size_share_programs(platform):
    table = sc.TableConfig(5000, 8, combiner="sum", name="t")
    options = {"platform": platform, "devices": 2, "exchange": "all_to_all"}
    rng = np.random.default_rng(0)
    with sc.ShardedEmbedding(
        {"a": sc.FeatureConfig(table)}, sc.optimizers.SGD(0.1), "pjrt", options
    ) as engine:
        counts = []
        for _ in range(8):
            lengths = rng.integers(0, 40, 64)
            splits = np.concatenate(([0], np.cumsum(lengths)))
            engine.enqueue({"a": (rng.integers(0, 5000, int(splits[-1])), splits)})
            engine.apply_gradients(engine.dequeue())
            counts.append(engine.metrics()["programs"])
    assert counts[-1] <= counts[0] + 8  # of 16 that lookups and updates could have needed


PLACES = [
    ("cpu", {}),
    ("sim", {"hosts": 3}),
    ("pjrt", {"devices": 1}),
    ("pjrt", {"devices": 8, "lanes": 128}),
    ("pjrt", {"devices": 3, "exchange": "gather"}),
]


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(range(len(PLACES)), 2)))
def test_a_checkpoint_loads_anywhere(source, target, tmp_path, platform):
    def make(at, placement, layout):
        backend, options = PLACES[at]
        given = {**options, "platform": platform} if backend == "pjrt" else options
        table = sc.TableConfig(
            57, 6, name="t", dtype="bfloat16", placement=placement, layout=layout, combiner="sum"
        )
        optimizers = sc.optimizers
        return sc.ShardedEmbedding(
            {"a": sc.FeatureConfig(table)}, optimizers.RowwiseAdagrad(0.1), backend, given, seed=2
        )

    pytest.importorskip("ml_dtypes")
    with make(source, "row", "mod") as saved, make(target, "column", "div") as restored:
        saved.enqueue({"a": np.arange(40).reshape(8, 5)})
        saved.apply_gradients(saved.dequeue())
        sc.Checkpoint(e=saved).save(tmp_path, 1)
        assert sc.Checkpoint(e=restored).restore(tmp_path) == 1
        np.testing.assert_array_equal(restored.tables["t"][:], saved.tables["t"][:])
        for name, slot in saved.slots["t"].items():
            np.testing.assert_array_equal(restored.slots["t"][name][:], slot[:])


@pytest.mark.parametrize(("layout", "most"), [("div", 60 << 20), ("mod", 75 << 20)])
def test_a_checkpoint_never_has_the_whole_table_on_the_host(layout, most, platform, tmp_path):
    # 41 and 56 MiB are used at any size of the table; the runtime may let go of a piece, 8 MiB,
    # only when it takes the next, and then there is that much more.
    rows, dim = 1 << 20, 32  # 128 MiB, and as much of slots
    of = {
        "a": sc.FeatureConfig(
            sc.TableConfig(rows, dim, name="t", layout=layout, initializer=sc.initializers.Zeros())
        )
    }
    options = {"platform": platform, "devices": 4}
    with sc.ShardedEmbedding(of, sc.optimizers.Adagrad(0.1), "pjrt", options) as engine:
        engine.build()
        sc.Checkpoint(e=engine).save(tmp_path, 1)  # compiles what it needs
        gc.collect()
        tracemalloc.start()
        sc.Checkpoint(e=engine).save(tmp_path, 2)
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        sc.Checkpoint(e=engine).restore(tmp_path)
        restoring = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert saving < most
    assert restoring < most


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"dtype": "float64"},
            "table 't' must have dtype float32, float16 or bfloat16 on backend 'pjrt', got float64",
        ),
        (
            {"optimizer": sc.optimizers.Adagrad(0.1, slot_dtype="float64")},
            "slot 'accumulators' of table 't' must have dtype float32, float16 or bfloat16 on "
            "backend 'pjrt', got float64",
        ),
        (
            {"exchange": "partial"},
            "table 't' must have exchange 'exact' on backend 'pjrt', got 'partial'",
        ),
        (
            {"vocabulary_size": 2**31},
            "table 't': num_rows must be at most 2147483647: devices number rows in int32, "
            "got 2147483648",
        ),
    ],
)
def test_what_a_device_cannot_hold_is_refused(config, message, platform):
    table = sc.TableConfig(
        **{"vocabulary_size": 8, "dim": 4, "name": "t", "combiner": "sum", **config}
    )
    with pytest.raises(sc.ShardcoreError) as caught:
        sc.ShardedEmbedding(
            {"a": sc.FeatureConfig(table)}, None, "pjrt", {"platform": platform}
        ).build()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lanes": 64}, "lanes must be 1 or 128, got 64"),
        ({"lanes": True}, "lanes must be 1 or 128, got True"),
        (
            {"exchange": "columns"},
            "exchange must be None, 'gather' or 'all_to_all', got 'columns'",
        ),
        ({"batches": "mine"}, "batches must be 'same' or 'own', got 'mine'"),
        ({"check_agreement": 1}, "check_agreement must be a bool, got 1"),
        (
            {"batches": "own", "check_agreement": True},
            "check_agreement must be False where batches are 'own', which differ, got True",
        ),
        (
            {"strategy": "sparsecore", "batches": "own"},
            "batches must be 'same' with strategy 'sparsecore', got 'own'",
        ),
        (
            {"strategy": "sparsecore", "check_agreement": True},
            "check_agreement must be False with strategy 'sparsecore', got True",
        ),
    ],
)
def test_options_that_are_none(options, message, platform):
    with pytest.raises(sc.ShardcoreError) as caught:
        sc.get_backend("pjrt", platform=platform, **options)
    assert str(caught.value) == message


def test_an_optimizer_that_fails_while_it_is_traced_changes_nothing(platform):
    def failing(grad, rows, slots, hyper, step, row_ids):
        raise ArithmeticError("not today")

    good = sc.TableConfig(20, 4, name="a", optimizer=sc.optimizers.SGD(0.1))
    bad = sc.TableConfig(20, 4, name="b", optimizer=sc.optimizers.Custom(failing))
    of = {"a": sc.FeatureConfig(good), "b": sc.FeatureConfig(bad)}
    with sc.ShardedEmbedding(of, None, "pjrt", {"platform": platform}) as engine:
        engine.enqueue({"a": np.arange(8), "b": np.arange(8)})
        gradients = engine.dequeue()
        before = engine.tables["a"][:]
        with pytest.raises(ArithmeticError, match="not today"):
            engine.apply_gradients(gradients)
        np.testing.assert_array_equal(engine.tables["a"][:], before)
