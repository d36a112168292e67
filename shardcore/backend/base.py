"""The contract of backends: owners of tables that look rows up and apply gradients to them.

The contract
------------
A backend holds tables: rows and, for tables with an optimizer, the slots the optimizer declares,
named by it. The engine decides everything else (which ids are valid, how bags are divided, which
learning rate holds) and speaks to the backend in whole batches.

Four methods make a backend: `make_table`, `remove_table`, `gather` and `scatter`. The base class
builds the others from them, over the same kernels as the embedded backend, and gives the same
results; a backend overrides them for speed. `create_table`, `create_tables`, `drop_table` and
`reseed` are the base class's alone: it keeps `specs`, and refuses tables that `capabilities` rule
out.

* An engine creates all of its tables in one call, which reaches a backend as `make_tables`. One
  that lays tables of a kind together overrides it; elsewhere it is `make_table`, one by one.
* Rows are global everywhere: where a row lives is the backend's business. `layout` returns it.
* ``slot=None`` means the weights, a name that optimizer slot; row slots have one column.
* Rows of `scatter` are distinct. All row numbers are int64, checked, in range.
* `lookup` and `apply` are given all tables of a batch in one call. `apply` gets the `TableBatch`
  objects that `lookup` got, whose ``route`` is the backend's to use; or one that was made of
  several lookups, whose ``route`` is None: then the backend works it out.
* Lookups, and `weight_dots`, see rows as ``specs[table].as_looked_up(rows)`` returns whole rows:
  scaled, for tables with a `max_norm`, and rounded, for those with a quantization. `gather`, `read`
  and `apply` see what is stored.
* Sums have one order, on every backend: a bag in occurrence order; a row's gradient in (feature,
  global bag, position) order, runs above 4,096 occurrences in blocks of 4,096 counted from the
  first, blocks added in order.
* A call that raises has changed nothing: what Python computes, an optimizer's own code above all,
  is computed for all tables before a row of any changes.
* Calls may come from several threads; a lookup sees each row wholly before or after an update. The
  engine makes calls that change something in a thread in which no signal handler runs, while the
  caller's waits for it (`shardcore.store.uninterrupted`); `shardcore.store.calling_thread`
  returns the caller's.
* What the engine refuses of a batch or its gradients never reaches `lookup` or `apply`; `refuse` is
  called instead.
* After `close` nothing is called any more.

Arrays on a device
------------------
A backend whose tables live on a device may declare ``device_arrays``. Its `lookup` may then return
arrays of its own kind, (bags, dim) of the working dtype, with ``shape``, ``dtype`` and ``reshape``,
which `numpy.asarray` reads; callers get them as they are. And it may know such arrays again as
gradients, by `takes_gradient`: the engine checks their shape and that they are of one of the four
float dtypes, reshapes them to (bags, dim), and hands them on in their own dtype. It never reads or
copies them, not for a pipeline either, so such arrays must be immutable.

Whether their values are finite, the backend tests as part of the update, where
``TableUpdate.check`` asks for it; `apply` may return before that is known. A batch with a value
that is not finite in the working dtype does nothing, for all of its tables; those after it are
applied as if it had never come, with the steps that they were given. `check_updates` reports it.
The engine asks for the report before and after its calls, puts it into words, and raises.

The base class reads such gradients by `numpy.asarray`.

Examples
--------
A whole backend, tables in a dictionary of NumPy arrays:

>>> from shardcore.backend import Backend, FeatureBags, TableBatch, TableSpec, initial_arrays
>>> class Dictionary(Backend):
...     name = "dictionary"
...
...     def __init__(self):
...         super().__init__()
...         self._arrays = {}
...
...     def make_table(self, spec):
...         self._arrays[spec.name] = initial_arrays(spec)
...
...     def remove_table(self, table):
...         self._arrays.pop(table, None)
...
...     def gather(self, table, slot, rows):
...         return self._arrays[table][slot][rows]
...
...     def scatter(self, table, slot, rows, values):
...         self._arrays[table][slot][rows] = values

>>> from shardcore.initializers import RowId
>>> backend = Dictionary()
>>> backend.create_table(TableSpec("t", 5, 2, np.dtype("float32"), RowId(), 0))
>>> bags = FeatureBags(np.array([4, 1, 2]), np.array([0, 2, 3]))
>>> backend.lookup([TableBatch("t", (bags,))])[0][0]
array([[5., 5.],
       [2., 2.]], dtype=float32)
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.capabilities import Capabilities
from shardcore.backend.from_rows import dots_from_rows, gradients_on_host, lookup_from_rows, staged
from shardcore.backend.messages import (
    FeatureBags,
    NotFinite,
    TableBatch,
    TableSpec,
    TableUpdate,
)
from shardcore.backend.process_group import ProcessGroup
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.sharding.layout import Layout
from shardcore.threads.tally import Tally
from shardcore.threads.work import InTurn, uninterrupted

if TYPE_CHECKING:
    from shardcore.store.steps import StoreSteps

__all__ = ["Backend"]


class Backend(ABC):
    """Base of every backend; the module's docstring is the contract.

    Attributes
    ----------
    name : str
        The name it is asked for by.
    capabilities : Capabilities
        The tables it can have, and the arrays it deals in; all that the base class can, unless the
        class or the object declares others. Tables beyond them are refused.
    specs : dict of table name -> TableSpec
        The tables it holds.
    """

    name: ClassVar[str]
    capabilities: Capabilities = Capabilities()

    def __init__(self) -> None:
        self.specs: dict[str, TableSpec] = {}
        self.unique_rows = Tally(1)
        self._refused: NotFinite | None = None

    def __repr__(self) -> str:
        hosts, tables = self.num_hosts, ", ".join(self.specs) or "none"
        return f"<backend {self.name!r}: {hosts} host{'s' * (hosts != 1)}; tables: {tables}>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ShardcoreTypeError(
            f"backend {self.name!r} cannot be copied or pickled: it owns its tables; get another "
            "one, and move tables by a checkpoint"
        )

    # --- what every backend writes ---------------------------------------------------------------

    @abstractmethod
    def make_table(self, spec: TableSpec) -> None:
        """Make rows and slots with their initial values.

        `shardcore.backend.initial_arrays` and `initial_blocks` give these.
        """

    @abstractmethod
    def remove_table(self, table: str) -> None:
        """Give a table back; one that `make_table` did not finish, or did not begin, too."""

    @abstractmethod
    def gather(self, table: str, slot: str | None, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return copies of rows, (len(rows), dim) or (len(rows), 1), in request order."""

    @abstractmethod
    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows with values of the same dtype."""

    # --- what the base class keeps ---------------------------------------------------------------

    def check_table(self, spec: TableSpec) -> None:
        """Raise unless the backend can have such a table.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `capabilities` rule it out, or its layout has row counts for other hosts than
            there are (one host takes any); if it has a `max_norm`, but no host sees whole rows.
        """
        self.capabilities.check_table(spec, self.name)
        hosts, layout = self.num_hosts, spec.layout
        if hosts > 1 and not isinstance(layout, str) and len(layout) != hosts:
            raise ShardcoreValueError(
                f"table {spec.name!r} must have one row count in layout for each of {hosts} hosts "
                f"on backend {self.name!r}, got {len(layout)}: {shown(layout)}"
            )
        parts_only = (spec.placement, spec.exchange) == ("column", "partial")
        if spec.max_norm is not None and parts_only:
            raise ShardcoreValueError(
                f"table {spec.name!r} must have max_norm None where hosts combine the columns they "
                f"hold (placement 'column', exchange 'partial'), got {spec.max_norm!r}"
            )

    def create_table(self, spec: TableSpec) -> None:
        """Create a table, or raise and change nothing.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `capabilities` rule it out, or there is a table of that name.
        """
        self.create_tables([spec])

    def create_tables(self, specs: Sequence[TableSpec]) -> None:
        """Create tables, all of them or, with an error, none.

        Parameters
        ----------
        specs : sequence of TableSpec
            Those that belong together: a backend may lay some of them together.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If `capabilities` rule one out, or there is a table of its name.
        """
        names = set(self.specs)
        for spec in specs:
            self.check_table(spec)
            if spec.name in names:
                raise ShardcoreValueError(
                    f"backend {self.name!r} has a table {spec.name!r} already: "
                    "every engine needs a backend of its own"
                )
            names.add(spec.name)
        self.specs |= {spec.name: spec for spec in specs}
        try:
            self.make_tables(specs)
        except BaseException:
            for spec in reversed(specs):
                self.drop_table(spec.name)
            raise

    def drop_table(self, table: str) -> None:
        """Give a table back."""
        self.remove_table(table)
        self.specs.pop(table, None)

    def reseed(self, table: str, seed: int) -> None:
        """Give a table another seed, from its next update on; rows and slots stay as they are.

        Called when a table that exists is restored: chance in its updates follows from the seed of
        the run that was saved. So a backend reads the seed from ``specs`` at each update.
        """
        self.specs[table] = dataclasses.replace(self.specs[table], seed=seed)

    def count_unique_rows(self, rows: int) -> None:
        """Add the distinct rows of updated tables to the counter ``unique_rows``."""
        self.unique_rows.add(rows)

    # --- what it may write better ----------------------------------------------------------------

    def make_tables(self, specs: Sequence[TableSpec]) -> None:
        """Make the rows and slots of several tables, whose specs are in `specs` already.

        Where it raises, `remove_table` is called for every one of them.

        Raises
        ------
        ShardcoreMemoryError
            If there is no room for one of them.
        """
        for spec in specs:
            try:
                self.make_table(spec)
            except MemoryError as error:
                raise spec.no_room(error) from error

    @property
    def process_group(self) -> ProcessGroup | None:
        """The processes that hold the tables together; None, unless several do.

        Then every process makes the same calls in the same order, and checkpoints are written by
        one of them: see `shardcore.backend.process_group`.
        """
        return None

    def refuse(self, call: str, error: Exception) -> None:  # noqa: B027  most have nothing to do
        """Do what has to be done where the engine refuses the arguments of a call.

        Called before the error is raised, in place of `lookup` or `apply`. A backend of several
        processes, each of which gives samples of its own, raises an error in all of them.

        Parameters
        ----------
        call : {"lookup", "apply"}
        error : Exception
        """

    def change(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``, which changes tables, where no interrupt splits it.

        A backend that must be called from one thread makes it `changed_here`, which can be split.
        """
        return uninterrupted(function, *arguments)

    @property
    def num_hosts(self) -> int:
        """Hosts that samples and rows are spread over."""
        return 1

    def default_layout(self, spec: TableSpec) -> Literal["div", "mod"]:
        """Return the layout of a table whose user gave none: "div".

        The engine asks for it before it creates the table; the layout in `spec` says nothing yet.
        """
        return "div"

    def layout(self, table: str) -> Layout:
        """Return which host, as a shard, holds which row."""
        return Layout.of(self.specs[table].layout, self.specs[table].num_rows, self.num_hosts)

    def read(self, table: str, slot: str | None, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of the rows [start, stop)."""
        return self.gather(table, slot, np.arange(start, stop, dtype=np.int64))

    def write(self, table: str, slot: str | None, start: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from `start` on."""
        self.scatter(table, slot, np.arange(start, start + len(values), dtype=np.int64), values)

    def shards(self, table: str, slot: str | None) -> list[NDArray[Any]]:
        """Return copies of the rows of each host, in local order."""
        layout = self.layout(table)
        return [
            self.gather(table, slot, layout.global_rows(host)) for host in range(layout.num_shards)
        ]

    def lookup(self, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
        """Return the combined rows of every feature of every table.

        Parameters
        ----------
        batches : sequence of TableBatch

        Returns
        -------
        list, per batch, of lists, per feature, of ndarray of the working dtype, (bags, dim)
        """
        return [lookup_from_rows(self.specs[batch.table], batch, self.gather) for batch in batches]

    def lookup_into(self, table: str, bags: FeatureBags, out: NDArray[Any]) -> None:
        """Write what `lookup` returns for one feature of one table, without training, to `out`.

        Only asked of backends whose arrays are NumPy's.

        Parameters
        ----------
        table : str
        bags : FeatureBags
        out : ndarray of the working dtype, shape (bags, dim), C-contiguous
        """
        ((found,),) = self.lookup([TableBatch(table, (bags,))])
        out[...] = found

    def lookup_given(
        self,
        table: str,
        ids: NDArray[Any],
        row_splits: NDArray[Any],
        weights: NDArray[Any] | None,
        divided: int,
        out: NDArray[Any],
    ) -> bool:
        """Write the combined rows of bags, as they were given, to `out`, if that can be done.

        For backends that keep rows in memory of this process, where an array of checked ids costs
        up to a third of the sums, and the calls around a small lookup more than its rows: they
        check what is given by the way, as `shardcore.store.StoreTable.lookup_given` does.
        Nothing is asked of the others.

        Parameters
        ----------
        table : str
        ids, row_splits : ndarray
            As a caller gave them: of any dtype and shape, and not checked.
        weights : ndarray or None
            The same; None: ones. They must be finite, and so must what bags are divided by.
        divided : int
            The combiner, of `shardcore.store.DIVIDED`.
        out : ndarray of the working dtype, shape (bags, dim), C-contiguous

        Returns
        -------
        bool
            Whether that was done. Where it was not, as an id is out of range or for any other
            reason, `out` holds nothing of use, and the lookup goes on as any other.
        """
        return False

    def steps(
        self,
        tables: Sequence[str],
        features: Sequence[tuple[int, ...]],
        divided: Sequence[int],
        narrow: bool,
    ) -> StoreSteps | None:
        """Return what makes training steps of few bags in these tables, if anything does.

        For backends that keep rows in memory of this process, where the calls around a small step
        take longer than its rows. Asked once, when the tables are there; whatever such steps leave
        to others comes by `lookup` and by `stage` or `apply`, as it does without them. Where a
        subclass overrides one of these, and not this, it is not asked.

        Parameters
        ----------
        tables : sequence of str
        features : sequence of tuple of int
            The features of each table.
        divided : sequence of int
            The combiner of each feature, of `shardcore.store.DIVIDED`.
        narrow : bool
            Whether ids may be copied in 32 bits.
        """
        return None

    def takes_gradient(self, gradient: object) -> bool:
        """Return whether `gradient` is an array that lives where the tables do.

        Asked for every gradient that a caller gives. Such arrays are handed to `apply` and
        `weight_dots` as they are; all others are read, checked and cast by the engine.

        Raises
        ------
        ShardcoreValueError
            If it is such an array and breaks a rule. The engine puts the gradient's path before
            the text, as in "must lie on ...".
        """
        return False

    def apply(self, updates: Sequence[TableUpdate]) -> None:
        """Update every row that a feature with a gradient names, once, with the table's optimizer.

        Parameters
        ----------
        updates : sequence of TableUpdate
            Those of one batch, at most one per table. An override adds the rows they touch by
            `count_unique_rows`.
        """
        ready, found = gradients_on_host(updates, self.specs)
        if found is not None:
            refused = self._refused or dataclasses.replace(found, step=updates[0].step)
            self._refused = dataclasses.replace(refused, updates=refused.updates + 1)
            return
        changes = [staged(self.specs[one.batch.table], one, self.gather) for one in ready]
        for writes, unique in changes:
            for write in writes:
                self.scatter(*write)
            self.count_unique_rows(unique)

    def stage(self, updates: Sequence[TableUpdate]) -> InTurn | None:
        """Prepare what `apply` would do, change nothing, and return the calls that do it, or None.

        For backends that update rows in memory of this process. No interrupt comes inside of calls
        that run no bytecode, so the engine makes them where it is, which takes less time than to
        let another thread call `apply`. No other update is under way.

        Parameters
        ----------
        updates : sequence of TableUpdate
            As for `apply`, at least one.

        Returns
        -------
        InTurn or None
            With ``partial(self.unique_rows.add, rows)``, which counts them. None, by default:
            `apply` is called.
        """
        return None

    def check_updates(self, wait: bool) -> NotFinite | None:
        """Report the first gradient that was not finite, and how many updates did nothing; once.

        Parameters
        ----------
        wait : bool
            Whether to wait until it is known of all updates. False: where that is not known yet,
            a later call may report it.
        """
        refused, self._refused = self._refused, None
        return refused

    def weight_dots(self, update: TableUpdate) -> list[NDArray[Any] | None]:
        """Return, per feature with a gradient, each occurrence's row times its bag's gradient.

        The rows are those before the update. The arrays are NumPy's wherever the tables live.
        """
        return dots_from_rows(self.specs[update.batch.table], update, self.gather)

    def counters(self) -> dict[str, int]:
        """Return what the backend has counted since it was made.

        ``unique_rows`` is the engine's word for the distinct rows of each table, added up over
        tables and updates; a backend adds what else it counts, under names of its own.
        """
        (unique,) = self.unique_rows.read()
        return {"unique_rows": unique}

    def restoring(self) -> AbstractContextManager[None]:
        """Return the context in which every row and slot of every table is overwritten.

        It is left as it was entered where an error ends it. A backend that refuses all calls since
        a host failed in the midst of an update accepts writes inside, and is whole again after it;
        on leaving it raises if a row was not written.
        """
        return nullcontext()

    def close(self) -> None:
        """Give everything back."""
        self.specs.clear()
