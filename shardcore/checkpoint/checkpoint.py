"""Checkpoint: named objects, saved as one step and restored all or none."""

from __future__ import annotations

import os
from pathlib import Path

from shardcore.checkpoint.adapters import as_checkpointable
from shardcore.checkpoint.collective import (
    agree_on_step,
    process_group_of,
    restoring,
    save_in_group,
)
from shardcore.checkpoint.directory import as_path, as_step, step_path
from shardcore.checkpoint.reader import OpenStep
from shardcore.checkpoint.sharding import ShardingCallback
from shardcore.checkpoint.state import Checkpointable, RestorePlan, SavedTensor
from shardcore.checkpoint.writer import write_step
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.threads.work import changed_here, uninterrupted

__all__ = ["Checkpoint"]

_SLOTS = ("load", "reset")


class Checkpoint:
    """Named objects that are saved and restored group.

    Parameters
    ----------
    **objects : Checkpointable, numpy.ndarray, ShardedVariable, or a structure of arrays
        At least one; a structure is a nested dict, list, tuple or dataclass of all these. An
        engine saves its tables, their optimizer slots, its step and its seed; arrays and variables
        are restored in place and must have the saved shape and dtype.

    Attributes
    ----------
    skipped : dict of str to tuple of str
        The tensors that the last `restore` did not take, per object: the slots of an
        engine without an optimizer, and every tensor of an object that was not asked for.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If there is no object, or one that cannot be saved.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> weights = {"kernel": np.arange(4.0), "bias": np.zeros(1)}
    >>> checkpoint = Checkpoint(dense=weights)
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = checkpoint.save(root, step=12)
    ...     weights["kernel"][:] = 0
    ...     path.name, checkpoint.restore(root)
    ('step-00000012', 12)
    >>> weights["kernel"]
    array([0., 1., 2., 3.])
    """

    def __init__(self, /, **objects: object) -> None:
        if not objects:
            raise ShardcoreValueError("Checkpoint needs at least one named object")
        for name in objects:
            if not name or "/" in name or not name.isprintable():
                raise ShardcoreValueError(
                    f"object names must be non-empty, printable and without '/', got {name!r}"
                )
        self._objects: dict[str, Checkpointable] = {
            name: as_checkpointable(name, value) for name, value in objects.items()
        }
        self.skipped: dict[str, tuple[str, ...]] = {}

    def save(
        self,
        root: str | os.PathLike[str],
        step: int,
        *,
        sharding_callback: ShardingCallback | None = None,
    ) -> Path:
        """Save all objects as one step, which becomes visible whole or not at all.

        Where an object is held by several processes group, every one of them calls this; the
        first of them writes, and the others return when the step is visible, or raise as it does.

        Parameters
        ----------
        root : path
            Directory of all steps; created if missing.
        step : int
            At least 0. A step is never overwritten; saving the same content again succeeds.
        sharding_callback : ShardingCallback, optional
            Decides which file holds what: `ShardByTaskPolicy`, `MaxShardSizePolicy` or one of your
            own. By default each table with its slots, and each other object, has a file per host.

        Returns
        -------
        pathlib.Path
            The step directory, ``root/step-00000012``.

        Raises
        ------
        ShardcoreValueError
            If the step exists already with another content.
        ShardcoreTypeError
            If `sharding_callback` is no `ShardingCallback`.
        ShardcoreRuntimeError
            If what it returned is not what it was given; see `validate_shards`.
        NotCommittedError
            If storage failed before the step became visible; nothing is left of it.
        DurabilityUnknownError
            If the step is visible, but the disk did not confirm that it will stay.
        """
        directory = as_path(root, "root")
        number = as_step(step)
        if not isinstance(sharding_callback, ShardingCallback | None):
            raise ShardcoreTypeError(
                "sharding_callback must be an instance of ShardingCallback or None, "
                f"got {sharding_callback!r}"
            )
        objects = {
            name: (value.checkpoint_metadata(), value.checkpoint_tensors())
            for name, value in self._objects.items()
        }
        group = process_group_of(self._objects)
        if group is None:
            return write_step(directory, number, objects, sharding_callback)
        save_in_group(group, directory, number, objects, sharding_callback)
        return step_path(directory, number)

    def restore(self, path: str | os.PathLike[str], *, slots: str = "load") -> int:
        """Restore all objects, or raise and change none.

        Every object first checks the checkpoint against itself. If one of them holds values that
        are in use, all bytes to be restored are verified before the first is replaced. They are
        verified again as they are loaded: storage that fails between the two raises, and leaves
        arrays and variables restored in part. From the first value that is replaced on, an
        interrupt waits until all are.

        An engine gets the saved step and seed too, also where its slots begin anew or it has only
        some of the saved tables: chance in its updates is that of the saved run.

        Where an object is held by several processes group, every one of them calls this, and
        reads the files for itself.

        Parameters
        ----------
        path : path
            A step directory, or a root, of which the newest step is taken.
        slots : {"load", "reset"}, default "load"
            Whether optimizer slots are restored or begin anew.

        Returns
        -------
        int
            The step restored.

        Raises
        ------
        ShardcoreValueError
            If the checkpoint lacks an object, or does not fit one.
        CorruptCheckpointError
            If it is damaged.
        ShardcoreOSError
            If there is no checkpoint or it cannot be read.
        """
        if slots not in _SLOTS:
            raise ShardcoreValueError(f"slots must be 'load' or 'reset', got {slots!r}")
        group = process_group_of(self._objects)
        # Programs of several processes start in one order, hence from one thread.
        change = uninterrupted if group is None else changed_here
        with restoring(group), OpenStep(path) as saved:
            agree_on_step(group, saved)
            records = saved.manifest.objects
            missing = [name for name in self._objects if name not in records]
            if missing:
                unasked = [name for name in records if name not in self._objects]
                raise ShardcoreValueError(
                    f"checkpoint {saved.path} does not hold the objects {missing}; "
                    f"not asked for, it holds {unasked}"
                )
            plans: dict[str, RestorePlan] = {}
            unfinished: dict[str, RestorePlan] = {}
            try:
                for name, value in self._objects.items():
                    record = records[name]
                    tensors = {
                        key: SavedTensor(tensor.shape, tensor.stored.dtype)
                        for key, tensor in record.tensors.items()
                    }
                    plan = value.checkpoint_restore(record.metadata, tensors, slots=slots)
                    plans[name] = unfinished[name] = plan
                    unknown = [key for key in plan.writes if key not in tensors]
                    if unknown:
                        raise ShardcoreRuntimeError(
                            f"object {name!r} restores the tensors {unknown}, which the "
                            "checkpoint does not hold"
                        )
                if any(plan.live for plan in plans.values()):
                    self._verify(saved, plans)
                    change(self._load_and_commit, saved, plans, unfinished)
                else:
                    self._load(saved, plans)
                    change(self._commit, plans, unfinished)
            except BaseException as error:
                change(self._abort, unfinished, error)
                raise
            self.skipped = {}
            for name, record in records.items():
                plan = plans.get(name, RestorePlan({}, live=False))
                unread = [key or name for key in record.tensors if key not in plan.writes]
                skipped = tuple(dict.fromkeys((*plan.skipped, *unread)))
                if skipped:
                    self.skipped[name] = skipped
            return saved.manifest.step

    def _verify(self, saved: OpenStep, plans: dict[str, RestorePlan]) -> None:
        for name, plan in plans.items():
            for key in plan.writes:
                saved.verify_tensor(saved.manifest.objects[name].tensors[key])

    def _load(self, saved: OpenStep, plans: dict[str, RestorePlan]) -> None:
        for plan in plans.values():
            plan.begin()
        for name, plan in plans.items():
            for key, write in plan.writes.items():
                for box, values in saved.blocks(saved.manifest.objects[name].tensors[key]):
                    write(box, values)

    def _load_and_commit(
        self, saved: OpenStep, plans: dict[str, RestorePlan], unfinished: dict[str, RestorePlan]
    ) -> None:
        self._load(saved, plans)
        self._commit(plans, unfinished)

    def _commit(self, plans: dict[str, RestorePlan], unfinished: dict[str, RestorePlan]) -> None:
        for name, plan in plans.items():
            del unfinished[name]
            plan.commit()

    def _abort(self, unfinished: dict[str, RestorePlan], error: BaseException) -> None:
        for name, plan in unfinished.items():
            try:
                plan.abort()
            except Exception as failure:  # the others must still be aborted
                error.add_note(f"abort of object {name!r} failed: {failure!r}")

    def __repr__(self) -> str:
        return f"Checkpoint({', '.join(self._objects)})"
