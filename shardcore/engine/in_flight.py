"""The batches that were looked up and have not ended yet, and which call comes to which of them.

Some are in the hands of a caller, who holds a `Pending` by its handle; the others wait in line for
`dequeue` and `apply_gradients`. The first kind is known here by weak references alone: one that its
caller lets go is collected, and with it goes all that it holds. The reference is then taken out by
a call of C, in whatever thread the collector runs: no lock, no bytecode, nothing to interrupt.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from shardcore.backend.messages import TableBatch
from shardcore.errors import ShardcoreRuntimeError
from shardcore.features.prepared import PreparedFeature
from shardcore.threads.work import Ticket, set_once

__all__ = ["APPLIED", "DROPPED", "FAILED", "READ", "REFUSED", "RESTORED", "Batch", "PreparedBatch"]
__all__ += ["BatchesInFlight", "Pending"]

APPLIED: Final = "a second time for one lookup"
READ: Final = "for a lookup of training=False"
DROPPED: Final = "for a lookup that was dropped"
FAILED: Final = "for a lookup that was dropped when an earlier call failed"
REFUSED: Final = "for a lookup that was dropped when an update was refused"
RESTORED: Final = "for a lookup that was dropped by a restore"
"""How a lookup ends, as a message says it of a call that came later."""


_READABLE: Final = (APPLIED, READ)
"""Ends after which activations may still be asked for."""


class Batch(Protocol):
    """A batch, as a step needs it: as it was prepared, or `GivenBatch`."""

    @property
    def prepared(self) -> list[PreparedFeature]:
        """Its features."""

    @property
    def tables(self) -> list[TableBatch]:
        """What backends are given of it."""

    @property
    def winners(self) -> dict[int, NDArray[Any]]:
        """As in `PreparedBatch`."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class PreparedBatch:
    """A batch as it was prepared.

    Attributes
    ----------
    prepared : list of PreparedFeature
    tables : list of TableBatch
    winners : dict of int -> ndarray of int
        By feature, of those with ``max_splits``: which occurrence has each greatest value. Known
        once a batch for training is looked up.
    """

    prepared: list[PreparedFeature]
    tables: list[TableBatch]
    winners: dict[int, NDArray[Any]] = field(default_factory=dict)


class Pending:
    """A batch from its lookup to its end.

    Attributes
    ----------
    batch : Batch or None
        None once it has ended.
    training : bool
        Whether gradients will follow.
    lookup : Ticket or None
        Of its activations per feature; None once nobody can ask for them any more.
    ended : str
        How it ended; empty before. Set in one store, and only once, before anything is let go.
    """

    __slots__ = ("__weakref__", "batch", "ended", "lookup", "training")

    def __init__(self, batch: Batch, lookup: Ticket, training: bool) -> None:
        self.batch: Batch | None = batch
        self.lookup: Ticket | None = lookup
        self.training = training
        self.ended = ""

    @property
    def readable(self) -> bool:
        """Whether its activations may be asked for."""
        return self.ended in ("", *_READABLE)

    def end(self, how: str) -> None:
        """Let go of what it holds, activations that may be asked for still excepted.

        Needs no lock: one that ended some other way stays so, and a call that is under way goes on.
        """
        if not self.ended:
            self.ended = how
        self.batch = None
        if not self.readable:
            self.lookup = None

    def ending(self, how: str) -> list[Callable[[], object]]:
        """Return the calls that end one that has not ended yet, compiled and in this order.

        Its caller may drop it before they are made.
        """
        calls: list[Callable[[], object]] = [
            partial(set_once, self, "ended", how),
            partial(setattr, self, "batch", None),
        ]
        if how not in _READABLE:
            calls.append(partial(setattr, self, "lookup", None))
        return calls


class BatchesInFlight:
    """Those in the hands of callers, and those in line. They belong to one process.

    Parameters
    ----------
    limit : int
        How many there may be in line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: list[Pending] = []
        self._held: set[weakref.ref[Pending]] = set()
        self._process = os.getpid()
        self._left = ""  # what a message says of those in line that were left to the parent

    def __len__(self) -> int:
        self._leave_to_parent()
        return len(self._line) + sum(not pending.ended for pending in self._all_held())

    def _all_held(self) -> list[Pending]:
        # A copy, made in one go: the collector may take one out at any time.
        found = [known() for known in self._held.copy()]
        return [pending for pending in found if pending is not None]

    def _leave_to_parent(self) -> None:
        """Let go, in a forked child, of what was in flight at the fork."""
        if self._process == os.getpid():
            return
        whose = f"belongs to process {self._process}, which made this one, {os.getpid()}"
        if self._line:
            self._left = f" here: what was in flight at the fork {whose}"
        self._line = []
        self.end_held(f"for a lookup that {whose}")
        self._process = os.getpid()

    # --- in the hands of a caller ----------------------------------------------------------------

    def hold(self, pending: Pending) -> None:
        """Count one that its caller holds, until it ends or is collected."""
        self._leave_to_parent()
        self._held.add(weakref.ref(pending, self._held.discard))

    def batch_of(self, call: str, pending: Pending) -> Batch:
        """Return the batch of one that waits for its gradients.

        Raises
        ------
        ShardcoreRuntimeError
            If gradients cannot come any more, or never could.
        """
        self._leave_to_parent()
        batch = pending.batch  # first: it goes after `ended` is set
        if not pending.training:
            raise ShardcoreRuntimeError(f"{call} came for a batch of training=False")
        if pending.ended:
            raise _too_late(call, pending)
        assert batch is not None, "a batch goes when it has ended"
        return batch

    def lookup_of(self, call: str, pending: Pending) -> Ticket:
        """Return the ticket of the activations of one that was not dropped.

        Raises
        ------
        ShardcoreRuntimeError
            If it was.
        """
        self._leave_to_parent()
        lookup = pending.lookup
        if not pending.readable:
            raise _too_late(call, pending)
        assert lookup is not None, "activations go when they were dropped"
        return lookup

    def end_held(self, how: str) -> None:
        """End all that callers hold."""
        for pending in self._all_held():
            pending.end(how)

    # --- in line: first in, first out ------------------------------------------------------------

    @property
    def in_line(self) -> int:
        """How many wait for `dequeue` or `apply_gradients`."""
        self._leave_to_parent()
        return len(self._line)

    def check_room(self) -> None:
        """Raise unless one more may be enqueued."""
        self._leave_to_parent()
        if len(self._line) < self._limit:
            return
        what = "apply_gradients (apply_gradients(None) drops it)"
        oldest = self._line[0]
        waits = f"waits for {what if oldest.lookup is None else 'dequeue'}"
        raise ShardcoreRuntimeError(
            f"enqueue came while the last batch {waits}"
            if self._limit == 1
            else f"enqueue came while {self._limit} batches are in flight: the oldest {waits}"
        )

    def enqueue(self, pending: Pending) -> None:
        """Take one into the line."""
        self._left = ""
        self._line.append(pending)

    def to_dequeue(self) -> Pending:
        """Return the oldest in line whose activations were not handed out.

        Raises
        ------
        ShardcoreRuntimeError
            If there is none.
        """
        self._leave_to_parent()
        for pending in self._line:
            if pending.lookup is not None:
                return pending
        raise ShardcoreRuntimeError(f"dequeue came without a batch{self._left}: enqueue one first")

    def to_apply(self) -> Pending:
        """Return the oldest in line that is for training, whose activations were handed out.

        Raises
        ------
        ShardcoreRuntimeError
            If there is none.
        """
        self._leave_to_parent()
        if not self._line:
            raise ShardcoreRuntimeError(
                f"apply_gradients came without a training batch{self._left}: "
                "enqueue and dequeue one first"
            )
        for pending in self._line:
            if pending.training:
                if pending.lookup is not None:
                    raise ShardcoreRuntimeError("apply_gradients came before dequeue")
                return pending
        raise ShardcoreRuntimeError("apply_gradients came for a batch of training=False")

    def handed_out(self, pending: Pending) -> None:
        """Note that one was dequeued; without training it ends with that.

        In one store to a list or an attribute, which no interrupt splits.
        """
        if pending.training:
            pending.lookup = None
        else:
            self._line.remove(pending)

    # --- ends ------------------------------------------------------------------------------------

    def ending(self, pending: Pending, how: str) -> list[Callable[[], object]]:
        """Return the calls that end one, in line or not: as `Pending.ending`."""
        calls = pending.ending(how)
        if pending in self._line:
            calls.append(partial(self._line.remove, pending))
        return calls

    def end_all(self, how: str) -> None:
        """End all."""
        self._line.clear()
        self.end_held(how)


def _too_late(call: str, pending: Pending) -> ShardcoreRuntimeError:
    return ShardcoreRuntimeError(f"{call} came {pending.ended}: look the batch up again")
