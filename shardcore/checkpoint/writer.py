"""Writing a step: its files and then its manifest, in the order of a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardcore.checkpoint.directory import PendingStep
from shardcore.checkpoint.file_plan import plan_files
from shardcore.checkpoint.manifest import MANIFEST_NAME, Manifest
from shardcore.checkpoint.reader import OpenStep
from shardcore.checkpoint.safetensors import write_tensors
from shardcore.checkpoint.sharding import ShardingCallback
from shardcore.checkpoint.state import TensorSource
from shardcore.errors import CorruptCheckpointError, ShardcoreValueError

__all__ = ["write_step"]


def write_step(
    root: Path,
    step: int,
    objects: Mapping[str, tuple[dict[str, Any], Sequence[TensorSource]]],
    sharding_callback: ShardingCallback | None = None,
) -> Path:
    """Write a step and make it visible, or leave everything as it was.

    Parameters
    ----------
    root : Path
    step : int
    objects : mapping of str to (metadata, tensors)
    sharding_callback : ShardingCallback, optional
        Decides which file holds what.

    Returns
    -------
    Path
        The step directory, which may be an earlier save's of the same content.

    Raises
    ------
    ShardcoreValueError
        If the step exists with another content, or a tensor's boxes do not cover it.
    ShardcoreRuntimeError
        If what the callback returned is not what it was given.
    NotCommittedError, DurabilityUnknownError
        If storage failed before, or after, the step became visible.
    """
    plan = plan_files(objects, sharding_callback)
    sums = {}
    with PendingStep(root, step) as pending:
        pending.begin()
        for name, entries in plan.files.items():
            with pending.create(name) as file:
                sums[name] = write_tensors(file.write, entries)
        manifest = Manifest(step, _library_version(), plan.objects, sums)
        with pending.create(MANIFEST_NAME) as file:
            file.write(memoryview(manifest.to_bytes()))
        if not pending.publish():
            _check_same(manifest, pending.final)
            pending.confirm()
        return pending.final


def _check_same(manifest: Manifest, existing: Path) -> None:
    """Raise unless `existing` holds, undamaged, what `manifest` describes."""
    refused = f"step {manifest.step} already exists in {existing.parent}"
    if not existing.is_dir():
        raise ShardcoreValueError(f"{refused}: {existing.name} is not a directory")
    try:
        with OpenStep(existing) as saved:
            if saved.manifest.content() != manifest.content():
                raise ShardcoreValueError(f"{refused}, with another content")
            saved.verify()
    except CorruptCheckpointError as error:
        raise ShardcoreValueError(f"{refused}, and is damaged: {error}") from error


def _library_version() -> str:
    try:
        return version("shardcore")
    except PackageNotFoundError:
        return "not installed"  # imported from its source tree
