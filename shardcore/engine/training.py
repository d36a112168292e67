"""Lookups and updates of batches, for callers who hold them and for those who put them in line.

There is one way: a batch is prepared, looked up and *pending*; later its gradients are read, make
an update per table with those of the other batches of the step, and end it. A handle holds what is
pending; `enqueue` puts it in line. Calls of training are made one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.engine.counters import Counters
from shardcore.engine.given_lookups import GivenLookups
from shardcore.engine.given_steps import GivenBatch, GivenSteps
from shardcore.engine.gradients import Share, gradients_of_weights, read_gradients, table_updates
from shardcore.engine.in_flight import APPLIED, DROPPED, READ, Batch, BatchesInFlight, Pending
from shardcore.engine.inputs import Inputs
from shardcore.engine.life import Life
from shardcore.engine.max_gradients import at_occurrences
from shardcore.engine.pipeline import Operations, Ticket
from shardcore.engine.progress import Progress
from shardcore.engine.tables import PlannedTable
from shardcore.errors import (
    ShardcoreError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
)
from shardcore.store.bag_max import max_of_bags
from shardcore.store.given_bags import DIVIDED
from shardcore.threads.work import InTurn

__all__ = ["Training"]


class Training:
    """The batches of one engine, from features to updates.

    Parameters
    ----------
    inputs : Inputs
    tables : list of PlannedTable
        The engine's own list, which a restore changes in place.
    backend : Backend
    operations : Operations
    background : bool
        Whether operations outlive the calls that ask for them.
    life : Life
    build : callable
        Creates the tables where that was not done.
    check_gradients : bool

    Attributes
    ----------
    in_flight : BatchesInFlight
    progress : Progress
    counters : Counters
    """

    def __init__(
        self,
        inputs: Inputs,
        tables: list[PlannedTable],
        backend: Backend,
        operations: Operations,
        background: bool,
        life: Life,
        build: Callable[[], None],
        check_gradients: bool,
    ) -> None:
        self._inputs = inputs
        self._tables = tables
        self._trainable = any(table.spec.optimizer is not None for table in tables)
        self._backend = backend
        self._operations = operations
        self._background = background
        self._life = life
        self._build = build
        self._check_gradients = check_gradients
        self._stages = not background and _stages(backend)
        self.counters = Counters()
        self.in_flight = BatchesInFlight(2 if background else 1)
        self.progress = Progress(backend, operations, self.in_flight, life)
        self._given: GivenLookups | None = None
        self._given_steps: GivenSteps | None = None
        self._asked_for_steps = inputs.special or not self._stages or not _makes_steps(backend)
        # A backend that leaves bags as given to others is not asked for every lookup.
        if type(backend).lookup_given is not Backend.lookup_given and not inputs.special:
            # Without a reference to this object, which would then be freed by the collector alone.
            waits = background or backend.capabilities.device_arrays
            settle = partial(_settle, operations, self.progress) if waits else None
            self._given = GivenLookups(
                inputs, life, backend.lookup_given, settle, self.counters.count_lookup
            )

    # --- without training, from any thread -------------------------------------------------------

    def look_up(self, features: Any, weights: Any) -> Any:
        """Look up a batch at once, from any thread."""
        given = self._given
        if given is not None:
            if not given.built:
                self._life.viewing("a lookup", self._build_for, given)
            found = given.look_up(features, weights)
            if found is not None:
                return found
        return self._life.viewing("a lookup", self._look_up_features, features, weights)

    def _build_for(self, given: GivenLookups) -> None:
        self._life.check_open("a lookup")
        self._build()
        given.built = True

    def _look_up_features(self, features: Any, weights: Any) -> Any:
        self._life.check_open("a lookup")
        self._build()
        batch = self._batch(features, weights, False, False)
        self._operations.settle()
        return self._inputs.nested(self._look_up(batch))

    # --- in the hands of a caller ----------------------------------------------------------------

    def start(self, features: Any, weights: Any, training: bool) -> Pending:
        """Look up a batch for a caller who holds it."""
        found: Pending = self._call("lookup", None, self._start, features, weights, training)
        return found

    def _start(self, call: str, features: Any, weights: Any, training: bool) -> Pending:
        if not isinstance(training, bool):
            raise ShardcoreTypeError(f"training must be a bool, got {training!r}")
        pending = self._looked_up(call, features, weights, training)
        self.in_flight.hold(pending)
        return pending

    def activations(self, pending: Pending) -> Any:
        """Return the activations of one that a caller holds, in the structure of the features."""
        return self._call("activations", None, self._activations, pending)

    def _activations(self, call: str, pending: Pending) -> Any:
        found = self.progress.result(self.in_flight.lookup_of(call, pending))
        if not pending.training:
            pending.end(READ)
        return self._inputs.nested(found)

    def apply_one(self, pending: Pending, gradients: Any, weight_gradients: bool) -> Any:
        """Apply the gradients of one that a caller holds."""
        return self._call(
            "apply_gradients", None, self._apply_one, pending, gradients, weight_gradients
        )

    def apply_several(
        self, pairs: Sequence[tuple[Pending, Any]], weight_gradients: bool
    ) -> list[Any] | None:
        """Apply the gradients of several that a caller holds as one step."""
        found: list[Any] | None = self._call(
            "apply", None, self._apply_several, pairs, weight_gradients
        )
        return found

    # --- in line ---------------------------------------------------------------------------------

    def enqueue(self, features: Any, weights: Any, training: bool | None, name: str | None) -> None:
        """Look up a batch and put it in line."""
        self._call("enqueue", name, self._enqueue, features, weights, training)

    def _enqueue(self, call: str, features: Any, weights: Any, training: bool | None) -> None:
        self.in_flight.check_room()
        if training is None:
            training = self._trainable
        if not isinstance(training, bool):
            raise ShardcoreTypeError(f"training must be a bool or None, got {training!r}")
        self.in_flight.enqueue(self._looked_up(call, features, weights, training))

    def dequeue(self, name: str | None) -> Any:
        """Return the activations of the next in line."""
        return self._call("dequeue", name, self._dequeue)

    def _dequeue(self, call: str) -> Any:
        pending = self.in_flight.to_dequeue()
        assert pending.lookup is not None, "batches wait with their lookups"
        activations = self._inputs.nested(self.progress.result(pending.lookup))
        self.in_flight.handed_out(pending)
        return activations

    def apply_next(self, gradients: Any, weight_gradients: bool, name: str | None) -> Any:
        """Apply the gradients of the next in line."""
        return self._call("apply_gradients", name, self._apply_next, gradients, weight_gradients)

    def _apply_next(self, call: str, gradients: Any, weight_gradients: bool) -> Any:
        return self._apply_one(call, self.in_flight.to_apply(), gradients, weight_gradients)

    # --- the way of all --------------------------------------------------------------------------

    def _call(
        self, call: str, name: str | None, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Make a call of training, one at a time."""
        if name is not None and not isinstance(name, str):
            raise ShardcoreTypeError(f"name must be a string or None, got {name!r}")
        if name == "":
            raise ShardcoreValueError("name must not be empty")
        return self._life.alone(call, self._named, call, name, function, arguments)

    def _named(
        self, call: str, name: str | None, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Any:
        """Raise what failed before; begin messages with the call's name, and count it."""
        self.progress.check_failure()
        if name is None:
            return function(call, *arguments)
        label = f"{call} {name!r}"
        try:
            result = function(label, *arguments)
        except ShardcoreError as error:
            raise type(error)(f"{label}: {error}") from error
        self.counters.add(**{f"{call}/{name}": 1})
        return result

    def _looked_up(self, call: str, features: Any, weights: Any, training: bool) -> Pending:
        if training and not self._trainable:
            raise ShardcoreRuntimeError("training=True needs an optimizer: no table has one")
        self._build()
        if training and weights is None:
            given = self._looked_up_as_given(features)
            if given is not None:
                return given
        keep = training or self._background
        batch = self._batch(features, weights, training, keep)
        # The operation knows the batch alone: of those that callers let go, none is kept by it.
        return Pending(
            batch, self._operations.submit(call, partial(self._look_up, batch)), training
        )

    def _looked_up_as_given(self, features: Any) -> Pending | None:
        """Look up few bags that are plain; None, and nothing was done: the way of all others."""
        if not self._asked_for_steps:  # once the tables are there
            self._given_steps = self._steps_of_backend()
            self._asked_for_steps = True
        steps = self._given_steps
        batch = None if steps is None else steps.look_up(features)
        if batch is None:
            return None
        self.counters.count_lookup(batch.ids, 0)
        ticket = Ticket()
        ticket.value, ticket.done = batch.activations(), True
        return Pending(batch, ticket, True)

    def _steps_of_backend(self) -> GivenSteps | None:
        inputs, tables = self._inputs, self._tables
        steps = self._backend.steps(
            [table.spec.name for table in tables],
            [table.features for table in tables],
            [DIVIDED["sum"] if one.divided is None else one.divided for one in inputs.features],
            inputs.one_host,
        )
        if steps is None:
            return None
        return GivenSteps(inputs, tables, steps, self._check_gradients, DIVIDED["sum"])

    def forget_tables(self) -> None:
        """Keep nothing of the tables alive, which are about to be given back."""
        self._given_steps = None

    def _batch(self, features: Any, weights: Any, training: bool, keep: bool) -> Batch:
        """Check a batch; of what is refused the backend is told."""
        try:
            return self._inputs.batch(features, weights, training, keep)
        except Exception as error:
            self._backend.refuse("lookup", error)
            raise

    def _look_up(self, batch: Batch) -> list[NDArray[Any]]:
        """Return the activations of each feature."""
        self.progress.check_updates(wait=False)
        found = self._backend.lookup(batch.tables)
        activations: list[Any] = [None] * len(batch.prepared)
        ids = invalid_ids = 0
        for table, arrays in zip(self._tables, found, strict=True):
            for at, array in zip(table.features, arrays, strict=True):
                prepared = batch.prepared[at]
                ids += prepared.bags.ids.size
                invalid_ids += prepared.invalid
                shape = (*prepared.shape, table.spec.dim)
                splits = prepared.max_splits
                if splits is not None:
                    rows = np.ascontiguousarray(array, self._inputs.features[at].value)
                    array, batch.winners[at] = max_of_bags(rows, splits)
                activations[at] = array if array.shape == shape else array.reshape(*shape)
        self.counters.count_lookup(ids, invalid_ids)
        return activations

    def _apply_one(
        self, call: str, pending: Pending, gradients: Any, weight_gradients: bool
    ) -> Any:
        try:
            staged = None if weight_gradients else self._staged_as_given(call, pending, gradients)
            if staged is None:
                share = self._share(call, pending, gradients)
        except Exception as error:
            self._backend.refuse("apply", error)
            raise
        if staged is not None:
            ends = self.in_flight.ending(pending, APPLIED)
            self._backend.change(InTurn([staged, *self.progress.counting_one(), *ends]))
            return None
        found = self._step(call, [(pending, gradients)], [share], weight_gradients)
        return found[0] if weight_gradients else None

    def _staged_as_given(self, call: str, pending: Pending, gradients: Any) -> InTurn | None:
        """Prepare the step of few plain bags; None, and nothing was done: the way of all others."""
        batch = self.in_flight.batch_of(call, pending)
        if type(batch) is not GivenBatch:
            return None
        return batch.stage(gradients, self.progress.handed_over + 1)

    def _apply_several(
        self, call: str, pairs: Sequence[tuple[Pending, Any]], weight_gradients: bool
    ) -> list[Any] | None:
        shares = []
        for at, (pending, gradients) in enumerate(pairs):
            place = f"pairs[{at}]: "
            try:
                shares.append(self._share(call, pending, gradients, place))
            except ShardcoreError as error:
                told = type(error)(f"{place}{error}")
                self._backend.refuse("apply", told)
                raise told from error
        found = self._step(call, pairs, shares, weight_gradients)
        return found if weight_gradients else None

    def _share(self, call: str, pending: Pending, gradients: Any, place: str = "") -> Share:
        """Check the gradients of one that waits for them."""
        batch = self.in_flight.batch_of(call, pending)
        checked = read_gradients(
            self._inputs.features,
            batch,
            self._inputs.optional_leaves(gradients, "gradients"),
            self._backend,
            check=self._check_gradients,
            keep=self._background,
        )
        return Share(batch, checked, place)

    def _step(
        self,
        call: str,
        pairs: Sequence[tuple[Pending, Any]],
        shares: Sequence[Share],
        weight_gradients: bool,
    ) -> list[Any]:
        """Update the tables once by all shares, and end what was pending: both, or neither."""
        progress = self.progress
        try:
            updates = table_updates(
                self._tables, self._inputs.features, shares, progress.handed_over + 1
            )
        except Exception as error:
            self._backend.refuse("apply", error)
            raise

        ends = [
            call
            for pending, gradients in pairs
            for call in self.in_flight.ending(pending, DROPPED if gradients is None else APPLIED)
        ]
        if self._stages and updates and not weight_gradients:
            progress.check_updates(wait=False)
            staged = self._backend.stage(at_occurrences(updates))
            if staged is not None:
                self._backend.change(InTurn([staged, *progress.counting_one(), *ends]))
                return []

        def update() -> list[Any]:
            found = []
            ready = at_occurrences(updates)
            progress.check_updates(wait=weight_gradients)
            if weight_gradients:
                found = [
                    gradients_of_weights(self._tables, share, ready, self._backend)
                    for share in shares
                ]
            if updates:
                self._backend.apply(ready)
                progress.applied += 1
            return found

        def booked() -> None:
            progress.handed_over += bool(updates)
            for call in ends:
                call()

        ticket = self._operations.change(call, update, booked)
        if not weight_gradients:
            return []
        return [self._inputs.nested(leaves) for leaves in progress.result(ticket)]


def _settle(operations: Operations, progress: Progress) -> None:
    operations.settle()
    progress.check_updates(wait=False)


def _stages(backend: Backend) -> bool:
    """Return whether updates may be staged: not where a subclass has an `apply` of its own."""
    return _is_last_word(backend, "stage", ("apply",))


def _makes_steps(backend: Backend) -> bool:
    """Return whether a backend that stages updates may make whole steps: as `_stages`."""
    return _is_last_word(backend, "steps", ("lookup", "stage"))


def _is_last_word(backend: Backend, method: str, others: Sequence[str]) -> bool:
    """Return whether no subclass of the class that defines a method defines one of others."""
    for kind in type(backend).__mro__:
        if any(name in vars(kind) for name in (method, *others)):
            return method in vars(kind) and kind is not Backend
    return False
