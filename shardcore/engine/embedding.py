"""The engine: features in, activations out, gradients back, whatever the backend.

A training batch goes one way, and nothing is done twice::

    features ──▶ one Ragged each, checked ──▶ bags per table ──▶ backend: lookup    enqueue
                                                                  │
    activations, in the features' structure ◀─────────────────────┘                 dequeue
    gradients ──▶ checked, per table ──▶ backend: apply, once per unique row        apply_gradients

The same way is open to any number of batches at once, each in the hands of its caller: a `Lookup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, overload

from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.engine.handle import Activations, Lookup, pending_of
from shardcore.engine.inputs import Inputs
from shardcore.engine.table_owner import TableOwner
from shardcore.engine.tables import chosen_backend, laid_out, plan_tables
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.features.config import FeatureConfig
from shardcore.features.structure import flatten
from shardcore.optimizer.base import Optimizer
from shardcore.validation.shapes import as_integer

__all__ = ["ShardedEmbedding"]

_SHOWN_TABLES: Final = 6


class ShardedEmbedding(TableOwner, Generic[Activations]):
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

    # To type checkers, activations have the structure of the features, where it is a plain one.
    @overload
    def __init__(
        self: ShardedEmbedding[NDArray[Any]],
        feature_config: FeatureConfig,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, Any] | None = None,
        pipeline: bool = False,
        seed: int = 0,
        check_gradients: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self: ShardedEmbedding[dict[str, NDArray[Any]]],
        feature_config: dict[str, FeatureConfig],
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, Any] | None = None,
        pipeline: bool = False,
        seed: int = 0,
        check_gradients: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self: ShardedEmbedding[list[NDArray[Any]]],
        feature_config: list[FeatureConfig],
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, Any] | None = None,
        pipeline: bool = False,
        seed: int = 0,
        check_gradients: bool = True,
    ) -> None: ...
    @overload
    def __init__(
        self: ShardedEmbedding[Any],
        feature_config: object,
        optimizer: Optimizer | None = None,
        backend: str | Backend | None = None,
        backend_options: Mapping[str, Any] | None = None,
        pipeline: bool = False,
        seed: int = 0,
        check_gradients: bool = True,
    ) -> None: ...
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
        features: list[tuple[str, FeatureConfig]] = flatten(feature_config)
        if not features:
            raise ShardcoreValueError("feature_config must hold at least one FeatureConfig")
        seed = as_integer(seed, "seed")
        planned = plan_tables(features, optimizer, seed)
        chosen = chosen_backend(backend, backend_options, planned)
        inputs = Inputs(feature_config, features, planned, one_host=chosen.num_hosts == 1)
        super().__init__(
            features,
            laid_out(planned, chosen),
            inputs,
            chosen,
            pipeline=pipeline,
            seed=seed,
            check_gradients=check_gradients,
        )

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

    def __call__(self, features: Any, weights: Any = None) -> Activations:
        """Look up a batch, without training. May be called from any thread.

        Parameters
        ----------
        features : the structure of the configuration
            Leaves in any form that `shardcore.ids.formats` names. A dict of features, wherever in
            the structure, may also come as a data frame: of polars, pandas or pyarrow, or any with
            ``__arrow_c_stream__``. Its columns are features by name; those that no feature names
            are ignored.
        weights : the same structure, optional
            Leaves None, a `Ragged` or `Sparse` of numbers, an array, an Arrow column, or, where
            the features come as a data frame, the name of a column of it.

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
        found: Activations = self._training.look_up(features, weights)
        return found

    def lookup(
        self, features: Any, weights: Any = None, training: bool = True
    ) -> Lookup[Activations]:
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

    def dequeue(self, name: str | None = None) -> Activations:
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
        found: Activations = self._training.dequeue(name)
        return found

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
            once that is known, at the latest by a call that reads, saves or closes: the update did
            nothing. Those handed over meanwhile stand; rates and optimizers saw them under numbers
            that count the refused step. The batches in flight are dropped then, and `step` says how
            many were applied.
        ShardcoreRuntimeError
            If no training batch was dequeued, an earlier call failed in the background, or the
            engine is closed.
        """
        return self._training.apply_next(gradients, weight_gradients, name)

    def apply(
        self, pairs: Sequence[tuple[Lookup[Activations], Any]], weight_gradients: bool = False
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
