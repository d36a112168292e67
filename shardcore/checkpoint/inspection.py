"""Looking at a checkpoint without the objects it belongs to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardcore.checkpoint.reader import OpenStep

__all__ = ["CheckpointInfo", "ObjectInfo", "TensorInfo", "inspect", "verify"]


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint: its logical shape, dtype name, and in how many boxes it lies."""

    shape: tuple[int, ...]
    dtype: str
    num_boxes: int


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a checkpoint: its metadata and its tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of a step directory, from its manifest; ``str()`` gives a table.

    Parameters
    ----------
    path : pathlib.Path
        The step directory.
    step : int
    shardcore_version : str
        Version of the library that wrote it.
    objects : dict of str to ObjectInfo
    files : dict of str to int
        File name -> bytes.
    """

    path: Path
    step: int
    shardcore_version: str
    objects: dict[str, ObjectInfo]
    files: dict[str, int]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensor files."""
        return sum(self.files.values())

    def __str__(self) -> str:
        lines = [
            f"step {self.step}: {len(self.files)} files, {self.num_bytes:,} bytes, "
            f"written by shardcore {self.shardcore_version}"
        ]
        for name, record in self.objects.items():
            lines.append(f"{name}  {record.metadata}" if record.metadata else name)
            for tensor_name, tensor in record.tensors.items():
                shown = f"  {tensor_name}" if tensor_name else "  (the object)"
                lines.append(
                    f"{shown}  {tensor.dtype} {list(tensor.shape)}, boxes: {tensor.num_boxes}"
                )
        return "\n".join(lines)


def inspect(path: str | os.PathLike[str]) -> CheckpointInfo:
    """Return what a checkpoint holds; only its manifest is read.

    Parameters
    ----------
    path : path
        A step directory, or a root, of which the newest step is taken.

    Returns
    -------
    CheckpointInfo

    Raises
    ------
    CorruptCheckpointError
        If the manifest is damaged.
    ShardcoreOSError
        If there is no checkpoint or it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from shardcore.checkpoint import Checkpoint, inspect
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Checkpoint(dense={"w": np.zeros((3, 2)), "names": np.array(["a"])}).save(root, 12)
    ...     for name, tensor in inspect(root).objects["dense"].tensors.items():
    ...         print(name, tensor)
    names TensorInfo(shape=(1,), dtype='U1', num_boxes=1)
    w TensorInfo(shape=(3, 2), dtype='float64', num_boxes=1)
    """
    with OpenStep(path) as saved:
        manifest = saved.manifest
        return CheckpointInfo(
            saved.path,
            manifest.step,
            manifest.shardcore_version,
            {
                name: ObjectInfo(
                    record.metadata,
                    {
                        key: TensorInfo(tensor.shape, tensor.stored.name, len(tensor.boxes))
                        for key, tensor in record.tensors.items()
                    },
                )
                for name, record in manifest.objects.items()
            },
            {name: sums.size for name, sums in manifest.files.items()},
        )


def verify(path: str | os.PathLike[str]) -> None:
    r"""Read every byte of a checkpoint, and raise at the first damage.

    Parameters
    ----------
    path : path
        A step directory, or a root, of which the newest step is taken.

    Raises
    ------
    CorruptCheckpointError
        Naming the file and the block, or the field of the manifest.
    ShardcoreOSError
        If there is no checkpoint or it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from shardcore.checkpoint import Checkpoint, verify
    >>> with tempfile.TemporaryDirectory() as root:
    ...     path = Checkpoint(dense=np.ones(3)).save(root, 12)
    ...     verify(path)
    ...     file = path / "dense-00000-of-00001.safetensors"
    ...     _ = file.write_bytes(file.read_bytes().replace(b"\xf0\x3f", b"\xf1\x3f", 1))
    ...     try:
    ...         verify(path)
    ...     except OSError as error:
    ...         print(str(error).rpartition(".safetensors: ")[2])
    block 0 (bytes 0 to 24 of the data) does not match its checksum
    """
    with OpenStep(path) as saved:
        saved.verify()
