"""Tables that are alike, laid together: each stays a table of its own, and they share programs."""

import dataclasses
import gc
import re
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shardcore_pjrt.backend
from shardcore_pjrt.backend import PjrtBackend
from shardcore_pjrt.mesh.geometry import Geometry
from shardcore_pjrt.programs import split_features
from shardcore_pjrt.programs.sent_lists import sent_lists
from shardcore_pjrt.routing.update_route import route_update
from shardcore_pjrt.stacks import Numbering, numbered, stacked

import shardcore as sc
from shardcore.backend import QuantizationConfig, TableBatch, TableSpec
from shardcore.initializers import Constant, Normal, Uniform, Zeros
from shardcore.testing.requests import Probe, gradient_of, make_bags, make_spec
from shardcore.testing.twins import Twins

ADAGRAD = sc.optimizers.Adagrad(0.25)
ALIKE = {"num_rows": 9, "dim": 4, "dtype": "float32", "optimizer": ADAGRAD}


def groups(specs, devices=2, lanes=1):
    """Return the names of tables, stack by stack."""
    tables = [
        (one, Geometry(one.num_rows, one.dim, devices, one.placement, lanes, one.layout), "mesh")
        for one in specs
    ]
    return [[member.spec.name for member in stack.members] for stack in stacked(tables)]


def spec_of(name, **fields):
    fields = {**ALIKE, "seed": 1, **fields}
    return make_spec(
        name, fields.pop("num_rows"), fields.pop("dim"), fields.pop("dtype"),
        fields.pop("optimizer"), **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [{"num_rows": 1000}, {"seed": 2}, {"layout": "mod"}, {"layout": (0, 9)},
     {"initializer": Normal(0.0, 2.0)}, {"optimizer": sc.optimizers.Adagrad(0.25)}],
    ids=str,
)  # fmt: skip
def test_tables_that_programs_cannot_tell_apart_lie_together(fields):
    specs = [spec_of("a"), spec_of("other", **fields), spec_of("b")]
    assert groups(specs) == [["a", "other", "b"]]


@pytest.mark.parametrize(
    "fields",
    [{"dim": 5}, {"dtype": "float16"}, {"placement": "replicated"}, {"max_norm": 1.0},
     {"optimizer": None}, {"optimizer": sc.optimizers.Adagrad(0.125)},
     {"optimizer": sc.optimizers.Adagrad(0.25, initial_accumulator_value=0.5)},
     {"quantization": QuantizationConfig(3, -1.0, 1.0)}, {"initializer": Zeros()}],
    ids=str,
)  # fmt: skip
def test_others_lie_apart(fields):
    specs = [spec_of("a"), spec_of("other", **fields), spec_of("b")]
    assert groups(specs) == [["a", "b"], ["other"]]


def test_zeros_of_two_signs_lie_apart():
    below = [spec_of(name, initializer=Constant(-0.0)) for name in "ac"]
    assert groups([below[0], spec_of("b", initializer=Zeros()), below[1]]) == [["a", "c"], ["b"]]


@pytest.mark.parametrize(
    "fields",
    [{"optimizer": sc.optimizers.Adam(lazy_adam=False)},
     {"optimizer": sc.optimizers.SGD(0.25, stochastic_rounding=True), "dtype": "float16"}],
    ids=["every row", "chance"],
)  # fmt: skip
def test_tables_that_depend_on_more_than_their_rows_lie_alone(fields):
    assert groups([spec_of(name, **fields) for name in "abc"]) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("devices", "lanes", "rows", "expected"),
    [
        (1, 1, 900_000_000, [["a", "b"], ["c", "d"], ["e"]]),  # of a shard
        (4, 1, 536_870_911, [["a", "b", "c"], ["d", "e"]]),  # of all shards, padded to the longest
        (4, 1, 536_870_908, [["a", "b", "c", "d"], ["e"]]),
    ],
)
def test_a_stack_that_is_full_is_followed_by_another(devices, lanes, rows, expected):
    specs = [spec_of(name, num_rows=rows) for name in "abcde"]
    assert groups(specs, devices, lanes) == expected


def test_a_shard_is_as_long_as_the_longest_needs():
    """Not the sum of each member's longest shard: rows of uneven layouts fill each other's gaps."""
    layouts = [(90, 0, 6), (0, 95, 1), (6, 1, 89)]
    specs = [spec_of(f"{i}", num_rows=96, layout=one) for i, one in enumerate(layouts)]
    tables = [(one, Geometry(96, 4, 3, "row", 1, one.layout), "mesh") for one in specs]
    (stack,) = stacked(tables)
    assert stack.geometry.local_rows == 96
    taken = np.concatenate([member.rows(np.arange(96)) for member in stack.members])
    assert np.unique(taken).tolist() == list(range(3 * 96))


@pytest.mark.parametrize("lanes", [1, 128])
@pytest.mark.parametrize("exchange", ["gather", "all_to_all"])
def test_rows_of_an_update_are_numbered_by_table(exchange, lanes):
    layouts = ["mod", (2, 0, 18), "div", "mod"]
    specs = [spec_of(f"{i}", num_rows=20, layout=one) for i, one in enumerate(layouts)]
    tables = [(one, Geometry(20, 4, 3, "row", lanes, one.layout), "mesh") for one in specs]
    (stack,) = stacked(tables)
    rng = np.random.default_rng(0)
    bags = [make_bags(rng, one, 6) for one in specs]
    features = [
        bag for one, member in zip(bags, stack.members, strict=True) for bag in member.bags([one])
    ]
    routed = route_update(stack.geometry, features, exchange, True, True)
    route = numbered(Numbering(stack.members), routed)
    k = stack.geometry.rows_per_line
    for shard in range(3):
        mine = {name: one[shard] if one.ndim else one for name, one in route.arrays.items()}
        if exchange == "all_to_all":
            mine |= sent_lists(jax.tree.map(jnp.asarray, mine), stack.geometry, route.shape)
        lines = np.asarray(mine["lines"])
        expected = np.full(lines.size * k, -1)
        for member, one in zip(stack.members, bags, strict=True):
            for row in np.unique(one.ids):
                owner, local = (int(at) for at in member.layout.locate(row))
                if owner == shard:
                    line, place = divmod(int(member.start[shard]) + local, k)
                    expected[int(np.flatnonzero(lines == line)[0]) * k + place] = row
        np.testing.assert_array_equal(mine["row_ids"], expected)


OPTIMIZERS = [
    ADAGRAD,
    Probe(0.5, 0.25),  # reads row ids
    sc.optimizers.SGD(0.5, momentum=0.5),
    sc.optimizers.RowwiseAdagrad(0.25),
    sc.optimizers.Adagrad(0.25, use_gradient_accumulation=False),
]


def drawn_specs(rng, devices):
    """Return tables of a few kinds; those of a kind differ in rows, layout and seed."""
    kinds = [
        (int(rng.integers(1, 40)), OPTIMIZERS[rng.integers(len(OPTIMIZERS))], placement)
        for placement in rng.permutation(["row", "row", "table", "column", "replicated"])[:3]
    ]
    specs = []
    for at in range(7):
        dim, optimizer, placement = kinds[rng.integers(len(kinds))]
        rows = int(rng.integers(1, 60))
        cuts = np.sort(rng.integers(0, rows + 1, devices - 1))
        counts = tuple(np.diff([0, *cuts, rows]).tolist())
        layout = ["div", "mod", counts][rng.integers(3)]
        specs.append(
            TableSpec(
                f"t{at}", rows, dim, np.dtype("f4"), Uniform(-1.0, 1.0), at, optimizer,
                layout, str(placement),
            )
        )  # fmt: skip
    return specs


def read_rows(backend, table, slot):
    return backend.read(table, slot, 0, backend.specs[table].num_rows)


@pytest.mark.parametrize(
    ("devices", "lanes", "exchange", "seed"),
    [(1, 1, None, 0), (1, 128, None, 1), (2, 1, "gather", 2), (2, 128, "all_to_all", 3),
     (3, 128, "gather", 4), (3, 1, "all_to_all", 5), (8, 1, None, 6), (8, 128, None, 7)],
)  # fmt: skip
def test_random_tables_beside_the_model(platform, devices, lanes, exchange, seed):
    """Any of them in a batch, in any order; gradients for some of these, some by other steps."""
    rng = np.random.default_rng(seed)
    backend = PjrtBackend(platform, devices, lanes, exchange)
    twins = Twins(backend, read_rows, 1e-5)
    twins.create_together(drawn_specs(rng, devices))
    twins.check_storage()
    specs = dict(backend.specs)
    assert len({id(one.stack) for one in backend._tables.values()}) < len(specs)
    for step in (1, 2):
        names = rng.permutation(sorted(specs))[: rng.integers(2, len(specs) + 1)].tolist()
        features = {
            name: [
                make_bags(
                    rng,
                    specs[name],
                    12,
                    combiner=str(rng.choice(["sum", "mean"])),
                    weighted=bool(rng.integers(2)),
                    ids_dtype=str(rng.choice(["int32", "int64"])),
                )
                for _ in range(rng.integers(1, 3))
            ]
            for name in names
        }
        looked = twins.lookup(*features.items(), training=True)
        shares = []
        for one, name in zip(looked, names, strict=True):
            given = [gradient_of(rng, specs[name], bags) for bags in features[name]]
            if step == 2 and len(given) > 1:
                given[rng.integers(len(given))] = None
            if step == 1 or rng.integers(3):
                shares.append(one.updates(given, step))
        if step == 2:
            rng.shuffle(shares)
        before = backend.counters()["unique_rows"]
        twins.apply_pairs(shares)
        named = sum(
            np.unique(
                np.concatenate(
                    [
                        bags.ids
                        for bags, used in zip(update.batch.features, update.active, strict=True)
                        if used
                    ]
                )
            ).size
            for update, _ in shares
        )
        assert backend.counters()["unique_rows"] - before == named
    twins.check_reads()
    backend.close()


@pytest.mark.parametrize(("devices", "lanes"), [(1, 1), (2, 128)])
def test_stacks_change_no_bit(platform, devices, lanes):
    """Beside the same tables made one by one, with a weighted one among unweighted ones."""
    specs = [spec_of(f"t{rows}", num_rows=rows, seed=rows, layout="mod") for rows in (5, 31, 12)]
    results = []
    for together in (False, True):
        backend = PjrtBackend(platform, devices, lanes)
        for some in [specs] if together else [[one] for one in specs]:
            backend.create_tables(some)
        assert len({id(one.stack) for one in backend._tables.values()}) == (1 if together else 3)
        rng = np.random.default_rng(0)
        seen = []
        for step in (1, 2):
            batches = [
                TableBatch(
                    one.name,
                    tuple(make_bags(rng, one, 8, combiner="mean", weighted=w) for w in weighted),
                    training=True,
                )
                for one, weighted in zip(specs, ([False], [True, False], [False]), strict=True)
            ]
            seen += [np.asarray(one) for found in backend.lookup(batches) for one in found]
            updates = []
            for batch, spec in zip(batches, specs, strict=True):
                given = tuple(gradient_of(rng, spec, bags) for bags in batch.features)
                updates.append(
                    shardcore_pjrt.backend.TableUpdate(batch, given, ADAGRAD.hyper(), step)
                )
            backend.apply(updates)
        for spec in specs:
            seen += [read_rows(backend, spec.name, slot) for slot in spec.arrays]
        results.append([one.tobytes() for one in seen])
        backend.close()
    assert results[0] == results[1]


def test_an_update_by_other_hyper_parameters_is_another_call(platform):
    backend = PjrtBackend(platform, 2)
    twins = Twins(backend, read_rows, 1e-5)
    specs = [spec_of(name, optimizer=Probe(0.5, 0.25)) for name in "abc"]
    twins.create_together(specs)
    rng = np.random.default_rng(0)
    features = {one.name: [make_bags(rng, one, 6)] for one in specs}
    looked = twins.lookup(*features.items(), training=True)
    pairs = [
        one.updates([gradient_of(rng, spec, *features[spec.name])], 1)
        for one, spec in zip(looked, specs, strict=True)
    ]
    changed = [dataclasses.replace(one, hyper=(2.0, 0.75)) for one in pairs[1]]
    twins.apply_pairs([pairs[0], tuple(changed), pairs[2]])
    backend.close()


@pytest.mark.parametrize("devices", [1, 4])
def test_many_tables_take_few_programs(platform, devices):
    """As many as one table does, and the features of many lie apart again."""

    def programs(tables):
        of = {
            f"f{at}": sc.FeatureConfig(
                sc.TableConfig(5 + 3 * at, 4, name=f"t{at}", combiner="sum"),
                max_sequence_length=2 if at == 7 else 0,
            )
            for at in range(tables)
        }
        rng = np.random.default_rng(0)
        ids = {f"f{at}": rng.integers(0, 5 + 3 * at, (8, 2)) for at in range(tables)}
        where = ("pjrt", {"platform": platform, "devices": devices})
        engines = [sc.ShardedEmbedding(of, ADAGRAD, *one, seed=3) for one in ((), where)]
        gradients = None
        for e in engines:
            e.enqueue(ids)
            found = e.dequeue()
            found = {name: np.asarray(one) for name, one in found.items()}
            if gradients is None:
                expected = found
                gradients = {
                    name: rng.normal(size=one.shape).astype(np.float32)
                    for name, one in found.items()
                }
            for name, one in found.items():
                np.testing.assert_allclose(one, expected[name], rtol=1e-5, atol=1e-6)
            e.apply_gradients(gradients)
        for name in engines[0].tables:
            ours, theirs = (e.tables[name][:] for e in engines)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        count = engines[1].metrics()["programs"]
        for e in engines:
            e.close()
        return count

    assert programs(26) <= 10
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        for module in (split_features, shardcore_pjrt.programs.lookup_program):
            patch.setattr(module, "AT_ONCE", 4)
        assert programs(13) <= 13


def test_whole_tables_go_to_the_device_that_has_least(platform):
    """Those on one device lie together, and count before they are made."""
    backend = PjrtBackend(platform, 3)
    rows = {"a": 50, "b": 30, "c": 20, "d": 9, "e": 12, "f": 1}
    backend.create_tables([spec_of(n, num_rows=r, placement="table") for n, r in rows.items()])
    homes = {name: int(backend.layout(name).shard_sizes.argmax()) for name in rows}
    assert homes == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 2, "f": 1}
    stacks = {name: id(one.stack) for name, one in backend._tables.items()}
    assert stacks["c"] == stacks["d"] == stacks["e"] != stacks["b"] == stacks["f"]
    backend.create_table(spec_of("g", num_rows=3, placement="table"))
    assert backend.layout("g").shard_sizes.tolist() == [0, 3, 0]
    backend.close()


def test_a_stack_goes_with_its_last_table(platform):
    backend = PjrtBackend(platform, 2)
    backend.create_tables([spec_of("a"), spec_of("b")])
    stack = weakref.ref(backend._tables["a"].stack)
    backend.drop_table("a")
    gc.collect()
    assert stack() is not None
    assert backend.gather("b", None, np.arange(9)).shape == (9, 4)
    backend.drop_table("b")
    gc.collect()
    assert stack() is None


def test_a_host_without_room_is_told_which_table_is_large(platform, monkeypatch):
    def full(*_):
        raise MemoryError("no room for 5 bytes")

    monkeypatch.setattr(shardcore_pjrt.backend, "DeviceTable", full)
    backend = PjrtBackend(platform, 2)
    message = (
        "table 'b' of 70 x 4 float32 has no room: with its slots it needs 2240 bytes: "
        "no room for 5 bytes"
    )
    with pytest.raises(sc.ShardcoreError, match=f"^{re.escape(message)}$"):
        backend.create_tables([spec_of("a"), spec_of("b", num_rows=70), spec_of("c")])
    assert backend.specs == {}


@pytest.mark.parametrize("lanes", [1, 128])
def test_initial_values_are_those_of_each_table_in_any_pieces(platform, monkeypatch, lanes):
    specs = [
        spec_of(f"t{rows}", num_rows=rows, seed=rows, layout=("div", "mod")[rows % 2])
        for rows in (40, 3, 77, 18)
    ]
    for piece in (1 << 23, 700):
        monkeypatch.setattr("shardcore_pjrt.device_table.PIECE_BYTES", piece)
        backend = PjrtBackend(platform, 3, lanes)
        backend.create_tables(specs)
        for spec in specs:
            wanted = spec.initializer(np.arange(spec.num_rows), (4,), spec.dtype, spec.seed)
            np.testing.assert_array_equal(read_rows(backend, spec.name, None), wanted)
            assert (read_rows(backend, spec.name, "accumulators") == np.float32(0.1)).all()
        backend.close()


def test_gradients_on_devices_are_refused_by_table(platform):
    of = {n: sc.FeatureConfig(sc.TableConfig(9, 4, name=n, combiner="sum")) for n in "abc"}
    with sc.ShardedEmbedding(of, ADAGRAD, "pjrt", {"platform": platform, "devices": 2}) as e:
        e.enqueue({name: np.arange(4) for name in of})
        gradients = dict(e.dequeue())
        before = {name: e.tables[name][:] for name in of}
        gradients["b"] = jax.numpy.full_like(gradients["b"], np.inf)

        def apply():
            e.apply_gradients(gradients)
            e.metrics()

        with pytest.raises(sc.ShardcoreError, match=r"gradients\['b'\] must be finite"):
            apply()
        for name in of:
            np.testing.assert_array_equal(e.tables[name][:], before[name])
