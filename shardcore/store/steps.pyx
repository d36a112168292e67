"""Training steps of few bags in tables of this process: a compiled call for each half of one.

Around the kernels of a step of 32 rows, 6 µs with what they allocate, an engine makes 140 calls of Python's
functions, and 35 more for each further table. Here are 70, and 5 more, where bags are few and as they are
given: copies, lookups and sorts are one call, rules and updates another.
"""

from functools import partial

from shardcore.memory import pool
from shardcore.threads.lock import read_all, write_all
from shardcore.store.lookups import Lookups
from shardcore.store.occurrences import FEW_OCCURRENCES, BagSorts
from shardcore.store.rounding import step_seed
from shardcore.store.table import TOGETHER
from shardcore.store.taken_bags import BagsToTake
from shardcore.store.update import GRADIENT_BYTES, StagedUpdates, rule_of
from shardcore.threads.work import InTurn

include "plain_arrays.pxi"

__all__ = ["StoreStep", "StoreSteps"]

cdef Py_ssize_t MOST_BYTES = GRADIENT_BYTES     # of a table's gradients: of more, long runs are summed first
cdef Py_ssize_t FEW = FEW_OCCURRENCES           # of a table: more are sorted otherwise
cdef Py_ssize_t MOST_WORK = TOGETHER            # on tables that are updated at once: lookups wait for it
cdef Py_ssize_t OF_THE_POOL = pool.LEAST        # bytes: of fewer, activations lie in memory of the heap


cdef class _Table:
    """A table, and what of it every step needs."""

    cdef object found
    cdef object dtype
    cdef object working
    cdef object optimizer
    cdef Py_ssize_t rows
    cdef Py_ssize_t dim
    cdef Py_ssize_t itemsize
    cdef int type_number
    cdef tuple features


cdef class StoreStep:
    """A batch that was looked up, with the rows that its gradients will change.

    Attributes
    ----------
    copies : list of (ids, row_splits or None)
        Of each feature's bags; None where they were not to be copied.
    activations : list of ndarray
        Of each feature.
    shapes : list of (bags, dim)
        Theirs, as they were made: a caller may change what he is given.
    occurrences : list of Occurrences
        Of each table.
    ids : int
        Of all features.
    """

    cdef readonly list copies
    cdef readonly list activations
    cdef readonly list shapes
    cdef readonly list occurrences
    cdef readonly Py_ssize_t ids

    def __reduce__(self):
        raise TypeError("a StoreStep cannot be copied or pickled")


cdef class StoreSteps:
    """Steps of tables whose rows are seen as they are stored, and updated by kernels, some at a time.

    Parameters
    ----------
    tables : sequence of StoreTable
    optimizers : sequence of Optimizer
        Of each table.
    features : sequence of tuple of int
        The features of each table.
    divided : sequence of int
        The combiner of each feature, of `DIVIDED`.
    narrow : bool
        As in `BagsToTake.add`.
    count : callable
        Called with how many rows a step changes.
    """

    cdef list tables
    cdef list table_of      # of each feature
    cdef list divided
    cdef list locks
    cdef bint narrow
    cdef object count

    def __init__(self, tables, optimizers, features, divided, bint narrow, count):
        cdef _Table one
        self.divided, self.narrow, self.count = list(divided), narrow, count
        self.tables, self.locks, self.table_of = [], [], [None] * len(self.divided)
        for table, optimizer, own in zip(tables, optimizers, features, strict=True):
            one = _Table.__new__(_Table)
            one.found, one.optimizer = table._stored.found, optimizer
            one.dtype, one.working = table.rows.dtype, table.working
            one.rows, one.dim = table.rows.shape
            one.itemsize, one.type_number = table.working.itemsize, table.working.num
            one.features = tuple(own)
            for feature in one.features:
                self.table_of[feature] = one
            self.tables.append(one)
            self.locks.append(table._lock)

    def __reduce__(self):
        raise TypeError("StoreSteps cannot be copied or pickled")

    def look_up(self, list bags):
        """Look a batch up, and sort the rows that it names; None, and nothing was done, if it cannot.

        Parameters
        ----------
        bags : list of (ids, row_splits, copied)
            Of each feature, as `BagsToTake.add` takes them; row splits that are not `copied` are ours.

        Returns
        -------
        StoreStep or None
            None: some are not plain, or wrong, or they are not few.
        """
        cdef _Table table
        cdef StoreStep step = StoreStep.__new__(StoreStep)
        cdef Py_ssize_t at, ids, count
        cdef Py_ssize_t shape[2]
        cdef Plain plain
        if not self.are_few(bags):
            return None
        taken = BagsToTake()
        for at in range(len(bags)):
            table = <_Table>self.table_of[at]
            given, row_splits, copied = <tuple>bags[at]
            if not taken.add(given, row_splits if copied else None, table.rows, self.narrow):
                return None
        step.copies = taken.take()
        if taken.wrong():
            return None
        lookups, sorts = Lookups(), BagSorts()
        add = lookups.kernel.add
        step.activations, step.shapes = [None] * len(bags), [None] * len(bags)
        for table in self.tables:
            count = 0
            for at in table.features:
                own, row_splits = <tuple>step.copies[at]
                if row_splits is None:
                    row_splits = (<tuple>bags[at])[1]
                found_plain(row_splits, False, &plain)
                shape[0], shape[1] = plain.size - 1, table.dim
                ids = PyArray_DIM(<PyArrayObject*><void*>own, 0)
                count += ids
                # Another thread may have given an array another shape, since it was looked at.
                if count > FEW or (<const int64_t*>plain.start)[plain.size - 1] != ids:
                    return None
                if shape[0] * shape[1] * table.itemsize < OF_THE_POOL:
                    out = new_array(2, shape, table.type_number, False)
                else:
                    out = pool.empty((shape[0], shape[1]), table.working)
                add(table.found, own, row_splits, None, None, out, self.divided[at])
                step.activations[at], step.shapes[at] = out, (shape[0], shape[1])
                if at == table.features[0]:
                    sorts.add(own, row_splits, table.rows, len(table.features) == 1)
                else:
                    sorts.add_feature(own, row_splits)
            step.ids += count
        right = read_all(self.locks, lookups.make)
        assert right, "ids are checked, and ours"
        step.occurrences = sorts.make()
        return step

    cdef bint are_few(self, list bags):
        """Return whether those of each table are, as far as can be seen before they are copied."""
        cdef _Table table
        cdef Py_ssize_t at, count, splits
        cdef Plain ids, row_splits
        for table in self.tables:
            count = splits = 0
            for at in table.features:
                given, own, _ = <tuple>bags[at]
                if not (found_plain(given, False, &ids) and found_plain(own, False, &row_splits)):
                    return False
                count += ids.size
                splits += row_splits.size
            if count > FEW or splits * table.dim * table.itemsize >= MOST_BYTES:
                return False
        return True

    def stage(self, StoreStep batch not None, list gradients, list hyper, seeds, step):
        """Prepare the update of every table, and return what makes it, compiled where that is.

        Parameters
        ----------
        batch : StoreStep
        gradients : list of ndarray of the working dtype, shape (bags, dim), C-contiguous
            Of each table, the bags of its features one under the other.
        hyper : list of tuple of float
            Of each table's optimizer.
        seeds : callable
            Returns a table's seed, by its number.
        step : int
            1 for the first.
        """
        cdef _Table table
        cdef Py_ssize_t at, unique = 0, work = 0
        cdef list made = [], locks = []
        optimizer = dtype = rule = None
        stochastic, seed = False, 0
        staged = StagedUpdates()
        add = staged.together.add
        for at in range(len(self.tables)):
            table, occurrences = <_Table>self.tables[at], batch.occurrences[at]
            if not (table.optimizer is optimizer and table.dtype is dtype):
                optimizer, dtype = table.optimizer, table.dtype
                rule, stochastic = rule_of(optimizer, hyper[at], dtype, table.working)
            if stochastic:
                seed = step_seed(seeds(at), step)
            rows = occurrences.rows
            unique += PyArray_DIM(<PyArrayObject*><void*>rows, 0)
            work += add(table.found, rule, step, rows, rows, occurrences.run_splits,
                        occurrences.sources, None, gradients[at], stochastic, seed, None, None)
            locks.append(self.locks[at])
            if work >= MOST_WORK:
                made.append(partial(write_all, locks, staged.ready()))
                staged, locks, work = StagedUpdates(), [], 0
                add = staged.together.add
        if locks:
            made.append(partial(write_all, locks, staged.ready()))
        made.append(partial(self.count, unique))
        return InTurn(made)
