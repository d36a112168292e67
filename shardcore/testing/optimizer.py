"""The battery of tests that every optimizer passes."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from shardcore.backend.gradients import gradient_rows, sorted_rows
from shardcore.backend.messages import TableBatch, TableUpdate
from shardcore.dtypes import TABLE_DTYPES, as_dtype, working_dtype
from shardcore.errors import ShardcoreError, UnavailableError
from shardcore.initializers.distributions import Normal
from shardcore.optimizer.base import Optimizer, hyper_at
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.optimizer.slots import SlotSpec
from shardcore.store.occurrences import every_row
from shardcore.store.row_update import RowUpdate
from shardcore.store.table import StoreTable
from shardcore.testing.agreement import assert_agree
from shardcore.testing.model import ModelBackend
from shardcore.testing.requests import gradient_of, make_bags, make_spec, read_only

__all__ = ["OptimizerConformance"]

each_working_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
each_dtype = pytest.mark.parametrize("dtype", TABLE_DTYPES)

WIDEST = 70
_INIT_ROWS = 2000  # of the table whose rows `init` is asked about

Slots = dict[str, NDArray[Any]]


class OptimizerConformance:
    """The contract of optimizers as tests; in words it is `shardcore.optimizer.base`.

    Subclass it as ``TestSomething`` and override one fixture:

    ``optimizer``
        An instance with ordinary parameters, all of them plain numbers, and a learning rate with
        which it gets somewhere in `convergence_steps` steps.

    Attributes
    ----------
    bitwise : bool, default True
        Whether the compiled form gives the numbers of the pure form to the last bit, and the pure
        form the same for a row whatever block it comes in.
    tolerance : float, default 1e-5
        Relative and absolute, where `bitwise` is False.
    convergence_steps : int, default 300
        Steps in which weights within 1 of the minimum of a quadratic come at least ten times
        closer to it, measured by the root mean square.

    Examples
    --------
    >>> class TestPlain(OptimizerConformance):
    ...     @pytest.fixture
    ...     def optimizer(self):
    ...         from shardcore.optimizers import SGD
    ...
    ...         return SGD(learning_rate=0.05)
    """

    bitwise: ClassVar[bool] = True
    tolerance: ClassVar[float] = 1e-5
    convergence_steps: ClassVar[int] = 300

    # --- fixtures --------------------------------------------------------------------------------

    @pytest.fixture
    def optimizer(self) -> Optimizer:
        """Return an optimizer; to be overridden."""
        pytest.fail(
            f"{type(self).__name__} must override the fixture 'optimizer': return an optimizer "
            "whose parameters are plain numbers"
        )

    @pytest.fixture
    def rng(self) -> np.random.Generator:
        """Return the source of the battery's random numbers."""
        return np.random.default_rng(30)

    @property
    def _limit(self) -> float | None:
        return None if self.bitwise else self.tolerance

    # --- what it is ------------------------------------------------------------------------------

    def test_is_a_frozen_dataclass(self, optimizer: Optimizer) -> None:
        """Its fields are its parameters; nothing can be set, and nothing is hidden in it."""
        assert isinstance(optimizer, Optimizer)
        assert optimizer.name.isidentifier()
        assert type(optimizer.lazy) is bool
        for name in optimizer.parameters():
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(optimizer, name, 1.0)
        hidden = set(vars(optimizer)) - set(optimizer.parameters())
        assert not hidden, "an optimizer must hold nothing but its parameters"

    def test_equality_and_hash(self, optimizer: Optimizer) -> None:
        """Equal are two of equal parameters."""
        again = copy.copy(optimizer)
        assert again is not optimizer
        assert again == optimizer
        assert hash(again) == hash(optimizer)
        assert optimizer != object()
        for name, value in _numbers(optimizer).items():
            other = _replaced(optimizer, name, value / 2 if value else 0.125)
            assert other != optimizer, f"optimizers with another {name} must differ"

    def test_repr(self, optimizer: Optimizer) -> None:
        """It shows the class and every positional parameter, and no address in memory."""
        shown = repr(optimizer)
        assert shown.startswith(type(optimizer).__name__ + "(")
        for field in dataclasses.fields(optimizer):  # type: ignore[arg-type]  # checked above
            value = getattr(optimizer, field.name)
            assert field.kw_only or callable(value) or f"{field.name}={value!r}" in shown
        assert "0x" not in shown

    def test_config_is_ready_for_json(self, optimizer: Optimizer) -> None:
        """Name and parameters, as a checkpoint keeps them."""
        config = optimizer.config()
        assert config["name"] == optimizer.name
        assert set(config) == {"name", *optimizer.parameters()}
        assert json.loads(json.dumps(config, allow_nan=False)) == config

    def test_hyper_names_are_parameters(self, optimizer: Optimizer) -> None:
        """`hyper` has a float for each of `hyper_names`, parameters or what follows from them."""
        assert type(optimizer.hyper_names) is tuple
        assert all(hasattr(optimizer, name) for name in optimizer.hyper_names)
        hyper = optimizer.hyper()
        assert type(hyper) is tuple
        assert [type(value) for value in hyper] == [float] * len(optimizer.hyper_names)

    def test_parameters_are_checked(self, optimizer: Optimizer) -> None:
        """A parameter that is no finite number is refused at construction, by name."""
        numbers = _numbers(optimizer)
        if not numbers:
            pytest.skip("the optimizer has no numbers for parameters")
        for name in numbers:
            for wrong in (math.nan, math.inf, -math.inf, "0.1", None, True, 1j):
                if wrong is None and name not in optimizer.hyper_names:
                    continue  # None may mean that a part of the formula is off
                with pytest.raises(ShardcoreError, match=re.escape(name)):
                    _replaced(optimizer, name, wrong)

    # --- learning rates --------------------------------------------------------------------------

    def test_learning_rate_is_a_number_or_a_callable(self, optimizer: Optimizer) -> None:
        """A callable is asked once per batch; what it returns must be a number >= 0.

        It takes nothing, or the step: how many batches were applied before.
        """
        if "learning_rate" not in optimizer.parameters():
            pytest.skip("the optimizer has no learning rate")
        at = optimizer.hyper_names.index("learning_rate")
        rates = [0.5, 0.25, 0.125]
        given = iter(rates)
        scheduled = _replaced(optimizer, "learning_rate", lambda: next(given))
        assert [scheduled.hyper()[at] for _ in rates] == rates
        assert "0x" not in repr(scheduled)
        assert json.loads(json.dumps(scheduled.config())) == scheduled.config()
        for wrong in (-1.0, math.nan, "fast", None):
            scheduled = _replaced(optimizer, "learning_rate", _always(wrong))
            text = "learning_rate() must return a number >= 0, finite as float32, got "
            with pytest.raises(ShardcoreError, match=re.escape(text + repr(wrong))):
                scheduled.hyper()
        scheduled = _replaced(optimizer, "learning_rate", lambda step: rates[step])
        assert [hyper_at(scheduled, step)[at] for step in (2, 0, 1)] == [0.125, 0.5, 0.25]
        text = (
            "learning_rate must be a number >= 0, finite as float32, "
            "or a callable that takes nothing or the step"
        )
        for refused in (-1.0, lambda step, epoch: 0.1, lambda step=0: 0.1):
            with pytest.raises(ShardcoreError, match=re.escape(text)):
                _replaced(optimizer, "learning_rate", refused)

    # --- slots -----------------------------------------------------------------------------------

    def test_slots_are_declared(self, optimizer: Optimizer) -> None:
        """A tuple of `SlotSpec`, of different names, the same whenever it is asked for."""
        assert type(optimizer.slots) is tuple
        assert all(isinstance(slot, SlotSpec) for slot in optimizer.slots)
        names = [slot.name for slot in optimizer.slots]
        assert len(set(names)) == len(names)
        assert optimizer.slots == optimizer.slots

    @each_working_dtype
    def test_init_fills_slots(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """`init` gives every declared slot to any rows, whatever their block, and changes none."""
        for shape in ((0, 3), (1, 1), (5, 17), (37, 4)):
            rows = rng.standard_normal(shape).astype(dtype)
            ids = rng.choice(_INIT_ROWS, shape[0], replace=False).astype(np.int64)
            self._check_init(optimizer, rows, ids, rng)
            if "slot_initial_values" in optimizer.parameters():
                values = {
                    slot.name: Normal()
                    if at % 2
                    else rng.normal(size=slot.shape(_INIT_ROWS, shape[1]))
                    for at, slot in enumerate(optimizer.slots)
                }
                changed = _replaced(optimizer, "slot_initial_values", values)
                self._check_init(changed, rows, ids, rng)

    def _check_init(
        self,
        optimizer: Optimizer,
        rows: NDArray[Any],
        ids: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> None:
        """Compare `init` with what the slots declare, and over other blocks of the same rows.

        Rows and their numbers are all different: with equal ones a row's slots could follow from
        its neighbours, or from its place among them.
        """
        before, count = rows.copy(), len(rows)
        rows, ids = read_only(rows.copy()), read_only(ids.copy())
        slots = optimizer.init(rows, ids, 77)
        assert set(slots) == {slot.name for slot in optimizer.slots}
        assert_agree(rows, before, "init must not change the rows: rows")
        cuts = [
            [np.array([row]) for row in range(count)],
            np.array_split(np.arange(count), 3),
            [np.arange(count)[::-1]],
            [rng.permutation(count)],
        ]
        parts = [part for cut in cuts for part in cut if part.size]
        for slot in optimizer.slots:
            array = np.asarray(slots[slot.name])
            assert array.shape == slot.shape(*rows.shape), f"init: the shape of slot {slot.name}"
            if not optimizer.init_reads_rows:
                wanted = np.empty(array.shape, slot.storage_dtype(rows.dtype))
                slot.write_fill(wanted, ids, 77)
                assert_agree(array, wanted, f"init: {slot.name}")
            for part in parts:
                other = np.asarray(optimizer.init(rows[part], ids[part], 77)[slot.name])
                what = f"init of a block of {len(part)} rows, not {count}: {slot.name}"
                assert_agree(other, array[part], what, self._limit)

    # --- the pure form ---------------------------------------------------------------------------

    @each_working_dtype
    def test_update_keeps_shapes_and_dtypes(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """Rows and slots come back as they went in, for no row and one column too."""
        for shape in ((0, 3), (1, 1), (1, 5), (6, 1), (9, 33)):
            grad, rows, slots = _block(optimizer, rng, shape, dtype)
            new_rows, new_slots = _update(optimizer, grad, rows, slots)
            assert new_rows.shape == rows.shape
            assert new_rows.dtype == rows.dtype
            assert set(new_slots) == set(slots)
            for name, array in new_slots.items():
                assert array.shape == slots[name].shape, f"slot {name} must keep its shape"
                assert array.dtype == slots[name].dtype, f"slot {name} must keep its dtype"

    @each_working_dtype
    def test_update_changes_no_argument(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """It reads what it is given, which may be read-only, and returns new arrays."""
        grad, rows, slots = _block(optimizer, rng, (6, 7), dtype)
        given = {"grad": grad, "rows": rows, **slots}
        before = {name: array.copy() for name, array in given.items()}
        _update(optimizer, grad, rows, slots)
        for name, array in given.items():
            assert_agree(array, before[name], f"update must not change its arguments: {name}")
        for array in given.values():
            array.flags.writeable = False
        new_rows, new_slots = _update(optimizer, grad, rows, slots)
        again, _ = _update(optimizer, grad, rows, slots)
        assert_agree(again, new_rows, "the same update twice: rows")
        assert set(new_slots) == set(slots)

    @each_working_dtype
    def test_update_by_keyword(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """The arguments have the names of the contract."""
        grad, rows, slots = _block(optimizer, rng, (3, 4), dtype)
        expected, _ = _update(optimizer, grad, rows, slots)
        named, _ = optimizer.update(
            grad=grad,
            rows=rows,
            slots=slots,
            hyper=optimizer.hyper(),
            step=3,
            row_ids=np.arange(3) + 1000,
        )
        assert_agree(named, expected, "rows")

    @each_working_dtype
    @pytest.mark.parametrize("dim", [1, 7, 32, WIDEST])
    def test_a_row_does_not_depend_on_its_block(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str, dim: int
    ) -> None:
        """Rows one by one, in pieces, or in another order give the same numbers."""
        grad, rows, slots = _block(optimizer, rng, (37, dim), dtype)
        ids = rng.choice(2**40, 37, replace=False).astype(np.int64)
        whole, whole_slots = _update(optimizer, grad, rows, slots, row_ids=ids)
        singles = [np.array([row]) for row in range(37)]
        for parts in (singles, np.array_split(np.arange(37), 5), [rng.permutation(37)]):
            for part in parts:
                new, new_slots = _update(
                    optimizer,
                    grad[part],
                    rows[part],
                    {name: array[part] for name, array in slots.items()},
                    row_ids=ids[part],
                )
                what = f"a block of {len(part)} rows: "
                assert_agree(new, whole[part], what + "rows", self._limit)
                for name, array in new_slots.items():
                    assert_agree(array, whole_slots[name][part], what + name, self._limit)

    @each_working_dtype
    def test_elementwise_is_what_it_says(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """If so, rows side by side, parts of rows and other row ids give the same numbers."""
        assert type(optimizer.elementwise) is bool
        if not optimizer.elementwise:
            return
        for slot in optimizer.slots:
            assert slot.kind == "element", f"elementwise: slot {slot.name} has a value per row"
        count, dim = 6, 12
        grad, rows, slots = _block(optimizer, rng, (count, dim), dtype)
        ids = rng.choice(2**40, count, replace=False).astype(np.int64)
        whole, whole_slots = _update(optimizer, grad, rows, slots, row_ids=ids)
        for shape in ((6, 12), (3, 24), (1, 72), (24, 3), (72, 1)):
            new, new_slots = _update(
                optimizer,
                grad.reshape(shape),
                rows.reshape(shape),
                {name: array.reshape(shape) for name, array in slots.items()},
            )
            what = f"elementwise, as {shape[0]} rows of {shape[1]} columns: "
            ours = {"rows": new, **new_slots}
            for name, expected in {"rows": whole, **whole_slots}.items():
                array = np.asarray(ours[name]).reshape(count, dim)
                assert_agree(array, np.asarray(expected), what + name, self._limit)

    @each_working_dtype
    @pytest.mark.parametrize("zero", ["gradient", "slots", "learning rate", "all"])
    def test_zeros_give_finite_numbers(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str, zero: str
    ) -> None:
        """A gradient of zeros, slots of zeros (restored ones can be), a learning rate of 0."""
        grad, rows, slots = _block(optimizer, rng, (4, 5), dtype)
        if zero in ("gradient", "all"):
            grad = np.zeros_like(grad)
        if zero in ("slots", "all"):
            slots = {name: np.zeros_like(array) for name, array in slots.items()}
        if zero in ("learning rate", "all") and "learning_rate" in optimizer.parameters():
            optimizer = _replaced(optimizer, "learning_rate", 0.0)
        for step in (1, 2):
            with np.errstate(all="ignore"):
                rows, slots = _update(optimizer, grad, rows, slots, step=step)
            for name, array in {"rows": rows, **slots}.items():
                assert np.isfinite(array).all(), f"{name} must be finite at step {step}"

    @each_working_dtype
    def test_converges_on_a_quadratic(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """The loss ``(w - target)**2 / 2`` per weight: the weights come ten times closer."""
        target = rng.uniform(-1, 1, (6, 5)).astype(dtype)
        rows = (target + rng.uniform(-1, 1, (6, 5))).astype(dtype)
        slots = _working(optimizer.init(rows), dtype)
        first = _distance(rows, target)
        for step in range(1, self.convergence_steps + 1):
            rows, slots = _update(optimizer, rows - target, rows, slots, step=step)
        last = _distance(rows, target)
        assert last <= first / 10, (
            f"after {self.convergence_steps} steps the weights must be ten times closer: "
            f"{first:.4g} became {last:.4g}"
        )

    # --- the compiled form -----------------------------------------------------------------------

    def _compiled(self, optimizer: Optimizer, dtype: str) -> UpdateFunction:
        function = optimizer.compiled(as_dtype(dtype))
        if function is None:
            pytest.skip(f"the optimizer has no compiled form for {dtype}")
        return function

    @each_dtype
    def test_compiled_works_on_the_working_dtype(self, optimizer: Optimizer, dtype: str) -> None:
        """For tables of the two short types that is float32."""
        _need(dtype)
        function = self._compiled(optimizer, dtype)
        assert isinstance(function, UpdateFunction)
        assert function.address_for(working_dtype(as_dtype(dtype))) > 0
        assert optimizer.compiled(as_dtype(dtype)) == function

    @each_working_dtype
    def test_compiled_gives_the_numbers_of_the_pure_form(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """For every dim from 1 to 70, blocks of 0 to 33 rows, several steps, far row ids."""
        function = self._compiled(optimizer, dtype)
        for dim in range(1, WIDEST + 1):
            for count in (0, 1, 2, 33) if dim in (1, 16, 17, WIDEST) else (3,):
                _, rows, slots = _block(optimizer, rng, (count, dim), dtype)
                own = _Guarded(rows, slots)
                ids = rng.choice(2**40, count, replace=False).astype(np.int64)
                for step in (1, 2, 1_000_003):
                    grad = _gradients(rng, (count, dim), dtype)
                    rows, slots = _update(optimizer, grad, rows, slots, step=step, row_ids=ids)
                    own.run(function, grad, optimizer.hyper(), step, ids)
                    what = f"compiled, {count} rows of dim {dim}, step {step}: "
                    assert_agree(own.rows, np.asarray(rows), what + "rows", self._limit)
                    for name, array in own.slots.items():
                        wanted = np.asarray(slots[name])
                        assert_agree(array, wanted, what + name, self._limit)

    @each_working_dtype
    def test_compiled_on_zeros_and_tiny_numbers(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """Zeros of both signs and numbers whose squares vanish, in slots that are zero or not.

        Zeros of sums are positive; a function called row by row may be given others, and makes of
        them what the update makes of sums.
        """
        function = self._compiled(optimizer, dtype)
        odd = np.array([0.0, -0.0, 1e-30, -1e-30, 2.0**-126, 2.0**-149, 1.0, -3.0, 1e3])
        for zero_slots in (False, True):
            rows = rng.choice(odd, (8, 21)).astype(dtype)
            grad = rng.choice(odd, (8, 21)).astype(dtype)
            sums = 0 + grad
            slots = _working(optimizer.init(rows), dtype)
            if zero_slots:
                slots = {name: np.zeros_like(array) for name, array in slots.items()}
            own, ids = _Guarded(rows, slots), np.arange(8)
            with np.errstate(all="ignore"):
                expected, new_slots = _update(optimizer, sums, rows, slots, step=1, row_ids=ids)
            given = grad if function.row_by_row else sums
            own.run(function, given, optimizer.hyper(), 1, ids)
            assert_agree(own.rows, np.asarray(expected), "compiled: rows", self._limit)
            for name, array in own.slots.items():
                assert_agree(array, np.asarray(new_slots[name]), f"compiled: {name}", self._limit)

    @each_working_dtype
    def test_compiled_writes_only_to_its_rows(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """Neighbouring rows, gradients, row ids and hyper-parameters stay as they are."""
        function = self._compiled(optimizer, dtype)
        for shape in ((0, 3), (1, 1), (5, 13), (33, 64)):
            grad, rows, slots = _block(optimizer, rng, shape, dtype)
            own, ids = _Guarded(rows, slots), np.arange(shape[0]) + 5
            before = grad.copy()
            own.run(function, grad, optimizer.hyper(), 1, ids)
            own.check()
            assert_agree(grad, before, "compiled must not change the gradients: grad")
            assert_agree(ids, np.arange(shape[0]) + 5, "compiled must not change row_ids: row_ids")

    @each_working_dtype
    def test_compiled_from_several_threads(
        self, optimizer: Optimizer, rng: np.random.Generator, dtype: str
    ) -> None:
        """Four threads over rows that do not overlap, again and again."""
        function = self._compiled(optimizer, dtype)
        grad, rows, slots = _block(optimizer, rng, (400, 33), dtype)
        own = _Guarded(rows, slots)
        ids, hyper = np.arange(400), optimizer.hyper()
        steps = range(1, 6)
        for step in steps:
            rows, slots = _update(optimizer, grad, rows, slots, step=step, row_ids=ids)

        def work(part: slice) -> None:
            arrays = [array[part] for array in own.slots.values()]
            for step in steps:
                function.run(grad[part], own.rows[part], arrays, hyper, step, ids[part])

        parts = [slice(start, start + 100) for start in range(0, 400, 100)]
        threads = [threading.Thread(target=work, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_agree(own.rows, np.asarray(rows), "four threads: rows", self._limit)

    # --- in a table ------------------------------------------------------------------------------

    @each_dtype
    def test_in_a_table(self, optimizer: Optimizer, rng: np.random.Generator, dtype: str) -> None:
        """Five batches on a table of a CPU's store, rows and slots in their own dtypes."""
        spec = make_spec("t", 45, 19, _need(dtype), optimizer)
        model = ModelBackend()
        model.create_table(spec)
        table = StoreTable(spec.num_rows, spec.dim, spec.dtype, optimizer)
        table.initialise(spec.initializer, range(spec.num_rows), spec.seed)
        value, hyper = working_dtype(spec.dtype), optimizer.hyper()
        for step in range(1, 6):
            bags = make_bags(rng, spec, 40, combiner="mean", weighted=True)
            gradient = gradient_of(rng, spec, bags)
            update = TableUpdate(TableBatch("t", (bags,)), (gradient,), hyper, step)
            model.apply([update])
            occurrences = sorted_rows([bags], spec.num_rows, value)
            if not optimizer.lazy:
                occurrences = every_row(occurrences, spec.num_rows)
            gradients = gradient_rows([bags], [gradient])
            rows = occurrences.rows
            table.apply(RowUpdate(occurrences, rows, gradients, optimizer, hyper, step, spec.seed))
            for slot in (None, *table.slots):
                stored = table.rows if slot is None else table.slots[slot]
                what = f"step {step}: {'rows' if slot is None else slot}"
                assert_agree(stored, model.arrays["t", slot], what, self._limit)


class _Guarded:
    """Copies of rows and slots between two rows of guards, which must stay as they are."""

    GUARD = 12345.0

    def __init__(self, rows: NDArray[Any], slots: Mapping[str, NDArray[Any]]) -> None:
        self._buffers = {name: self._wrapped(array) for name, array in slots.items()}
        self._buffers[""] = self._wrapped(rows)
        self.rows: NDArray[Any] = self._buffers[""][1:-1]
        self.slots: Slots = {name: self._buffers[name][1:-1] for name in slots}

    def _wrapped(self, array: NDArray[Any]) -> NDArray[Any]:
        return np.pad(array, ((1, 1), (0, 0)), constant_values=self.GUARD)

    def run(
        self,
        function: UpdateFunction,
        grad: NDArray[Any],
        hyper: tuple[float, ...],
        step: int,
        ids: NDArray[Any],
    ) -> None:
        """Run a compiled form over the rows."""
        function.run(grad, self.rows, list(self.slots.values()), hyper, step, ids)

    def check(self) -> None:
        """Raise if a guard was written to."""
        for name, buffer in self._buffers.items():
            guards = buffer[[0, -1]]
            assert (guards == self.GUARD).all(), f"compiled wrote outside of its {name or 'rows'}"


def _need(dtype: str) -> str:
    """Return the dtype, or skip the test where it needs a package that is not there."""
    try:
        as_dtype(dtype)
    except UnavailableError as error:
        pytest.skip(str(error))
    return dtype


def _numbers(optimizer: Optimizer) -> dict[str, float]:
    """Return the parameters that are plain numbers."""
    return {
        name: value
        for name, value in optimizer.parameters().items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _always(value: object) -> Callable[[], object]:
    return lambda: value


def _replaced(optimizer: Optimizer, name: str, value: object) -> Optimizer:
    """Return an optimizer with one parameter changed."""
    return type(optimizer)(**{**optimizer.parameters(), name: value})


def _gradients(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """Return gradients, a fifth of them zeros."""
    grad = rng.standard_normal(shape)
    grad[rng.random(shape) < 0.2] = 0
    return grad.astype(dtype)


def _working(slots: Mapping[str, Any], dtype: str) -> Slots:
    """Return slots as `update` gets them, in the working dtype."""
    return {name: np.asarray(array).astype(dtype) for name, array in slots.items()}


def _block(
    optimizer: Optimizer, rng: np.random.Generator, shape: tuple[int, int], dtype: str
) -> tuple[NDArray[Any], NDArray[Any], Slots]:
    """Return gradients, rows, and slots that have seen an update where there are rows."""
    grad = _gradients(rng, shape, dtype)
    rows = rng.standard_normal(shape).astype(dtype)
    slots = _working(optimizer.init(rows), dtype)
    for step in (1, 2):
        rows, slots = _update(optimizer, _gradients(rng, shape, dtype), rows, slots, step=step)
    # Whatever update returned, what it is given next has its dtype and can be written to.
    return (
        grad,
        np.array(rows, dtype),
        {name: np.array(array, dtype) for name, array in slots.items()},
    )


def _update(
    optimizer: Optimizer,
    grad: NDArray[Any],
    rows: NDArray[Any],
    slots: Mapping[str, NDArray[Any]],
    step: int = 3,
    row_ids: NDArray[np.int64] | None = None,
) -> tuple[Any, Any]:
    """Run the pure form."""
    ids = np.arange(len(rows), dtype=np.int64) + 1000 if row_ids is None else row_ids
    return optimizer.update(grad, rows, slots, optimizer.hyper(), step, ids)


def _distance(rows: Any, target: NDArray[Any]) -> float:
    return math.sqrt(float(np.mean((rows - target) ** 2)))
