"""Every first-party optimizer against its oracle, pure and compiled, with parameters of the run.

The other tests compare the two forms of a formula with each other; here both are compared with
`oracles.py`, which was written from the sources and shares nothing with them. Parameters are drawn
large enough to be seen, and gradients of a row from a scale of its own between 2**-30 and 8: beside
some of them every epsilon counts. The numbers are multiples of powers of two, so that sums of
gradients, with the weights' decay in them, are exact in float32 too: what a formula divides by the
root of its own square is not left over from rounding.
"""

from __future__ import annotations

import numpy as np
import oracles
import pytest

import shardcore as sc
from shardcore import optimizers
from shardcore.optimizer.slots import SlotSpec
from shardcore.plugins import registry
from shardcore.store.occurrences import sort_occurrences
from shardcore.store.row_update import RowUpdate
from shardcore.store.update import update_rows, updated

NARROW, WIDE = (1, 7), (64, 100)  # one chunk of a row's squares in the kernel, and beyond
TABLE, TOUCHED = 53, 35  # more rows than one block of the kernel, and rows that no batch names
STEPS = (1, 2, 700)
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}  # of the largest number that a row has held
PRESETS = ("tf", "fbgemm", "tpu")

# Optimizer: what its variants fix, and what is drawn for all of them.
BIASES = ("none", "global", "row")
VARIANTS = {
    "SGD": [{}, {"momentum": None}, {"momentum": None, "nesterov": True}],
    "Adagrad": [{}, {"epsilon": 0.0}],
    "RowwiseAdagrad": [{}, {"reduce": "max"}, {"epsilon": 0.0}],
    "AdagradMomentum": [
        {"use_nesterov": nesterov, "beta2": beta2, "exponent": exponent}
        for nesterov in (False, True)
        for beta2 in (1.0, None)
        for exponent in (1.0, 2.0, None)
    ],
    "FTRL": [
        {"multiply_linear_by_learning_rate": multiplied, "learning_rate_power": power}
        for multiplied in (False, True)
        for power in (-0.5, None, 0.0)
    ]
    + [{"allow_zero_accumulator": True, "initial_accumulator_value": 0.0}],
    "RMSProp": [
        {"sum_inside_sqrt": inside, "momentum": momentum}
        for inside in (False, True)
        for momentum in (0.0, None)
    ],
    "LARS": [{}, {"epsilon": 0.0}],
    **{
        name: [
            {"sum_inside_sqrt": inside, "bias_correction": bias}
            for inside in (False, True)
            for bias in BIASES
        ]
        for name in ("Adam", "AdamW", "RowwiseAdam", "LAMB")
    },
}
RANGES = {
    "momentum": (0.3, 0.95),
    "initial_accumulator_value": (0.05, 2.0),
    "exponent": (2.2, 4.0),
    "beta2": (0.4, 0.95),
    "learning_rate_power": (-0.9, -0.2),
    "l1_regularization_strength": (0.05, 1.0),
    "l2_regularization_strength": (0.05, 1.0),
    "beta": (0.1, 2.0),
    "beta_1": (0.3, 0.95),
    "beta_2": (0.4, 0.99),
    "rho": (0.3, 0.95),
    "trust_coefficient": (0.05, 0.9),
}
DRAWN = {
    "SGD": "learning_rate",
    "Adagrad": "learning_rate initial_accumulator_value epsilon",
    "RowwiseAdagrad": "learning_rate initial_accumulator_value epsilon",
    "AdagradMomentum": "learning_rate momentum initial_accumulator_value epsilon",
    "FTRL": "learning_rate l1_regularization_strength l2_regularization_strength beta "
    "initial_accumulator_value",
    "RMSProp": "learning_rate rho epsilon",
    "LARS": "learning_rate momentum trust_coefficient epsilon",
    **dict.fromkeys(
        ("Adam", "AdamW", "RowwiseAdam", "LAMB"), "learning_rate beta_1 beta_2 epsilon"
    ),
}
# What is around a formula.
AROUND = {
    "alone": {},
    "clipped": {"clipvalue": 0.75, "clip_norm": 1.5},
    "clipped on one side": {"clipvalue": (None, 0.5)},
    "decoupled decay": {"weight_decay_factor": 0.25, "decoupled_weight_decay": True},
    "coupled decay": {"weight_decay_factor": 0.25, "decoupled_weight_decay": False},
    "all, decoupled": {
        "clipvalue": (-0.75, 0.5),
        "clip_norm": 1.5,
        "weight_decay_factor": 0.25,
        "multiply_weight_decay_factor_by_learning_rate": True,
        "decoupled_weight_decay": True,
        "clip_weight_min": -1.0,
        "clip_weight_max": 0.875,
    },
    "all, coupled": {
        "clipvalue": (-0.75, 0.5),
        "clip_norm": 1.5,
        "weight_decay_factor": 0.25,
        "multiply_weight_decay_factor_by_learning_rate": True,
        "decoupled_weight_decay": False,
        "clip_weight_max": 0.875,
    },
    "one by one": {
        "use_gradient_accumulation": False,
        "weight_decay_factor": 0.125,
        "clip_weight_min": -1.0,
    },
}
CASES = [
    (name, variant, around) for name in VARIANTS for variant in VARIANTS[name] for around in AROUND
]


def drawn(rng, name, variant, around):
    """Return arguments: the variant's and those around, numbers for all that is left open."""
    arguments = dict.fromkeys(DRAWN[name].split()) | variant | AROUND[around]
    for key, value in arguments.items():
        if value is not None:
            continue
        if key == "epsilon":
            arguments[key] = float(10 ** rng.uniform(-8, -0.5))
        elif key == "learning_rate":
            arguments[key] = float(rng.integers(1, 15)) / 16
        else:
            arguments[key] = float(rng.uniform(*RANGES[key]))
    return arguments


def dyadic(rng, shape):
    """Return numbers of a normal distribution, in multiples of 1/64; a tenth are zeros."""
    return np.round(rng.standard_normal(shape) * 64) / 64 * (rng.random(shape) > 0.1)


class Numbers:
    """A table to begin with, and batches: which rows, with which gradients, one to three a row."""

    def __init__(self, rng, dim, tiny=-30):
        self.rows = np.round(rng.standard_normal((TABLE, dim)) * 1024) / 1024
        self.scale = 2.0 ** rng.integers(tiny, 4, TABLE)
        self.batches = []
        for step in STEPS:
            touched = np.sort(rng.choice(TABLE, TOUCHED, replace=False))
            ids = rng.permutation(np.repeat(touched, rng.integers(1, 4, TOUCHED)))
            self.batches.append((step, ids, dyadic(rng, (ids.size, dim)) * self.scale[ids, None]))


def start(optimizer, rows, dtype):
    """Return rows and slots of a table, in the dtype."""
    rows = rows.astype(dtype)
    slots = optimizer.init(rows, np.arange(len(rows)), 7)
    return rows, {name: np.array(slot, dtype) for name, slot in slots.items()}


def pure(optimizer, numbers, dtype):
    """Return rows and slots as `update` alone makes them."""
    rows, slots = start(optimizer, numbers.rows, dtype)
    for step, ids, gradients in numbers.batches:
        gradients = gradients.astype(dtype)
        touched = np.unique(ids)
        block = rows[touched], {name: slot[touched] for name, slot in slots.items()}
        if optimizer.accumulate:
            sums = np.array([gradients[ids == row].sum(axis=0) for row in touched])
            new = optimizer.update(sums, *block, optimizer.hyper(), step, touched)
        else:
            batch = sort_occurrences(ids, np.arange(ids.size, dtype=np.int32), None, TABLE)
            update = RowUpdate(batch, touched, gradients, optimizer, optimizer.hyper(), step)
            new = updated(*block, update)
        rows[touched] = new[0]
        for name, slot in slots.items():
            slot[touched] = new[1][name]
    return rows, slots


def compiled(optimizer, numbers, dtype):
    """Return rows and slots as the store makes them: compiled, where there is a compiled form."""
    rows, slots = start(optimizer, numbers.rows, dtype)
    for step, ids, gradients in numbers.batches:
        batch = sort_occurrences(ids, np.arange(ids.size, dtype=np.int32), None, TABLE)
        gradients = gradients.astype(dtype)
        hyper = optimizer.hyper()
        update_rows(rows, slots, RowUpdate(batch, batch.rows, gradients, optimizer, hyper, step))
    return rows, slots


FORMS = (pure, compiled)


def train(oracle, numbers):
    """Take an oracle through the batches."""
    for step, ids, gradients in numbers.batches:
        oracle.apply({int(row): gradients[ids == row] for row in np.unique(ids)}, step)


def assert_near(found, oracle, tolerance, what):
    """Compare rows and slots with an oracle's, each row beside the largest number it has held."""
    rows, slots = found
    assert set(slots) == set(oracle.slots), what
    for name, array in {"rows": rows, **slots}.items():
        expected = np.array(oracle.rows if name == "rows" else oracle.slots[name])
        assert array.shape == expected.shape, f"{what}: {name}"
        size = np.array(oracle.largest[name])
        if name == "linears":  # made of weights, and of differences of powers
            size = np.maximum(size, oracle.largest["rows"])
        limit = tolerance * np.maximum(size, 1e-30)[:, None]
        off = np.abs(array - expected)
        worst = np.unravel_index(np.argmax(off / limit), off.shape)
        assert (off <= limit).all(), (
            f"{what}: {name}{[int(at) for at in worst]} is {array[worst]!r}, the oracle's "
            f"{expected[worst]!r}"
        )


def check(oracle_of, optimizer, numbers, what, exact=True):
    """Compare both forms, on tables of both dtypes or of float64 alone, with an oracle."""
    oracle = oracle_of(numbers.rows)
    train(oracle, numbers)
    for dtype, tolerance in TOLERANCE.items():
        if dtype == "float32" and not exact:
            continue
        for form in FORMS:
            found = form(optimizer, numbers, dtype)
            assert_near(found, oracle, tolerance, f"{what}, {form.__name__}, {dtype}")


# ----------------------------------------------------------------------------- the formulas


@pytest.mark.parametrize(("name", "variant", "around"), CASES, ids=str)
def test_formula_is_its_oracles(name, variant, around, seed):
    rng = np.random.default_rng([seed, CASES.index((name, variant, around))])
    arguments = drawn(rng, name, variant, around)
    optimizer = getattr(optimizers, name)(**arguments)
    for dim in (*NARROW, int(rng.choice(WIDE))):
        # FTRL subtracts nearby powers: what is left of tiny gradients is rounding, in any order.
        numbers = Numbers(rng, dim, tiny=-3 if name == "FTRL" else -30)
        check(
            lambda rows: oracles.Oracle.of(name, "tf", arguments, rows),
            optimizer,
            numbers,
            f"{name} {arguments}, dim {dim}, seed {seed}",
            exact=around != "all, coupled",  # a scaled gradient and a decay may all but cancel
        )


@pytest.mark.parametrize("name", oracles.FORMULAS)
def test_slots_that_are_given_are_begun_with(name, seed):
    rng = np.random.default_rng(seed)
    arguments = drawn(rng, name, VARIANTS[name][-1], "alone")
    slots = oracles.slots_of(name, oracles.parameters_of(name, "tf", arguments))
    arguments["slot_initial_values"] = {slot: float(rng.uniform(0.1, 0.9)) for slot in slots}
    check(
        lambda rows: oracles.Oracle.of(name, "tf", arguments, rows),
        getattr(optimizers, name)(**arguments),
        Numbers(rng, 7, tiny=-3),
        f"{name} {arguments}, seed {seed}",
    )


def test_every_optimizer_and_every_argument_of_a_formula_has_an_oracle():
    classes = set(registry.optimizers()) - {"Custom"}
    assert set(oracles.FORMULAS) == set(oracles.DEFAULTS) == set(VARIANTS) == classes
    besides = {"slot_dtype", "stochastic_rounding"}  # how numbers are kept, not which
    for name in classes:
        known = set(oracles.parameters_of(name, "tf", {})) | besides
        assert set(getattr(optimizers, name)().parameters()) <= known, name


# ----------------------------------------------------------------------------- presets


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", oracles.FORMULAS)
def test_preset_has_the_numbers_of_its_library(name, preset):
    optimizer = getattr(optimizers, name)(preset=preset)
    expected = {**oracles.COMMON, **oracles.DEFAULTS[name][preset]}
    assert {key: getattr(optimizer, key) for key in expected} == expected


@pytest.mark.parametrize("rate", ["preset's", "drawn"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", oracles.FORMULAS)
def test_preset_is_its_oracles(name, preset, rate, seed):
    """Down to gradients as small as the preset's epsilon; rows no larger than its steps."""
    rng = np.random.default_rng([seed, PRESETS.index(preset)])
    arguments = {} if rate == "preset's" else {"learning_rate": float(rng.uniform(0.05, 0.9))}
    # More than one column: LAMB steps as far as the row is long, with one whatever its epsilon.
    numbers = Numbers(rng, int(rng.choice((7, *WIDE))), tiny=-3 if name == "FTRL" else -30)
    numbers.rows /= 1024
    check(
        lambda rows: oracles.Oracle.of(name, preset, arguments, rows),
        getattr(optimizers, name)(preset=preset, **arguments),
        numbers,
        f"{name}, preset {preset}, {arguments}, seed {seed}",
    )


# ----------------------------------------------------------------------------- Custom


def fading_largest(grad, rows, slots, hyper, step, row_ids):
    """Steps by the sign of a momentum over the largest gradient seen, less for higher rows."""
    xp = rows.__array_namespace__()
    largest = xp.maximum(hyper["fade"] * slots["largest"], xp.abs(grad))
    share = hyper["learning_rate"] / step / (1 + xp.astype(row_ids, rows.dtype)[:, None])
    moved = share * grad / (largest + hyper["delta"]) + slots["seen"] * rows
    return rows - moved, {"largest": largest, "seen": slots["seen"] * hyper["fade"]}


class CustomOracle(oracles.Oracle):
    """The same, weight by weight; told the row's number."""

    def apply(self, received, t, rate=None):
        for self.row in received:
            super().apply({self.row: received[self.row]}, t, rate)

    def fade(self, p, rate, t, decay, w, g, s):
        for c in range(len(w)):
            s["largest"][c] = max(p["fade"] * s["largest"][c], abs(g[c]))
            step = rate / t / (1 + self.row) * g[c] / (s["largest"][c] + p["delta"])
            w[c] -= step + s["seen"][0] * w[c]
        s["seen"][0] *= p["fade"]


@pytest.mark.parametrize("around", AROUND)
def test_custom_is_its_oracle(around, seed):
    rng = np.random.default_rng(seed)
    fixed = {"fade": float(rng.uniform(0.3, 0.9)), "delta": float(rng.uniform(0.01, 0.5))}
    begun, rate = float(rng.uniform(0.05, 0.5)), float(rng.uniform(0.1, 0.9))
    slots = {"largest": (True, begun), "seen": (False, begun / 4)}
    kinds = {True: "element", False: "row"}
    optimizer = optimizers.Custom(
        fading_largest,
        rate,
        slot_specs=[SlotSpec(slot, kinds[of], fill=fill) for slot, (of, fill) in slots.items()],
        hyperparameters=fixed,
        **AROUND[around],
    )

    def oracle_of(rows):
        p = oracles.COMMON | AROUND[around] | fixed | {"learning_rate": rate}
        oracle = CustomOracle(p, None, slots, rows)
        oracle.formula = oracle.fade
        return oracle

    numbers = Numbers(rng, int(rng.choice(NARROW + WIDE)), tiny=-6)
    check(oracle_of, optimizer, numbers, f"Custom, {around}, seed {seed}")


# ----------------------------------------------------------------------------- in an engine

ENGINES = {"cpu": ("cpu", {}), "sim": ("sim", {"hosts": 3})}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "lazy"),
    [
        (name, lazy)
        for name in oracles.FORMULAS
        for lazy in (True, False)
        if lazy or "lazy_adam" in oracles.DEFAULTS[name]["tf"]
    ],
)
def test_engine_trains_as_the_oracle_does(name, lazy, engine, seed):
    """Two features of a table, a rate that changes from batch to batch, all rows if not lazy."""
    rng = np.random.default_rng(seed)
    arguments = drawn(rng, name, VARIANTS[name][int(rng.integers(len(VARIANTS[name])))], "alone")
    if not lazy:
        arguments["lazy_adam"] = False
    rates = iter(given := [0.5, 0.125, 0.75])
    optimizer = getattr(optimizers, name)(**{**arguments, "learning_rate": lambda: next(rates)})
    backend, options = ENGINES[engine]
    table = sc.TableConfig(TABLE, 7, combiner="sum", name="t", dtype="float64", layout="mod")
    features = {key: sc.FeatureConfig(table) for key in "ab"}
    with sc.ShardedEmbedding(
        features, optimizer=optimizer, backend=backend, backend_options=options, seed=seed
    ) as e:
        e.build()
        oracle = oracles.Oracle.of(name, "tf", arguments, np.asarray(e.tables["t"]))
        for t, rate in enumerate(given, start=1):
            ids = {key: rng.integers(0, TABLE, 40) for key in features}
            gradients = {key: dyadic(rng, (40, 7)) for key in features}
            e.enqueue(ids)
            e.dequeue()
            e.apply_gradients(gradients)
            rows, grads = (np.concatenate([one["a"], one["b"]]) for one in (ids, gradients))
            named = range(TABLE) if not lazy else np.unique(rows)
            none = np.zeros((1, 7))
            oracle.apply({int(row): [*none, *grads[rows == row]] for row in named}, t, rate)
        found = np.asarray(e.tables["t"]), {k: np.asarray(v) for k, v in e.slots["t"].items()}
        what = f"{name} {arguments} on {engine}, seed {seed}"
        assert_near(found, oracle, TOLERANCE["float64"], what)
