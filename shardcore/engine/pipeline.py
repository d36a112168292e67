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
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from shardcore.errors import ShardcoreRuntimeError
from shardcore.threads.work import Line, Ticket, uninterrupted

__all__ = ["Failure", "Inline", "Operations", "Pipeline", "Ticket"]


@dataclass(frozen=True)
class Failure:
    """An operation that failed in the background.

    Attributes
    ----------
    operation : str
        The name of the caller's call.
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


class Operations(Protocol):
    """The runner of an engine's operations."""

    @property
    def failure(self) -> Failure | None:
        """The failure in the background that was not taken yet."""

    @property
    def in_background(self) -> bool:
        """Whether the current thread is one of the operations' own, behind the caller's."""

    @property
    def of_parent(self) -> bool:
        """Whether the operations run in a process that was forked to make this one."""

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Run `work` after all that was submitted before."""

    def change(self, operation: str, work: Callable[[], Any], booked: Callable[[], None]) -> Ticket:
        """Run `work`, which changes tables, as `submit`, and `booked` once nothing can prevent it.

        Both, or neither: no interrupt comes between, or inside one of them.
        """

    def result(self, ticket: Ticket) -> Any:
        """Wait for an operation and return its result, or raise what kept it from running."""

    def wait(self) -> None:
        """Wait for what was submitted so far."""

    def settle(self) -> None:
        """Wait for what was submitted so far; raise the failure, and leave it, if there is one."""

    def take_failure(self) -> Failure | None:
        """Return what failed, after which operations run again."""

    def stop(self) -> None:
        """Wait for everything; no operation follows. May be called again where it was cut short."""


class Inline:
    """Runs an operation in its `submit`, which raises what it raises.

    Parameters
    ----------
    changing : callable, optional
        Makes a change, ``changing(function, *arguments)``: `Backend.change`.

    Examples
    --------
    >>> operations = Inline()
    >>> operations.result(operations.submit("a sum", lambda: 1 + 1))
    2
    """

    failure: Failure | None = None
    in_background = False
    of_parent = False

    def __init__(self, changing: Callable[..., Any] = uninterrupted) -> None:
        self._changing = changing

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Run `work`."""
        ticket = Ticket()
        ticket.value = work()
        ticket.done = True
        return ticket

    def change(self, operation: str, work: Callable[[], Any], booked: Callable[[], None]) -> Ticket:
        """Run `work` and, unless it raises, `booked`."""
        ticket: Ticket = self._changing(self._change, operation, work, booked)
        return ticket

    def _change(
        self, operation: str, work: Callable[[], Any], booked: Callable[[], None]
    ) -> Ticket:
        ticket = self.submit(operation, work)
        booked()
        return ticket

    def result(self, ticket: Ticket) -> Any:
        """Return the result."""
        return ticket.value

    def wait(self) -> None:
        """Nothing is ever waiting."""

    def settle(self) -> None:
        """Nothing is ever waiting."""

    def take_failure(self) -> Failure | None:
        """Return None: failures are raised where they happen."""
        return None

    def stop(self) -> None:
        """Nothing is ever waiting."""


class Pipeline:
    """Runs operations on a thread of its own, in order; the thread starts with the first.

    `submit`, `change` and `take_failure` are called one at a time, the others at any time.

    Examples
    --------
    >>> operations = Pipeline()
    >>> ticket = operations.submit("a sum", lambda: 1 + 1)
    >>> operations.result(ticket)
    2
    >>> operations.stop()
    """

    def __init__(self) -> None:
        self._line = Line()  # the thread must not keep the pipeline itself alive
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        # An engine that was not closed takes its thread with it.
        self._end = weakref.finalize(self, self._line.end)

    @property
    def failure(self) -> Failure | None:
        """The failure in the background that was not taken yet."""
        failure = None if self.of_parent else self._line.failure
        return None if failure is None else Failure(*failure)

    @property
    def in_background(self) -> bool:
        """Whether the current thread is the one that runs operations."""
        return self._line.is_served_here()

    @property
    def of_parent(self) -> bool:
        """Whether the thread runs in a process that was forked to make this one."""
        return self._thread is not None and self._process != os.getpid()

    def submit(self, operation: str, work: Callable[[], Any]) -> Ticket:
        """Let the thread run `work` after all that was submitted before."""
        self._start()
        return self._line.put(operation, work)

    def change(self, operation: str, work: Callable[[], Any], booked: Callable[[], None]) -> Ticket:
        """Let the thread run `work` in its turn, as a change that forks wait for; call `booked`."""
        self._start()

        def put() -> Ticket:
            ticket = self._line.put(operation, lambda: uninterrupted(work))
            booked()
            return ticket

        return uninterrupted(put)

    def _start(self) -> None:
        self._check_process()
        if self._thread is None:
            self._process = os.getpid()
            thread = threading.Thread(
                target=self._line.serve, name="shardcore-pipeline", daemon=True
            )
            # Cut short here, the thread may run unknown to us: a line lets no second one serve.
            thread.start()
            self._thread = thread

    def result(self, ticket: Ticket) -> Any:
        """Wait for an operation and return its result, or raise what kept it from running.

        Raises
        ------
        ShardcoreRuntimeError
            If it, or one before it, failed.
        """
        self._check_process()
        self._line.wait(ticket)
        if not ticket.done:
            failure = self.failure
            assert failure is not None, "an operation ends, or one before it has failed"
            raise failure.raised()
        return ticket.value

    def settle(self) -> None:
        """Wait for what was submitted so far; raise the failure, and leave it, if there is one.

        Raises
        ------
        ShardcoreRuntimeError
            If an operation failed.
        """
        self.wait()
        failure = self.failure
        if failure is not None:
            raise failure.raised()

    def take_failure(self) -> Failure | None:
        """Return what failed, after which operations run again; those behind it never will."""
        if self.of_parent:
            return None
        self.wait()
        failure = self._line.take_failure()
        return None if failure is None else Failure(*failure)

    def stop(self) -> None:
        """Wait for everything, and end the thread; what failed can still be taken.

        In a forked child there is no thread to end, and no failure: it is the parent's.
        """
        if self._thread is not None and not self.of_parent:
            self._line.end()
            self._line.wait()
            self._thread.join()
            self._end.detach()

    def wait(self) -> None:
        """Wait for what was submitted so far."""
        self._check_process()
        if not self.in_background:  # what that thread runs comes in its turn anyway
            self._line.wait()

    def _check_process(self) -> None:
        if self.of_parent:
            raise ShardcoreRuntimeError(
                f"the pipeline of this engine runs in process {self._process}, which was forked to "
                f"make this one, {os.getpid()}: make an engine of its own here"
            )
