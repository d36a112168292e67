"""Updates as programs over 1 to 8 devices: what the reference backend makes of rows and slots."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from shardcore import optimizers
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.dtypes import as_dtype
from shardcore.initializers.constants import Zeros
from shardcore.optimizer.slots import SlotSpec
from shardcore.plugins import registry
from shardcore.store.rounding import step_seed
from shardcore.testing.model import ModelBackend

pytest.importorskip("jax")

import jax
from jax.sharding import Mesh
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.mesh.placed_arrays import stored_dtype
from shardcore_pjrt.programs import row_update
from shardcore_pjrt.programs.update_program import update_arguments, update_program
from shardcore_pjrt.routing.spread import bags_of_device
from shardcore_pjrt.routing.update_route import route_update

ROWS, DIM = 61, 12


def mesh_of(devices):
    return Mesh(np.array(jax.devices("cpu")[:devices]), ("x",))


def places_of(geometry, columns=None):
    """Return where each element, or value, of the table is on the devices, by its number there."""
    width, k = geometry.line_width, geometry.rows_per_line
    rows = np.arange(geometry.num_rows)
    shard, local = geometry.layout.locate(rows)
    if columns is None:
        return shard * geometry.local_rows + local
    line, place = shard * geometry.lines + local // k, local % k
    device, column = np.divmod(np.arange(columns), geometry.columns)
    parts = geometry.devices if geometry.placement == "column" else 1
    start = (line * parts * width + place * geometry.width)[:, None]
    return start + device * width + column


class Arrays:
    """A table and its slots on the devices, NaN, or `padding`, wherever nothing lies."""

    def __init__(self, geometry, optimizer, model, padding=np.nan):
        self.geometry, self.optimizer = geometry, optimizer
        self.kinds = {None: "element", **{slot.name: slot.kind for slot in optimizer.slots}}
        self.host = {}
        for name, kind in self.kinds.items():
            stored = model.arrays["t", name]
            element = kind == "element"
            shape = geometry.table_shape if element else geometry.row_slot_shape
            flat = np.full(int(np.prod(shape)), padding, stored.dtype)
            flat[self.places(kind)] = stored if element else stored[:, 0]
            self.host[name] = held(flat.reshape(shape))

    def places(self, kind):
        return places_of(self.geometry, self.geometry.dim if kind == "element" else None)

    def stored(self, name, array, dtype):
        values = np.asarray(array).view(dtype).reshape(-1)[self.places(self.kinds[name])]
        return values if self.kinds[name] == "element" else values[:, None]


def some_bags(rng, bags, weighted=False, divided=False, bags_per_sample=1, rows=ROWS):
    lengths = rng.integers(0, 5, bags)
    row_splits = np.concatenate([[0], np.cumsum(lengths)])
    weights = rng.normal(size=row_splits[-1]).astype(np.float32) if weighted else None
    divisors = rng.integers(0, 4, bags).astype(np.float32) if divided else None
    ids = rng.integers(0, rows // 2, row_splits[-1])
    return FeatureBags(ids, row_splits, weights, divisors, bags_per_sample)


def two_features(rng):
    weighted = some_bags(rng, 11, weighted=True, divided=True)
    return [weighted, some_bags(rng, 15, divided=True, bags_per_sample=3)]


def bits_of(array):
    array = np.ascontiguousarray(array)
    return array.view(np.uint16 if array.itemsize == 2 else np.uint32)


def held(array):
    """Return an array as devices hold it."""
    return array.view(stored_dtype(array.dtype))


def run(geometry, exchange, optimizer, dtype="float32", steps=1, go=True, exact=False, **options):
    """Update the table on the devices and in the reference backend, and compare them."""
    rng = np.random.default_rng(options.pop("seed", 8))
    dtype = as_dtype(dtype)
    gradient_dtype = options.pop("gradient_dtype", np.float32)
    features_of = options.pop("features_of", two_features)
    edit = options.pop("edit", None)
    padding = options.pop("padding", np.nan)
    assert not options
    model = ModelBackend()
    shape = geometry.num_rows, geometry.dim
    model.create_table(TableSpec("t", *shape, dtype, Zeros(), 23, optimizer))
    drawn = rng.normal(0, 0.5, shape)
    rows = (np.round(drawn * 64) / 64 if exact else drawn).astype(dtype)
    if edit is not None:
        edit(rows)
        for slot in optimizer.slots:
            edit(model.arrays["t", slot.name])
    model.scatter("t", None, np.arange(shape[0]), rows)
    mesh = mesh_of(geometry.devices)
    arrays = Arrays(geometry, optimizer, model, padding)
    table = arrays.host.pop(None)
    slots = arrays.host
    for step in range(1, steps + 1):
        features = features_of(rng)
        gradients = []
        for bags in features:
            drawn = rng.normal(size=(bags.num_bags, geometry.dim))
            gradients.append((np.round(drawn * 8) / 8 if exact else drawn).astype(gradient_dtype))
        before = model.arrays["t", None].copy()
        hyper = optimizer.hyper()
        if go:
            cast = tuple(gradient.astype(np.float32) for gradient in gradients)
            batch = TableBatch("t", tuple(features))
            model.apply([TableUpdate(batch, cast, hyper, step)])
        route = route_update(geometry, features, exchange, optimizer.accumulate, optimizer.lazy)
        wanted = update_arguments(mesh, geometry, dtype, route.shape, optimizer)
        padded = []
        for one, gradient, room in zip(features, gradients, route.shape.bags, strict=True):
            # NaN in bags that only fill up must reach no row.
            whole = np.full((geometry.devices, room, geometry.dim), np.nan, gradient.dtype)
            own = max(1, bags_of_device(one, geometry.devices))
            bags = np.arange(len(gradient))
            whole[bags // own, bags % own] = gradient
            padded.append(whole.reshape(-1, geometry.dim))
        seed = step_seed(23, step)
        given = (
            table,
            slots,
            tuple(padded),
            route.arrays,
            np.array(hyper, np.float32),
            np.int32(step),
            np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint32),
            np.bool_(go),
        )
        assert jax.tree.map(np.shape, given) == jax.tree.map(lambda one: one.shape, wanted)
        placed = jax.tree.map(lambda one, like: jax.device_put(one, like.sharding), given, wanted)
        program = update_program(mesh, geometry, route.shape, optimizer, dtype)
        new_table, new_slots = jax.tree.map(np.asarray, program(*placed))
        touched = np.zeros(shape[0], np.bool_)
        for bags in features:
            touched[bags.ids] = True
        if not optimizer.lazy:
            touched[:] = True
        for name, old, new in [
            (None, table, new_table),
            *((name, slots[name], new_slots[name]) for name in slots),
        ]:
            assert new.dtype == old.dtype
            theirs = model.arrays["t", name]
            ours = arrays.stored(name, new, theirs.dtype)
            if not go:
                np.testing.assert_array_equal(bits_of(new), bits_of(old))
            np.testing.assert_array_equal(
                bits_of(ours[~touched]), bits_of(arrays.stored(name, old, theirs.dtype)[~touched])
            )
            if exact:
                np.testing.assert_array_equal(bits_of(ours), bits_of(theirs))
            tolerance = 1e-4 if ours.itemsize == 4 else 2e-2
            np.testing.assert_allclose(
                ours.astype(np.float32),
                theirs.astype(np.float32),
                rtol=tolerance,
                atol=tolerance,
                err_msg=str(name),
            )
            model.arrays["t", name] = ours.copy()  # differences must not add up
        if go:
            moved = bits_of(model.arrays["t", None]) != bits_of(before)
            assert moved.any(), "the batch moves rows"
        table, slots = new_table, new_slots
    return table, slots


EXCHANGES = [
    *((4, "row", "gather"), (8, "row", "all_to_all"), (8, "column", "columns")),
    *((1, "row", "local"), (4, "replicated", "local")),
]
PLACES = [
    *EXCHANGES,
    *((2, "row", "gather"), (8, "row", "gather")),
    *((2, "row", "all_to_all"), (4, "row", "all_to_all"), (2, "column", "columns")),
    *((1, "table", "local"), (1, "column", "columns"), (1, "replicated", "local")),
]


def named(places):
    names = [f"{placement}-{devices}-{exchange}" for devices, placement, exchange in places]
    return pytest.mark.parametrize(("devices", "placement", "exchange"), places, ids=names)


def heavy_ball(grad, rows, slots, hyper, step, row_ids):
    momenta = slots["momenta"] * 0.5 + grad
    return rows - hyper["learning_rate"] * momenta, {"momenta": momenta}


SETTINGS = {
    "Custom": [
        {"computation": heavy_ball, "slot_specs": (SlotSpec("momenta", "element", fill=0.5),)}
    ],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}],
    "Adagrad": [{"clipvalue": 0.5, "clip_norm": 1.0, "weight_decay_factor": 0.01}],
    "Adam": [{}, {"bias_correction": "row"}],
}


def made(name, settings):
    if name == "Custom":
        return optimizers.Custom(learning_rate=0.1, **settings)
    return getattr(optimizers, name)(learning_rate=0.1, **settings)


CASES = [
    (name, settings) for name in registry.optimizers() for settings in SETTINGS.get(name, [{}])
]


@pytest.mark.parametrize(("name", "settings"), CASES)
@named([(1, "row", "local"), (4, "row", "all_to_all")])
def test_every_optimizer(devices, placement, exchange, name, settings):
    geometry = Geometry(ROWS, DIM, devices, placement, 128, "mod")
    run(geometry, exchange, made(name, settings), steps=2)


@named(PLACES)
@pytest.mark.parametrize("name", ["RowwiseAdagrad", "LAMB"])
def test_every_place(devices, placement, exchange, name):
    run(Geometry(ROWS, DIM, devices, placement, 128), exchange, made(name, {}))


@named(EXCHANGES)
def test_lines_of_one_row(devices, placement, exchange):
    run(Geometry(ROWS, DIM, devices, placement, 1), exchange, made("RowwiseAdagrad", {}))


@pytest.mark.parametrize("dim", [1, 3, 16, 96, 128, 130])
def test_widths(dim):
    run(Geometry(ROWS, dim, 2, "row", 128), "all_to_all", made("RowwiseAdagrad", {}))


@named([(4, "row", "gather"), (1, "row", "local"), (2, "column", "columns")])
def test_one_update_per_occurrence(devices, placement, exchange):
    optimizer = optimizers.Adagrad(0.1, use_gradient_accumulation=False)
    run(Geometry(ROWS, DIM, devices, placement, 128), exchange, optimizer, steps=2)


@named(EXCHANGES)
@pytest.mark.parametrize("lanes", [1, 128])
def test_every_row_moves(devices, placement, exchange, lanes):
    optimizer = optimizers.Adam(0.1, lazy_adam=False)
    run(Geometry(ROWS, DIM, devices, placement, lanes), exchange, optimizer, steps=2)


def test_every_row_moves_in_a_round_robin_layout():
    optimizer = optimizers.Adam(0.1, lazy_adam=False, bias_correction="row")
    run(Geometry(ROWS, DIM, 4, "row", 128, "mod"), "all_to_all", optimizer, steps=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [1, 128])
@named([(1, "row", "local"), (4, "row", "all_to_all"), (4, "column", "columns")])
def test_short_rows_are_rounded_by_the_same_chance(devices, placement, exchange, lanes, dtype):
    # Sums of eighths are exact in any order, so that not a bit may differ.
    optimizer = optimizers.SGD(2.0**-9, stochastic_rounding=True)
    geometry = Geometry(
        ROWS, DIM, devices, placement, lanes, "mod" if placement == "row" else "div"
    )

    def unweighted(rng):
        return [some_bags(rng, 11), some_bags(rng, 14, bags_per_sample=2)]

    run(geometry, exchange, optimizer, dtype, steps=2, exact=True, features_of=unweighted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("slot_dtype", [None, "table"])
def test_short_rows_and_slots(dtype, slot_dtype):
    optimizer = optimizers.Adam(0.1, slot_dtype=slot_dtype)
    run(Geometry(ROWS, DIM, 4, "row", 128), "all_to_all", optimizer, dtype, steps=2)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_short_gradients(dtype):
    geometry = Geometry(ROWS, DIM, 4, "row", 128)
    optimizer = made("Adagrad", {})
    run(geometry, "gather", optimizer, gradient_dtype=as_dtype(dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.RowwiseAdagrad(0.1, stochastic_rounding=True),
        optimizers.Adam(0.1, lazy_adam=False),
        optimizers.LAMB(0.1, lazy_adam=False),
        optimizers.Adagrad(0.1, use_gradient_accumulation=False),
    ],
    ids=repr,
)
def test_without_go_nothing_changes(optimizer, dtype):
    run(Geometry(ROWS, DIM, 4, "row", 128), "gather", optimizer, dtype, go=False)
    run(Geometry(ROWS, DIM, 4, "row", 1), "gather", optimizer, dtype, go=False)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("clip_norm", [None, 1.0], ids=["lines", "rows"])
def test_untouched_rows_keep_any_bits(dtype, lanes, clip_norm):
    def edit(rows):
        # Rows 31 to 60 are in no batch: all bit patterns, NaNs with a load and subnormals too.
        kinds = np.uint32 if rows.itemsize == 4 else np.uint16
        drawn = np.random.default_rng(1).integers(0, np.iinfo(kinds).max, rows[31:].shape, kinds)
        rows[31:] = drawn.view(rows.dtype)
        rows[31:35] = np.array([1, 5, 0x7C01, 0x7F81], kinds)[:, None].view(rows.dtype)
        rows[35] = -0.0

    optimizer = optimizers.Adam(0.1, clip_norm=clip_norm, slot_dtype="table")
    run(Geometry(ROWS, DIM, 4, "row", lanes, "mod"), "all_to_all", optimizer, dtype, edit=edit)


def test_a_feature_without_occurrences():
    def features_of(rng):
        empty = FeatureBags(np.empty(0, np.int64), np.zeros(4, np.int64))
        return [empty, some_bags(rng, 9)]

    geometry = Geometry(ROWS, DIM, 4, "row", 128)
    run(geometry, "all_to_all", made("Adagrad", {}), features_of=features_of)


def test_many_narrow_rows_are_updated_block_by_block():
    def features_of(rng):
        ids = rng.permutation(50_000)[:40_000]
        return [FeatureBags(ids, np.arange(0, 40_001, 4))]

    for optimizer in (made("RowwiseAdagrad", {}), optimizers.Adam(0.1, lazy_adam=False)):
        geometry = Geometry(50_000, 3, 1, "row", 128)
        assert geometry.lines > 1024 // 32, "more than one block, the last not full"
        assert geometry.local_rows % 16384
        run(geometry, "local", optimizer, features_of=features_of)


@pytest.mark.parametrize("name", ["SGD", "RowwiseAdagrad", "Adam"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@named(EXCHANGES)
def test_tables_are_updated_where_they_lie(devices, placement, exchange, name, dtype):
    geometry = Geometry(400_000 * devices, 16, devices, placement, 128)
    if placement != "row":
        geometry = Geometry(400_000, 16 * devices, devices, placement, 128)
    rng = np.random.default_rng(0)
    features = [FeatureBags(rng.integers(0, geometry.num_rows, 64), np.arange(0, 65, 4))]
    optimizer, kind = made(name, {}), as_dtype(dtype)
    route = route_update(geometry, features, exchange, True, True)
    mesh = mesh_of(devices)
    shapes = update_arguments(mesh, geometry, kind, route.shape, optimizer)
    program = update_program(mesh, geometry, route.shape, optimizer, kind)
    memory = program.lower(*shapes).compile().memory_analysis()
    size_held = geometry.lines * geometry.line_width * kind.itemsize
    for slot in optimizer.slots:
        size = (
            geometry.lines * geometry.line_width if slot.kind == "element" else geometry.local_rows
        )
        size_held += size * slot.storage_dtype(kind).itemsize
    assert memory.alias_size_in_bytes == size_held
    assert memory.temp_size_in_bytes < size_held // 8


@pytest.fixture
def small_blocks(monkeypatch):
    """Let narrow rows be unpacked a few lines at a time, so that a table has many blocks."""
    monkeypatch.setattr(row_update, "_BLOCK_ROWS", 16)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.RowwiseAdagrad(0.1),
        optimizers.Adam(0.1, lazy_adam=False, bias_correction="row"),
        optimizers.Adagrad(0.1, use_gradient_accumulation=False),
    ],
    ids=repr,
)
@named(EXCHANGES)
def test_block_by_block(devices, placement, exchange, optimizer, lanes):
    if exchange == "all_to_all" and not optimizer.accumulate:
        exchange = "gather"
    run(Geometry(ROWS, DIM, devices, placement, lanes), exchange, optimizer, steps=2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@named([(1, "row", "local"), (4, "row", "gather")])
def test_blocks_change_no_bit(devices, placement, exchange, dtype):
    def features_of(rng):
        # One row has more occurrences than are summed at a time, others have none.
        ids = np.concatenate([np.full(40, 3), rng.integers(0, ROWS, 60)])
        return [FeatureBags(ids, np.arange(0, 101, 4))]

    # That norms are clipped, if none is, makes rows of lines and changes no number.
    optimizer = optimizers.SGD(2.0**-9, clip_norm=1e9, stochastic_rounding=dtype != "float32")
    geometry = Geometry(ROWS, DIM, devices, placement, 128)
    run(geometry, exchange, optimizer, dtype, steps=2, exact=True, features_of=features_of)
    run(geometry, exchange, optimizer, dtype, go=False, features_of=features_of)


# All numbers are few bits long, so that products are exact: fused with a sum or not, they give the
# same bits.
FEW_BITS = {"beta_1": 0.5, "beta_2": 0.75, "epsilon": 2.0**-10}
PER_WEIGHT = [
    optimizers.SGD(2.0**-4),
    optimizers.SGD(2.0**-4, momentum=0.5, nesterov=True, slot_dtype="table"),
    optimizers.Adagrad(2.0**-4, clipvalue=0.5, weight_decay_factor=2.0**-6, clip_weight_max=0.75),
    optimizers.Adagrad(2.0**-4, slot_dtype="table"),
    optimizers.AdagradMomentum(2.0**-4, 0.5, beta2=0.75),
    optimizers.FTRL(2.0**-4, l1_regularization_strength=0.25),
    optimizers.Adam(2.0**-4, **FEW_BITS),
    optimizers.Adam(2.0**-4, lazy_adam=False, **FEW_BITS),
    optimizers.AdamW(2.0**-4, weight_decay_factor=0.25, **FEW_BITS),
    optimizers.RMSProp(2.0**-4, rho=0.75, momentum=0.5, epsilon=2.0**-10),
]


@pytest.mark.parametrize("case", range(2 * len(PER_WEIGHT)))
def test_lines_updated_as_they_lie_have_the_bits_of_rows(monkeypatch, case):
    rng = np.random.default_rng([12, case])
    optimizer = PER_WEIGHT[case % len(PER_WEIGHT)]
    devices, placement, exchange = PLACES[rng.integers(len(PLACES))]
    dim = int(rng.integers(1, 65)) if rng.random() < 0.8 else int(rng.choice([96, 128, 130]))
    layout = str(rng.choice(["div", "mod"])) if placement == "row" else "div"
    dtype = as_dtype(("float32", "bfloat16", "float16")[case % 3])
    rows = int(rng.integers(2, 200))
    if not optimizer.lazy:  # rows that fill up their last line must stay
        rows, dim = rows | 1, 20
    geometry = Geometry(rows, dim, devices, placement, 128, layout)

    def features_of(rng):
        bags = [some_bags(rng, 11, rows=rows), some_bags(rng, 7, rows=rows)]
        weights = rng.integers(-4, 4, bags[0].ids.size) / np.float32(2)
        return [dataclasses.replace(bags[0], weights=weights), bags[1]]

    def edit(array):
        array[:] = np.random.default_rng(case).integers(1, 64, array.shape) / 64

    def updated():
        # An update of 1.5 by no gradient shows, of NaN it does not.
        options = {"features_of": features_of, "edit": edit, "padding": 1.5, "seed": case}
        return run(geometry, exchange, optimizer, dtype, exact=True, **options)

    table, slots = updated()
    assert row_update.RowUpdate(geometry, optimizer, dtype).keeps_lines
    monkeypatch.setattr(row_update, "_is_per_weight", lambda optimizer, dtype: False)
    by_row, slots_by_row = updated()
    at = places_of(geometry, dim)
    for name, ours, theirs in [
        ("rows", table, by_row),
        *((name, slots[name], slots_by_row[name]) for name in slots),
    ]:
        ours, theirs = bits_of(ours).reshape(-1), bits_of(theirs).reshape(-1)
        np.testing.assert_array_equal(ours[at], theirs[at], err_msg=name)
        padding = np.delete(ours, at)
        assert (padding == padding[:1]).all(), "padding is as it was: all the same"


def test_optimizers_of_whole_rows_are_not_updated_in_lines():
    geometry, dtype = Geometry(ROWS, DIM, 1, "row", 128), as_dtype("bfloat16")
    for optimizer, lines in [
        *((optimizer, True) for optimizer in PER_WEIGHT),
        (optimizers.SGD(0.1, clip_norm=1.0), False),
        (optimizers.SGD(0.1, stochastic_rounding=True), False),
        (optimizers.SGD(0.1, use_gradient_accumulation=False), False),
        (optimizers.Adam(0.1, bias_correction="row"), False),
        *((made(name, {}), False) for name in ("RowwiseAdagrad", "RowwiseAdam", "LAMB", "LARS")),
        (made("Custom", SETTINGS["Custom"][0]), False),
    ]:
        assert row_update.RowUpdate(geometry, optimizer, dtype).keeps_lines is lines
    chance = optimizers.SGD(0.1, stochastic_rounding=True)
    assert row_update.RowUpdate(geometry, chance, as_dtype("float32")).keeps_lines
