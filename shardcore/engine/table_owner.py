"""The tables of an engine, whatever is done with them: made, seen, counted, saved, given back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from shardcore.backend.base import Backend
from shardcore.backend.process_group import ProcessGroup
from shardcore.checkpoint.state import RestorePlan, SavedTensor, TensorSource
from shardcore.engine.building import Building
from shardcore.engine.checkpointing import embedding_metadata, embedding_sources, plan_restore
from shardcore.engine.description import described_feature, described_table
from shardcore.engine.inputs import Inputs
from shardcore.engine.life import Life
from shardcore.engine.pipeline import Inline, Operations, Pipeline
from shardcore.engine.tables import PlannedTable
from shardcore.engine.training import Training
from shardcore.errors import ShardcoreError, ShardcoreRuntimeError, ShardcoreValueError
from shardcore.features.config import FeatureConfig, TableConfig
from shardcore.validation.shapes import as_count
from shardcore.variable.row_store import BackendRowStore
from shardcore.variable.variable import ShardedVariable

__all__ = ["TableOwner"]

_logger = logging.getLogger("shardcore")


class TableOwner:
    """The owner of an engine's tables: what `ShardedEmbedding` is, lookups and training apart.

    Parameters
    ----------
    features : list of (path, FeatureConfig)
    tables : list of PlannedTable
        Changed in place by a restore.
    inputs : Inputs
    backend : Backend
    pipeline : bool
    seed : int
    check_gradients : bool
    """

    def __init__(
        self,
        features: Sequence[tuple[str, FeatureConfig]],
        tables: list[PlannedTable],
        inputs: Inputs,
        backend: Backend,
        *,
        pipeline: bool,
        seed: int,
        check_gradients: bool,
    ) -> None:
        self._features = features
        self._planned = tables
        self._inputs = inputs
        self._backend = backend
        self._pipeline = pipeline
        self._seed = seed
        self._check_gradients = check_gradients
        self._building = Building(backend, self._log_built)
        self._operations: Operations = Pipeline() if pipeline else Inline(backend.change)
        self._life = Life()
        self._training = Training(
            inputs,
            tables,
            backend,
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
        self._training.forget_tables()
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
    def inputs(self) -> Inputs:
        """How features, weights and gradients are read, for the doors of other frameworks.

        Whatever the engine does, `inputs` can be asked: it touches no table. Its ``features`` are
        in the order of the configuration, with their tables and the paths that messages begin with;
        ``leaves`` and ``nested`` turn structures into lists in that order and back.

        Examples
        --------
        >>> import shardcore as sc
        >>> user = sc.TableConfig(5, 2, name="user")
        >>> engine = sc.ShardedEmbedding({"clicks": sc.FeatureConfig(user)})
        >>> [(feature.path, feature.table) for feature in engine.inputs.features]
        [("features['clicks']", 'user')]
        >>> engine.inputs.leaves({"clicks": [[3]]}, "features"), engine.inputs.nested([1])
        ([[[3]]], {'clicks': 1})
        """
        return self._inputs

    @property
    def device_arrays(self) -> bool:
        """Whether activations are arrays of the backend's devices, and gradients may be."""
        return self._backend.capabilities.device_arrays

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
            placement, exchange, quantization, max_norm, the paths of its features, and its
            optimizer with every parameter and whether a learning rate is ``"constant"`` or
            ``"dynamic"``;
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
        what = "reading or writing a table"
        return self._life.viewing(what, self._progress.settled, call, *arguments)

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
            counters = self._backend.counters
            of_backend = self._life.viewing("metrics", self._progress.settled, counters)
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
