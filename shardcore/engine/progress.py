"""How far an engine is: steps handed over, steps done, and what is taken back of them.

An update may turn out later to have done nothing: an operation in the background fails, or a
backend finds on its device that a gradient was not finite. The next call is told; what was counted
of such updates is set right first, and the batches in flight are dropped. Updates that reached the
backend after a refused one stand, with the step numbers that they were given; the next one goes on
from how many were applied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shardcore.backend.base import Backend
from shardcore.engine.gradients import described
from shardcore.engine.in_flight import FAILED, REFUSED, RESTORED, BatchesInFlight
from shardcore.engine.life import Life
from shardcore.engine.pipeline import Failure, Operations, Ticket
from shardcore.errors import ShardcoreError, ShardcoreRuntimeError, UpdateRefusedError
from shardcore.threads.work import uninterrupted

__all__ = ["Progress"]


class Progress:
    """The steps of an engine, and its operations and batches in flight where one of them failed.

    Parameters
    ----------
    backend : Backend
    operations : Operations
    in_flight : BatchesInFlight
    life : Life

    Attributes
    ----------
    handed_over : int
        Steps of the batches handed over, restored ones included.
    applied : int
        Of those that are done.
    """

    def __init__(
        self,
        backend: Backend,
        operations: Operations,
        in_flight: BatchesInFlight,
        life: Life,
    ) -> None:
        self._backend = backend
        self._operations = operations
        self._in_flight = in_flight
        self._life = life
        self._reports = backend.capabilities.device_arrays  # of updates that did nothing
        self._begun = 0  # where this engine's own steps begin
        self.handed_over = 0
        self.applied = 0

    @property
    def step(self) -> int:
        """How many batches were applied, restored ones and those on their way included."""
        return self.applied if self._operations.of_parent else self.handed_over

    @property
    def own_steps(self) -> int:
        """How many batches this engine itself has applied."""
        return self.applied - self._begun

    def counting_one(self) -> list[Callable[[], object]]:
        """Return the calls that count a step that is handed over and done with them, compiled."""
        return [
            partial(setattr, self, "handed_over", self.handed_over + 1),
            partial(setattr, self, "applied", self.applied + 1),
        ]

    def restored(self, step: int) -> None:
        """Go on from the step of a checkpoint; what callers hold was looked up in other rows."""
        self._begun += step - self.applied
        self.handed_over = self.applied = step
        self._in_flight.end_held(RESTORED)

    def drop_all(self, how: str) -> None:
        """Drop what is in flight; what was handed over and is not done never will be."""
        self._in_flight.end_all(how)
        self.handed_over = self.applied

    # --- updates that a backend refused ----------------------------------------------------------

    def check_updates(self, wait: bool) -> None:
        """Raise if updates did nothing, having set right what was counted of them.

        In the background that is all; the failure that comes of it drops what is in flight.

        Parameters
        ----------
        wait : bool
            As in `Backend.check_updates`.

        Raises
        ------
        UpdateRefusedError
        """
        if not self._reports:
            return
        report = self._backend.check_updates(wait)
        if report is None:
            return
        if self._operations.in_background:
            self.applied -= report.updates
        else:  # the caller may be a thread that only looks up
            self._life.between(self._undo, report.updates)
        raise UpdateRefusedError(described(report))

    def _undo(self, updates: int) -> None:
        self._operations.wait()
        uninterrupted(self._uncount, updates)

    def _uncount(self, updates: int) -> None:
        self.applied -= updates
        self.drop_all(REFUSED)

    def settled(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call to the backend once everything before it is done, and known to be."""
        self._operations.settle()
        if self._reports:
            self.check_updates(wait=True)
        return call(*arguments)

    # --- operations that failed in the background ------------------------------------------------

    def check_failure(self) -> None:
        """Raise what failed before, having dropped what is in flight.

        Raises
        ------
        ShardcoreRuntimeError
        """
        failure = self._operations.failure
        if failure is not None:
            raise self._dropped(failure)

    def result(self, ticket: Ticket) -> Any:
        """Return the result of an operation, or raise as `check_failure`."""
        try:
            return self._operations.result(ticket)
        except ShardcoreRuntimeError:
            failure = self._operations.failure
            if failure is None:
                raise
        raise self._dropped(failure)

    def _dropped(self, failure: Failure) -> ShardcoreRuntimeError:
        self._operations.wait()
        uninterrupted(self._take_failure)
        return failure.raised()

    def _take_failure(self) -> None:
        self._operations.take_failure()
        self.drop_all(FAILED)

    def unsaid(self, give_back: Callable[[], None]) -> ShardcoreError | None:
        """Drop all, call `give_back`, and return what no call was there to raise.

        Parameters
        ----------
        give_back : callable
            Called once nothing is in flight, before the backend is asked a last time.
        """
        failure = self._operations.take_failure()
        error: ShardcoreError | None = None if failure is None else failure.raised()
        self.drop_all(FAILED)
        give_back()
        try:
            self.check_updates(wait=True)
        except UpdateRefusedError as refusal:
            if error is None:
                error = refusal
            else:
                error.add_note(str(refusal))
        return error
