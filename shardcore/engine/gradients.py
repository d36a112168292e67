"""From the gradients that a caller gives to one update per table, and back to those of weights.

One lookup or several make a step: each gives a `Share`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import NotFinite, TableBatch, TableUpdate
from shardcore.dtypes import TABLE_DTYPES
from shardcore.engine.in_flight import Batch
from shardcore.engine.max_gradients import MaxGradient, at_occurrences
from shardcore.engine.tables import PlannedTable
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError
from shardcore.features.planned import PlannedFeature
from shardcore.optimizer.base import Optimizer, constant_hyper, hyper_at
from shardcore.optimizer.hyperparameters import LearningRate, evaluate_learning_rate
from shardcore.store.finite import all_finite
from shardcore.validation.arrays import as_floats, read_array
from shardcore.validation.integers import place_in

__all__ = [
    "Gradients",
    "Share",
    "gradients_of_weights",
    "hyper_of_each",
    "read_gradients",
    "table_updates",
    "device_gradient",
    "read_gradient",
    "hyper_parameters",
]


@dataclass(frozen=True, eq=False)
class Origin:
    """Where one of a table's gradients came from, for the words of a report on it.

    Attributes
    ----------
    path : str
    shape : tuple of int
        That of the activations.
    value : numpy.dtype
        The working dtype.
    place : str
        As in `Share`.
    """

    path: str
    shape: tuple[int, ...]
    value: np.dtype[Any]
    place: str


@dataclass(eq=False, slots=True)  # one for every step: a frozen one is made more slowly
class Gradients:
    """The gradients of a batch, per feature.

    Attributes
    ----------
    values : list of (array, shape (bags, dim), or None)
        NumPy arrays of the working dtype; or arrays of the backend's kind, of their own dtype.
    check : bool
        Whether the backend has to test values: some are of its kind, and no NaN is consented to.
    """

    values: list[Any]
    check: bool


@dataclass(eq=False, slots=True)  # as Gradients
class Share:
    """What one lookup gives to a step.

    Attributes
    ----------
    batch : Batch
    gradients : Gradients
    place : str
        Which lookup it is, as a message begins; empty where it is the only one.
    """

    batch: Batch
    gradients: Gradients
    place: str = ""

    def of(self, table: PlannedTable) -> tuple[Any, ...]:
        """Return the gradients of the table's features."""
        values = self.gradients.values
        return tuple([values[at] for at in table.features])

    def origins(self, features: Sequence[PlannedFeature], table: PlannedTable) -> list[Origin]:
        """Return where the gradients of the table's features came from."""
        return [
            Origin(
                features[at].gradient_path,
                (*self.batch.prepared[at].shape, table.spec.dim),
                features[at].value,
                self.place,
            )
            for at in table.features
        ]


def read_gradients(
    features: Sequence[PlannedFeature],
    batch: Batch,
    leaves: Sequence[Any],
    backend: Backend,
    *,
    check: bool,
    keep: bool,
) -> Gradients:
    """Return the gradient of each feature, those that a backend does not take read and cast.

    Parameters
    ----------
    features : sequence of PlannedFeature
    batch : Batch
    leaves : sequence
        As the caller gave them, per feature.
    backend : Backend
    check : bool
        Whether every value must be finite in the working dtype.
    keep : bool
        As in `read_gradient`.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If one breaks a rule, or its table has no optimizer.
    """
    values: list[Any] = []
    read: list[tuple[int, NDArray[Any]]] = []
    on_device = False
    takes = backend.takes_gradient
    for at, (feature, leaf) in enumerate(zip(features, leaves, strict=True)):
        prepared = batch.prepared[at]
        if leaf is None:
            values.append(None)
            continue
        path, spec = feature.gradient_path, feature.spec
        if spec.optimizer is None:
            raise ShardcoreValueError(f"{path} must be None: table {spec.name!r} has no optimizer")
        shape = (*prepared.shape, spec.dim)
        if prepared.max_splits is not None:  # its activations were given on the host
            own = read_gradient(leaf, shape, feature.value, path, keep)
            read.append((at, own))
            values.append(MaxGradient(own, batch, at))
            continue
        try:
            taken = takes(leaf)
        except ShardcoreValueError as error:
            raise ShardcoreValueError(f"{path} {error}") from error
        if taken:
            values.append(device_gradient(leaf, shape, path))
            on_device = True
            continue
        own = read_gradient(leaf, shape, feature.value, path, keep)
        read.append((at, own))
        values.append(own)
    if check and not all_finite([own for _, own in read]):
        for at, own in read:
            if not all_finite([own]):
                _refuse(features[at], batch.prepared[at].shape, leaves[at], own)
    return Gradients(values, check and on_device)


def _refuse(
    feature: PlannedFeature, batch_shape: tuple[int, ...], leaf: Any, own: NDArray[Any]
) -> NoReturn:
    """Raise the error of a gradient that is not finite, with its first such value as given."""
    path, dtype = feature.gradient_path, feature.value
    at = int(np.argmin(np.isfinite(own)))
    shape = (*batch_shape, feature.spec.dim)
    value = _real_numbers(leaf, dtype, path).flat[at]
    raise ShardcoreValueError(_not_finite(path, shape, at, value, dtype))


def table_updates(
    planned: Sequence[PlannedTable],
    features: Sequence[PlannedFeature],
    shares: Sequence[Share],
    step: int,
) -> list[TableUpdate]:
    """Return an update for each table that has a gradient; learning rates are asked for here.

    Several shares become one batch, which holds theirs in their order: feature by feature, and in
    each feature the bags of the first share before those of the next. A share without a gradient
    for a feature holds none of its bags.

    Parameters
    ----------
    planned : sequence of PlannedTable
    features : sequence of PlannedFeature
    shares : sequence of Share
    step : int
        1 for the first batch that the engine applies.
    """
    moving = []
    for at, table in enumerate(planned):
        optimizer = table.spec.optimizer
        if optimizer is None:
            continue
        taking = []
        for share in shares:
            own = share.of(table)
            for gradient in own:
                if gradient is not None:
                    taking.append((share, own))
                    break
        if taking:
            moving.append((at, table, taking, optimizer))
    hyper = hyper_of_each([optimizer for *_, optimizer in moving], step - 1)
    updates = []
    check = any(share.gradients.check for share in shares)
    for at, table, taking, optimizer in moving:
        origins: list[Origin] | None
        if len(taking) == 1:
            ((share, gradients),) = taking
            batch = share.batch.tables[at]
            origins = share.origins(features, table) if check else None
        else:
            batch, gradients, origins = _joined(at, table, features, taking)
        rates = hyper[id(optimizer)]
        updates.append(TableUpdate(batch, gradients, rates, step, check, origins))
    return updates


def hyper_of_each(optimizers: Sequence[Optimizer], step: int) -> dict[int, tuple[float, ...]]:
    """Return the hyper-parameters of each optimizer, by its identity.

    To hash an optimizer takes all of its parameters, for every table.
    """
    found: dict[int, tuple[float, ...]] = {}
    others: dict[int, Optimizer] = {}
    for optimizer in optimizers:
        key = id(optimizer)
        if key not in found and key not in others:
            constant = constant_hyper(optimizer)
            if constant is None:
                others[key] = optimizer
            else:
                found[key] = constant
    if others:
        values = hyper_parameters(others.values(), step)
        found.update({key: values[optimizer] for key, optimizer in others.items()})
    return found


def _joined(
    at: int,
    table: PlannedTable,
    features: Sequence[PlannedFeature],
    taking: Sequence[tuple[Share, tuple[Any, ...]]],
) -> tuple[TableBatch, tuple[Any, ...], list[Origin]]:
    """Return the batch of a table that holds those of several shares, its gradients and origins.

    The bags of each share and feature stand in it as a feature of their own: so nothing is copied.
    Sums go by (feature, bag), and are those of the features joined.
    """
    bags, gradients, origins = [], [], []
    parts = [(share, own, share.origins(features, table)) for share, own in taking]
    for number in range(len(table.features)):
        for share, own, origins_of in parts:
            if own[number] is not None:
                bags.append(share.batch.tables[at].features[number])
                gradients.append(own[number])
                origins.append(origins_of[number])
    return TableBatch(table.spec.name, tuple(bags), training=True), tuple(gradients), origins


def described(report: NotFinite) -> str:
    """Return the message of steps whose gradients a backend found not finite."""
    origin: Origin = report.origin[report.feature]
    place = report.bag * origin.shape[-1] + report.column
    shape, whose = origin.shape, ""
    if report.process is not None:  # which may have given more samples than this one
        rest = shape[1:] if len(shape) > 1 else shape
        shape = (place // math.prod(rest) + 1, *rest)
        whose = f"process {report.process}: "
    told = whose + _not_finite(origin.path, shape, place, report.value, origin.value)
    refused = f"step {report.step} was refused"
    if report.updates > 1:
        refused = f"{report.updates} steps were refused, the first of them step {report.step}"
    return f"{refused}: {origin.place}{told}"


def gradients_of_weights(
    planned: Sequence[PlannedTable],
    share: Share,
    updates: Sequence[TableUpdate],
    backend: Backend,
) -> list[NDArray[Any] | None]:
    """Return the gradient of each feature's weights; None without weights or without a gradient.

    Parameters
    ----------
    planned : sequence of PlannedTable
    share : Share
    updates : sequence of TableUpdate
        From `at_occurrences` of `table_updates`, of this share and perhaps others, not applied yet.
    backend : Backend
    """
    found: list[NDArray[Any] | None] = [None] * len(share.batch.prepared)
    by_name = {update.batch.table: update for update in updates}
    for at, table in enumerate(planned):
        update = by_name.get(table.spec.name)
        if update is None:
            continue
        batch = share.batch.tables[at]
        if update.batch is not batch:
            own = share.of(table)
            if all(gradient is None for gradient in own):
                continue
            (update,) = at_occurrences([replace(update, batch=batch, gradients=own, origin=None)])
        for feature, dots in zip(table.features, backend.weight_dots(update), strict=True):
            if dots is not None:
                prepared = share.batch.prepared[feature]
                found[feature] = prepared.weight_gradient(table.config.combiner, dots)
    return found


def read_gradient(
    leaf: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    path: str,
    keep: bool = False,
) -> NDArray[Any]:
    """Return a feature's gradient as (bags, dim) of the working dtype, in one piece.

    Parameters
    ----------
    leaf : array_like
        Of any real dtype, shaped like the activations.
    shape : tuple of int
        That of the activations.
    dtype : numpy.dtype
        The working dtype.
    path : str
        Its place in the structure; begins every message.
    keep : bool
        Whether it outlives the call: then it shares no memory with what the caller gave.

    Raises
    ------
    ShardcoreTypeError
        If it is no array of real numbers.
    ShardcoreValueError
        If its shape differs.

    Examples
    --------
    >>> read_gradient([[1, 2]], (1, 2), np.dtype("float32"), "gradients")
    array([[1., 2.]], dtype=float32)
    """
    array = _real_numbers(leaf, dtype, path)
    _check_shape(array.shape, shape, path)
    whole = array
    if array.dtype != dtype:
        with np.errstate(over="ignore"):  # found where all values are tested
            whole = array.astype(dtype, order="C")
    elif keep or not (flags := array.flags).c_contiguous or not flags.aligned:
        whole = array.copy()
    return whole if len(shape) == 2 else whole.reshape(-1, shape[-1])


def _real_numbers(leaf: Any, dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """Return a gradient as a NumPy array of real numbers, in `dtype` or another of NumPy's."""
    array: NDArray[Any] = leaf if type(leaf) is np.ndarray else read_array(leaf, path)
    array = array[...]  # a view whose shape only we can change
    if array.dtype != dtype:
        if array.dtype.kind == "b" or array.dtype.kind == "c":
            raise ShardcoreTypeError(f"{path} must be real numbers, got dtype {array.dtype}")
        array = as_floats(array, path)
    return array


def device_gradient(leaf: Any, shape: tuple[int, ...], path: str) -> Any:
    """Return a gradient that lives on a device as (bags, dim), of its own dtype, not read.

    Parameters
    ----------
    leaf : array
        That a backend takes, shaped like the activations.
    shape : tuple of int
        That of the activations.
    path : str
        Its place in the structure; begins every message.

    Raises
    ------
    ShardcoreTypeError
        If its dtype is none of the four float dtypes of tables.
    ShardcoreValueError
        If its shape differs.

    Examples
    --------
    >>> device_gradient(np.ones((2, 3, 4), np.float16), (2, 3, 4), "gradients").shape
    (6, 4)
    """
    dtype = str(leaf.dtype)
    if dtype.startswith(("bool", "complex")):
        raise ShardcoreTypeError(f"{path} must be real numbers, got dtype {dtype}")
    if dtype not in TABLE_DTYPES:
        raise ShardcoreTypeError(
            f"{path} must be float16, bfloat16, float32 or float64 where it lives on a device, "
            f"got dtype {dtype}"
        )
    _check_shape(tuple(leaf.shape), shape, path)
    return leaf if len(shape) == 2 else leaf.reshape(-1, shape[-1])


def _not_finite(
    path: str, shape: tuple[int, ...], at: int, value: Any, dtype: np.dtype[Any]
) -> str:
    """Return the message of a gradient whose value at the flat position `at` is not finite."""
    return f"{path} must be finite in {dtype}: {place_in(path, at, shape)} = {value}"


def _check_shape(given: tuple[int, ...], shape: tuple[int, ...], path: str) -> None:
    if given != shape:
        raise ShardcoreValueError(
            f"{path} must have the shape of the activations, {shape}, got {given}"
        )


def hyper_parameters(
    optimizers: Iterable[Optimizer], step: int
) -> dict[Optimizer, tuple[float, ...]]:
    """Return what `Optimizer.hyper` returns for each, with each callable called once for all.

    Tables whose rates follow one schedule thus follow it together, whatever the callable counts.

    Parameters
    ----------
    optimizers : iterable of Optimizer
        Callables are asked in their order. An optimizer with a `hyper` of its own is asked by it.
    step : int
        How many batches were applied before: what a callable gets that takes it.

    Returns
    -------
    dict of optimizer -> tuple of float
        Equal optimizers are one.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If a callable returns no number >= 0 that is finite as float32.

    Examples
    --------
    >>> import shardcore as sc
    >>> rates = iter([0.5, 0.25])
    >>> rate = lambda: next(rates)
    >>> pair = [sc.optimizers.SGD(rate), sc.optimizers.Adagrad(rate)]
    >>> [hyper[0] for hyper in hyper_parameters(pair, 0).values()]
    [0.5, 0.5]
    """
    rates: dict[object, float] = {}
    found: dict[Optimizer, tuple[float, ...]] = {}
    for optimizer in optimizers:
        if optimizer not in found:
            found[optimizer] = _hyper_of(optimizer, step, rates)
    return found


def _hyper_of(optimizer: Optimizer, step: int, rates: dict[object, float]) -> tuple[float, ...]:
    """Return the values of one; `rates` holds those of callables that were asked already."""
    if type(optimizer).hyper is not Optimizer.hyper:
        return hyper_at(optimizer, step)
    values = [(getattr(optimizer, name), name) for name in optimizer.hyper_names]
    return tuple([_evaluated(value, name, step, rates) for value, name in values])


def _evaluated(value: LearningRate, argument: str, step: int, rates: dict[object, float]) -> float:
    if not callable(value):
        return evaluate_learning_rate(value, argument)
    key = _identity(value)
    if key not in rates:
        rates[key] = evaluate_learning_rate(value, argument, step)
    return rates[key]


def _identity(function: Callable[..., object]) -> object:
    """Return what two references to one callable have in common; a method is made at each access.

    Callables that are equal without being the same may count apart, so equality does not decide.
    """
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return id(function)
