"""Where the engine's operations on its tables run: at once, or on one thread behind the caller.

`Inline` runs an operation when it is submitted. `Pipeline` runs operations on a background thread,
one after the other in the order of their submission: so a lookup sees exactly the updates that were
submitted before it, and the results are those of `Inline`, while the caller goes on with his dense
work.

When an operation fails, those behind it do not run: the caller wrote them down in the belief that
it would not. The failure stays until it is taken.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shardcore.errors import ShardcoreRuntimeError

__all__ = ["Failure", "Inline", "Operations", "Pipeline", "Ticket"]


@dataclass(frozen=True)
class Failure:
    """An operation that failed in the background.

    Attributes
    ----------
    operation : str
        What the caller called.
    error : BaseException
    """

    operation: str
    error: BaseException

    def raised(self) -> ShardcoreRuntimeError:
        """Return the error to raise, with `error` as its cause."""
        error = ShardcoreRuntimeError(
            f"{self.operation} failed in the background, and what was called after it was dropped: "
            f"{type(self.error).__name__}: {self.error}"
        )
        error.__cause__ = self.error
        return error


class Ticket:
    """The claim to the result of an operation."""

    __slots__ = ("done", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None


class Operations(Protocol):
    """What runs the operations of an engine."""

    @property
    def failure(self) -> Failure | None:
        """What failed in the background and was not taken yet."""

    @property
    def in_background(self) -> bool:
        """Whether the thread that asks is one of the operations' own, behind the caller's."""

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Run `work` after all that was submitted before."""

    def result(self, ticket: Ticket) -> Any:
        """Wait for an operation and return its result, once, or raise what kept it from running."""

    def wait(self) -> None:
        """Wait for what was submitted so far."""

    def settle(self) -> None:
        """Wait for what was submitted so far; raise the failure, and leave it, if there is one."""

    def take_failure(self) -> Failure | None:
        """Return what failed, after which operations run again."""

    def stop(self) -> Failure | None:
        """Wait for everything, and return what failed and was not taken; no operation follows."""


class Inline:
    """Runs an operation in its `submit`, which raises what it raises.

    Examples
    --------
    >>> operations = Inline()
    >>> operations.result(operations.submit("a sum", lambda: 1 + 1))
    2
    """

    failure: Failure | None = None
    in_background = False

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Run `work`."""
        ticket = Ticket()
        ticket.value = work()
        ticket.done = True
        return ticket

    def result(self, ticket: Ticket) -> Any:
        """Return the result, once."""
        value, ticket.value = ticket.value, None
        return value

    def wait(self) -> None:
        """Nothing is ever waiting."""

    def settle(self) -> None:
        """Nothing is ever waiting."""

    def take_failure(self) -> Failure | None:
        """Return None: failures are raised where they happen."""
        return None

    def stop(self) -> Failure | None:
        """Return None: nothing is ever waiting."""
        return None


class _State:
    """What a pipeline shares with its thread, which must not keep the pipeline itself alive."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[Ticket, str, Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self.changed = threading.Condition()
        self.submitted = 0
        self.finished = 0
        self.failure: Failure | None = None


def _serve(state: _State) -> None:
    while True:
        item = state.queue.get()
        if item is None:
            return
        ticket, operation, work = item
        value, failure = None, state.failure
        if failure is None:
            try:
                value = work()
            except BaseException as error:  # raised in the caller's thread, by his next call
                failure = Failure(operation, error)
        with state.changed:
            ticket.done, ticket.value = failure is None, value
            state.failure = failure
            state.finished += 1
            state.changed.notify_all()
        del item, ticket, work, value, failure  # hold nothing while waiting


class Pipeline:
    """Runs operations on a thread of its own, in order; the thread starts with the first.

    `submit` and `take_failure` belong to one thread, the others may be called from any.

    Examples
    --------
    >>> operations = Pipeline()
    >>> ticket = operations.submit("a sum", lambda: 1 + 1)
    >>> operations.result(ticket)
    2
    >>> operations.stop()
    """

    def __init__(self) -> None:
        self._state = _State()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # An engine that nobody closed takes its thread with it.
        self._end = weakref.finalize(self, self._state.queue.put, None)

    @property
    def failure(self) -> Failure | None:
        """What failed in the background and was not taken yet."""
        return self._state.failure

    @property
    def in_background(self) -> bool:
        """Whether the thread that asks is the one that runs operations."""
        return threading.current_thread() is self._thread

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Let the thread run `work` after all that was submitted before."""
        self._check_process()
        if self._thread is None:
            self._process = os.getpid()
            self._thread = threading.Thread(
                target=_serve, args=(self._state,), name="shardcore-pipeline", daemon=True
            )
            self._thread.start()
        ticket = Ticket()
        with self._state.changed:
            self._state.submitted += 1
        self._state.queue.put((ticket, operation, work))
        return ticket

    def result(self, ticket: Ticket) -> Any:
        """Wait for an operation and return its result, once, or raise what kept it from running.

        Raises
        ------
        ShardcoreRuntimeError
            If it, or one before it, failed.
        """
        self._check_process()
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: ticket.done or state.failure is not None)
            if not ticket.done:
                assert state.failure is not None
                raise state.failure.raised()
        value, ticket.value = ticket.value, None
        return value

    def settle(self) -> None:
        """Wait for what was submitted so far; raise the failure, and leave it, if there is one.

        Raises
        ------
        ShardcoreRuntimeError
            If an operation failed.
        """
        self.wait()
        failure = self._state.failure
        if failure is not None:
            raise failure.raised()

    def take_failure(self) -> Failure | None:
        """Return what failed, after which operations run again; those behind it never will."""
        self.wait()
        failure, self._state.failure = self._state.failure, None
        return failure

    def stop(self) -> Failure | None:
        """Wait for everything, end the thread, and return what failed and was not taken.

        In a forked child there is no thread to end, and nothing is told: it is the parent's.
        """
        if self._thread is None or self._process != os.getpid():
            return None
        failure = self.take_failure()
        self._end()
        self._thread.join()
        return failure

    def wait(self) -> None:
        """Wait for what was submitted so far."""
        self._check_process()
        if self.in_background:  # what it runs comes in its turn anyway
            return
        state = self._state
        with state.changed:
            target = state.submitted
            state.changed.wait_for(lambda: state.finished >= target)

    def _check_process(self) -> None:
        if self._thread is not None and self._process != os.getpid():
            raise ShardcoreRuntimeError(
                f"the pipeline of this engine runs in process {self._process}, which was forked to "
                f"make this one, {os.getpid()}: make an engine of its own here"
            )
