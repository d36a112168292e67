"""An optimizer out of a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any

import numpy as np

from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.optimizer import LearningRate, SlotSpec, check_hyper_parameter
from shardcore_optimizers.row_steps import RowSteps

__all__ = ["Custom"]


def _computation(value: Any, argument: str) -> Any:
    if not callable(value):
        raise ShardcoreTypeError(
            f"{argument} must be a callable (grad, rows, slots, hyper, step, row_ids) -> "
            f"(rows, slots), got {value!r}"
        )
    return value


def _initialization(value: Any, argument: str) -> Any:
    if value is not None and not callable(value):
        raise ShardcoreTypeError(
            f"{argument} must be a callable (rows, row_ids) -> slots, or None, got {value!r}"
        )
    return value


def _slot_specs(value: Any, argument: str) -> tuple[SlotSpec, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(one, SlotSpec) for one in value):
        raise ShardcoreTypeError(f"{argument} must be a sequence of SlotSpec, got {value!r}")
    names = [one.name for one in value]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ShardcoreValueError(
                f"{argument} must have distinct names: {argument}[{at}] and "
                f"{argument}[{names.index(name)}] are both named {name!r}"
            )
    return tuple(value)


def _hyperparameters(value: Any, argument: str) -> tuple[tuple[str, float], ...]:
    if not isinstance(value, Mapping | tuple):
        raise ShardcoreTypeError(f"{argument} must be a mapping of str to number, got {value!r}")
    checked = {}
    for name, number in dict(value).items():
        if not (isinstance(name, str) and name.isidentifier()) or name == "learning_rate":
            raise ShardcoreValueError(
                f"{argument} must be named by identifiers other than 'learning_rate', got {name!r}"
            )
        checked[name] = check_hyper_parameter(number, f"{argument}[{name!r}]")
    return tuple(checked.items())


class Custom(RowSteps):
    """An optimizer out of two functions of yours; the rest is done around them.

    Both are called with blocks of rows and return new arrays, changing nothing they are given::

        computation(grad, rows, slots, hyper, step, row_ids) -> (rows, slots)
        initialization(rows, row_ids) -> slots

    The first is `shardcore.Optimizer.update`, except that ``hyper`` is a dict: the learning rate of
    the batch as ``hyper["learning_rate"]``, and `hyperparameters`. The second, which may be left
    out, says what slots start from: it gets the values that rows start from, or, where a checkpoint
    is restored with ``slots="reset"``, the restored ones, in the working dtype. A row's result must
    depend on that row and its number alone: blocks are of any size. Written against the array API
    (``xp = rows.__array_namespace__()``) they run on every backend.

    Parameters
    ----------
    computation : callable
        Compared by identity; two optimizers are equal if it is the same object.
    learning_rate : float or callable, default 0.01
        A number >= 0, or a callable f(step) or f(), asked once per batch.
    slot_specs : sequence of SlotSpec, default ()
        The state kept beside the rows, and what it starts from.
    initialization : callable, optional
        Returns a dict of arrays, (n, dim) or (n, 1), for some of the slots or all; the others start
        from what `slot_specs` and ``slot_initial_values`` say. Called by NumPy, when tables are
        created and where slots are reset. Compared by identity.
    hyperparameters : mapping of str to float, default {}
        Constants for ``hyper``.
    **common
        Clipping, weight decay, rounding, ``preset``: see `RowSteps`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or contradicts another one.

    Notes
    -----
    For speed on a CPU, or a name of its own in checkpoints, write a class instead: see
    `shardcore.Optimizer`. ``preset`` changes nothing here.

    Examples
    --------
    >>> import numpy as np
    >>> from shardcore.optimizer import SlotSpec
    >>> def sign_of_momentum(grad, rows, slots, hyper, step, row_ids):
    ...     xp = rows.__array_namespace__()
    ...     momenta = hyper["beta"] * slots["momenta"] + (1 - hyper["beta"]) * grad
    ...     return rows - hyper["learning_rate"] * xp.sign(momenta), {"momenta": momenta}
    >>> optimizer = Custom(
    ...     sign_of_momentum,
    ...     learning_rate=0.5,
    ...     slot_specs=[SlotSpec("momenta", "element")],
    ...     hyperparameters={"beta": 0.75},
    ...     clipvalue=8.0,
    ... )
    >>> rows = np.array([[1.0, 1.0]])
    >>> rows, slots = optimizer.update(
    ...     grad=np.array([[16.0, -2.0]]), rows=rows, slots=optimizer.init(rows),
    ...     hyper=optimizer.hyper(), step=1, row_ids=np.array([7]),
    ... )
    >>> rows, slots
    (array([[0.5, 1.5]]), {'momenta': array([[ 2. , -0.5]])})

    Momenta that start from the weights:

    >>> optimizer = Custom(
    ...     sign_of_momentum,
    ...     slot_specs=[SlotSpec("momenta", "element")],
    ...     initialization=lambda rows, row_ids: {"momenta": 2 * rows},
    ... )
    >>> optimizer.init(np.array([[1.0, 3.0]]))
    {'momenta': array([[2., 6.]])}
    """

    computation: Callable[..., tuple[Any, Mapping[str, Any]]]
    learning_rate: LearningRate = 0.01
    _: KW_ONLY
    slot_specs: Sequence[SlotSpec] = ()
    hyperparameters: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    initialization: Callable[[Any, Any], Mapping[str, Any]] | None = None

    rules = {
        "computation": _computation,
        "slot_specs": _slot_specs,
        "hyperparameters": _hyperparameters,
        "initialization": _initialization,
    }

    @property
    def slots(self) -> tuple[SlotSpec, ...]:
        """The state kept beside the rows, as it was given, in `slot_dtype` where that was."""
        given = tuple(self.slot_specs)
        if self.slot_dtype is None:
            return tuple(map(self._slot_of, given))
        return tuple(self._slot(one.name, one.kind, one.fill) for one in given)

    @property
    def init_reads_rows(self) -> bool:
        """Whether slots start from what `initialization` returns."""
        return self.initialization is not None

    def init(self, rows: Any, row_ids: Any = None, seed: int = 0) -> dict[str, Any]:
        """Return the slots of rows that were never updated: as declared, and `initialization`'s."""
        slots = super().init(rows, row_ids, seed)
        if self.initialization is None:
            return slots
        numbers = np.arange(rows.shape[0]) if row_ids is None else row_ids
        given = self.initialization(rows, numbers)
        if not isinstance(given, Mapping):
            raise ShardcoreTypeError(
                "initialization must return a mapping of slot names to arrays, "
                f"got {type(given).__name__}"
            )
        for name in given:
            if name not in slots:
                raise ShardcoreValueError(
                    f"initialization must return slots of {list(slots)}, got {name!r}"
                )
        return {**slots, **given}

    def update(
        self,
        grad: Any,
        rows: Any,
        slots: Mapping[str, Any],
        hyper: Sequence[float],
        step: int,
        row_ids: Any,
    ) -> tuple[Any, Mapping[str, Any]]:
        """Return the new rows and slots: clip, decay, `computation`, clamp."""
        xp = rows.__array_namespace__()
        grad, rows = self._before(xp, grad, rows, hyper)
        named = {"learning_rate": hyper[0], **dict(self.hyperparameters)}
        rows, slots = self.computation(grad, rows, slots, named, step, row_ids)
        return self._after(xp, rows), slots
