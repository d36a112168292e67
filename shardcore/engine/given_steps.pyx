"""Training steps of few bags as they are given: two compiled calls, where nothing is special.

As lookups without training are one: see ``given_lookups.pyx``. What is to be told of a batch that is wrong,
and what is done with one that is more than plain bags, is left to the way of all others, for which a batch
that was looked up here is as any other.
"""

import numpy as np

from shardcore.backend.gradients import gradient_rows
from shardcore.backend.messages import TableBatch
from shardcore.engine.gradients import hyper_of_each
from shardcore.features.plain import PlainBags, prepared_bags
from shardcore.store.finite import all_finite

from shardcore.engine.given_lookups cimport plain_parts

include "plain_arrays.pxi"

__all__ = ["GivenBatch", "GivenSteps"]

_array = np.ndarray     # itself, as in ``given_lookups.pyx``


cdef class GivenBatch:
    """A batch as it was looked up: what `shardcore.engine.in_flight.Batch` says, made when asked for.

    Attributes
    ----------
    prepared : list of PreparedFeature
    tables : list of TableBatch
    winners : dict
        Empty: no feature is combined by its greatest values.
    """

    cdef object __weakref__
    cdef GivenSteps owner
    cdef object step            # StoreStep
    cdef list parts             # of each feature: row splits, and the shapes of the batch and of dense ids
    cdef list _prepared
    cdef list _tables
    cdef readonly dict winners

    def __reduce__(self):
        raise TypeError("a GivenBatch cannot be copied or pickled")

    @property
    def prepared(self):
        cdef list found = []
        if self._prepared is None:
            for feature, copies, part in zip(self.owner.features, self.step.copies, self.parts, strict=True):
                ids, row_splits = copies
                plain = PlainBags(ids, *part)
                found.append(prepared_bags(feature, plain, ids, row_splits))
            self._prepared = found
        return self._prepared

    @property
    def tables(self):
        cdef list found = []
        if self._tables is None:
            prepared = self.prepared
            for table, route in zip(self.owner.tables, self.step.occurrences, strict=True):
                bags = tuple([prepared[at].bags for at in table.features])
                found.append(TableBatch(table.spec.name, bags, True, route))
            self._tables = found
        return self._tables

    def activations(self):
        """Return the activations of each feature, in the shape of its batch."""
        cdef list found = []
        for out, part in zip(self.step.activations, self.parts, strict=True):
            batch_shape = part[1]
            if batch_shape is not None and len(batch_shape) != 1:
                out = out.reshape(*batch_shape, out.shape[1])
            found.append(out)
        return found

    def stage(self, gradients, step):
        """Return what updates the tables once, as `GivenSteps.stage` does, or None."""
        return self.owner.stage(self, gradients, step)

    @property
    def ids(self):
        """How many ids it has."""
        return self.step.ids


cdef class GivenSteps:
    """Training steps of an engine whose backend makes those of few bags.

    Parameters
    ----------
    inputs : Inputs
        Of whose features none is more than rows combined.
    tables : list of PlannedTable
        The engine's own list, which a restore changes in place.
    steps : StoreSteps
    check : bool
        Whether gradients must be finite.
    """

    cdef object inputs
    cdef object steps
    cdef object look_up_bags
    cdef readonly list features
    cdef readonly list tables
    cdef list plain             # of each table: whether its gradients are those of a feature as they are
    cdef list letters           # of each feature: NumPy's for the type of its gradients
    cdef bint check

    def __init__(self, inputs, list tables, steps, bint check, int as_they_are):
        self.inputs, self.features, self.tables, self.check = inputs, inputs.features, tables, check
        self.steps, self.look_up_bags = steps, steps.look_up
        self.letters = [ord(feature.value.char) for feature in self.features]
        self.plain = [
            len(table.features) == 1 and self.features[table.features[0]].divided == as_they_are
            for table in tables
        ]

    def __reduce__(self):
        raise TypeError("GivenSteps cannot be copied or pickled")

    def look_up(self, features):
        """Return a batch that was looked up, or None: nothing was done then."""
        cdef list leaves = [features], bags = [], parts = []
        cdef tuple part
        cdef GivenBatch batch
        cdef Plain splits
        cdef object size = self.inputs.batch_size
        if not self.inputs.single:
            leaves = self.inputs.flat_leaves(features)
            if leaves is None:
                return None
        for leaf in leaves:
            part = plain_parts(leaf)
            if part is None:
                return None
            values, row_splits, batch_shape, ids_shape = part
            if not found_plain(row_splits, False, &splits) or splits.ndim != 1 or splits.size == 0:
                return None
            if size is not None and size != (splits.size - 1 if batch_shape is None else batch_shape[0]):
                return None
            bags.append((values, row_splits, ids_shape is None))
            if ids_shape is None:   # of the caller's row splits there is a copy, of another size perhaps
                row_splits = None
            elif batch_shape is None:
                batch_shape = (splits.size - 1,)
            parts.append((row_splits, batch_shape, ids_shape))
        step = self.look_up_bags(bags)
        if step is None:
            return None
        batch = GivenBatch.__new__(GivenBatch)
        batch.owner, batch.step, batch.parts, batch.winners = self, step, parts, {}
        return batch

    cdef object stage(self, GivenBatch batch, gradients, step):
        """Return what updates the tables once, or None: nothing was done then, no rate asked for.

        Parameters
        ----------
        batch : GivenBatch
        gradients : as a caller gives them
        step : int
            1 for the first.
        """
        cdef list leaves = [gradients], own = [], of_tables = []
        cdef Py_ssize_t at
        if not self.inputs.single:
            leaves = self.inputs.flat_leaves(gradients)
            if leaves is None:
                return None
        for at in range(len(leaves)):
            array = self.plain_gradient(leaves[at], batch, at)
            if array is None:
                return None
            own.append(array)
        if self.check and not all_finite(own):
            return None
        hyper = hyper_of_each([table.spec.optimizer for table in self.tables], step - 1)
        rates = [hyper[id(table.spec.optimizer)] for table in self.tables]
        for at in range(len(self.tables)):
            features = self.tables[at].features
            if self.plain[at]:
                of_tables.append(own[features[0]])
            else:
                bags = batch.tables[at].features
                of_tables.append(gradient_rows(bags, [own[feature] for feature in features]))
        return self.steps.stage(batch.step, of_tables, rates, self.seed, step)

    cdef object plain_gradient(self, leaf, GivenBatch batch, Py_ssize_t at):
        """Return a gradient as (bags, dim), or None, unless it is as kernels read it."""
        cdef Plain plain
        cdef object batch_shape = (<tuple>batch.parts[at])[1]
        cdef Py_ssize_t bags, dim
        bags, dim = <tuple>batch.step.shapes[at]
        if not (type(leaf) is _array and found_plain(leaf, False, &plain)
                and plain.letter == <int>self.letters[at]):
            return None
        if batch_shape is None or len(batch_shape) == 1:
            if plain.ndim != 2 or plain.shape[0] != bags or plain.shape[1] != dim:
                return None
            return leaf[...]    # a view whose shape only we can change
        if leaf.shape != (*batch_shape, dim):
            return None
        return leaf.reshape(bags, dim)

    def seed(self, at):
        """Return the seed of a table."""
        return self.tables[at].spec.seed
