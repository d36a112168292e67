"""The life of an engine: which calls may come when, and which of them its end waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardcore.errors import ShardcoreRuntimeError
from shardcore.store.lock import ReadWriteLock, call_inside, is_inside

__all__ = ["Life"]


class Life:
    """Open, then closed.

    Attributes
    ----------
    closed : bool
        Whether the tables were given back.
    closing : bool
        Whether they were, or are about to be: no call begins any more.
    lock : ReadWriteLock
        Of calls that use the tables, which read, and of the end, which writes.

    Examples
    --------
    >>> life = Life()
    >>> life.using("a sum", max, 3, 5)
    5
    """

    def __init__(self) -> None:
        self.lock = ReadWriteLock()
        self.closing = False
        self.closed = False

    def using(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)`` while the engine is open; `close` waits for it."""
        if is_inside(self):
            self.check_callback(call)
        return self.lock.read(self._open_call, call, function, arguments)

    def _open_call(
        self, call: str, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        if self.closing:
            self.check_open(call)
        return function(*arguments)

    def viewing(self, call: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which says itself that the engine was closed."""
        if is_inside(self):
            self.check_callback(call)
        return self.lock.read(function, *arguments)

    def inside(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which may call back; `is_inside` is true meanwhile."""
        return call_inside(self, function, *arguments)

    def is_inside(self) -> bool:
        """Return whether this code was called back from a call of the engine."""
        return is_inside(self)

    def check_open(self, call: str) -> None:
        """Raise if the engine is closed, or about to be."""
        if self.closing:
            raise ShardcoreRuntimeError(f"{call} came after close: the tables are gone")

    def check_callback(self, call: str) -> None:
        """Raise where a call of the engine has called back."""
        if is_inside(self):
            raise ShardcoreRuntimeError(
                f"{call} came from inside another call of this engine: an optimizer, a learning "
                "rate or an initializer must not call the engine it works for"
            )

    def end(
        self,
        stop: Callable[[], None],
        change: Callable[..., Any],
        give_back: Callable[[], Any],
    ) -> Any:
        """Call ``change(give_back)`` once no other call uses the tables; None if that was done.

        No new call begins from now on. If cut short, it can be done again.

        Parameters
        ----------
        stop : callable
            Waits for what goes on in the background.
        change : callable
            `Backend.change`.
        give_back : callable
            Sets `closed`.
        """
        self.check_callback("close")
        if self.closed:
            return None
        self.closing = True
        stop()
        return self.lock.write(change, self._once, give_back)

    def _once(self, give_back: Callable[[], Any]) -> Any:
        return None if self.closed else give_back()  # another thread has closed it meanwhile
