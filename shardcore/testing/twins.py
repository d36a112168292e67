"""A backend and the model side by side: every call is made on both, and what comes out compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.backend.messages import FeatureBags, TableBatch, TableSpec, TableUpdate
from shardcore.dtypes import working_dtype
from shardcore.store import DIVIDED, divisors
from shardcore.testing.agreement import assert_agree
from shardcore.testing.model import ModelBackend

__all__ = ["Looked", "RawRows", "ToDevice", "Twins", "looked_up"]

RawRows: TypeAlias = Callable[[Any, str, str | None], NDArray[Any]]
"""(backend, table, slot) -> the stored rows, in the order of the whole table."""

ToDevice: TypeAlias = Callable[[Any, NDArray[Any]], Any]
"""(backend, array) -> the same values as an array that the backend takes for a gradient."""

Gradients: TypeAlias = Sequence[NDArray[Any] | None]


def looked_up(backend: Backend, batches: Sequence[TableBatch]) -> list[list[NDArray[Any]]]:
    """Look up, and read the activations where the backend has arrays of its own."""
    found = backend.lookup(batches)
    if not backend.capabilities.device_arrays:
        return found
    return [[np.asarray(array) for array in arrays] for arrays in found]


@dataclass(frozen=True, eq=False)
class Looked:
    """A table's share of a batch that both have looked up."""

    spec: TableSpec
    batch: TableBatch
    model_batch: TableBatch

    def updates(self, gradients: Gradients, step: int) -> tuple[TableUpdate, TableUpdate]:
        """Return its update, for the backend and for the model."""
        assert self.spec.optimizer is not None, "the engine trains tables with an optimizer only"
        hyper = self.spec.optimizer.hyper()
        return (
            TableUpdate(self.batch, tuple(gradients), hyper, step),
            TableUpdate(self.model_batch, tuple(gradients), hyper, step),
        )

    def device_updates(
        self, gradients: Gradients, step: int, to_device: Callable[[NDArray[Any]], Any], check: bool
    ) -> tuple[TableUpdate, TableUpdate]:
        """Return the same with gradients on the device, to be tested or not, for the backend.

        What `to_device` leaves as it is, is a gradient of the host.
        """
        value = working_dtype(self.spec.dtype)
        cast = [None if one is None else one.astype(value) for one in gradients]
        own, models = self.updates(cast, step)
        given = tuple(None if one is None else to_device(one) for one in gradients)
        return replace(own, gradients=given, check=check, origin=object()), models


class Twins:
    """A backend under test and a `ModelBackend`.

    Parameters
    ----------
    backend : Backend
    raw_rows : callable
        ``raw_rows(backend, table, slot)`` reads what is stored.
    tolerance : float or None
        None: every bit must agree. Else the model takes over what the backend stored after each
        update, so that differences do not add up.
    """

    def __init__(self, backend: Backend, raw_rows: RawRows, tolerance: float | None) -> None:
        self.backend = backend
        self.model = ModelBackend()
        self._raw_rows = raw_rows
        self._tolerance = tolerance

    def create(self, spec: TableSpec) -> TableSpec:
        """Create a table."""
        self.backend.create_table(spec)
        self.model.create_table(spec)
        return spec

    def create_together(self, specs: Sequence[TableSpec]) -> None:
        """Create tables in one call."""
        self.backend.create_tables(specs)
        self.model.create_tables(specs)

    def drop(self, table: str) -> None:
        """Drop a table."""
        self.backend.drop_table(table)
        self.model.drop_table(table)

    def reseed(self, table: str, seed: int) -> None:
        """Give a table another seed, and compare what its spec says then."""
        before = self.model.specs[table]
        self.backend.reseed(table, seed)
        now = self.backend.specs[table]
        for field in fields(before):
            wanted = seed if field.name == "seed" else getattr(before, field.name)
            assert getattr(now, field.name) == wanted, f"specs must have the {field.name} as given"
        self.model.specs[table] = now  # a spec is equal only to itself
        self.check_storage()

    def raw(self, table: str, slot: str | None = None) -> NDArray[Any]:
        """Return a copy of what is stored."""
        return np.array(self._raw_rows(self.backend, table, slot))

    def lookup(
        self, *requests: tuple[str, Sequence[FeatureBags]], training: bool = False
    ) -> list[Looked]:
        """Look all tables' features up in one call, and compare the activations."""
        batches = [TableBatch(table, tuple(features), training) for table, features in requests]
        own = [TableBatch(table, tuple(features), training) for table, features in requests]
        found, expected = looked_up(self.backend, batches), self.model.lookup(own)
        assert len(found) == len(requests), "lookup must return a list per batch"
        for batch, arrays, wanted in zip(batches, found, expected, strict=True):
            assert len(arrays) == len(wanted), "lookup must return an array per feature"
            for at, (array, want) in enumerate(zip(arrays, wanted, strict=True)):
                what = f"activations of table {batch.table!r}, feature {at}: out"
                assert_agree(array, want, what, self._tolerance)
        return [
            Looked(self.model.specs[batch.table], batch, model_batch)
            for batch, model_batch in zip(batches, own, strict=True)
        ]

    def lookup_into(self, table: str, bags: FeatureBags) -> None:
        """Look one feature up, into an array that holds something else, and compare."""
        ((wanted,),) = self.model.lookup([TableBatch(table, (bags,))])
        out = np.full_like(wanted, 7)
        self.backend.lookup_into(table, bags, out)
        assert_agree(out, wanted, f"lookup_into of table {table!r}: out", self._tolerance)

    def lookup_given(self, table: str, bags: FeatureBags, combiner: str) -> None:
        """Look bags up as given, where the backend does that, and compare; it refuses bad ones."""
        spec = self.model.specs[table]
        divisor = divisors(combiner, bags.row_splits, bags.weights, working_dtype(spec.dtype))
        whole = FeatureBags(bags.ids, bags.row_splits, bags.weights, divisor)
        ((wanted,),) = self.model.lookup([TableBatch(table, (whole,))])
        out, look_up = np.full_like(wanted, 7), partial(self.backend.lookup_given, table)
        divided = DIVIDED[combiner]
        if look_up(bags.ids, bags.row_splits, bags.weights, divided, out):
            assert_agree(out, wanted, f"lookup_given of table {table!r}: out", self._tolerance)
        broken = bags.ids.copy()
        broken[-1] = spec.num_rows
        for ids, splits in ((broken, bags.row_splits), (bags.ids[1:], bags.row_splits)):
            done = look_up(ids, splits, bags.weights, divided, out)
            assert not done, f"lookup_given of table {table!r} must refuse ids and row splits"
        if bags.weights is not None:
            infinite = bags.weights.copy()
            infinite[-1] = np.inf
            for weights in (infinite, bags.weights[1:]):
                done = look_up(bags.ids, bags.row_splits, weights, divided, out)
                assert not done, f"lookup_given of table {table!r} must refuse weights"

    def apply(self, *shares: tuple[Looked, Gradients], step: int) -> None:
        """Apply the gradients of all tables in one call, and compare all that is stored."""
        self.apply_pairs([looked.updates(gradients, step) for looked, gradients in shares])

    def apply_pairs(self, pairs: Sequence[tuple[TableUpdate, TableUpdate]]) -> None:
        """Apply updates, for the backend and for the model, and compare all that is stored."""
        self.backend.apply([update for update, _ in pairs])
        self.model.apply([update for _, update in pairs])
        self.check_storage()
        if self._tolerance is not None:
            for key, array in self.model.arrays.items():
                array[...] = self.raw(*key)

    def scatter(
        self, table: str, slot: str | None, rows: NDArray[np.int64], values: NDArray[Any]
    ) -> None:
        """Overwrite distinct rows."""
        self.backend.scatter(table, slot, rows, values)
        self.model.scatter(table, slot, rows, values)

    def write(self, table: str, slot: str | None, start: int, values: NDArray[Any]) -> None:
        """Overwrite the rows from `start` on."""
        self.backend.write(table, slot, start, values)
        self.model.write(table, slot, start, values)

    def check_storage(self) -> None:
        """Compare every table and slot that is stored, read past the backend."""
        assert self.backend.specs == self.model.specs, "specs must hold the tables that exist"
        for (table, slot), expected in self.model.arrays.items():
            what = f"stored {'rows' if slot is None else slot} of table {table!r}: rows"
            assert_agree(self.raw(table, slot), expected, what, self._tolerance)

    def check_reads(self) -> None:
        """Compare what the ways of reading return with what is stored; these copy every bit."""
        for (table, slot), array in self.model.arrays.items():
            stored, what = self.raw(table, slot), f"of table {table!r}, slot {slot!r}"
            rows = np.arange(array.shape[0])[::-1].copy()
            assert_agree(self.backend.gather(table, slot, rows), stored[rows], f"gather {what}")
            assert_agree(self.backend.read(table, slot, 0, rows.size), stored, f"read {what}")
            layout = self.backend.layout(table)
            shards = self.backend.shards(table, slot)
            assert len(shards) == layout.num_shards, "shards must return an array per host"
            for host, shard in enumerate(shards):
                wanted = stored[layout.global_rows(host)]
                assert_agree(shard, wanted, f"shards[{host}] {what}")
