"""The CPU store: what every backend that keeps rows in this process's memory is built from.

::

    instruction_set   which compiled body of the row kernels runs here
    taken_bags        ids in bags, copied and checked           (face of _core/taken_bags.pyx)
    given_bags        combine bags as they are given            (face of _core/given_bags.pxi)
    stored_rows       where kernels for many tables find rows   (face of _core/stored_rows.pxi)
    lookups           combine rows of many tables               (face of _core/lookups.pxi)
    segment_reduce    combine rows per bag                      (face of _core/rows.pxi)
    finite            whether numbers are finite                (face of _core/rows.pxi)
    occurrences       the rows of a batch, sorted and unique    (face of _core/occurrences.pyx)
    asked_rows        which rows askers name of owners          (face of _core/routing.pyx)
    sorted_triples    a batch by worker, holder and row         (face of _core/triples.pyx)
    row_update        what a batch does to rows, in one record
    update            sum gradients per row, call the optimizer (face of _core/updates.pxi)
    scatter           apply values to rows in place             (face of _core/rows.pxi)
    table             a table's rows and slots, with the operations above and one lock; many tables
    steps             steps of few bags in many tables                         (compiled)

The faces check what they are given and choose the compiled body; the kernels only compute.
A store knows nothing of hosts or messages. Locks and changes that backends need are named here,
too: they are those of `shardcore.threads`.
"""

# numpy.unique imports it when it is first called. An interrupt in the midst of an import can leave
# its lock behind, at which every other thread that comes to the import waits for ever.
import numpy.ma  # noqa: F401  # for its effect

from shardcore.store.asked_rows import (
    AskedLists,
    AskedRows,
    AskingBags,
    sort_askers,
)
from shardcore.store.given_bags import DIVIDED
from shardcore.store.instruction_set import best_module
from shardcore.store.occurrences import Occurrences, every_row, sort_occurrences
from shardcore.store.rounding import rounds_stochastically, step_seed
from shardcore.store.row_update import RowUpdate
from shardcore.store.segment_reduce import (
    divisors,
    occurrence_gains,
    reciprocals,
    reduce_bags,
    row_dots,
)
from shardcore.store.sorted_triples import SortedTriples, TripleLists, WorkedBags, sort_triples
from shardcore.store.steps import StoreSteps
from shardcore.store.table import StoreTable, TableLookups, stage_tables
from shardcore.threads.lock import Mutex, ReadWriteLock, calling_thread, write_all
from shardcore.threads.work import InTurn, changed_here, uninterrupted

__all__ = [
    "AskedLists",
    "AskedRows",
    "AskingBags",
    "DIVIDED",
    "InTurn",
    "Mutex",
    "Occurrences",
    "ReadWriteLock",
    "RowUpdate",
    "SortedTriples",
    "StoreSteps",
    "StoreTable",
    "TableLookups",
    "TripleLists",
    "WorkedBags",
    "best_module",
    "calling_thread",
    "changed_here",
    "divisors",
    "every_row",
    "occurrence_gains",
    "reciprocals",
    "reduce_bags",
    "row_dots",
    "rounds_stochastically",
    "sort_askers",
    "sort_occurrences",
    "sort_triples",
    "stage_tables",
    "step_seed",
    "uninterrupted",
    "write_all",
]
