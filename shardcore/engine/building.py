"""The creation of an engine's tables: all of them or none, by a build or by a restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from shardcore.backend.base import Backend
from shardcore.backend.messages import TableSpec
from shardcore.errors import ShardcoreRuntimeError
from shardcore.threads.lock import Mutex

__all__ = ["Building"]


class Building:
    """The tables of one engine on its backend, from before they are created.

    Builds of several threads, and restores, create them under one lock. Tables whose creation an
    interrupt cut short are given back by the next call that creates.

    Parameters
    ----------
    backend : Backend
    finished : callable
        Called once, when the tables are there.

    Attributes
    ----------
    built : bool
        Whether they are there, with values.
    """

    def __init__(self, backend: Backend, finished: Callable[[], None]) -> None:
        self._backend = backend
        self._finished = finished
        self._lock = Mutex()
        self._unfinished: list[str] = []  # tables whose creation has begun
        self._restore: ExitStack | None = None  # the backend's context, or an empty one
        self.built = False

    def build(
        self, specs: Sequence[TableSpec], check: Callable[[], None], take: Callable[[], None]
    ) -> None:
        """Create the tables unless they are there.

        Parameters
        ----------
        specs : sequence of TableSpec
        check, take : callable
            Called in any case, before anything is created and once all is; of several threads that
            build, one after the other.

        Raises
        ------
        ShardcoreMemoryError
            If there is no room for one of them; then there is none.
        ShardcoreRuntimeError
            If a restore is filling them.
        """
        self._lock.run(self._build, specs, check, take)

    def _build(
        self, specs: Sequence[TableSpec], check: Callable[[], None], take: Callable[[], None]
    ) -> None:
        if not self.built and self._restore is not None:
            raise ShardcoreRuntimeError(
                "the tables are being restored; a restore that was cut short must be made again"
            )
        check()
        if not self.built:
            self._create(specs)
            take()
            self._finish()
        else:
            take()

    def begin_restore(self, specs: Sequence[TableSpec], built: bool) -> None:
        """Prepare for writes to every row and slot: create the tables, or take those that are here.

        Parameters
        ----------
        specs : sequence of TableSpec
        built : bool
            Whether there were tables when the restore was planned.

        Raises
        ------
        ShardcoreRuntimeError
            If they were created meanwhile.
        """
        self._lock.run(self._begin_restore, specs, built)

    def _begin_restore(self, specs: Sequence[TableSpec], built: bool) -> None:
        if self.built is not built:
            raise ShardcoreRuntimeError(
                "the tables were created while a restore began: restore once more"
            )
        self._abort_restore()  # one that was cut short
        restore = ExitStack()
        if built:
            restore.enter_context(self._backend.restoring())
        else:
            self._create(specs)
        self._restore = restore

    def end_restore(self, take: Callable[[], None]) -> None:
        """End a restore that has written all rows and slots.

        Parameters
        ----------
        take : callable
            Called where the backend agrees, before the tables count as built.

        Raises
        ------
        ShardcoreRuntimeError
            If the backend does not: rows are missing.
        """
        self._lock.run(self._end_restore, take)

    def _end_restore(self, take: Callable[[], None]) -> None:
        restore, self._restore = self._restore, None
        assert restore is not None, "begin_restore comes first"
        restore.close()
        take()
        if not self.built:
            self._finish()

    def abort_restore(self) -> None:
        """Leave a restore that failed: tables it created are given back."""
        self._lock.run(self._abort_restore)

    def _abort_restore(self) -> None:
        restore, self._restore = self._restore, None
        if not self.built:
            self._drop_unfinished()
        if restore is not None:
            reason = ShardcoreRuntimeError("the restore failed")
            restore.__exit__(type(reason), reason, None)

    def _create(self, specs: Sequence[TableSpec]) -> None:
        self._drop_unfinished()  # of a build that was cut short before it could
        # Others are another engine's, and are refused.
        self._unfinished = [one.name for one in specs if one.name not in self._backend.specs]
        try:
            self._backend.create_tables(specs)
        except BaseException:
            self._backend.change(self._drop_unfinished)
            raise

    def _drop_unfinished(self) -> None:
        while self._unfinished:
            if self._unfinished[-1] in self._backend.specs:
                self._backend.drop_table(self._unfinished[-1])
            self._unfinished.pop()

    def _finish(self) -> None:
        self.built = True
        self._unfinished = []
        self._finished()
