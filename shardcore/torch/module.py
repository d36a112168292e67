"""What all modules of the door have in common: an engine, its step, and its state.

Tables are no parameters: ``module.parameters()`` has none of them, and no optimizer of torch's
updates them. They are in ``state_dict()``, with the optimizer's slots and its step, as tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from shardcore.backend.base import Backend
from shardcore.checkpoint.boxes import whole
from shardcore.checkpoint.state import RestorePlan, SavedTensor
from shardcore.engine.embedding import ShardedEmbedding
from shardcore.errors import ShardcoreTypeError, ShardcoreValueError, shown
from shardcore.optimizer.base import Optimizer
from shardcore.threads.work import uninterrupted
from shardcore.torch.autograd import Held, LookupCall, look_up
from shardcore.torch.tensors import as_array, as_tensor
from shardcore.torch.threads import follow_torch

__all__ = ["EngineModule"]


def _carry_out(plan: RestorePlan, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        plan.begin()
        for name, write in plan.writes.items():
            write(whole(arrays[name].shape), arrays[name])
    except BaseException:
        plan.abort()
        raise
    plan.commit()


class EngineModule(torch.nn.Module):
    """Base of the modules: tables in an engine, updated by gradients that come backward.

    Parameters
    ----------
    optimizer : Optimizer or None
    backend : str, Backend or None
    update : {"backward", "step"}
    frozen : bool
        Whether tables are never updated.
    """

    _engine: ShardedEmbedding
    _held: Held

    def __init__(
        self,
        optimizer: Optimizer | None,
        backend: str | Backend | None,
        update: Literal["backward", "step"],
        frozen: bool,
    ) -> None:
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise ShardcoreTypeError(
                "optimizer must be one of shardcore.optimizers, such as "
                f"shardcore.optimizers.SGD(0.1), or None, got {shown(optimizer)}"
            )
        if update not in ("backward", "step"):
            raise ShardcoreValueError(f"update must be 'backward' or 'step', got {shown(update)}")
        if frozen and optimizer is not None:
            raise ShardcoreValueError(
                f"optimizer must be None for tables that are frozen, got {shown(optimizer)}"
            )
        super().__init__()
        self.optimizer = optimizer
        self.backend = backend
        self.update = update
        self.frozen = frozen

    # --- what a subclass says --------------------------------------------------------------------

    def _features(self, initial: Mapping[str, Any]) -> Any:
        """Return the engine's features, whose tables begin with these initial values, by name."""
        raise NotImplementedError

    def _prefixes(self) -> dict[str, str]:
        """Return how the keys of each table's state begin, by its name."""
        raise NotImplementedError

    def _nest(self, leaves: Sequence[Any]) -> Any:
        """Put what there is per feature into the engine's structure."""
        return leaves[0]

    def _flat(self, nested: Any) -> list[Any]:
        """Undo `_nest`."""
        return [nested]

    # --- the engine ------------------------------------------------------------------------------

    def _make_engine(self, initial: Mapping[str, Any]) -> None:
        """Make the engine and its tables; chance follows ``torch.manual_seed``."""
        seed = int(torch.randint(0, 2**31 - 1, (), dtype=torch.int64))
        self._engine = ShardedEmbedding(
            self._features(initial), optimizer=self.optimizer, backend=self.backend, seed=seed
        )
        self._engine.build()
        self._held = {}

    @property
    def engine(self) -> ShardedEmbedding:
        """The engine that holds the tables: to save it in a checkpoint, to write rows, to count."""
        return self._engine

    def step(self) -> None:
        """Update the tables once by the gradients kept since the last step (``update="step"``).

        With ``update="backward"`` nothing is kept, and nothing happens.

        Raises
        ------
        ShardcoreTypeError, ShardcoreValueError
            If a gradient breaks a rule: see `shardcore.ShardedEmbedding.apply`. Nothing has
            changed then, and the gradients are kept; `zero_grad` drops them.
        """
        if self._held:
            pairs = [(lookup, self._nest(kept)) for lookup, kept in self._held.items()]
            self._engine.apply(pairs)
            self._held.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients kept for `step`. That of a module around this one does not."""
        super().zero_grad(set_to_none)
        self._held.clear()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze the tables, or let them be updated again, as torch's modules do for parameters.

        That of a module around this one does not reach tables, which are no parameters.
        """
        super().requires_grad_(requires_grad)
        self.frozen = not requires_grad
        return self

    def _updates(self) -> bool:
        """Return whether a lookup now is for training; on as many threads as torch uses."""
        follow_torch()
        return self.training and not self.frozen and torch.is_grad_enabled()

    def _look_up(
        self,
        leaves: Sequence[Any],
        weights: Sequence[Any] | None,
        tables: Sequence[str],
        dtypes: Sequence[Any],
        updates: bool,
        scale: NDArray[Any] | None = None,
    ) -> tuple[Any, ...]:
        """Return the activations per feature, with the way back where gradients may come."""
        factors = None
        differentiated = updates
        if weights is not None:
            factors = [
                None if one is None else as_array(one, "per_sample_weights") for one in weights
            ]
            differentiated = updates or (
                torch.is_grad_enabled()
                and any(one is not None and one.requires_grad for one in weights)
            )
        call = LookupCall(self, leaves, factors, tables, dtypes, updates, scale)
        return look_up(call, weights, updates) if differentiated else call.forward()

    # --- state -----------------------------------------------------------------------------------

    def _places(self) -> dict[str, tuple[str, str | None]]:
        """Return the table and the slot of every array of the state, by its key."""
        slots = self._engine.slots
        return {
            prefix + ("weight" if slot is None else f"slots.{slot}"): (table, slot)
            for table, prefix in self._prefixes().items()
            for slot in (None, *slots[table])
        }

    def _read(self, table: str, slot: str | None) -> Any:
        view = self._engine.tables[table] if slot is None else self._engine.slots[table][slot]
        return as_tensor(view.numpy())

    def _state(self) -> dict[str, Any]:
        state = {key: self._read(*place) for key, place in self._places().items()}
        if self.optimizer is not None:
            state["step"] = torch.tensor(self._engine.step)
        return state

    def _take(self, state: Mapping[str, Any]) -> None:
        """Take over a state, or the part of one; all of it, or nothing."""
        engine = self._engine
        arrays: dict[str, NDArray[Any]] = {}
        for key, (table, slot) in self._places().items():
            own = engine.tables[table] if slot is None else engine.slots[table][slot]
            name = table if slot is None else f"{table}/{slot}"
            values = as_array(state[key], key) if key in state else own.numpy()
            arrays[name] = np.ascontiguousarray(values).astype(own.dtype, copy=False)
        metadata = engine.checkpoint_metadata()
        if "step" in state:
            metadata["step"] = int(state["step"])
        saved = {name: SavedTensor(array.shape, array.dtype) for name, array in arrays.items()}
        plan = engine.checkpoint_restore(metadata, saved, slots="load")
        uninterrupted(_carry_out, plan, arrays)
        self._held.clear()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, tensor in self._state().items():
            destination[prefix + key] = tensor

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {key: state_dict[key] for key in state_dict if key.startswith(prefix)}
        shapes: dict[str, tuple[int, ...]] = {}
        for key, (table, slot) in self._places().items():
            view = self._engine.tables[table] if slot is None else self._engine.slots[table][slot]
            shapes[key] = view.shape
        if self.optimizer is not None:
            shapes["step"] = ()
        taken: dict[str, Any] = {}
        wrong = False
        for key, shape in shapes.items():
            if prefix + key not in own:
                if strict:
                    missing_keys.append(prefix + key)
                continue
            value = own.pop(prefix + key)
            if not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
                got = tuple(value.shape) if isinstance(value, torch.Tensor) else shown(value)
                error_msgs.append(f"{prefix}{key} must be a tensor of shape {shape}, got {got}")
                wrong = True
                continue
            taken[key] = value.detach().cpu()
        if strict:
            unexpected_keys += own
        if taken and not wrong:
            self._take(taken)

    # --- what moves, copies or shares a module ----------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if isinstance(self.backend, Backend):
            raise ShardcoreTypeError(
                f"{type(self).__name__} with a backend of its own cannot be copied or pickled: "
                "give backend= a name"
            )
        for name in ("_engine", "_held"):
            del state[name]
        # Arrays, and no tensors: those would be put into shared memory for another process.
        state["_saved"] = {key: as_array(one, key) for key, one in self._state().items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved")
        super().__setstate__(state)  # type: ignore[no-untyped-call, unused-ignore]  # by torch's version
        self._make_engine({})
        self._take({key: as_tensor(one) for key, one in saved.items()})

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Refuse what cannot be done to tables, where torch would pass over them in silence."""
        for dtype in sorted(set(self._dtypes()), key=str):
            found = fn(torch.zeros(1, dtype=dtype))
            name = type(self).__name__
            if found.device.type != "cpu":
                raise ShardcoreValueError(
                    f"{name} must stay on the CPU, got device {str(found.device)!r}: move the "
                    "other modules, and its output"
                )
            if found.dtype != dtype:
                raise ShardcoreValueError(
                    f"{name} must stay {dtype}, got {found.dtype}: a table's dtype is chosen when "
                    f"it is made, with dtype={found.dtype}"
                )
            if found.is_shared():
                raise ShardcoreValueError(
                    f"{name} must not share its memory: its tables belong to one process; pickle "
                    "it, or fork, for a copy that is looked up"
                )
        super()._apply(fn, recurse)
        return self

    def _dtypes(self) -> list[Any]:
        """Return torch's dtypes of the tables."""
        raise NotImplementedError
