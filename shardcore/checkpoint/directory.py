"""Step directories: their names, and how one becomes visible whole or not at all.

A step is built in ``ROOT/.tmp-<step>-<random>/``: every file is written, synced and its size
checked, the manifest comes last, the directory is synced, renamed to ``ROOT/step-<step>``, and ROOT
is synced. Rename onto a directory that holds something fails, so a step is never overwritten and
of several savers exactly one wins.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from shardcore.checkpoint.manifest import MANIFEST_NAME
from shardcore.checkpoint.safetensors import MAX_SIZE
from shardcore.errors import (
    CorruptCheckpointError,
    DurabilityUnknownError,
    NotCommittedError,
    ShardcoreError,
    ShardcoreOSError,
    ShardcoreTypeError,
    ShardcoreValueError,
)

__all__ = [
    "PendingStep",
    "as_path",
    "as_step",
    "latest",
    "open_regular",
    "step_directory",
    "step_in_name",
    "step_path",
    "steps",
]

_STEP_NAME: Final = re.compile(r"step-([0-9]{8,19})")
_PENDING_NAME: Final = re.compile(r"\.tmp-[0-9]{8,19}-[0-9a-f]{16}")
_ABANDONED_SECONDS: Final = 24 * 60 * 60


def as_path(path: object, argument: str) -> Path:
    """Return `path` as a Path, or raise a named error."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ShardcoreTypeError(f"{argument} must be a path, got {type(path).__name__}")
    text = os.fspath(path)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ShardcoreValueError(
            f"{argument} must be a path that the system can name, got {text[error.start]!r} at "
            f"position {error.start} of {text!r}"
        ) from error
    if "\0" in text:
        raise ShardcoreValueError(
            f"{argument} must be a path without NUL, got one at position {text.index(chr(0))} "
            f"of {text!r}"
        )
    return Path(text)


def as_step(step: object) -> int:
    """Return `step` as an int, or raise a named error."""
    if isinstance(step, bool) or not isinstance(step, int | np.integer):
        raise ShardcoreTypeError(f"step must be an integer, got {type(step).__name__}")
    if not 0 <= step <= MAX_SIZE:
        raise ShardcoreValueError(f"step must be in [0, 2**63), got {step}")
    return int(step)


def _step_name(step: int) -> str:
    return f"step-{step:08d}"


def step_path(root: Path, step: int) -> Path:
    """Return where a step of a root is, or would be."""
    return root / _step_name(step)


def step_in_name(name: str) -> int | None:
    """Return the step of a step directory's name, None for any other name.

    Examples
    --------
    >>> step_in_name("step-00000012")
    12
    >>> step_in_name("step-000000012") is None
    True
    """
    match = _STEP_NAME.fullmatch(name)
    if match is None or _step_name(int(match[1])) != name:
        return None
    return int(match[1])


def steps(root: str | os.PathLike[str]) -> list[int]:
    """Return the steps saved under `root`, in ascending order.

    Parameters
    ----------
    root : path
        The directory given to `Checkpoint.save`. One that does not exist holds no steps.

    Returns
    -------
    list of int
        Every committed step. Its content is not read: see `verify`.

    Raises
    ------
    ShardcoreOSError
        If `root` is no directory or cannot be listed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from shardcore.checkpoint import Checkpoint, steps
    >>> with tempfile.TemporaryDirectory() as root:
    ...     checkpoint = Checkpoint(dense=np.zeros(3))
    ...     for step in (20, 3):
    ...         _ = checkpoint.save(root, step)
    ...     steps(root)
    [3, 20]
    """
    directory = as_path(root, "root")
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ShardcoreOSError(f"root {directory} cannot be listed: {error}") from error
    return sorted(step for step in map(step_in_name, names) if step is not None)


def latest(root: str | os.PathLike[str]) -> Path:
    """Return the directory of the newest step under `root`.

    A newest step that is damaged is returned all the same, and reading it raises: whether to go
    back to an older one is the caller's decision.

    Parameters
    ----------
    root : path
        The directory given to `Checkpoint.save`.

    Returns
    -------
    pathlib.Path
        The step directory.

    Raises
    ------
    ShardcoreOSError
        If there is no step, or `root` cannot be listed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from shardcore.checkpoint import Checkpoint, latest
    >>> with tempfile.TemporaryDirectory() as root:
    ...     _ = Checkpoint(dense=np.zeros(3)).save(root, 12)
    ...     latest(root).name
    'step-00000012'
    """
    directory = as_path(root, "root")
    found = steps(directory)
    if not found:
        raise ShardcoreOSError(f"root {directory} holds no step")
    return directory / _step_name(found[-1])


def step_directory(path: object) -> Path:
    """Return the step directory that `path` is, or the newest one of the root that it is."""
    directory = as_path(path, "path")
    named = step_in_name(directory.name) is not None
    if named or os.path.lexists(directory / MANIFEST_NAME):
        return directory
    return latest(directory)


def open_regular(directory: int, name: str, label: str) -> int:
    """Open the regular file `name` of an open directory; links, FIFOs and the like are refused."""
    try:
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError as error:
        raise CorruptCheckpointError(f"{label}: is missing") from error
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise CorruptCheckpointError(f"{label}: is not a regular file") from error
        raise ShardcoreOSError(f"{label}: cannot be opened: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptCheckpointError(f"{label}: is not a regular file")
    return descriptor


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _DurableFile:
    """A new file of which every byte that was written is known to have reached the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def write(self, data: memoryview) -> None:
        while data:
            count = os.write(self._descriptor, data)
            self._written += count
            data = data[count:]

    def sync(self) -> None:
        os.fsync(self._descriptor)
        # A device that loses writes may report every one of them as done.
        size = os.fstat(self._descriptor).st_size
        if size != self._written:
            raise OSError(
                errno.EIO, f"{self._written} bytes were written, the file has {size}", self._path
            )

    def close(self) -> None:
        os.close(self._descriptor)


class PendingStep:
    """A step being built; a context that leaves nothing behind unless it was published.

    Parameters
    ----------
    root : Path
        Created if missing.
    step : int

    Raises
    ------
    NotCommittedError
        From the context, for an OSError before the rename.
    DurabilityUnknownError
        If `root` could not be synced after it.
    """

    def __init__(self, root: Path, step: int) -> None:
        self.final = step_path(root, step)
        self._root = root
        self._step = step
        self._path = root / f".tmp-{step:08d}-{secrets.token_hex(8)}"

    def __enter__(self) -> PendingStep:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            shutil.rmtree(self._path)
        except FileNotFoundError:
            pass  # published, or never begun
        except OSError as remains:
            if error is not None:
                error.add_note(f"{self._path} could not be removed: {remains}")
        if isinstance(error, OSError) and not isinstance(error, ShardcoreError):
            failure = NotCommittedError(
                f"step {self._step} was not committed to {self._root}: {error}"
            )
            failure.errno = error.errno
            raise failure from error

    def begin(self) -> None:
        """Make the temporary directory, and sweep what killed savers left long ago."""
        _make_root(self._root)
        _sweep(self._root)
        os.mkdir(self._path)

    @contextmanager
    def create(self, name: str) -> Iterator[_DurableFile]:
        """Open a new file of the step; it is synced and checked when the context ends well."""
        file = _DurableFile(self._path / name)
        try:
            yield file
            file.sync()
        finally:
            file.close()

    def publish(self) -> bool:
        """Make the step visible; return False, changing nothing, where it exists already."""
        _sync_directory(self._path)
        # Rename would replace an empty directory, and may not say why it refuses another thing.
        if os.path.lexists(self.final):
            return False
        try:
            os.rename(self._path, self.final)
        except OSError as error:
            if not os.path.lexists(self._path):  # a network file system may answer too late
                raise self._unknown(error) from error
            if os.path.lexists(self.final):
                return False
            raise
        self.confirm()
        return True

    def confirm(self) -> None:
        """Sync `root`, so that the step which is visible in it stays visible."""
        try:
            _sync_directory(self._root)
        except OSError as error:
            raise self._unknown(error) from error

    def _unknown(self, error: OSError) -> DurabilityUnknownError:
        failure = DurabilityUnknownError(
            f"step {self._step} is visible in {self._root}, but the disk did not confirm that it "
            f"will stay: {error}; saving the same content again is safe"
        )
        failure.errno = error.errno
        return failure


def _make_root(root: Path) -> None:
    missing: list[Path] = []
    at = root.absolute()
    while not at.exists():
        missing.append(at)
        at = at.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)  # another saver may have been faster
        _sync_directory(directory.parent)


def _sweep(root: Path) -> None:
    """Remove pending directories without a write for a day."""
    abandoned = time.time() - _ABANDONED_SECONDS
    for entry in list(os.scandir(root)):
        if not _PENDING_NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            times = [os.lstat(entry.path).st_mtime]
            times += [os.lstat(child).st_mtime for child in Path(entry.path).iterdir()]
        except FileNotFoundError:  # its saver has just published or removed it
            continue
        if max(times) < abandoned:
            # Readers never see these, and another saver may be sweeping the same one.
            shutil.rmtree(entry.path, ignore_errors=True)
