"""The engine: features in, activations out, gradients back, whatever the backend.

A training batch goes one way, and nothing is done twice::

    features ──▶ one Ragged each, checked ──▶ bags per table ──▶ backend: lookup    enqueue
                                                                  │
    activations, in the features' structure ◀─────────────────────┘                 dequeue
    gradients ──▶ checked, per table ──▶ backend: apply, once per unique row        apply_gradients
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from shardcore.backend import Backend, BackendRowStore
from shardcore.batch import TableBatch, TableUpdate
from shardcore.checkpoint.state import RestorePlan, SavedTensor, TensorSource
from shardcore.config import FeatureConfig, TableConfig
from shardcore.dtypes import working_dtype
from shardcore.embedding_state import embedding_metadata, embedding_sources, plan_restore
from shardcore.errors import ShardcoreRuntimeError, ShardcoreTypeError, ShardcoreValueError
from shardcore.feature_input import PreparedFeature, prepare_feature, read_gradient
from shardcore.optimizer import Optimizer
from shardcore.registry import get_backend
from shardcore.shapes import as_count, as_integer
from shardcore.structure import flatten, flatten_like, unflatten
from shardcore.table_plan import PlannedTable, plan_tables
from shardcore.variable import ShardedVariable

__all__ = ["ShardedEmbedding"]


@dataclass(eq=False)
class _InFlight:
    """A batch between `enqueue` and its end."""

    prepared: list[PreparedFeature]
    batches: list[TableBatch]
    activations: list[NDArray[Any]]
    training: bool
    dequeued: bool = False


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
        Must be False in this version: every call is finished when it returns.
    seed : int
        Together with a table's name it decides the table's initial values.

    Raises
    ------
    ShardcoreTypeError, ShardcoreValueError
        If an argument breaks its rule, or two tables have one name.
    UnknownPluginError, BrokenPluginError, UnavailableError
        If the backend is unknown, cannot be loaded, or cannot run here.

    Notes
    -----
    ``e(features)`` may be called from any thread at any time; it sees every row wholly before or
    wholly after an update. `enqueue`, `dequeue` and `apply_gradients` belong to one thread.

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
    ) -> None:
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise ShardcoreTypeError(f"optimizer must be an Optimizer or None, got {optimizer!r}")
        if not isinstance(pipeline, bool):
            raise ShardcoreTypeError(f"pipeline must be a bool, got {pipeline!r}")
        if pipeline:
            raise ShardcoreValueError("pipeline=True is not supported by this version")
        self._features: list[tuple[str, FeatureConfig]] = flatten(feature_config)
        # Containers of our own: the caller may change his.
        self._structure = unflatten(feature_config, [config for _, config in self._features])
        if not self._features:
            raise ShardcoreValueError("feature_config must hold at least one FeatureConfig")
        self._seed = as_integer(seed, "seed")
        self._planned = plan_tables(self._features, optimizer, self._seed)
        self._backend = _make_backend(backend, backend_options)
        self._batch_size: int | None = None
        self._built = False
        self._closed = False
        self._step = 0
        self._in_flight: _InFlight | None = None
        self._counter_lock = threading.Lock()
        self._build_lock = threading.Lock()
        self._counters = dict.fromkeys(
            ("lookups", "ids", "invalid_ids", "steps", "messages_exchanged", "bytes_exchanged"), 0
        )

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
        ShardcoreRuntimeError
            If the engine is closed.
        """
        self._check_open("build")
        size = self._batch_size if batch_size is None else as_count(batch_size, "batch_size")
        if self._batch_size not in (None, size):
            raise ShardcoreValueError(
                f"batch_size must stay what it was, {self._batch_size}, got {size}"
            )
        with self._build_lock:
            if not self._built:
                self._create_tables([table.spec for table in self._planned])
                self._built = True
            self._batch_size = size

    def _create_tables(self, specs: Sequence[Any]) -> None:
        """Create all tables or none."""
        for spec in specs:
            if spec.name in self._backend.specs:
                raise ShardcoreValueError(
                    f"backend {self._backend.name!r} has a table {spec.name!r} already: "
                    "every engine needs a backend of its own"
                )
        created: list[str] = []
        try:
            for spec in specs:
                self._backend.create_table(spec)
                created.append(spec.name)
        except BaseException:
            for name in created:
                self._backend.drop_table(name)
            raise

    def close(self) -> None:
        """Give the tables back. What was read from them stays; the engine is of no more use."""
        if self._closed:
            return
        self._closed = True
        self._in_flight = None
        if self._built:
            for table in self._planned:
                self._backend.drop_table(table.spec.name)
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ShardcoreRuntimeError(f"{call} came after close: the tables are gone")

    def __repr__(self) -> str:
        state = "closed" if self._closed else "built" if self._built else "not built"
        tables = ", ".join(
            f"{table.spec.name} {table.spec.num_rows}x{table.spec.dim}" for table in self._planned
        )
        return (
            f"ShardedEmbedding({len(self._features)} features; tables: {tables}; "
            f"backend {self._backend.name!r}, {self._backend.num_hosts} hosts; {state})"
        )

    # --- lookup ----------------------------------------------------------------------------------

    def __call__(self, features: Any, weights: Any = None) -> Any:
        """Look up a batch, without training. May be called from any thread.

        Parameters
        ----------
        features : the structure of the configuration
            Leaves in any form that `shardcore.inputs` names.
        weights : the same structure, optional
            Leaves None, a `Ragged` of numbers, or an array.

        Returns
        -------
        the same structure
            Per feature an ndarray of float32 (float64 for float64 tables): (*batch shape, dim), or
            (*batch shape, max_sequence_length, dim) for a sequence.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            If the input breaks a rule; the message begins with the feature's path.
        ShardcoreRuntimeError
            If the engine is closed.
        """
        self._check_open("a lookup")
        self.build()
        return self._as_structure(self._look_up(features, weights, training=False).activations)

    def enqueue(self, features: Any, weights: Any = None, training: bool | None = None) -> None:
        """Look up a batch and keep it for `dequeue` and, when training, for `apply_gradients`.

        Parameters
        ----------
        features, weights : as in `__call__`
        training : bool, optional
            Whether gradients will follow. None: if any table has an optimizer.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError, ShardcoreIndexError
            As `__call__`; the engine is then as it was.
        ShardcoreRuntimeError
            If a batch is still in flight, no table has an optimizer, or the engine is closed.
        """
        self._check_open("enqueue")
        waiting = self._in_flight
        if waiting is not None:
            what = "apply_gradients (apply_gradients(None) drops it)"
            raise ShardcoreRuntimeError(
                "enqueue came while the last batch waits for "
                f"{what if waiting.dequeued else 'dequeue'}"
            )
        trainable = any(table.spec.optimizer is not None for table in self._planned)
        if training is None:
            training = trainable
        if not isinstance(training, bool):
            raise ShardcoreTypeError(f"training must be a bool or None, got {training!r}")
        if training and not trainable:
            raise ShardcoreRuntimeError("training=True needs an optimizer: no table has one")
        self.build()
        self._in_flight = self._look_up(features, weights, training)

    def dequeue(self) -> Any:
        """Return the activations of the batch that was enqueued.

        Returns
        -------
        the structure of the configuration
            As `__call__`.

        Raises
        ------
        ShardcoreRuntimeError
            If no batch waits, or the engine is closed.
        """
        self._check_open("dequeue")
        batch = self._in_flight
        if batch is None or batch.dequeued:
            raise ShardcoreRuntimeError("dequeue came without a batch: enqueue one first")
        batch.dequeued = True
        if not batch.training:
            self._in_flight = None
        return self._as_structure(batch.activations)

    def _look_up(self, features: Any, weights: Any, training: bool) -> _InFlight:
        prepared = self._prepare(features, weights, keep=training)
        batches = [
            TableBatch(
                table.spec.name,
                tuple(prepared[at].bags for at in table.features),
                training and table.spec.optimizer is not None,
            )
            for table in self._planned
        ]
        found = self._backend.lookup(batches)
        activations: list[Any] = [None] * len(prepared)
        for table, arrays in zip(self._planned, found, strict=True):
            for at, array in zip(table.features, arrays, strict=True):
                activations[at] = array.reshape(*prepared[at].shape, table.spec.dim)
        with self._counter_lock:
            self._counters["lookups"] += 1
            self._counters["ids"] += sum(feature.bags.ids.size for feature in prepared)
            self._counters["invalid_ids"] += sum(feature.invalid for feature in prepared)
        return _InFlight(prepared, batches, activations, training)

    def _prepare(self, features: Any, weights: Any, keep: bool) -> list[PreparedFeature]:
        leaves = flatten_like(self._structure, features, "features")
        weight_leaves = (
            [None] * len(leaves)
            if weights is None
            else flatten_like(self._structure, weights, "weights")
        )
        names = {table.config: table.spec.name for table in self._planned}
        prepared = []
        for (path, config), leaf, weight_leaf in zip(
            self._features, leaves, weight_leaves, strict=True
        ):
            weights_path = "weights" + path.removeprefix("features")
            feature = prepare_feature(
                config, leaf, weight_leaf, path, weights_path, names[config.table], keep
            )
            samples = feature.shape[0] if feature.shape else 1
            if self._batch_size not in (None, samples):
                raise ShardcoreValueError(
                    f"{path} must have the batch size given to build, {self._batch_size}, "
                    f"got {samples}"
                )
            prepared.append(feature)
        return prepared

    def _as_structure(self, leaves: Sequence[Any]) -> Any:
        return unflatten(self._structure, leaves)

    # --- training --------------------------------------------------------------------------------

    def apply_gradients(self, gradients: Any, weight_gradients: bool = False) -> Any:
        """Update every row that the batch names, once, with its table's optimizer.

        Parameters
        ----------
        gradients : the structure of the configuration, or None
            Per feature an array shaped like its activations, of any real dtype, or None: the
            feature contributes nothing and touches no row. None for all drops the batch, which
            then counts no step.
        weight_gradients : bool
            Whether to return the gradients of the weights.

        Returns
        -------
        None, or the structure of the configuration
            Per feature the gradient of its weights, ordered and shaped as ids were given, or None
            where no weights or no gradient were given. They are those of the rows before the
            update.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If a gradient has another structure, shape or kind, or a value is not finite, or a
            learning rate is not a number >= 0. Nothing is changed, and the batch still waits.
        ShardcoreRuntimeError
            If no training batch was dequeued, or the engine is closed.
        """
        self._check_open("apply_gradients")
        batch = self._in_flight
        if batch is None:
            raise ShardcoreRuntimeError(
                "apply_gradients came without a training batch: enqueue and dequeue one first"
            )
        if not batch.training:
            raise ShardcoreRuntimeError("apply_gradients came for a batch of training=False")
        if not batch.dequeued:
            raise ShardcoreRuntimeError("apply_gradients came before dequeue")
        leaves = (
            [None] * len(self._features)
            if gradients is None
            else flatten_like(self._structure, gradients, "gradients")
        )
        checked = self._read_gradients(batch, leaves)
        updates = self._updates(batch, checked)
        of_weights = self._weight_gradients(batch, updates) if weight_gradients else None
        if updates:
            self._backend.apply(updates)
            self._step += 1
            with self._counter_lock:
                self._counters["steps"] += 1
        self._in_flight = None
        return of_weights

    def _read_gradients(self, batch: _InFlight, leaves: Sequence[Any]) -> list[NDArray[Any] | None]:
        names = {table.config: table.spec for table in self._planned}
        checked = []
        for (path, config), leaf, activation in zip(
            self._features, leaves, batch.activations, strict=True
        ):
            path = "gradients" + path.removeprefix("features")
            spec = names[config.table]
            if leaf is not None and spec.optimizer is None:
                raise ShardcoreValueError(
                    f"{path} must be None: table {spec.name!r} has no optimizer"
                )
            checked.append(read_gradient(leaf, activation.shape, working_dtype(spec.dtype), path))
        return checked

    def _updates(
        self, batch: _InFlight, gradients: Sequence[NDArray[Any] | None]
    ) -> list[TableUpdate]:
        """Return an update per table that has a gradient; learning rates are asked for here."""
        updates = []
        hyper: dict[Optimizer, tuple[float, ...]] = {}
        for table, table_batch in zip(self._planned, batch.batches, strict=True):
            own = tuple(gradients[at] for at in table.features)
            optimizer = table.spec.optimizer
            if optimizer is None or all(gradient is None for gradient in own):
                continue
            if optimizer not in hyper:
                hyper[optimizer] = optimizer.hyper()
            updates.append(TableUpdate(table_batch, own, hyper[optimizer], self._step + 1))
        return updates

    def _weight_gradients(self, batch: _InFlight, updates: Sequence[TableUpdate]) -> Any:
        found: list[NDArray[Any] | None] = [None] * len(self._features)
        by_name = {update.batch.table: update for update in updates}
        for table in self._planned:
            update = by_name.get(table.spec.name)
            if update is None:
                continue
            for at, dots in zip(table.features, self._backend.weight_dots(update), strict=True):
                if dots is not None:
                    found[at] = batch.prepared[at].weight_gradient(table.config.combiner, dots)
        return self._as_structure(found)

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
                slot.name: self._view(table.spec.name, slot.name)
                for slot in (table.spec.optimizer.slots if table.spec.optimizer else ())
            }
            for table in self._built_tables()
        }

    @property
    def step(self) -> int:
        """How many batches were applied, restored ones included."""
        return self._step

    def _built_tables(self) -> list[PlannedTable]:
        self._check_open("reading tables")
        if not self._built:
            raise ShardcoreRuntimeError("there are no tables yet: build first")
        return self._planned

    def _view(self, table: str, slot: str | None) -> ShardedVariable:
        name = table if slot is None else f"{table}/{slot}"
        return ShardedVariable.from_store(BackendRowStore(self._backend, table, slot), name)

    def metrics(self) -> dict[str, int]:
        """Return what was counted since the engine was made.

        Returns
        -------
        dict
            ``lookups`` (batches), ``ids`` looked up, ``invalid_ids`` that a policy dealt with,
            ``steps`` applied, ``messages_exchanged`` and ``bytes_exchanged`` between hosts, and
            whatever else the backend counts.
        """
        with self._counter_lock:
            return {**self._counters, **self._backend.counters()}

    # --- checkpoints -----------------------------------------------------------------------------

    def checkpoint_metadata(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the engine beside its tensors."""
        return embedding_metadata(self._built_tables(), self._step, self._seed)

    def checkpoint_tensors(self) -> list[TensorSource]:
        """Return tables and slots as tensors, a row range per host."""
        return embedding_sources(self._built_tables(), self._backend)

    def checkpoint_restore(
        self, metadata: dict[str, Any], tensors: Mapping[str, SavedTensor], *, slots: str
    ) -> RestorePlan:
        """Return how tables and slots are restored; an engine that is not built gets built by it.

        Raises
        ------
        ShardcoreValueError
            If tables are missing or differ in shape or dtype, or the optimizer is another one.
        ShardcoreRuntimeError
            If a batch is in flight, or the engine is closed.
        """
        self._check_open("restore")
        if self._in_flight is not None:
            raise ShardcoreRuntimeError("restore came while a batch is in flight: finish it first")
        was_built = self._built
        plan = plan_restore(
            self._planned, self._backend, metadata, tensors, live=was_built, slots=slots
        )
        if not was_built:
            self._create_tables(plan.specs)

        def commit() -> None:
            plan.reset_slots()
            self._built = True
            self._step = plan.step

        def abort() -> None:
            if not was_built:
                for table in self._planned:
                    self._backend.drop_table(table.spec.name)

        return RestorePlan(plan.writes, was_built, commit, abort, plan.skipped)


def _make_backend(backend: str | Backend | None, options: Mapping[str, Any] | None) -> Backend:
    if options is not None and not isinstance(options, Mapping):
        raise ShardcoreTypeError(f"backend_options must be a mapping, got {options!r}")
    if isinstance(backend, Backend):
        if options:
            raise ShardcoreValueError(
                f"backend_options {dict(options)} are for a backend given by name, "
                f"got a backend {backend.name!r}"
            )
        return backend
    if backend is not None and not isinstance(backend, str):
        raise ShardcoreTypeError(f"backend must be a name or a Backend, got {backend!r}")
    for key in options or {}:
        if not isinstance(key, str):
            raise ShardcoreTypeError(f"backend_options must have strings as keys, got {key!r}")
        if key == "name":
            raise ShardcoreValueError("backend_options must not hold 'name': backend is the name")
    return get_backend(backend, **(options or {}))
