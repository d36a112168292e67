"""The engine: features in, activations out, gradients back, whatever the backend.

A training batch goes one way, and nothing is done twice::

    features ──▶ one Ragged each, checked ──▶ bags per table ──▶ backend: lookup    enqueue
                                                                  │
    activations, in the features' structure ◀─────────────────────┘                 dequeue
    gradients ──▶ checked, per table ──▶ backend: apply, once per unique row        apply_gradients

The same way is open to any number of batches at once, each in the hands of its caller: a `Lookup`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from shardcore.backend.base import Backend
from shardcore.backend.process_group import ProcessGroup
from shardcore.checkpoint.state import RestorePlan, SavedTensor, TensorSource
from shardcore.engine.building import Building
from shardcore.engine.checkpointing import embedding_metadata, embedding_sources, plan_restore
from shardcore.engine.description import described_feature, described_table
from shardcore.engine.handle import Lookup, pending_of
from shardcore.engine.inputs import Inputs
from shardcore.engine.life import Life
from shardcore.engine.pipeline import Inline, Operations, Pipeline
from shardcore.engine.tables import PlannedTable, chosen_backend, plan_tables
from shardcore.engine.training import Training
from shardcore.errors import (
    ShardcoreError,
    ShardcoreRuntimeError,
    ShardcoreTypeError,
    ShardcoreValueError,
    shown,
)
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.features.structure import flatten
from shardcore.optimizer.base import Optimizer
from shardcore.validation.shapes import as_count, as_integer
from shardcore.variable.row_store import BackendRowStore
from shardcore.variable.variable import ShardedVariable

__all__ = ["ShardedEmbedding"]

_SHOWN_TABLES: Final = 6
_logger = logging.getLogger("shardcore")


class ShardedEmbedding:
    """Embedding tables shared by features, looked up and trained on any backend.

    Parameters
    ----------
    feature_config : FeatureConfig, or nested dicts, lists, tuples, … of them
        The structure that features, weights, activations and gradients have too.
    optimizer : Optimizer, optional
        For tables that have none of their own. A table without any is looked up, not trained.
    backend : str or Backend, optional
        A name of `shardcore.backends`, or a backend of this engine's own. None:
        ``$SHARDCORE_BACKEND`` or "cpu".
    backend_options : mapping, optional
        Options of the named backend, such as ``{"hosts": 4}`` for "sim".
    pipeline : bool
        False: every call is finished when it returns. True: lookups and updates run on a thread
        behind the caller's, in the order of the calls, and two batches may be in flight; see Notes.
    seed : int
        Together with a table's name it decides the table's initial values, and what chance its
        optimizer takes. A restore replaces it by the saved one.
    check_gradients : bool
        True: a gradient with a value that is not finite is refused. False: it is taken as it is,
        and what it makes of rows and slots (NaN, most often) stays there.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or two tables have one name.
    UnknownPluginError, BrokenPluginError, UnavailableError
        If the backend is unknown, cannot be loaded, or cannot run here.

    Notes
    -----
    ``e(features)`` may be called from any thread at any time; it sees every row wholly before or
    wholly after an update. `enqueue`, `dequeue` and `apply_gradients` belong to one thread. Those
    of `lookup` may come from any, and are made one at a time.

    With ``pipeline=True`` `enqueue` returns once the input is checked and copied, and
    `apply_gradients` once the gradients are; learning rates are asked in the caller's thread.
    Results are those of ``pipeline=False``, to the last bit: a lookup sees exactly the updates
    whose `apply_gradients` came before its `enqueue`. If batch t + 1 is enqueued before the
    gradients of batch t are applied, its lookup comes early, with rows one update old. `dequeue`
    waits for its batch; reading or writing tables and slots, ``e(features)``, `metrics`, saving,
    restoring and `close` wait for everything. A failure in the background is raised, as the cause
    of a `ShardcoreRuntimeError`, by the next call. Once `enqueue`, `dequeue` or `apply_gradients`
    has raised it, the batches in flight are dropped, `step` says how many were applied, and the
    engine goes on. A forked child cannot use such an engine of its parent's. A `Lookup` keeps to
    the same order, by its `lookup` and its `apply_gradients`; its `activations` wait as `dequeue`.

    Changes are made in a thread of their own while the caller's waits, some 50 microseconds more
    than the change itself (on devices in the caller's, where an interrupt can split them). So
    Ctrl-C, like every exception of a signal handler, finds a call that has changed nothing, or
    raises once all of it is done: `step` and `in_flight` show which. A batch left in flight is
    ended by ``apply_gradients(None)``, after `dequeue` if that has not come yet. Batches in flight
    at a fork are the parent's. An optimizer, a learning rate or an initializer must not call the
    engine it works for.

    Examples
    --------
    >>> import numpy as np
    >>> import shardcore as sc
    >>> rows = sc.initializers.RowId()
    >>> user = sc.TableConfig(5, 2, initializer=rows, combiner="sum", name="user")
    >>> features = {"clicks": sc.FeatureConfig(user)}
    >>> with sc.ShardedEmbedding(features, optimizer=sc.optimizers.SGD(learning_rate=1.0)) as e:
    ...     e.build()
    ...     e.enqueue({"clicks": [[1, 4], [1]]})
    ...     activations = e.dequeue()
    ...     e.apply_gradients({"clicks": np.ones((2, 2))})
    ...     print(activations["clicks"])
    ...     print(e.tables["user"][1])
    [[5. 5.]
     [1. 1.]]
    [-1. -1.]
    """

    def __init__(
        self,
        feature_config: Any,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, Any] | None = None,
        pipeline: bool = False,
        seed: int = 0,
        check_gradients: bool = True,
    ) -> None:
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise ShardcoreTypeError(
                f"optimizer must be an Optimizer or None, got {shown(optimizer)}"
            )
        if not isinstance(pipeline, bool):
            raise ShardcoreTypeError(f"pipeline must be a bool, got {pipeline!r}")
        if not isinstance(check_gradients, bool):
            raise ShardcoreTypeError(f"check_gradients must be a bool, got {check_gradients!r}")
        self._features: list[tuple[str, FeatureConfig]] = flatten(feature_config)
        if not self._features:
            raise ShardcoreValueError("feature_config must hold at least one FeatureConfig")
        self._seed = as_integer(seed, "seed")
        self._planned = plan_tables(self._features, optimizer, self._seed)  # changed in place
        self._inputs = Inputs(feature_config, self._features, self._planned)
        self._backend = chosen_backend(backend, backend_options, self._planned)
        self._building = Building(self._backend, self._log_built)
        self._check_gradients = check_gradients
        self._pipeline = pipeline
        self._operations: Operations = Pipeline() if pipeline else Inline(self._backend.change)
        self._life = Life()
        self._training = Training(
            self._inputs,
            self._planned,
            self._backend,
            self._operations,
            pipeline,
            self._life,
            self._build_if_not_built,
            check_gradients,
        )
        self._progress = self._training.progress

    # --- life ------------------------------------------------------------------------------------

    def build(self, batch_size: int | None = None) -> None:
        """Create the tables. Lookups do it themselves when it was not done; once built, a no-op.

        Parameters
        ----------
        batch_size : int, optional
            Where given, the first axis of every batch must have this size; None: any, and it may
            change from batch to batch.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If it is no integer >= 1, or another one than that of an earlier call.
        ShardcoreMemoryError
            If the system has no room for a table and its slots.
        ShardcoreRuntimeError
            If the engine is closed.
        """
        self._life.using("build", self._life.inside, self._build, batch_size)

    def _build(self, batch_size: int | None = None) -> None:
        inputs = self._inputs
        size = inputs.batch_size if batch_size is None else as_count(batch_size, "batch_size")
        specs = [table.spec for table in self._planned]

        def check() -> None:
            if inputs.batch_size not in (None, size):
                raise ShardcoreValueError(
                    f"batch_size must stay what it was, {inputs.batch_size}, got {size}"
                )

        def take() -> None:
            inputs.batch_size = size

        self._building.build(specs, check, take)

    def _build_if_not_built(self) -> None:
        if not self._building.built:
            self._life.inside(self._build)

    def _log_built(self) -> None:
        if _logger.isEnabledFor(logging.INFO):
            _logger.info("built %s", self.config())

    def close(self) -> None:
        """Give the tables back. Arrays read from them stay; the engine can do nothing more.

        Raises
        ------
        ShardcoreRuntimeError
            If a call failed in the background and no other call has raised that yet. The engine is
            closed nevertheless.
        UpdateRefusedError
            If an update did nothing, as in `apply_gradients`, and no other call has raised that
            yet. Closed nevertheless.
        """
        error = self._shut()
        if error is not None:
            raise error

    def _shut(self) -> ShardcoreError | None:
        """Close, and return what no call was there to say; if cut short, it can be done again."""
        error: ShardcoreError | None = self._life.end(
            self._operations.stop, self._backend.change, self._give_back
        )
        return error

    def _give_back(self) -> ShardcoreError | None:
        error = self._progress.unsaid(self._drop_tables)
        self._backend.close()
        return error

    def _drop_tables(self) -> None:
        self._life.closed = True
        self._building.abort_restore()  # one that was cut short
        if self._building.built:
            for table in self._planned:
                self._backend.drop_table(table.spec.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        unsaid = self._shut()  # the error that ends the block goes first
        if unsaid is not None:
            error.add_note(str(unsaid))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ShardcoreTypeError(
            "a ShardedEmbedding cannot be copied or pickled: it owns its tables; make another "
            "engine, and restore a checkpoint of this one into it"
        )

    def __repr__(self) -> str:
        state = "closed" if self._life.closed else "built" if self._building.built else "not built"
        tables = ", ".join(
            f"{table.spec.name} {table.spec.num_rows}x{table.spec.dim}"
            for table in self._planned[:_SHOWN_TABLES]
        )
        if len(self._planned) > _SHOWN_TABLES:
            tables += f", ... {len(self._planned) - _SHOWN_TABLES} more"
        pipeline, hosts = "; pipeline" if self._pipeline else "", self._backend.num_hosts
        return (
            f"ShardedEmbedding({len(self._features)} features; tables: {tables}; "
            f"backend {self._backend.name!r}, {hosts} host{'s' * (hosts != 1)}{pipeline}; {state})"
        )

    # --- lookup ----------------------------------------------------------------------------------

    def __call__(self, features: Any, weights: Any = None) -> Any:
        """Look up a batch, without training. May be called from any thread.

        Parameters
        ----------
        features : the structure of the configuration
            Leaves in any form that `shardcore.ids.formats` names.
        weights : the same structure, optional
            Leaves None, a `Ragged` or `Sparse` of numbers, or an array.

        Returns
        -------
        the same structure
            Per feature an ndarray of float32 (float64 for float64 tables): (*batch shape, dim), or
            (*batch shape, max_sequence_length, dim) for a sequence. A backend whose tables live on
            a device may give arrays there instead.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If the input breaks a rule; the message begins with the feature's path.
        ShardcoreRuntimeError
            If the engine is closed.
        """
        return self._training.look_up(features, weights)

    def lookup(self, features: Any, weights: Any = None, training: bool = True) -> Lookup:
        """Look up a batch, and return it with its activations for gradients that may follow.

        For what one batch after the other does not express: two towers over one table, gradients
        that are accumulated, forwards that are abandoned. Any number may be in flight, beside what
        was enqueued.

        Parameters
        ----------
        features, weights : as in `__call__`
        training : bool
            Whether gradients may follow. False: there are activations only.

        Returns
        -------
        Lookup
            With ``activations``, ``apply_gradients(gradients)`` and ``drop()``. With
            ``pipeline=True`` it is returned once the input is checked and copied.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            As `__call__`; the engine is then as it was.
        ShardcoreRuntimeError
            If no table has an optimizer and `training` is True, an earlier call failed in the
            background, or the engine is closed.

        Examples
        --------
        >>> import numpy as np
        >>> import shardcore as sc
        >>> user = sc.TableConfig(5, 2, initializer=sc.initializers.Zeros(), name="user")
        >>> e = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.SGD(learning_rate=1.0))
        >>> one, two = e.lookup([[1]]), e.lookup([[4]])
        >>> two.apply_gradients(np.ones((1, 2)))
        >>> one.apply_gradients(np.ones((1, 2)))
        >>> e.tables["user"][:, 0], e.step
        (array([ 0., -1.,  0.,  0., -1.], dtype=float32), 2)
        """
        return Lookup(self._training, self._training.start(features, weights, training))

    def enqueue(
        self,
        features: Any,
        weights: Any = None,
        training: bool | None = None,
        name: str | None = None,
    ) -> None:
        """Look up a batch and keep it for `dequeue` and, when training, for `apply_gradients`.

        Parameters
        ----------
        features, weights : as in `__call__`
        training : bool, optional
            Whether gradients will follow. None: if any table has an optimizer.
        name : str, optional
            A name for this call: messages begin with ``enqueue 'name': ``, and `metrics` counts
            the calls of that name. One of a few words; a name per step would be counted for ever.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            As `__call__`; the engine is then as it was.
        ShardcoreRuntimeError
            If a batch is still in flight (with ``pipeline=True``: two), no table has an optimizer,
            an earlier call failed in the background, or the engine is closed.
        """
        self._training.enqueue(features, weights, training, name)

    def dequeue(self, name: str | None = None) -> Any:
        """Return the activations of the batch that was enqueued first, of those still waiting.

        Parameters
        ----------
        name : str, optional
            As in `enqueue`.

        Returns
        -------
        the structure of the configuration
            As `__call__`.

        Raises
        ------
        ShardcoreRuntimeError
            If no batch waits, or the engine is closed.
        """
        return self._training.dequeue(name)

    # --- training --------------------------------------------------------------------------------

    def apply_gradients(
        self, gradients: Any, weight_gradients: bool = False, name: str | None = None
    ) -> Any:
        """Update every row that the batch names, once, with its table's optimizer.

        Of several batches in flight it is the one that was enqueued first.

        Parameters
        ----------
        gradients : the structure of the configuration, or None
            Per feature an array shaped like its activations, of any real dtype, or None: the
            feature contributes nothing and touches no row. None for all drops the batch, which
            then counts no step. An array on the device of the backend's tables stays there; it
            must be of a floating dtype, and not change any more.
        weight_gradients : bool
            Whether to return the gradients of the weights; the call then waits for them.
        name : str, optional
            As in `enqueue`.

        Returns
        -------
        None, or the structure of the configuration
            Per feature the gradient of its weights, ordered and shaped as ids were given, or None
            where no weights or no gradient were given. They are those of the rows before the
            update.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If a gradient has another structure, shape or kind, or a value is not finite (unless
            ``check_gradients=False``), or a learning rate is not a number >= 0. Nothing is changed,
            and the batch still waits.
        UpdateRefusedError
            If a value of a gradient on a device was not finite. That is tested there, and raised
            by this or a later call of any kind: the update, and those after it, did nothing. The
            batches in flight are dropped then, and `step` says how many were applied.
        ShardcoreRuntimeError
            If no training batch was dequeued, an earlier call failed in the background, or the
            engine is closed.
        """
        return self._training.apply_next(gradients, weight_gradients, name)

    def apply(
        self, pairs: Sequence[tuple[Lookup, Any]], weight_gradients: bool = False
    ) -> list[Any] | None:
        """Update every row that any of several lookups names, once, as one step.

        It is the update of one batch that holds all of theirs, to the last bit: per feature the
        bags of the first lookup, then those of the next, as if the features had been joined along
        their first axis. A row's gradients are summed in that order, so by feature first and by
        lookup second, and its optimizer sees their sum once; learning rates are asked once.

        Parameters
        ----------
        pairs : list or tuple of (Lookup, gradients)
            Lookups of this engine, each once, with gradients as in `apply_gradients`. None for a
            feature leaves the bags of that lookup and feature out; None for all drops the lookup.
        weight_gradients : bool
            Whether to return the gradients of the weights; the call then waits for them.

        Returns
        -------
        None, or list with the structure of the configuration per pair
            As `apply_gradients` returns for each.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            As `apply_gradients`, the message beginning with the pair's place. Nothing is changed,
            and all of them can still be applied.
        UpdateRefusedError
            As `apply_gradients`.
        ShardcoreRuntimeError
            If one of them was applied or dropped already or is of ``training=False``, an earlier
            call failed in the background, or the engine is closed.

        Examples
        --------
        >>> import numpy as np
        >>> import shardcore as sc
        >>> user = sc.TableConfig(5, 2, initializer=sc.initializers.Zeros(), name="user")
        >>> e = sc.ShardedEmbedding(sc.FeatureConfig(user), sc.optimizers.SGD(learning_rate=1.0))
        >>> one, two = e.lookup([[1]]), e.lookup([[4], [1]])
        >>> e.apply([(one, np.ones((1, 2))), (two, np.ones((2, 2)))])
        >>> e.tables["user"][:, 0], e.step
        (array([ 0., -2.,  0.,  0., -1.], dtype=float32), 1)
        """
        return self._training.apply_several(pending_of(pairs, self._training), weight_gradients)

    # --- what can be seen ------------------------------------------------------------------------

    @property
    def embedding_tables(self) -> dict[TableConfig, ShardedVariable]:
        """The tables, as views: reading and writing them reads and writes the backend's rows.

        Raises
        ------
        ShardcoreRuntimeError
            If the engine is not built, or closed.
        """
        return {table.config: self._view(table.spec.name, None) for table in self._built_tables()}

    @property
    def tables(self) -> dict[str, ShardedVariable]:
        """The tables by name, as `embedding_tables`."""
        return {
            table.spec.name: self._view(table.spec.name, None) for table in self._built_tables()
        }

    @property
    def slots(self) -> dict[str, dict[str, ShardedVariable]]:
        """The optimizer slots by table and slot name, as views; row slots have one column."""
        return {
            table.spec.name: {
                slot.name: self._view(table.spec.name, slot.name) for slot in table.spec.slots
            }
            for table in self._built_tables()
        }

    @property
    def step(self) -> int:
        """How many batches were applied, restored ones and those on their way included."""
        return self._progress.step

    @property
    def in_flight(self) -> int:
        """How many batches are between their `enqueue` or `lookup` and their end.

        After an interrupt it says whether the call that was interrupted has taken its batch in, or
        ended it. A `Lookup` counts until it is applied, dropped or collected; one without training
        until its activations are read.
        """
        return len(self._training.in_flight)

    def config(self) -> dict[str, Any]:
        """Return the whole configuration as it was resolved, in terms of JSON.

        It is logged when the tables are built (logger ``shardcore``, level INFO). Two engines that
        are made alike have equal ones.

        Returns
        -------
        dict
            ``backend``, ``hosts``, ``batch_size``, ``pipeline``, ``check_gradients``, ``seed``;
            ``tables``: for each its name, rows, dim, dtype, combiner, initializer, layout,
            placement, exchange, quantization, the paths of its features, and its optimizer with
            every parameter and whether a learning rate is ``"constant"`` or ``"dynamic"``;
            ``features``: for each its path, name, table and settings.

        Examples
        --------
        >>> import shardcore as sc
        >>> user = sc.TableConfig(5, 2, name="user", optimizer=sc.optimizers.SGD(lambda: 0.5))
        >>> config = sc.ShardedEmbedding({"clicks": sc.FeatureConfig(user)}).config()
        >>> config["backend"], config["hosts"], config["tables"][0]["features"]
        ('cpu', 1, ["features['clicks']"])
        >>> config["tables"][0]["optimizer"]["learning_rate"]
        'dynamic'
        """
        names = {table.config: table.spec.name for table in self._planned}
        return {
            "backend": self._backend.name,
            "hosts": self._backend.num_hosts,
            "batch_size": self._inputs.batch_size,
            "pipeline": self._pipeline,
            "check_gradients": self._check_gradients,
            "seed": self._seed,
            "tables": [described_table(table, self._features) for table in self._planned],
            "features": [
                described_feature(path, feature, names[feature.table])
                for path, feature in self._features
            ],
        }

    def _built_tables(self) -> list[PlannedTable]:
        self._life.check_callback("reading tables")
        self._life.check_open("reading tables")
        if not self._building.built:
            raise ShardcoreRuntimeError("there are no tables yet: build first")
        self._operations.settle()
        return self._planned

    def _view(self, table: str, slot: str | None) -> ShardedVariable:
        name = table if slot is None else f"{table}/{slot}"
        store = BackendRowStore(self._backend, table, slot, self._view_call)
        return ShardedVariable.from_store(store, name)

    def _view_call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call for a view of a table, which says itself that its engine was closed."""
        self._life.check_callback("reading or writing a table")
        return self._life.viewing(self._progress.settled, call, *arguments)

    def metrics(self) -> dict[str, int]:
        """Return what was counted since the engine was made.

        Returns
        -------
        dict
            ``lookups`` (batches), ``ids`` looked up, ``invalid_ids`` that a policy dealt with,
            ``steps`` applied, ``messages_exchanged`` and ``bytes_exchanged`` between hosts, and
            whatever else the backend counts: ``unique_rows``, the distinct rows of each table that
            were updated, added up over tables and updates. ``enqueue/NAME``, ``dequeue/NAME`` and
            ``apply_gradients/NAME`` are the calls that were given that name.
        """
        if self._life.is_inside():  # an optimizer may look: its call holds what is needed
            of_backend = self._backend.counters()
        else:
            of_backend = self._life.viewing(self._progress.settled, self._backend.counters)
        counted = self._training.counters.read()
        return {**counted, "steps": self._progress.own_steps, **of_backend}

    # --- checkpoints -----------------------------------------------------------------------------

    @property
    def checkpoint_process_group(self) -> ProcessGroup | None:
        """The processes that hold the tables, and save and restore them together; or None."""
        return self._backend.process_group

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the engine beside its tensors."""
        return embedding_metadata(self._built_tables(), self._progress.handed_over, self._seed)

    def checkpoint_tensors(self) -> list[TensorSource]:
        """Return tables and slots as tensors, a row range per host."""
        return [
            replace(source, read=partial(self._view_call, source.read))
            for source in embedding_sources(self._built_tables(), self._backend)
        ]

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        """Return how tables and slots are restored; an engine that is not built gets built by it.

        Raises
        ------
        ShardcoreValueError
            If tables are missing or differ in shape or dtype, or the optimizer is another one.
        ShardcoreRuntimeError
            If an enqueued batch is in flight, or the engine is closed. Each `Lookup` in flight is
            dropped once all is restored.
        """
        self._life.check_callback("restore")
        self._life.check_open("restore")
        self._operations.settle()
        if self._training.in_flight.in_line:
            raise ShardcoreRuntimeError("restore came while a batch is in flight: finish it first")
        self._progress.check_updates(wait=True)
        built = self._building.built
        plan = plan_restore(
            self._planned, self._backend, metadata, tensors, live=built, slots=slots
        )

        def take() -> None:
            self._seed, self._planned[:] = plan.seed, plan.tables
            self._progress.restored(plan.step)
            for spec in plan.specs:
                self._backend.reseed(spec.name, spec.seed)

        def commit() -> None:
            try:
                plan.reset_slots()
            except BaseException:
                self._building.abort_restore()
                raise
            self._building.end_restore(take)

        return RestorePlan(
            plan.writes,
            live=built,
            commit=commit,
            abort=self._building.abort_restore,
            skipped=plan.skipped,
            begin=partial(self._building.begin_restore, plan.specs, built),
        )
