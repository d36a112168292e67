"""The protocol between a checkpoint and the objects it saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardcore.checkpoint.boxes import Box

__all__ = ["Checkpointable", "RestorePlan", "SavedTensor", "TensorSource", "nothing"]


@dataclass(frozen=True)
class TensorSource:
    """A tensor an object wants saved.

    Parameters
    ----------
    name : str
        Its name within the object; "" for the only tensor of an object.
    shape : tuple of int
        Its logical shape.
    dtype : numpy.dtype
    boxes : tuple of (int, Box)
        The hosts that hold it and the boxes they hold, which cover the tensor exactly. No two
        hosts share a file; where a row lives is not stored.
    read : callable
        Returns the values of rows ``[start, stop)`` of one of the boxes, given as a `Box`. Called
        more than once per row for strings; must not change what it returned.
    group : str, default ""
        Tensors of one group share their files, where no sharding callback decides: a table and its
        slots.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    boxes: tuple[tuple[int, Box], ...]
    read: Callable[[Box], NDArray[Any]]
    group: str = ""


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of a checkpoint, as an object sees it before it takes its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def nothing() -> None:
    """Do nothing: the default begin, commit and abort of a plan."""


@dataclass(frozen=True)
class RestorePlan:
    """How an object takes its values from a checkpoint.

    Parameters
    ----------
    writes : dict of str to callable
        Tensor name -> writer of all columns of a range of rows, called in row order and once per
        row with ``(box, values)``. Strings come as object arrays of str or bytes.
    live : bool
        Whether the writers change values that are in use: then everything is verified before the
        first write.
    commit, abort : callable
        One of them is called, once, after the last write or the first failure, of `begin` too.
    skipped : tuple of str
        Tensors of the checkpoint that the object does not take. Those without a writer are added.
    begin : callable
        Called once, before the first write.
    """

    writes: dict[str, Callable[[Box, NDArray[Any]], None]]
    live: bool
    commit: Callable[[], None] = nothing
    abort: Callable[[], None] = nothing
    skipped: tuple[str, ...] = ()
    begin: Callable[[], None] = nothing


@runtime_checkable
class Checkpointable(Protocol):
    """An object that a checkpoint can save and restore."""

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return what the object wants to find again, in terms of JSON."""

    def checkpoint_tensors(self) -> Sequence[TensorSource]:
        """Return the tensors to be saved, under distinct names."""

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        """Return how to restore, or raise, having changed nothing, where it is not possible.

        Parameters
        ----------
        metadata : dict
            What `checkpoint_metadata` of the saved object returned.
        tensors : mapping of str to SavedTensor
            The tensors of the saved object.
        slots : {"load", "reset"}
            Whether optimizer slots are restored or begin anew.
        """
