"""The steps of every first-party optimizer around its formula, and the rules of its arguments.

A step on a row: gradients are summed over the occurrences; the sum is clipped, element by element
(``clipvalue``), then as a row (``clip_norm``); the weights decay; the formula moves them; they are
clamped. `RowSteps` does all but the formula; `FormulaSteps` is for formulas that are compiled too.
"""

from __future__ import annotations

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, fields
from math import inf
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import numpy as np

from shardcore.cached_property import cached_property
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer import (
    InitialValue,
    Optimizer,
    SlotSpec,
    UpdateFunction,
    check_hyper_parameter,
    check_learning_rate,
    initial_value,
)
from shardcore_optimizers._hyper import BITS, COMMON_HYPER, OWN_HYPER, PARTIAL_SUMS
from shardcore_optimizers.kernels import compiled_update

__all__ = [
    "FROM_PRESET",
    "FormulaSteps",
    "Preset",
    "RowSteps",
    "bounded",
    "choice",
    "flag",
    "hyper_of",
    "mean_of_squares",
    "norm_of",
    "number",
    "per_weight",
    "quotient",
    "sum_of_squares",
]

Preset: TypeAlias = Literal["tf", "fbgemm", "tpu", "torch"]
Rule: TypeAlias = Callable[[Any, str], Any]

PRESETS: Final = ("tf", "fbgemm", "tpu", "torch")
# Bits of `RowSteps.configured`.
_CLIPS: Final = BITS["clips"]
_CLIPS_NORM: Final = BITS["clips_norm"]
_DECAYS: Final = BITS["decays"]
_DECAYS_GRADIENT: Final = BITS["decays_gradient"]
_CLAMPS: Final = BITS["clamps"]
_DECAY_TIMES_RATE: Final = BITS["decay_times_rate"]
_DECAYS_IN_FORMULA: Final = BITS["decays_in_formula"]


class _FromPreset:
    """The default of an argument whose value the preset gives."""

    def __repr__(self) -> str:
        return "<from preset>"

    def __copy__(self) -> _FromPreset:
        return self

    def __deepcopy__(self, memo: object) -> _FromPreset:
        return self


FROM_PRESET: Final[Any] = _FromPreset()
"""Default of the arguments that ``preset`` fills in."""


def hyper_of(formula: str) -> tuple[str, ...]:
    """Return the names that a formula reads in ``hyper``, in order: the common ones, its own."""
    return (*COMMON_HYPER, *OWN_HYPER[formula])


# --- rules for arguments -------------------------------------------------------------------------


def number(**bounds: float) -> Rule:
    """Return the rule of a finite number within bounds, see `check_hyper_parameter`."""
    return lambda value, argument: check_hyper_parameter(value, argument, **bounds)


def flag(value: Any, argument: str) -> bool:
    """Return a bool, or raise an error that names the argument."""
    if not isinstance(value, bool | np.bool_):
        raise ShardcoreTypeError(f"{argument} must be True or False, got {value!r}")
    return bool(value)


def choice(*names: str) -> Rule:
    """Return the rule of one of several names."""
    allowed = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"

    def check(value: Any, argument: str) -> Any:
        if not (isinstance(value, str) and value in names):
            raise ShardcoreValueError(f"{argument} must be {allowed}, got {value!r}")
        return value

    return check


def _optional(rule: Rule) -> Rule:
    return lambda value, argument: None if value is None else rule(value, argument)


def _slot_dtype(value: Any, argument: str) -> Any:
    if value is None or (isinstance(value, str) and value == "table"):
        return value
    return SlotSpec(argument, "row", value).dtype.name


def _slot_initial_values(value: Any, argument: str) -> tuple[tuple[Any, InitialValue], ...] | None:
    if value is None:
        return None
    pairs_given = isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in value
    )
    if not (isinstance(value, Mapping) or pairs_given):
        raise ShardcoreTypeError(
            f"{argument} must be a mapping of slot name to number, array or initializer, "
            f"got {value!r}"
        )
    pairs = dict(value).items()
    return tuple((name, initial_value(one, f"{argument}[{name!r}]")) for name, one in pairs) or None


def _clip_bounds(value: Any) -> tuple[float | None, float | None]:
    """Return (lowest, highest) of a `clipvalue`, either of which may be None."""
    if value is None:
        return (None, None)
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ShardcoreValueError(
                f"clipvalue must be a number or a tuple (lowest, highest), got {value!r}"
            )
        bound = _optional(number())
        low, high = bound(value[0], "clipvalue[0]"), bound(value[1], "clipvalue[1]")
        _check_order(low, high, "clipvalue[0]", "clipvalue[1]")
        return (low, high)
    if isinstance(value, list):
        raise ShardcoreTypeError(
            f"clipvalue must be a number or a tuple (lowest, highest), got {value!r}"
        )
    limit = check_hyper_parameter(value, "clipvalue", at_least=0)
    return (-limit, limit)


def _check_order(low: float | None, high: float | None, lowest: str, highest: str) -> None:
    if low is not None and high is not None and low > high:
        raise ShardcoreValueError(f"{lowest} must be <= {highest}, got {low:g} > {high:g}")


# --- formulas over blocks of rows ----------------------------------------------------------------


def bounded(xp: Any, x: Any, low: float, high: float) -> Any:
    """Return x clipped to [low, high]; NaN stays."""
    x = xp.where(x < low, xp.full_like(x, low), x)
    return xp.where(x > high, xp.full_like(x, high), x)


def quotient(xp: Any, x: Any, y: Any) -> Any:
    """Return x / y, and 0 where y is 0."""
    none = y == 0
    ratio = x / xp.where(none, xp.ones_like(y), y)
    return xp.where(none, xp.zeros_like(ratio), ratio)


def sum_of_squares(xp: Any, x: Any) -> Any:
    """Return the sum of each row's squares, (n, 1), in 8 lanes: column c is added to lane c mod 8.

    Lanes are then added in order; so do the compiled forms, hence the same bits.
    """
    count, dim = x.shape
    squares = x * x
    lanes = xp.zeros((count, PARTIAL_SUMS), dtype=x.dtype)
    for start in range(0, dim - PARTIAL_SUMS + 1, PARTIAL_SUMS):
        lanes = lanes + squares[:, start : start + PARTIAL_SUMS]
    rest = dim % PARTIAL_SUMS
    if rest:
        lanes = xp.concat([lanes[:, :rest] + squares[:, dim - rest :], lanes[:, rest:]], axis=1)
    total = lanes[:, :1]
    for lane in range(1, PARTIAL_SUMS):
        total = total + lanes[:, lane : lane + 1]
    return total


def mean_of_squares(xp: Any, x: Any) -> Any:
    """Return the mean of each row's squares, (n, 1)."""
    return sum_of_squares(xp, x) / x.shape[1]


def norm_of(xp: Any, x: Any) -> Any:
    """Return the Euclidean norm of each row, (n, 1)."""
    return xp.sqrt(sum_of_squares(xp, x))


Formula = TypeVar("Formula", bound=Callable[..., tuple[Any, Mapping[str, Any]]])


def per_weight(formula: Formula) -> Formula:
    """Mark a formula that updates each weight for itself, whatever row it is in.

    The mark is the function's own: a subclass that has another formula does not inherit it.
    """
    formula.per_weight = True  # type: ignore[attr-defined]  # a function takes any attribute
    return formula


# --- docstrings ----------------------------------------------------------------------------------


_ENTRY: Final = re.compile(r"^(\S[^:\n]*)(?: :.*)?\n(?: +.*\n)*", re.MULTILINE)


def with_common_parameters(text: str, common: str) -> str:
    """Return a docstring with another one's parameters in place of its entry ``**common``.

    Of these it gets those that it has not itself.
    """
    text = inspect.cleandoc(text)
    own = {found[1] for found in _ENTRY.finditer(_parameters(text))}
    entries = [found for found in _ENTRY.finditer(_parameters(common)) if found[1] not in own]
    told = "".join(found[0] for found in entries)
    return re.sub(r"^\*\*common\n(?: +.*\n)*", lambda _: told, text, flags=re.MULTILINE)


def _parameters(text: str) -> str:
    """Return the section of a docstring that tells of parameters."""
    section = inspect.cleandoc(text).partition("\nParameters\n----------\n")[2]
    return section.partition("\n\n")[0] + "\n"


# --- the base ------------------------------------------------------------------------------------


class RowSteps(Optimizer, kw_only=True):
    """Base of the first-party optimizers: their common arguments and steps.

    A subclass has its own parameters as fields, `rules` for them, and `defaults` per preset for
    those that begin as `FROM_PRESET`.

    Parameters
    ----------
    use_gradient_accumulation : bool, default True
        True: one update per row and batch, of the sum of its gradients. False: an update for each
        occurrence, in the order (feature, bag, position); the result depends on that order.
    clip_weight_min, clip_weight_max : float, optional
        Weights are clamped to this range after each update; slots are not.
    weight_decay_factor : float, optional
        λ >= 0. With ``decoupled_weight_decay`` rows that a batch touches are multiplied by 1 - λ
        before the formula; else λ·w is added to the clipped gradient.
    multiply_weight_decay_factor_by_learning_rate : bool, optional
        Whether λ is multiplied by the learning rate.
    clipvalue : float or tuple, optional
        c >= 0 clips each element of a summed gradient to [-c, c]; a tuple (lowest, highest), either
        of which may be None, to that range.
    clip_norm : float, optional
        A row's summed gradient is scaled down to this Euclidean norm, after `clipvalue`.
    decoupled_weight_decay : bool
        See `weight_decay_factor`. True, but for the optimizers whose formula has a place for λ.
    slot_dtype : dtype or "table", optional
        The type slots are stored in; None: float64 for float64 tables, else float32.
    stochastic_rounding : bool, default False
        float16 and bfloat16 rows are rounded to one of the two neighbours, by chance and without
        bias, instead of to the nearest. Chance depends on the engine's seed, the step, the table,
        row and column only.
    slot_initial_values : mapping of str to number, array or initializer, optional
        Values that slots start from, by name, in place of the optimizer's own, such as
        ``initial_accumulator_value``: a number, an array of the slot's full shape, (rows, dim) or
        (rows, 1), which is not copied, or a callable ``init(rows, row_shape, dtype, seed)`` as
        tables have it (`shardcore.initializers`). Whether the formula can do with these values is
        not checked. Kept as a tuple of pairs, in the order of the slots.
    preset : {"tf", "fbgemm", "tpu", "torch"}, default "tf"
        The source of arguments that are not given: TensorFlow's TPUEmbedding parameter classes,
        FBGEMM's table-batched embeddings, jax-tpu-embedding's SparseCore specs, or
        ``torch.optim``. It is not kept: the same numbers given one by one make an equal optimizer.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.
    """

    use_gradient_accumulation: bool = True
    clip_weight_min: float | None = None
    clip_weight_max: float | None = None
    weight_decay_factor: float | None = None
    multiply_weight_decay_factor_by_learning_rate: bool | None = None
    clipvalue: float | tuple[float | None, float | None] | None = None
    clip_norm: float | None = None
    decoupled_weight_decay: bool = True
    slot_dtype: Any = None
    stochastic_rounding: bool = False
    slot_initial_values: Mapping[str, Any] | tuple[tuple[str, Any], ...] | None = None
    preset: InitVar[Preset] = "tf"

    hyper_names: ClassVar[tuple[str, ...]] = COMMON_HYPER
    rules: ClassVar[Mapping[str, Rule]] = {}
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"tf": {}}
    decay_in_formula: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        if cls.__doc__ and RowSteps.__doc__:  # there are none under python -OO
            cls.__doc__ = with_common_parameters(cls.__doc__, RowSteps.__doc__)
        super().__init_subclass__(**options)

    def __post_init__(self, preset: Preset) -> None:
        choice(*PRESETS)(preset, "preset")
        given = {**self.defaults["tf"], **self.defaults.get(preset, {})}
        for name in (field.name for field in fields(self)):
            if getattr(self, name) is FROM_PRESET:
                object.__setattr__(self, name, given[name])
        optional = _optional(number())
        rules: dict[str, Rule] = {
            "learning_rate": check_learning_rate,
            **self.rules,
            "use_gradient_accumulation": flag,
            "clip_weight_min": optional,
            "clip_weight_max": optional,
            "weight_decay_factor": _optional(number(at_least=0)),
            "multiply_weight_decay_factor_by_learning_rate": _optional(flag),
            "clip_norm": _optional(number(above=0)),
            "decoupled_weight_decay": flag,
            "slot_dtype": _slot_dtype,
            "stochastic_rounding": flag,
            "slot_initial_values": _slot_initial_values,
        }
        for name, rule in rules.items():
            object.__setattr__(self, name, rule(getattr(self, name), name))
        low, high = _clip_bounds(self.clipvalue)
        if isinstance(self.clipvalue, tuple):
            object.__setattr__(self, "clipvalue", (low, high))
        elif self.clipvalue is not None:
            object.__setattr__(self, "clipvalue", high)
        _check_order(
            self.clip_weight_min, self.clip_weight_max, "clip_weight_min", "clip_weight_max"
        )
        for name in ("clipvalue", "clip_norm"):
            if not self.use_gradient_accumulation and getattr(self, name) is not None:
                raise ShardcoreValueError(
                    f"{name} must be None with use_gradient_accumulation=False, which sums no "
                    f"gradients to clip, got {getattr(self, name)!r}"
                )
        self._check_together()
        self._check_slot_names()

    def _check_slot_names(self) -> None:
        """Put the initial values in the order of the slots, or raise if there is no such slot."""
        given = dict(self.slot_initial_values or ())
        names = [slot.name for slot in self.slots]
        for name in given:
            if name not in names:
                known = f"its slots are {', '.join(map(repr, names))}" if names else "it has none"
                raise ShardcoreValueError(
                    f"slot_initial_values names slot {name!r}, which this {type(self).__name__} "
                    f"does not have: {known}"
                )
        ordered = tuple((name, given[name]) for name in names if name in given)
        object.__setattr__(self, "slot_initial_values", ordered or None)

    def _check_together(self) -> None:
        """Raise if parameters contradict each other."""

    # --- the numbers that travel in hyper, in terms of the parameters ----------------------------

    @cached_property
    def clip_gradient_min(self) -> float:
        """The lowest element of a gradient; -inf without a bound."""
        low, _ = _clip_bounds(self.clipvalue)
        return -inf if low is None else low

    @cached_property
    def clip_gradient_max(self) -> float:
        """The highest element of a gradient; inf without a bound."""
        _, high = _clip_bounds(self.clipvalue)
        return inf if high is None else high

    @cached_property
    def largest_norm(self) -> float:
        """The largest norm of a row's gradient; inf without a bound."""
        return inf if self.clip_norm is None else self.clip_norm

    @cached_property
    def decay(self) -> float:
        """The factor of the weight decay; 0 without."""
        return self.weight_decay_factor or 0.0

    @cached_property
    def weight_min(self) -> float:
        """The lowest weight; -inf without a bound."""
        return -inf if self.clip_weight_min is None else self.clip_weight_min

    @cached_property
    def weight_max(self) -> float:
        """The highest weight; inf without a bound."""
        return inf if self.clip_weight_max is None else self.clip_weight_max

    @cached_property
    def configured(self) -> int:
        """Which of the common steps there are, as bits."""
        bits = _CLIPS * (self.clipvalue is not None) + _CLIPS_NORM * (self.clip_norm is not None)
        if self.decay:
            if self.decoupled_weight_decay:
                bits += _DECAYS
            else:
                bits += _DECAYS_IN_FORMULA if self.decay_in_formula else _DECAYS_GRADIENT
            if self.multiply_weight_decay_factor_by_learning_rate:
                bits += _DECAY_TIMES_RATE
        clamps = self.clip_weight_min is not None or self.clip_weight_max is not None
        return bits + _CLAMPS * clamps

    # --- the contract ----------------------------------------------------------------------------

    @property
    def accumulate(self) -> bool:
        """Whether the gradients of a row are summed before the update."""
        return self.use_gradient_accumulation

    @property
    def rounds_stochastically(self) -> bool:
        """Whether rows of float16 and bfloat16 tables are rounded back by chance, without bias."""
        return self.stochastic_rounding

    def _slot(
        self, name: str, kind: Literal["row", "element"], fill: InitialValue = 0.0
    ) -> SlotSpec:
        return self._slot_of(SlotSpec(name, kind, self.slot_dtype, fill))

    def _slot_of(self, slot: SlotSpec) -> SlotSpec:
        """Return a slot with the initial value that the user asked for, if any."""
        given = dict(self.slot_initial_values or ())
        if slot.name not in given:
            return slot
        return SlotSpec(slot.name, slot.kind, slot.dtype, given[slot.name])

    def _before(self, xp: Any, grad: Any, rows: Any, hyper: Sequence[Any]) -> tuple[Any, Any]:
        """Return gradients and rows as the formula sees them: clipped, decayed."""
        bits = self.configured
        if bits & _CLIPS:
            grad = bounded(xp, grad, self.clip_gradient_min, self.clip_gradient_max)
        if bits & _CLIPS_NORM:
            norm = norm_of(xp, grad)
            above = norm > self.largest_norm
            one = xp.ones_like(norm)
            grad = grad * xp.where(above, self.largest_norm / xp.where(above, norm, one), one)
        if bits & _DECAYS_GRADIENT:
            grad = grad + self._decay(hyper) * rows
        if bits & _DECAYS:
            rows = rows * (1 - self._decay(hyper))
        return grad, rows

    def _after(self, xp: Any, rows: Any) -> Any:
        """Return rows as they are stored: clamped."""
        if self.configured & _CLAMPS:
            rows = bounded(xp, rows, self.weight_min, self.weight_max)
        return rows

    def _decay(self, hyper: Sequence[Any]) -> Any:
        """Return the weight decay of this batch."""
        times_rate = self.multiply_weight_decay_factor_by_learning_rate
        return self.decay * hyper[0] if times_rate else self.decay

    def _formula_decay(self, hyper: Sequence[Any]) -> Any:
        """Return the weight decay that the formula itself applies."""
        return self._decay(hyper) if self.configured & _DECAYS_IN_FORMULA else 0.0


class FormulaSteps(RowSteps):
    """Base of the optimizers whose formula exists twice: for arrays, and compiled."""

    @abstractmethod
    def formula(
        self,
        xp: Any,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[Any],
        step: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and slots, given clipped gradients and decayed rows."""

    @property
    @abstractmethod
    def compiled_formula(self) -> str:
        """The name of the formula in _update.pxi."""

    @property
    def elementwise(self) -> bool:
        """Whether each weight is updated for itself: the formula says so, no norm is clipped."""
        own = type(self)
        return (
            own.update is FormulaSteps.update
            and getattr(own.formula, "per_weight", False)
            and self.clip_norm is None
            and all(slot.kind == "element" for slot in self.slots)
        )

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and slots: clip, decay, `formula`, clamp."""
        del row_ids
        xp = rows.__array_namespace__()
        grad, rows = self._before(xp, grad, rows, hyper)
        rows, slots = self.formula(xp, grad, rows, slots, hyper, step)
        return self._after(xp, rows), slots

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        """Return the compiled update, equal to `update` to the last bit but for powers."""
        return compiled_update(self.compiled_formula, dtype)
