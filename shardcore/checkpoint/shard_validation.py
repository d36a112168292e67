"""Proof that what a sharding callback returned is what it was given, each element exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shardcore.checkpoint.boxes import contains, first_overlap
from shardcore.checkpoint.sharding import Shard, ShardableTensor, SliceSpec, TensorSlice
from shardcore.errors import ShardcoreRuntimeError

__all__ = ["validate_shards"]


def validate_shards(
    shards: Sequence[Shard], shardable_tensors: Sequence[ShardableTensor], description: str
) -> None:
    """Raise unless the shards hold exactly the tensors given.

    A tensor may be cut into boxes along any axes, within the slice that was given. What an array
    holds cannot be checked; that a `TensorSlice` is the one its slice says, is.

    Parameters
    ----------
    shards : sequence of mapping
        The result of a sharding callback: per shard, checkpoint key -> slice -> its values.
    shardable_tensors : sequence of ShardableTensor
        The callback's argument.
    description : str
        The callback's description, for messages.

    Raises
    ------
    ShardcoreRuntimeError
        If a slice comes twice, overlaps another, or is missing in part or whole; if a tensor was
        not given; if a shape, dtype or host was altered; if a shard is empty or of two hosts; or
        if it is no sequence of such mappings at all. Names description, tensor and slice.

    Examples
    --------
    >>> import numpy as np
    >>> tensor = ShardableTensor.from_array("w", np.zeros((3, 2)))
    >>> halves = [((0, 0), (2, 2)), ((2, 0), (1, 2))]
    >>> parts = [tensor.slice(*half) for half in halves]
    >>> validate_shards([{"w": {part.slice_spec: part}} for part in parts], [tensor], "halves")
    >>> validate_shards([{"w": {parts[0].slice_spec: parts[0]}}], [tensor], "a half")
    Traceback (most recent call last):
    ...
    shardcore.errors.ShardcoreRuntimeError: sharding callback 'a half': tensor 'w', slice \
[0:3, 0:2] of (3, 2) is not saved in full: 4 of 6 elements are
    """
    _Validation(shardable_tensors, description).check(shards)


class _Validation:
    def __init__(self, shardable_tensors: Sequence[ShardableTensor], description: str) -> None:
        self._description = description
        self._tensors = shardable_tensors
        self._given: dict[str, list[ShardableTensor]] = {}
        for tensor in shardable_tensors:
            self._given.setdefault(tensor.checkpoint_key, []).append(tensor)
        self._first_in: dict[tuple[str, SliceSpec], int] = {}
        self._parts: dict[ShardableTensor, list[SliceSpec]] = {t: [] for t in shardable_tensors}

    def check(self, shards: Sequence[Shard]) -> None:
        if not isinstance(shards, list | tuple):
            raise self._error(f"must return a list of shards, got {type(shards).__name__}")
        for index, shard in enumerate(shards):
            host: int | None = None
            for key, spec, value in self._slices(index, shard):
                where = f"shards[{index}], tensor {key!r}, slice {spec}"
                if self._first_in.setdefault((key, spec), index) != index:
                    raise self._error(f"{where} is in shards[{self._first_in[key, spec]}] already")
                tensor = self._owner(where, key, spec)
                self._check_value(where, tensor, spec, value)
                if host is not None and tensor.host != host:
                    raise self._error(
                        f"{where} is of host {tensor.host}, the shard holds slices of host {host}"
                    )
                host = tensor.host
                self._parts[tensor].append(spec)
            if host is None:
                raise self._error(f"shards[{index}] is empty")
        for tensor in self._tensors:
            self._check_cover(tensor)

    def _slices(self, index: int, shard: object) -> Iterator[tuple[str, SliceSpec, object]]:
        if not isinstance(shard, Mapping):
            raise self._error(
                f"shards[{index}] must map checkpoint keys to slices, got {type(shard).__name__}"
            )
        for key, slices in shard.items():
            where = f"shards[{index}], tensor {key!r}"
            if not isinstance(slices, Mapping):
                raise self._error(f"{where} must map slices to values, got {type(slices).__name__}")
            if not slices:
                raise self._error(f"{where} has no slices")
            for spec, value in slices.items():
                if not isinstance(spec, SliceSpec):
                    raise self._error(
                        f"{where}, slice {spec!r} must be a SliceSpec, got {type(spec).__name__}"
                    )
                if key not in self._given:
                    raise self._error(f"{where}, slice {spec} was not given")
                yield key, spec, value

    def _owner(self, where: str, key: str, spec: SliceSpec) -> ShardableTensor:
        given = self._given[key]
        full_shape = given[0].slice_spec.full_shape
        if spec.full_shape != full_shape:
            raise self._error(f"{where} has another full shape than the tensor's {full_shape}")
        for tensor in given:
            if contains(tensor.slice_spec.box, spec.box):
                return tensor
        held = ", ".join(str(tensor.slice_spec.box) for tensor in given)
        raise self._error(f"{where} does not lie within a slice that was given: {held}")

    def _check_value(
        self, where: str, tensor: ShardableTensor, spec: SliceSpec, value: object
    ) -> None:
        if not isinstance(value, TensorSlice | np.ndarray | np.generic) or isinstance(
            value, np.ma.MaskedArray
        ):
            raise self._error(
                f"{where} must be a TensorSlice or a NumPy array, got {type(value).__name__}"
            )
        if isinstance(value, TensorSlice) and value.host != tensor.host:
            raise self._error(f"{where} comes from host {value.host}, was of host {tensor.host}")
        if value.shape != spec.shape:
            raise self._error(f"{where} has values of shape {value.shape}")
        if value.dtype != tensor.dtype:
            raise self._error(f"{where} has dtype {value.dtype}, was {tensor.dtype}")
        if isinstance(value, TensorSlice):
            if value.source.checkpoint_key != tensor.checkpoint_key or value.slice_spec != spec:
                raise self._error(
                    f"{where} has the values of tensor {value.source.checkpoint_key!r}, "
                    f"slice {value.slice_spec}"
                )
            if value.source is not tensor:
                raise self._error(f"{where} has the values of a tensor that was not given")

    def _check_cover(self, tensor: ShardableTensor) -> None:
        spec = tensor.slice_spec
        where = f"tensor {tensor.checkpoint_key!r}, slice {spec}"
        parts = self._parts[tensor]
        if not parts:
            raise self._error(f"{where} is missing from the shards")
        if not spec.box.size:
            if parts != [spec]:
                raise self._error(f"{where} has no elements and must be kept whole")
            return
        overlap = first_overlap([part.box for part in parts])
        if overlap is not None:
            first, second = (parts[index].box for index in overlap)
            raise self._error(f"{where} is saved twice in part: {first} and {second} overlap")
        saved = sum(part.box.size for part in parts)
        if saved != spec.box.size:
            raise self._error(
                f"{where} is not saved in full: {saved} of {spec.box.size} elements are"
            )

    def _error(self, problem: str) -> ShardcoreRuntimeError:
        return ShardcoreRuntimeError(f"sharding callback {self._description!r}: {problem}")
