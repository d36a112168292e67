"""One variable per device, side by side, that a checkpoint keeps apart.

Component 0 is saved under the variable's own name, so that a plain variable can read it; component
i under ``parallel_component_<i>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardcore.checkpoint.adapters import as_checkpointable
from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.state import Checkpointable, RestorePlan, SavedTensor, TensorSource
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.validation.arrays import read_array
from shardcore.validation.shapes import as_count
from shardcore.variable.row_store import ArrayRowStore
from shardcore.variable.variable import ShardedVariable, variable_creator

__all__ = ["ParallelVariable", "independent_buffers"]

_Writer = Callable[[Box, NDArray[Any]], None]


class ParallelVariable:
    """Components of one shape and dtype, one per device, each with values of its own.

    Parameters
    ----------
    components : sequence of ndarray or ShardedVariable
        At least one; adopted, not copied. All of one shape and dtype, no two share memory.
    devices : int or sequence of str, optional
        A name per component; a number n means ``device:0`` to ``device:<n - 1>``, the default.
    name : str, optional
        A label, for messages; by default that of component 0, if it has one.
    primary_only : bool
        The components are copies of one another, as replicas are: only component 0 is saved, and
        restoring gives its values to every component.
    partial_restore : bool
        Whether a checkpoint with another number of components is restored. False: it is refused.
        True: components that it lacks keep their values, and those it has besides are skipped
        (``Checkpoint.skipped`` lists them).

    Attributes
    ----------
    components : tuple of ndarray or ShardedVariable
    devices : tuple of str

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these, or components do not go together.

    Examples
    --------
    >>> import tempfile
    >>> from shardcore.checkpoint import Checkpoint
    >>> v = ParallelVariable([np.array([-1.0]), np.array([3.0])])
    >>> checkpoint = Checkpoint(v=v)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = checkpoint.save(root, step=1)
    ...     for component in v:
    ...         component[...] = 0
    ...     step = checkpoint.restore(path)
    >>> v.unpack()
    [array([-1.]), array([3.])]
    """

    def __init__(
        self,
        components: Sequence[NDArray[Any] | ShardedVariable],
        devices: int | Sequence[str] | None = None,
        *,
        name: str | None = None,
        primary_only: bool = False,
        partial_restore: bool = False,
    ) -> None:
        self.components = _checked_components(components)
        count = len(self.components)
        self.devices = _device_names(count if devices is None else devices)
        if len(self.devices) != count:
            raise ShardcoreValueError(
                f"devices must name every component, {count}, got {len(self.devices)}"
            )
        if name is None:
            name = getattr(self.components[0], "name", type(self).__name__)
        if not isinstance(name, str):
            raise ShardcoreTypeError(f"name must be a string or None, got {name!r}")
        self._name = name
        self._primary_only = _as_bool(primary_only, "primary_only")
        self._partial_restore = _as_bool(partial_restore, "partial_restore")
        self._adapters()  # raises for what cannot be saved

    @classmethod
    def pack(cls, values: Sequence[ArrayLike], devices: int | Sequence[str] | None = None) -> Self:
        """Return a variable whose components are copies of `values`.

        Parameters
        ----------
        values : sequence of array_like
            One per device, all of one shape and dtype.
        devices : as above

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            As the class.

        Examples
        --------
        >>> ParallelVariable.pack([[1, 2], [3, 4]])
        ParallelVariable(name='ParallelVariable', shape=(2,), dtype=int64, \
devices=('device:0', 'device:1'))
        """
        if not isinstance(values, list | tuple):
            raise ShardcoreTypeError(
                f"values must be a list of arrays, got {type(values).__name__}"
            )
        arrays = [np.array(_as_array(value, f"values[{i}]")) for i, value in enumerate(values)]
        return cls(arrays, devices)

    def unpack(self) -> list[NDArray[Any]]:
        """Return a fresh array per component.

        Examples
        --------
        >>> ParallelVariable.unpack(ParallelVariable.pack([[1, 2], [3, 4]]))
        [array([1, 2]), array([3, 4])]
        """
        if not isinstance(self, ParallelVariable):  # called as ParallelVariable.unpack(x)
            raise ShardcoreTypeError(f"x must be a ParallelVariable, got {type(self).__name__}")
        return [np.array(component) for component in self.components]

    @property
    def name(self) -> str:
        """The name, a label only."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of each component."""
        return tuple(self.components[0].shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of each component."""
        return self.components[0].dtype

    def __len__(self) -> int:
        """Return how many components there are."""
        return len(self.components)

    def __iter__(self) -> Iterator[NDArray[Any] | ShardedVariable]:
        """Iterate over the components."""
        return iter(self.components)

    def __repr__(self) -> str:
        return (
            f"ParallelVariable(name={self.name!r}, shape={self.shape}, dtype={self.dtype}, "
            f"devices={self.devices!r})"
        )

    # Checkpoints

    def _keys(self) -> list[str]:
        return ["", *(f"parallel_component_{i}" for i in range(1, len(self.components)))]

    def _adapters(self) -> list[Checkpointable]:
        """Return what saves and restores each component."""
        return [
            as_checkpointable(f"{self.name}, component {i}", component)
            for i, component in enumerate(self.components)
        ]

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return the kind of object, and the tensors that a plain variable may leave alone."""
        optional = [] if self._primary_only else self._keys()[1:]
        return {"type": type(self).__name__, "optional": optional}

    def checkpoint_tensors(self) -> list[TensorSource]:
        """Return the components to be saved, each in files of its own."""
        sources = []
        for key, adapter in zip(self._keys(), self._adapters(), strict=True):
            (source,) = adapter.checkpoint_tensors()
            sources.append(dataclasses.replace(source, name=key, group=key))
        return sources[:1] if self._primary_only else sources

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        """Return how every component takes its values: all of them do, or none.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If the checkpoint has another shape, dtype or number of components, or a component is
            read-only.
        """
        keys = self._keys()
        if "" not in tensors:
            raise ShardcoreValueError(
                f"parallel variable {self.name!r} needs a variable in the checkpoint, "
                f"which holds a structure of the tensors {list(tensors)}"
            )
        wanted = keys[:1] if self._primary_only else keys
        if set(tensors) != set(wanted) and not self._partial_restore:
            raise ShardcoreValueError(
                f"parallel variable {self.name!r} restores {len(wanted)} components, the "
                f"checkpoint has {len(tensors)}; make it with partial_restore=True to restore "
                "those that both have"
            )
        writes: dict[str, list[_Writer]] = {}
        for own_key, adapter in zip(keys, self._adapters(), strict=True):
            key = "" if self._primary_only else own_key
            if key in tensors:
                plan = adapter.checkpoint_restore({}, {"": tensors[key]}, slots=slots)
                writes.setdefault(key, []).append(plan.writes[""])
        return RestorePlan({key: _to_all(writers) for key, writers in writes.items()}, live=True)


@contextmanager
def independent_buffers(
    devices: int | Sequence[str], *, primary_only: bool = False, partial_restore: bool = False
) -> Iterator[tuple[str, ...]]:
    """Make `create_variable` return a `ParallelVariable`, with a component per device.

    It holds for the thread or task it is entered in, until it is left. The components begin with
    equal values.

    Parameters
    ----------
    devices : int or sequence of str
        As `ParallelVariable`; at least one.
    primary_only, partial_restore : bool
        As `ParallelVariable`.

    Yields
    ------
    tuple of str
        The names of the devices.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument is none of these.
    ShardcoreRuntimeError
        If it is entered within itself.

    Examples
    --------
    >>> with independent_buffers(["left", "right"]) as devices:
    ...     devices
    ('left', 'right')
    """
    names = _device_names(devices)
    _as_bool(primary_only, "primary_only")
    _as_bool(partial_restore, "partial_restore")
    if variable_creator.get() is not None:
        raise ShardcoreRuntimeError("independent_buffers must not be entered within itself")

    def create(make: Callable[[], Any]) -> ParallelVariable:
        token = variable_creator.set(None)
        try:
            components = [make() for _ in names]
        finally:
            variable_creator.reset(token)
        return ParallelVariable(
            components, names, primary_only=primary_only, partial_restore=partial_restore
        )

    token = variable_creator.set(create)
    try:
        yield names
    finally:
        variable_creator.reset(token)


def _to_all(writers: list[_Writer]) -> _Writer:
    def write(box: Box, values: NDArray[Any]) -> None:
        for writer in writers:
            writer(box, values)

    return write


def _as_bool(value: object, argument: str) -> bool:
    if not isinstance(value, bool):
        raise ShardcoreTypeError(f"{argument} must be a bool, got {value!r}")
    return value


def _as_array(value: object, argument: str) -> NDArray[Any]:
    if isinstance(value, int | float | np.generic):
        return np.asarray(value)
    return read_array(value, argument)


def _device_names(devices: object) -> tuple[str, ...]:
    if isinstance(devices, int | np.integer) and not isinstance(devices, bool):
        return tuple(f"device:{i}" for i in range(as_count(devices, "devices")))
    if not isinstance(devices, Sequence) or isinstance(devices, str | bytes):
        raise ShardcoreTypeError(
            f"devices must be a number or a sequence of names, got {devices!r}"
        )
    if not devices:
        raise ShardcoreValueError("devices must hold at least one name, got none")
    for i, name in enumerate(devices):
        if not isinstance(name, str):
            raise ShardcoreTypeError(f"devices[{i}] must be a string, got {name!r}")
        if name in devices[:i]:
            raise ShardcoreValueError(
                f"devices must be distinct: devices[{i}] = {name!r} is devices"
                f"[{devices.index(name)}] too"
            )
    return tuple(devices)


def _checked_components(components: object) -> tuple[NDArray[Any] | ShardedVariable, ...]:
    if not isinstance(components, Sequence) or isinstance(components, str | bytes):
        raise ShardcoreTypeError(
            f"components must be a sequence of arrays or variables, got {type(components).__name__}"
        )
    if not components:
        raise ShardcoreValueError("components must hold at least one, got none")
    for i, component in enumerate(components):
        if not isinstance(component, np.ndarray | ShardedVariable):
            raise ShardcoreTypeError(
                f"components[{i}] must be an ndarray or a ShardedVariable, "
                f"got {type(component).__name__}"
            )
        first = components[0]
        for what in ("shape", "dtype"):
            if getattr(component, what) != getattr(first, what):
                raise ShardcoreValueError(
                    f"components must have one {what}: components[{i}] has "
                    f"{getattr(component, what)}, components[0] has {getattr(first, what)}"
                )
        for j in range(i):
            if _share_memory(components[j], component):
                raise ShardcoreValueError(
                    f"components[{j}] and components[{i}] must not share memory"
                )
    return tuple(components)


def _share_memory(
    left: NDArray[Any] | ShardedVariable, right: NDArray[Any] | ShardedVariable
) -> bool:
    if getattr(left, "store", left) is getattr(right, "store", right):
        return True
    return any(
        np.may_share_memory(a, b) and np.shares_memory(a, b)
        for a in _arrays(left)
        for b in _arrays(right)
    )


def _arrays(component: NDArray[Any] | ShardedVariable) -> list[NDArray[Any]]:
    if isinstance(component, np.ndarray):
        return [component]
    return component.shards if isinstance(component.store, ArrayRowStore) else []
