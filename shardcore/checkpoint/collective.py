"""A step of objects that several processes hold together: all of them read, one writes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from shardcore.backend.process_group import ProcessGroup, Read
from shardcore.checkpoint.boxes import Box
from shardcore.checkpoint.reader import OpenStep
from shardcore.checkpoint.sharding import ShardingCallback
from shardcore.checkpoint.state import TensorSource
from shardcore.checkpoint.writer import write_step
from shardcore.errors import ShardcoreValueError

__all__ = ["agree_on_step", "process_group_of", "restoring", "save_in_group"]


def process_group_of(objects: Mapping[str, object]) -> ProcessGroup | None:
    """Return the processes that hold some of the objects together; None if there are no others.

    An object says so by an attribute ``checkpoint_process_group``.

    Raises
    ------
    ShardcoreValueError
        If objects are held by different sets of processes.
    """
    found = {
        name: group
        for name, value in objects.items()
        if (group := getattr(value, "checkpoint_process_group", None)) is not None
    }
    first = next(iter(found), None)
    for name, group in found.items():
        assert first is not None, "there is one"
        if group is not found[first]:
            raise ShardcoreValueError(
                f"objects of one checkpoint must be held by the same devices of several "
                f"processes: {first!r} and {name!r} are not"
            )
    return None if first is None else found[first]


def save_in_group(
    group: ProcessGroup,
    root: Path,
    step: int,
    objects: Mapping[str, tuple[dict[str, Any], Sequence[TensorSource]]],
    sharding_callback: ShardingCallback | None,
) -> None:
    """Write a step in the first process; see `write_step`.

    Parameters
    ----------
    group : ProcessGroup
    root, step, objects, sharding_callback
        As in `write_step`. The callback is called in the process that writes.
    """
    named = [
        (f"{name}/{source.name}" if source.name else name, source)
        for name, (_, sources) in objects.items()
        for source in sources
    ]

    def write(reads: Mapping[str, Read]) -> None:
        led = iter(dataclasses.replace(source, read=_by_box(reads[key])) for key, source in named)
        write_step(
            root,
            step,
            {
                name: (metadata, list(islice(led, len(sources))))
                for name, (metadata, sources) in objects.items()
            },
            sharding_callback,
        )

    metadata = {name: own for name, (own, _) in objects.items()}
    shapes = [f"{key}: {source.dtype} {source.shape}" for key, source in named]
    group.save(
        [
            ("step", str(step)),
            ("root", str(root.absolute())),
            ("metadata of the objects", json.dumps(metadata, sort_keys=True, default=repr)),
            ("shape of the tensors", "\n".join(shapes)),
        ],
        {key: _by_place(source.read) for key, source in named},
        write,
    )


def _by_place(read: Callable[[Box], NDArray[Any]]) -> Read:
    def by_place(place: tuple[int, ...]) -> NDArray[Any]:
        axes = len(place) // 2
        return read(Box(place[:axes], place[axes:]))

    return by_place


def _by_box(read: Read) -> Callable[[Box], NDArray[Any]]:
    return lambda box: read((*box.offset, *box.shape))


def restoring(group: ProcessGroup | None) -> AbstractContextManager[None]:
    """Return the context in which a step is restored: of all processes, if there are several."""
    return nullcontext() if group is None else group.restoring()


def agree_on_step(group: ProcessGroup | None, saved: OpenStep) -> None:
    """Raise unless all processes, if there are several, have opened the same step."""
    if group is not None:
        parts = [("step", saved.path.name), ("manifest", saved.manifest.to_bytes())]
        group.agree("restore", parts)
