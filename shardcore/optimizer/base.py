"""The contract of an optimizer: two pure functions over blocks of rows, optionally one in C.

Optimizers
----------
An optimizer is a frozen dataclass, which deriving from `Optimizer` makes of a class: its fields are
its parameters, nothing else is hidden in it. It holds no state of a table. The state lives beside
the table's rows, in *slots* that it declares: one `SlotSpec` per slot, ``"element"`` for a value
per weight or ``"row"`` for one value per row.

First values of slots
---------------------
A `SlotSpec` says it: a number, an array of the slot's full shape, or an initializer. Where that is
not enough, a class overrides `Optimizer.init`: it is then called with the rows' initial values, in
blocks of any size, in the working dtype, when a table is created; and with the restored rows when a
checkpoint is restored with ``slots="reset"``. Its result is stored in each slot's dtype.

Updates by a batch
------------------
The engine sums the gradients of all occurrences of a row, over all features of a table, and hands
over each touched row once, in blocks of any size. For a block of n rows of dim columns

- ``grad``      (n, dim)  the summed gradients,
- ``rows``      (n, dim)  the weights,
- ``slots``     {name: (n, dim) array, or (n, 1) for a ``"row"`` slot},
- ``hyper``     one float per name in `Optimizer.hyper_names`, the same for the whole batch,
- ``step``      1 for the first batch that the engine applies, 2 for the second, … (restored engines
                count on),
- ``row_ids``   (n,) int64, the row numbers in the whole table, all different,

`Optimizer.update` returns the new ``rows`` and ``slots``. Arrays of values arrive in the working
dtype of the table: float64 for float64 tables, float32 for float32, float16 and bfloat16 tables. A
row's result must depend on that row's data only, never on which other rows share its block: blocks
differ between backends, threads and shards, the results must not.

Where `Optimizer.accumulate` is False, gradients are not summed: `update` is called once for every
occurrence of a row, in their order, each time with what the call before returned. Where
`Optimizer.lazy` is False, rows that the batch does not name come too, with a gradient of zeros.
Rows of float16 and bfloat16 are rounded back once per batch, to the nearest or, with
`Optimizer.rounds_stochastically`, to one of the two neighbours by chance.

Where `Optimizer.elementwise` is True, each weight is updated for itself: its result depends on its
own gradient, value and slots, on `hyper` and `step`, not on other columns, nor on how many there
are, nor on `row_ids`; and every slot has a value per weight. A backend may then call `update` with
several rows side by side as one, or with some columns of a row, and with any `row_ids`.

`update` and `init` change nothing they are given and are written against the Python array API
(``xp = rows.__array_namespace__()``): NumPy runs them as they stand, JAX traces and compiles them.
Hence no branches on values of arrays.

The same in C
-------------
For speed on the CPU an optimizer may also hand over a compiled function through
`Optimizer.compiled`, from any tool that can make one: Cython, C, C++, Rust, numba. Its type is in
``shardcore_update.h``, in the folder `shardcore.optimizer.get_include`, with a ``.pxd`` of the same
name beside it. With V = float for a working dtype of float32 and V = double for float64::

    #include "shardcore_update.h"

    void update(int64_t count,            /* rows of this block, may be 0 */
                int64_t dim,              /* columns of a row */
                V *const *rows,           /* rows[i]: the dim values of row i, updated in place */
                V *const *const *slots,   /* slots[k][i]: slot k of row i, dim values or 1, updated
                                             in place; k in the order of Optimizer.slots */
                const V *gradients,       /* count x dim, C-contiguous: the summed gradients */
                const int64_t *row_ids,   /* row_ids[i]: the row's number in the whole table */
                const double *hyper,      /* in the order of Optimizer.hyper_names */
                int64_t step,             /* 1 for the first batch */
                void *context);           /* of the capsule, or UpdateFunction.context */

It is called from several threads at once, without the GIL, over rows that never overlap. It must
not raise, allocate Python objects, call back, or touch memory outside of what it is given. It must
give the same numbers as `Optimizer.update`; results equal to the last bit need the same order of
operations and a compiler that does not contract them (``-ffp-contract=off``). Slots that are stored
in another dtype than the working one are converted for it and back, as rows of a short dtype are.

A capsule that carries such a function is named ``"shardcore.update_rows.v1.float32"`` or
``"shardcore.update_rows.v1.float64"``, the header's SHARDCORE_UPDATE_FLOAT32 and
SHARDCORE_UPDATE_FLOAT64. A capsule of another version is refused.

Examples
--------
A whole optimizer, heavy-ball momentum:

>>> import numpy as np
>>> from shardcore.optimizer import LearningRate, Optimizer, SlotSpec
>>> from shardcore.optimizer import check_hyper_parameter, check_learning_rate
>>> class HeavyBall(Optimizer):
...     learning_rate: LearningRate = 0.01
...     momentum: float = 0.9
...
...     hyper_names = ("learning_rate", "momentum")
...     slots = (SlotSpec("momenta", "element"),)
...
...     def __post_init__(self):
...         check_learning_rate(self.learning_rate)
...         check_hyper_parameter(self.momentum, "momentum", at_least=0)
...
...     def update(self, grad, rows, slots, hyper, step, row_ids):
...         learning_rate, momentum = hyper
...         momenta = momentum * slots["momenta"] + grad
...         return rows - learning_rate * momenta, {"momenta": momenta}

>>> optimizer = HeavyBall(learning_rate=0.5)
>>> optimizer
HeavyBall(learning_rate=0.5, momentum=0.9)
>>> rows = np.ones((1, 2), np.float32)
>>> grad = np.array([[1, 2]], np.float32)
>>> slots = optimizer.init(rows)
>>> for step in (1, 2):
...     rows, slots = optimizer.update(
...         grad, rows, slots, optimizer.hyper(), step, row_ids=np.array([7])
...     )
>>> rows
array([[-0.45, -1.9 ]], dtype=float32)

With an `OptimizerSpec` in a plugin (see `shardcore.plugins.hookspecs`) it becomes
``shardcore.optimizers.HeavyBall``.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any, ClassVar, dataclass_transform

import numpy as np

from shardcore.cached_property import cached_property
from shardcore.optimizer.compiled import UpdateFunction
from shardcore.optimizer.declaration import OptimizerMeta, check_parameter_names
from shardcore.optimizer.hyperparameters import (
    accepts,
    callable_name,
    evaluate_learning_rate,
)
from shardcore.optimizer.slots import SlotSpec, comparable, described_value, shown

__all__ = ["Optimizer", "constant_hyper", "hyper_at"]


def _is_same(value: object, usual: object) -> bool:
    """Return whether a parameter is its default, for values that compare to a bool."""
    return value is usual or (
        type(value) is type(usual) and isinstance(value, int | float | str) and value == usual
    )


def _as_json(value: Any) -> Any:
    """Return a parameter as JSON can hold it; callables in a tuple are initial values."""
    if callable(value):
        return {"callable": callable_name(value)}
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, SlotSpec):
        described = {name: _as_json(getattr(value, name)) for name in ("name", "kind", "dtype")}
        return {**described, "fill": described_value(value.fill)}
    if isinstance(value, tuple | list):
        return [described_value(one) if callable(one) else _as_json(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): _as_json(one) for name, one in value.items()}
    if isinstance(value, np.generic):
        return _as_json(value.item())
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _as_key(value: Any) -> object:
    """Return what a parameter is compared by; a method is made anew at each access."""
    if isinstance(value, tuple):
        return tuple(comparable(one) if callable(one) else _as_key(one) for one in value)
    return id(value) if callable(value) and not isinstance(value, MethodType) else value


def _as_text(value: Any) -> str:
    """Return a parameter in words, without an address in memory."""
    if isinstance(value, tuple):
        inside = [shown(one) if callable(one) else _as_text(one) for one in value]
        return f"({', '.join(inside)}{',' * (len(inside) == 1)})"
    return f"<{callable_name(value)}>" if callable(value) else repr(value)


@dataclass_transform(
    eq_default=False, frozen_default=True, field_specifiers=(dataclasses.field, dataclasses.Field)
)
class Optimizer(metaclass=OptimizerMeta):
    """Base of every optimizer; the module's text is the contract.

    A subclass has its parameters as annotated fields, as a dataclass does, checks them in
    ``__post_init__``, declares `slots` and `hyper_names` without annotations and implements
    `update`. The rest is built from these. No decorator is needed: a subclass is made a frozen
    dataclass, its fields keyword-only with ``class Faster(Optimizer, kw_only=True)``.

    Equal are two optimizers of the same class with equal parameters; parameters that are callable
    are compared by identity, since two schedules that agree today may differ tomorrow. Initial
    values of slots are compared as `SlotSpec` does.

    Attributes
    ----------
    name : str
        The name in checkpoints and listings; the class's own name unless it says otherwise.
    hyper_names : tuple of str
        The attributes, fields or properties, whose values `update` gets in ``hyper``, in order.
    slots : tuple of SlotSpec
        The state kept beside the rows, in order.
    lazy : bool
        True: only the rows that a batch touches are updated. False: all rows, each batch.
    accumulate : bool
        True: one update per row and batch, of the summed gradients. False: one per occurrence.
    elementwise : bool
        True: each weight is updated for itself, whatever row it is in. False: it may not be.
    rounds_stochastically : bool
        Whether rows of a short dtype are rounded by chance instead of to the nearest.

    Raises
    ------
    ShardcoreTypeError
        If a subclass annotates what is declared here, such as `slots`, which would make it a
        parameter; or is decorated as a dataclass that is not frozen.
    """

    name: ClassVar[str]
    hyper_names: ClassVar[tuple[str, ...]] = ("learning_rate",)

    def __init_subclass__(cls, *, kw_only: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name", cls.__name__)
        cls._make_dataclass(kw_only)
        check_parameter_names(cls, Optimizer)

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """The state kept beside the rows, in order; none unless a subclass says so."""
        return ()

    @property
    def lazy(self) -> bool:
        """Whether only the rows that a batch touches are updated."""
        return True

    @property
    def accumulate(self) -> bool:
        """Whether the gradients of a row are summed before the update."""
        return True

    @property
    def elementwise(self) -> bool:
        """Whether each weight is updated for itself, whatever row it is in."""
        return False

    @property
    def rounds_stochastically(self) -> bool:
        """Whether rows of float16 and bfloat16 tables are rounded back by chance, without bias."""
        return False

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as they were given, by name; keyword-only ones come last."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        ordered = sorted(fields, key=lambda field: bool(field.kw_only))
        return {field.name: getattr(self, field.name) for field in ordered}

    def hyper(self, step: int | None = None) -> tuple[float, ...]:
        """Return the present values of `hyper_names`; a callable learning rate is called, once.

        Parameters
        ----------
        step : int, optional
            How many batches were applied before. Needed where the learning rate is a callable that
            takes it. A class that overrides this method may do without the parameter.

        Returns
        -------
        tuple of float
            What `update` and the compiled function get for one batch.

        Raises
        ------
        ShardcoreError
            If the learning rate's callable returns no finite number >= 0, or takes a step and there
            is none.
        """
        return tuple(
            evaluate_learning_rate(getattr(self, name), name, step) for name in self.hyper_names
        )

    @cached_property
    def _constant_hyper(self) -> tuple[float, ...] | None:
        values = [getattr(self, name) for name in self.hyper_names]
        own = type(self).hyper is not Optimizer.hyper
        if own or not all(type(value) in (bool, int, float) for value in values):
            return None
        return tuple(map(float, values))

    @property
    def init_reads_rows(self) -> bool:
        """Whether tables ask `init` for their slots; else each `SlotSpec` says all there is to say.

        True for classes that override `init`.
        """
        return type(self).init is not Optimizer.init

    def init(self, rows: Any, row_ids: Any = None, seed: int = 0) -> dict[str, Any]:
        """Return the slots of rows that were never updated.

        A row's slots must depend on that row, its number and the seed alone: rows come in blocks,
        which differ between backends.

        Parameters
        ----------
        rows : (n, dim) array
            Their initial values.
        row_ids : (n,) int64 array, optional
            Their numbers in the whole table; None: 0 to n - 1.
        seed : int in [0, 2**64)
            Of the table.

        Returns
        -------
        dict
            By slot name, new (n, dim) or (n, 1) arrays with the slot's ``fill``.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If an initializer gives no such values.
        """
        xp = rows.__array_namespace__()
        count, dim = rows.shape
        slots = {}
        for slot in self.slots:
            shape, dtype = slot.shape(count, dim), slot.storage_dtype(rows.dtype)
            if slot.constant is not None:
                slots[slot.name] = xp.full(shape, slot.constant, dtype=dtype)
                continue
            values = np.empty(shape, dtype)
            numbers = range(count) if row_ids is None else np.asarray(row_ids, np.int64)
            slot.write_fill(values, numbers, seed)
            slots[slot.name] = xp.asarray(values)
        return slots

    @abstractmethod
    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and slots of a block; the module's text describes the arguments.

        Parameters
        ----------
        grad, rows : (n, dim) arrays
        slots : mapping of (n, dim) or (n, 1) arrays
        hyper : sequence of float
        step : int
        row_ids : (n,) int64 array

        Returns
        -------
        rows : (n, dim) array
        slots : mapping with the same names
        """

    def compiled(self, dtype: Any) -> UpdateFunction | None:
        """Return the compiled form of `update` for tables of `dtype`, or None if there is none.

        What it returns may be used for any number of steps.

        Parameters
        ----------
        dtype : dtype
            The table's. The function works on its working dtype: double for float64, else float.
        """
        return None

    def config(self) -> dict[str, Any]:
        """Return name and parameters, ready for JSON; a callable appears by where it comes from.

        Returns
        -------
        dict
            ``{"name": ..., parameter: value, ...}``, a callable being
            ``{"callable": "module.name"}``, or ``{"initializer": repr}`` where it is a dataclass
            that initializes slots; an array for slots is its shape, dtype and checksum.
        """
        return {
            "name": self.name,
            **{name: _as_json(value) for name, value in self.parameters().items()},
        }

    def description(self) -> dict[str, Any]:
        """Return what the configuration of an engine says of the optimizer, ready for JSON.

        Returns
        -------
        dict
            ``"name"``; ``"learning_rate"``, which is "dynamic" if a number of `hyper` is a callable
            and else "constant"; and ``"parameters"``, those of `config`, where a callable that has
            a method ``description`` itself appears by what that returns.

        Examples
        --------
        >>> import shardcore as sc
        >>> rate = sc.schedules.Constant(0.5).bind(lambda: 0)
        >>> described = sc.optimizers.SGD(rate, momentum=0.5).description()
        >>> described["name"], described["learning_rate"], described["parameters"]["momentum"]
        ('SGD', 'dynamic', 0.5)
        >>> described["parameters"]["learning_rate"]
        {'schedule': 'Constant(rate=0.5)'}
        """
        given, parameters = self.parameters(), self.config()
        del parameters["name"]
        for name, value in given.items():
            if callable(value) and hasattr(value, "description"):
                parameters[name] = value.description()
        dynamic = any(callable(given.get(name)) for name in self.hyper_names)
        learning_rate = "dynamic" if dynamic else "constant"
        return {"name": self.name, "learning_rate": learning_rate, "parameters": parameters}

    def _key(self) -> tuple[object, ...]:
        """Return what makes two optimizers equal."""
        return (type(self), *map(_as_key, self.parameters().values()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Optimizer):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        """Show the parameters; of the keyword-only ones those that are not at their default."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        usual = {field.name: field.default for field in fields if field.kw_only}
        shown = (
            f"{name}={_as_text(value)}"
            for name, value in self.parameters().items()
            if name not in usual or not _is_same(value, usual[name])
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def constant_hyper(optimizer: Optimizer) -> tuple[float, ...] | None:
    """Return what `Optimizer.hyper` returns at every step; None where it may change.

    The same tuple every time.
    """
    return optimizer._constant_hyper


def hyper_at(optimizer: Optimizer, step: int) -> tuple[float, ...]:
    """Return what `Optimizer.hyper` returns for a step; a class may have one that takes none."""
    return optimizer.hyper(step) if accepts(optimizer.hyper, step) else optimizer.hyper()
