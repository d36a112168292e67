"""Lookups without training of bags as they are given: one compiled call, where nothing is special.

Around a lookup a dozen calls of Python functions take 4 µs, where 32 rows take half of one, and longer in a
program that does other work in between, whose instructions are in the caches by then. They are one call
here, down to that of the backend for each feature. It tells no error: the way of all other lookups does.
"""

import numpy as np

from shardcore.features.plain import even_splits, plain_bags, plain_weights
from shardcore.memory import pool

from shardcore.engine.life cimport Life
from shardcore.threads.lock cimport Caller, caller

include "plain_arrays.pxi"

__all__ = ["GivenLookups"]

_array = np.ndarray     # itself: to those of a class of its own elements may mean something else

cdef Py_ssize_t OF_THE_POOL = pool.LEAST     # bytes: of fewer, activations lie in memory of the heap


cdef tuple plain_parts(leaf):
    """Return ids, row splits, and the shapes of the batch and of dense ids, where a leaf is of arrays.

    No shape of the batch: as many as there are bags. Of the arrays nothing is known. None: it is not plain.
    """
    cdef Plain given
    if type(leaf) is tuple and len(<tuple>leaf) == 2:
        values, row_splits = <tuple>leaf
        if type(values) is _array and type(row_splits) is _array:
            return values, row_splits, None, None
        return None
    if type(leaf) is _array and found_plain(leaf, False, &given) and 1 <= given.ndim <= 2:
        values = leaf if given.ndim == 1 else leaf.reshape(-1)
        row_splits = even_splits(given.shape[0], 1 if given.ndim == 1 else given.shape[1])
        return values, row_splits, None, leaf.shape
    plain = plain_bags(leaf)
    return None if plain is None else tuple(plain)      # of a type of its own


cdef class Combined:
    """A feature's table and combiner, and the type of its activations, found once."""

    cdef object table
    cdef Py_ssize_t dim
    cdef object dtype
    cdef int type_number
    cdef Py_ssize_t itemsize
    cdef object divided

cdef class GivenLookups:
    """Lookups of an engine whose backend reads bags as they are given.

    Parameters
    ----------
    inputs : Inputs
        Of whose features none is more than rows combined.
    life : Life
    look_up : callable
        `Backend.lookup_given`.
    settle : callable or None
        Called before a lookup, where there may be something to wait for, or to raise.
    count : callable
        Called with the number of ids of each lookup, and of those that are invalid.

    Attributes
    ----------
    built : bool
        Whether the tables are there. None is looked up in before.
    """

    cdef object inputs
    cdef Life life
    cdef object look_up_one
    cdef object settle
    cdef object count
    cdef list combined
    cdef bint single
    cdef public bint built

    def __init__(self, inputs, Life life not None, look_up, settle, count):
        cdef Combined one
        self.inputs, self.life = inputs, life
        self.look_up_one, self.settle, self.count = look_up, settle, count
        self.single = inputs.single
        self.combined = []
        for feature in inputs.features:
            one = Combined.__new__(Combined)
            one.table, one.dim, one.dtype = feature.spec.name, feature.spec.dim, feature.value
            one.type_number, one.itemsize = feature.value.num, feature.value.itemsize
            one.divided = feature.divided
            self.combined.append(one)

    def __reduce__(self):
        raise TypeError("GivenLookups cannot be copied or pickled")

    def look_up(self, features, weights):
        """Return the activations in the structure of the features, or None: nothing was done then.

        None: something is not plain, or wrong, or is to be waited for.
        """
        cdef Caller who = caller()
        if not self.built or who.inside:    # a call of this engine, perhaps, that has called back
            return None
        self.life.lock._begin_reading(who)
        try:
            return None if self.life.closing else self.found(features, weights)
        finally:
            self.life.lock._end_reading()

    cdef object found(self, features, weights):
        cdef list leaves = [features], factors = [weights], activations = []
        cdef Py_ssize_t at, ids = 0
        if not self.single:     # a data frame, perhaps, or another structure
            leaves = self.inputs.flat_leaves(features)
            factors = None if weights is None else self.inputs.flat_leaves(weights)
            if leaves is None or (factors is None and weights is not None):
                return None
        if self.settle is not None:
            self.settle()
        for at in range(len(leaves)):
            out = self.combine(<Combined>self.combined[at], leaves[at],
                               None if factors is None else factors[at], &ids)
            if out is None:
                return None
            activations.append(out)
        self.count(ids, 0)
        if self.single:
            return activations[0]
        return self.inputs.nested(activations)

    cdef object combine(self, Combined one, leaf, weights, Py_ssize_t* ids):
        """Return the activations of a feature, or None."""
        cdef Plain given, splits
        cdef Py_ssize_t shape[2]
        cdef object row_splits, values, batch_shape, factors = None, size, out, plain
        plain = plain_parts(leaf) if weights is None else plain_bags(leaf)
        if plain is None:
            return None
        values, row_splits, batch_shape, _ = <tuple>plain
        if weights is not None:
            factors = plain_weights(weights, plain)
            if factors is None:
                return None
        if not (found_plain(values, False, &given) and found_plain(row_splits, False, &splits)
                and splits.ndim == 1 and splits.size > 0):
            return None
        shape[0], shape[1] = splits.size - 1, one.dim
        size = self.inputs.batch_size
        if size is not None and size != (shape[0] if batch_shape is None else batch_shape[0]):
            return None
        if shape[0] * shape[1] * one.itemsize < OF_THE_POOL:
            out = new_array(2, shape, one.type_number, False)
        else:
            out = pool.empty((shape[0], shape[1]), one.dtype)
        if not self.look_up_one(one.table, values, row_splits, factors, one.divided, out):
            return None
        ids[0] += given.size
        if batch_shape is None or len(batch_shape) == 1:
            return out
        return out.reshape(*batch_shape, one.dim)
