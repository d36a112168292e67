"""What a peer is: it answers the tasks it can do, each with a `Contender`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from shardcore_bench.contender import Contender, UnableError
from shardcore_bench.tasks import (
    LookupTask,
    PartitionTask,
    ShardsTask,
    SliceTask,
    StepTask,
    VariableTask,
)

__all__ = ["Peer"]


class Peer(ABC):
    """Another library. Of a task that it cannot do, or not by our definition, it says why.

    A contender's inputs are already in the peer's own form, so that only the work is timed; its
    result can be turned into NumPy arrays in our form, so that it can be checked.

    Attributes
    ----------
    name : str
    modules : tuple of str
        What must be installed; the version is that of the last one.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]

    def missing(self) -> str | None:
        """Return why this peer cannot take part; None where it can."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"{module} is not installed"
        return None

    def version(self) -> str:
        """Return name and version, without importing the peer."""
        packages = importlib.metadata.packages_distributions().get(self.modules[-1], [])
        versions = {importlib.metadata.version(package) for package in packages}
        return " ".join((self.name, *sorted(versions)))

    @abstractmethod
    def set_num_threads(self, threads: int) -> None:
        """Let the peer use so many threads; called once, before it does anything."""

    def lookup(self, task: LookupTask) -> Contender:
        """Combine the rows of every bag."""
        raise self.unable("no such lookup")

    def lookups(self, tasks: Sequence[LookupTask]) -> Contender:
        """Combine the rows of every bag of several batches, one after the other, in one table."""
        raise self.unable("no lookups of several batches")

    def own_lookup(self, task: LookupTask) -> Contender:
        """Combine the rows of bags of one length as users of the framework write it."""
        raise self.unable("no door leads there")

    def own_step(self, task: StepTask) -> Contender:
        """Look up, and update every row that is named, as users of the framework write it."""
        raise self.unable("no door leads there")

    def step(self, task: StepTask) -> Contender:
        """Look up, and update every row that is named."""
        raise self.unable("no such step")

    def partition(self, task: PartitionTask) -> Contender:
        """Group ids by shard."""
        raise self.unable("no partition of ids")

    def decompose_slice(self, task: SliceTask) -> Contender:
        """Cut a slice of rows into slices of shards."""
        raise self.unable("no decomposition of slices")

    def read_slice(self, task: VariableTask) -> Contender:
        """Read a slice of a variable in shards."""
        raise self.unable("no variable in shards")

    def lookup_in_shards(self, task: ShardsTask) -> Contender:
        """Combine rows of a table in shards."""
        raise self.unable("no lookup in shards")

    def unable(self, reason: str) -> UnableError:
        """Return the error that says why a task is left out."""
        return UnableError(f"{self.name}: {reason}")
