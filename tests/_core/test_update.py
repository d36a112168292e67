"""Summed gradients and updates: equal to the twins, in every instruction set, on any threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardcore_optimizers.adagrad import Adagrad, AdagradMomentum, RowwiseAdagrad
from shardcore_optimizers.adam import Adam, RowwiseAdam
from shardcore_optimizers.ftrl import FTRL
from shardcore_optimizers.rmsprop import RMSProp
from shardcore_optimizers.sgd import SGD

import shardcore as sc
from shardcore import reference
from shardcore._core.constants import ASKING
from shardcore.dtypes import as_dtype, working_dtype
from shardcore.errors import ShardcoreValueError
from shardcore.optimizer.base import Optimizer
from shardcore.optimizer.compiled import UpdateFunction, update_prototype
from shardcore.optimizer.slots import SlotSpec
from shardcore.store import update as update_module
from shardcore.store.instruction_set import best_module
from shardcore.store.occurrences import Occurrences, every_row, sort_occurrences
from shardcore.store.pace import NEVER, PACE, Pace, pace_of
from shardcore.store.rounding import step_seed
from shardcore.store.row_update import RowUpdate
from shardcore.store.stored_rows import StoredRows
from shardcore.store.table import StoreTable
from shardcore.store.update import _summed_first, accumulate, update_rows, updated
from shardcore.threads.team import get_num_threads, set_num_threads

pytestmark = pytest.mark.usefixtures("instruction_set")

DTYPES = ["float32", "float64", "float16", "bfloat16"]
DIMS = [1, 2, 8, 15, 16, 17, 32, 48, 63, 64, 65, 80, 128, 129]

Same = Callable[[Any, Any], None]
Make = Callable[..., Any]


@dataclass(frozen=True, eq=False, repr=False)
class Momentum(Optimizer):
    """A pure optimizer that uses all it is given: two slots, the step and the row's number."""

    learning_rate: float = 0.25

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("velocity", "element"), SlotSpec("touched", "row"))

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        velocity = slots["velocity"] * grad.dtype.type(0.5) + grad
        number = (row_ids % 7).astype(grad.dtype)[:, None]
        moved = rows - grad.dtype.type(hyper[0]) * velocity + number
        return moved, {"velocity": velocity, "touched": slots["touched"] + grad.dtype.type(step)}


@dataclass(frozen=True, eq=False, repr=False)
class MomentumOneByOne(Momentum):
    """The same for each occurrence, rounded by chance."""

    accumulate = False
    rounds_stochastically = True


ONE_BY_ONE = {"use_gradient_accumulation": False, "stochastic_rounding": True}


@dataclass(frozen=True, eq=False, repr=False)
class Recorded(Optimizer):
    """A compiled optimizer whose C function is a Python callback that writes down its calls."""

    calls: list[Any] = field(default_factory=list)
    hyper_names = ("rate", "more")

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        return (SlotSpec("squares", "element"), SlotSpec("count", "row"))

    def hyper(self) -> tuple[float, ...]:
        return (0.5, 3.0)

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        rate, more = (grad.dtype.type(value) for value in hyper)
        squares, count = slots["squares"] + grad, slots["count"] + more
        return rows - rate * grad, {"squares": squares, "count": count}

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        def function(
            count: int,
            dim: int,
            rows: Any,
            slots: Any,
            gradients: Any,
            row_ids: Any,
            hyper: Any,
            step: int,
            context: int | None,
        ) -> None:
            numbers = [row_ids[u] for u in range(count)]
            self.calls.append((count, dim, numbers, [hyper[0], hyper[1]], step))
            for u in range(count):
                slots[1][u][0] += hyper[1]
                for c in range(dim):
                    slots[0][u][c] += gradients[u * dim + c]
                    rows[u][c] -= hyper[0] * gradients[u * dim + c]

        callback = update_prototype(working_dtype(as_dtype(dtype)).name)(function)
        assert isinstance(callback, ctypes._CFuncPtr)  # type: ignore[attr-defined]
        return UpdateFunction.from_ctypes(callback)


def new_slots(optimizer: Optimizer, rows: int, dim: int, dtype: Any) -> dict[str, Any]:
    return {
        spec.name: np.full(spec.shape(rows, dim), spec.fill, spec.storage_dtype(dtype))
        for spec in optimizer.slots
    }


def batch_of(rng: np.random.Generator, n: int, rows: int, bags: int, gains: Any) -> Occurrences:
    ids = rng.zipf(1.3, n) % rows if n else np.empty(0, np.int64)
    sources = rng.integers(0, bags, n).astype(np.int32)
    return sort_occurrences(ids, sources, gains, rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dim=st.sampled_from([0, *DIMS, 200]),
    n=st.sampled_from([0, 1, 5, 150]),
    weighted=st.booleans(),
)
def test_summed_gradients_equal_their_twin(
    dtype: str,
    seed: int,
    dim: int,
    n: int,
    weighted: bool,
    make_rows: Make,
    frozen: Callable[[Any], Any],
    assert_same: Same,
) -> None:
    rng = np.random.default_rng(seed)
    gains = frozen(make_rows(rng, (n,), dtype)) if weighted else None
    gradients = frozen(make_rows(rng, (9, dim), dtype))
    batch = batch_of(rng, n, 40, 9, gains)
    assert_same(accumulate(batch, gradients), reference.accumulate(batch, gradients))


@pytest.mark.parametrize("n", [4095, 4096, 4097, 8192, 8193, 12_500])
@pytest.mark.parametrize("weighted", [False, True])
def test_long_runs_are_summed_in_blocks(n: int, weighted: bool, assert_same: Same) -> None:
    rng = np.random.default_rng(n)
    gradients = rng.standard_normal((n, 3)).astype(np.float32)
    gains = rng.standard_normal(n + 2).astype(np.float32) if weighted else None
    rows = np.array([5, *[2] * n, 0])  # the run does not begin at 0: blocks count from its first
    sources = np.array([1, *range(n), 0], np.int32)
    batch = sort_occurrences(rows, sources, gains, 6)
    ours = accumulate(batch, gradients)
    assert_same(ours, reference.accumulate(batch, gradients))
    terms = gradients if gains is None else gains[1:-1, None] * gradients
    in_one_go = np.cumsum(terms, axis=0, dtype=np.float32)[-1]
    np.testing.assert_allclose(ours[1], in_one_go, rtol=1e-3, atol=1e-3)
    # One block, or a second one of one term, is the sum in one go; beyond, the last bits differ.
    assert np.array_equal(ours[1], in_one_go) == (n <= 4097)


def runs_of_lengths(
    rng: np.random.Generator, lengths: Any, bags: int, ascending: bool, gains: bool
) -> Occurrences:
    """Return occurrences of rows 0, 2, 4, … with so many each, of any bags."""
    splits = np.concatenate(([0], np.cumsum(lengths)))
    sources = rng.integers(0, bags, splits[-1]).astype(np.int32)
    if ascending:  # within each run, as those of a table's features are
        sources = sources[np.lexsort((sources, np.repeat(np.arange(len(lengths)), lengths)))]
    factors = rng.uniform(-1, 1, splits[-1]).astype(np.float32) if gains else None
    return Occurrences(2 * np.arange(len(lengths), dtype=np.int64), splits, sources, factors)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("dim", [64, 85])
def test_runs_that_are_summed_first_equal_those_of_their_own(
    dim: int,
    ascending: bool,
    gains: bool,
    threads: int,
    assert_same: Same,
    num_threads: Callable[[int], None],
) -> None:
    """More long runs than are summed together, blocks that end in a tile, short runs between."""
    num_threads(threads)
    rng = np.random.default_rng(dim)
    lengths = rng.integers(1, 130, 1500)  # some 700 of 64 and more: the last is a short one
    lengths[[3, 20, 700, 1200]] = 4096, 4097, 12_500, 63
    lengths[[500, 501, 1498, 1499]] = 64, 65, 64, 1
    batch = runs_of_lengths(rng, lengths, 5000, ascending, gains)
    gradients = rng.standard_normal((5000, dim)).astype(np.float32)
    optimizer = SGD(1.0)
    update = RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1)
    places, _ = _summed_first(update)
    assert places is not None
    np.testing.assert_array_equal(places, np.flatnonzero(lengths >= 64))
    rows = np.zeros((3000, dim), np.float32)
    update_rows(rows, {}, update)
    assert_same(rows[::2], 0 - accumulate(batch, gradients))
    assert not rows[1::2].any()


@pytest.mark.parametrize("count", [31, 32, 33, 64, 65])
def test_long_runs_are_found_wherever_they_lie(count: int) -> None:
    """Runs are passed 32 at a time: a long one may be the first of these, or the last."""
    kernel = best_module("shardcore._core.rows")
    for at in range(count):
        for length, found in ((63, []), (64, [at])):
            lengths = np.zeros(count, np.int64)
            lengths[at] = length
            splits = np.concatenate(([7], 7 + np.cumsum(lengths)))
            places = np.full(2, -1)
            assert kernel.long_runs(splits, places) == len(found)
            assert places[: len(found)].tolist() == found


def test_runs_are_summed_first_where_that_saves_reading() -> None:
    rng = np.random.default_rng(1)
    optimizers = SGD(1.0), SGD(1.0, use_gradient_accumulation=False)
    # Of 40,000 occurrences: gradients of less than a MiB; read once; runs too short; one by one.
    for bags, run, optimizer, first in (
        (5000, 100, optimizers[0], True),
        (4000, 100, optimizers[0], False),
        (21_000, 100, optimizers[0], False),
        (5000, 50, optimizers[0], False),
        (5000, 100, optimizers[1], False),
    ):
        batch = runs_of_lengths(rng, [run] * (40_000 // run), bags, True, False)
        gradients = np.ones((bags, 64), np.float32)
        rest = (gradients, optimizer, optimizer.hyper(), 1)
        long, sums = _summed_first(RowUpdate(batch, batch.rows, *rest))
        assert (long is not None) == (sums is not None) == first


@pytest.mark.parametrize("dim", [1, 7, 8, 63, 64, 65, 72, 128, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_row_wise_squares_are_added_as_its_pure_form_adds_them(
    dtype: str, dim: int, assert_same: Same
) -> None:
    """Of many rows, in blocks of 32 and a rest, of columns in chunks of 64 and a rest."""
    rng = np.random.default_rng(dim)
    optimizer = RowwiseAdagrad(0.2)
    batch = sort_occurrences(np.arange(75), np.arange(75, dtype=np.int32), None, 75)
    gradients = rng.standard_normal((75, dim)).astype(dtype) * 10.0 ** rng.integers(-3, 3, (75, 1))
    gradients = gradients.astype(dtype)
    ours, theirs = (
        (np.ones((75, dim), dtype), new_slots(optimizer, 75, dim, as_dtype(dtype)))
        for _ in range(2)
    )
    for step in (1, 2):
        update = RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), step)
        update_rows(*ours, update)
        reference.update_rows(*theirs, update)
    assert_same(ours[0], theirs[0])
    assert_same(ours[1]["accumulators"], theirs[1]["accumulators"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.3),
        Adagrad(0.2),
        Momentum(),
        Adagrad(0.2, stochastic_rounding=True),
        SGD(0.3, momentum=0.5, **ONE_BY_ONE),
        MomentumOneByOne(),
    ],
    ids=repr,
)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    dim=st.sampled_from(DIMS),
    n=st.sampled_from([0, 1, 40, 200]),
    weighted=st.booleans(),
    every=st.booleans(),
)
def test_updates_equal_their_twin(
    dtype: str,
    optimizer: Optimizer,
    seed: int,
    dim: int,
    n: int,
    weighted: bool,
    every: bool,
    make_rows: Make,
    assert_same: Same,
) -> None:
    rng = np.random.default_rng(seed)
    kind = as_dtype(dtype)
    value = working_dtype(kind)
    rows = make_rows(rng, (120, dim), dtype, False)
    gains = rng.uniform(-1, 1, n).astype(value) if weighted else None
    batch = batch_of(rng, n, 120, 9, gains)
    if every:
        batch = every_row(batch, 120)
    gradients = rng.standard_normal((9, dim)).astype(value)
    gradients[rng.random(9) < 0.2] = 0
    ours, theirs = ((rows.copy(), new_slots(optimizer, 120, dim, kind)) for _ in range(2))
    for step in (1, 2):
        rest = (batch, batch.rows * 3 + 1, gradients, optimizer, optimizer.hyper(), step, seed)
        update_rows(*ours, RowUpdate(*rest))
        reference.update_rows(*theirs, RowUpdate(*rest))
    assert_same(ours[0], theirs[0])
    for name in ours[1]:
        assert_same(ours[1][name], theirs[1][name])
    untouched = np.setdiff1d(np.arange(120), batch.rows)
    assert_same(ours[0][untouched], rows[untouched])


def stored_in(optimizer: Callable[..., Optimizer], **others: Any) -> Callable[[str], Optimizer]:
    return lambda dtype: optimizer(0.3, slot_dtype=dtype, **others)


@pytest.mark.parametrize("slot_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "make",
    [
        stored_in(RowwiseAdagrad),
        stored_in(Adam, bias_correction="row"),  # two slots per weight, two of its own per row
        stored_in(RowwiseAdam, **ONE_BY_ONE),
    ],
    ids=["one per row", "mixed", "one by one"],
)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), dim=st.sampled_from(DIMS), n=st.sampled_from([1, 40, 200]))
def test_updates_of_slots_in_other_dtypes_equal_their_twin(
    make: Callable[[str], Optimizer],
    dtype: str,
    slot_dtype: str,
    seed: int,
    dim: int,
    n: int,
    make_rows: Make,
    assert_same: Same,
) -> None:
    rng = np.random.default_rng(seed)
    kind, optimizer = as_dtype(dtype), make(slot_dtype)
    rows = make_rows(rng, (120, dim), dtype, False)
    batch = batch_of(rng, n, 120, 9, None)
    gradients = (rng.standard_normal((9, dim)) * 10.0 ** rng.integers(-6, 6, (9, 1))).astype(
        working_dtype(kind)
    )
    ours, theirs = ((rows.copy(), new_slots(optimizer, 120, dim, kind)) for _ in range(2))
    assert {slot.dtype.name for slot in ours[1].values()} >= {slot_dtype}
    for step in (1, 2):
        rest = (batch, batch.rows * 3 + 1, gradients, optimizer, optimizer.hyper(), step, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(optimizer), "update", None)  # what is compiled runs
            update_rows(*ours, RowUpdate(*rest))
        reference.update_rows(*theirs, RowUpdate(*rest))
    assert_same(ours[0], theirs[0])
    for name in ours[1]:
        assert_same(ours[1][name], theirs[1][name])


def test_doubles_are_rounded_to_half_once() -> None:
    """A double just beyond the middle of two halves is rounded as NumPy does, not by a float."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[1:] + halves[:-1]) / 2
    beside = [np.nextafter(middles, way) for way in (-np.inf, np.inf)]
    beyond = [65519.99999, 65520.0, 1e300, np.inf, 5e-324, 1e-40, np.nan]
    numbers = np.concatenate([halves, middles, *beside, beyond])
    gradients = np.concatenate([numbers, -numbers])[:, None]
    count = len(gradients)
    optimizer = SGD(0.0, momentum=0.5, slot_dtype="float16")
    slots = {"momenta": np.zeros((count, 1), np.float16)}
    batch = sort_occurrences(np.arange(count), np.arange(count, dtype=np.int32), None, count)
    rest = (gradients, optimizer, optimizer.hyper(), 1)
    update_rows(np.zeros((count, 1)), slots, RowUpdate(batch, batch.rows, *rest))
    with np.errstate(all="ignore"):
        expected = (gradients + 0.0).astype(np.float16)
        twice = gradients.astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(slots["momenta"], expected)
    assert np.nansum(twice != expected) > 60_000


@pytest.mark.parametrize("slot_dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_scratch_is_as_large_as_the_kernel_says(
    slot_dtype: str, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_module, "PACE", PACE._replace(alone_bytes=NEVER))
    kernel = update_module._kernel
    rows, slot = np.ones((70, dim), np.float32), np.ones((70, dim), as_dtype(slot_dtype))
    optimizer = SGD(0.5, momentum=0.5)
    batch = sort_occurrences(np.arange(70), np.zeros(70, np.int32), None, 70)
    gradients = np.ones((1, dim), np.float32)
    rest = (batch.rows, batch.run_splits, batch.sources, None, gradients, False, 0, None, None)
    updates = kernel.Updates()
    rule = update_module._rule(optimizer, optimizer.hyper(), np.dtype(np.float32))
    updates.add(StoredRows(rows, {"momenta": slot}).found, rule, 1, batch.rows, *rest)
    converted = slot_dtype != "float32"
    pointers, values = 32 * 2 + 1, (2 + converted) * 32 * dim + dim
    assert updates.scratch == 8 * pointers + 64 + 4 * values
    assert updates.cut(1, 1) == 1
    scratch = np.full(updates.scratch + 256, 77, np.uint8)
    updates.make(scratch[: updates.scratch])
    assert (rows == 0.25).all()
    assert (scratch[updates.scratch :] == 77).all()
    if not converted:  # what is left of it is not used, or it would be too large
        bytes_a_row = rows[0].nbytes + slot[0].nbytes
        most = PACE.block, PACE.block_bytes // bytes_a_row
        after = scratch.ctypes.data + 8 * pointers
        line = 8 * pointers + -after % 64  # where a cache line begins
        used = scratch[line : line + 4 * min(most) * dim].view(np.float32)
        assert (used == 1).all()


@pytest.mark.parametrize(
    ("dim", "block_bytes", "most"), [(64, 2580, 5), (64, 2579, 4), (3, 2560, 16), (900, 2560, 1)]
)
def test_a_block_has_as_many_rows_as_its_bytes_allow(
    dim: int, block_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row, its squares and its count have 8 dim + 4 bytes."""
    monkeypatch.setattr(update_module, "PACE", PACE._replace(block=16, block_bytes=block_bytes))
    optimizer, rows, ids = Recorded(), np.zeros((40, dim), np.float32), np.arange(40)
    slots = new_slots(optimizer, 40, dim, np.dtype(np.float32))
    batch = sort_occurrences(ids, ids.astype(np.int32), None, 40)
    gradients = np.zeros((40, dim), np.float32)
    update_rows(rows, slots, RowUpdate(batch, ids, gradients, optimizer, optimizer.hyper(), 1))
    counts = [call[0] for call in optimizer.calls]
    assert max(counts) == most
    assert sum(counts) == 40


@dataclass(frozen=True, eq=False, repr=False)
class RecordedRowByRow(Recorded):
    """The same, which may be called so."""

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        function = super().compiled(dtype)
        assert function is not None
        return replace(function, row_by_row=True)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "dim", "allowed", "single"),
    [
        (RecordedRowByRow, "float32", 32, True, True),
        (RecordedRowByRow, "float64", 16, True, True),
        (RecordedRowByRow, "float32", 32, False, False),
        (Recorded, "float32", 32, True, False),
        (RecordedRowByRow, "float32", 31, True, False),
        (RecordedRowByRow, "float16", 64, True, False),
    ],
)
def test_rows_are_handed_over_one_by_one_to_what_asks_for_it(
    optimizer: type[Recorded],
    dtype: str,
    dim: int,
    allowed: bool,
    single: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the processor gains by it, where rows and slots have 256 bytes, none of them converted."""
    alone_bytes = 256 if allowed else NEVER
    pace = PACE._replace(block=16, block_bytes=1 << 20, sections=1, alone_bytes=alone_bytes)
    monkeypatch.setattr(update_module, "PACE", pace)
    recorded, rows, ids = optimizer(), np.zeros((40, dim), as_dtype(dtype)), np.arange(40)
    value = working_dtype(as_dtype(dtype))
    slots = new_slots(recorded, 40, dim, value)
    gradients = np.arange(40 * dim, dtype=value).reshape(40, dim) % 8
    batch = sort_occurrences(ids, ids.astype(np.int32), None, 40)
    update_rows(rows, slots, RowUpdate(batch, ids, gradients, recorded, recorded.hyper(), 1))
    assert (max(call[0] for call in recorded.calls) == 1) == single
    assert [number for call in recorded.calls for number in call[2]] == ids.tolist()
    np.testing.assert_array_equal(rows, (-gradients / 2).astype(rows.dtype))


@pytest.mark.parametrize("sections", [1, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("dim", [64, 67])
@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.5),
        SGD(0.5, momentum=0.5, nesterov=True, clipvalue=1.0),
        Adagrad(0.1, clip_norm=1.5),
        AdagradMomentum(0.1),
        Adam(0.1),
        FTRL(0.1),
        RMSProp(0.1, momentum=0.5),
        Adagrad(0.1, use_gradient_accumulation=False),
    ],
    ids=repr,
)
def test_rows_one_by_one_are_those_of_the_pure_form(
    optimizer: Any,
    dim: int,
    dtype: str,
    weighted: bool,
    sections: int,
    make_rows: Make,
    frozen: Callable[[Any], Any],
    assert_same: Same,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one gradient, some or many; zeros of both signs in rows and gradients are no exception."""
    pace = PACE._replace(alone_bytes=256, sections=sections, block=4)
    monkeypatch.setattr(update_module, "PACE", pace)
    monkeypatch.setattr(update_module, "GRADIENT_BYTES", 0)  # so that long runs are summed first
    rng = np.random.default_rng(dim)
    lengths = rng.choice([1, 1, 1, 2, 5, 70], 100)
    batch = runs_of_lengths(rng, lengths, 300, True, weighted)
    if weighted:
        batch = replace(batch, gains=batch.gains.astype(dtype))
    gradients = make_rows(rng, (300, dim), dtype, False)
    rows = make_rows(rng, (200, dim), dtype, False)
    for numbers in (gradients, rows):
        numbers[rng.random(numbers.shape) < 0.2] = -0.0
    slots = new_slots(optimizer, 200, dim, np.dtype(dtype))
    update = RowUpdate(batch, batch.rows, frozen(gradients), optimizer, optimizer.hyper(), 1)
    if optimizer.accumulate and not weighted:
        assert _summed_first(update)[0] is not None
    chosen = {name: slot[::2].copy() for name, slot in slots.items()}
    wanted, wanted_slots = updated(rows[::2].copy(), chosen, update)
    update_rows(rows, slots, update)
    assert_same(rows[::2], wanted)
    for name, slot in slots.items():
        assert_same(slot[::2], wanted_slots[name])


@pytest.mark.parametrize("alone_bytes", [NEVER, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [8, 16, 32, 48, 64, 128])
def test_runs_of_any_length_in_rows_of_the_dims_that_have_bodies(
    dim: int,
    dtype: str,
    weighted: bool,
    alone_bytes: int,
    make_rows: Make,
    assert_same: Same,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to 63 gradients are summed by the body for these columns; 48 have none."""
    pace = PACE._replace(alone_bytes=alone_bytes)
    monkeypatch.setattr(update_module, "PACE", pace)
    rng = np.random.default_rng(dim)
    kind, optimizer = as_dtype(dtype), Adam(0.1)
    value = working_dtype(kind)
    lengths = np.concatenate(
        ([0, 1, 2, 3, 62, 63, 64, 65, 5000], rng.choice([0, 1, 1, 1, 2, 7], 90))
    )
    rng.shuffle(lengths)
    batch = runs_of_lengths(rng, lengths, 300, True, weighted)
    if weighted:
        batch = replace(batch, gains=batch.gains.astype(value))
    gradients = rng.standard_normal((300, dim)).astype(value)
    rows = make_rows(rng, (2 * len(lengths), dim), dtype, False)
    ours, theirs = ((rows.copy(), new_slots(optimizer, len(rows), dim, kind)) for _ in range(2))
    update = RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1)
    update_rows(*ours, update)
    reference.update_rows(*theirs, update)
    assert_same(ours[0], theirs[0])
    for name in ours[1]:
        assert_same(ours[1][name], theirs[1][name])


@pytest.mark.parametrize("dim", [8, 16, 32, 48, 64, 128])
def test_summed_zeros_are_positive_whatever_the_sign_of_the_gradients(dim: int) -> None:
    """As an optimizer's function is promised: -0 minus 0 stays -0, minus -0 it would be 0."""
    batch = runs_of_lengths(np.random.default_rng(dim), [0, 1, 2, 63, 64], 9, True, False)
    optimizer, rows = Recorded(), np.full((10, dim), -0.0, np.float32)
    gradients = np.full((9, dim), -0.0, np.float32)
    slots = new_slots(optimizer, 10, dim, np.dtype(np.float32))
    update_rows(
        rows, slots, RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1)
    )
    assert len(optimizer.calls) > 0
    assert np.signbit(rows).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [20, 130])
@pytest.mark.parametrize("occurrences", [300, 3000])
@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.5, momentum=0.5), RowwiseAdagrad(0.1), SGD(0.3, stochastic_rounding=True)],
    ids=repr,
)
def test_an_update_is_the_same_in_blocks_of_any_size(
    optimizer: Any, occurrences: int, dim: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any number of ranges side by side, asked for in any way; of rows named once or often."""
    rng = np.random.default_rng(occurrences)
    ids = rng.integers(0, 1000, occurrences)
    gradients = rng.standard_normal((occurrences, dim)).astype(np.float32)
    found = set()
    second, first = ASKING["by lines"], ASKING["into first"]
    for pace in (
        *(pace_of(family) for family in (0, 25, 26)),
        pace_of(25, avx512=True),
        Pace(second, 32, 1 << 20, 1, 0, NEVER),
        Pace(first, 16, 1, 16, 1, 256),
        Pace(first, 12, 1 << 20, 2, 5000, 1),
        Pace(second, 1, 1 << 20, 1, 5000, NEVER),
        Pace(first, 5, 500, 1, 3, 600),
        Pace(second, 1 << 20, 1 << 20, 1, 16, NEVER),
    ):
        monkeypatch.setattr(update_module, "PACE", pace)
        ids_of_rows = sc.initializers.RowId()
        table = sc.TableConfig(1000, dim, initializer=ids_of_rows, dtype=dtype, name="t")
        with sc.ShardedEmbedding(sc.FeatureConfig(table), optimizer) as e:
            e.enqueue(ids)
            e.dequeue()
            e.apply_gradients(gradients)
            slots = [e.slots["t"][name][:].tobytes() for name in e.slots["t"]]
            found.add((e.tables["t"][:].tobytes(), *slots))
    assert len(found) == 1


@pytest.mark.parametrize("sections", [-4, 0, 3, 12])
def test_sections_that_are_no_power_of_two_are_refused(
    sections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_module, "PACE", PACE._replace(sections=sections))
    rows, ids, optimizer = np.zeros((3, 2), np.float32), np.arange(3), SGD(0.5)
    batch = sort_occurrences(ids, ids.astype(np.int32), None, 3)
    gradients = np.ones((3, 2), np.float32)
    message = f"sections must be a power of two, got {sections}"
    with pytest.raises(ValueError, match=message):
        update_rows(rows, {}, RowUpdate(batch, ids, gradients, optimizer, optimizer.hyper(), 1))
    assert not rows.any()


class Long(Momentum):
    """A slot in a dtype that no kernel reads, and a compiled form that cannot be used for it."""

    slots = (SlotSpec("velocity", "element", np.longdouble), SlotSpec("touched", "row"))

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        return SGD(0.5).compiled(dtype)


@pytest.mark.parametrize(
    ("optimizer", "counted"),
    [(Long(), 2), (Momentum(), 0), (Adagrad(0.5, slot_dtype="float16"), 0)],
    ids=["long double", "not compiled", "converted"],
)
def test_pure_updates_of_a_compiled_optimizer_are_counted(
    optimizer: Optimizer, counted: int, assert_same: Same
) -> None:
    table = StoreTable(40, 3, np.dtype(np.float32), optimizer)
    rows, slots = table.rows.copy(), {name: slot.copy() for name, slot in table.slots.items()}
    for slot in (*table.slots.values(), *slots.values()):
        slot[...] = 1
    batch = sort_occurrences(np.array([4, 9, 4]), np.arange(3, dtype=np.int32), None, 40)
    for step in (1, 2):
        gradients = np.arange(9, dtype=np.float32).reshape(3, 3) / 8
        rest = (batch, batch.rows, gradients, optimizer, optimizer.hyper(), step)
        table.apply(RowUpdate(*rest))
        reference.update_rows(rows, slots, RowUpdate(*rest))
    assert table.pure_updates == counted
    assert_same(table.rows, rows)
    for name, slot in slots.items():
        np.testing.assert_array_equal(table.slots[name], slot)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_compiled_update_is_called_with(dtype: str, assert_same: Same) -> None:
    rng = np.random.default_rng(0)
    kind = as_dtype(dtype)
    value = working_dtype(kind)
    optimizer = Recorded()
    rows = rng.integers(-8, 8, (100, 3)).astype(kind)
    slots = new_slots(optimizer, 100, 3, kind)
    slots = {name: slot.astype(value) for name, slot in slots.items()}
    batch = sort_occurrences(
        rng.permutation(100)[:70], np.arange(70, dtype=np.int32) % 5, None, 100
    )
    gradients = rng.integers(-8, 8, (5, 3)).astype(value)
    theirs = rows.copy(), {name: slot.copy() for name, slot in slots.items()}
    rest = (batch, batch.rows + 1000, gradients, optimizer, optimizer.hyper(), 4)
    update_rows(rows, slots, RowUpdate(*rest))
    reference.update_rows(*theirs, RowUpdate(*rest))
    assert_same(rows, theirs[0])
    for name, slot in slots.items():
        assert_same(slot, theirs[1][name])
    counts = [call[0] for call in optimizer.calls]
    assert sum(counts) == 70
    assert max(counts) <= 32
    assert [number for call in optimizer.calls for number in call[2]] == list(batch.rows + 1000)
    assert {(call[1], *call[3], call[4]) for call in optimizer.calls} == {(3, 0.5, 3.0, 4)}


@dataclass(frozen=True, eq=False, repr=False)
class RecordedOneByOne(Recorded):
    """The same for each occurrence."""

    accumulate = False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("sections", [1, 4])
def test_one_by_one_names_the_rows_of_the_whole_table(
    dtype: str, block: int, sections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard's rows have other numbers in the table: those are what an optimizer is given."""
    pace = PACE._replace(block=block, block_bytes=1 << 20, sections=sections)
    monkeypatch.setattr(update_module, "PACE", pace)
    rng = np.random.default_rng(6)
    value = working_dtype(as_dtype(dtype))
    optimizer = RecordedOneByOne()
    rows = np.zeros((100, 3), as_dtype(dtype))
    slots = new_slots(optimizer, 100, 3, value)
    ids = rng.integers(0, 100, 300)
    batch = sort_occurrences(ids, np.arange(300, dtype=np.int32) % 5, None, 100)
    whole = batch.rows * 7 + 2**40
    gradients = rng.integers(-8, 8, (5, 3)).astype(value)
    update_rows(rows, slots, RowUpdate(batch, whole, gradients, optimizer, optimizer.hyper(), 1))
    told = np.array([number for call in optimizer.calls for number in call[2]])
    assert np.array_equal(np.sort(told), np.sort(ids * 7 + 2**40))
    if sections > 1:  # rows of a block come from ranges in turn, in an order not spelled out here
        return
    expected: list[int] = []  # of a block first all first occurrences, then all second ones
    lengths = np.diff(batch.run_splits)
    for start in range(0, whole.size, block):
        rows_of_block = slice(start, start + block)
        for turn in range(lengths[rows_of_block].max()):
            expected += whole[rows_of_block][lengths[rows_of_block] > turn].tolist()
    assert told.tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_by_one_is_an_update_per_occurrence(dtype: str, assert_same: Same) -> None:
    rng = np.random.default_rng(3)
    kind = as_dtype(dtype)
    value = working_dtype(kind)
    summed, one_by_one = (Adagrad(0.5, use_gradient_accumulation=way) for way in (True, False))
    ids = np.array([4, 1, 4, 4, 0, 1])
    gradients = rng.standard_normal((6, 5)).astype(value)
    rows = rng.standard_normal((6, 5)).astype(kind)
    slots = new_slots(one_by_one, 6, 5, kind)
    expected = rows.astype(value), new_slots(summed, 6, 5, kind)
    for at, row in enumerate(ids):
        single = sort_occurrences(np.array([row]), np.array([at], np.int32), None, 6)
        update_rows(*expected, RowUpdate(single, single.rows, gradients, summed, summed.hyper(), 1))
    batch = sort_occurrences(ids, np.arange(6, dtype=np.int32), None, 6)
    update_rows(
        rows, slots, RowUpdate(batch, batch.rows, gradients, one_by_one, one_by_one.hyper(), 1)
    )
    assert_same(rows, expected[0].astype(kind))  # rounded once, after all occurrences
    assert_same(slots["accumulators"], expected[1]["accumulators"])


@pytest.mark.parametrize("optimizer", [SGD(0.3), Momentum()], ids=repr)
def test_every_row_of_no_batch_has_a_gradient_of_zeros(optimizer: Optimizer) -> None:
    nothing = sort_occurrences(np.empty(0, np.int64), np.empty(0, np.int32), None, 40)
    batch = every_row(nothing, 40)
    assert accumulate(batch, np.empty((0, 3), np.float32)).tolist() == [[0.0] * 3] * 40
    rows, slots = np.ones((40, 3), np.float32), new_slots(optimizer, 40, 3, np.float32)
    hyper, none = optimizer.hyper(), np.empty((0, 3), np.float32)
    update_rows(rows, slots, RowUpdate(batch, np.arange(40), none, optimizer, hyper, 1))
    moved = (np.arange(40) % 7 if isinstance(optimizer, Momentum) else np.zeros(40)) + 1
    np.testing.assert_array_equal(rows, np.broadcast_to(moved[:, None], (40, 3)))


def test_chance_is_that_of_the_global_row_and_the_step() -> None:
    optimizer = SGD(0.001, stochastic_rounding=True)
    gradients = np.random.default_rng(1).standard_normal((50, 33)).astype(np.float32)
    batch = sort_occurrences(np.arange(50), np.arange(50, dtype=np.int32), None, 50)

    def after(ids: Any, local: Any, step: int, seed: int) -> Any:
        rows = np.ones((50, 33), np.float16)
        part = sort_occurrences(local, local.astype(np.int32), None, 50)
        rest = (gradients, optimizer, optimizer.hyper(), step, seed)
        update_rows(rows, {}, RowUpdate(part, ids, *rest))
        return rows[local]

    whole = after(batch.rows + 70, batch.rows, 5, 9)
    odd = np.arange(1, 50, 2)
    assert after(odd + 70, odd, 5, 9).tobytes() == whole[odd].tobytes()
    for ids, step, seed in ((71, 5, 9), (70, 6, 9), (70, 5, 10)):
        assert after(batch.rows + ids, batch.rows, step, seed).tobytes() != whole.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_chance_does_not_tell_where_a_row_is_kept(dtype: str) -> None:
    """The same rows of a table in other places of a shard are rounded alike."""
    optimizer = SGD(0.001, stochastic_rounding=True)
    gradients = np.random.default_rng(1).standard_normal((50, 33)).astype(np.float32)
    results = []
    for first, apart in ((0, 1), (7, 1), (3, 5)):
        rows = np.ones((300, 33), as_dtype(dtype))
        kept = first + apart * np.arange(50)
        batch = sort_occurrences(kept, np.arange(50, dtype=np.int32), None, 300)
        ids = np.arange(50) * 3 + 10**10
        update_rows(rows, {}, RowUpdate(batch, ids, gradients, optimizer, optimizer.hyper(), 2, 9))
        results.append(rows[kept].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    "optimizer",
    [Adagrad(0.2), Momentum(), Adagrad(0.2, **ONE_BY_ONE)],
    ids=repr,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_nothing(
    optimizer: Optimizer, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardcore.threads.team.PIECE", 4096)  # many borders
    rng = np.random.default_rng(0)
    kind = as_dtype(dtype)
    batch = batch_of(rng, 30_000, 4000, 500, None)
    gradients = rng.standard_normal((500, 33)).astype(working_dtype(kind))
    start = rng.standard_normal((4000, 33)).astype(kind)
    assert np.diff(batch.run_splits).max() > 4096 or not optimizer.accumulate
    before = get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 7):
            set_num_threads(threads)
            rows, slots = start.copy(), new_slots(optimizer, 4000, 33, kind)
            update_rows(
                rows,
                slots,
                RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1),
            )
            results.append((rows.tobytes(), *(slot.tobytes() for slot in slots.values())))
    finally:
        set_num_threads(before)
    assert len(set(results)) == 1


def test_a_pure_update_beyond_the_range_of_a_short_float_is_infinite_without_a_word() -> None:
    rows = np.full((1, 1), 60_000, np.float16)
    batch = sort_occurrences(np.array([0]), np.array([0], np.int32), None, 1)
    optimizer = Momentum(1.0)
    slots = new_slots(optimizer, 1, 1, rows.dtype)
    gradients = np.full((1, 1), -60_000, np.float32)
    update_rows(rows, slots, RowUpdate(batch, batch.rows, gradients, optimizer, (1.0,), 1))
    assert rows[0, 0] == np.inf


@pytest.mark.parametrize("optimizer", [SGD(0.3), Momentum()], ids=repr)
def test_rows_without_columns_have_nothing_to_learn(optimizer: Optimizer) -> None:
    rows = np.empty((3, 0), np.float32)
    slots = new_slots(optimizer, 3, 0, rows.dtype)
    batch = sort_occurrences(np.array([2, 2]), np.zeros(2, np.int32), None, 3)
    gradients = np.empty((1, 0), np.float32)
    update_rows(
        rows, slots, RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1)
    )
    assert all(not slot.any() for slot in slots.values())


def test_a_missing_hyper_parameter_is_told_before_c_reads_past_the_end() -> None:
    batch = sort_occurrences(np.array([1]), np.array([0], np.int32), None, 2)
    rows, optimizer = np.zeros((2, 3)), Adagrad(0.2)
    with pytest.raises(ShardcoreValueError, match="hyper must have a value for each of learning_"):
        update_rows(rows, {}, RowUpdate(batch, batch.rows, np.ones((1, 3)), optimizer, (), 1))
    assert not rows.any()


@pytest.mark.parametrize("sections", [1, 4])
@pytest.mark.parametrize("accumulate_first", [True, False])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 127, 128, 129, 130, 131, 132, 255, 1000, 4099])
def test_updates_of_many_rows_touch_each_once(
    count: int, accumulate_first: bool, sections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Around blocks of 32 rows, and around four of them, from which on they are interleaved."""
    pace = PACE._replace(block=32, block_bytes=1 << 20, sections=sections)
    monkeypatch.setattr(update_module, "PACE", pace)
    rng = np.random.default_rng(count)
    ids = rng.permutation(3 * count)[:count]
    twice = np.concatenate((ids, ids[: count // 2]))
    sources = np.arange(twice.size, dtype=np.int32)
    gradients = rng.integers(-8, 8, (twice.size, 5)).astype(np.float32)
    optimizer = SGD(0.5, use_gradient_accumulation=accumulate_first)
    batch = sort_occurrences(twice, sources, None, 3 * count)
    rows = np.ones((3 * count, 5), np.float32)
    update_rows(rows, {}, RowUpdate(batch, batch.rows, gradients, optimizer, optimizer.hyper(), 1))
    expected = np.ones((3 * count, 5), np.float32)
    np.subtract.at(expected, twice, gradients / 2)
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 15, 16, 17, 24, 31, 33, 63, 64, 65, 130])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_every_size_are_rounded_by_chance_as_their_twin_rounds_them(
    dtype: str, dim: int
) -> None:
    """Ordinary, subnormal and far too large ones side by side, in vectors and beyond the last."""
    rng = np.random.default_rng(dim)
    exponents = (
        rng.integers(-30, 20, (90, dim))
        if dtype == "float16"
        else rng.integers(-140, 128, (90, dim))
    )
    exponents[:30] = rng.integers(-3, 3, (30, dim))  # rows of ordinary numbers alone
    values = (rng.uniform(1, 2, (90, dim)) * 2.0**exponents).astype(np.float32)
    values *= rng.choice([-1, 1], values.shape).astype(np.float32)
    edges = [65503.0, 65504.0, 65519.99, 65520.0, 2.0**-14, 2.0**-14 - 2.0**-38, 2.0**-25]
    edges += [3.3895314e38, 3.39e38, np.inf, -np.inf, np.nan, 0.0]
    places = rng.random((60, dim)) < 0.2
    values[30:][places] = rng.choice(edges, int(places.sum())).astype(np.float32)
    optimizer = SGD(1.0, stochastic_rounding=True)
    batch = sort_occurrences(np.arange(90), np.arange(90, dtype=np.int32), None, 90)
    rows, ids = np.zeros((90, dim), as_dtype(dtype)), np.arange(90) * 5 + 10**11
    rest = (-values, optimizer, optimizer.hyper(), 3, 8)
    update_rows(rows, {}, RowUpdate(batch, ids, *rest))
    with np.errstate(invalid="ignore", over="ignore"):
        seed = step_seed(8, 3)
        expected = reference.stochastic_round(0 + values, as_dtype(dtype), ids, seed)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(rows.view(np.uint16)[number], expected.view(np.uint16)[number])
    assert np.isnan(rows[~number].astype(np.float32)).all()
