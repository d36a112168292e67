"""Many readers or one writer: what makes a lookup see each row wholly before or after an update."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """A lock that readers share and a writer has alone. A waiting writer goes before new readers.

    Not re-entrant.

    Examples
    --------
    >>> lock = ReadWriteLock()
    >>> with lock.reading():
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._readers = 0
        self._readers_waiting = 0
        self._writing = False
        self._writers_waiting = 0
        self._reading_held, self._writing_held = _Reading(self), _Writing(self)

    def reading(self) -> AbstractContextManager[None]:
        """Return what holds the lock together with other readers."""
        return self._reading_held

    def writing(self) -> AbstractContextManager[None]:
        """Return what holds the lock alone."""
        return self._writing_held

    def begin_reading(self) -> None:
        """Wait until no writer has the lock or waits for it, and join its readers."""
        with self._lock:
            if self._writing or self._writers_waiting:
                self._readers_waiting += 1
                try:
                    while self._writing or self._writers_waiting:
                        self._condition.wait()
                finally:
                    self._readers_waiting -= 1
            self._readers += 1

    def end_reading(self) -> None:
        """Leave the readers."""
        with self._lock:
            self._readers -= 1
            if not self._readers and self._writers_waiting:
                self._condition.notify_all()

    def begin_writing(self) -> None:
        """Wait until nobody has the lock, and take it."""
        with self._lock:
            if self._writing or self._readers:
                self._writers_waiting += 1
                try:
                    while self._writing or self._readers:
                        self._condition.wait()
                except BaseException:
                    self._condition.notify_all()  # readers wait for the writer that gave up
                    raise
                finally:
                    self._writers_waiting -= 1
            self._writing = True

    def end_writing(self) -> None:
        """Give the lock back."""
        with self._lock:
            self._writing = False
            if self._readers_waiting or self._writers_waiting:
                self._condition.notify_all()


class _Reading:
    """What a ``with`` of a reader enters. It has no state of its own, so one serves all threads."""

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_reading()

    def __exit__(self, *error: object) -> None:
        self._lock.end_reading()


class _Writing:
    """The same of a writer."""

    def __init__(self, lock: ReadWriteLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_writing()

    def __exit__(self, *error: object) -> None:
        self._lock.end_writing()
