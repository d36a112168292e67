"""The batches between `enqueue` and their end, and which call comes to which of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from shardcore.backend.messages import TableBatch
from shardcore.errors import ShardcoreRuntimeError
from shardcore.features.prepare import PreparedFeature
from shardcore.store.work import Ticket

__all__ = ["Batch", "BatchesInFlight"]


@dataclass(eq=False)
class Batch:
    """A batch between `enqueue` and its end.

    Attributes
    ----------
    prepared : list of PreparedFeature
    tables : list of TableBatch
    training : bool
        Whether gradients will follow.
    lookup : Ticket or None
        Of its activations per feature; None once they were handed out.
    """

    prepared: list[PreparedFeature]
    tables: list[TableBatch]
    training: bool
    lookup: Ticket | None = None

    @property
    def dequeued(self) -> bool:
        """Whether its activations were handed out."""
        return self.lookup is None


class BatchesInFlight:
    """First in, first out. Those of a process belong to it, not to one that it forks.

    Parameters
    ----------
    limit : int
        How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._batches: list[Batch] = []
        self._process = os.getpid()
        self._left = ""  # what a message says of those that were left to the parent

    def __len__(self) -> int:
        self._leave_to_parent()
        return len(self._batches)

    def _leave_to_parent(self) -> None:
        """Let go, in a forked child, of what was in flight at the fork."""
        if self._process == os.getpid():
            return
        if self._batches:
            self._left = (
                f" here: what was in flight at the fork belongs to process {self._process}, which "
                f"made this one, {os.getpid()}"
            )
        self._batches = []
        self._process = os.getpid()

    def check_room(self) -> None:
        """Raise unless one more may be enqueued."""
        self._leave_to_parent()
        if len(self._batches) < self._limit:
            return
        what = "apply_gradients (apply_gradients(None) drops it)"
        oldest = self._batches[0]
        waits = f"waits for {what if oldest.dequeued else 'dequeue'}"
        raise ShardcoreRuntimeError(
            f"enqueue came while the last batch {waits}"
            if self._limit == 1
            else f"enqueue came while {self._limit} batches are in flight: the oldest {waits}"
        )

    def add(self, batch: Batch) -> None:
        """Take a batch in."""
        self._left = ""
        self._batches.append(batch)

    def to_dequeue(self) -> Batch:
        """Return the oldest batch whose activations were not handed out.

        Raises
        ------
        ShardcoreRuntimeError
            If there is none.
        """
        self._leave_to_parent()
        for batch in self._batches:
            if not batch.dequeued:
                return batch
        raise ShardcoreRuntimeError(f"dequeue came without a batch{self._left}: enqueue one first")

    def to_apply(self) -> Batch:
        """Return the oldest training batch, which was dequeued.

        Raises
        ------
        ShardcoreRuntimeError
            If there is none.
        """
        self._leave_to_parent()
        if not self._batches:
            raise ShardcoreRuntimeError(
                f"apply_gradients came without a training batch{self._left}: "
                "enqueue and dequeue one first"
            )
        for batch in self._batches:
            if batch.training:
                if not batch.dequeued:
                    raise ShardcoreRuntimeError("apply_gradients came before dequeue")
                return batch
        raise ShardcoreRuntimeError("apply_gradients came for a batch of training=False")

    def handed_out(self, batch: Batch) -> None:
        """Note that a batch was dequeued; one without training ends with it.

        In one store to a list or an attribute, which no interrupt splits.
        """
        if batch.training:
            batch.lookup = None
        else:
            self.remove(batch)

    def remove(self, batch: Batch) -> None:
        """Let a batch go."""
        self._batches.remove(batch)

    def clear(self) -> None:
        """Let all go."""
        self._batches.clear()
